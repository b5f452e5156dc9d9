"""How errors of tasks become text."""

from __future__ import annotations

import traceback

import pytest

from headrace.worker.task_runner import MAX_ERROR_CHARS, format_short_traceback


def raise_and_format(text: str) -> str:
    try:
        raise ValueError(text)
    except ValueError:
        return format_short_traceback()


def test_the_end_of_the_traceback_is_kept() -> None:
    text = raise_and_format("x" * MAX_ERROR_CHARS + "end")
    assert len(text) == MAX_ERROR_CHARS
    assert text.endswith("end\n")


def test_half_a_character_is_escaped() -> None:
    assert raise_and_format("\ud800").endswith("\\ud800\n")


def test_an_error_whose_traceback_cannot_be_formatted_keeps_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPython 3.11 fails with SystemError if two threads format a traceback at the same time."""

    def fail() -> str:
        raise SystemError("AST constructor recursion depth mismatch")

    monkeypatch.setattr(traceback, "format_exc", fail)
    assert raise_and_format("no such customer") == "ValueError: no such customer\n"
