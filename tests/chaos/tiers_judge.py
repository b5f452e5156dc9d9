"""Whether every promise was kept: what producers and workers noted, against what Valkey and PostgreSQL say."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, cast

from headrace.cold.audit import Drift
from headrace.cold.tiers import Tiers
from headrace.model.event import Op
from headrace.queue import keys
from headrace.queue.client import SyncClient
from headrace.queue.state import QueueState, read_states
from headrace.valkey.connect import Valkey
from tests.audits import run_audit
from tests.chaos.tiers_notes import REFUSED, Execution, ProducerCalls, read_executions
from tests.chaos.tiers_plan import QUEUES, SHARDS, TENANTS, Places
from tests.model.fold import Fold, differences, read_envs, read_events

LATE = re.compile(r"discarded (\d+) results")
DETAILS = 20


@dataclass(frozen=True)
class Evidence:
    places: Places
    first: Sequence[str]  # ids that were accepted before the producers began
    producers: int
    workers: Sequence[str]
    killed: set[str]
    kills: Mapping[str, int]
    crashed: Sequence[str]
    settled: bool


@dataclass(frozen=True)
class Report:
    jobs: int  # ids that were enqueued
    accepted: int  # ids, by the producers' notes
    refused: int  # times a job was refused; some were enqueued again
    done: int
    buried: int
    expired: int
    waiting: int  # not due for an hour
    accepted_again: int  # ids that expired before their producer, which never saw the reply, enqueued them again
    spilled: int
    refilled: int
    quarantined: int  # rows of jobs that were enqueued twice at once: the other one ran
    kills: Mapping[str, int]
    events: int
    samples: int
    most_held: int
    seconds: float
    lapsed: int  # executions whose worker lived but lost its lease
    # Promises: all of these are 0.
    difference: int  # accepted − done − buried − expired − waiting, and every count that is off between two sources
    lost: int  # accepted, and nowhere
    refused_yet_run: int
    executed_twice_unexplained: int
    cap_exceeded: int
    fold_differences: int
    drift: int
    unsettled: int  # queues that kept jobs or stayed in cold mode
    unanswered: int  # calls
    crashes: int
    details: list[str] = field(default_factory=list[str])

    @property
    def holds(self) -> bool:
        broken = (
            *(self.difference, self.lost, self.refused_yet_run, self.executed_twice_unexplained, self.cap_exceeded),
            *(self.fold_differences, self.drift, self.unsettled, self.unanswered, self.crashes),
        )
        return not any(broken)


@dataclass
class Ids:
    """Ids by what became of them."""

    asked: set[str] = field(default_factory=set[str])
    accepted: set[str] = field(default_factory=set[str])
    refused: set[str] = field(default_factory=set[str])  # and never enqueued again
    known_at_once: set[str] = field(default_factory=set[str])  # enqueued once, and answered as a duplicate
    with_ttl: set[str] = field(default_factory=set[str])
    sent_again: set[str] = field(default_factory=set[str])
    waiting: Counter[str] = field(default_factory=Counter[str])
    buried: Counter[str] = field(default_factory=Counter[str])
    quarantined: Counter[str] = field(default_factory=Counter[str])

    def add(self, calls: ProducerCalls) -> None:
        for job, how, flag, again in calls.jobs():
            self.asked.add(job.id)
            if how == REFUSED and not flag:
                self.refused.add(job.id)
                continue
            self.accepted.add(job.id)
            if job.ttl_ms is not None:
                self.with_ttl.add(job.id)
            if again:
                self.sent_again.add(job.id)
            elif not flag:
                self.known_at_once.add(job.id)


def judge(evidence: Evidence, client: SyncClient, tiers: Tiers, seconds: float) -> Report:
    places = evidence.places
    drift = [find_drift(client.redis, tiers, shard) for shard in range(SHARDS)]  # first: it may report an error
    states = read_states(client.redis, SHARDS)
    all_calls = [ProducerCalls.read(places.folder, number + 1) for number in range(evidence.producers)]
    ids = Ids(asked=set(evidence.first), accepted=set(evidence.first))
    for calls in all_calls:
        ids.add(calls)
    look_into_valkey(client.redis, ids)
    look_into_postgres(tiers, ids)
    executions = read_executions(places.folder, evidence.workers)
    totals: Counter[str] = Counter()
    for state in states:
        totals.update(state.odometers)
    folds = [Fold().add(read_events(client.redis, shard)) for shard in range(SHARDS)]
    folded = [line for shard, fold in enumerate(folds) for line in compare_fold(client.redis, shard, fold, states)]
    late = sum(count_late(evidence, worker) for worker in evidence.workers)
    twice, lapsed = count_twice(executions, evidence, ids, late)
    off = [*compare_counts(ids, executions, evidence, totals, late), *compare_tiers(tiers, states)]
    lost = sorted(ids.accepted - executed(executions) - ids.waiting.keys() - ids.buried.keys() - ids.with_ttl)
    ran_anyway = ids.refused & (executions.keys() | ids.waiting.keys() | ids.buried.keys())
    unsettled = [f"{state.ref} is not settled: {state}" for state in states if is_busy(state)]
    sampled = json.loads((places.folder / "sampler-1.json").read_text())
    return Report(
        jobs=len(ids.asked),
        accepted=len(ids.accepted),
        refused=sum(calls.refusals for calls in all_calls),
        done=totals[Op.ACK],
        buried=totals[Op.BURY],
        expired=totals[Op.EXPIRE],
        waiting=ids.waiting.total(),
        accepted_again=accepted_again(ids, totals),
        spilled=totals[Op.SPILL],
        refilled=totals[Op.REFILL],
        quarantined=ids.quarantined.total(),
        kills=evidence.kills,
        events=sum(fold.events for fold in folds),
        samples=sampled["samples"],
        most_held=sampled["most"],
        seconds=round(seconds, 1),
        lapsed=lapsed,
        difference=sum(abs(amount) for _, amount in off),
        lost=len(lost),
        refused_yet_run=len(ran_anyway),
        executed_twice_unexplained=len(twice),
        cap_exceeded=sampled["exceeded"],
        fold_differences=len(folded),
        drift=sum(sum(asdict(found).values()) for found in drift),
        unsettled=len(unsettled) or int(not evidence.settled),
        unanswered=sum(len(calls.open) for calls in all_calls),
        crashes=len(evidence.crashed),
        details=[
            *(f"{what}: {amount:+d}" for what, amount in off),
            *folded[:DETAILS],
            *(f"lost {job_id}" for job_id in lost[:DETAILS]),
            *(f"refused, and ran: {job_id}" for job_id in sorted(ran_anyway)[:DETAILS]),
            *twice[:DETAILS],
            *(f"shard {shard}: {found}" for shard, found in enumerate(drift) if found != Drift()),
            *unsettled,
            *evidence.crashed,
        ],
    )


def find_drift(valkey: Valkey, tiers: Tiers, shard: int) -> Drift:
    """All that was ever found, by the movers too."""
    run_audit(tiers, shard)
    found = cast("list[bytes | None]", valkey.hmget(keys.meta(shard), "drift_rows", "drift_told", "drift_settings"))
    return Drift(*(int(number or 0) for number in found))


def is_busy(state: QueueState) -> bool:
    return state.cold_mode or state.depth > 0 or state.running > 0


def executed(executions: Mapping[str, Sequence[Execution]]) -> set[str]:
    return {job_id for job_id, runs in executions.items() if any(run.fine for run in runs)}


def accepted_again(ids: Ids, totals: Counter[str]) -> int:
    """How many more jobs the queue took than there are ids."""
    return totals[Op.ENQUEUE] - ids.quarantined.total() - len(ids.accepted)


def compare_counts(
    ids: Ids, executions: Mapping[str, Sequence[Execution]], evidence: Evidence, totals: Counter[str], late: int
) -> list[tuple[str, int]]:
    """What is off, and by how much. Events hold no ids, so jobs with a TTL leave some room, which is bounded here."""
    waiting, quarantined = ids.waiting.total(), ids.quarantined.total()
    ended = totals[Op.ACK] + totals[Op.BURY] + totals[Op.EXPIRE]
    # One that ran in a worker that died, or was silent for too long and came too late, comes back, and its TTL counts
    # again.
    done = executed(executions) & ids.accepted
    unsure = {
        job_id
        for job_id in done & ids.with_ttl
        if all(run.worker in evidence.killed for run in executions[job_id] if run.fine)
    }
    most_again = len(ids.with_ttl & ids.sent_again)
    off = {
        "accepted − done − buried − expired − waiting": totals[Op.ENQUEUE] - ended - waiting - quarantined,
        "done, by workers and by Valkey": outside(
            totals[Op.ACK], len(done - unsure) - min(late, len((done - unsure) & ids.with_ttl)), len(done)
        ),
        "buried, by ids and by Valkey": totals[Op.BURY] - ids.buried.total(),
        "buried twice": ids.buried.total() - len(ids.buried),
        "waiting twice": waiting - len(ids.waiting),
        "ids accepted again that cannot have expired": outside(accepted_again(ids, totals), 0, most_again),
        "ids that existed when first enqueued": len(ids.known_at_once),
        "quarantined, and ran nowhere": len(ids.quarantined.keys() - done - ids.buried.keys()),
        "executed or stored, and never enqueued": len(
            (executions.keys() | ids.waiting.keys() | ids.buried.keys()) - ids.accepted - ids.refused
        ),
    }
    return [(what, amount) for what, amount in off.items() if amount]


def outside(value: int, least: int, most: int) -> int:
    return min(0, value - least) or max(0, value - most)


def compare_tiers(tiers: Tiers, states: Sequence[QueueState]) -> list[tuple[str, int]]:
    """What happened in PostgreSQL, by its own totals and by Valkey's odometers."""
    with tiers.store.transaction() as conn:
        rows: Any = conn.execute("SELECT org, project, env, queue, spilled, refilled FROM cold_queues").fetchall()
    own = {state.ref: state.odometers for state in states}
    found: list[tuple[str, int]] = []
    for ref in QUEUES:
        spilled, refilled = next((row[4:] for row in rows if row[:4] == tuple(vars(ref).values())), (0, 0))
        found.append((f"{ref} spilled", own[ref].get(Op.SPILL, 0) - spilled))
        found.append((f"{ref} refilled", own[ref].get(Op.REFILL, 0) - refilled))
    return [(what, amount) for what, amount in found if amount]


def count_twice(
    executions: Mapping[str, Sequence[Execution]], evidence: Evidence, ids: Ids, late: int
) -> tuple[list[str], int]:
    """(executions that should not have been, executions whose worker lived but lost its lease).

    The queue itself takes a job back when a lease ends, and then the next delivery is a further attempt. A job that
    came twice would begin with the first attempt twice."""
    twice: list[str] = []
    lapsed: list[str] = []
    may_return = ids.with_ttl & ids.sent_again  # expired after its worker died or was late, then enqueued again
    for job_id, runs in executions.items():
        for before, after in pairwise(runs):
            killed = before.worker in evidence.killed
            anew = after.attempt <= before.attempt
            if anew and job_id not in may_return:
                twice.append(f"{job_id}: {before}, then {after}")
            elif (before.fine or anew) and not killed:
                lapsed.append(f"{job_id}: {before}, then {after}, and no result came too late")
    return [*twice, *lapsed[late:]], len(lapsed)


def count_late(evidence: Evidence, worker: str) -> int:
    """Results that a worker brought after its lease was over, by its log."""
    log = (evidence.places.folder / f"{worker}.log").read_text(errors="replace")
    return sum(int(found) for found in LATE.findall(log))


def compare_fold(valkey: Valkey, shard: int, fold: Fold, states: Sequence[QueueState]) -> list[str]:
    own = [state for state in states if state.ref.environment.shard(SHARDS) == shard]
    envs = read_envs(valkey, shard, [env for env in TENANTS if env.shard(SHARDS) == shard])
    return differences(fold, own, envs)


def look_into_valkey(valkey: Valkey, ids: Ids) -> None:
    for shard in range(SHARDS):
        for key in cast("Iterator[bytes]", valkey.scan_iter(f"{keys.prefix(shard)}job:*", count=1000)):
            job_id = keys.decode(key.decode().rpartition(":")[2])
            dead = valkey.hget(key, "state") == b"dead"
            (ids.buried if dead else ids.waiting)[job_id] += 1


def look_into_postgres(tiers: Tiers, ids: Ids) -> None:
    tables = {"cold_queue_entries": ids.waiting, "dead_jobs": ids.buried, "cold_quarantine": ids.quarantined}
    with tiers.store.transaction() as conn:
        for table, found in tables.items():
            found.update(row[0] for row in conn.execute(f"SELECT job_id FROM {table}"))  # pyright: ignore[reportArgumentType, reportCallIssue]
