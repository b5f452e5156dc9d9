"""An autoscaler on real servers, and tasks for the workers that it starts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace import Tasks
from headrace.autoscale.autoscaler import Actuator, Autoscaler, AutoscalerOptions
from headrace.autoscale.decide import Decision
from headrace.autoscale.lease import AutoscalerLease
from headrace.autoscale.observer import MAX_DUE_READ, LoadObserver
from headrace.autoscale.stream_observer import StreamObserver
from headrace.autoscale.worker_types import Scaling, WorkerType
from headrace.cold.store import read_due_times
from headrace.model.job import LeasedJob
from headrace.model.names import QueueRef
from headrace.postgres.connect import Pool, transaction
from headrace.valkey.connect import connect

REF = QueueRef("acme", "shop", "prod", "emails")
NOBODY = "redis://127.0.0.1:1/0"

tasks = Tasks()


@tasks.task("wait_for")
def wait_for(job: LeasedJob) -> None:
    """Until there is the file that the payload names; without one, not at all."""
    while job.payload and not Path(job.payload.decode()).exists():
        time.sleep(0.02)


def mail(**fields: Any) -> WorkerType:
    """Return a worker type. Its age rule applies as by default: jobs of a queue grow older by the test's own clock, the
    entries of a stream by the clock of its server."""
    given: dict[str, Any] = {"queues": (REF.queue,), "org": REF.org, "scaling": Scaling(max=20), **fields}
    return WorkerType("mail", **given)


class ManualActuator:
    """An actuator that records its calls."""

    def __init__(self) -> None:
        self.told: list[int] = []

    def count(self) -> int:
        return self.told[-1] if self.told else 0

    def scale(self, wanted: int, sentence: str = "") -> None:
        self.told.append(wanted)

    def reconcile(self) -> None: ...

    def stand_down(self) -> None:
        self.told.append(0)

    def stop(self, timeout_s: float | None = None) -> None: ...


class Autoscaling:
    """One process's autoscaler; `look` decides once, `seconds` after the last time."""

    def __init__(
        self,
        pool: Pool,
        valkey_url: str,
        types: Sequence[WorkerType],
        actuators: dict[str, Actuator] | None = None,
        lease_s: float = 3600.0,
        count_bound: int = 10_000,
        every_s: float = 10.0,
        shards: int = 2,
    ) -> None:
        self.lease = AutoscalerLease(pool, lease_s)
        streams = StreamObserver(lambda: connect(valkey_url), count_bound=count_bound)

        def read_cold_due(until_ms: float) -> dict[QueueRef, list[float]]:
            with transaction(pool) as conn:
                return read_due_times(conn, until_ms, MAX_DUE_READ)

        self.observer = LoadObserver(
            lambda: connect(valkey_url), shards, streams=streams, read_cold_due=read_cold_due, every_s=every_s
        )
        options = AutoscalerOptions(every_s, lease_s, tick_s=0.05)
        self.scaler = Autoscaler(pool, self.lease, self.observer, types, actuators, options)
        self.now_ms = time.time_ns() // 1_000_000

    def observe_and_decide(self, seconds: float = 10.0) -> Decision:
        """The decision about the first type."""
        self.now_ms += int(seconds * 1000)
        return self.scaler.run_once(self.now_ms)[0]
