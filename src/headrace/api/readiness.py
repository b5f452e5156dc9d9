"""Readiness of the servers. They are probed in parallel with a short timeout, at most once a second.

Concurrent requests share one round of probes, and hold neither a thread nor a lock while they wait.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from threading import Lock

from headrace.postgres.probe import server_version as postgres_version
from headrace.valkey.probe import server_version as valkey_version
from headrace.warehouse.connect import connect as connect_clickhouse

log = logging.getLogger(__name__)

PATIENCE_S = 2.0
KEEP_S = 1.0

Ask = Callable[[], str | None]
"""Returns the server's version, or None if it does not answer."""


@dataclass(frozen=True)
class Answer:
    up: bool
    latency_ms: float | None  # None: no answer in time


class Readiness:
    def __init__(self, redis_url: str, postgres_url: str, clickhouse_url: str) -> None:
        self._asks: Mapping[str, Ask] = {
            "valkey": lambda: valkey_version(redis_url),
            "postgres": lambda: postgres_version(postgres_url),
            "clickhouse": lambda: _clickhouse_version(clickhouse_url),
        }
        self._threads = ThreadPoolExecutor(len(self._asks) + 1, "readiness")
        self._asked: dict[str, Future[Answer]] = {}
        self._lock = Lock()  # held only while a round is started
        self._round: Future[Mapping[str, Answer]] | None = None
        self._found_at = float("-inf")

    async def look(self) -> Mapping[str, Answer]:
        """Return the results of the last second, or probe the servers, which takes at most PROBE_TIMEOUT_S."""
        return await asyncio.shield(asyncio.wrap_future(self._current_round()))

    def _current_round(self) -> Future[Mapping[str, Answer]]:
        with self._lock:
            is_over = self._round is None or self._round.done()
            if self._round is None or (is_over and time.monotonic() - self._found_at >= KEEP_S):
                self._round = self._threads.submit(self._ask_all)
            return self._round

    def close(self) -> None:
        self._threads.shutdown(wait=False)

    def _ask_all(self) -> dict[str, Answer]:
        for name, ask in self._asks.items():
            # A probe that still waits for an unresponsive server is not started a second time.
            if name not in self._asked or self._asked[name].done():
                self._asked[name] = self._threads.submit(_timed, ask)
        answered, _ = wait(self._asked.values(), PATIENCE_S)
        self._found_at = time.monotonic()
        return {name: one.result() if one in answered else Answer(False, None) for name, one in self._asked.items()}


def _clickhouse_version(url: str) -> str | None:
    """Return the version of ClickHouse, with a shorter timeout than `headrace doctor`."""
    with connect_clickhouse(url, answer_timeout_s=int(PATIENCE_S)) as client:
        return client.server_version


def _timed(ask: Ask) -> Answer:
    began = time.monotonic()
    try:
        up = ask() is not None
    except Exception as error:
        # After any error the server cannot be used.
        log.debug("readiness probe failed: %s", error)
        up = False
    return Answer(up, round((time.monotonic() - began) * 1000, 1))
