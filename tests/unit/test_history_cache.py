"""The cache of history responses: what is shared, and what ends it. No servers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event
from typing import cast

import pytest

from headrace.api import history_cache
from headrace.api.history_cache import FINAL_MS, OPEN_MS, OVERHEAD, STATE_S, CachedResponse, HistoryCache
from headrace.warehouse.history_state import HistoryState, RecentBatch, RewrittenHours, ShardCoverage
from headrace.warehouse.query_runner import QueryRunner
from tests.conftest import wait_until

NOW_MS = 1_800_000_000_000
BATCH = RecentBatch(NOW_MS - 1000, 7, NOW_MS - 2000, NOW_MS - 1500, 0)
STATE = HistoryState((BATCH,), frozenset(), ())
NO_QUERIES = cast(QueryRunner, None)


class Source:
    """Counts the responses that it computes."""

    def __init__(self, is_final: bool = False, size: int = 10) -> None:
        self.computed = 0
        self._is_final = is_final
        self._size = size

    def compute(self) -> CachedResponse:
        self.computed += 1
        return CachedResponse(f"{self.computed}".encode().ljust(self._size), self._is_final)


def test_a_response_is_kept_while_the_state_is_the_same() -> None:
    cache, source = HistoryCache(10**6), Source()
    first = cache.get("a", STATE, NOW_MS, source.compute)
    assert cache.get("a", STATE, NOW_MS + OPEN_MS - 1, source.compute) == first
    assert first.etag is not None
    assert source.computed == 1
    cache.get("b", STATE, NOW_MS, source.compute)
    assert source.computed == 2


@pytest.mark.parametrize(
    "state",
    [
        replace(STATE, batches=(replace(BATCH, batch_id=8, watermark_ms=NOW_MS), BATCH)),
        replace(STATE, rewritten=frozenset({RewrittenHours(0, 3600, 1)})),
        replace(STATE, shards=(ShardCoverage(0, 5, 5),)),
    ],
    ids=["a batch arrived", "a backfill ended", "coverage changed"],
)
def test_an_open_response_ends_with_its_state(state: HistoryState) -> None:
    cache, source = HistoryCache(10**6), Source()
    cache.get("a", STATE, NOW_MS, source.compute)
    cache.get("a", state, NOW_MS, source.compute)
    assert source.computed == 2


def test_an_open_response_ends_after_a_while_and_when_the_clock_goes_back() -> None:
    cache, source = HistoryCache(10**6), Source()
    for now_ms in (NOW_MS, NOW_MS + OPEN_MS, NOW_MS):
        cache.get("a", STATE, now_ms, source.compute)
    assert source.computed == 3


def test_a_final_response_survives_batches_but_not_a_backfill() -> None:
    cache, source = HistoryCache(10**6), Source(is_final=True)
    cache.get("a", STATE, NOW_MS, source.compute)
    later = replace(STATE, batches=(replace(BATCH, batch_id=8),))
    cache.get("a", later, NOW_MS + FINAL_MS - 1, source.compute)
    assert source.computed == 1
    cache.get("a", replace(later, rewritten=frozenset({RewrittenHours(0, 3600, 1)})), NOW_MS, source.compute)
    assert source.computed == 2
    cache.get("a", STATE, NOW_MS + FINAL_MS, source.compute)
    assert source.computed == 3


@pytest.mark.parametrize(("max_bytes", "state"), [(0, STATE), (10**6, HistoryState((), frozenset(), ()))])
def test_nothing_is_kept_without_a_cache_or_reports_of_batches(max_bytes: int, state: HistoryState) -> None:
    cache, source = HistoryCache(max_bytes), Source()
    for _ in range(2):
        assert cache.get("a", state, NOW_MS, source.compute).etag is None
    assert source.computed == 2
    assert cache.bytes == 0


def test_the_cache_is_bounded_in_bytes() -> None:
    cache, source = HistoryCache(5 * (OVERHEAD + 5000)), Source(size=4000)
    for number in range(50):
        cache.get(number, STATE, NOW_MS, source.compute)
        assert cache.bytes <= 5 * (OVERHEAD + 5000)
    cache.get(49, STATE, NOW_MS, source.compute)
    assert source.computed == 50
    cache.get(44, STATE, NOW_MS, source.compute)  # the least recently used went first
    assert source.computed == 51


def test_a_response_larger_than_the_cache_is_not_kept() -> None:
    cache, source = HistoryCache(2000), Source(size=10_000)
    assert cache.get("a", STATE, NOW_MS, source.compute).body.startswith(b"1")
    assert cache.bytes == 0


def test_an_error_is_not_kept() -> None:
    cache, source = HistoryCache(10**6), Source()

    def fail() -> CachedResponse:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        cache.get("a", STATE, NOW_MS, fail)
    assert cache.get("a", STATE, NOW_MS, source.compute).body.startswith(b"1")


def test_concurrent_requests_share_one_computation() -> None:
    cache, source, may_end = HistoryCache(10**6), Source(), Event()

    def compute() -> CachedResponse:
        may_end.wait(60)
        return source.compute()

    with ThreadPoolExecutor(4) as pool:
        found = [pool.submit(cache.get, "a", STATE, NOW_MS, compute) for _ in range(4)]
        may_end.set()
        assert len({each.result(60).body for each in found}) == 1
    assert source.computed == 1


class StateReads:
    """Stands in for the query of the state. Reads wait until they may end."""

    def __init__(self) -> None:
        self.begun = 0
        self.may_end = Event()

    def read(self, _: QueryRunner) -> HistoryState:
        self.begun += 1
        self.may_end.wait(60)
        return STATE


@pytest.mark.parametrize("max_bytes", [0, 10**6])
def test_a_state_is_never_older_than_the_request_allows(max_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the cache it was read after the request, with it at most STATE_S before."""
    now = 100.0
    reads = StateReads()
    reads.may_end.set()
    monkeypatch.setattr(history_cache, "read_history_state", reads.read)
    cache = HistoryCache(max_bytes, lambda: now)
    cache.read_state(NO_QUERIES)
    now += STATE_S / 2
    cache.read_state(NO_QUERIES)
    assert reads.begun == (1 if max_bytes else 2)
    now += STATE_S
    cache.read_state(NO_QUERIES)
    assert reads.begun == (2 if max_bytes else 3)


def test_a_response_is_found_without_waiting_while_state_and_response_are_valid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, state = 100.0, STATE

    def return_state(_: QueryRunner) -> HistoryState:
        return state

    monkeypatch.setattr(history_cache, "read_history_state", return_state)
    cache, source = HistoryCache(10**6, lambda: now), Source()
    assert cache.find("a", NOW_MS) is None
    kept = cache.get("a", cache.read_state(NO_QUERIES), NOW_MS, source.compute)
    assert cache.find("a", NOW_MS) is kept
    assert cache.find("b", NOW_MS) is None
    assert cache.find("a", NOW_MS + OPEN_MS) is None
    now += STATE_S * 2
    assert cache.find("a", NOW_MS) is None  # the state may have changed
    state = replace(STATE, batches=(replace(BATCH, batch_id=8), BATCH))
    cache.read_state(NO_QUERIES)
    assert cache.find("a", NOW_MS) is None


def test_requests_that_wait_for_a_state_share_the_next_read(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = StateReads()
    monkeypatch.setattr(history_cache, "read_history_state", reads.read)
    asked: list[float] = []

    def clock() -> float:
        asked.append(len(asked))
        return asked[-1]

    cache = HistoryCache(0, clock)
    with ThreadPoolExecutor(5) as pool:
        first = pool.submit(cache.read_state, NO_QUERIES)
        wait_until(lambda: reads.begun == 1, "the first read")
        others = [pool.submit(cache.read_state, NO_QUERIES) for _ in range(4)]
        wait_until(lambda: len(asked) == 6, "all of them asked for the time: the first twice, the others once")
        reads.may_end.set()
        assert {id(each.result(60)) for each in (first, *others)} == {id(STATE)}
    assert reads.begun == 2
