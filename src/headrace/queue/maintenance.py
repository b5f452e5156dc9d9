"""Time-driven maintenance of shards, which does not depend on running workers.

Jobs whose lease has expired return to their queue, due jobs become ready, jobs whose TTL has ended are removed, and
each shard ticks, so that history advances while nothing happens. Every long-running process of Headrace runs
maintenance in the background. Each shard has one maintenance owner, which sleeps until the next job is due and is
woken for one that is due sooner; the other processes try again when its ownership ends.

Each shard has its own thread, so a shard whose server fails or hangs does not delay the others. The threads need no
event loop, so tasks that block the loop do not delay them either.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import AbstractContextManager
from threading import Event, Thread
from typing import Any

from headrace.errors import HeadraceError, NotPermitted
from headrace.queue import keys
from headrace.queue.scripts import MaintainResult, Stubs
from headrace.runtime.backoff import Backoff
from headrace.runtime.loop import make_process_name, run_in_thread, single_value_family
from headrace.runtime.metrics import MetricDeclaration, MetricFamilies, MetricValues
from headrace.valkey.blocking import KeyWaiter
from headrace.valkey.connect import ScriptError, Valkey, connect, translate_errors
from headrace.valkey.scripts import run

log = logging.getLogger(__name__)

OWNERSHIP_S = 5.0  # another process takes over this long after the owner's last call; the script halves it for pauses
MIN_PAUSE_S = 0.002  # while there is more to do than one call handles
BACKOFF = Backoff(base_s=1.0, longest_s=10.0)
REFUSED_PAUSE_S = 60.0  # if the Valkey user of this process is not permitted to maintain
BATCH = 1000  # jobs of each kind in one call
TICK_MS = 5000
MAX_REPAIRS = 10  # queues repaired after one call
TIMEOUT_S = 5.0
CLUSTER_RETRIES = 1  # the loops below retry failed calls
COUNT_EVERY_S = 10.0
STOP_S = 5.0

OWNED = MetricDeclaration(
    "headrace_maintenance_shards", "gauge", "Shards of which this process is the maintenance owner."
)
RUNS = MetricDeclaration("headrace_maintenance_runs_total", "counter", "Maintenance calls made as owner of a shard.")
FAILURES = MetricDeclaration(
    "headrace_maintenance_failures_total", "counter", "Maintenance calls that failed, by shard.", ("shard",)
)
JOBS = MetricDeclaration(
    "headrace_maintenance_jobs_total",
    "counter",
    "Jobs handled by maintenance: removed after their TTL (expire), returned after their lease expired (reclaim; jobs "
    "at their last attempt are buried), or made ready when due (release).",
    ("op",),
)
REPAIRED = MetricDeclaration(
    "headrace_maintenance_repaired_total", "counter", "Queues whose counters were repaired after a script failed."
)
QUARANTINED = MetricDeclaration(
    "headrace_maintenance_quarantined_total",
    "counter",
    "Malformed entries that maintenance removed from a shard's indexes.",
    ("shard",),
)
METRICS = (OWNED, RUNS, FAILURES, JOBS, REPAIRED, QUARANTINED)


class Maintenance:
    """Maintenance of all shards. Connects at the first run, and retries while a server is unavailable."""

    def __init__(self, url: str, stubs: Stubs, name: str | None = None) -> None:
        self.name = name or make_process_name()
        self._url = url
        self._stubs = stubs
        self._client: Valkey | None = None
        self._due_signals: dict[int, KeyWaiter] = {}
        self._connecting = threading.Lock()
        self._owned: set[int] = set()
        self._failures: dict[int, int] = {}  # consecutive failures, by shard
        self._is_refused = False  # the Valkey user of this process is not permitted to maintain
        self._runs = MetricValues(RUNS, ())
        self._failed = MetricValues(FAILURES)
        self._repaired = MetricValues(REPAIRED, ())
        self._quarantined = MetricValues(QUARANTINED)
        self._jobs = MetricValues(JOBS, ("expire",), ("reclaim",), ("release",))

    def run_in_background(self) -> AbstractContextManager[None]:
        return run_in_thread(self.run_forever, "maintenance", STOP_S)

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
        for signal in list(self._due_signals.values()):
            signal.close()
        until = time.monotonic() + STOP_S
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        if self._client is not None:
            self._client.close()

    def run_once(self) -> None:
        for shard in range(self._count_shards()):
            self.maintain(shard)

    def maintain(self, shard: int) -> float:
        """Maintain one shard, if no other process owns it. Return the seconds until the next call."""
        call = self._stubs.maintain(shard, self.name, int(OWNERSHIP_S * 1000), BATCH, TICK_MS)
        try:
            answer = run(self._get_client(), call)
        except NotPermitted as error:
            return self._record_refusal(error)
        except Exception as error:  # any error: if the thread ended, so would the shard's maintenance
            return self._record_failure(shard, error)
        self._record_result(shard, answer)
        if answer.to_repair:
            self._repair(shard)
        if answer.quarantined:
            self._report_quarantined(shard, answer.quarantined)
        if not answer.is_owner:
            return answer.next_call_ms / 1000
        return max(answer.next_call_ms / 1000, MIN_PAUSE_S)

    def _report_quarantined(self, shard: int, count: int) -> None:
        self._quarantined.add(count, str(shard))
        try:
            with translate_errors():
                newest: Any = self._get_client().zrevrange(keys.quarantine(shard), 0, count - 1)
        except (HeadraceError, ScriptError) as error:
            newest = [f"{count} entries ({error})".encode()]
        for entry in newest:
            log.error(
                "quarantined a malformed entry of shard %d: %s",
                shard,
                entry.decode(errors="replace"),
                extra={"action": "quarantined"},
            )

    def _repair(self, shard: int) -> None:
        """Repair the queues of a shard that a failed script left half changed."""
        left = MAX_REPAIRS
        try:
            while left:
                repaired = run(self._get_client(), self._stubs.repair(shard))
                self._repaired.add(1 if repaired.queue else 0)
                log.warning(
                    "repaired the counters of queue %s of shard %d after a script failed",
                    repaired.queue,
                    shard,
                    extra={"action": "queue_repaired"},
                )
                left = min(left - 1, repaired.remaining)
        except Exception as error:  # the repair is retried with the next call
            log.warning("could not repair a queue of shard %d: %s", shard, error, extra={"action": "repair_failed"})

    def families(self) -> MetricFamilies:
        yield single_value_family(OWNED, len(self._owned))
        for values in (self._runs, self._failed, self._jobs, self._repaired, self._quarantined):
            yield values.read()

    def _maintain_forever(self, shard: int, stop: Event) -> None:
        while not stop.is_set():
            pause_s = self.maintain(shard)
            if shard in self._owned:
                self._wait_until_due(shard, pause_s, stop)
            else:
                stop.wait(pause_s)

    def _wait_until_due(self, shard: int, longest_s: float, stop: Event) -> None:
        """Wait until a job of a shard is due sooner than expected, but not longer than `longest_s`."""
        started = time.monotonic()
        try:
            if shard not in self._due_signals:
                self._due_signals[shard] = KeyWaiter(self._get_client(), keys.due(shard))
            self._due_signals[shard].wait(longest_s)
        except Exception as error:  # without the signal jobs become ready later, never not at all
            log.debug("cannot wait for the due signal of shard %d: %s", shard, error)
            stop.wait(max(0.0, started + longest_s - time.monotonic()))

    def _get_client(self) -> Valkey:
        with self._connecting:
            if self._client is None:
                self._client = connect(self._url, TIMEOUT_S, CLUSTER_RETRIES)
            return self._client

    def _count_shards(self) -> int:
        """Return the number of shards stored in Valkey; the configured number if none is stored or Valkey is
        unavailable."""
        try:
            with translate_errors():
                stored: Any = self._get_client().get(keys.SHARDS)
        except (HeadraceError, ScriptError) as error:
            log.debug("number of shards unknown, using the configured one: %s", error)
            return self._stubs.shards
        return self._stubs.shards if stored is None else int(stored)

    def _record_result(self, shard: int, answer: MaintainResult) -> None:
        if self._failures.pop(shard, 0):
            log.info("maintenance of shard %d recovered", shard, extra={"action": "maintenance_recovered"})
        if not answer.is_owner:
            self._owned.discard(shard)
            return
        self._owned.add(shard)
        self._runs.add(1)
        for op, count in (("expire", answer.expired), ("reclaim", answer.reclaimed), ("release", answer.released)):
            self._jobs.add(count, op)

    def _record_refusal(self, error: NotPermitted) -> float:
        """Log once that the user is not permitted to maintain. Return the seconds until the next attempt."""
        if not self._is_refused:
            log.info("leaving maintenance to other processes: %s", error, extra={"action": "maintenance_not_permitted"})
        self._is_refused = True
        return REFUSED_PAUSE_S

    def _record_failure(self, shard: int, error: Exception) -> float:
        """Count a failed call, and log the first of several. Return the seconds to wait."""
        self._owned.discard(shard)
        self._failed.add(1, str(shard))
        failures = self._failures[shard] = self._failures.get(shard, 0) + 1
        if failures == 1:
            log.warning(
                "could not maintain shard %d, retrying: %s", shard, error, extra={"action": "maintenance_failed"}
            )
        return BACKOFF.full_delay_s(failures)
