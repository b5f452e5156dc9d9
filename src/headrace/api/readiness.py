"""Do the servers answer? Each is asked beside the others, with little patience, and not more than once a second."""

from __future__ import annotations

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
        self._threads = ThreadPoolExecutor(len(self._asks), "readiness")
        self._asked: dict[str, Future[Answer]] = {}
        self._lock = Lock()
        self._found: dict[str, Answer] = {}
        self._found_at = float("-inf")

    def look(self) -> Mapping[str, Answer]:
        with self._lock:
            if time.monotonic() - self._found_at >= KEEP_S:
                self._found = self._ask_all()
                self._found_at = time.monotonic()
            return self._found

    def close(self) -> None:
        self._threads.shutdown(wait=False)

    def _ask_all(self) -> dict[str, Answer]:
        for name, ask in self._asks.items():
            # One that still waits for a server that is silent is not joined by more.
            if name not in self._asked or self._asked[name].done():
                self._asked[name] = self._threads.submit(_timed, ask)
        answered, _ = wait(self._asked.values(), PATIENCE_S)
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
