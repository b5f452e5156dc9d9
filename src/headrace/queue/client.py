"""The low-level clients of producers and operators: one asynchronous, one synchronous, with a common core.

`Operations` validates arguments and yields the steps of each operation; the two clients differ only in how they wait
for replies. If a job is refused, the call raises and nothing of the job was written; an accepted job is durable.

With an `overflow` (see `headrace.cold`) jobs that do not fit into Valkey wait in PostgreSQL; without, they are refused.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
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
from headrace.queue.bounds import StoredBounds, read_bounds, read_bounds_async
from headrace.queue.metrics_flag import copy_flag, copy_flag_async
from headrace.queue.overflow import EpochClosed, Overflow, SpillJob
from headrace.queue.scripts import DEFAULT_CAPS, DeadFilter, EnqueueResult, RedriveResult, Stubs, WarmCaps
from headrace.queue.steps import Blocking, Pause, Step, Steps, drive, drive_async
from headrace.queue.validate import check_caps, check_environment, check_jobs, check_limits, check_name, check_queue
from headrace.runtime.backoff import Backoff
from headrace.valkey.connect import AsyncValkey, Valkey, connect, connect_async, is_cluster, translate_errors
from headrace.valkey.scripts import ScriptCall, run, run_async

T = TypeVar("T")

REDRIVE_PAGE = 500
DEFAULT_SHARDS = 2
"""Number of shards that a client creates if it was given none."""

EVERY_DEAD_JOB = DeadFilter()

# PostgreSQL refuses a spill when the queue has just left cold mode; Valkey follows a moment later, so the client asks
# Valkey again. If Valkey is still in cold mode after SEND_EPOCH_AFTER tries (the mover died in between), the client
# passes PostgreSQL's epoch to the enqueue script, which adopts it and stays in cold mode.
EPOCH_BACKOFF = Backoff(base_s=0.005, longest_s=0.2)
SEND_EPOCH_AFTER = 6  # tries, about a third of a second
MAX_TRIES = 30


@dataclass(frozen=True)
class QueueOptions:
    """Settings of a client; the defaults are those of the settings file."""

    shards: int | None = (
        None  # verified if given; None: the number stored in Valkey, or DEFAULT_SHARDS if there is none
    )
    stream_maxlen: int = 1_000_000  # this and the caps apply to bounds that are not stored in Valkey, see bounds.py
    max_payload_bytes: int = 2**20
    caps: WarmCaps = DEFAULT_CAPS

    def make_stubs(self) -> Stubs:
        return Stubs(self.shards or DEFAULT_SHARDS, self.stream_maxlen, self.caps)

    def resolve(self, found_shards: bytes | None, stored: StoredBounds) -> QueueOptions:
        """Return the options with the number of shards and the bounds stored in Valkey. Raises ShardMismatch."""
        check_shard_count(found_shards, self.shards)
        shards = self.shards or DEFAULT_SHARDS if found_shards is None else int(found_shards)
        maxlen = self.stream_maxlen if stored.stream_maxlen is None else stored.stream_maxlen
        return replace(self, shards=shards, stream_maxlen=maxlen, caps=stored.resolve_caps(self.caps))


class RedriveCount(int):
    """The number of redriven jobs. `remaining` is the number of matching jobs that stay dead, because the queue or its
    shard is full and there is no PostgreSQL where they could wait."""

    remaining: int

    def __new__(cls, redriven: int, remaining: int = 0) -> RedriveCount:
        count = super().__new__(cls, redriven)
        count.remaining = remaining
        return count


class Unchanged:
    """Type of UNCHANGED: the setting keeps its value."""


UNCHANGED = Unchanged()


@dataclass(frozen=True)
class QueueChange:
    """New settings of a queue, applied atomically."""

    paused: bool | Unchanged = UNCHANGED
    closed: bool | Unchanged = UNCHANGED
    limit: int | Unchanged | None = UNCHANGED  # None: no limit
    caps: tuple[int | None, int | None] | Unchanged = UNCHANGED  # jobs and bytes; None: the bound of all queues


@dataclass
class Operations:
    """Operations of both clients, as steps. `options` are replaced at first use by those stored in Valkey."""

    options: QueueOptions
    overflow: Overflow | None = None
    # Queues that were in cold mode at the last enqueue: job bodies are not sent to Valkey first.
    in_cold_mode: set[QueueRef] = field(default_factory=set[QueueRef])

    def enqueue(self, ref: QueueRef, jobs: Sequence[NewJob]) -> Steps[list[bool]]:
        check_queue(ref)
        check_jobs(jobs, self.options.max_payload_bytes)
        return self._enqueue(ref, jobs)

    def _enqueue(self, ref: QueueRef, jobs: Sequence[NewJob]) -> Steps[list[bool]]:
        accepted = [False] * len(jobs)
        remaining = list(range(len(jobs)))  # indexes of jobs without a result
        far_ms = self.overflow.far_ms if self.overflow else None
        cold_epoch = 0
        for attempt in range(MAX_TRIES if remaining else 0):
            stubs, batch = self.options.make_stubs(), [jobs[i] for i in remaining]
            with_bodies, counted = ref not in self.in_cold_mode, attempt > 0
            try:
                reply: EnqueueResult = yield stubs.enqueue(
                    ref, batch, far_ms, cold_epoch, with_bodies=with_bodies, counted=counted
                )
            except QuotaExceeded as error:
                if any(accepted):
                    raise _spill_refused(accepted, len(remaining), error) from error
                raise
            if EnqueueResult.SEND_BODY in reply.answers:
                self.in_cold_mode.discard(ref)
                again = (EnqueueResult.SEND_BODY, EnqueueResult.SPILL)
                remaining = [i for i, answer in zip(remaining, reply.answers, strict=True) if answer in again]
                continue
            for i, answer in zip(remaining, reply.answers, strict=True):
                accepted[i] = answer == EnqueueResult.ACCEPTED
            cold = [
                (i, _make_spill_job(jobs[i], reply, position))
                for position, (i, answer) in enumerate(zip(remaining, reply.answers, strict=True))
                if answer == EnqueueResult.SPILL
            ]
            if not cold:
                break
            if any(far_ms is None or job.new.delay_ms < far_ms for _, job in cold):
                self.in_cold_mode.add(ref)
            try:
                stored = yield from self._spill(ref, [job for _, job in cold], reply)
            except EpochClosed as closed:
                remaining = [i for i, _ in cold]
                cold_epoch = closed.epoch if attempt >= SEND_EPOCH_AFTER else 0
                yield Pause(EPOCH_BACKOFF.full_delay_s(attempt + 1))
                continue
            except CommitUnclear as error:
                raise _spill_outcome_unknown(accepted, len(cold), error) from error
            except (ColdFull, DatabaseFull, DatabaseUnavailable, MigrationError, QuotaExceeded, WrongDatabase) as error:
                if isinstance(error, QuotaExceeded) and not any(accepted):
                    raise
                raise _spill_refused(accepted, len(cold), error) from error
            for (i, _), is_new in zip(cold, stored, strict=True):
                accepted[i] = is_new
            break
        else:
            if remaining:
                raise _spill_refused(accepted, len(remaining), "the queue kept switching between warm and cold mode")
        return accepted

    def _spill(self, ref: QueueRef, jobs: Sequence[SpillJob], reply: EnqueueResult) -> Steps[Sequence[bool]]:
        assert self.overflow is not None, "without far_ms no job is answered SPILL"
        return (yield Blocking(partial(self.overflow.spill, ref, jobs, reply)))

    def cancel(self, env: EnvRef, job_id: str) -> Steps[JobState | None]:
        check_environment(env)
        check_name("job id", job_id)
        state: JobState | None = yield self.options.make_stubs().cancel(env, job_id)
        if state is None and self.overflow:
            state = yield Blocking(partial(self.overflow.cancel, env, job_id))
        return state

    def get(self, env: EnvRef, job_id: str) -> Steps[JobInfo | None]:
        check_environment(env)
        check_name("job id", job_id)
        job: JobInfo | None = yield self.options.make_stubs().get(env, job_id)
        if job is None and self.overflow:
            job = yield Blocking(partial(self.overflow.find, env, job_id))
            if job is None:  # it may have moved from PostgreSQL to Valkey between the two reads
                job = yield self.options.make_stubs().get(env, job_id)
        return job

    def limits(self, ref: QueueRef | EnvRef, limit: int | None, burst: float | None) -> Steps[None]:
        check_limits(limit, burst)
        fields = {"limit": None if limit is None else str(limit)}
        if isinstance(ref, EnvRef):
            fields["burst"] = None if burst is None else repr(burst)
        return self._configure(ref, fields)

    def _format_caps(self, items: int | None, size: int | None) -> str | None:
        defaults = self.options.caps
        return None if items is None and size is None else f"{items or defaults.items} {size or defaults.bytes}"

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
            fields = {**fields, "caps": self._format_caps(*caps)}
        if self.overflow:  # first: PostgreSQL has the record from which Valkey's copy is restored
            raise_if_unknown(ref, (yield self.options.make_stubs().configure(ref, {})))
            yield Blocking(partial(self.overflow.record_settings, ref, fields))
        raise_if_unknown(ref, (yield self.options.make_stubs().configure(ref, fields)))

    def redrive(self, ref: QueueRef, which: DeadFilter) -> Steps[RedriveCount]:
        check_queue(ref)
        if self.overflow:
            raise_if_unknown(ref, (yield self.options.make_stubs().configure(ref, {})))
            return RedriveCount((yield Blocking(partial(self.overflow.redrive, ref, which))))
        return (yield from self._process_dead(ref, which, self.options.make_stubs().redrive))

    def remove_dead(self, ref: QueueRef, which: DeadFilter) -> Steps[int]:
        check_queue(ref)
        if self.overflow:
            raise_if_unknown(ref, (yield self.options.make_stubs().configure(ref, {})))
            return (yield Blocking(partial(self.overflow.remove_dead, ref, which, None)))
        return int((yield from self._process_dead(ref, which, self.options.make_stubs().remove_dead)))

    def _process_dead(
        self,
        ref: QueueRef,
        which: DeadFilter,
        act: Callable[[QueueRef, DeadFilter, int, int], ScriptCall[RedriveResult | None]],
    ) -> Steps[RedriveCount]:
        """Call `act` page by page on all dead jobs that match the filter."""
        moved = skip = remaining = 0
        while True:
            page: RedriveResult | None = yield act(ref, which, REDRIVE_PAGE, skip)
            raise_if_unknown(ref, page is not None)
            assert page is not None
            moved += page.moved
            remaining += page.remaining
            skip += page.examined - page.moved  # these stay dead, ahead of the next page
            if which.ids or page.examined < REDRIVE_PAGE:
                return RedriveCount(moved, remaining)


class SyncClient:
    """Synchronous client, for Django, Flask, scripts and threads. Every method may raise QueueUnavailable."""

    def __init__(self, url: str, options: QueueOptions | None = None, overflow: Overflow | None = None) -> None:
        self.redis = connect(url)
        self.options = options or QueueOptions()
        self._operations = Operations(self.options, overflow)
        self._checked = False

    def enqueue(self, ref: QueueRef, job: NewJob) -> bool:
        """Enqueue a job. Return True if it was accepted, False if a job with its id already exists."""
        return self.enqueue_many(ref, [job])[0]

    def enqueue_many(self, ref: QueueRef, jobs: Sequence[NewJob]) -> list[bool]:
        """Enqueue up to 10,000 jobs in one call. Return for each whether it was accepted; False: its id already exists.

        If some do not fit into Valkey and PostgreSQL cannot store them, only those are refused (SpillRefused.accepted);
        any other error refuses the whole call."""
        return self._drive(self._operations.enqueue(ref, jobs))

    def cancel(self, env: EnvRef, job_id: str) -> JobState | None:
        """Cancel a job if it is ready, scheduled or cold. Return the state it was in; None if there is no such job."""
        return self._drive(self._operations.cancel(env, job_id))

    def get(self, env: EnvRef, job_id: str) -> JobInfo | None:
        """Return the current state of a job; None if it is unknown. A finished job is known for queue.keep_done."""
        return self._drive(self._operations.get(env, job_id))

    def pause(self, ref: QueueRef) -> None:
        """Pause a queue: accept jobs but start none."""
        self._drive(self._operations.change(ref, QueueChange(paused=True)))

    def resume(self, ref: QueueRef) -> None:
        self._drive(self._operations.change(ref, QueueChange(paused=False)))

    def close_queue(self, ref: QueueRef) -> None:
        """Close a queue: refuse new jobs; waiting jobs still run."""
        self._drive(self._operations.change(ref, QueueChange(closed=True)))

    def open_queue(self, ref: QueueRef) -> None:
        self._drive(self._operations.change(ref, QueueChange(closed=False)))

    def limits(self, ref: QueueRef | EnvRef, limit: int | None, burst: float | None = None) -> None:
        """Limit the number of running jobs of a queue or environment; None: no limit. An environment as a whole may
        exceed its limit by the burst factor, each of its queues may not."""
        self._drive(self._operations.limits(ref, limit, burst))

    def caps(self, ref: QueueRef, items: int | None, size: int | None) -> None:
        """Limit the jobs and payload bytes of a queue in Valkey; both None: the bounds of all queues apply."""
        self._drive(self._operations.change(ref, QueueChange(caps=(items, size))))

    def change(self, ref: QueueRef, to: QueueChange) -> None:
        """Change several settings of a queue atomically."""
        self._drive(self._operations.change(ref, to))

    def redrive(self, ref: QueueRef, which: DeadFilter = EVERY_DEAD_JOB) -> RedriveCount:
        """Redrive dead jobs, oldest first, with all their attempts. Return how many. Each job moves atomically. Jobs
        that exceed the caps wait in PostgreSQL, or stay dead if there is none."""
        return self._drive(self._operations.redrive(ref, which))

    def remove_dead(self, ref: QueueRef, which: DeadFilter = EVERY_DEAD_JOB) -> int:
        """Delete dead jobs permanently, oldest first. Return how many."""
        return self._drive(self._operations.remove_dead(ref, which))

    @property
    def shards(self) -> int:
        self.check_shards()
        return self.options.shards or DEFAULT_SHARDS

    def check_shards(self) -> None:
        """Read the number of shards and the bounds from Valkey, at first use. The number of shards is stored if there
        is none. Raises ShardMismatch if another number is stored than was given."""
        if not self._checked:
            with translate_errors():
                found = store_shards(self.redis, self.options.shards)
            self.options = self.options.resolve(found, read_bounds(self.redis))
            self._operations.options = self.options
            self._checked = True

    def close(self) -> None:
        self.redis.close()
        if self._operations.overflow:
            self._operations.overflow.close()

    def _drive(self, steps: Generator[Step, Any, T]) -> T:
        self.check_shards()
        return drive(steps, self._perform)

    def _perform(self, step: Step) -> Any:
        match step:
            case ScriptCall():
                return run(self.redis, step)
            case Blocking():
                return step.do()
            case Pause():
                return time.sleep(step.seconds)

    def __enter__(self) -> SyncClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Client:
    """Asynchronous client with the methods of SyncClient."""

    def __init__(self, url: str, options: QueueOptions | None = None, overflow: Overflow | None = None) -> None:
        self.url = url
        self.redis = connect_async(url)
        self._shard_clients: dict[int, AsyncValkey] = {}
        self.options = options or QueueOptions()
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
        await self._drive(self._operations.change(ref, QueueChange(paused=True)))

    async def resume(self, ref: QueueRef) -> None:
        await self._drive(self._operations.change(ref, QueueChange(paused=False)))

    async def close_queue(self, ref: QueueRef) -> None:
        await self._drive(self._operations.change(ref, QueueChange(closed=True)))

    async def open_queue(self, ref: QueueRef) -> None:
        await self._drive(self._operations.change(ref, QueueChange(closed=False)))

    async def limits(self, ref: QueueRef | EnvRef, limit: int | None, burst: float | None = None) -> None:
        await self._drive(self._operations.limits(ref, limit, burst))

    async def caps(self, ref: QueueRef, items: int | None, size: int | None) -> None:
        await self._drive(self._operations.change(ref, QueueChange(caps=(items, size))))

    async def change(self, ref: QueueRef, to: QueueChange) -> None:
        await self._drive(self._operations.change(ref, to))

    async def redrive(self, ref: QueueRef, which: DeadFilter = EVERY_DEAD_JOB) -> RedriveCount:
        return await self._drive(self._operations.redrive(ref, which))

    async def remove_dead(self, ref: QueueRef, which: DeadFilter = EVERY_DEAD_JOB) -> int:
        return await self._drive(self._operations.remove_dead(ref, which))

    @property
    def shards(self) -> int:
        """Return the number of shards of the queue. Not verified before the first call of another method."""
        return self.options.shards or DEFAULT_SHARDS

    def get_shard_client(self, shard: int) -> AsyncValkey:
        """Return the Valkey client for calls to one shard. On a cluster each shard has its own: while redis-py looks
        for the successor of a failed server, all other calls of that client wait."""
        if not is_cluster(self.redis):
            return self.redis
        if shard not in self._shard_clients:
            self._shard_clients[shard] = connect_async(self.url)
        return self._shard_clients[shard]

    async def check_shards(self) -> None:
        if not self._checked:
            with translate_errors():
                found: Any = await self.redis.get(keys.SHARDS)
                if found is None:
                    shards = self.options.shards or DEFAULT_SHARDS
                    await copy_flag_async(self.redis, shards)
                    found = await self.redis.set(keys.SHARDS, shards, nx=True, get=True)
            self.options = self.options.resolve(found, await read_bounds_async(self.redis))
            self._operations.options = self.options
            self._checked = True

    async def close(self) -> None:
        for client in (self.redis, *self._shard_clients.values()):
            await client.aclose()
        if self._operations.overflow:
            await asyncio.to_thread(self._operations.overflow.close)

    async def _drive(self, steps: Generator[Step, Any, T]) -> T:
        await self.check_shards()
        return await drive_async(steps, self._perform)

    async def _perform(self, step: Step) -> Any:
        match step:
            case ScriptCall():
                return await run_async(self.redis, step)
            case Blocking():
                return await asyncio.to_thread(step.do)
            case Pause():
                return await asyncio.sleep(step.seconds)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _make_spill_job(job: NewJob, reply: EnqueueResult, position: int) -> SpillJob:
    due_ms = reply.now_ms + job.delay_ms + position / 4096  # the score that the script would have given it
    return SpillJob(job, int(reply.now_ms), due_ms, delayed=job.delay_ms > 0)


def _spill_refused(accepted: Sequence[bool], refused: int, reason: object) -> SpillRefused:
    return SpillRefused(
        f"{refused} of {len(accepted)} jobs did not fit into Valkey, could not be stored in PostgreSQL, and were "
        f"refused. {sum(accepted)} were accepted. Retry with the same ids when PostgreSQL is available; accepted jobs "
        f"are not duplicated. ({reason})",
        accepted,
    )


def _spill_outcome_unknown(accepted: Sequence[bool], unclear: int, reason: object) -> SpillRefused:
    return SpillRefused(
        f"{unclear} of {len(accepted)} jobs did not fit into Valkey, and it is unknown whether PostgreSQL stored them: "
        "the connection was lost during COMMIT and has not been restored. "
        f"{sum(accepted)} were accepted. Retry with the same ids when PostgreSQL is available; accepted jobs are not "
        f"duplicated. ({reason})",
        accepted,
    )


def raise_if_unknown(ref: QueueRef | EnvRef, found: bool) -> None:
    if not found:
        assert isinstance(ref, QueueRef)
        raise UnknownQueue(
            f"There is no queue {ref.queue!r} in {ref.org} / {ref.project} / {ref.env}. Nothing was changed. "
            "A queue is created by its first job."
        )


def store_shards(client: Valkey, given: int | None) -> bytes | None:
    """Return the number of shards stored in Valkey. If there is none, store the given number, or DEFAULT_SHARDS without
    one, and return None. Only that needs permission to write."""
    stored: Any = client.get(keys.SHARDS)
    if stored is None:
        copy_flag(client, shards := given or DEFAULT_SHARDS)
        stored = client.set(keys.SHARDS, shards, nx=True, get=True)
    return stored


def read_shards(client: Valkey, given: int | None) -> int:
    """Return the number of shards stored in Valkey. If there is none, return the given number, or DEFAULT_SHARDS
    without one. Writes nothing. Raises ShardMismatch if another number is stored than given."""
    return read_stored_shards(client, given) or given or DEFAULT_SHARDS


def read_stored_shards(client: Valkey, given: int | None) -> int | None:
    """Return the number of shards stored in Valkey, or None if there is none. Raises ShardMismatch."""
    with translate_errors():
        stored: Any = client.get(keys.SHARDS)
    check_shard_count(stored, given)
    return None if stored is None else int(stored)


def check_shard_count(stored: bytes | None, given: int | None) -> None:
    if stored is not None and given is not None and int(stored) != given:
        raise ShardMismatch(
            f"This Valkey was set up with {int(stored)} shards, but queue.shards is {given}. Nothing was written. "
            f"Set queue.shards = {int(stored)}, or remove the setting to use the stored number."
        )
