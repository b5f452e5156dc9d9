"""Whether the servers answer. Each is checked beside the others, with a short timeout, at most once a second.

However many requests wait for the answer, they share one round of questions, and none of them holds a thread or a lock
meanwhile.
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
"""Something if the server answers, None if not."""


@dataclass(frozen=True)
class Answer:
    up: bool
    latency_ms: float | None  # None: it did not answer in time


class Readiness:
    def __init__(self, redis_url: str, postgres_url: str, clickhouse_url: str) -> None:
        self._asks: Mapping[str, Ask] = {
            "valkey": lambda: valkey_version(redis_url),
            "postgres": lambda: postgres_version(postgres_url),
            "clickhouse": lambda: _clickhouse_version(clickhouse_url),
        }
        self._threads = ThreadPoolExecutor(len(self._asks) + 1, "readiness")
        self._asked: dict[str, Future[Answer]] = {}
        self._lock = Lock()  # held for no longer than it takes to begin a round
        self._round: Future[Mapping[str, Answer]] | None = None
        self._found_at = float("-inf")

    async def look(self) -> Mapping[str, Answer]:
        """Return what the servers answered within the last second, or within PATIENCE_S from now."""
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
            # One that still waits for a server that is silent is not joined by more.
            if name not in self._asked or self._asked[name].done():
                self._asked[name] = self._threads.submit(_timed, ask)
        answered, _ = wait(self._asked.values(), PATIENCE_S)
        self._found_at = time.monotonic()
        return {name: one.result() if one in answered else Answer(False, None) for name, one in self._asked.items()}


def _clickhouse_version(url: str) -> str | None:
    """Not as `doctor` asks: that one waits for minutes."""
    with connect_clickhouse(url, answer_timeout_s=int(PATIENCE_S)) as client:
        return client.server_version


def _timed(ask: Ask) -> Answer:
    began = time.monotonic()
    try:
        up = ask() is not None
    except Exception as error:
        # Whatever it says instead of answering, it cannot be used.
        log.debug("A server does not answer as it should: %s", error)
        up = False
    return Answer(up, round((time.monotonic() - began) * 1000, 1))
