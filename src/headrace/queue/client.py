"""The low-level clients of producers and operators: `SyncClient`, and `Client` for asyncio.

Every method of the two is written twice, because they wait differently. What they decide is written once: validation
in validate.py, script calls and their replies in scripts.py, calls of several steps in operations.py. If a job is
refused, the call raises and nothing of the job was written; an accepted job is durable.

With an `overflow` (see `headrace.cold`) jobs that do not fit into Valkey wait in PostgreSQL; without, they are refused.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from headrace.errors import ShardMismatch
from headrace.model.job import JobInfo, JobState, NewJob
from headrace.model.names import EnvRef, QueueRef
from headrace.queue import keys
from headrace.queue.bounds import StoredBounds, read_bounds, read_bounds_async
from headrace.queue.coalesce import AsyncCoalescer, EnqueueCall, ThreadCoalescer
from headrace.queue.metrics_flag import copy_flag, copy_flag_async
from headrace.queue.operations import (
    SPILL_ERRORS,
    DeadJobsOperation,
    EnqueueOperation,
    QueueChange,
    RedriveCount,
    build_limit_fields,
    raise_if_unknown,
)
from headrace.queue.overflow import EpochClosed, Overflow
from headrace.queue.scripts import DEFAULT_CAPS, DeadFilter, EnqueueResult, Stubs, WarmCaps
from headrace.queue.validate import check_job_id, check_jobs, check_queue
from headrace.valkey.async_script_runner import AsyncScriptRunner
from headrace.valkey.connect import AsyncValkey, Valkey, connect, connect_async, is_cluster, translate_errors
from headrace.valkey.script_runner import ScriptRunner
from headrace.valkey.scripts import ScriptCall, run_async

T = TypeVar("T")

DEFAULT_SHARDS = 2
"""Number of shards that a client creates if it was given none."""

EVERY_DEAD_JOB = DeadFilter()


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


class SyncClient:
    """Synchronous client, for Django, Flask, scripts and threads. Every method may raise QueueUnavailable."""

    def __init__(self, url: str, options: QueueOptions | None = None, overflow: Overflow | None = None) -> None:
        self.redis = connect(url)
        self._runner = ScriptRunner(self.redis)
        self._coalescer = ThreadCoalescer(self._runner.run)
        self.options = options or QueueOptions()
        self._overflow = overflow
        self._stubs: Stubs | None = None  # None: the number of shards and the bounds are not read from Valkey yet
        self._cold_queues: set[QueueRef] = set()

    def enqueue(self, ref: QueueRef, job: NewJob) -> bool:
        """Enqueue a job. Return True if it was accepted, False if a job with its id already exists."""
        return self.enqueue_many(ref, [job])[0]

    def enqueue_many(self, ref: QueueRef, jobs: Sequence[NewJob]) -> list[bool]:
        """Enqueue up to 10,000 jobs in one call. Return for each whether it was accepted; False: its id already exists.

        If some do not fit into Valkey and PostgreSQL cannot store them, only those are refused (SpillRefused.accepted);
        any other error refuses the whole call. Calls of several threads to one queue share requests (coalesce.py)."""
        check_queue(ref)
        check_jobs(jobs, self.options.max_payload_bytes)
        stubs = self._stubs or self._get_stubs()
        if not self._overflow:
            return self._run_enqueue(stubs.enqueue(ref, jobs)).accepted if jobs else []
        operation = EnqueueOperation(stubs, ref, jobs, self._overflow.far_ms, self._cold_queues)
        while operation.remaining:
            try:
                reply = self._run_enqueue(operation.build_call())
                operation.apply(reply)
                if operation.to_spill:
                    operation.apply_stored(self._overflow.spill(ref, operation.to_spill, reply))
            except EpochClosed as closed:
                self._wait(operation.retry_after_s(closed))
            except SPILL_ERRORS as error:
                operation.raise_refused(error)
        return operation.accepted

    def cancel(self, env: EnvRef, job_id: str, *, running: bool = False) -> JobState | None:
        """Cancel a job if it is ready, scheduled or cold. Return the state it was in; None if there is no such job.

        With `running`, a running job is cancelled too, and `running` is returned: its worker stops it at the next
        heartbeat, and it is not retried. It may still succeed before that."""
        check_job_id(env, job_id)
        state = self._run(self._get_stubs().cancel(env, job_id, running=running))
        if state is None and self._overflow:
            state = self._overflow.cancel(env, job_id)
        return state

    def get(self, env: EnvRef, job_id: str) -> JobInfo | None:
        """Return the current state of a job; None if it is unknown. A finished job is known for queue.keep_done."""
        check_job_id(env, job_id)
        call = self._get_stubs().get(env, job_id)
        job = self._run(call)
        if job is None and self._overflow:
            job = self._overflow.find(env, job_id)
            if job is None:  # it may have moved from PostgreSQL to Valkey between the two reads
                job = self._run(call)
        return job

    def read_attempts(self, env: EnvRef, job_id: str) -> list[bytes]:
        """Return what tasks have kept of the ended attempts of a job, oldest first, the last 20 at most. Empty if
        nothing was kept, it has expired, or it did not fit."""
        check_job_id(env, job_id)
        return self._run(self._get_stubs().read_attempts(env, job_id))

    def pause(self, ref: QueueRef) -> None:
        """Pause a queue: accept jobs but start none."""
        self.change(ref, QueueChange(paused=True))

    def resume(self, ref: QueueRef) -> None:
        self.change(ref, QueueChange(paused=False))

    def close_queue(self, ref: QueueRef) -> None:
        """Close a queue: refuse new jobs; waiting jobs still run."""
        self.change(ref, QueueChange(closed=True))

    def open_queue(self, ref: QueueRef) -> None:
        self.change(ref, QueueChange(closed=False))

    def limits(self, ref: QueueRef | EnvRef, limit: int | None, burst: float | None = None) -> None:
        """Limit the number of running jobs of a queue or environment; None: no limit. An environment as a whole may
        exceed its limit by the burst factor, each of its queues may not."""
        self._configure(ref, build_limit_fields(ref, limit, burst))

    def caps(self, ref: QueueRef, items: int | None, size: int | None) -> None:
        """Limit the jobs and payload bytes of a queue in Valkey; both None: the bounds of all queues apply."""
        self.change(ref, QueueChange(caps=(items, size)))

    def change(self, ref: QueueRef, to: QueueChange) -> None:
        """Change several settings of a queue atomically."""
        check_queue(ref)
        to.check()
        self._configure(ref, to.build_fields(self._get_stubs().caps))

    def _configure(self, ref: QueueRef | EnvRef, fields: Mapping[str, str | None]) -> None:
        if self._overflow:  # first: PostgreSQL has the record from which Valkey's copy is restored
            self._check_exists(ref)
            self._overflow.record_settings(ref, fields)
        raise_if_unknown(ref, self._run(self._get_stubs().configure(ref, fields)))

    def _check_exists(self, ref: QueueRef | EnvRef) -> None:
        """Raise UnknownQueue if the queue does not exist in Valkey."""
        raise_if_unknown(ref, self._run(self._get_stubs().configure(ref, {})))

    def redrive(self, ref: QueueRef, which: DeadFilter = EVERY_DEAD_JOB, limit: int | None = None) -> RedriveCount:
        """Redrive dead jobs, oldest first, with all their attempts; at most `limit` of them (None: all). Return how
        many. Each job moves atomically. Jobs that exceed the caps wait in PostgreSQL, or stay dead if there is none."""
        check_queue(ref)
        if self._overflow:
            self._check_exists(ref)
            return RedriveCount(self._overflow.redrive(ref, which, limit))
        return self._process_dead(DeadJobsOperation(ref, which, self._get_stubs().redrive, limit))

    def remove_dead(self, ref: QueueRef, which: DeadFilter = EVERY_DEAD_JOB) -> int:
        """Delete dead jobs permanently, oldest first. Return how many."""
        check_queue(ref)
        if self._overflow:
            self._check_exists(ref)
            return self._overflow.remove_dead(ref, which, None)
        return int(self._process_dead(DeadJobsOperation(ref, which, self._get_stubs().remove_dead)))

    def _process_dead(self, operation: DeadJobsOperation) -> RedriveCount:
        while not operation.is_done:
            operation.apply(self._run(operation.build_call()))
        return operation.count

    @property
    def shards(self) -> int:
        return self._get_stubs().shards

    def check_shards(self) -> None:
        """Read the number of shards and the bounds from Valkey, at first use. The number of shards is stored if there
        is none. Raises ShardMismatch if another number is stored than was given."""
        self._get_stubs()

    def _get_stubs(self) -> Stubs:
        if self._stubs is None:
            with translate_errors():
                found = store_shards(self.redis, self.options.shards)
            self.options = self.options.resolve(found, read_bounds(self.redis))
            self._stubs = self.options.make_stubs()
        return self._stubs

    def close(self) -> None:
        """Wait for calls in flight, and close the connections."""
        self._coalescer.drain()
        self._runner.close()
        self.redis.close()
        if self._overflow:
            self._overflow.close()

    def _run(self, call: ScriptCall[T]) -> T:
        return self._runner.run(call)

    def _run_enqueue(self, call: EnqueueCall) -> EnqueueResult:
        return self._coalescer.run(call)

    def _wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def __enter__(self) -> SyncClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Client:
    """Asynchronous client with the methods of SyncClient. Calls to PostgreSQL run in threads. Concurrent calls of
    `enqueue` and `enqueue_many` to one queue share requests (coalesce.py)."""

    def __init__(self, url: str, options: QueueOptions | None = None, overflow: Overflow | None = None) -> None:
        self.url = url
        self.redis = connect_async(url)
        self._runner = AsyncScriptRunner(self.redis)
        self._coalescer = AsyncCoalescer(self._runner.run, in_order=self._runner.is_direct)
        self._shard_clients: dict[int, AsyncValkey] = {}
        self.options = options or QueueOptions()
        self._overflow = overflow
        self._stubs: Stubs | None = None  # None: the number of shards and the bounds are not read from Valkey yet
        self._cold_queues: set[QueueRef] = set()

    async def enqueue(self, ref: QueueRef, job: NewJob) -> bool:
        return (await self.enqueue_many(ref, [job]))[0]

    async def enqueue_many(self, ref: QueueRef, jobs: Sequence[NewJob]) -> list[bool]:
        check_queue(ref)
        check_jobs(jobs, self.options.max_payload_bytes)
        stubs = self._stubs or await self._get_stubs()
        if not self._overflow:
            return (await self._coalescer.run(stubs.enqueue(ref, jobs))).accepted if jobs else []
        operation = EnqueueOperation(stubs, ref, jobs, self._overflow.far_ms, self._cold_queues)
        while operation.remaining:
            try:
                reply = await self._coalescer.run(operation.build_call())
                operation.apply(reply)
                if operation.to_spill:
                    spill = asyncio.to_thread(self._overflow.spill, ref, operation.to_spill, reply)
                    operation.apply_stored(await spill)
            except EpochClosed as closed:
                await asyncio.sleep(operation.retry_after_s(closed))
            except SPILL_ERRORS as error:
                operation.raise_refused(error)
        return operation.accepted

    async def cancel(self, env: EnvRef, job_id: str, *, running: bool = False) -> JobState | None:
        check_job_id(env, job_id)
        state = await self._run((await self._get_stubs()).cancel(env, job_id, running=running))
        if state is None and self._overflow:
            state = await asyncio.to_thread(self._overflow.cancel, env, job_id)
        return state

    async def get(self, env: EnvRef, job_id: str) -> JobInfo | None:
        check_job_id(env, job_id)
        call = (await self._get_stubs()).get(env, job_id)
        job = await self._run(call)
        if job is None and self._overflow:
            job = await asyncio.to_thread(self._overflow.find, env, job_id)
            if job is None:  # it may have moved from PostgreSQL to Valkey between the two reads
                job = await self._run(call)
        return job

    async def read_attempts(self, env: EnvRef, job_id: str) -> list[bytes]:
        check_job_id(env, job_id)
        return await self._run((await self._get_stubs()).read_attempts(env, job_id))

    async def pause(self, ref: QueueRef) -> None:
        await self.change(ref, QueueChange(paused=True))

    async def resume(self, ref: QueueRef) -> None:
        await self.change(ref, QueueChange(paused=False))

    async def close_queue(self, ref: QueueRef) -> None:
        await self.change(ref, QueueChange(closed=True))

    async def open_queue(self, ref: QueueRef) -> None:
        await self.change(ref, QueueChange(closed=False))

    async def limits(self, ref: QueueRef | EnvRef, limit: int | None, burst: float | None = None) -> None:
        await self._configure(ref, build_limit_fields(ref, limit, burst))

    async def caps(self, ref: QueueRef, items: int | None, size: int | None) -> None:
        await self.change(ref, QueueChange(caps=(items, size)))

    async def change(self, ref: QueueRef, to: QueueChange) -> None:
        check_queue(ref)
        to.check()
        await self._configure(ref, to.build_fields((await self._get_stubs()).caps))

    async def _configure(self, ref: QueueRef | EnvRef, fields: Mapping[str, str | None]) -> None:
        if self._overflow:  # first: PostgreSQL has the record from which Valkey's copy is restored
            await self._check_exists(ref)
            await asyncio.to_thread(self._overflow.record_settings, ref, fields)
        raise_if_unknown(ref, await self._run((await self._get_stubs()).configure(ref, fields)))

    async def _check_exists(self, ref: QueueRef | EnvRef) -> None:
        """Raise UnknownQueue if the queue does not exist in Valkey."""
        raise_if_unknown(ref, await self._run((await self._get_stubs()).configure(ref, {})))

    async def redrive(
        self, ref: QueueRef, which: DeadFilter = EVERY_DEAD_JOB, limit: int | None = None
    ) -> RedriveCount:
        check_queue(ref)
        if self._overflow:
            await self._check_exists(ref)
            return RedriveCount(await asyncio.to_thread(self._overflow.redrive, ref, which, limit))
        return await self._process_dead(DeadJobsOperation(ref, which, (await self._get_stubs()).redrive, limit))

    async def remove_dead(self, ref: QueueRef, which: DeadFilter = EVERY_DEAD_JOB) -> int:
        check_queue(ref)
        if self._overflow:
            await self._check_exists(ref)
            return await asyncio.to_thread(self._overflow.remove_dead, ref, which, None)
        return int(await self._process_dead(DeadJobsOperation(ref, which, (await self._get_stubs()).remove_dead)))

    async def _process_dead(self, operation: DeadJobsOperation) -> RedriveCount:
        while not operation.is_done:
            operation.apply(await self._run(operation.build_call()))
        return operation.count

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

    async def run_on_shard(self, shard: int, call: ScriptCall[T]) -> T:
        """Run a script call of one shard and return the parsed reply."""
        if is_cluster(self.redis):
            return await run_async(self.get_shard_client(shard), call)
        return await self._runner.run(call)

    async def check_shards(self) -> None:
        await self._get_stubs()

    async def _get_stubs(self) -> Stubs:
        if self._stubs is None:
            with translate_errors():
                found: Any = await self.redis.get(keys.SHARDS)
                if found is None:
                    shards = self.options.shards or DEFAULT_SHARDS
                    await copy_flag_async(self.redis, shards)
                    found = await self.redis.set(keys.SHARDS, shards, nx=True, get=True)
            self.options = self.options.resolve(found, await read_bounds_async(self.redis))
            self._stubs = self.options.make_stubs()
        return self._stubs

    def abandon(self) -> None:
        """Close the connections to PostgreSQL of a client whose event loop has ended. Those to Valkey are closed when
        the client is deleted: to close them needs the loop."""
        if self._overflow:
            self._overflow.close()

    async def close(self) -> None:
        try:
            await self._coalescer.drain()
        finally:
            await self._runner.close()
            for client in (self.redis, *self._shard_clients.values()):
                await client.aclose()
            if self._overflow:
                await asyncio.to_thread(self._overflow.close)

    async def _run(self, call: ScriptCall[T]) -> T:
        return await self._runner.run(call)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


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
