"""What the failover run promised and what it kept: the notes of producers and tasks against the servers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from headrace.cold.tiers import Tiers
from headrace.history.reader import read_queue_history
from headrace.history.routing import resolve_window
from headrace.queue import keys
from headrace.valkey.connect import Valkey, find_node
from headrace.warehouse.query_runner import QueryRunner
from tests.chaos.failover_plan import (
    LIMITED,
    PAUSED,
    QUEUES,
    SHARDS,
    Accepted,
    Run,
    kept_jobs,
    read_accepted,
    read_runs,
)
from tests.chaos.failover_servers import LossWindow, now_ms

DETAILS = 20
MINUTE_MS = 60_000
CLEARLY = 5  # accepted jobs of a queue in a minute whose absence from history is no matter of its edges


@dataclass(frozen=True)
class Report:
    jobs: int  # accepted
    runs: int
    dead: int
    waiting: int
    faults: Mapping[str, int]
    seconds: float
    lost_in_window: int  # accepted within a documented loss window and gone, and the loss was reported
    # Promises: all of these are 0.
    lost: int  # accepted and gone, outside of every loss window or without a report
    stuck: int  # jobs that were neither done nor dead in the end
    buried_without_run: int
    limit_exceeded: int  # runs beside another of a queue with limit 1, and runs of a paused queue
    silent_zero: int  # minutes of a queue that history calls complete and empty, and that were not
    alerts_missing: int  # rules and reports that should have fired
    details: Sequence[str] = ()

    @property
    def holds(self) -> bool:
        promises = (self.lost, self.stuck, self.buried_without_run, self.limit_exceeded, self.silent_zero)
        return not any((*promises, self.alerts_missing))


@dataclass
class Verdict:
    """What one part of the run contributes to the report."""

    accepted: int = 0
    runs: int = 0
    dead: int = 0
    waiting: int = 0
    lost_in_window: int = 0
    broken: Counter[str] = field(default_factory=Counter[str])
    details: list[str] = field(default_factory=list[str])

    def add(self, promise: str, found: Iterable[str]) -> None:
        lines = sorted(found)
        self.broken[promise] += len(lines)
        self.details += [f"{promise}: {line}" for line in lines][: max(0, DETAILS - len(self.details))]


def make_report(verdicts: Sequence[Verdict], faults: Mapping[str, int], seconds: float) -> Report:
    broken = Counter[str]()
    for verdict in verdicts:
        broken.update(verdict.broken)
    return Report(
        jobs=sum(verdict.accepted for verdict in verdicts),
        runs=sum(verdict.runs for verdict in verdicts),
        dead=sum(verdict.dead for verdict in verdicts),
        waiting=sum(verdict.waiting for verdict in verdicts),
        faults=dict(faults),
        seconds=round(seconds, 1),
        lost_in_window=sum(verdict.lost_in_window for verdict in verdicts),
        lost=broken["lost"],
        stuck=broken["stuck"],
        buried_without_run=broken["buried_without_run"],
        limit_exceeded=broken["limit_exceeded"],
        silent_zero=broken["silent_zero"],
        alerts_missing=broken["alerts_missing"],
        details=[line for verdict in verdicts for line in verdict.details],
    )


def judge_jobs(
    folder: Path,
    producers: int,
    valkey: Valkey,
    tiers: Tiers | None,
    windows: Sequence[LossWindow] = (),
    unreported: Sequence[LossWindow] = (),
) -> Verdict:
    """`unreported`: the windows of which Headrace has not said that something was lost.

    Within the window of a restored PostgreSQL every missing job is excused, also one that waited in Valkey: the notes
    of producers do not say in which tier a job was accepted. So `lost` is strict only outside of these windows."""
    accepted = {each.job.id: each for each in read_accepted(folder, producers)}
    accepted |= {job.id: Accepted(job, PAUSED, 0) for job in kept_jobs()}
    runs = read_runs(folder)
    ran = {run.job_id for run in runs}
    waiting, dead = find_jobs(valkey, tiers)
    verdict = Verdict(len(accepted), len(runs), len(dead), len(waiting))
    found = ran | waiting | dead
    reported = [window for window in windows if window not in unreported]
    for each in (each for job_id, each in accepted.items() if job_id not in found):
        if any(is_within(each, window) for window in reported):
            verdict.lost_in_window += 1
        elif any(is_within(each, window) for window in unreported):
            verdict.add("lost", [f"{each.job.id}, and no report says so"])
        else:
            verdict.add("lost", [f"{each.job.id} of {each.ref.env}/{each.ref.queue}"])
    paused = {"kept-0", *(each.job.id for each in accepted.values() if each.ref == PAUSED)}
    verdict.add("stuck", waiting - paused)
    verdict.add("buried_without_run", dead - ran)
    failovers = [window for window in windows if window.server == "valkey"]
    verdict.add("limit_exceeded", overlaps(runs, failovers))
    verdict.add("limit_exceeded", (f"{job_id} of a paused queue" for job_id in ran & paused))
    return verdict


def is_within(accepted: Accepted, window: LossWindow) -> bool:
    return window.from_ms <= accepted.at_ms <= window.until_ms


def overlaps(runs: Sequence[Run], failovers: Sequence[LossWindow]) -> Iterator[str]:
    """Runs of the limited queue that began while another one ran. One that began before a failover does not count: the
    promoted server may not know of it, and its worker cannot be stopped from outside."""
    name = f"{LIMITED.env}/{LIMITED.queue}"
    own = sorted((run for run in runs if run.queue == name), key=lambda run: run.started_ms)
    for before, after in pairwise(own):
        is_cut = any(before.started_ms <= w.until_ms and w.from_ms <= after.started_ms for w in failovers)
        if before.ended_ms is not None and after.started_ms < before.ended_ms and not is_cut:
            yield f"{after} began beside {before}"


def find_jobs(valkey: Valkey, tiers: Tiers | None) -> tuple[set[str], set[str]]:
    """(ids of jobs that wait or run, ids of dead ones), in both tiers."""
    waiting: set[str] = set()
    dead: set[str] = set()
    for shard in range(SHARDS):
        node = find_node(valkey, keys.meta(shard))
        for key in cast("Iterator[bytes]", node.scan_iter(f"{keys.prefix(shard)}job:*", count=1000)):
            job_id = keys.decode(key.decode().rpartition(":")[2])
            state = node.hget(key.decode(), "state")
            if state is not None:  # else a mover has moved it to PostgreSQL, which is read below
                (dead if state == b"dead" else waiting).add(job_id)
    if tiers is not None:
        tables = {"cold_queue_entries": waiting, "dead_jobs": dead, "cold_quarantine": dead}
        with tiers.store.transaction() as conn:
            for table, found in tables.items():
                found.update(row[0] for row in conn.execute(f"SELECT job_id FROM {table}"))  # pyright: ignore[reportArgumentType, reportCallIssue]
    return waiting, dead


def find_silent_zeros(reads: QueryRunner, accepted: Iterable[Accepted], since_ms: int) -> Iterator[str]:
    """Minutes in which a queue accepted jobs, and that history calls complete and empty."""
    truth: Counter[tuple[str, str, int]] = Counter()
    for each in accepted:
        truth[each.ref.env, each.ref.queue, each.at_ms // MINUTE_MS] += 1
    moment = now_ms()
    first, last = since_ms // MINUTE_MS + 1, moment // MINUTE_MS - 1
    for ref in QUEUES:
        for minute in range(first, last + 1):
            if truth[ref.env, ref.queue, minute] < CLEARLY:
                continue
            start = str(minute * 60)
            window = resolve_window(moment, start=start, end=str((minute + 1) * 60), resolution="1m")
            found = read_queue_history(reads, ref, window, moment)
            counted: Any = 0 if found is None else sum(found.points.counts["enqueue_count"])
            is_complete = found is not None and found.completeness.pct == 100.0
            if is_complete and counted == 0:
                yield f"{ref.env}/{ref.queue} at {start}: {truth[ref.env, ref.queue, minute]} were accepted"
