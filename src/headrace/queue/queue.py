"""The client: accepts jobs for producers. One asynchronous, one synchronous, one core.

What the two share (checks, script calls, reading answers) is in `Stubs` and `validate`; each class
below only adds how to wait. A refused job raises and nothing was written; an accepted one survives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from headrace.errors import ShardMismatch
from headrace.model.job import NewJob
from headrace.model.names import QueueRef
from headrace.queue import keys
from headrace.queue.scripts import Stubs
from headrace.queue.validate import check_job, check_queue
from headrace.valkey.connect import available, connect, connect_async
from headrace.valkey.scripts import Call, run, run_async


@dataclass(frozen=True)
class QueueOptions:
    """The settings a client needs; the defaults are those of the settings file."""

    shards: int = 2
    stream_maxlen: int = 1_000_000
    max_payload_bytes: int = 2**20

    def stubs(self) -> Stubs:
        return Stubs(self.shards, self.stream_maxlen)

    def enqueue_call(self, ref: QueueRef, jobs: Sequence[NewJob]) -> Call[list[bool]]:
        check_queue(ref)
        for job in jobs:
            check_job(job, self.max_payload_bytes)
        return self.stubs().enqueue(ref, jobs)


class SyncClient:
    """For Django, Flask, scripts and threads."""

    def __init__(self, url: str, options: QueueOptions | None = None) -> None:
        self.redis = connect(url)
        self.options = options or QueueOptions()
        self._checked = False

    def enqueue(self, ref: QueueRef, job: NewJob) -> bool:
        """True if the job was accepted now, False if one of its id was already there."""
        return self.enqueue_many(ref, [job])[0]

    def enqueue_many(self, ref: QueueRef, jobs: Sequence[NewJob]) -> list[bool]:
        """Accept many jobs in one call: all of them or, if one is refused, none."""
        call = self.options.enqueue_call(ref, jobs)
        self.check_shards()
        return run(self.redis, call) if jobs else []

    def check_shards(self) -> None:
        """The number of shards is written once; a client that would look elsewhere is refused."""
        if not self._checked:
            with available():
                found: Any = self.redis.set(keys.SHARDS, self.options.shards, nx=True, get=True)
            refuse_other_shards(found, self.options.shards)
            self._checked = True

    def close(self) -> None:
        self.redis.close()

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
        self._checked = False

    async def enqueue(self, ref: QueueRef, job: NewJob) -> bool:
        return (await self.enqueue_many(ref, [job]))[0]

    async def enqueue_many(self, ref: QueueRef, jobs: Sequence[NewJob]) -> list[bool]:
        call = self.options.enqueue_call(ref, jobs)
        await self.check_shards()
        return await run_async(self.redis, call) if jobs else []

    async def check_shards(self) -> None:
        if not self._checked:
            with available():
                found: Any = await self.redis.set(keys.SHARDS, self.options.shards, nx=True, get=True)
            refuse_other_shards(found, self.options.shards)
            self._checked = True

    async def close(self) -> None:
        await self.redis.aclose()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await self.close()


def refuse_other_shards(found: bytes | None, ours: int) -> None:
    if found is not None and int(found) != ours:
        raise ShardMismatch(
            f"This Valkey holds a queue of {int(found)} shards; queue.shards is {ours}. Nothing was written. "
            f"Set queue.shards = {int(found)}."
        )
