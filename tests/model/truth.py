"""What the queue should hold: a plain model, written from the design and not from the scripts.

It knows no Valkey. Times are the server's and cannot be foreseen, so the machine tells the model when a job
became due or was buried; everything else (answers, states, counts, order) the model decides by itself.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from headrace.model.event import Op
from headrace.model.job import JobLeaseState, JobState, LeasedJob, NewJob
from headrace.model.names import EnvRef, QueueRef
from headrace.queue.keys import encode, env_part, job_part
from headrace.queue.scripts import DEFAULT_CAPS, DeadFilter, WarmCaps

NEVER = math.inf
DEAD_OVERHEAD = 512  # what a dead job counts beside its payload
RECORD_OVERHEAD = 256  # what a record of an attempt counts beside its body
MOST_RECORDS = 20


def delivery_number(token: str) -> int:
    """Return the delivery number of a lease token, `<number>-<nonce>`."""
    return int(token.partition("-")[0])


@dataclass
class Job:
    queue: QueueRef
    new: NewJob
    state: JobState
    enqueued_ms: int = 0
    due_ms: float = 0.0
    expires_ms: int | None = None  # set for jobs with a TTL
    attempts: int = 0
    lease: str = ""  # token of the last delivery
    unbegun: str = ""  # token of the last delivery at the last attempt that no worker began
    lease_ends_ms: float = NEVER  # while it runs; NEVER: not within this test
    error: str | None = None
    buried_ms: float = 0.0
    cancelled: bool = False  # while it ran
    deferred_ms: int | None = None  # when it was first deferred, if it got no other result since

    @property
    def key(self) -> tuple[EnvRef, str]:
        return self.queue.environment, self.new.id

    @property
    def waits(self) -> bool:
        return self.state in (JobState.READY, JobState.SCHEDULED)

    @property
    def size(self) -> int:
        return len(self.new.payload)

    @property
    def detail(self) -> str:
        """What it is part of."""
        return f"{self.new.task}\t{self.new.flow}\t{self.new.flow_type}"

    @property
    def member(self) -> bytes:
        """How Valkey breaks ties between equal scores of one queue."""
        return encode(self.new.id).encode()

    @property
    def shard_member(self) -> bytes:
        return job_part(self.queue.environment, self.new.id).encode()

    def overdue(self, now_ms: float) -> bool:
        return self.expires_ms is not None and self.expires_ms <= now_ms


@dataclass
class Queue:
    limit: int | None = None
    paused: bool = False
    closed: bool = False
    caps: tuple[int, int] | None = None  # its own: jobs, bytes
    counts: Counter[Op] = field(default_factory=Counter[Op])
    results_dropped: int = 0


@dataclass
class JobRecords:
    """What is kept of the ended attempts of one job."""

    queue: QueueRef
    enqueued_ms: int  # of the job
    bodies: list[bytes] = field(default_factory=list[bytes])
    expires_ms: float = NEVER  # NEVER: not within this test

    @property
    def bytes(self) -> int:
        return sum(len(body) + RECORD_OVERHEAD for body in self.bodies)


@dataclass
class Environment:
    limit: int | None = None
    burst: float | None = None

    @property
    def most(self) -> float:
        return NEVER if self.limit is None else math.floor(self.limit * (self.burst or 1.0))


class Truth:
    def __init__(self, shards: int, caps: WarmCaps = DEFAULT_CAPS) -> None:
        self.shards = shards
        self.caps = caps
        self.jobs: dict[tuple[EnvRef, str], Job] = {}
        self.kept: set[tuple[EnvRef, str]] = set()  # ids of done jobs that are still taken
        self.queues: dict[QueueRef, Queue] = {}
        self.envs: dict[EnvRef, Environment] = {}
        self.turns: list[dict[EnvRef, int]] = [{} for _ in range(shards)]  # of environments with a job that may run
        self.records: dict[tuple[EnvRef, str], JobRecords] = {}
        self.clocks = [0] * shards  # the turns of the environment that was last served, before it was

    # Looking

    def list_jobs(self, ref: QueueRef, state: JobState) -> list[Job]:
        return [job for job in self.jobs.values() if job.queue == ref and job.state == state]

    def list_env_jobs(self, env: EnvRef, state: JobState) -> list[Job]:
        return [job for job in self.jobs.values() if job.queue.environment == env and job.state == state]

    def list_shard_jobs(self, shard: int, *states: JobState) -> list[Job]:
        return [job for job in self.jobs.values() if self.find_shard(job) == shard and job.state in states]

    def find_shard(self, job: Job) -> int:
        return job.queue.environment.shard(self.shards)

    def in_order(self, ref: QueueRef) -> list[Job]:
        """The jobs of a queue that wait for their turn, next first."""
        return sorted(self.list_jobs(ref, JobState.READY), key=lambda job: (-job.new.priority, job.due_ms, job.member))

    def oldest(self, ref: QueueRef) -> float | None:
        return min((job.due_ms for job in self.list_jobs(ref, JobState.READY)), default=None)

    def full(self, env: EnvRef) -> bool:
        return len(self.list_env_jobs(env, JobState.RUNNING)) >= self.envs[env].most

    def may_run(self, ref: QueueRef) -> bool:
        """Whether the queue itself has a job to start; its environment may be full all the same."""
        queue, running = self.queues[ref], len(self.list_jobs(ref, JobState.RUNNING))
        limits = [limit for limit in (queue.limit, self.envs[ref.environment].limit) if limit is not None]
        return (
            not queue.paused and all(running < limit for limit in limits) and bool(self.list_jobs(ref, JobState.READY))
        )

    def runnable(self, env: EnvRef) -> list[QueueRef]:
        return [ref for ref in self.queues if ref.environment == env and self.may_run(ref)]

    def held(self, leased: LeasedJob) -> Job | None:
        job = self.jobs.get((leased.queue.environment, leased.id))
        return job if job and job.state is JobState.RUNNING and job.lease == leased.lease else None

    def dead(self, ref: QueueRef) -> list[Job]:
        return sorted(self.list_jobs(ref, JobState.DEAD), key=lambda job: (job.buried_ms, job.member))

    def alive(self) -> list[Job]:
        """Those that count toward the caps: they wait or run."""
        return [job for job in self.jobs.values() if job.state is not JobState.DEAD]

    # Producers

    def fit(self, ref: QueueRef, jobs: Iterable[NewJob]) -> bool:
        """Whether the jobs of a call that are not there yet fit, all together. An empty queue takes one of any size. A
        full shard takes what is within the share of an environment, and altogether a quarter more than its cap."""
        new = {job.id: job for job in reversed([*jobs]) if not self.is_taken(ref, job.id)}
        added = sum(len(job.payload) for job in new.values())
        return not new or (self._dead_leave_room(ref, added) and self._fits(ref, len(new), added))

    def dead_bytes(self, ref: QueueRef) -> int:
        return sum(job.size + DEAD_OVERHEAD for job in self.list_jobs(ref, JobState.DEAD))

    def _dead_leave_room(self, ref: QueueRef, added: int) -> bool:
        """Dead jobs count toward the bytes of their queue: there is no PostgreSQL here."""
        own = self.queues[ref].caps if ref in self.queues else None
        held = sum(job.size for job in self.alive() if job.queue == ref)
        dead = self.dead_bytes(ref)
        return dead == 0 or held + dead + added <= self._beside_records(ref, own[1] if own else self.caps.bytes)

    def _beside_records(self, ref: QueueRef, size: int) -> int:
        """What records of attempts leave of the bytes of a queue; 1 at least."""
        return max(1, size - self.record_bytes(ref))

    def record_bytes(self, ref: QueueRef) -> int:
        return sum(records.bytes for records in self.records.values() if records.queue == ref)

    def shard_record_bytes(self, shard: int) -> int:
        return sum(records.bytes for (env, _), records in self.records.items() if env.shard(self.shards) == shard)

    def _fits(self, ref: QueueRef, count: int, added: int) -> bool:
        held = [job for job in self.alive() if job.queue == ref]
        of_shard = self._shard_bytes(ref.environment.shard(self.shards))
        own = self.queues[ref].caps if ref in self.queues else None
        items, size = own or (self.caps.items, self.caps.bytes)
        size = self._beside_records(ref, size)
        fits = len(held) + count <= items and sum(job.size for job in held) + added <= size
        shard_fits = (
            added == 0  # a job without payload takes no bytes, so it fits into a full shard too
            or of_shard + added <= self.caps.shard_bytes
            or self._within_share(ref.environment, of_shard, added)
        )
        return (count == 1 and not held) or (fits and shard_fits)

    def _shard_bytes(self, shard: int) -> int:
        return sum(job.size for job in self.alive() if self.find_shard(job) == shard) + self.shard_record_bytes(shard)

    def _within_share(self, env: EnvRef, of_shard: int, added: int) -> bool:
        reserve = self.caps.shard_bytes // 4
        sharers = {other for other in self.envs_with_queues if other.shard(self.shards) == env.shard(self.shards)}
        of_env = sum(job.size for job in self.alive() if job.queue.environment == env)
        share = reserve // len(sharers | {env})
        return of_env + added <= share and of_shard + added <= self.caps.shard_bytes + reserve

    @property
    def envs_with_queues(self) -> set[EnvRef]:
        return {ref.environment for ref in self.queues}

    def is_taken(self, ref: QueueRef, job_id: str) -> bool:
        key = (ref.environment, job_id)
        return key in self.jobs or key in self.kept

    def enqueue(self, ref: QueueRef, jobs: Iterable[NewJob]) -> list[bool]:
        self.envs.setdefault(ref.environment, Environment())
        self.queues.setdefault(ref, Queue())
        return [self._accept(ref, new) for new in jobs]

    def _accept(self, ref: QueueRef, new: NewJob) -> bool:
        if self.is_taken(ref, new.id):
            return False
        self.jobs[ref.environment, new.id] = Job(ref, new, JobState.SCHEDULED if new.delay_ms else JobState.READY)
        self._count(ref, Op.ENQUEUE)
        return True

    def cancel(self, env: EnvRef, job_id: str, *, running: bool = False) -> JobState | None:
        job = self.jobs.get((env, job_id))
        if not job:
            return None
        state = job.state
        if job.waits:
            self._remove(job, Op.CANCEL)
        elif running and state is JobState.RUNNING:
            job.cancelled = True
        return state

    # Workers

    def dequeue(
        self,
        shard: int,
        n: int,
        names: Sequence[str],
        got: Sequence[tuple[EnvRef, str, str]],
        now_ms: float,
        gone: Callable[[Job], bool],
        clock: int,
        excluded: Sequence[str] = (),
    ) -> None:
        """Check who was served, and in which order: `got` is (environment, job id, lease) of each job.

        A job whose TTL was over and that was met on the way is expired; whether one was met behind the last job
        of an environment depends on how many were requested at once, which `gone` gives. Nor does the model know which
        environment was served last, so the `clock` of the shard is given and checked.

        Jobs of `excluded` tasks are served only if there are no others, and after 5 s.
        """
        before = dict(self.turns[shard])
        skipped = {
            key: job for key, job in self.jobs.items() if job.state is JobState.READY and job.new.task in excluded
        }
        overdue = [each for each in got if each[:2] in skipped]
        assert not overdue or len(overdue) == len(got) <= 10, "skipped jobs are served only if there are no others"
        for key in skipped:
            del self.jobs[key]
        assert len(got) <= n
        leases = [delivery_number(lease) for _, _, lease in got]
        assert leases == sorted(set(leases)), "lease numbers grow"
        if names:
            served = {ref for ref in self.queues if ref.queue in names and ref.environment.shard(self.shards) == shard}
            groups = [[ref] for ref in served]
        else:
            groups = [[ref for ref in self.queues if ref.environment == env] for env in before]
        for group in groups:
            jobs = [
                (env, job_id, lease)
                for env, job_id, lease in ([] if overdue else got)
                if self._queue_of(env, job_id) in group
            ]
            taken = self._serve(group, jobs, now_ms, gone)
            if group and group[0].environment in before:
                self.turns[shard][group[0].environment] += taken
            else:
                assert not taken
        left = [ref for group in groups for ref in group if self.may_run(ref) and not self.full(ref.environment)]
        self.jobs |= skipped
        self._serve_skipped(
            shard, [job for job in skipped.values() if self.find_shard(job) == shard], overdue, now_ms, gone
        )
        if excluded and not names:
            idle = {env for env in before if not any(ref.environment == env for ref in left)}
            raised = {env: max(self.turns[shard][env], clock) for env in idle if self.turns[shard][env] < clock}
            self.turns[shard] |= raised
            before |= {env: max(turns, before[env]) for env, turns in raised.items()}
        after = dict(self.turns[shard])
        leased = [self.jobs[env, job_id] for env, job_id, _ in got]
        assert all(job.state is JobState.RUNNING for job in leased), "served from a queue that was not requested"
        self._check_limits(leased)
        self._move_clock(shard, clock, before, {} if names else after)
        self.settle(shard)
        if len(got) < n or overdue:
            assert not left, f"{left} could have been served"
        if before and not names and not excluded:
            self._check_fairness(shard, max(1, n // len(before)), before, after)

    def _serve_skipped(
        self,
        shard: int,
        skipped: Sequence[Job],
        got: Sequence[tuple[EnvRef, str, str]],
        now_ms: float,
        gone: Callable[[Job], bool],
    ) -> None:
        """Serve jobs of excluded tasks. Those whose TTL is over and that were met expire."""
        leases = {(env, job_id): lease for env, job_id, lease in got}
        for job in skipped:
            if job.key in leases:
                assert job.due_ms < now_ms - 5000, f"{job} was served too early"
                self._lease(job, leases[job.key])
            elif job.overdue(now_ms) and gone(job):
                self._remove(job, Op.EXPIRE)
            else:
                continue
            if job.queue.environment in self.turns[shard]:
                self.turns[shard][job.queue.environment] += 1

    def _lease(self, job: Job, lease: str) -> None:
        job.state, job.lease, job.lease_ends_ms = JobState.RUNNING, lease, NEVER
        job.attempts += 1
        if job.attempts >= job.new.max_attempts:
            job.unbegun = lease
        self._count(job.queue, Op.DEQUEUE)

    def _queue_of(self, env: EnvRef, job_id: str) -> QueueRef:
        return self.jobs[env, job_id].queue

    def _serve(
        self,
        group: Sequence[QueueRef],
        got: Sequence[tuple[EnvRef, str, str]],
        now_ms: float,
        gone: Callable[[Job], bool],
    ) -> int:
        """Serve queues of one environment, always the one whose oldest job waits longest."""
        taken = 0
        for env, job_id, lease in got:
            wanted = self.jobs[env, job_id]
            while (job := self._next(group, wanted)) is not wanted:
                assert job is not None, f"{wanted} may not run"
                assert job.overdue(now_ms), f"{job} is before {wanted}"
                self._remove(job, Op.EXPIRE)
                taken += 1
            assert not wanted.overdue(now_ms), f"{wanted} should have expired"
            self._lease(wanted, lease)
            taken += 1
        # Also where the environment is full by now: it may have been met before that.
        for ref in group:
            while (waiting := self.in_order(ref)) and waiting[0].overdue(now_ms) and gone(waiting[0]):
                self._remove(waiting[0], Op.EXPIRE)
                taken += 1
        return taken

    def _next(self, group: Sequence[QueueRef], wanted: Job | None) -> Job | None:
        """The job whose turn it is. Of two queues that wait equally long, either may be first."""
        queues = [ref for ref in group if self.may_run(ref) and not self.full(ref.environment)]
        if not queues:
            return None
        longest = min(self.oldest(ref) or 0 for ref in queues)
        heads = [self.in_order(ref)[0] for ref in queues if self.oldest(ref) == longest]
        return wanted if wanted in heads else heads[0]

    def _check_limits(self, leased: Sequence[Job]) -> None:
        """What has just been started is within every limit. (A limit that was lowered ends no job.)"""
        for ref in {job.queue for job in leased}:
            running, env = len(self.list_jobs(ref, JobState.RUNNING)), self.envs[ref.environment]
            assert running <= (NEVER if (limit := self.queues[ref].limit) is None else limit)
            assert running <= (NEVER if env.limit is None else env.limit)
            assert len(self.list_env_jobs(ref.environment, JobState.RUNNING)) <= env.most

    def _move_clock(self, shard: int, clock: int, before: dict[EnvRef, int], after: dict[EnvRef, int]) -> None:
        """The clock is the score of a served environment that was the first of all, at the time it was served."""
        served = [env for env in after if after[env] > before[env]]
        if served:
            assert any(before[env] <= clock < after[env] for env in served), f"{clock}: {before} to {after}"
            left = [turns for env, turns in after.items() if not self.full(env) and self.runnable(env)]
            assert self.clocks[shard] <= clock <= min(left, default=clock)
        else:
            assert clock == self.clocks[shard]
        self.clocks[shard] = clock

    def _check_fairness(self, shard: int, share: int, before: dict[EnvRef, int], after: dict[EnvRef, int]) -> None:
        """Check that no environment is served while another that could run is more than one share behind."""
        for env, turns in after.items():
            if turns > before[env]:
                behind = {other: after[other] for other in self.turns[shard] if after[other] + share < turns}
                assert not behind, f"{env} has {turns} turns, but {behind}"

    def begin(self, leased: LeasedJob) -> bool:
        job = self.held(leased)
        if job:
            job.unbegun = ""
        return job is not None

    def extend(self, leased: LeasedJob) -> JobLeaseState:
        job = self.held(leased)
        if not job:
            return JobLeaseState.LOST
        job.lease_ends_ms = NEVER
        return JobLeaseState.CANCELLED if job.cancelled else JobLeaseState.HELD

    def keep_record(self, job: Job, body: bytes | None) -> None:
        """Keep what a task has left of its attempt, if it fits: records take half of each cap at most."""
        if body is None:
            return
        records = self.records.get(job.key)
        if records and records.enqueued_ms != job.enqueued_ms:
            del self.records[job.key]
            records = None
        ref, shard, size = job.queue, self.find_shard(job), len(body) + RECORD_OVERHEAD
        cap = (self.queues[ref].caps or (0, self.caps.bytes))[1]
        held = sum(each.size for each in self.alive() if each.queue == ref)
        of_queue, of_shard = self.record_bytes(ref) + size, self.shard_record_bytes(shard) + size
        fits = held + of_queue <= cap and of_queue <= cap / 2
        if not fits or self._shard_bytes(shard) + size > self.caps.shard_bytes or of_shard > self.caps.shard_bytes / 2:
            self.queues[ref].results_dropped += 1
            return
        records = self.records.setdefault(job.key, JobRecords(ref, job.enqueued_ms))
        records.bodies = [*records.bodies, body][-MOST_RECORDS:]
        records.expires_ms = NEVER

    def drop_records(self, shard: int, at_most: int) -> int:
        """Delete records whose time has passed, and return of how many jobs."""
        old = [
            (records.expires_ms, job_part(*key), key)
            for key, records in self.records.items()
            if key[0].shard(self.shards) == shard and records.expires_ms is not NEVER
        ]
        for _, _, key in sorted(old)[:at_most]:
            del self.records[key]
        return len(old[:at_most])

    def read_attempts(self, env: EnvRef, job_id: str) -> list[bytes]:
        records, job = self.records.get((env, job_id)), self.jobs.get((env, job_id))
        return records.bodies if records and (not job or job.enqueued_ms == records.enqueued_ms) else []

    def ack(self, leased: LeasedJob, *, keep: bool, record: bytes | None = None) -> bool:
        job = self.held(leased)
        if job:
            self._remove(job, Op.ACK)
            self.keep_record(job, record)
            if keep:
                self.kept.add(job.key)
        return job is not None

    def nack(self, leased: LeasedJob, delay_ms: int, error: str, record: bytes | None = None) -> int:
        job = self.held(leased)
        if not job:
            return 0
        self.keep_record(job, record)
        job.error = error
        if job.attempts >= job.new.max_attempts:
            self._bury(job)
            return 2
        self._wait_again(job, Op.NACK, later=delay_ms > 0)
        return 1

    def bury(self, leased: LeasedJob, error: str, record: bytes | None = None) -> bool:
        job = self.held(leased)
        if job:
            self.keep_record(job, record)
            job.error = error
            self._bury(job)
        return job is not None

    def giveback(self, leased: LeasedJob) -> bool:
        job = self.held(leased)
        if job:
            job.attempts -= 1
            self._wait_again(job, Op.RECLAIM)
        return job is not None

    def defer(self, leased: LeasedJob, delay_ms: int, bury_after_ms: int, error: str, now_ms: int) -> int:
        job = self.held(leased)
        if not job:
            return 0
        job.attempts -= 1
        since_ms = now_ms if job.deferred_ms is None else job.deferred_ms
        if bury_after_ms and now_ms - since_ms >= bury_after_ms and not job.cancelled:
            job.error = error
            self._bury(job)
            return 2
        self._wait_again(job, Op.DEFER, later=delay_ms > 0)
        job.deferred_ms = since_ms if bury_after_ms else None  # these delays are fixed
        return 1

    # Sweeper

    def reclaim(self, shard: int, at_most: int) -> int:
        running = self.list_shard_jobs(shard, JobState.RUNNING)
        lapsed = [job for job in running if job.lease_ends_ms is not NEVER]
        lapsed.sort(key=lambda job: (job.lease_ends_ms, job.shard_member))
        for job in lapsed[:at_most]:
            is_last = job.attempts >= job.new.max_attempts
            if is_last and job.unbegun != job.lease:
                job.error = (
                    f"The lease of attempt {job.attempts} ended without a result: its worker died or lost its "
                    "connection."
                )
                self._bury(job)
            else:
                job.attempts -= is_last
                self._wait_again(job, Op.RECLAIM)
        return len(lapsed[:at_most])

    def release(self, shard: int, at_most: int, now_ms: float) -> int:
        due = [job for job in self.list_shard_jobs(shard, JobState.SCHEDULED) if job.due_ms <= now_ms]
        due.sort(key=lambda job: (job.due_ms, job.shard_member))
        for job in due[:at_most]:
            job.state = JobState.READY
            self._count(job.queue, Op.RELEASE)
        return len(due[:at_most])

    def expire(self, shard: int, at_most: int, now_ms: float) -> int:
        waiting = self.list_shard_jobs(shard, JobState.READY, JobState.SCHEDULED)
        over = [job for job in waiting if job.overdue(now_ms)]
        over.sort(key=lambda job: (job.expires_ms or 0, job.shard_member))
        for job in over[:at_most]:
            self._remove(job, Op.EXPIRE)
        return len(over[:at_most])

    def needs_maintenance(self, shard: int, now_ms: float) -> bool:
        """Whether a lease or TTL has ended, or a job is due, and nothing was done about it."""
        jobs = self.list_shard_jobs(shard, JobState.READY, JobState.SCHEDULED, JobState.RUNNING)
        return any(
            (job.state is JobState.RUNNING and job.lease_ends_ms is not NEVER)
            or (job.state is JobState.SCHEDULED and job.due_ms <= now_ms)
            or (job.waits and job.overdue(now_ms))
            for job in jobs
        )

    # Operators

    def redrive(self, ref: QueueRef, which: DeadFilter, at_most: int, skip: int) -> tuple[list[Job], list[Job], int]:
        """Return the jobs that were moved, those that were looked at, and how many found no room."""
        since = -NEVER if which.buried_from_ms is None else which.buried_from_ms
        until = NEVER if which.buried_until_ms is None else which.buried_until_ms
        looked_at = [job for job in self.dead(ref) if since <= job.buried_ms <= until]
        if which.ids:
            ids = list(dict.fromkeys(which.ids))
            looked_at = [job for job_id in ids for job in looked_at if job.new.id == job_id]
        else:
            looked_at = looked_at[skip : skip + at_most]
        matching = [job for job in looked_at if which.task in ("", job.new.task) and which.error in (job.error or "")]
        moved: list[Job] = []
        for job in matching:
            if not self._fits(ref, 1, job.size):
                break
            job.state, job.attempts, job.expires_ms = JobState.READY, 0, None
            job.deferred_ms, job.cancelled = None, False
            self._count(ref, Op.REDRIVE)
            moved.append(job)
        return moved, looked_at, len(matching) - len(moved)

    # Bookkeeping

    def settle(self, shard: int) -> None:
        """Environments that can no longer be served leave; one that can (again) starts one turn behind the last
        served, and not before the least served."""
        turns = self.turns[shard]
        for env in [env for env in self.envs if env.shard(self.shards) == shard]:
            if self.full(env) or not self.runnable(env):
                turns.pop(env, None)
        for env in sorted(self.envs, key=env_part):
            if env.shard(self.shards) == shard and env not in turns and not self.full(env) and self.runnable(env):
                turns[env] = max(self.clocks[shard] + 1, min(turns.values(), default=0))

    def _count(self, ref: QueueRef, op: Op) -> None:
        self.queues[ref].counts[op] += 1

    def _wait_again(self, job: Job, op: Op, *, later: bool = False) -> None:
        self._count(job.queue, op)
        if job.cancelled:
            self._remove(job, Op.CANCEL)
            return
        job.state = JobState.SCHEDULED if later else JobState.READY
        job.deferred_ms = None

    def _bury(self, job: Job) -> None:
        job.state, job.deferred_ms, job.cancelled = JobState.DEAD, None, False
        self._count(job.queue, Op.BURY)

    def _remove(self, job: Job, op: Op) -> None:
        del self.jobs[job.key]
        self._count(job.queue, op)
