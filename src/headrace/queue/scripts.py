"""Typed stubs of the Lua scripts: one function per verb, its arguments in the signature."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from secrets import token_hex
from typing import Any, TypeVar

from headrace.model.event import lua_pack
from headrace.model.job import JobInfo, JobState, LeasedJob, NewJob
from headrace.model.names import EnvRef, QueueRef
from headrace.queue import keys
from headrace.valkey.scripts import Arg, Call, Script, load_script

T = TypeVar("T")

SCRIPTS = (
    *("enqueue", "dequeue", "extend", "ack", "nack", "bury", "reclaim", "requeue", "release", "expire", "cancel"),
    *("redrive", "configure", "get", "tick", "elect", "read_refill_state", "refill", "sync_cold", "leave_cold"),
    *("list_dead", "drop_dead", "resync", "maintain", "begin", "sync_settings_state", "restore_setting", "remove_dead"),
    *("repair", "share"),
)


@cache
def script(name: str) -> Script:
    folder = files("headrace.queue") / "lua"
    return load_script(folder, name, preamble=lua_pack(), finds_keys=True, on_failure="failure")


@dataclass(frozen=True)
class Caps:
    """How much may wait, be scheduled and run in Valkey: of one queue, and of a shard's payloads together (0: any)."""

    items: int = 5000
    bytes: int = 64 * 2**20
    shard_bytes: int = 2**30


DEFAULT_CAPS = Caps()
DEAD_BYTES = 8 * 2**20  # payloads of one page of dead jobs


@dataclass(frozen=True)
class Enqueued:
    """How an enqueue was answered."""

    valkey_epoch: int  # of the queue
    cold_epoch: int
    now_ms: float
    answers: Sequence[int]  # for each job one of those below
    postgres_id: str = ""  # of the PostgreSQL where jobs of the shard wait; empty: not known yet

    KNOWN, ACCEPTED, SPILL, SEND_WHOLE = 0, 1, 2, 3

    @property
    def accepted(self) -> list[bool]:
        return [answer == self.ACCEPTED for answer in self.answers]


@dataclass(frozen=True)
class Room:
    """What a mover must know of a queue."""

    now_ms: float
    valkey_epoch: int  # 0: Valkey does not know this queue
    cold: bool
    cold_epoch: int
    items: int  # that many fit
    bytes: int
    refill: bool  # below 90 %
    leave: bool  # at most 80 %: cold mode may end
    placed: int  # rows that were placed and may be in PostgreSQL still
    unconfirmed: Sequence[PlacedRow] = ()  # the same by name, if asked for


@dataclass(frozen=True)
class PlacedRow:
    """A row of PostgreSQL whose job is in Valkey."""

    seq: int
    job_id: str | None  # None: not known, placed by an earlier release


@dataclass(frozen=True)
class ColdRow:
    """A job as it waits in PostgreSQL."""

    seq: int
    job_id: str
    task: str
    flow: str
    flow_type: str
    payload: bytes
    size: int
    priority: int
    max_attempts: int
    enqueued_ms: int
    due_ms: float
    expires_ms: int | None
    delayed: bool


@dataclass(frozen=True)
class Refilled:
    valkey_epoch: int
    answers: Sequence[int]  # one of those below; of rows that found no room there is none

    PLACED, PLACED_BEFORE, ID_IN_USE, EXPIRED = 1, 0, -1, 2


@dataclass(frozen=True)
class ColdNumbers:
    """What PostgreSQL holds of a queue. Totals count from the queue's epoch in Valkey."""

    valkey_epoch: int
    version: int
    epoch: int
    waiting: int
    delayed: int
    bytes: int
    dead: int
    spilled: int
    expired: int
    cancelled: int
    redriven: int
    oldest_ms: float | None = None  # None: as it was


@dataclass(frozen=True)
class Settled:
    code: int
    valkey_epoch: int
    known_version: int

    OUTDATED, TAKEN, DRIFTED, OTHER_EPOCH = 0, 1, 2, 3


@dataclass(frozen=True)
class SettingsState:
    """Whether what operators decided was restored on a shard's server."""

    life: str  # changes when the server restarts or another one takes over
    restored_for: str  # the life for which it was; empty: none
    postgres_id: str  # of the PostgreSQL that has the record; empty: none is known


@dataclass(frozen=True)
class DeadRow:
    """A dead job as Valkey holds it."""

    job_id: str
    task: str
    flow: str
    flow_type: str
    payload: bytes
    size: int
    priority: int
    attempts: int
    max_attempts: int
    enqueued_ms: int
    buried_ms: int
    error: str


@dataclass(frozen=True)
class Maintained:
    """The answer to a maintenance call."""

    is_owner: bool  # False: another caller is, and nothing was done
    again_ms: int  # until the next call; 0: at once
    expired: int = 0
    reclaimed: int = 0
    released: int = 0
    ticked: bool = False
    to_repair: int = 0  # queues that a failed script left half changed
    quarantined: int = 0  # malformed entries taken out by this call


@dataclass(frozen=True)
class Repaired:
    queue: str  # its part of the key; empty: no queue needed it
    left: int  # queues that need it still


@dataclass(frozen=True)
class Redriven:
    moved: int
    looked_at: int
    remaining: int = 0  # of those looked at: they match, and the caps left no room


@dataclass(frozen=True)
class Resynced:
    cursor: int  # where to go on; 0: every queue was told of
    told: int


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
    caps: Caps = DEFAULT_CAPS

    def shard_of(self, ref: QueueRef | EnvRef) -> int:
        return (ref.environment if isinstance(ref, QueueRef) else ref).shard(self.shards)

    # What producers do

    def enqueue(
        self,
        ref: QueueRef,
        jobs: Sequence[NewJob],
        far_ms: int | None = None,
        cold_epoch: int = 0,
        *,
        whole: bool = True,
        counted: bool = False,
    ) -> Call[Enqueued]:
        """With `far_ms` jobs that do not fit, or are delayed by that much, are answered `SPILL`; without, refused.

        If not `whole`, Valkey is only asked where the jobs belong: where it takes them itself it says `SEND_WHOLE`.
        `counted` says that these jobs were answered before: the enqueue rate does not count them again."""
        shard = self.shard_of(ref)
        args: list[Arg] = [*_named(ref), *self._caps(), "" if far_ms is None else far_ms, cold_epoch]
        args += (int(whole), int(counted))
        for job in jobs:
            args += (keys.encode(job.id), len(job.payload), job.delay_ms)
            if whole:
                args += (body_of(job.id, job), job.priority, job.ttl_ms or 0, job.max_attempts)
        return self._call("enqueue", shard, keys.queue(shard, ref), args, _enqueued)

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

    def dequeue(
        self, shard: int, n: int, lease_ms: int, queues: Iterable[str] = (), *, look: str = ""
    ) -> Call[list[LeasedJob]]:
        """Up to n jobs of the queues with these names, in every environment; of all queues if none is named.

        `look` is "0" or "1" to be refused (SettingsNotRestored) if settings were not restored on this server; "1" makes
        sure that it is the same server as before."""
        nonce = token_hex(4)  # new for every call: not even two leases of one process share a token
        return self._of_shard("dequeue", shard, [n, lease_ms, nonce, look, *map(keys.encode, queues)], _leased_jobs)

    def begin(self, shard: int, jobs: Iterable[LeasedJob]) -> Call[list[bool]]:
        """Before jobs run at their last attempt. For each: begun (True), or the lease was lost (False)."""
        return self._of_shard("begin", shard, _flat(map(_held, jobs)), _flags)

    def extend(self, shard: int, jobs: Iterable[LeasedJob], lease_ms: int) -> Call[list[bool]]:
        """For each job: extended (True), or the lease was lost (False)."""
        return self._of_shard("extend", shard, [lease_ms, *_flat(map(_held, jobs))], _flags)

    def ack(self, shard: int, done: Iterable[tuple[LeasedJob, int]], keep_ms: int = 0) -> Call[list[bool]]:
        """For each (job, run ms): applied (True), or the lease was lost (False)."""
        args = _flat((*_held(job), run_ms) for job, run_ms in done)
        return self._of_shard("ack", shard, [keep_ms, *args], _flags)

    def nack(self, shard: int, failed: Iterable[tuple[LeasedJob, int, str]]) -> Call[list[int]]:
        """For each (job, delay ms, error): 1 tried again later, 2 buried, 0 the lease was lost."""
        args = _flat((*_held(job), delay_ms, _told(error)) for job, delay_ms, error in failed)
        return self._of_shard("nack", shard, args, list)

    def bury(self, shard: int, failed: Iterable[tuple[LeasedJob, str]]) -> Call[list[bool]]:
        args = _flat((*_held(job), _told(error)) for job, error in failed)
        return self._of_shard("bury", shard, args, _flags)

    def giveback(self, shard: int, jobs: Iterable[LeasedJob]) -> Call[list[bool]]:
        return self._of_shard("requeue", shard, _flat(map(_held, jobs)), _flags)

    # What time demands

    def maintain(
        self, shard: int, caller: str, ownership_ms: int, at_most: int, tick_period_ms: int
    ) -> Call[Maintained]:
        """Expire, reclaim and release up to `at_most` jobs each, and tick, unless another caller is the owner."""
        args = [caller, ownership_ms, at_most, tick_period_ms]
        return self._of_shard("maintain", shard, args, _maintained)

    def repair(self, shard: int) -> Call[Repaired]:
        """Put right one queue that a failed script left half changed, if there is one."""
        return self._of_shard("repair", shard, [], lambda answer: Repaired(answer[0].decode(), answer[1]))

    def reclaim(self, shard: int, at_most: int) -> Call[int]:
        return self._of_shard("reclaim", shard, [at_most], int)

    def release(self, shard: int, at_most: int) -> Call[int]:
        return self._of_shard("release", shard, [at_most], int)

    def expire(self, shard: int, at_most: int) -> Call[int]:
        return self._of_shard("expire", shard, [at_most], int)

    def tick(self, shard: int, period_ms: int) -> Call[bool]:
        return self._of_shard("tick", shard, [period_ms], bool)

    # What readers of the metric events do

    def resync(self, shard: int, cursor: int, about: int) -> Call[Resynced]:
        """About as many queues from a cursor on; the first is 0."""
        return self._of_shard("resync", shard, [cursor, about], lambda answer: Resynced(int(answer[0]), answer[1]))

    # What movers do

    def elect(self, shard: int, name: str, lease_ms: int) -> Call[int]:
        """The fencing token if `name` moves the jobs of this shard from now on, or still; else 0."""
        return Call(script("elect"), [keys.mover(shard), keys.meta(shard)], [name, lease_ms], int)

    def room(self, ref: QueueRef, *, name_placed: bool = False) -> Call[Room]:
        return self._of_queue("read_refill_state", ref, [*_parts(ref), *self._caps(), int(name_placed)], _room)

    def refill(
        self, ref: QueueRef, token: int, until_ms: float, rows: Iterable[ColdRow], postgres_id: str = ""
    ) -> Call[Refilled]:
        """Refused after `until_ms`, by Valkey's clock: the lock under which the rows were claimed may be gone then."""
        args: list[Arg] = [token, int(until_ms), *_named(ref), *self._caps(), postgres_id]
        for row in rows:
            args += (row.seq, keys.encode(row.job_id), body_of(row.job_id, row), row.size, row.enqueued_ms)
            args += (repr(row.due_ms), row.priority, "" if row.expires_ms is None else row.expires_ms)
            args += (row.max_attempts, int(row.delayed))
        return self._of_queue("refill", ref, args, _refilled)

    def settle(
        self, ref: QueueRef, numbers: ColdNumbers, gone: Iterable[int] = (), postgres_id: str = ""
    ) -> Call[Settled]:
        """Tell Valkey what PostgreSQL holds; `gone` are rows that are deleted there for certain."""
        told = (numbers.valkey_epoch, numbers.version, numbers.epoch, numbers.waiting, numbers.delayed, numbers.bytes)
        totals = (numbers.dead, numbers.spilled, numbers.expired, numbers.cancelled, numbers.redriven)
        oldest = "" if numbers.oldest_ms is None else repr(numbers.oldest_ms)
        args: list[Arg] = [*_named(ref), self.caps.items, self.caps.bytes, *told, *totals, oldest]
        args += (postgres_id, *gone)
        return self._of_queue("sync_cold", ref, args, lambda answer: Settled(*map(int, answer)))

    def reopen(self, ref: QueueRef, token: int, closed_epoch: int, next_epoch: int) -> Call[bool]:
        return self._of_queue("leave_cold", ref, [token, *_parts(ref), closed_epoch, next_epoch], bool)

    def dead(self, ref: QueueRef, at_most: int, at_most_bytes: int = DEAD_BYTES) -> Call[list[DeadRow]]:
        """Up to so many; fewer if their payloads reach that many bytes."""
        shard = self.shard_of(ref)
        args = [*_parts(ref), at_most, at_most_bytes]
        return self._call("list_dead", shard, keys.dead(shard, ref), args, _dead_rows)

    def forget(self, ref: QueueRef, rows: Iterable[DeadRow], keep_ms: int) -> Call[int]:
        """Their ids stay taken for `keep_ms`."""
        shard = self.shard_of(ref)
        args = _flat((keys.encode(row.job_id), row.buried_ms) for row in rows)
        return self._call("drop_dead", shard, keys.dead(shard, ref), [*_parts(ref), keep_ms, *args], int)

    # What operators do

    def redrive(self, ref: QueueRef, which: DeadFilter, at_most: int, skip: int = 0) -> Call[Redriven | None]:
        """Looks at up to `at_most` dead jobs, oldest first, after the first `skip`. None: there is no such queue."""
        return self._on_dead("redrive", ref, which, at_most, skip)

    def remove_dead(self, ref: QueueRef, which: DeadFilter, at_most: int, skip: int = 0) -> Call[Redriven | None]:
        """Delete dead jobs that Valkey holds; counts as `redrive` does, with `moved` for removed."""
        return self._on_dead("remove_dead", ref, which, at_most, skip)

    def _on_dead(self, name: str, ref: QueueRef, which: DeadFilter, at_most: int, skip: int) -> Call[Redriven | None]:
        shard = self.shard_of(ref)
        since = "-inf" if which.buried_from_ms is None else which.buried_from_ms
        until = "+inf" if which.buried_until_ms is None else which.buried_until_ms
        args: list[Arg] = [*_parts(ref), at_most, skip, since, until, which.task, which.error, *self._caps()]
        args += map(keys.encode, which.ids)
        return self._call(name, shard, keys.dead(shard, ref), args, _redriven)

    def share(self, env: EnvRef, round_: int, words: Sequence[str]) -> Call[list[str] | None]:
        """Let an environment use this much of the quotas of its project and organisation, or what it uses now if that
        is more; returns the words in force (see queue/quotas.py). None: a later round was there before."""
        shard = self.shard_of(env)

        def read(answer: list[Any]) -> list[str] | None:
            return [word.decode() for word in answer[1:]] if answer[0] else None

        return self._call("share", shard, keys.env(shard, env), [keys.env_part(env), round_, *words], read)

    def settings(self, shard: int, restored_for: str = "") -> Call[SettingsState]:
        """Ask whether settings were restored on this server; or note for which life of it they were."""

        def read(answer: list[bytes]) -> SettingsState:
            return SettingsState(*(part.decode() for part in answer))

        return self._of_shard("sync_settings_state", shard, [restored_for], read)

    def restore(self, ref: QueueRef | EnvRef, name: str, value: str | None) -> Call[bool]:
        """Set a field as PostgreSQL has it; a queue that Valkey does not know comes into being."""
        shard = self.shard_of(ref)
        if isinstance(ref, QueueRef):
            key, args = keys.queue(shard, ref), [*_named(ref)]
        else:
            key, args = keys.env(shard, ref), [keys.env_part(ref), "", ref.org, ref.project, ref.env, ""]
        return self._call("restore_setting", shard, key, [*args, name, value or ""], bool)

    def configure(self, ref: QueueRef | EnvRef, fields: Mapping[str, Arg | None]) -> Call[bool]:
        """Set fields of a queue or an environment; None removes one. False: there is no such queue."""
        shard = self.shard_of(ref)
        if isinstance(ref, QueueRef):
            key, args = keys.queue(shard, ref), [*_parts(ref)]
        else:
            key, args = keys.env(shard, ref), [keys.env_part(ref), ""]
        pairs = _flat((name, "" if value is None else value) for name, value in fields.items())
        return self._call("configure", shard, key, [*args, *pairs], bool)

    def _caps(self) -> tuple[int, int, int]:
        return self.caps.items, self.caps.bytes, self.caps.shard_bytes

    def _of_queue(self, name: str, ref: QueueRef, args: Sequence[Arg], read: Callable[[Any], T]) -> Call[T]:
        shard = self.shard_of(ref)
        return self._call(name, shard, keys.queue(shard, ref), args, read)

    def _of_shard(self, name: str, shard: int, args: Sequence[Arg], read: Callable[[Any], T]) -> Call[T]:
        return self._call(name, shard, keys.meta(shard), args, read)

    def _call(self, name: str, shard: int, key: str, args: Sequence[Arg], read: Callable[[Any], T]) -> Call[T]:
        return Call(script(name), [key], [keys.prefix(shard), self.stream_maxlen, *args], read)


def _parts(ref: QueueRef) -> tuple[str, str]:
    return keys.env_part(ref.environment), keys.encode(ref.queue)


def _named(ref: QueueRef) -> tuple[str, ...]:
    return *_parts(ref), ref.org, ref.project, ref.env, ref.queue


def _held(job: LeasedJob) -> tuple[Arg, ...]:
    return keys.env_part(job.queue.environment), keys.encode(job.id), job.lease


def _told(error: str) -> bytes:
    """An error may quote anything, halves of characters too: whoever reports one must not fail for that."""
    return error.encode(errors="backslashreplace")


def _flat(rows: Iterable[Iterable[Arg]]) -> list[Arg]:
    return [value for row in rows for value in row]


def _flags(answer: list[int]) -> list[bool]:
    return [flag == 1 for flag in answer]


def _state(answer: bytes | None) -> JobState | None:
    return None if answer is None else JobState(answer.decode())


def _redriven(answer: list[int]) -> Redriven | None:
    return Redriven(*answer) if answer else None


def body_of(job_id: str, job: NewJob | ColdRow) -> bytes:
    """What stays the same for as long as the job lives. No name holds a control character, so these separate."""
    return "\t".join((job_id, job.task, job.flow, job.flow_type)).encode() + b"\n" + job.payload


def split_body(body: bytes) -> tuple[list[str], bytes]:
    """(id, task, flow, flow type), payload"""
    header, _, payload = body.partition(b"\n")
    return header.decode().split("\t"), payload


def _maintained(answer: list[int]) -> Maintained:
    is_owner, again_ms, expired, reclaimed, released, ticked, to_repair, quarantined = answer
    return Maintained(bool(is_owner), again_ms, expired, reclaimed, released, bool(ticked), to_repair, quarantined)


def _enqueued(answer: list[Any]) -> Enqueued:
    return Enqueued(int(answer[0]), answer[1], float(answer[2]), answer[3], answer[4].decode())


def _room(answer: list[Any]) -> Room:
    now_ms, epoch, cold, cold_epoch, items, size, refill, leave, placed, named = answer
    flags = bool(refill), bool(leave)
    pairs = zip(named[::2], named[1::2], strict=True)
    unconfirmed = [PlacedRow(int(row), keys.decode(job.decode()) if job else None) for row, job in pairs]
    return Room(float(now_ms), int(epoch), bool(cold), cold_epoch, items, size, *flags, placed, unconfirmed)


def _refilled(answer: list[Any]) -> Refilled:
    return Refilled(int(answer[0]), answer[1])


def _dead_rows(answer: list[list[bytes]]) -> list[DeadRow]:
    return [_dead_row(*fields) for fields in answer]


def _dead_row(_: bytes, buried: bytes, body: bytes, *fields: bytes) -> DeadRow:
    (job_id, task, flow, flow_type), payload = split_body(body)
    enqueued, priority, attempts, max_attempts, size = map(int, fields[:5])
    error = fields[5].decode(errors="replace").replace("\0", "\\x00")  # the one character PostgreSQL does not take
    return DeadRow(
        *(job_id, task, flow, flow_type, payload, size, priority, attempts, max_attempts, enqueued),
        *(int(buried), error),
    )


def _leased_jobs(answer: tuple[list[list[bytes]], list[list[Any]]]) -> list[LeasedJob]:
    refs = [QueueRef(*(name.decode() for name in names)) for names in answer[0]]
    return [_leased_job(refs, *fields) for fields in answer[1]]


def _leased_job(
    refs: Sequence[QueueRef],
    number: int,
    body: bytes,
    attempt: int,
    max_attempts: int,
    lease: bytes,
    enqueued_at_ms: int,
    waited_ms: int,
) -> LeasedJob:
    (job_id, task, _, _), payload = split_body(body)
    ref, token = refs[number - 1], lease.decode()
    return LeasedJob(ref, job_id, task, payload, attempt, max_attempts, token, enqueued_at_ms, waited_ms)


def _info(env: EnvRef, job_id: str, answer: list[bytes], body: bytes | None) -> JobInfo | None:
    if body is None or (not answer and body):
        return None  # a body without fields: dead, and PostgreSQL has it
    if not answer:
        return JobInfo(env, job_id, state=JobState.DONE)
    fields = dict(zip(answer[::2], answer[1::2], strict=True))
    (_, task, flow, flow_type), payload = split_body(body)

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
