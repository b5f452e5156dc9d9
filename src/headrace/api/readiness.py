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

from headrace.postgres.probe import read_server_version as postgres_version
from headrace.valkey.probe import read_server_version as valkey_version
from headrace.warehouse.connect import connect as connect_clickhouse

log = logging.getLogger(__name__)

PROBE_TIMEOUT_S = 2.0
CACHE_S = 1.0

Probe = Callable[[], str | None]
"""Returns the server's version, or None if it does not answer."""


@dataclass(frozen=True)
class ProbeResult:
    up: bool
    latency_ms: float | None  # None: no answer in time


class Readiness:
    def __init__(self, redis_url: str, postgres_url: str, clickhouse_url: str) -> None:
        self._probes: Mapping[str, Probe] = {
            "valkey": lambda: valkey_version(redis_url),
            "postgres": lambda: postgres_version(postgres_url),
            "clickhouse": lambda: _read_clickhouse_version(clickhouse_url),
        }
        self._threads = ThreadPoolExecutor(len(self._probes) + 1, "readiness")
        self._running: dict[str, Future[ProbeResult]] = {}
        self._lock = Lock()  # held only while a round is started
        self._run: Future[Mapping[str, ProbeResult]] | None = None
        self._finished_at = float("-inf")

    async def check(self) -> Mapping[str, ProbeResult]:
        """Return the results of the last second, or probe the servers, which takes at most PROBE_TIMEOUT_S."""
        return await asyncio.shield(asyncio.wrap_future(self._get_run()))

    def _get_run(self) -> Future[Mapping[str, ProbeResult]]:
        with self._lock:
            if self._run is None or (self._run.done() and time.monotonic() - self._finished_at >= CACHE_S):
                self._run = self._threads.submit(self._run_probes)
            return self._run

    def close(self) -> None:
        self._threads.shutdown(wait=False)

    def _run_probes(self) -> dict[str, ProbeResult]:
        for name, probe in self._probes.items():
            # A probe that still waits for an unresponsive server is not started a second time.
            if name not in self._running or self._running[name].done():
                self._running[name] = self._threads.submit(_run_probe, probe)
        answered, _ = wait(self._running.values(), PROBE_TIMEOUT_S)
        self._finished_at = time.monotonic()
        return {
            name: one.result() if one in answered else ProbeResult(False, None) for name, one in self._running.items()
        }


def _read_clickhouse_version(url: str) -> str | None:
    """Return the version of ClickHouse, with a shorter timeout than `headrace doctor`."""
    with connect_clickhouse(url, answer_timeout_s=int(PROBE_TIMEOUT_S)) as client:
        return client.server_version


def _run_probe(probe: Probe) -> ProbeResult:
    began = time.monotonic()
    try:
        up = probe() is not None
    except Exception as error:
        # After any error the server cannot be used.
        log.debug("readiness probe failed: %s", error)
        up = False
    return ProbeResult(up, round((time.monotonic() - began) * 1000, 1))
