"""Both tiers for producers and operators: jobs that do not fit into Valkey are stored in PostgreSQL.

    client = SyncClient(url, options, Tiers(url, postgres_url, options))

A job is accepted when PostgreSQL has committed it. Syncing the counters to Valkey afterwards may fail: the next sync
sends absolute values.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

from headrace.cold.store import NO_LIMITS, ColdLimits, ColdStore, StoredJob, make_id_token
from headrace.errors import (
    ColdFull,
    CommitUnclear,
    DatabaseRestored,
    HeadraceError,
    MemoryFull,
    QueueUnavailable,
    QuotaExceeded,
    WrongDatabase,
)
from headrace.model.envelope import open_payload, split_flow_type
from headrace.model.job import JobInfo, JobState, has_generated_form
from headrace.model.names import EnvRef, QueueRef
from headrace.postgres.connect import open_pool
from headrace.queue import keys
from headrace.queue.bounds import NO_BOUNDS
from headrace.queue.client import QueueOptions, store_shards
from headrace.queue.overflow import SpillJob
from headrace.queue.quotas import count_refusal
from headrace.queue.scripts import (
    DEAD_BYTES,
    ColdCounters,
    DeadFilter,
    DeadRow,
    EnqueueResult,
    IdChange,
    PlacedRow,
    Stubs,
)
from headrace.valkey.connect import ScriptError, Valkey, connect, translate_errors
from headrace.valkey.scripts import ScriptCall, run

T = TypeVar("T")

log = logging.getLogger(__name__)

FAR_MS = 60_000
KEEP_MS = 60_000
PAGE = 500


class Tiers:
    """Implementation of `headrace.queue.overflow.Overflow` on PostgreSQL. Thread-safe."""

    def __init__(
        self,
        valkey_url: str,
        postgres_url: str,
        options: QueueOptions | None = None,
        limits: ColdLimits = NO_LIMITS,
        far_ms: int = FAR_MS,
        keep_ms: int = KEEP_MS,
    ) -> None:
        self.far_ms = far_ms
        self._keep_ms = keep_ms  # how long the id of a dead job stays reserved in Valkey once it is in PostgreSQL
        self._max_id_bytes = limits.max_id_bytes
        self._options = options or QueueOptions()
        self.store = ColdStore(open_pool(postgres_url), limits)
        self._valkey_url = valkey_url
        self.valkey: Valkey = connect(valkey_url)

    @cached_property
    @translate_errors()
    def stubs(self) -> Stubs:
        """Return the script calls. At first use the number of shards is read from Valkey, or stored there. Raises
        ShardMismatch."""
        shards = store_shards(self.valkey, self._options.shards)
        return self._options.resolve(shards, NO_BOUNDS).make_stubs()

    def close(self) -> None:
        self.store.close()
        self.valkey.close()

    @contextmanager
    def open_copy(self) -> Generator[Tiers]:
        """Yield a copy with its own Valkey connections and the same PostgreSQL pool. Calls of one client to a cluster
        wait for each other while one of the servers is unavailable."""
        other = copy(self)
        other.valkey = connect(self._valkey_url)
        with closing(other.valkey):
            yield other

    def run(self, call: ScriptCall[T]) -> T:
        return run(self.valkey, call)

    # Producers

    def spill(self, ref: QueueRef, jobs: Sequence[SpillJob], reply: EnqueueResult) -> Sequence[bool]:
        shard = self.stubs.find_shard(ref)
        reserved: list[IdChange] = []  # how to confirm the ids that are registered in Valkey

        def reserve(ids: Sequence[str], token: str) -> Sequence[str]:
            reserved[:] = (IdChange(job_id, token, "confirm") for job_id in ids)
            return self._reserve_ids(ref.environment, ids, token)

        def spill() -> tuple[list[bool], ColdCounters]:
            epochs = {"valkey_epoch": reply.valkey_epoch, "cold_epoch": reply.cold_epoch}
            return self.store.spill(ref, shard, jobs, **epochs, reserve=reserve)

        self._check_postgres(shard, reply.postgres_id)
        try:
            try:
                stored, counters = spill()
            except DatabaseRestored:
                self.check_postgres(shard, refresh=True)
                stored, counters = spill()
        except CommitUnclear:
            raise  # the ids stay pending
        except Exception as error:
            self.settle_ids(ref.environment, [each._replace(change="remove") for each in reserved])
            if isinstance(error, QuotaExceeded):
                self._count_refusal(ref.environment, error)
            raise
        new_ids = {job.new.id for job, was_stored in zip(jobs, stored, strict=True) if was_stored}
        settled = [each if each.job_id in new_ids else each._replace(change="remove") for each in reserved]
        self.settle_ids(ref.environment, settled)
        waiting = [job.due_ms for job, was_stored in zip(jobs, stored, strict=True) if was_stored and not job.delayed]
        if counters.waiting == len(waiting) > 0:  # no other row waits
            counters = replace(counters, oldest_ms=min(waiting))
        self.sync_counters(ref, counters)
        return stored

    def _reserve_ids(self, env: EnvRef, ids: Sequence[str], token: str) -> Sequence[str]:
        """Register chosen ids. Return those that jobs in Valkey have. Raises ColdFull if Valkey cannot register them:
        the jobs were not stored, but others of the same call may have been accepted."""
        try:
            return self.run(self.stubs.reserve_ids(env, ids, token, self._max_id_bytes))
        except (MemoryFull, QueueUnavailable) as error:
            raise ColdFull(f"The ids could not be registered in Valkey: {error}") from error

    def settle_ids(self, env: EnvRef, changes: Sequence[IdChange]) -> int:
        """Change registered ids; return how many were changed. Errors are logged, not raised: the audit repairs what
        differs from PostgreSQL."""
        if not changes:
            return 0
        try:
            changed, refused = self.run(self.stubs.settle_ids(env, changes, self._max_id_bytes))
        except (HeadraceError, ScriptError) as error:
            log.warning("could not change registered ids in Valkey: %s", error, extra={"action": "unavailable"})
            return 0
        if refused:
            names = " / ".join(vars(env).values())
            log.warning("no memory to register %d ids of %s", refused, names, extra={"action": "ids_full"})
        return changed

    def _count_refusal(self, env: EnvRef, error: QuotaExceeded) -> None:
        try:
            count_refusal(self.valkey, self.stubs.shards, env, error.quota)
        except HeadraceError as unavailable:
            log.warning("could not count a refusal: %s", unavailable, extra={"action": "unavailable"})

    def find(self, env: EnvRef, job_id: str) -> JobInfo | None:
        job = self.store.find(env, job_id)
        return None if job is None else to_job_info(env, job)

    def cancel(self, env: EnvRef, job_id: str) -> JobState | None:
        job = self.store.find(env, job_id)
        self.check_postgres(self.stubs.find_shard(env))
        if job is None or job.error is not None:
            return None if job is None else JobState.DEAD
        counters = self.store.cancel(job, lambda: self.list_unconfirmed(job.ref))
        if counters is None:  # it was moved to Valkey meanwhile
            return self.run(self.stubs.cancel(env, job_id))
        self.sync_counters(job.ref, counters)
        return to_waiting_state(job)

    # Operators

    def redrive(self, ref: QueueRef, which: DeadFilter, limit: int | None = None) -> int:
        """Redrive up to `limit` dead jobs of both tiers (None: all). Return how many. Dead jobs in Valkey move to
        PostgreSQL first, so that only one tier is searched."""
        queue_id = self.move_all_dead(ref)

        def redrive(page: int) -> tuple[int, ColdCounters | None]:
            return self.store.redrive(ref, queue_id, which, page, self.run(self.stubs.read_refill_state(ref)).now_ms)

        return self._run_paged(ref, redrive, limit)

    def remove_dead(self, ref: QueueRef, which: DeadFilter, limit: int | None) -> int:
        """Delete up to `limit` dead jobs of both tiers (None: all), oldest first. Return how many."""
        queue_id = self.move_all_dead(ref)
        return self._run_paged(ref, lambda page: self.store.remove_dead(queue_id, which, page), limit)

    def _run_paged(self, ref: QueueRef, do: Callable[[int], tuple[int, ColdCounters | None]], limit: int | None) -> int:
        """Run `do` with page sizes, one transaction per page, until no jobs are left, `limit` is reached, or a quota is
        used up. Return the number of jobs. Raises QuotaExceeded if the quota does not allow a single job."""
        done, page = 0, PAGE
        while limit is None or done < limit:
            size = page if limit is None else min(page, limit - done)
            try:
                count, counters = do(size)
            except QuotaExceeded as error:
                if size > 1:
                    page = size // 2
                    continue
                self._count_refusal(ref.environment, error)
                if done:
                    break
                raise
            if counters is not None:
                self.sync_counters(ref, counters)
            done += count
            if count < size:
                break
        return done

    def move_all_dead(self, ref: QueueRef) -> int:
        """Move all dead jobs of a queue from Valkey to PostgreSQL. Return the queue's id in PostgreSQL."""
        self.check_postgres(self.stubs.find_shard(ref))
        queue_id = self.store.ensure_queue_id(ref, self.stubs.find_shard(ref))
        while self.move_dead(ref, queue_id, PAGE):
            pass
        return queue_id

    def move_dead(self, ref: QueueRef, queue_id: int, limit: int) -> bool:
        """Move one page of dead jobs from Valkey to PostgreSQL. Return True if the page was full, so there may be more.
        A job that a crash left in both tiers is only deleted from Valkey."""
        epoch = self.run(self.stubs.read_refill_state(ref)).valkey_epoch

        def read() -> Sequence[DeadRow]:
            return self.run(self.stubs.list_dead(ref, limit, DEAD_BYTES))

        token = make_id_token()
        rows, counters = self.store.store_dead(queue_id, read, epoch, token)
        if rows:
            chosen = [row.job_id for row in rows if not has_generated_form(row.job_id)]
            self.settle_ids(ref.environment, [IdChange(job_id, token, "set") for job_id in chosen])
            self.run(self.stubs.drop_dead(ref, rows, self._keep_ms))
        if counters is not None:
            self.sync_counters(ref, counters)
        return len(rows) == limit or sum(row.size for row in rows) >= DEAD_BYTES

    def list_unconfirmed(self, ref: QueueRef) -> Sequence[PlacedRow]:
        """Return the rows that are placed in Valkey and not yet confirmed as deleted in PostgreSQL."""
        return self.run(self.stubs.read_refill_state(ref, name_placed=True)).unconfirmed

    def confirm_placed(self, ref: QueueRef, queue_id: int, placed: Sequence[PlacedRow]) -> ColdCounters:
        """Delete rows that are placed in Valkey, and sync the counters. Return the counters."""
        counters = self.store.confirm_placed(queue_id, placed)
        self.sync_counters(ref, counters, [row.seq for row in placed])
        return counters

    def record_settings(self, ref: QueueRef | EnvRef, values: Mapping[str, str | None]) -> None:
        self.check_postgres(self.stubs.find_shard(ref))
        self.store.record_settings(ref, values)

    # Identity of the PostgreSQL database

    def check_postgres(self, shard: int, *, refresh: bool = False) -> None:
        """Raise WrongDatabase if jobs of this shard wait in another PostgreSQL. With `refresh` the identity is read
        from PostgreSQL even if it is cached."""
        self._check_postgres(shard, self.read_known_postgres(shard), refresh=refresh)

    @translate_errors()
    def read_known_postgres(self, shard: int) -> str:
        """Return the id of the PostgreSQL where jobs of this shard wait; empty if it is not known yet."""
        known: Any = self.valkey.hget(keys.meta(shard), "postgres")
        return known.decode() if known else ""

    def _check_postgres(self, shard: int, known: str, *, refresh: bool = False) -> None:
        own = self.store.read_identity(refresh=refresh)
        if not known:
            with translate_errors():
                self.valkey.hsetnx(keys.meta(shard), "postgres", own)
            known = self.read_known_postgres(shard)
        if known != own and (refresh or known != self.store.read_identity(refresh=True)):
            raise WrongDatabase

    @translate_errors()
    def adopt_postgres(self) -> None:
        """Make this PostgreSQL the one where jobs of every shard wait, in place of any other."""
        own = self.store.read_identity(refresh=True)
        for shard in range(self.stubs.shards):
            self.valkey.hset(keys.meta(shard), "postgres", own)
            self.store.record_event("postgres", shard, "adopted", "An operator adopted this PostgreSQL.")

    def sync_counters(self, ref: QueueRef, counters: ColdCounters, deleted_rows: Sequence[int] = ()) -> None:
        """Send a queue's cold counters to Valkey, and free the ids of deleted jobs there. Errors are logged, not
        raised: PostgreSQL has committed, the next sync sends absolute values, and the audit repairs ids."""
        try:
            self.run(self.stubs.sync_cold(ref, counters, deleted_rows, self.store.read_identity()))
        except (HeadraceError, ScriptError) as error:
            log.warning("could not sync cold counters to Valkey: %s", error, extra={"action": "unavailable"})
        freed = [IdChange(job_id, token, "remove") for job_id, token in counters.freed_ids]
        self.settle_ids(ref.environment, freed)


def to_waiting_state(job: StoredJob) -> JobState:
    return JobState.SCHEDULED if job.delayed else JobState.COLD


def to_job_info(env: EnvRef, job: StoredJob) -> JobInfo:
    flow_type, has_envelope = split_flow_type(job.flow_type)
    opened = open_payload(job.payload, has_envelope=has_envelope)
    return JobInfo(
        environment=env,
        id=job.job_id,
        state=to_waiting_state(job) if job.error is None else JobState.DEAD,
        queue=job.queue,
        task=job.task,
        payload=opened.body,
        flow=job.flow,
        flow_type=flow_type,
        priority=job.priority,
        attempts=job.attempts,
        max_attempts=job.max_attempts,
        enqueued_at_ms=job.enqueued_ms,
        due_at_ms=int(job.due_ms) if job.error is None else None,
        expires_at_ms=job.expires_ms,
        error=job.error,
        headers=opened.headers,
        codec=opened.codec,
    )
