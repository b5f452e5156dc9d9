"""Results of jobs on their way to the source that the jobs came from."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from headrace.errors import LeaseLost
from headrace.model.job import AttemptRecord, LeasedJob
from headrace.queue.scripts import Deferral, Records
from headrace.queue.worker_metrics import BURY, DEFER, LOST, NACK, RECLAIM, WorkerMetrics

log = logging.getLogger(__name__)

DEFER_OUTCOMES = {Deferral.DEFERRED: DEFER, Deferral.BURIED: BURY, Deferral.LOST: LOST}
"""Outcomes by the codes of the scripts `defer`."""


class ResultReceiver(Protocol):
    """Applies results. The methods return for each job whether its result was applied; False: its lease was lost. A
    record among `records` is kept together with the result of its job."""

    async def ack(self, done: Sequence[tuple[LeasedJob, int]], records: Records) -> Sequence[bool]: ...

    async def nack(self, failed: Sequence[tuple[LeasedJob, int, str]], records: Records) -> Sequence[bool]: ...

    async def bury(self, buried: Sequence[tuple[LeasedJob, str]], records: Records) -> Sequence[bool]: ...

    async def defer(self, deferrals: Sequence[Deferral]) -> Sequence[str]:
        """Give jobs back. Return for each its outcome: DEFER, BURY or LOST."""
        ...

    async def requeue(self, jobs: Sequence[LeasedJob]) -> Sequence[bool]: ...


@dataclass(eq=False)
class JobResults:
    """Unreported results of the jobs of one source. Falsy if there are none."""

    done: list[tuple[LeasedJob, int]] = field(default_factory=list[tuple[LeasedJob, int]])  # job and run ms
    # Job, delay of its retry in ms, error.
    failed: list[tuple[LeasedJob, int, str]] = field(default_factory=list[tuple[LeasedJob, int, str]])
    buried: list[tuple[LeasedJob, str]] = field(default_factory=list[tuple[LeasedJob, str]])  # job and error
    deferred: list[Deferral] = field(default_factory=list[Deferral])
    returned: list[LeasedJob] = field(default_factory=list[LeasedJob])  # not started, or not finished in time
    records: dict[str, AttemptRecord] = field(default_factory=dict[str, AttemptRecord])  # by lease

    def __bool__(self) -> bool:
        return bool(self.done or self.failed or self.buried or self.deferred or self.returned)

    def list_jobs(self) -> Iterator[LeasedJob]:
        """Yield the jobs. May be called in another thread while results are added."""
        for results in (self.done, self.failed, self.buried):
            yield from (result[0] for result in results.copy())
        yield from (deferral.job for deferral in self.deferred.copy())
        yield from self.returned.copy()

    def prepend(self, earlier: JobResults) -> None:
        """Put results that could not be reported in front of those that were added since."""
        self.done[:0] = earlier.done
        self.failed[:0] = earlier.failed
        self.buried[:0] = earlier.buried
        self.deferred[:0] = earlier.deferred
        self.returned[:0] = earlier.returned
        self.records.update(earlier.records)


async def report_results(results: JobResults, receiver: ResultReceiver, metrics: WorkerMetrics) -> None:
    """Send the results and count them in the metrics. Each list is emptied once its call has succeeded, so that a retry
    repeats only the rest. Repeating a call is safe, because the lease is checked."""
    lost = 0
    if results.done:
        applied = await receiver.ack(results.done, results.records)
        for (job, run_ms), flag in zip(results.done, applied, strict=True):
            if flag:
                metrics.record_ack(job.queue, job.task, run_ms)
            else:
                metrics.record_outcome(job.queue, job.task, LOST)
                lost += 1
        results.done = []
    if results.failed:
        nacked = await receiver.nack(results.failed, results.records)
        lost += count_outcomes(metrics, [job for job, _, _ in results.failed], _name_outcomes(nacked, NACK))
        results.failed = []
    if results.buried:
        buried = await receiver.bury(results.buried, results.records)
        lost += count_outcomes(metrics, [job for job, _ in results.buried], _name_outcomes(buried, BURY))
        results.buried = []
    results.records = {}
    if results.deferred:
        lost += count_outcomes(metrics, [each.job for each in results.deferred], await receiver.defer(results.deferred))
        results.deferred = []
    if results.returned:
        returned = await receiver.requeue(results.returned)
        count_outcomes(metrics, results.returned, _name_outcomes(returned, RECLAIM))
        results.returned = []
    if lost:
        log.warning("discarded %d results: %s", lost, LeaseLost(), extra={"action": "lease_lost"})


def count_outcomes(metrics: WorkerMetrics, jobs: Iterable[LeasedJob], outcomes: Iterable[str]) -> int:
    """Count outcomes other than acks in the metrics. Return the number of lost jobs."""
    lost = 0
    for job, outcome in zip(jobs, outcomes, strict=True):
        metrics.record_outcome(job.queue, job.task, outcome)
        lost += outcome == LOST
    return lost


def _name_outcomes(applied: Iterable[bool], outcome: str) -> Iterator[str]:
    return (outcome if flag else LOST for flag in applied)
