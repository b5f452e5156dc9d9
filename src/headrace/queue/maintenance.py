"""Maintenance of shards: what time demands of jobs, whether or not a worker runs.

Jobs whose lease has ended go back to their queue, due jobs become ready, jobs whose TTL has ended are removed, and each
shard ticks, so that history advances while nothing happens. Every long-running process of Headrace runs this beside its
own work. Of each shard one process is the maintenance owner; the others look again when its ownership ends.

Shards are independent: each has a thread of its own, so one whose server fails or hangs does not delay the others. The
threads need no event loop, so tasks that block one do not delay them either.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

from headrace.errors import HeadraceError, NotPermitted
from headrace.model.job import new_job_id
from headrace.queue import keys
from headrace.queue.scripts import Maintained, Stubs
from headrace.valkey.connect import ScriptError, Valkey, available, connect
from headrace.valkey.scripts import run
from headrace.vitals.figures import Families, Metric, Numbers
from headrace.vitals.rounds import one

log = logging.getLogger(__name__)

OWNERSHIP_S = 3.0  # without a call of the owner, another process takes over
LONGEST_PAUSE_S = 1.0  # between two calls of the owner: it learns of a job that is due sooner only then
SHORTEST_PAUSE_S = 0.01  # while there is more to do than one call handles
LONGEST_BACKOFF_S = 10.0
REFUSED_PAUSE_S = 60.0  # where the user of this process may not maintain
BATCH = 1000  # jobs of each kind in one call
TICK_MS = 5000
REPAIRS = 10  # queues in a row
TIMEOUT_S = 5.0
CLUSTER_RETRIES = 1  # the loops below repeat a call that failed
COUNT_EVERY_S = 10.0
STOP_S = 5.0

OWNED = Metric("headrace_maintenance_shards", "gauge", "Shards of which this process is the maintenance owner.")
RUNS = Metric("headrace_maintenance_runs_total", "counter", "Maintenance calls made as owner of a shard.")
FAILURES = Metric(
    "headrace_maintenance_failures_total", "counter", "Maintenance calls that failed, by shard.", ("shard",)
)
JOBS = Metric(
    "headrace_maintenance_jobs_total",
    "counter",
    "Jobs handled by maintenance: removed after their TTL (expire), returned after their lease (reclaim; the last "
    "attempt is buried), or made ready when due (release).",
    ("op",),
)
REPAIRED = Metric(
    "headrace_maintenance_repaired_total", "counter", "Queues counted again after a script failed half-way."
)
QUARANTINED = Metric(
    "headrace_maintenance_quarantined_total",
    "counter",
    "Malformed entries that maintenance took out of a shard's indexes.",
    ("shard",),
)
METRICS = (OWNED, RUNS, FAILURES, JOBS, REPAIRED, QUARANTINED)


class Maintenance:
    """Maintains all shards of a queue. Connects when it first runs; a server that is away is waited for."""

    def __init__(self, url: str, stubs: Stubs, name: str | None = None) -> None:
        self.name = name or f"{socket.gethostname()}-{os.getpid()}-{new_job_id()[-6:]}"
        self._url = url
        self._stubs = stubs
        self._client: Valkey | None = None
        self._connecting = threading.Lock()
        self._owned: set[int] = set()
        self._failures: dict[int, int] = {}  # in a row, by shard
        self._is_refused = False  # the user of this process may not maintain
        self._runs = Numbers(RUNS, ())
        self._failed = Numbers(FAILURES)
        self._repaired = Numbers(REPAIRED, ())
        self._quarantined = Numbers(QUARANTINED)
        self._jobs = Numbers(JOBS, ("expire",), ("reclaim",), ("release",))

    @contextmanager
    def running(self) -> Generator[None]:
        """Run in the background until the block ends."""
        stop = Event()
        thread = Thread(target=self.run_forever, args=[stop], name="maintenance", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(STOP_S)

    def run_forever(self, stop: Event) -> None:
        threads: list[Thread] = []
        while not stop.is_set():
            for shard in range(len(threads), self._count_shards()):
                thread = Thread(
                    target=self._maintain_forever, args=[shard, stop], name=f"maintenance-{shard}", daemon=True
                )
                thread.start()
                threads.append(thread)
            stop.wait(COUNT_EVERY_S)
        until = time.monotonic() + STOP_S
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        if self._client is not None:
            self._client.close()

    def run_once(self) -> None:
        """Maintain each shard once."""
        for shard in range(self._count_shards()):
            self.maintain(shard)

    def maintain(self, shard: int) -> float:
        """Maintain one shard, if no other process owns it. Returns the seconds until the next call."""
        call = self._stubs.maintain(shard, self.name, int(OWNERSHIP_S * 1000), BATCH, TICK_MS)
        try:
            answer = run(self._connected(), call)
        except NotPermitted as error:
            return self._leave_to_others(error)
        except Exception as error:  # whatever it was: a thread that ended would end the shard's maintenance
            return self._count_failure(shard, error)
        self._count(shard, answer)
        if answer.to_repair:
            self._repair(shard)
        if answer.quarantined:
            self._report_quarantined(shard, answer.quarantined)
        if not answer.is_owner:
            return answer.again_ms / 1000
        return min(max(answer.again_ms / 1000, SHORTEST_PAUSE_S), LONGEST_PAUSE_S)

    def _report_quarantined(self, shard: int, count: int) -> None:
        """Log each malformed entry that the last call took out."""
        self._quarantined.add(count, str(shard))
        try:
            with available():
                newest: Any = self._connected().zrevrange(keys.quarantine(shard), 0, count - 1)
        except (HeadraceError, ScriptError) as error:
            newest = [f"{count} entries ({error})".encode()]
        for entry in newest:
            log.error(
                "quarantined a malformed entry of shard %d; the others go on: %s",
                shard,
                entry.decode(errors="replace"),
                extra={"action": "quarantined"},
            )

    def _repair(self, shard: int) -> None:
        """Repair the queues of a shard that a failed script left half changed."""
        left = REPAIRS
        try:
            while left:
                repaired = run(self._connected(), self._stubs.repair(shard))
                self._repaired.add(1 if repaired.queue else 0)
                log.warning(
                    "a script failed half-way; counted queue %s of shard %d again",
                    repaired.queue,
                    shard,
                    extra={"action": "queue_repaired"},
                )
                left = min(left - 1, repaired.left)
        except Exception as error:  # the rest of maintenance goes on; the queue is tried again
            log.warning("could not repair a queue of shard %d: %s", shard, error, extra={"action": "repair_failed"})

    def families(self) -> Families:
        yield one(OWNED, len(self._owned))
        yield self._runs.read()
        yield self._failed.read()
        yield self._jobs.read()
        yield self._repaired.read()
        yield self._quarantined.read()

    def _maintain_forever(self, shard: int, stop: Event) -> None:
        while not stop.wait(self.maintain(shard)):
            pass

    def _connected(self) -> Valkey:
        with self._connecting:
            if self._client is None:
                self._client = connect(self._url, TIMEOUT_S, CLUSTER_RETRIES)
            return self._client

    def _count_shards(self) -> int:
        """Return the number of shards that the server holds; the configured one where it holds none or is away."""
        try:
            with available():
                found = self._connected().get(keys.SHARDS)
        except (HeadraceError, ScriptError) as error:
            log.debug("number of shards unknown, using the configured one: %s", error)
            return self._stubs.shards
        assert found is None or isinstance(found, bytes)
        return self._stubs.shards if found is None else int(found)

    def _count(self, shard: int, answer: Maintained) -> None:
        if self._failures.pop(shard, 0):
            log.info("maintenance of shard %d works again", shard, extra={"action": "maintenance_recovered"})
        if not answer.is_owner:
            self._owned.discard(shard)
            return
        self._owned.add(shard)
        self._runs.add(1)
        for op, count in (("expire", answer.expired), ("reclaim", answer.reclaimed), ("release", answer.released)):
            self._jobs.add(count, op)

    def _leave_to_others(self, error: NotPermitted) -> float:
        """Return the seconds until this process looks whether its user may maintain by then."""
        if not self._is_refused:
            log.info("maintenance is left to other processes: %s", error, extra={"action": "maintenance_not_permitted"})
        self._is_refused = True
        return REFUSED_PAUSE_S

    def _count_failure(self, shard: int, error: Exception) -> float:
        """Return the seconds to wait: 1, 2, 4, … up to the longest backoff."""
        self._owned.discard(shard)
        self._failed.add(1, str(shard))
        failures = self._failures[shard] = self._failures.get(shard, 0) + 1
        if failures == 1:
            log.warning(
                "could not maintain shard %d, retrying: %s", shard, error, extra={"action": "maintenance_failed"}
            )
        return min(LONGEST_BACKOFF_S, 2.0 ** min(failures - 1, 10))
