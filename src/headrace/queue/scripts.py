"""Typed stubs of the Lua scripts: one function per verb, its arguments in the signature."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

from headrace.model.event import lua_pack
from headrace.model.job import LeasedJob, NewJob
from headrace.model.names import QueueRef
from headrace.queue import keys
from headrace.valkey.scripts import Arg, Call, Script, load_script

T = TypeVar("T")

VERBS = ("enqueue", "dequeue", "extend", "ack", "nack", "reclaim", "release")


@cache
def script(name: str) -> Script:
    return load_script(files("headrace.queue") / "lua", name, preamble=lua_pack())


@dataclass(frozen=True)
class Stubs:
    """The verbs for a queue of `shards` shards whose metric streams hold about `stream_maxlen` events."""

    shards: int
    stream_maxlen: int

    def shard_of(self, ref: QueueRef) -> int:
        return ref.environment.shard(self.shards)

    def enqueue(self, ref: QueueRef, jobs: Sequence[NewJob]) -> Call[list[bool]]:
        """For each job: accepted (True), or one of that id exists already (False)."""
        shard = self.shard_of(ref)
        args: list[Arg] = [
            *(keys.env_part(ref.environment), keys.encode(ref.queue)),
            *(ref.org, ref.project, ref.env, ref.queue),
        ]
        for job in jobs:
            args += (keys.encode(job.id), job.id, job.task, job.payload, job.delay_ms, job.max_attempts)
        return self._call("enqueue", shard, [keys.queue(shard, ref)], args, _flags)

    def dequeue(self, shard: int, n: int, lease_ms: int) -> Call[list[LeasedJob]]:
        return self._call("dequeue", shard, [keys.meta(shard)], [n, lease_ms], _leased_jobs)

    def extend(self, shard: int, jobs: Sequence[LeasedJob], lease_ms: int) -> Call[list[bool]]:
        """For each job: extended (True), or the lease was lost (False)."""
        args: list[Arg] = [lease_ms]
        for job in jobs:
            args += (keys.env_part(job.queue.environment), keys.encode(job.id), job.lease)
        return self._call("extend", shard, [keys.meta(shard)], args, _flags)

    def ack(self, shard: int, done: Sequence[tuple[LeasedJob, int]]) -> Call[list[bool]]:
        """For each (job, run ms): applied (True), or the lease was lost (False)."""
        args: list[Arg] = []
        for job, run_ms in done:
            args += (keys.env_part(job.queue.environment), keys.encode(job.id), job.lease, run_ms)
        return self._call("ack", shard, [keys.meta(shard)], args, _flags)

    def nack(self, shard: int, failed: Sequence[tuple[LeasedJob, int, str]]) -> Call[list[int]]:
        """For each (job, delay ms, error): 1 tried again later, 2 buried, 0 the lease was lost."""
        args: list[Arg] = []
        for job, delay_ms, error in failed:
            args += (keys.env_part(job.queue.environment), keys.encode(job.id), job.lease, delay_ms, error)
        return self._call("nack", shard, [keys.meta(shard)], args, list)

    def reclaim(self, shard: int, at_most: int) -> Call[int]:
        return self._call("reclaim", shard, [keys.meta(shard)], [at_most], int)

    def release(self, shard: int, at_most: int) -> Call[int]:
        return self._call("release", shard, [keys.meta(shard)], [at_most], int)

    def _call(
        self, verb: str, shard: int, key_list: list[str], args: Sequence[Arg], read: Callable[[Any], T]
    ) -> Call[T]:
        return Call(script(verb), key_list, [keys.prefix(shard), self.stream_maxlen, *args], read)


def _flags(answer: list[int]) -> list[bool]:
    return [flag == 1 for flag in answer]


def _leased_jobs(answer: list[list[Any]]) -> list[LeasedJob]:
    return [_leased_job(*fields) for fields in answer]


def _leased_job(
    org: bytes,
    project: bytes,
    env: bytes,
    queue: bytes,
    job_id: bytes,
    task: bytes,
    payload: bytes,
    attempt: int,
    max_attempts: int,
    lease: int,
    enqueued_at_ms: int,
    waited_ms: int,
) -> LeasedJob:
    return LeasedJob(
        queue=QueueRef(org.decode(), project.decode(), env.decode(), queue.decode()),
        id=job_id.decode(),
        task=task.decode(),
        payload=payload,
        attempt=attempt,
        max_attempts=max_attempts,
        lease=lease,
        enqueued_at_ms=enqueued_at_ms,
        waited_ms=waited_ms,
    )
