"""Typed stubs of the Lua scripts: one method per verb. Each returns a `ScriptCall`, which the client runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from secrets import token_hex
from typing import Any, Literal, NamedTuple, TypeVar

from headrace.model.envelope import open_payload, split_flow_type
from headrace.model.event import generate_event_lua
from headrace.model.job import MAX_RECORD_BYTES, AttemptRecord, JobInfo, JobLeaseState, JobState, LeasedJob, NewJob
from headrace.model.names import EnvRef, QueueRef
from headrace.queue import keys
from headrace.queue.validate import MAX_DELAY_MS
from headrace.valkey.scripts import Arg, Script, ScriptCall, flatten_args, load_script, parse_flags

T = TypeVar("T")

SCRIPTS = (
    *("enqueue", "dequeue", "extend", "ack", "nack", "bury", "reclaim", "requeue", "release", "expire", "cancel"),
    *("redrive", "configure", "get", "tick", "elect", "read_refill_state", "refill", "sync_cold", "leave_cold"),
    *("list_dead", "drop_dead", "resync", "maintain", "begin", "sync_settings_state", "restore_setting", "remove_dead"),
    *("repair", "share", "defer", "reserve_ids", "settle_ids", "read_attempts"),
)


@cache
def script(name: str) -> Script:
    folder = files("headrace.queue") / "lua"
    return load_script(folder, name, preamble=generate_event_lua(), finds_keys=True, on_failure="failure")


@dataclass(frozen=True)
class WarmCaps:
    """Limits of waiting, scheduled and running jobs in Valkey."""

    items: int = 5000  # jobs of one queue
    bytes: int = 64 * 2**20  # payload bytes of one queue
    shard_bytes: int = 2**30  # payload bytes of one shard; 0: no limit


DEFAULT_CAPS = WarmCaps()
MAX_ENQUEUE_PREFIXES = 1024  # queues whose constant arguments are kept
MAX_EXCLUDED_TASKS = 50

Records = Mapping[str, AttemptRecord]
"""Records of ended attempts, by lease."""

NO_RECORDS: Records = {}
DEAD_BYTES = 8 * 2**20  # payload bytes of one page of dead jobs
MAX_ID_BYTES = 64 * 2**20  # registered ids of one shard, see lua/cold_ids.lua


class EnqueueArgs:
    """Positions in the arguments of an enqueue call, from 0. The arguments before FIRST_JOB concern all jobs."""

    WITH_BODIES, COUNTED, FIRST_JOB = 13, 14, 15

    MERGED = 2
    """Value of COUNTED for calls of several callers that are sent as one (coalesce.py): a refusal is not counted."""

    @staticmethod
    def count_per_job(args: Sequence[Arg]) -> int:
        return 7 if args[EnqueueArgs.WITH_BODIES] else 3


class EnqueueResult(NamedTuple):
    valkey_epoch: int  # when the queue's state in Valkey was created
    cold_epoch: int
    now_ms: float
    answers: Sequence[int]  # for each job one of the codes below
    postgres_id: str = ""  # id of the PostgreSQL where jobs of the shard wait; empty: not known yet

    DUPLICATE, ACCEPTED, SPILL, SEND_BODY = 0, 1, 2, 3

    @property
    def accepted(self) -> list[bool]:
        return [answer == self.ACCEPTED for answer in self.answers]


@dataclass(frozen=True)
class RefillState:
    """State of a queue's warm tier that the mover reads before it moves rows."""

    now_ms: float
    valkey_epoch: int  # 0: the queue does not exist in Valkey
    cold_mode: bool
    cold_epoch: int
    items: int  # jobs that still fit
    bytes: int  # bytes that still fit
    needs_refill: bool  # less than 90 % full
    may_leave_cold: bool  # at most 80 % full: cold mode may end
    placed: int  # number of rows that were placed and may still be in PostgreSQL
    unconfirmed: Sequence[PlacedRow] = ()  # these rows, if requested with `name_placed`


@dataclass(frozen=True)
class PlacedRow:
    """A row of PostgreSQL whose job is in Valkey."""

    seq: int
    job_id: str | None  # None: unknown, because an earlier release placed it


@dataclass(frozen=True, kw_only=True)
class JobRow:
    """Fields of every job that moves between Valkey and PostgreSQL, as they are stored: the flow type may have the mark
    of an envelope."""

    job_id: str
    task: str
    flow: str
    flow_type: str
    payload: bytes
    size: int
    priority: int
    max_attempts: int
    enqueued_ms: int

    @property
    def stored_flow_type(self) -> str:
        return self.flow_type


@dataclass(frozen=True, kw_only=True)
class ColdRow(JobRow):
    """A waiting or delayed job in PostgreSQL."""

    seq: int
    due_ms: float
    expires_ms: int | None
    delayed: bool


@dataclass(frozen=True)
class RefillResult:
    valkey_epoch: int
    answers: Sequence[int]  # one of the codes below per row; shorter than the rows if the last ones did not fit

    PLACED, PLACED_BEFORE, ID_IN_USE, EXPIRED = 1, 0, -1, 2


class IdChange(NamedTuple):
    """A change of a registered id, see lua/settle_ids.lua."""

    job_id: str
    token: str
    change: Literal["confirm", "remove", "pend", "set"]


@dataclass(frozen=True)
class ColdCounters:
    """Counters of a queue in PostgreSQL. Totals count from the queue's epoch in Valkey."""

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
    oldest_ms: float | None = None  # None: unchanged
    freed_ids: Sequence[tuple[str, str]] = ()  # chosen ids, with tokens, of which PostgreSQL has no job any more


@dataclass(frozen=True)
class ColdSyncResult:
    code: int
    valkey_epoch: int
    known_version: int

    OUTDATED, APPLIED, DRIFTED, OTHER_EPOCH = 0, 1, 2, 3


@dataclass(frozen=True)
class SettingsState:
    """Whether the settings of operators were restored on a shard's server."""

    life: str  # changes when the server restarts or another one replaces it
    restored_for: str  # the life for which they were restored; empty: none
    postgres_id: str  # id of the PostgreSQL that has the record; empty: not known


@dataclass(frozen=True, kw_only=True)
class DeadRow(JobRow):
    """A dead job in Valkey."""

    attempts: int
    buried_ms: int
    error: str


@dataclass(frozen=True)
class MaintainResult:
    is_owner: bool  # False: another process is the owner, and nothing was done
    next_call_ms: int  # until the next call; 0: at once
    expired: int = 0
    reclaimed: int = 0
    released: int = 0
    ticked: bool = False
    to_repair: int = 0  # queues that a failed script left half changed
    quarantined: int = 0  # malformed entries removed by this call


@dataclass(frozen=True)
class RepairResult:
    queue: str  # key part of the repaired queue; empty: no queue needed repair
    remaining: int  # queues that still need repair


@dataclass(frozen=True)
class RedriveResult:
    moved: int
    examined: int
    remaining: int = 0  # examined jobs that match but exceed the caps


@dataclass(frozen=True)
class Deferral:
    """A job that a worker gives back because it cannot run it now."""

    job: LeasedJob
    min_delay_ms: int
    max_delay_ms: int  # the delay grows up to this with the time since the job was first deferred
    reason: str = ""  # error of the job if it is buried
    bury_after_ms: int = 0  # time since the first deferral after which it is buried; 0: never
    missing_task: str = ""  # name of the task if the worker does not have it; empty: deferred for another reason

    DEFERRED, BURIED, LOST = 1, 2, 0


class LeasedJobs(list[LeasedJob]):
    """The jobs that one dequeue leased. `has_more`: it left jobs that the caller could have leased. `rejected`: jobs
    that were leased but cannot run, and why."""

    has_more = False
    rejected: Sequence[tuple[LeasedJob, str]] = ()


@dataclass(frozen=True)
class ResyncResult:
    cursor: int  # for the next call; 0: all queues are done
    events: int


@dataclass(frozen=True)
class DeadFilter:
    """Filter of dead jobs. Empty fields match everything."""

    ids: Sequence[str] = ()
    task: str = ""
    error: str = ""  # text that the error contains
    buried_from_ms: int | None = None
    buried_until_ms: int | None = None


@dataclass(frozen=True)
class Stubs:
    """Script calls for a queue with `shards` shards whose metric streams hold about `stream_maxlen` events."""

    shards: int
    stream_maxlen: int
    caps: WarmCaps = DEFAULT_CAPS
    _enqueue_prefixes: dict[QueueRef, tuple[str, tuple[Arg, ...]]] = field(
        default_factory=dict[QueueRef, tuple[str, tuple[Arg, ...]]], init=False, repr=False, compare=False
    )

    def find_shard(self, ref: QueueRef | EnvRef) -> int:
        return (ref.environment if isinstance(ref, QueueRef) else ref).shard(self.shards)

    # Producers

    def enqueue(
        self,
        ref: QueueRef,
        jobs: Sequence[NewJob],
        far_ms: int | None = None,
        cold_epoch: int = 0,
        *,
        with_bodies: bool = True,
        counted: bool = False,
    ) -> ScriptCall[EnqueueResult]:
        """Enqueue jobs. With `far_ms`, jobs that do not fit or are delayed by at least that long are answered `SPILL`;
        with None (no PostgreSQL) the call is refused if they do not fit.

        With `with_bodies=False` only ids, sizes and delays are sent, and jobs that belong in Valkey are answered
        `SEND_BODY`. With `counted=True` the enqueue rate does not count these jobs, because an earlier call did."""
        key, constant_args = self._enqueue_prefixes.get(ref) or self._build_enqueue_prefix(ref)
        args = [*constant_args, "" if far_ms is None else far_ms, cold_epoch, int(with_bodies), int(counted)]
        for job in jobs:
            args += (keys.encode(job.id), len(job.payload), job.delay_ms)
            if with_bodies:
                args += (encode_body(job.id, job), job.priority, job.ttl_ms or 0, job.max_attempts)
        return ScriptCall(script("enqueue"), [key], args, _parse_enqueue)

    def _build_enqueue_prefix(self, ref: QueueRef) -> tuple[str, tuple[Arg, ...]]:
        """Return the key and the first arguments of an enqueue call, which depend only on the queue, and keep them."""
        shard = self.find_shard(ref)
        args = (keys.prefix(shard), self.stream_maxlen, *_queue_args(ref), *self._caps_args())
        if len(self._enqueue_prefixes) >= MAX_ENQUEUE_PREFIXES:
            self._enqueue_prefixes.clear()
        self._enqueue_prefixes[ref] = prefix = keys.queue(shard, ref), args
        return prefix

    def cancel(self, env: EnvRef, job_id: str, *, running: bool = False) -> ScriptCall[JobState | None]:
        """Cancel a job if it is ready or scheduled; with `running`, mark it if it runs. Return the state it was in;
        None if there is no such job."""
        shard = self.find_shard(env)
        args = [keys.job_part(env, job_id), int(running)]
        return self._call("cancel", shard, keys.job(shard, env, job_id), args, _parse_state)

    def get(self, env: EnvRef, job_id: str) -> ScriptCall[JobInfo | None]:
        shard = self.find_shard(env)
        both = [keys.job(shard, env, job_id), keys.body(shard, env, job_id)]
        return ScriptCall(script("get"), both, [], lambda answer: _parse_job_info(env, job_id, *answer))

    def read_attempts(self, env: EnvRef, job_id: str) -> ScriptCall[list[bytes]]:
        """Read the bodies of the records of a job's attempts, oldest first."""
        shard = self.find_shard(env)
        args = [keys.job_part(env, job_id)]
        return self._call("read_attempts", shard, keys.job(shard, env, job_id), args, _parse_attempts)

    # Workers

    def dequeue(
        self,
        shard: int,
        n: int,
        lease_ms: int,
        queues: Iterable[str] = (),
        *,
        look: str = "",
        excluded_tasks: Mapping[str, bool] | None = None,
    ) -> ScriptCall[LeasedJobs]:
        """Lease up to n jobs of the queues with these names, in every environment; of all queues if none is given.

        Jobs of `excluded_tasks`, at most MAX_EXCLUDED_TASKS, are skipped: they stay ready for other workers. The search
        is bounded, so that jobs behind hundreds of skipped ones may not be found. The value of a task is whether it is
        orphaned: no live worker has it. If the search finds no other job, it leases up to ten jobs of orphaned tasks
        that have waited for more than 5 s: the caller defers them.

        With `look` "0" or "1" the call is refused (SettingsNotRestored) if settings were not restored on this server;
        "1" also checks that it is still the same server."""
        nonce = token_hex(4)  # unique per call: no two leases share a token, even within one process
        excluded = sorted((excluded_tasks or {}).items(), key=lambda each: not each[1])[:MAX_EXCLUDED_TASKS]
        orphaned = sum(is_orphaned for _, is_orphaned in excluded)
        names = (task for task, _ in excluded)
        args = [n, lease_ms, nonce, look, len(excluded), orphaned, *names, *map(keys.encode, queues)]
        return self._call_for_shard("dequeue", shard, args, _parse_leased_jobs)

    def begin(self, shard: int, jobs: Iterable[LeasedJob]) -> ScriptCall[list[bool]]:
        """Record that jobs start their last attempt. Return for each: True, or False if the lease was lost."""
        return self._call_for_shard("begin", shard, flatten_args(map(_lease_args, jobs)), parse_flags)

    def extend(
        self, shard: int, jobs: Sequence[LeasedJob], lease_ms: int, progress: Mapping[str, str] | None = None
    ) -> ScriptCall[list[JobLeaseState]]:
        """Extend leases. Return the state of each. `progress` has the new texts of some jobs, by lease."""
        args = [lease_ms, len(jobs), *flatten_args(map(_lease_args, jobs))]
        if progress:
            texts = ((number, progress.get(job.lease)) for number, job in enumerate(jobs, start=1))
            args += flatten_args((number, _encode_text(text)) for number, text in texts if text is not None)
        return self._call_for_shard("extend", shard, args, lambda answer: list(map(JobLeaseState, answer)))

    def ack(
        self, shard: int, done: Sequence[tuple[LeasedJob, int]], keep_ms: int = 0, records: Records = NO_RECORDS
    ) -> ScriptCall[list[bool]]:
        """Acknowledge jobs, given as (job, run ms). Return for each: True, or False if the lease was lost. The ids stay
        known as done for `keep_ms`. Records of these jobs are kept if they fit."""
        args = flatten_args((*_lease_args(job), run_ms) for job, run_ms in done)
        kept = self._record_args([job for job, _ in done], records)
        return self._call_for_shard("ack", shard, [keep_ms, len(done), *args, *kept], parse_flags)

    def nack(
        self, shard: int, failed: Sequence[tuple[LeasedJob, int, str]], records: Records = NO_RECORDS
    ) -> ScriptCall[list[int]]:
        """Report failed jobs, given as (job, retry delay ms, error). Return for each: 1 retried later, 2 buried, 0 the
        lease was lost. Records of these jobs are kept if they fit."""
        args = flatten_args((*_lease_args(job), delay_ms, _encode_text(error)) for job, delay_ms, error in failed)
        kept = self._record_args([job for job, _, _ in failed], records)
        return self._call_for_shard("nack", shard, [len(failed), *args, *kept], list)

    def bury(
        self, shard: int, failed: Sequence[tuple[LeasedJob, str]], records: Records = NO_RECORDS
    ) -> ScriptCall[list[bool]]:
        """Bury jobs, given as (job, error). Return for each: True, or False if the lease was lost. Records of these
        jobs are kept if they fit."""
        args = flatten_args((*_lease_args(job), _encode_text(error)) for job, error in failed)
        kept = self._record_args([job for job, _ in failed], records)
        return self._call_for_shard("bury", shard, [len(failed), *args, *kept], parse_flags)

    def _record_args(self, jobs: Sequence[LeasedJob], records: Records) -> list[Arg]:
        """Return the arguments for those records that belong to the jobs (see lua/records.lua)."""
        if not records:
            return []
        args: list[Arg] = [self.caps.bytes, self.caps.shard_bytes]
        for number, job in enumerate(jobs, start=1):
            if (record := records.get(job.lease)) is not None:
                size, ttl_ms = len(record.body), min(max(0, record.ttl_ms), MAX_DELAY_MS)
                args += (number, ttl_ms, size, record.body if size <= MAX_RECORD_BYTES else b"")
        return args if len(args) > 2 else []

    def requeue(self, shard: int, jobs: Iterable[LeasedJob]) -> ScriptCall[list[bool]]:
        """Return jobs to their queues without using an attempt. Return for each: True, or False if the lease was
        lost."""
        return self._call_for_shard("requeue", shard, flatten_args(map(_lease_args, jobs)), parse_flags)

    def defer(self, shard: int, deferrals: Iterable[Deferral]) -> ScriptCall[list[int]]:
        """Give jobs back without using an attempt, to run after a delay. Return for each one of the codes of
        `Deferral`."""
        args = flatten_args(
            (
                *_lease_args(each.job),
                *(each.min_delay_ms, each.max_delay_ms, each.bury_after_ms),
                *(each.missing_task, _encode_text(each.reason)),
            )
            for each in deferrals
        )
        return self._call_for_shard("defer", shard, args, list)

    # Maintenance

    def maintain(
        self, shard: int, caller: str, ownership_ms: int, at_most: int, tick_period_ms: int
    ) -> ScriptCall[MaintainResult]:
        """Expire, reclaim and release up to `at_most` jobs each, and tick, unless another process is the owner."""
        args = [caller, ownership_ms, at_most, tick_period_ms]
        return self._call_for_shard("maintain", shard, args, _parse_maintain)

    def repair(self, shard: int) -> ScriptCall[RepairResult]:
        """Repair one queue that a failed script left half changed, if there is one."""
        return self._call_for_shard("repair", shard, [], lambda answer: RepairResult(answer[0].decode(), answer[1]))

    def reclaim(self, shard: int, at_most: int) -> ScriptCall[int]:
        return self._call_for_shard("reclaim", shard, [at_most], int)

    def release(self, shard: int, at_most: int) -> ScriptCall[int]:
        return self._call_for_shard("release", shard, [at_most], int)

    def expire(self, shard: int, at_most: int) -> ScriptCall[int]:
        return self._call_for_shard("expire", shard, [at_most], int)

    def tick(self, shard: int, period_ms: int) -> ScriptCall[bool]:
        return self._call_for_shard("tick", shard, [period_ms], bool)

    # Readers of the metric events

    def resync(self, shard: int, cursor: int, about: int) -> ScriptCall[ResyncResult]:
        """Write resync events of about this many queues. The first cursor is 0."""
        return self._call_for_shard(
            "resync", shard, [cursor, about], lambda answer: ResyncResult(int(answer[0]), answer[1])
        )

    # Movers

    def elect(self, shard: int, name: str, lease_ms: int) -> ScriptCall[int]:
        """Acquire or renew the leadership of a shard. Return the fencing token, or 0 if another mover leads."""
        return ScriptCall(script("elect"), [keys.mover(shard), keys.meta(shard)], [name, lease_ms], int)

    def read_refill_state(self, ref: QueueRef, *, name_placed: bool = False) -> ScriptCall[RefillState]:
        return self._call_for_queue(
            "read_refill_state", ref, [*_key_parts(ref), *self._caps_args(), int(name_placed)], _parse_refill_state
        )

    def refill(
        self, ref: QueueRef, token: int, until_ms: float, rows: Iterable[ColdRow], postgres_id: str = ""
    ) -> ScriptCall[RefillResult]:
        """Place rows of PostgreSQL in Valkey. Refused after `until_ms`, by Valkey's clock, because the lock under which
        the rows were claimed may have ended by then."""
        args: list[Arg] = [token, int(until_ms), *_queue_args(ref), *self._caps_args(), postgres_id]
        for row in rows:
            args += (row.seq, keys.encode(row.job_id), encode_body(row.job_id, row), row.size, row.enqueued_ms)
            args += (repr(row.due_ms), row.priority, "" if row.expires_ms is None else row.expires_ms)
            args += (row.max_attempts, int(row.delayed))
        return self._call_for_queue("refill", ref, args, lambda answer: RefillResult(int(answer[0]), answer[1]))

    def sync_cold(
        self, ref: QueueRef, counters: ColdCounters, deleted_rows: Iterable[int] = (), postgres_id: str = ""
    ) -> ScriptCall[ColdSyncResult]:
        """Set the cold counters in Valkey to those of PostgreSQL. `deleted_rows` are rows whose deletion is
        committed."""
        state = (counters.valkey_epoch, counters.version, counters.epoch)
        gauges = (counters.waiting, counters.delayed, counters.bytes)
        totals = (counters.dead, counters.spilled, counters.expired, counters.cancelled, counters.redriven)
        oldest = "" if counters.oldest_ms is None else repr(counters.oldest_ms)
        args: list[Arg] = [*_queue_args(ref), self.caps.items, self.caps.bytes, *state, *gauges, *totals, oldest]
        args += (postgres_id, *deleted_rows)
        return self._call_for_queue("sync_cold", ref, args, lambda answer: ColdSyncResult(*map(int, answer)))

    def leave_cold(self, ref: QueueRef, token: int, closed_epoch: int, next_epoch: int) -> ScriptCall[bool]:
        return self._call_for_queue("leave_cold", ref, [token, *_key_parts(ref), closed_epoch, next_epoch], bool)

    def reserve_ids(
        self, env: EnvRef, ids: Iterable[str], token: str, max_bytes: int = MAX_ID_BYTES
    ) -> ScriptCall[list[str]]:
        """Register ids of jobs that are about to be committed in PostgreSQL. Return those that jobs in Valkey have; if
        there are any, none is registered."""
        shard = self.find_shard(env)
        args = [keys.env_part(env), max_bytes, token, *map(keys.encode, ids)]
        return self._call("reserve_ids", shard, keys.env(shard, env), args, _parse_ids)

    def settle_ids(
        self, env: EnvRef, changes: Iterable[IdChange], max_bytes: int = MAX_ID_BYTES
    ) -> ScriptCall[tuple[int, int]]:
        """Change registered ids. Return how many were changed, and how many could not be registered because ids take
        `max_bytes` of the shard."""
        shard = self.find_shard(env)
        triples = flatten_args((keys.encode(job_id), token, change) for job_id, token, change in changes)
        return self._call(
            "settle_ids", shard, keys.env(shard, env), [keys.env_part(env), max_bytes, *triples], _parse_pair
        )

    def list_dead(self, ref: QueueRef, at_most: int, at_most_bytes: int = DEAD_BYTES) -> ScriptCall[list[DeadRow]]:
        """Return up to `at_most` dead jobs, oldest first; the page ends early once payloads reach `at_most_bytes`."""
        args = [*_key_parts(ref), at_most, at_most_bytes]
        return self._call_for_queue(
            "list_dead", ref, args, lambda answer: [_parse_dead_row(*fields) for fields in answer], keys.dead
        )

    def drop_dead(self, ref: QueueRef, rows: Iterable[DeadRow], keep_ms: int) -> ScriptCall[int]:
        """Delete dead jobs that PostgreSQL has stored. Return how many. Their ids stay reserved for `keep_ms`."""
        args = flatten_args((keys.encode(row.job_id), row.buried_ms) for row in rows)
        return self._call_for_queue("drop_dead", ref, [*_key_parts(ref), keep_ms, *args], int, keys.dead)

    # Operators

    def redrive(
        self, ref: QueueRef, which: DeadFilter, at_most: int, skip: int = 0
    ) -> ScriptCall[RedriveResult | None]:
        """Redrive matching jobs among the `at_most` oldest dead jobs after the first `skip`. None: there is no such
        queue."""
        return self._call_on_dead("redrive", ref, which, at_most, skip)

    def remove_dead(
        self, ref: QueueRef, which: DeadFilter, at_most: int, skip: int = 0
    ) -> ScriptCall[RedriveResult | None]:
        """Delete matching dead jobs in Valkey. The result is that of `redrive`, with `moved` for deleted jobs."""
        return self._call_on_dead("remove_dead", ref, which, at_most, skip)

    def _call_on_dead(
        self, name: str, ref: QueueRef, which: DeadFilter, at_most: int, skip: int
    ) -> ScriptCall[RedriveResult | None]:
        since = "-inf" if which.buried_from_ms is None else which.buried_from_ms
        until = "+inf" if which.buried_until_ms is None else which.buried_until_ms
        args: list[Arg] = [*_key_parts(ref), at_most, skip, since, until, which.task, which.error, *self._caps_args()]
        args += map(keys.encode, which.ids)
        return self._call_for_queue(
            name, ref, args, lambda answer: RedriveResult(*answer) if answer else None, keys.dead
        )

    def share(self, env: EnvRef, round_: int, words: Sequence[str]) -> ScriptCall[list[str] | None]:
        """Set an environment's share of the quotas of its project and organisation, but not below its current usage.
        Return the words in force (see queue/quotas.py); None if a later round has already set it."""
        shard = self.find_shard(env)
        args = [keys.env_part(env), round_, *words]
        return self._call(
            "share",
            shard,
            keys.env(shard, env),
            args,
            lambda answer: [word.decode() for word in answer[1:]] if answer[0] else None,
        )

    def sync_settings_state(self, shard: int, restored_for: str = "") -> ScriptCall[SettingsState]:
        """Return whether settings were restored on this server. With `restored_for`, first record that they were
        restored for that life of the server."""
        return self._call_for_shard(
            "sync_settings_state", shard, [restored_for], lambda answer: SettingsState(*map(bytes.decode, answer))
        )

    def restore_setting(self, ref: QueueRef | EnvRef, name: str, value: str | None) -> ScriptCall[bool]:
        """Set a field to its value in PostgreSQL. Creates a queue that does not exist in Valkey."""
        shard = self.find_shard(ref)
        if isinstance(ref, QueueRef):
            key, args = keys.queue(shard, ref), [*_queue_args(ref)]
        else:
            key, args = keys.env(shard, ref), [keys.env_part(ref), "", ref.org, ref.project, ref.env, ""]
        return self._call("restore_setting", shard, key, [*args, name, value or ""], bool)

    def configure(self, ref: QueueRef | EnvRef, fields: Mapping[str, Arg | None]) -> ScriptCall[bool]:
        """Set fields of a queue or an environment; None removes a field. False: there is no such queue."""
        shard = self.find_shard(ref)
        if isinstance(ref, QueueRef):
            key, args = keys.queue(shard, ref), [*_key_parts(ref)]
        else:
            key, args = keys.env(shard, ref), [keys.env_part(ref), ""]
        pairs = flatten_args((name, "" if value is None else value) for name, value in fields.items())
        return self._call("configure", shard, key, [*args, *pairs], bool)

    def _caps_args(self) -> tuple[int, int, int]:
        return self.caps.items, self.caps.bytes, self.caps.shard_bytes

    def _call_for_queue(
        self,
        name: str,
        ref: QueueRef,
        args: Sequence[Arg],
        parse: Callable[[Any], T],
        build_key: Callable[[int, QueueRef], str] = keys.queue,
    ) -> ScriptCall[T]:
        shard = self.find_shard(ref)
        return self._call(name, shard, build_key(shard, ref), args, parse)

    def _call_for_shard(self, name: str, shard: int, args: Sequence[Arg], parse: Callable[[Any], T]) -> ScriptCall[T]:
        return self._call(name, shard, keys.meta(shard), args, parse)

    def _call(self, name: str, shard: int, key: str, args: Sequence[Arg], parse: Callable[[Any], T]) -> ScriptCall[T]:
        return ScriptCall(script(name), [key], [keys.prefix(shard), self.stream_maxlen, *args], parse)


def _key_parts(ref: QueueRef) -> tuple[str, str]:
    return keys.env_part(ref), keys.encode(ref.queue)


def _queue_args(ref: QueueRef) -> tuple[str, ...]:
    return *_key_parts(ref), ref.org, ref.project, ref.env, ref.queue


def _lease_args(job: LeasedJob) -> tuple[Arg, ...]:
    return keys.env_part(job.queue), keys.encode(job.id), job.lease


def _encode_text(text: str) -> bytes:
    """Encode the text of an error or of progress as UTF-8, escaping lone surrogates, so that a report cannot fail."""
    return text.encode(errors="backslashreplace")


def _parse_state(answer: bytes | None) -> JobState | None:
    return None if answer is None else JobState(answer.decode())


def encode_body(job_id: str, job: NewJob | JobRow) -> bytes:
    """Return the immutable part of a job: tab-separated header, newline, payload. Names contain no control
    characters, so the separators are unambiguous."""
    return f"{job_id}\t{job.task}\t{job.flow}\t{job.stored_flow_type}\n".encode() + job.payload


def split_body(body: bytes) -> tuple[list[str], bytes]:
    """Return ([id, task, flow, stored flow type], payload)."""
    header, _, payload = body.partition(b"\n")
    return header.decode().split("\t"), payload


def _parse_maintain(answer: list[int]) -> MaintainResult:
    is_owner, again_ms, expired, reclaimed, released, ticked, to_repair, quarantined = answer
    return MaintainResult(bool(is_owner), again_ms, expired, reclaimed, released, bool(ticked), to_repair, quarantined)


def _parse_ids(answer: list[bytes]) -> list[str]:
    return [keys.decode(part.decode()) for part in answer]


def _parse_pair(answer: list[int]) -> tuple[int, int]:
    return answer[0], answer[1]


def _parse_enqueue(answer: list[Any]) -> EnqueueResult:
    return EnqueueResult(int(answer[0]), answer[1], float(answer[2]), answer[3], answer[4].decode())


def _parse_refill_state(answer: list[Any]) -> RefillState:
    now_ms, epoch, cold, cold_epoch, items, size, refill, leave, placed, named = answer
    flags = bool(refill), bool(leave)
    pairs = zip(named[::2], named[1::2], strict=True)
    unconfirmed = [PlacedRow(int(row), keys.decode(job.decode()) if job else None) for row, job in pairs]
    return RefillState(float(now_ms), int(epoch), bool(cold), cold_epoch, items, size, *flags, placed, unconfirmed)


def _parse_dead_row(_: bytes, buried: bytes, body: bytes, *fields: bytes) -> DeadRow:
    (job_id, task, flow, flow_type), payload = split_body(body)
    enqueued, priority, attempts, max_attempts, size = map(int, fields[:5])
    error = fields[5].decode(errors="replace").replace("\0", "\\x00")  # PostgreSQL text cannot contain NUL
    return DeadRow(
        job_id=job_id,
        task=task,
        flow=flow,
        flow_type=flow_type,
        payload=payload,
        size=size,
        priority=priority,
        attempts=attempts,
        max_attempts=max_attempts,
        enqueued_ms=enqueued,
        buried_ms=int(buried),
        error=error,
    )


def _parse_leased_jobs(answer: tuple[list[list[bytes]], list[list[Any]], int]) -> LeasedJobs:
    names, leased, has_more = answer
    refs = [QueueRef(*(part.decode() for part in parts)) for parts in names]
    jobs = LeasedJobs(_parse_leased_job(refs, *fields) for fields in leased)
    jobs.has_more = has_more == 1
    return jobs


def _parse_leased_job(
    refs: Sequence[QueueRef],
    number: int,
    body: bytes,
    attempt: int,
    max_attempts: int,
    lease: bytes,
    enqueued_at_ms: int,
    waited_ms: int,
) -> LeasedJob:
    (job_id, task, flow, stored), payload = split_body(body)
    ref, token, named = refs[number - 1], lease.decode(), (flow, *split_flow_type(stored))
    return LeasedJob(
        *(ref, job_id, task, payload, attempt, max_attempts, token, enqueued_at_ms, waited_ms, *named),
    )


def _parse_attempts(answer: tuple[bytes | None, list[bytes]]) -> list[bytes]:
    """Return the bodies of the records in a list (see lua/records.lua). The list may be of an earlier job with the same
    id: then the current one has no records."""
    enqueued, records = answer
    found = [record.partition(b"\n") for record in records]
    return [body for head, _, body in found if enqueued is None or head.partition(b"\t")[0] == enqueued]


def _parse_progress(fields: Mapping[bytes, bytes]) -> str | None:
    """Return the progress of the current delivery; that of an earlier one does not count."""
    lease, _, text = fields.get(b"progress", b"").partition(b"\n")
    return text.decode() if lease and fields[b"state"] == b"running" and lease == fields.get(b"delivery") else None


def _parse_job_info(env: EnvRef, job_id: str, answer: list[bytes], body: bytes | None) -> JobInfo | None:
    if body is None or (not answer and body):
        return None  # a body without fields: the job is dead, and in PostgreSQL
    if not answer:
        return JobInfo(env, job_id, state=JobState.DONE)
    fields = dict(zip(answer[::2], answer[1::2], strict=True))
    (_, task, flow, stored), payload = split_body(body)
    flow_type, has_envelope = split_flow_type(stored)
    opened = open_payload(payload, has_envelope=has_envelope)

    def number(name: bytes) -> int | None:
        return int(float(fields[name])) if name in fields else None

    state = JobState(fields[b"state"].decode())
    return JobInfo(
        environment=env,
        id=job_id,
        state=state,
        queue=keys.decode(fields[b"Q"].decode()),
        task=task,
        payload=opened.body,
        flow=flow,
        flow_type=flow_type,
        priority=number(b"priority") or 0,
        attempts=number(b"attempts") or 0,
        max_attempts=number(b"max_attempts") or 0,
        enqueued_at_ms=number(b"enqueued"),
        due_at_ms=number(b"due"),
        expires_at_ms=number(b"expires"),
        error=fields[b"error"].decode() if b"error" in fields else None,
        cancel_requested=b"cancel" in fields and state is not JobState.DEAD,
        headers=opened.headers,
        codec=opened.codec,
        progress=_parse_progress(fields),
    )
