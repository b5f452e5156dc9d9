"""Typed stubs of the Lua scripts: one function per verb, its arguments in the signature."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

from headrace.model.event import lua_pack
from headrace.model.job import JobInfo, JobState, LeasedJob, NewJob
from headrace.model.names import EnvRef, QueueRef
from headrace.queue import keys
from headrace.valkey.scripts import Arg, Call, Script, load_script

T = TypeVar("T")

SCRIPTS = (
    *("enqueue", "dequeue", "extend", "ack", "nack", "bury", "reclaim", "giveback", "release", "expire", "cancel"),
    *("redrive", "configure", "get", "tick"),
)


@cache
def script(name: str) -> Script:
    return load_script(files("headrace.queue") / "lua", name, preamble=lua_pack())


@dataclass(frozen=True)
class Redriven:
    moved: int
    looked_at: int


@dataclass(frozen=True)
class DeadFilter:
    """Which dead jobs are meant. Empty fields match everything."""

    ids: Sequence[str] = ()
    task: str = ""
    error: str = ""  # text that the error contains
    buried_from_ms: int | None = None
    buried_until_ms: int | None = None


@dataclass(frozen=True)
class Stubs:
    """The verbs for a queue of `shards` shards whose metric streams hold about `stream_maxlen` events."""

    shards: int
    stream_maxlen: int

    def shard_of(self, ref: QueueRef | EnvRef) -> int:
        return (ref.environment if isinstance(ref, QueueRef) else ref).shard(self.shards)

    # What producers do

    def enqueue(self, ref: QueueRef, jobs: Sequence[NewJob]) -> Call[list[bool]]:
        """For each job: accepted (True), or one of that id exists already (False)."""
        shard = self.shard_of(ref)
        args: list[Arg] = [*_parts(ref), ref.org, ref.project, ref.env, ref.queue]
        for job in jobs:
            args += (keys.encode(job.id), _body(job), len(job.payload), job.delay_ms, job.priority)
            args += (job.ttl_ms or 0, job.max_attempts)
        return self._call("enqueue", shard, keys.queue(shard, ref), args, _flags)

    def cancel(self, env: EnvRef, job_id: str) -> Call[JobState | None]:
        """The job's state before; it is gone if that was ready or scheduled. None: there is no such job."""
        shard = self.shard_of(env)
        args = [keys.job_part(env, job_id)]
        return self._call("cancel", shard, keys.job(shard, env, job_id), args, _state)

    def get(self, env: EnvRef, job_id: str) -> Call[JobInfo | None]:
        shard = self.shard_of(env)
        both = [keys.job(shard, env, job_id), keys.body(shard, env, job_id)]
        return Call(script("get"), both, [], lambda answer: _info(env, job_id, *answer))

    # What workers do

    def dequeue(self, shard: int, n: int, lease_ms: int, queues: Iterable[str] = ()) -> Call[list[LeasedJob]]:
        """Up to n jobs of the queues with these names, in every environment; of all queues if none is named."""
        return self._of_shard("dequeue", shard, [n, lease_ms, *map(keys.encode, queues)], _leased_jobs)

    def extend(self, shard: int, jobs: Iterable[LeasedJob], lease_ms: int) -> Call[list[bool]]:
        """For each job: extended (True), or the lease was lost (False)."""
        return self._of_shard("extend", shard, [lease_ms, *_flat(map(_held, jobs))], _flags)

    def ack(self, shard: int, done: Iterable[tuple[LeasedJob, int]], keep_ms: int = 0) -> Call[list[bool]]:
        """For each (job, run ms): applied (True), or the lease was lost (False)."""
        args = _flat((*_held(job), run_ms) for job, run_ms in done)
        return self._of_shard("ack", shard, [keep_ms, *args], _flags)

    def nack(self, shard: int, failed: Iterable[tuple[LeasedJob, int, str]]) -> Call[list[int]]:
        """For each (job, delay ms, error): 1 tried again later, 2 buried, 0 the lease was lost."""
        args = _flat((*_held(job), delay_ms, error) for job, delay_ms, error in failed)
        return self._of_shard("nack", shard, args, list)

    def bury(self, shard: int, failed: Iterable[tuple[LeasedJob, str]]) -> Call[list[bool]]:
        args = _flat((*_held(job), error) for job, error in failed)
        return self._of_shard("bury", shard, args, _flags)

    def giveback(self, shard: int, jobs: Iterable[LeasedJob]) -> Call[list[bool]]:
        return self._of_shard("giveback", shard, _flat(map(_held, jobs)), _flags)

    # What the sweeper does

    def reclaim(self, shard: int, at_most: int) -> Call[int]:
        return self._of_shard("reclaim", shard, [at_most], int)

    def release(self, shard: int, at_most: int) -> Call[int]:
        return self._of_shard("release", shard, [at_most], int)

    def expire(self, shard: int, at_most: int) -> Call[int]:
        return self._of_shard("expire", shard, [at_most], int)

    def tick(self, shard: int, period_ms: int) -> Call[bool]:
        return self._of_shard("tick", shard, [period_ms], bool)

    # What operators do

    def redrive(self, ref: QueueRef, which: DeadFilter, at_most: int, skip: int = 0) -> Call[Redriven | None]:
        """Looks at up to `at_most` dead jobs, oldest first, after the first `skip`. None: there is no such queue."""
        shard = self.shard_of(ref)
        since = "-inf" if which.buried_from_ms is None else which.buried_from_ms
        until = "+inf" if which.buried_until_ms is None else which.buried_until_ms
        args: list[Arg] = [*_parts(ref), at_most, skip, since, until, which.task, which.error]
        args += map(keys.encode, which.ids)
        return self._call("redrive", shard, keys.dead(shard, ref), args, _redriven)

    def configure(self, ref: QueueRef | EnvRef, fields: Mapping[str, Arg | None]) -> Call[bool]:
        """Set fields of a queue or an environment; None removes one. False: there is no such queue."""
        shard = self.shard_of(ref)
        if isinstance(ref, QueueRef):
            key, args = keys.queue(shard, ref), [*_parts(ref)]
        else:
            key, args = keys.env(shard, ref), [keys.env_part(ref), ""]
        pairs = _flat((name, "" if value is None else value) for name, value in fields.items())
        return self._call("configure", shard, key, [*args, *pairs], bool)

    def _of_shard(self, name: str, shard: int, args: Sequence[Arg], read: Callable[[Any], T]) -> Call[T]:
        return self._call(name, shard, keys.meta(shard), args, read)

    def _call(self, name: str, shard: int, key: str, args: Sequence[Arg], read: Callable[[Any], T]) -> Call[T]:
        return Call(script(name), [key], [keys.prefix(shard), self.stream_maxlen, *args], read)


def _parts(ref: QueueRef) -> tuple[str, str]:
    return keys.env_part(ref.environment), keys.encode(ref.queue)


def _held(job: LeasedJob) -> tuple[Arg, ...]:
    return keys.env_part(job.queue.environment), keys.encode(job.id), job.lease


def _flat(rows: Iterable[Iterable[Arg]]) -> list[Arg]:
    return [value for row in rows for value in row]


def _flags(answer: list[int]) -> list[bool]:
    return [flag == 1 for flag in answer]


def _state(answer: bytes | None) -> JobState | None:
    return None if answer is None else JobState(answer.decode())


def _redriven(answer: list[int]) -> Redriven | None:
    return Redriven(*answer) if answer else None


def _body(job: NewJob) -> bytes:
    """What stays the same for as long as the job lives. No name holds a control character, so these separate."""
    return "\t".join((job.id, job.task, job.flow, job.flow_type)).encode() + b"\n" + job.payload


def _leased_jobs(answer: tuple[list[list[bytes]], list[list[Any]]]) -> list[LeasedJob]:
    refs = [QueueRef(*(name.decode() for name in names)) for names in answer[0]]
    return [_leased_job(refs, *fields) for fields in answer[1]]


def _leased_job(
    refs: Sequence[QueueRef],
    number: int,
    body: bytes,
    attempt: int,
    max_attempts: int,
    lease: int,
    enqueued_at_ms: int,
    waited_ms: int,
) -> LeasedJob:
    header, _, payload = body.partition(b"\n")
    job_id, task, _, _ = header.decode().split("\t")
    return LeasedJob(refs[number - 1], job_id, task, payload, attempt, max_attempts, lease, enqueued_at_ms, waited_ms)


def _info(env: EnvRef, job_id: str, answer: list[bytes], body: bytes | None) -> JobInfo | None:
    if body is None:
        return None
    if not answer:
        return JobInfo(env, job_id, state=JobState.DONE)
    fields = dict(zip(answer[::2], answer[1::2], strict=True))
    header, _, payload = body.partition(b"\n")
    _, task, flow, flow_type = header.decode().split("\t")

    def number(name: bytes) -> int | None:
        return int(float(fields[name])) if name in fields else None

    return JobInfo(
        environment=env,
        id=job_id,
        state=JobState(fields[b"state"].decode()),
        queue=keys.decode(fields[b"Q"].decode()),
        task=task,
        payload=payload,
        flow=flow,
        flow_type=flow_type,
        priority=number(b"priority") or 0,
        attempts=number(b"attempts") or 0,
        max_attempts=number(b"max_attempts") or 0,
        enqueued_at_ms=number(b"enqueued"),
        due_at_ms=number(b"due"),
        expires_at_ms=number(b"expires"),
        error=fields[b"error"].decode() if b"error" in fields else None,
    )
