"""Mean run times of the last minutes from history; None if unknown, so that live rates are used instead."""

from __future__ import annotations

import logging
from collections.abc import Callable

from headrace.model.names import QueueRef
from headrace.warehouse import queue_metrics
from headrace.warehouse.connect import Client
from headrace.warehouse.query_runner import QueryRunner
from headrace.warehouse.tiers import TIERS

log = logging.getLogger(__name__)

WINDOW_S = 300
CACHE_S = 30
RETRY_AFTER_S = 60
QUERY_TIMEOUT_S = 5.0
MAX_QUERIES_PER_ROUND = 20


class RunTimeCache:
    """Mean run times from ClickHouse, cached per queue for CACHE_S.

    At most MAX_QUERIES_PER_ROUND queues are queried per round; the others keep their cached value. After a failure no
    queries run for RETRY_AFTER_S.
    """

    def __init__(self, connect: Callable[[], Client]) -> None:
        self._connect = connect
        self._client: Client | None = None
        self._cache: dict[QueueRef, tuple[int, float | None]] = {}
        self._retry_at_ms = 0
        self._queried_ms: tuple[int, int] = (0, 0)  # time of the current round in ms, and its number of queries

    def get_mean_run_s(self, ref: QueueRef, now_ms: int) -> float | None:
        at_ms, known = self._cache.get(ref, (0, None))
        if now_ms - at_ms < CACHE_S * 1000:
            return known
        if now_ms < self._retry_at_ms:
            return None
        queries = self._queried_ms[1] if self._queried_ms[0] == now_ms else 0
        if queries >= MAX_QUERIES_PER_ROUND:
            return known
        self._queried_ms = now_ms, queries + 1
        try:
            mean = self._query_mean_run_s(ref, now_ms)
        except Exception as error:  # after any failure the live rates are used
            log.warning("could not read history, using live run times: %s", error, extra={"action": "away"})
            self._client, self._retry_at_ms = None, now_ms + RETRY_AFTER_S * 1000
            return None
        self._cache[ref] = now_ms, mean
        return mean

    def _query_mean_run_s(self, ref: QueueRef, now_ms: int) -> float | None:
        self._client = self._client or self._connect()
        tier = TIERS[0]
        end_s = (now_ms // 1000 // tier.seconds + 1) * tier.seconds
        reads = QueryRunner(self._client, QUERY_TIMEOUT_S)
        series = queue_metrics.read_points(reads, tier, ref, end_s - WINDOW_S, end_s, WINDOW_S)
        runs = sum(span.runs for span in series.epochs)
        return sum(span.run_ms for span in series.epochs) / runs / 1000 if runs else None
