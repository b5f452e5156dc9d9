"""The status of every job that a producer ever enqueued, in two tiers: a plain model, written from the design.

It receives what producers, workers and operators did, and after each step the contents of both servers. From the two
it decides what happened to each job, and refuses what must not happen: a job that is nowhere, in two places, comes
back after its end, or overtakes another one. Where jobs wait is the tiers' business; the caps say where they cannot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import count

from headrace.model.event import Op
from headrace.model.job import LeasedJob, NewJob
from headrace.model.names import QueueRef
from headrace.queue.scripts import WarmCaps
from tests.model.tiers_contents import Row, Warm, World, parse_number


class JobStatus(Enum):
    SENT = "a producer has enqueued it and has no reply yet"
    REFUSED = "it was not accepted"
    WAITING = "accepted, and not leased"
    RUNNING = "a worker has it"
    DEAD = "buried"
    DONE = "done"
    EXPIRED = "its TTL was over"
    CANCELLED = "cancelled"


ENDED = frozenset({JobStatus.DONE, JobStatus.EXPIRED, JobStatus.CANCELLED})
IS_IN_VALKEY = {JobStatus.WAITING: ("ready", "scheduled"), JobStatus.RUNNING: ("running",), JobStatus.DEAD: ("dead",)}


@dataclass(repr=False)
class Job:
    number: int
    ref: QueueRef
    new: NewJob
    sent_at: int  # by the model's own clock, which ticks once per step
    status: JobStatus = JobStatus.SENT
    accepted_at: int = 0
    attempts: int = 0
    lease: str = ""
    overdue: bool = False  # its TTL is over
    has_ttl: bool = False
    was_delivered: bool = False
    takes_its_turn: bool = True  # it has no delay, and was never given back, nacked or redriven
    row: int = 0  # the number of its last row in PostgreSQL
    placed: bool = False  # that row came to Valkey

    @property
    def size(self) -> int:
        return len(self.new.payload)

    def __repr__(self) -> str:
        return f"job {self.number} ({self.new.id}, {self.status.name})"


@dataclass
class Call:
    """An enqueue on its way."""

    ref: QueueRef
    jobs: list[Job]
    may_clash: bool = False  # another producer may have used the same ids meanwhile


@dataclass
class TiersTruth:
    caps: WarmCaps
    jobs: dict[int, Job] = field(default_factory=dict[int, Job])
    counts: dict[QueueRef, Counter[Op]] = field(default_factory=dict[QueueRef, Counter[Op]])
    cancelling: Counter[str] = field(default_factory=Counter[str])  # ids that are about to be cancelled
    redriving: Counter[QueueRef] = field(default_factory=Counter[QueueRef])
    now: int = 0
    numbers: count[int] = field(default_factory=lambda: count(1))

    # What people do

    def begin_enqueue(self, ref: QueueRef, jobs: Iterable[NewJob]) -> Call:
        sent = [Job(parse_number(new.payload), ref, new, self.now, has_ttl=new.ttl_ms is not None) for new in jobs]
        for job in sent:
            job.takes_its_turn = job.new.delay_ms == 0
            self.jobs[job.number] = job
        self.counts.setdefault(ref, Counter())
        return Call(ref, sent)

    def answer(self, call: Call, accepted: Sequence[bool]) -> None:
        """The producer heard which of its jobs were accepted. (What is there was seen before this.)"""
        for job, was_accepted in zip(call.jobs, accepted, strict=True):
            assert was_accepted == (job.status is not JobStatus.SENT), f"{job}: answered {was_accepted}"
        self.give_up(call)

    def give_up(self, call: Call) -> None:
        """What is not there by now was not accepted, and must never come."""
        for job in call.jobs:
            if job.status is JobStatus.SENT:
                job.status = JobStatus.REFUSED

    def start(self, leased: LeasedJob) -> None:
        job = self.jobs[parse_number(leased.payload)]
        assert job.status is JobStatus.WAITING, f"{job} was handed out"
        assert not job.overdue, f"{job} was handed out after its TTL"
        assert (leased.queue, leased.id, leased.attempt) == (job.ref, job.new.id, job.attempts + 1)
        self._check_order(job)
        job.status, job.attempts, job.lease, job.was_delivered = JobStatus.RUNNING, leased.attempt, leased.lease, True
        self._count(job, Op.DEQUEUE)

    def _check_order(self, job: Job) -> None:
        """Check that no waiting job overtakes another of its queue and priority that was accepted before it was
        enqueued, whichever tiers they wait in."""
        if not job.takes_its_turn:
            return
        for other in self.jobs.values():
            same = other.ref == job.ref and other.new.priority == job.new.priority
            if same and other.status is JobStatus.WAITING and other.takes_its_turn and not other.overdue:
                assert not other.accepted_at < job.sent_at, f"{job} overtook {other}"

    def held(self, leased: LeasedJob) -> Job | None:
        job = self.jobs[parse_number(leased.payload)]
        return job if job.status is JobStatus.RUNNING and job.lease == leased.lease else None

    def done(self, job: Job) -> None:
        job.status = JobStatus.DONE
        self._count(job, Op.ACK)

    def failed(self, job: Job, *, buried: bool = False) -> None:
        if buried or job.attempts >= job.new.max_attempts:
            self._bury(job)
        else:
            job.status, job.takes_its_turn = JobStatus.WAITING, False
            self._count(job, Op.NACK)

    def lost_its_worker(self, job: Job) -> None:
        if job.attempts >= job.new.max_attempts:
            self._bury(job)
        else:
            job.status, job.takes_its_turn = JobStatus.WAITING, False
            self._count(job, Op.RECLAIM)

    def released(self, job: Job) -> None:
        self._count(job, Op.RELEASE)

    def cancelled(self, job: Job) -> None:
        job.status = JobStatus.CANCELLED
        self._count(job, Op.CANCEL)

    def _bury(self, job: Job) -> None:
        job.status = JobStatus.DEAD
        self._count(job, Op.BURY)

    def _count(self, job: Job, op: Op) -> None:
        self.counts[job.ref][op] += 1

    # What is seen

    def see(self, world: World) -> None:
        """Learn what happened since the last step, and refuse what must not."""
        self.now += 1
        assert not world.quarantined, "no row is invalid"
        for number in {*world.warm, *world.rows, *world.dead}:
            assert number in self.jobs, f"{number} came from nowhere"
        for job in self.jobs.values():
            self._see(job, world)
        self._check_caps(world)

    def _see(self, job: Job, world: World) -> None:
        warm, row = world.warm.get(job.number), world.rows.get(job.number)
        if row and row.seq in world.moving:
            if row.seq == job.row and not job.placed:
                self._placed(job)
            row = None  # it is in Valkey, or was: only the row is left
        if warm and row:
            assert warm.state == "dead", f"{job} is in both tiers"
        if job.status in (JobStatus.SENT, JobStatus.REFUSED):
            if warm or row:
                self._accepted(job, row, world)
            return
        if warm and job.row and not job.placed:
            self._placed(job)
        if job.status is JobStatus.WAITING:
            self._see_waiting(job, warm, row, world)
        elif job.status is JobStatus.RUNNING:
            assert warm, f"{job} is lost"
            assert not row, f"{job} waits as well"
        elif job.status is JobStatus.DEAD:
            self._see_dead(job, warm, row, world)
        else:
            assert not warm, f"{job} is in Valkey"
            assert not row, f"{job} is in PostgreSQL"
        if warm and job.status in IS_IN_VALKEY:
            assert warm.state in IS_IN_VALKEY[job.status], f"{job} is {warm.state}"
        if job.number in world.dead:
            assert job.status is JobStatus.DEAD, f"{job} is dead as well"

    def _accepted(self, job: Job, row: Row | None, world: World) -> None:
        assert job.status is JobStatus.SENT, f"{job} is there"
        for other in self.list_with_status(JobStatus.WAITING, JobStatus.RUNNING, JobStatus.DEAD):
            same_id = other.new.id == job.new.id and other.ref.environment == job.ref.environment
            assert not same_id, f"{job} was accepted beside {other}"
        job.status, job.accepted_at = JobStatus.WAITING, self.now
        self._count(job, Op.ENQUEUE)
        if row:
            job.row = row.seq
            self._count(job, Op.SPILL)

    def _placed(self, job: Job) -> None:
        job.placed = True
        self._count(job, Op.REFILL)

    def _see_waiting(self, job: Job, warm: Warm | None, row: Row | None, world: World) -> None:
        if row:
            assert row.seq == job.row, f"{job} has another row"
        if warm or row:
            return
        if job.overdue:
            job.status = JobStatus.EXPIRED
            self._count(job, Op.EXPIRE)
        else:
            assert self.cancelling[job.new.id], f"{job} is lost"
            self.cancelled(job)

    def _see_dead(self, job: Job, warm: Warm | None, row: Row | None, world: World) -> None:
        dead = world.dead.get(job.number)
        if row:  # redriven
            assert self.redriving[job.ref], f"{job} waits again"
            assert not dead, f"{job} is dead as well"
            assert not warm, f"{job} is dead in Valkey as well"
            job.status, job.row, job.placed = JobStatus.WAITING, row.seq, False
            job.attempts, job.takes_its_turn = 0, False
            job.overdue = job.has_ttl = False
            self._count(job, Op.REDRIVE)
            return
        assert warm or dead, f"{job} is lost"
        if warm and dead:
            assert dead.values["buried_ms"] == world.buried_ms(warm), f"{job} died twice"

    def _check_caps(self, world: World) -> None:
        """An empty queue takes one job of any size; else the caps hold, whatever happens. A shard holds a quarter more
        than its cap and one job of each queue at most."""
        alive = [job for job in world.warm.values() if job.state != "dead"]
        for ref in self.counts:
            held = [job for job in alive if job.ref == ref]
            assert len(held) <= self.caps.items, f"{len(held)} jobs in {ref.queue}"
            assert len(held) == 1 or sum(job.size for job in held) <= self.caps.bytes, f"bytes in {ref.queue}"
        if self.caps.shard_bytes:
            largest = {job.ref: max(other.size for other in alive if other.ref == job.ref) for job in alive}
            bound = self.caps.shard_bytes + self.caps.shard_bytes // 4 + sum(largest.values())
            assert sum(job.size for job in alive) <= bound, "bytes of the shard"

    # Looking

    def list_jobs(self, ref: QueueRef, *statuses: JobStatus) -> list[Job]:
        return [job for job in self.jobs.values() if job.ref == ref and job.status in statuses]

    def list_with_status(self, *statuses: JobStatus) -> list[Job]:
        return [job for job in self.jobs.values() if job.status in statuses]
