"""Answers that are kept for a moment."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from headrace.api import ttl_cache as recent
from headrace.api.ttl_cache import TtlCache
from headrace.errors import ServiceUnavailable


def test_an_answer_is_kept_for_a_moment_per_question() -> None:
    now = 0.0
    answers = iter(range(10))
    kept: TtlCache[int] = TtlCache(5.0, lambda: now)
    assert [kept.get(question, lambda: next(answers)) for question in ("a", "a", "b")] == [0, 0, 1]
    now = 5.0
    assert kept.get("a", lambda: next(answers)) == 2


def test_what_raises_is_not_kept() -> None:
    kept: TtlCache[int] = TtlCache(5.0)
    with pytest.raises(ZeroDivisionError):
        kept.get("a", lambda: 1 // 0)
    assert kept.get("a", lambda: 1) == 1


def test_no_caller_waits_forever_behind_a_hanging_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "MAX_WAIT_S", 0.01)
    kept: TtlCache[int] = TtlCache(3600.0)
    asked, answered = Event(), Event()

    def slow() -> int:
        asked.set()
        assert answered.wait(60)
        return 1

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(kept.get, "a", slow)
        assert asked.wait(60)
        with pytest.raises(ServiceUnavailable):
            kept.get("a", lambda: 2)
        assert kept.get("b", lambda: 3) == 3
        answered.set()
        assert first.result(60) == 1
    assert kept.get("a", lambda: 2) == 1
