"""The client: how programs talk to the queue. One asynchronous, one synchronous, one core.

`Operations` checks what is asked and says which script to call; the two clients below only differ in how they
wait for the answer. A refused job raises and nothing was written; an accepted one survives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

from headrace.errors import ShardMismatch, UnknownQueue
from headrace.model.job import JobInfo, JobState, NewJob
from headrace.model.names import EnvRef, QueueRef
from headrace.queue import keys
from headrace.queue.scripts import DeadFilter, Redriven, Stubs
from headrace.queue.validate import check_environment, check_job, check_limits, check_name, check_queue
from headrace.valkey.connect import available, connect, connect_async
from headrace.valkey.scripts import Call, run, run_async

T = TypeVar("T")

REDRIVE_PAGE = 500
EVERY_DEAD_JOB = DeadFilter()


@dataclass(frozen=True)
class QueueOptions:
    """The settings a client needs; the defaults are those of the settings file."""

    shards: int = 2
    stream_maxlen: int = 1_000_000
    max_payload_bytes: int = 2**20

    def stubs(self) -> Stubs:
        return Stubs(self.shards, self.stream_maxlen)


@dataclass(frozen=True)
class Operations:
    """What both clients can do, as script calls."""

    options: QueueOptions

    def enqueue(self, ref: QueueRef, jobs: Sequence[NewJob]) -> Call[list[bool]]:
        check_queue(ref)
        for job in jobs:
            check_job(job, self.options.max_payload_bytes)
        return self.options.stubs().enqueue(ref, jobs)

    def cancel(self, env: EnvRef, job_id: str) -> Call[JobState | None]:
        check_environment(env)
        check_name("job id", job_id)
        return self.options.stubs().cancel(env, job_id)

    def get(self, env: EnvRef, job_id: str) -> Call[JobInfo | None]:
        check_environment(env)
        check_name("job id", job_id)
        return self.options.stubs().get(env, job_id)

    def pause(self, ref: QueueRef, paused: bool) -> Call[bool]:
        check_queue(ref)
        return self.options.stubs().configure(ref, {"paused": 1 if paused else None})

    def close_queue(self, ref: QueueRef, closed: bool) -> Call[bool]:
        check_queue(ref)
        return self.options.stubs().configure(ref, {"closed": 1 if closed else None})

    def limits(self, ref: QueueRef | EnvRef, limit: int | None, burst: float | None) -> Call[bool]:
        check_limits(limit, burst)
        check_queue(ref) if isinstance(ref, QueueRef) else check_environment(ref)
        fields: dict[str, Any] = {"limit": limit}
        if isinstance(ref, EnvRef):
            fields["burst"] = None if burst is None else repr(burst)
        return self.options.stubs().configure(ref, fields)

    def redrive(self, ref: QueueRef, which: DeadFilter, skip: int) -> Call[Redriven | None]:
        check_queue(ref)
        return self.options.stubs().redrive(ref, which, REDRIVE_PAGE, skip)


class SyncClient:
    """For Django, Flask, scripts and threads. Every method may raise QueueUnavailable."""

    def __init__(self, url: str, options: QueueOptions | None = None) -> None:
        self.redis = connect(url)
        self.options = options or QueueOptions()
        self._operations = Operations(self.options)
        self._checked = False

    def enqueue(self, ref: QueueRef, job: NewJob) -> bool:
        """True if the job was accepted now, False if one of its id was already there."""
        return self.enqueue_many(ref, [job])[0]

    def enqueue_many(self, ref: QueueRef, jobs: Sequence[NewJob]) -> list[bool]:
        """Accept many jobs in one call: all of them or, if one is refused, none."""
        call = self._operations.enqueue(ref, jobs)
        return self._run(call) if jobs else []

    def cancel(self, env: EnvRef, job_id: str) -> JobState | None:
        """The state the job was in; it is gone if that was ready or scheduled. None: there is no such job."""
        return self._run(self._operations.cancel(env, job_id))

    def get(self, env: EnvRef, job_id: str) -> JobInfo | None:
        """The job as it is now. One that is done is known for a minute (queue.keep_done)."""
        return self._run(self._operations.get(env, job_id))

    def pause(self, ref: QueueRef) -> None:
        """Start no more jobs of this queue; accept them still."""
        refuse_unknown(ref, self._run(self._operations.pause(ref, True)))

    def resume(self, ref: QueueRef) -> None:
        refuse_unknown(ref, self._run(self._operations.pause(ref, False)))

    def close_queue(self, ref: QueueRef) -> None:
        """Accept no more jobs; those that wait are run still."""
        refuse_unknown(ref, self._run(self._operations.close_queue(ref, True)))

    def open_queue(self, ref: QueueRef) -> None:
        refuse_unknown(ref, self._run(self._operations.close_queue(ref, False)))

    def limits(self, ref: QueueRef | EnvRef, limit: int | None, burst: float | None = None) -> None:
        """At most this many jobs run at once; None: no limit. An environment may go beyond it by its burst factor,
        none of its queues may."""
        refuse_unknown(ref, self._run(self._operations.limits(ref, limit, burst)))

    def redrive(self, ref: QueueRef, which: DeadFilter = EVERY_DEAD_JOB) -> int:
        """Let dead jobs run again, with all their attempts; returns how many. Each job moves at once or not at all."""
        moved = skip = 0
        while True:
            page = known(ref, self._run(self._operations.redrive(ref, which, skip)))
            moved += page.moved
            skip += page.looked_at - page.moved  # those stay dead, ahead of the next page
            if which.ids or page.looked_at < REDRIVE_PAGE:
                return moved

    def check_shards(self) -> None:
        """The number of shards is written once; a client that would look elsewhere is refused."""
        if not self._checked:
            with available():
                found: Any = self.redis.set(keys.SHARDS, self.options.shards, nx=True, get=True)
            refuse_other_shards(found, self.options.shards)
            self._checked = True

    def close(self) -> None:
        self.redis.close()

    def _run(self, call: Call[T]) -> T:
        self.check_shards()
        return run(self.redis, call)

    def __enter__(self) -> SyncClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()


class Client:
    """For asyncio code; the same methods as SyncClient, awaited."""

    def __init__(self, url: str, options: QueueOptions | None = None) -> None:
        self.redis = connect_async(url)
        self.options = options or QueueOptions()
        self._operations = Operations(self.options)
        self._checked = False

    async def enqueue(self, ref: QueueRef, job: NewJob) -> bool:
        return (await self.enqueue_many(ref, [job]))[0]

    async def enqueue_many(self, ref: QueueRef, jobs: Sequence[NewJob]) -> list[bool]:
        call = self._operations.enqueue(ref, jobs)
        return await self._run(call) if jobs else []

    async def cancel(self, env: EnvRef, job_id: str) -> JobState | None:
        return await self._run(self._operations.cancel(env, job_id))

    async def get(self, env: EnvRef, job_id: str) -> JobInfo | None:
        return await self._run(self._operations.get(env, job_id))

    async def pause(self, ref: QueueRef) -> None:
        refuse_unknown(ref, await self._run(self._operations.pause(ref, True)))

    async def resume(self, ref: QueueRef) -> None:
        refuse_unknown(ref, await self._run(self._operations.pause(ref, False)))

    async def close_queue(self, ref: QueueRef) -> None:
        refuse_unknown(ref, await self._run(self._operations.close_queue(ref, True)))

    async def open_queue(self, ref: QueueRef) -> None:
        refuse_unknown(ref, await self._run(self._operations.close_queue(ref, False)))

    async def limits(self, ref: QueueRef | EnvRef, limit: int | None, burst: float | None = None) -> None:
        refuse_unknown(ref, await self._run(self._operations.limits(ref, limit, burst)))

    async def redrive(self, ref: QueueRef, which: DeadFilter = EVERY_DEAD_JOB) -> int:
        moved = skip = 0
        while True:
            page = known(ref, await self._run(self._operations.redrive(ref, which, skip)))
            moved += page.moved
            skip += page.looked_at - page.moved
            if which.ids or page.looked_at < REDRIVE_PAGE:
                return moved

    async def check_shards(self) -> None:
        if not self._checked:
            with available():
                found: Any = await self.redis.set(keys.SHARDS, self.options.shards, nx=True, get=True)
            refuse_other_shards(found, self.options.shards)
            self._checked = True

    async def close(self) -> None:
        await self.redis.aclose()

    async def _run(self, call: Call[T]) -> T:
        await self.check_shards()
        return await run_async(self.redis, call)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await self.close()


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


def refuse_other_shards(found: bytes | None, ours: int) -> None:
    if found is not None and int(found) != ours:
        raise ShardMismatch(
            f"This Valkey holds a queue of {int(found)} shards; queue.shards is {ours}. Nothing was written. "
            f"Set queue.shards = {int(found)}."
        )
