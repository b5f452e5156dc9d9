"""The fate of every job that a producer ever enqueued, in two tiers: a plain model, written from the design.

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
from tests.model.tiers_sight import Row, Warm, World, number_of


class Fate(Enum):
    ASKED = "a producer has enqueued it and has no reply yet"
    REFUSED = "it was not accepted"
    WAITING = "accepted, and not leased"
    RUNNING = "a worker has it"
    DEAD = "buried"
    DONE = "done"
    EXPIRED = "its TTL was over"
    CANCELLED = "cancelled"
    ASIDE = "quarantined: another job of its id was in Valkey when its turn came"


ENDED = frozenset({Fate.DONE, Fate.EXPIRED, Fate.CANCELLED, Fate.ASIDE})
IS_IN_VALKEY = {Fate.WAITING: ("ready", "scheduled"), Fate.RUNNING: ("running",), Fate.DEAD: ("dead",)}


@dataclass(repr=False)
class Job:
    number: int
    ref: QueueRef
    new: NewJob
    asked_at: int  # by the model's own clock, which ticks once per step
    fate: Fate = Fate.ASKED
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
        return f"job {self.number} ({self.new.id}, {self.fate.name})"


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

    def ask(self, ref: QueueRef, jobs: Iterable[NewJob]) -> Call:
        asked = [Job(number_of(new.payload), ref, new, self.now, has_ttl=new.ttl_ms is not None) for new in jobs]
        for job in asked:
            job.takes_its_turn = job.new.delay_ms == 0
            self.jobs[job.number] = job
        self.counts.setdefault(ref, Counter())
        return Call(ref, asked)

    def answer(self, call: Call, accepted: Sequence[bool]) -> None:
        """The producer heard which of its jobs were accepted. (What is there was seen before this.)"""
        for job, was_accepted in zip(call.jobs, accepted, strict=True):
            assert was_accepted == (job.fate is not Fate.ASKED), f"{job}: answered {was_accepted}"
        self.give_up(call)

    def give_up(self, call: Call) -> None:
        """What is not there by now was not accepted, and must never come."""
        for job in call.jobs:
            if job.fate is Fate.ASKED:
                job.fate = Fate.REFUSED

    def start(self, leased: LeasedJob) -> None:
        job = self.jobs[number_of(leased.payload)]
        assert job.fate is Fate.WAITING, f"{job} was handed out"
        assert not job.overdue, f"{job} was handed out after its TTL"
        assert (leased.queue, leased.id, leased.attempt) == (job.ref, job.new.id, job.attempts + 1)
        self._check_order(job)
        job.fate, job.attempts, job.lease, job.was_delivered = Fate.RUNNING, leased.attempt, leased.lease, True
        self._count(job, Op.DEQUEUE)

    def _check_order(self, job: Job) -> None:
        """Check that no waiting job overtakes another of its queue and priority that was accepted before it was
        enqueued, whichever tiers they wait in."""
        if not job.takes_its_turn:
            return
        for other in self.jobs.values():
            same = other.ref == job.ref and other.new.priority == job.new.priority
            if same and other.fate is Fate.WAITING and other.takes_its_turn and not other.overdue:
                assert not other.accepted_at < job.asked_at, f"{job} overtook {other}"

    def held(self, leased: LeasedJob) -> Job | None:
        job = self.jobs[number_of(leased.payload)]
        return job if job.fate is Fate.RUNNING and job.lease == leased.lease else None

    def done(self, job: Job) -> None:
        job.fate = Fate.DONE
        self._count(job, Op.ACK)

    def failed(self, job: Job, *, buried: bool = False) -> None:
        if buried or job.attempts >= job.new.max_attempts:
            self._bury(job)
        else:
            job.fate, job.takes_its_turn = Fate.WAITING, False
            self._count(job, Op.NACK)

    def lost_its_worker(self, job: Job) -> None:
        if job.attempts >= job.new.max_attempts:
            self._bury(job)
        else:
            job.fate, job.takes_its_turn = Fate.WAITING, False
            self._count(job, Op.RECLAIM)

    def released(self, job: Job) -> None:
        self._count(job, Op.RELEASE)

    def cancelled(self, job: Job) -> None:
        job.fate = Fate.CANCELLED
        self._count(job, Op.CANCEL)

    def _bury(self, job: Job) -> None:
        job.fate = Fate.DEAD
        self._count(job, Op.BURY)

    def _count(self, job: Job, op: Op) -> None:
        self.counts[job.ref][op] += 1

    # What is seen

    def see(self, world: World) -> None:
        """Learn what happened since the last step, and refuse what must not."""
        self.now += 1
        for number in {*world.warm, *world.rows, *world.dead, *world.aside}:
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
        if job.fate in (Fate.ASKED, Fate.REFUSED):
            if warm or row:
                self._accepted(job, row, world)
            return
        if warm and job.row and not job.placed:
            self._placed(job)
        if job.fate is Fate.WAITING:
            self._see_waiting(job, warm, row, world)
        elif job.fate is Fate.RUNNING:
            assert warm, f"{job} is lost"
            assert not row, f"{job} waits as well"
        elif job.fate is Fate.DEAD:
            self._see_dead(job, warm, row, world)
        else:
            assert not warm, f"{job} is in Valkey"
            assert not row, f"{job} is in PostgreSQL"
        if warm and job.fate in IS_IN_VALKEY:
            assert warm.state in IS_IN_VALKEY[job.fate], f"{job} is {warm.state}"
        assert (job.number in world.aside) == (job.fate is Fate.ASIDE), f"{job}"
        if job.number in world.dead:
            assert job.fate is Fate.DEAD, f"{job} is dead as well"

    def _accepted(self, job: Job, row: Row | None, world: World) -> None:
        assert job.fate is Fate.ASKED, f"{job} is there"
        job.fate, job.accepted_at = Fate.WAITING, self.now
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
        if job.number in world.aside:
            assert job.row
            assert not job.placed
            assert job.new.id in world.taken_ids(job.ref.environment), f"{job} was quarantined without need"
            assert job.number not in world.warm, f"{job} was quarantined although it is in Valkey"
            job.fate = Fate.ASIDE
        elif job.overdue:
            job.fate = Fate.EXPIRED
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
            job.fate, job.row, job.placed, job.attempts, job.takes_its_turn = Fate.WAITING, row.seq, False, 0, False
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

    def of(self, ref: QueueRef, *fates: Fate) -> list[Job]:
        return [job for job in self.jobs.values() if job.ref == ref and job.fate in fates]

    def with_fate(self, *fates: Fate) -> list[Job]:
        return [job for job in self.jobs.values() if job.fate in fates]
