"""Mean run times of the last minutes from history; None if unknown, so that live rates are used instead."""

from __future__ import annotations

import logging
from collections.abc import Callable

from headrace.model.names import QueueRef
from headrace.warehouse import queue_metrics
from headrace.warehouse.connect import Client
from headrace.warehouse.reads import Reads
from headrace.warehouse.tiers import TIERS

log = logging.getLogger(__name__)

WINDOW_S = 300
KEPT_S = 30
AWAY_S = 60
QUERY_TIMEOUT_S = 5.0
MOST_AT_ONCE = 20


class RunTimes:
    """Mean run times from ClickHouse, cached per queue for CACHE_S.

    At most MAX_QUERIES_PER_ROUND queues are queried per round; the others keep their cached value. After a failure no
    queries run for RETRY_AFTER_S.
    """

    def __init__(self, connect: Callable[[], Client]) -> None:
        self._connect = connect
        self._client: Client | None = None
        self._known: dict[QueueRef, tuple[int, float | None]] = {}
        self._away_until_ms = 0
        self._asked: tuple[int, int] = (0, 0)  # time of the current round in ms, and its number of queries

    def of(self, ref: QueueRef, now_ms: int) -> float | None:
        at_ms, known = self._known.get(ref, (0, None))
        if now_ms - at_ms < KEPT_S * 1000:
            return known
        if now_ms < self._away_until_ms:
            return None
        queries = self._asked[1] if self._asked[0] == now_ms else 0
        if queries >= MOST_AT_ONCE:
            return known
        self._asked = now_ms, queries + 1
        try:
            mean = self._ask(ref, now_ms)
        except Exception as error:  # after any failure the live rates are used
            log.warning("could not read history, using live run times: %s", error, extra={"action": "away"})
            self._client, self._away_until_ms = None, now_ms + AWAY_S * 1000
            return None
        self._known[ref] = now_ms, mean
        return mean

    def _ask(self, ref: QueueRef, now_ms: int) -> float | None:
        if self._client is None:
            self._client = self._connect()
        tier = TIERS[0]
        end_s = (now_ms // 1000 // tier.seconds + 1) * tier.seconds
        reads = Reads(self._client, QUERY_TIMEOUT_S)
        series = queue_metrics.points(reads, tier.name, ref, end_s - WINDOW_S, end_s, WINDOW_S)
        runs = sum(span.runs for span in series.spans)
        return sum(span.run_ms for span in series.spans) / runs / 1000 if runs else None
