"""The client: how programs talk to the queue. One asynchronous, one synchronous, one core.

`Operations` checks what is asked and says step by step what to do; the two clients below only differ in how they
wait for the answers. A refused job raises and nothing of it was written; an accepted one survives.

With an `overflow` (see `headrace.cold`) jobs that do not fit into Valkey wait in PostgreSQL; without, they are refused.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

from headrace.errors import (
    ColdFull,
    CommitUnclear,
    DatabaseFull,
    DatabaseUnavailable,
    MigrationError,
    QuotaExceeded,
    ShardMismatch,
    SpillRefused,
    UnknownQueue,
    WrongDatabase,
)
from headrace.model.job import JobInfo, JobState, NewJob
from headrace.model.names import EnvRef, QueueRef
from headrace.queue import keys
from headrace.queue.bounds import Bounds, read_bounds, read_bounds_async
from headrace.queue.overflow import EpochClosed, Overflow, SpillJob
from headrace.queue.scripts import DEFAULT_CAPS, Caps, DeadFilter, Enqueued, Redriven, Stubs
from headrace.queue.steps import Blocking, Pause, Step, Steps, drive, drive_async
from headrace.queue.validate import check_caps, check_environment, check_jobs, check_limits, check_name, check_queue
from headrace.valkey.connect import AsyncValkey, Valkey, available, connect, connect_async, is_cluster
from headrace.valkey.scripts import Call, run, run_async

T = TypeVar("T")

REDRIVE_PAGE = 500
NEW_SHARDS = 2
"""Shards of a queue that is made by a client which was given no number."""

EVERY_DEAD_JOB = DeadFilter()

# When PostgreSQL refuses a spill because the queue has just left cold mode, Valkey knows a moment later. If it does not
# (whoever moved the last jobs died in between) it is told, and cold mode goes on.
ASK_AGAIN_S = 0.005
TELL_AFTER = 6  # tries, about a third of a second
GIVE_UP_AFTER = 30


@dataclass(frozen=True)
class QueueOptions:
    """The settings a client needs; the defaults are those of the settings file."""

    shards: int | None = None  # verified if given; None: as many as Valkey has, NEW_SHARDS where there is no queue yet
    stream_maxlen: int = 1_000_000  # this and the caps hold where Valkey has no stored bounds, see bounds.py
    max_payload_bytes: int = 2**20
    caps: Caps = DEFAULT_CAPS

    def stubs(self) -> Stubs:
        return Stubs(self.shards or NEW_SHARDS, self.stream_maxlen, self.caps)

    def resolve(self, found_shards: bytes | None, stored: Bounds) -> QueueOptions:
        """Return the options with the number of shards and the bounds that Valkey has. Raises ShardMismatch."""
        refuse_other_shards(found_shards, self.shards)
        shards = self.shards or NEW_SHARDS if found_shards is None else int(found_shards)
        maxlen = self.stream_maxlen if stored.stream_maxlen is None else stored.stream_maxlen
        return replace(self, shards=shards, stream_maxlen=maxlen, caps=stored.caps(self.caps))


class RedriveCount(int):
    """The number of jobs that a redrive let wait again. `remaining` is the number of jobs that match as well but stay
    dead, because the queue or its shard is full and there is no PostgreSQL where they could wait."""

    remaining: int

    def __new__(cls, redriven: int, remaining: int = 0) -> RedriveCount:
        count = super().__new__(cls, redriven)
        count.remaining = remaining
        return count


class Unchanged:
    """Of a setting that stays as it is."""


UNCHANGED = Unchanged()


@dataclass(frozen=True)
class QueueChange:
    """What an operator wants of a queue from now on, all of it in one step."""

    paused: bool | Unchanged = UNCHANGED
    closed: bool | Unchanged = UNCHANGED
    limit: int | Unchanged | None = UNCHANGED  # None: no limit
    caps: tuple[int | None, int | None] | Unchanged = UNCHANGED  # jobs and bytes; None: as the settings say


@dataclass
class Operations:
    """What both clients can do, as steps. `options` are replaced at first use by those that Valkey has stored."""

    options: QueueOptions
    overflow: Overflow | None = None
    in_cold_mode: set[QueueRef] = field(default_factory=set[QueueRef])  # when we last asked: jobs need not travel there

    def enqueue(self, ref: QueueRef, jobs: Sequence[NewJob]) -> Steps[list[bool]]:
        check_queue(ref)
        check_jobs(jobs, self.options.max_payload_bytes)
        return self._enqueue(ref, jobs)

    def _enqueue(self, ref: QueueRef, jobs: Sequence[NewJob]) -> Steps[list[bool]]:
        accepted = [False] * len(jobs)
        left = list(range(len(jobs)))  # their numbers
        far_ms = self.overflow.far_ms if self.overflow else None
        tell = 0
        for attempt in range(GIVE_UP_AFTER if left else 0):
            stubs, asked = self.options.stubs(), [jobs[i] for i in left]
            whole, counted = ref not in self.in_cold_mode, attempt > 0
            try:
                told: Enqueued = yield stubs.enqueue(ref, asked, far_ms, tell, whole=whole, counted=counted)
            except QuotaExceeded as error:
                if any(accepted):
                    raise _refused(accepted, len(left), error) from error
                raise
            if Enqueued.SEND_WHOLE in told.answers:
                self.in_cold_mode.discard(ref)
                again = (Enqueued.SEND_WHOLE, Enqueued.SPILL)
                left = [i for i, answer in zip(left, told.answers, strict=True) if answer in again]
                continue
            for i, answer in zip(left, told.answers, strict=True):
                accepted[i] = answer == Enqueued.ACCEPTED
            cold = [
                (i, _spill_job(jobs[i], told, place))
                for place, (i, answer) in enumerate(zip(left, told.answers, strict=True))
                if answer == Enqueued.SPILL
            ]
            if not cold:
                break
            if any(far_ms is None or job.new.delay_ms < far_ms for _, job in cold):
                self.in_cold_mode.add(ref)
            try:
                kept = yield from self._spill(ref, [job for _, job in cold], told)
            except EpochClosed as closed:
                left = [i for i, _ in cold]
                tell = closed.epoch if attempt >= TELL_AFTER else 0
                yield Pause(min(ASK_AGAIN_S * 2**attempt, 0.2))
                continue
            except CommitUnclear as error:
                raise _unclear(accepted, len(cold), error) from error
            except QuotaExceeded as error:
                if any(accepted):
                    raise _refused(accepted, len(cold), error) from error
                raise
            except (ColdFull, DatabaseFull, DatabaseUnavailable, MigrationError, WrongDatabase) as error:
                raise _refused(accepted, len(cold), error) from error
            for (i, _), is_new in zip(cold, kept, strict=True):
                accepted[i] = is_new
            break
        else:
            if left:
                raise _refused(accepted, len(left), "the queue changed between its tiers all the time")
        return accepted

    def _spill(self, ref: QueueRef, jobs: Sequence[SpillJob], told: Enqueued) -> Steps[Sequence[bool]]:
        assert self.overflow is not None, "without far_ms no job is answered SPILL"
        return (yield Blocking(partial(self.overflow.spill, ref, jobs, told)))

    def cancel(self, env: EnvRef, job_id: str) -> Steps[JobState | None]:
        check_environment(env)
        check_name("job id", job_id)
        state: JobState | None = yield self.options.stubs().cancel(env, job_id)
        if state is None and self.overflow:
            state = yield Blocking(partial(self.overflow.cancel, env, job_id))
        return state

    def get(self, env: EnvRef, job_id: str) -> Steps[JobInfo | None]:
        check_environment(env)
        check_name("job id", job_id)
        found: JobInfo | None = yield self.options.stubs().get(env, job_id)
        if found is None and self.overflow:
            found = yield Blocking(partial(self.overflow.find, env, job_id))
            if found is None:  # on its way from there to here when we looked
                found = yield self.options.stubs().get(env, job_id)
        return found

    def pause(self, ref: QueueRef, paused: bool) -> Steps[None]:
        return self._configure(ref, {"paused": "1" if paused else None})

    def close_queue(self, ref: QueueRef, closed: bool) -> Steps[None]:
        return self._configure(ref, {"closed": "1" if closed else None})

    def limits(self, ref: QueueRef | EnvRef, limit: int | None, burst: float | None) -> Steps[None]:
        check_limits(limit, burst)
        fields = {"limit": None if limit is None else str(limit)}
        if isinstance(ref, EnvRef):
            fields["burst"] = None if burst is None else repr(burst)
        return self._configure(ref, fields)

    def caps(self, ref: QueueRef, items: int | None, size: int | None) -> Steps[None]:
        check_caps(items, size)
        return self._configure(ref, {}, (items, size))

    def _own_caps(self, items: int | None, size: int | None) -> str | None:
        ours = self.options.caps
        return None if items is None and size is None else f"{items or ours.items} {size or ours.bytes}"

    def change(self, ref: QueueRef, to: QueueChange) -> Steps[None]:
        fields: dict[str, str | None] = {}
        if not isinstance(to.paused, Unchanged):
            fields["paused"] = "1" if to.paused else None
        if not isinstance(to.closed, Unchanged):
            fields["closed"] = "1" if to.closed else None
        if not isinstance(to.limit, Unchanged):
            check_limits(to.limit, None)
            fields["limit"] = None if to.limit is None else str(to.limit)
        if not isinstance(to.caps, Unchanged):
            check_caps(*to.caps)
        return self._configure(ref, fields, to.caps)

    def _configure(
        self,
        ref: QueueRef | EnvRef,
        fields: dict[str, str | None],
        caps: tuple[int | None, int | None] | Unchanged = UNCHANGED,
    ) -> Steps[None]:
        check_queue(ref) if isinstance(ref, QueueRef) else check_environment(ref)
        if not isinstance(caps, Unchanged):
            fields = {**fields, "caps": self._own_caps(*caps)}
        if self.overflow:  # first: it is the record, and Valkey's copy is restored from it
            refuse_unknown(ref, (yield self.options.stubs().configure(ref, {})))
            yield Blocking(partial(self.overflow.record_settings, ref, fields))
        refuse_unknown(ref, (yield self.options.stubs().configure(ref, fields)))

    def redrive(self, ref: QueueRef, which: DeadFilter) -> Steps[RedriveCount]:
        check_queue(ref)
        if self.overflow:
            refuse_unknown(ref, (yield self.options.stubs().configure(ref, {})))
            return RedriveCount((yield Blocking(partial(self.overflow.redrive, ref, which))))
        return (yield from self._on_dead(ref, which, self.options.stubs().redrive))

    def remove_dead(self, ref: QueueRef, which: DeadFilter) -> Steps[int]:
        check_queue(ref)
        if self.overflow:
            refuse_unknown(ref, (yield self.options.stubs().configure(ref, {})))
            return (yield Blocking(partial(self.overflow.remove_dead, ref, which, None)))
        return int((yield from self._on_dead(ref, which, self.options.stubs().remove_dead)))

    def _on_dead(
        self, ref: QueueRef, which: DeadFilter, act: Callable[[QueueRef, DeadFilter, int, int], Call[Redriven | None]]
    ) -> Steps[RedriveCount]:
        """Do something with every dead job that matches, page by page."""
        moved = skip = remaining = 0
        while True:
            answer: Redriven | None = yield act(ref, which, REDRIVE_PAGE, skip)
            page = known(ref, answer)
            moved += page.moved
            remaining += page.remaining
            skip += page.looked_at - page.moved  # those stay dead, ahead of the next page
            if which.ids or page.looked_at < REDRIVE_PAGE:
                return RedriveCount(moved, remaining)


class SyncClient:
    """For Django, Flask, scripts and threads. Every method may raise QueueUnavailable."""

    def __init__(self, url: str, options: QueueOptions | None = None, overflow: Overflow | None = None) -> None:
        self.redis = connect(url)
        self.options = options or QueueOptions()
        self._overflow = overflow
        self._operations = Operations(self.options, overflow)
        self._checked = False

    def enqueue(self, ref: QueueRef, job: NewJob) -> bool:
        """True if the job was accepted now, False if one of its id was already there."""
        return self.enqueue_many(ref, [job])[0]

    def enqueue_many(self, ref: QueueRef, jobs: Sequence[NewJob]) -> list[bool]:
        """Accept many jobs, up to 10,000, in one call. If some do not fit into Valkey and PostgreSQL cannot take them,
        those are refused (SpillRefused says which were accepted); any other refusal concerns the whole call."""
        return self._drive(self._operations.enqueue(ref, jobs))

    def cancel(self, env: EnvRef, job_id: str) -> JobState | None:
        """The state the job was in; it is gone if that was ready, scheduled or cold. None: there is no such job."""
        return self._drive(self._operations.cancel(env, job_id))

    def get(self, env: EnvRef, job_id: str) -> JobInfo | None:
        """The job as it is now. One that is done is known for a minute (queue.keep_done)."""
        return self._drive(self._operations.get(env, job_id))

    def pause(self, ref: QueueRef) -> None:
        """Start no more jobs of this queue; accept them still."""
        self._drive(self._operations.pause(ref, True))

    def resume(self, ref: QueueRef) -> None:
        self._drive(self._operations.pause(ref, False))

    def close_queue(self, ref: QueueRef) -> None:
        """Accept no more jobs; those that wait are run still."""
        self._drive(self._operations.close_queue(ref, True))

    def open_queue(self, ref: QueueRef) -> None:
        self._drive(self._operations.close_queue(ref, False))

    def limits(self, ref: QueueRef | EnvRef, limit: int | None, burst: float | None = None) -> None:
        """At most this many jobs run at once; None: no limit. An environment may go beyond it by its burst factor,
        none of its queues may."""
        self._drive(self._operations.limits(ref, limit, burst))

    def caps(self, ref: QueueRef, items: int | None, size: int | None) -> None:
        """Valkey holds at most this many jobs and payload bytes of this queue; both None: as the settings say."""
        self._drive(self._operations.caps(ref, items, size))

    def change(self, ref: QueueRef, to: QueueChange) -> None:
        """Several of the above at once, all or none."""
        self._drive(self._operations.change(ref, to))

    def redrive(self, ref: QueueRef, which: DeadFilter = EVERY_DEAD_JOB) -> RedriveCount:
        """Let dead jobs run again, with all their attempts, longest dead first. Returns how many. Each job moves at
        once or not at all. What the caps leave no room for waits in PostgreSQL, or stays dead where there is none."""
        return self._drive(self._operations.redrive(ref, which))

    def remove_dead(self, ref: QueueRef, which: DeadFilter = EVERY_DEAD_JOB) -> int:
        """Delete dead jobs permanently, longest dead first. Returns how many."""
        return self._drive(self._operations.remove_dead(ref, which))

    @property
    def shards(self) -> int:
        """Number of shards of the queue."""
        self.check_shards()
        return self.options.shards or NEW_SHARDS

    def check_shards(self) -> None:
        """Read what Valkey has stored for every client, at first use. The number of shards is written once; a client
        that was given another one raises ShardMismatch."""
        if not self._checked:
            with available():
                found = store_shards(self.redis, self.options.shards)
            self.options = self.options.resolve(found, read_bounds(self.redis))
            self._operations.options = self.options
            self._checked = True

    def close(self) -> None:
        self.redis.close()
        if self._overflow:
            self._overflow.close()

    def _drive(self, steps: Generator[Step, Any, T]) -> T:
        self.check_shards()
        return drive(steps, self._take)

    def _take(self, step: Step) -> Any:
        match step:
            case Call():
                return run(self.redis, step)
            case Blocking():
                return step.do()
            case Pause():
                return time.sleep(step.seconds)

    def __enter__(self) -> SyncClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()


class Client:
    """For asyncio code; the same methods as SyncClient, awaited."""

    def __init__(self, url: str, options: QueueOptions | None = None, overflow: Overflow | None = None) -> None:
        self.url = url
        self.redis = connect_async(url)
        self._of_shard: dict[int, AsyncValkey] = {}
        self.options = options or QueueOptions()
        self._overflow = overflow
        self._operations = Operations(self.options, overflow)
        self._checked = False

    async def enqueue(self, ref: QueueRef, job: NewJob) -> bool:
        return (await self.enqueue_many(ref, [job]))[0]

    async def enqueue_many(self, ref: QueueRef, jobs: Sequence[NewJob]) -> list[bool]:
        return await self._drive(self._operations.enqueue(ref, jobs))

    async def cancel(self, env: EnvRef, job_id: str) -> JobState | None:
        return await self._drive(self._operations.cancel(env, job_id))

    async def get(self, env: EnvRef, job_id: str) -> JobInfo | None:
        return await self._drive(self._operations.get(env, job_id))

    async def pause(self, ref: QueueRef) -> None:
        await self._drive(self._operations.pause(ref, True))

    async def resume(self, ref: QueueRef) -> None:
        await self._drive(self._operations.pause(ref, False))

    async def close_queue(self, ref: QueueRef) -> None:
        await self._drive(self._operations.close_queue(ref, True))

    async def open_queue(self, ref: QueueRef) -> None:
        await self._drive(self._operations.close_queue(ref, False))

    async def limits(self, ref: QueueRef | EnvRef, limit: int | None, burst: float | None = None) -> None:
        await self._drive(self._operations.limits(ref, limit, burst))

    async def caps(self, ref: QueueRef, items: int | None, size: int | None) -> None:
        await self._drive(self._operations.caps(ref, items, size))

    async def change(self, ref: QueueRef, to: QueueChange) -> None:
        await self._drive(self._operations.change(ref, to))

    async def redrive(self, ref: QueueRef, which: DeadFilter = EVERY_DEAD_JOB) -> RedriveCount:
        return await self._drive(self._operations.redrive(ref, which))

    async def remove_dead(self, ref: QueueRef, which: DeadFilter = EVERY_DEAD_JOB) -> int:
        return await self._drive(self._operations.remove_dead(ref, which))

    @property
    def shards(self) -> int:
        """Number of shards of the queue; known for certain after the first call."""
        return self.options.shards or NEW_SHARDS

    def redis_of(self, shard: int) -> AsyncValkey:
        """Return the connections for calls to one shard. On a cluster each shard has its own: after a server did not
        answer, redis-py looks for its successor, and all other calls of that client wait meanwhile."""
        if not is_cluster(self.redis):
            return self.redis
        if shard not in self._of_shard:
            self._of_shard[shard] = connect_async(self.url)
        return self._of_shard[shard]

    async def check_shards(self) -> None:
        if not self._checked:
            with available():
                found: Any = await self.redis.get(keys.SHARDS)
                if found is None:
                    shards = self.options.shards or NEW_SHARDS
                    found = await self.redis.set(keys.SHARDS, shards, nx=True, get=True)
            self.options = self.options.resolve(found, await read_bounds_async(self.redis))
            self._operations.options = self.options
            self._checked = True

    async def close(self) -> None:
        for client in (self.redis, *self._of_shard.values()):
            await client.aclose()
        if self._overflow:
            await asyncio.to_thread(self._overflow.close)

    async def _drive(self, steps: Generator[Step, Any, T]) -> T:
        await self.check_shards()
        return await drive_async(steps, self._take)

    async def _take(self, step: Step) -> Any:
        match step:
            case Call():
                return await run_async(self.redis, step)
            case Blocking():
                return await asyncio.to_thread(step.do)
            case Pause():
                return await asyncio.sleep(step.seconds)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await self.close()


def _spill_job(job: NewJob, told: Enqueued, place: int) -> SpillJob:
    due_ms = told.now_ms + job.delay_ms + place / 4096  # as the script would have placed it
    return SpillJob(job, int(told.now_ms), due_ms, delayed=job.delay_ms > 0)


def _refused(accepted: Sequence[bool], refused: int, reason: object) -> SpillRefused:
    return SpillRefused(
        f"{refused} of {len(accepted)} jobs did not fit into Valkey and could not be kept in PostgreSQL: they were "
        f"refused. {sum(accepted)} were accepted and will run. Enqueue again with the same ids when PostgreSQL is "
        f"back: what is there already is not accepted twice. ({reason})",
        accepted,
    )


def _unclear(accepted: Sequence[bool], unclear: int, reason: object) -> SpillRefused:
    return SpillRefused(
        f"{unclear} of {len(accepted)} jobs did not fit into Valkey, and whether PostgreSQL keeps them is not known: "
        "it was lost during the commit and has not come back. "
        f"{sum(accepted)} were accepted and will run. Enqueue again with the same ids when PostgreSQL is back: what is "
        f"there already is not accepted twice. ({reason})",
        accepted,
    )


def known(ref: QueueRef, page: Redriven | None) -> Redriven:
    refuse_unknown(ref, page is not None)
    assert page is not None
    return page


def refuse_unknown(ref: QueueRef | EnvRef, found: bool) -> None:
    if not found:
        assert isinstance(ref, QueueRef)
        raise UnknownQueue(
            f"There is no queue {ref.queue!r} in {ref.org} / {ref.project} / {ref.env}. Nothing was changed. "
            "A queue comes into being with its first job."
        )


def store_shards(client: Valkey, given: int | None) -> bytes | None:
    """Return the number of shards that Valkey has stored. Where there is no queue yet: store the given number, or
    NEW_SHARDS without one, and return None. Only that needs the right to write."""
    found: Any = client.get(keys.SHARDS)
    if found is None:
        found = client.set(keys.SHARDS, given or NEW_SHARDS, nx=True, get=True)
    return found


def read_shards(client: Valkey, given: int | None) -> int:
    """Return the number of shards that Valkey has stored. Where there is no queue yet: the given number, or NEW_SHARDS
    without one. Writes nothing. Raises ShardMismatch if another number is stored than given."""
    return read_stored_shards(client, given) or given or NEW_SHARDS


def read_stored_shards(client: Valkey, given: int | None) -> int | None:
    """Return the number of shards that Valkey has stored, None if there is no queue yet. Raises ShardMismatch."""
    with available():
        found: Any = client.get(keys.SHARDS)
    refuse_other_shards(found, given)
    return None if found is None else int(found)


def refuse_other_shards(found: bytes | None, ours: int | None) -> None:
    if found is not None and ours is not None and int(found) != ours:
        raise ShardMismatch(
            f"This Valkey holds a queue of {int(found)} shards; queue.shards is {ours}. Nothing was written. "
            f"Set queue.shards = {int(found)}, or remove the setting: the stored number is used without it."
        )
