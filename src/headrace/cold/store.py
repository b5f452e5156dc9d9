"""Cold-tier tables in PostgreSQL. A method is one transaction unless it takes a connection. No access to Valkey except
through callbacks.

Every method that changes rows also updates the queue's counters in the same transaction, and returns the new counters.
"""

from __future__ import annotations

import secrets
import time
import uuid
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, LiteralString

from headrace.cold.queries import QUERIES
from headrace.cold.quota_records import (
    find_and_lock_quotas,
    lock_tenants,
    raise_if_exceeded,
    read_cold_usage,
    resolve_quotas,
)
from headrace.errors import ColdFull, CommitUnclear, DatabaseRestored, DatabaseUnavailable
from headrace.model.envelope import MAX_ENVELOPE_BYTES
from headrace.model.job import GeneratedJobId, has_generated_form
from headrace.model.names import EnvRef, QueueRef
from headrace.model.quotas import Quota, TenantRef
from headrace.postgres.connect import (
    Connection,
    Copy,
    DuplicateKey,
    InsufficientPrivilege,
    Pool,
    class_row,
    dict_row,
    read_xact_status,
    scalar_row,
    transaction,
)
from headrace.queue.dead_jobs import DeadCursor, DeadEntry, open_entry
from headrace.queue.flow_depths import TierFlowDepth, make_flow_depth, merge_marked
from headrace.queue.overflow import EpochClosed, SpillJob
from headrace.queue.scripts import MAX_ID_BYTES, ColdCounters, ColdRow, DeadFilter, DeadRow, PlacedRow

FlowKey = tuple[str, str, str]
"""Key of the counts per flow: task, flow, flow type."""

ReserveIds = Callable[[Sequence[str], str], Sequence[str]]
"""Registers ids under a token in Valkey. Returns those that jobs in Valkey have; then none is registered."""

COMMIT_CHECK_S = 30.0
COMMIT_CHECK_PAUSE_S = 0.2
DUPLICATE_TRIES = 5
NO_NAMES: dict[str, str | None] = dict.fromkeys(("org", "project", "env", "queue"))


@dataclass(frozen=True)
class CounterDelta:
    """Changes of a queue's counters by a transaction. The first five may be negative; the others are totals."""

    waiting: int = 0
    waiting_bytes: int = 0
    delayed: int = 0
    delayed_bytes: int = 0
    dead: int = 0
    spilled: int = 0
    redriven: int = 0
    refilled: int = 0
    expired: int = 0
    cancelled: int = 0
    quarantined: int = 0
    removed: int = 0


@dataclass(frozen=True)
class ColdLimits:
    """Limits of waiting and delayed jobs in PostgreSQL per queue; None: no limit. And of their ids in Valkey."""

    max_items: int | None = None
    max_bytes: int | None = None
    max_id_bytes: int = MAX_ID_BYTES  # registered ids of one shard, see queue/lua/cold_ids.lua


NO_LIMITS = ColdLimits()


@dataclass(frozen=True)
class StoredJob(ColdRow):
    """A job in PostgreSQL, waiting, delayed or dead, with its queue."""

    queue_id: int
    org: str
    project: str
    env: str
    queue: str
    attempts: int
    error: str | None  # None: the job is not dead. The due time of a dead job is 0

    @property
    def ref(self) -> QueueRef:
        return QueueRef(self.org, self.project, self.env, self.queue)


class IdsInValkey(Exception):
    """Jobs in Valkey have some ids of a spill. Nothing was written."""

    def __init__(self, ids: Sequence[str]) -> None:
        super().__init__(f"{len(ids)} ids are in use")
        self.ids = ids


class ColdStore:
    def __init__(self, pool: Pool, limits: ColdLimits = NO_LIMITS) -> None:
        self._pool = pool
        self._limits = limits
        self._ids: dict[QueueRef, int] = {}
        self._refs: dict[int, QueueRef] = {}  # inverse of _ids, to detect that an id now belongs to another queue
        self._identity: str | None = None

    def close(self) -> None:
        self._pool.close()

    def transaction(self) -> AbstractContextManager[Connection]:
        return transaction(self._pool)

    @contextmanager
    def locked_transaction(self, queue_id: int) -> Generator[Connection]:
        """Run a transaction under the lock of `lock_mover`."""
        with self.transaction() as conn:
            self.lock_mover(conn, queue_id)
            yield conn

    # Queues

    def ensure_queue_id(self, ref: QueueRef, shard: int) -> int:
        """Return the id of a queue. Adds the queue if it is new; queues are never removed."""
        if (queue_id := self._ids.get(ref)) is None:
            queue_id = self.find_queue_id(ref)
            if queue_id is None:
                with self.transaction() as conn:
                    conn.execute(QUERIES["add_queue"], {**vars(ref), "shard": shard})
                queue_id = self.find_queue_id(ref)
            assert queue_id is not None, "it was added, and queues are never removed"
            self._ids[ref], self._refs[queue_id] = queue_id, ref
        return queue_id

    def find_queue_id(self, ref: QueueRef) -> int | None:
        """Return the id of a queue, or None if it never had a job in PostgreSQL. Not cached: after a restore the id may
        belong to another tenant's queue."""
        with self.transaction() as conn:
            row = conn.execute(QUERIES["find_queue"], vars(ref)).fetchone()
        return None if row is None else int(row[0])

    def read_identity(self, *, refresh: bool = False) -> str:
        """Return the id of this PostgreSQL database, which its replicas and restored copies share. With `refresh` it is
        read even if it is cached."""
        if self._identity is None or refresh:
            with self.transaction() as conn:
                identity = conn.cursor(row_factory=scalar_row).execute(QUERIES["read_identity"]).fetchone()
            assert isinstance(identity, str), "a migration has added it"
            if self._identity not in (None, identity):
                self.clear_id_cache()
            self._identity = identity
        return self._identity

    def clear_id_cache(self) -> None:
        """Drop the cached ids of queues, which may belong to other queues after a restore."""
        self._ids.clear()
        self._refs.clear()

    def read_timeline(self) -> str:
        """Return the system identifier and timeline, which change when PostgreSQL is promoted or recovered; empty if
        the user is not permitted to read them."""
        try:
            with self.transaction() as conn:
                return str(conn.cursor(row_factory=scalar_row).execute(QUERIES["read_timeline"]).fetchone())
        except InsufficientPrivilege:
            return ""

    def raise_version(self, queue_id: int, known: int) -> None:
        """Raise the version of the queue's counters above `known`, the version in Valkey."""
        with self.transaction() as conn:
            conn.execute(QUERIES["raise_version"], {"queue_id": queue_id, "known": known})

    def record_event(
        self, server: str, shard: int, kind: str, description: str, losses: Mapping[QueueRef, int] | None = None
    ) -> None:
        with self.transaction() as conn:
            record_event(conn, server, shard, kind, description, losses or {})

    def list_queues(self, shard: int) -> dict[QueueRef, int]:
        """Return every queue of a shard that ever had a job in PostgreSQL, with its id."""
        return self._list_queues(QUERIES["list_queues"], {"shard": shard})

    def list_queues_with_work(self, shard: int, now_ms: float, until_ms: float) -> dict[QueueRef, int]:
        """Return the queues of a shard with rows that wait, are due until `until_ms`, or are past their TTL."""
        values = {"shard": shard, "until": until_ms, "now": now_ms}
        return self._list_queues(QUERIES["list_queues_with_work"], values)

    def list_queues_with_old_dead(self, shard: int, before_ms: int) -> dict[QueueRef, int]:
        """Return the queues of a shard with jobs that were buried before `before_ms`."""
        return self._list_queues(QUERIES["list_queues_with_old_dead"], {"shard": shard, "before_ms": before_ms})

    def _list_queues(self, query: LiteralString, values: Mapping[str, Any]) -> dict[QueueRef, int]:
        with self.transaction() as conn:
            return {QueueRef(*names): queue_id for queue_id, *names in conn.execute(query, values)}

    # Spill

    def spill(
        self,
        ref: QueueRef,
        shard: int,
        jobs: Sequence[SpillJob],
        *,
        valkey_epoch: int,
        cold_epoch: int,
        reserve: ReserveIds,
    ) -> tuple[list[bool], ColdCounters]:
        """Store all jobs, or none. Return for each whether it was stored (False: a job with that id exists), and the
        counters. `reserve` is called for ids that callers chose, before the commit."""
        first: dict[str, int] = {}
        for number, job in enumerate(jobs):
            first.setdefault(job.new.id, number)
        duplicates: set[str] = set()
        in_valkey: set[str] = set()
        for _ in range(DUPLICATE_TRIES):
            stored = {number for job_id, number in first.items() if job_id not in duplicates | in_valkey}
            queue_id = self.ensure_queue_id(ref, shard)
            try:
                new = [jobs[number] for number in sorted(stored)]
                counters = self._spill(ref, new, queue_id, valkey_epoch, cold_epoch, reserve)
            except DatabaseRestored:
                if self._identity is None:
                    raise  # another PostgreSQL: the caller checks whether it is the right one
                continue  # with a new id of the queue
            except DuplicateKey:
                duplicates = self._find_duplicate_ids(ref, queue_id, jobs)  # read only on conflict, which is rare
                continue
            except IdsInValkey as error:
                in_valkey.update(error.ids)
                continue
            return [number in stored for number in range(len(jobs))], counters
        raise DatabaseUnavailable(
            "Concurrent producers keep spilling jobs with the same ids. Nothing was written. Retry."
        )

    def _spill(
        self,
        ref: QueueRef,
        jobs: Sequence[SpillJob],
        queue_id: int,
        valkey_epoch: int,
        cold_epoch: int,
        reserve: ReserveIds,
    ) -> ColdCounters:
        delayed = [job for job in jobs if job.delayed]
        delta = CounterDelta(
            waiting=len(jobs) - len(delayed),
            waiting_bytes=sum(len(job.new.payload) for job in jobs if not job.delayed),
            delayed=len(delayed),
            delayed_bytes=sum(len(job.new.payload) for job in delayed),
            spilled=len(jobs),
        )
        # Delayed jobs overtake no other job, so they are accepted in any epoch.
        epoch = cold_epoch if delta.waiting else None
        spill_id, xact, chosen, token = uuid.uuid4(), None, _list_chosen_ids(jobs), make_id_token()
        try:
            with self.transaction() as conn:
                if chosen:
                    conn.execute(QUERIES["insert_ids"], {**vars(ref.environment), "ids": chosen, "token": token})
                with conn.cursor().copy(QUERIES["copy_rows"]) as copy:
                    copy_rows(copy, queue_id, jobs)
                tenant = TenantRef.from_environment(ref.environment)
                rows = conn.execute(QUERIES["insert_spill"], {"id": spill_id, **vars(tenant)}).fetchall()
                quotas = resolve_quotas(tenant, rows)
                # Another producer of one of these ids waits for this transaction, so only one at a time gets here. A
                # job of this id that was moved to Valkey is there before its id was deleted here, so it is found.
                if chosen and (used := reserve(chosen, token)):
                    raise IdsInValkey(used)
                # Locks are taken last: until the commit they block other producers of this queue, and of its tenant if
                # that has a quota.
                lock_tenants(conn, quotas)
                counters, xact = self._update_counters(conn, queue_id, delta, epoch, valkey_epoch, limits=self._limits)
                raise_if_exceeded(quotas, partial(read_cold_usage, conn), _compute_quota_additions(delta))
                waiting = (job.new for job in jobs if not job.delayed)
                details = Counter((new.task, new.flow, new.stored_flow_type) for new in waiting)
                self._add_flow_counts(conn, queue_id, details)
        except CommitUnclear as error:
            assert xact is not None, "it was set before the commit"
            if not self._resolve_commit(spill_id, xact):
                raise DatabaseUnavailable(f"{DatabaseUnavailable()} ({error})") from error
            counters = self.read_counters(queue_id)
        return counters

    def _find_duplicate_ids(self, ref: QueueRef, queue_id: int, jobs: Iterable[SpillJob]) -> set[str]:
        ids = {"ids": [job.new.id for job in jobs], "chosen": _list_chosen_ids(jobs)}
        values = {**vars(ref.environment), "queue_id": queue_id, **ids}
        with self.transaction() as conn:
            return set(conn.cursor(row_factory=scalar_row).execute(QUERIES["find_duplicate_ids"], values))

    def _resolve_commit(self, spill_id: uuid.UUID, xact: int) -> bool:
        """Return whether a spill whose connection was lost during COMMIT was committed. Waits up to COMMIT_CHECK_S for
        PostgreSQL. Raises CommitUnclear if that is not long enough."""
        deadline = time.monotonic() + COMMIT_CHECK_S
        while time.monotonic() < deadline:
            try:
                if read_xact_status(self._pool, xact) != "in progress":
                    with self.transaction() as conn:
                        return conn.execute(QUERIES["find_spill"], {"id": spill_id}).fetchone() is not None
            except DatabaseUnavailable:
                pass  # retried until the deadline
            time.sleep(COMMIT_CHECK_PAUSE_S)
        raise CommitUnclear

    def read_counters(self, queue_id: int) -> ColdCounters:
        with self.transaction() as conn:
            return self._read_counters(conn, queue_id)

    def read_counters_with_oldest(self, queue_id: int) -> ColdCounters:
        """Return the counters with `oldest_ms`, read in one snapshot (REPEATABLE READ), so that `version` covers
        both."""
        with self.transaction() as conn:
            conn.execute(QUERIES["repeatable_read"])
            counters = self._read_counters(conn, queue_id)
            return replace(counters, oldest_ms=self.find_oldest_ms(conn, queue_id))

    def _read_counters(self, conn: Connection, queue_id: int) -> ColdCounters:
        row = conn.cursor(row_factory=dict_row).execute(QUERIES["read_counters"], {"queue_id": queue_id}).fetchone()
        if row is None:
            self.clear_id_cache()
            raise DatabaseRestored
        return _parse_counters(row)

    # Parts of a mover's transaction

    def lock_mover(self, conn: Connection, queue_id: int) -> int:
        """Block moving, cancelling and redriving jobs of this queue by others until the transaction ends. Return the
        version of the queue's counters."""
        row = conn.execute(QUERIES["lock_mover"], {"queue_id": queue_id}).fetchone()
        self._check_queue_id(queue_id, row and row[1:])
        assert row is not None
        return int(row[0])

    def _check_queue_id(self, queue_id: int, names: Sequence[Any] | None) -> None:
        """Raise DatabaseRestored if the id does not belong to the queue that it was cached for."""
        if names is None or self._refs.get(queue_id, QueueRef(*names)) != QueueRef(*names):
            self.clear_id_cache()
            raise DatabaseRestored

    def disable_synchronous_commit(self, conn: Connection) -> None:
        """Let the commit of this transaction return before it is on disk. Only safe if it deletes nothing."""
        conn.execute(QUERIES["disable_synchronous_commit"])

    def restore_synchronous_commit(self, conn: Connection) -> None:
        """Let the commit of this transaction wait for the disk again, because it deletes rows."""
        conn.execute(QUERIES["reset_synchronous_commit"])

    def lock_queue(self, conn: Connection, queue_id: int) -> None:
        """Block spills to this queue until the transaction ends."""
        conn.execute(QUERIES["lock_queue"], {"queue_id": queue_id})

    def claim(self, conn: Connection, queue_id: int, limit: int, size: int) -> list[ColdRow]:
        """Return the next rows in order, up to `limit` and about `size` bytes."""
        return self._claim(conn, QUERIES["claim"], queue_id, limit, size)

    def claim_unplaced(
        self, conn: Connection, queue_id: int, limit: int, size: int, placed: Iterable[int]
    ) -> list[ColdRow]:
        """Return the next rows in order that are not placed yet."""
        return self._claim(conn, QUERIES["claim_unplaced"], queue_id, limit, size, placed=list(placed))

    def claim_after(
        self, conn: Connection, queue_id: int, limit: int, size: int, position: tuple[int, float, int]
    ) -> list[ColdRow]:
        """Return the next rows in order after a position."""
        after = dict(zip(("priority", "due_ms", "seq"), position, strict=True))
        return self._claim(conn, QUERIES["claim_after"], queue_id, limit, size, **after)

    def claim_delayed(
        self, conn: Connection, queue_id: int, limit: int, size: int, until_ms: float, placed: Iterable[int] = ()
    ) -> list[ColdRow]:
        """Return delayed rows that are due until `until_ms` and not placed yet, earliest first."""
        more = {"until": until_ms, "placed": list(placed)}
        return self._claim(conn, QUERIES["claim_delayed"], queue_id, limit, size, **more)

    def _claim(
        self, conn: Connection, query: LiteralString, queue_id: int, limit: int, size: int, **more: Any
    ) -> list[ColdRow]:
        values = {"queue_id": queue_id, "most": limit, "bytes": max(size, 1), **more}
        return conn.cursor(row_factory=class_row(ColdRow), binary=True).execute(query, values).fetchall()

    def delete(self, conn: Connection, seqs: Sequence[int]) -> int:
        """Delete rows. Return how many of them existed."""
        return conn.execute(QUERIES["delete_rows"], {"seqs": list(seqs)}).rowcount

    def quarantine(self, conn: Connection, reasons: Mapping[int, str]) -> None:
        conn.execute(QUERIES["quarantine"], {"seqs": list(reasons), "reasons": list(reasons.values())})

    def update_counters(
        self,
        conn: Connection,
        queue_id: int,
        delta: CounterDelta,
        details: Mapping[FlowKey, int],
        *,
        valkey_epoch: int | None,
        close_epoch: int | None = None,
        deleted_ids: Sequence[str] = (),
    ) -> ColdCounters:
        """Apply `delta` and the per-flow `details` to the queue's counters, and return them. After `close_epoch`,
        spills of that epoch or an earlier one are refused. `oldest_ms` is read only if the waiting count changed; it is
        consistent, because the queue's row is locked until the commit. `deleted_ids` are those of jobs that this
        transaction has deleted."""
        freed = self._free_ids(conn, queue_id, deleted_ids)
        counters, _ = self._update_counters(conn, queue_id, delta, None, valkey_epoch, close_epoch)
        counters = replace(counters, freed_ids=freed)
        self._add_flow_counts(conn, queue_id, details)
        return replace(counters, oldest_ms=self.find_oldest_ms(conn, queue_id)) if delta.waiting else counters

    def find_oldest_ms(self, conn: Connection, queue_id: int) -> float | None:
        cursor = conn.cursor(row_factory=scalar_row)
        return cursor.execute(QUERIES["find_oldest_due"], {"queue_id": queue_id}).fetchone()

    def expire(
        self,
        queue_id: int,
        now_ms: float,
        limit: int,
        valkey_epoch: int | None,
        read_placed: Callable[[], Iterable[PlacedRow]],
    ) -> tuple[int, ColdCounters | None]:
        """Delete up to `limit` rows whose TTL has passed. Return how many, and the counters (None: nothing changed).
        Rows in `read_placed()` are already in Valkey and are skipped."""
        with self.locked_transaction(queue_id) as conn:
            placed = [row.seq for row in read_placed()]
            values = {"queue_id": queue_id, "now": now_ms, "most": limit, "placed": placed}
            rows = conn.cursor(row_factory=dict_row).execute(QUERIES["expire_rows"], values).fetchall()
            if not rows:
                return 0, None
            removal = compute_removal(rows, expired=len(rows))
            ids = [row["job_id"] for row in rows]
            return len(rows), self.update_counters(conn, queue_id, *removal, valkey_epoch=valkey_epoch, deleted_ids=ids)

    def confirm_placed(self, queue_id: int, placed: Sequence[PlacedRow]) -> ColdCounters:
        """Delete rows that are placed in Valkey. Return the counters."""
        ids = {"seqs": [row.seq for row in placed], "job_ids": [row.job_id or "" for row in placed]}
        with self.locked_transaction(queue_id) as conn:
            cursor = conn.cursor(row_factory=dict_row)
            rows = cursor.execute(QUERIES["delete_placed_rows"], {"queue_id": queue_id, **ids}).fetchall()
            removal = compute_removal(rows, refilled=len(rows))
            deleted = [row["job_id"] for row in rows]
            return self.update_counters(conn, queue_id, *removal, valkey_epoch=None, deleted_ids=deleted)

    def postpone(
        self, conn: Connection, queue_id: int, rows: Sequence[ColdRow], due_ms: float, valkey_epoch: int | None
    ) -> ColdCounters:
        """Let rows wait until `due_ms`, because other jobs have their ids. Return the counters."""
        conn.execute(QUERIES["postpone_rows"], {"seqs": [row.seq for row in rows], "due_ms": due_ms})
        waiting = [vars(row) for row in rows if not row.delayed]
        size = sum(row["size"] for row in waiting)
        delta = CounterDelta(waiting=-len(waiting), waiting_bytes=-size, delayed=len(waiting), delayed_bytes=size)
        flows = {flow: -count for flow, count in _count_flows(waiting).items()}
        return self.update_counters(conn, queue_id, delta, flows, valkey_epoch=valkey_epoch)

    def promote_due(
        self, queue_id: int, until_ms: float, limit: int, placed: Iterable[int], valkey_epoch: int | None
    ) -> ColdCounters | None:
        """Mark up to `limit` delayed rows that are due as waiting, except placed ones. Return the counters; None if
        nothing changed."""
        values = {"queue_id": queue_id, "until": until_ms, "most": limit, "placed": list(placed)}
        with self.locked_transaction(queue_id) as conn:
            rows = conn.cursor(row_factory=dict_row).execute(QUERIES["promote_due_rows"], values).fetchall()
            if not rows:
                return None
            size = sum(row["size"] for row in rows)
            delta = CounterDelta(waiting=len(rows), waiting_bytes=size, delayed=-len(rows), delayed_bytes=-size)
            return self.update_counters(conn, queue_id, delta, _count_flows(rows), valkey_epoch=valkey_epoch)

    # Single jobs

    def find(self, env: EnvRef, job_id: str) -> StoredJob | None:
        """Return a job that waits, else a dead job with this id, or None."""
        with self.transaction() as conn:
            cursor = conn.cursor(row_factory=class_row(StoredJob))
            for query in (QUERIES["find_waiting_job"], QUERIES["find_dead_job"]):
                if job := cursor.execute(query, {**vars(env), "job_id": job_id}).fetchone():
                    return job
        return None

    def cancel(self, job: StoredJob, read_placed: Callable[[], Iterable[PlacedRow]]) -> ColdCounters | None:
        """Delete a waiting job. Return the counters; None if its row is gone, or is in `read_placed()` and therefore in
        Valkey."""
        with self.locked_transaction(job.queue_id) as conn:
            is_placed = any(row.seq == job.seq and row.job_id in (None, job.job_id) for row in read_placed())
            if is_placed or not self.delete(conn, [job.seq]):
                return None
            removal = compute_removal([vars(job)], cancelled=1)
            return self.update_counters(conn, job.queue_id, *removal, valkey_epoch=None, deleted_ids=[job.job_id])

    # Dead jobs

    def store_dead(
        self, queue_id: int, read: Callable[[], Sequence[DeadRow]], valkey_epoch: int | None, token: str
    ) -> tuple[Sequence[DeadRow], ColdCounters | None]:
        """Store the dead jobs that `read` returns, and their ids under `token` (except ids that may be generated).
        Return them, and the counters (None: all were already stored). `read` is called under the lock, so that it does
        not return a job that is being redriven."""
        with self.locked_transaction(queue_id) as conn:
            rows = read()
            self.put_ids(conn, queue_id, [row.job_id for row in rows if not has_generated_form(row.job_id)], token)
            added = sum(
                conn.execute(QUERIES["insert_dead_job"], {"queue_id": queue_id, **vars(row)}).rowcount for row in rows
            )
            if not added:
                return rows, None
            return rows, self.update_counters(conn, queue_id, CounterDelta(dead=added), {}, valkey_epoch=valkey_epoch)

    def list_dead(self, queue_id: int, which: DeadFilter, after: DeadCursor | None, scan: int) -> list[DeadEntry]:
        """Return up to `scan` dead jobs after the cursor `after`, newest first. Those that do not match the filter have
        `matches=False`."""
        after_ms, after_id = after or (None, None)
        values = {"queue_id": queue_id, "scan": scan, "after_ms": after_ms, "after_id": after_id}
        with self.transaction() as conn:
            cursor = conn.cursor(row_factory=class_row(DeadEntry))
            rows = cursor.execute(QUERIES["list_dead"], {**values, **_filter_params(which)}).fetchall()
        return [open_entry(row) for row in rows]

    def find_dead_job(self, queue_id: int, job_id: str, payload_bytes: int) -> DeadEntry | None:
        """Return the newest death of a job with the first `payload_bytes` of its payload, without envelope, or None."""
        values = {"queue_id": queue_id, "job_id": job_id, "payload_bytes": payload_bytes + MAX_ENVELOPE_BYTES}
        with self.transaction() as conn:
            cursor = conn.cursor(row_factory=class_row(DeadEntry))
            found = cursor.execute(QUERIES["find_dead_in_queue"], values).fetchone()
        return None if found is None else open_entry(found, payload_bytes)

    def remove_dead(self, queue_id: int, which: DeadFilter, limit: int) -> tuple[int, ColdCounters | None]:
        """Delete up to `limit` dead jobs. Return how many, and the counters (None: nothing changed)."""
        values = {"queue_id": queue_id, "most": limit, **_filter_params(which)}
        with self.locked_transaction(queue_id) as conn:
            ids = conn.cursor(row_factory=scalar_row).execute(QUERIES["delete_dead"], values).fetchall()
            if not ids:
                return 0, None
            delta = CounterDelta(dead=-len(ids), removed=len(ids))
            return len(ids), self.update_counters(conn, queue_id, delta, {}, valkey_epoch=None, deleted_ids=ids)

    def redrive(
        self, ref: QueueRef, queue_id: int, which: DeadFilter, limit: int, now_ms: float
    ) -> tuple[int, ColdCounters | None]:
        """Redrive up to `limit` dead jobs. Return how many, and the counters (None: nothing changed). Raises
        QuotaExceeded, and then all of them stay dead."""
        values = {"queue_id": queue_id, "most": limit, "now": now_ms, **_filter_params(which)}
        with self.locked_transaction(queue_id) as conn:
            quotas = find_and_lock_quotas(
                conn, TenantRef.from_environment(ref.environment), (Quota.COLD_JOBS, Quota.COLD_BYTES)
            )
            rows = conn.cursor(row_factory=dict_row).execute(QUERIES["redrive_dead"], values).fetchall()
            if not rows:
                return 0, None
            size = sum(row["size"] for row in rows)
            delta = CounterDelta(waiting=len(rows), waiting_bytes=size, dead=-len(rows), redriven=len(rows))
            counters = self.update_counters(conn, queue_id, delta, _count_flows(rows), valkey_epoch=None)
            raise_if_exceeded(quotas, partial(read_cold_usage, conn), _compute_quota_additions(delta))
        return len(rows), counters

    # Chosen ids

    def put_ids(self, conn: Connection, queue_id: int, ids: Sequence[str], token: str) -> None:
        """Store ids of jobs of a queue that are stored here, as chosen ones, or give them a new token."""
        if ids:
            conn.execute(QUERIES["put_ids"], {"queue_id": queue_id, "ids": list(ids), "token": token})

    def _free_ids(self, conn: Connection, queue_id: int, ids: Sequence[str]) -> list[tuple[str, str]]:
        """Delete chosen ids of deleted jobs, unless another job of the environment has the same. Return them with their
        tokens."""
        return conn.execute(QUERIES["free_ids"], {"queue_id": queue_id, "ids": list(ids)}).fetchall() if ids else []

    def find_ids(self, conn: Connection, env: EnvRef, ids: Sequence[str]) -> dict[str, str]:
        """Return those of `ids` that are stored as chosen ones, with their tokens."""
        return dict(conn.execute(QUERIES["find_ids"], {**vars(env), "ids": list(ids)}).fetchall())

    def list_ids(self, env: EnvRef, after: str, limit: int) -> dict[str, str]:
        """Return the next chosen ids of an environment in their order, with their tokens."""
        with self.transaction() as conn:
            rows = conn.execute(QUERIES["list_ids"], {**vars(env), "after": after, "most": limit}).fetchall()
        return dict(rows)

    def add_missing_ids(self, shard: int, after: int, limit: int, *, dead: bool) -> int | None:
        """Store ids of waiting or dead jobs that an earlier release stored, unless they may be generated: among the
        `limit` rows after the number `after`. Return the number of the last of these; None: there are none."""
        query = QUERIES["add_missing_dead_ids"] if dead else QUERIES["add_missing_ids"]
        with self.transaction() as conn:
            cursor = conn.cursor(row_factory=scalar_row)
            return cursor.execute(query, {"shard": shard, "after": after, "most": limit}).fetchone()

    def delete_stale_ids(self, env: EnvRef, ids: Iterable[str]) -> set[str]:
        """Delete those of `ids` whose jobs an earlier release deleted. Return them."""
        values = {**vars(env), "ids": list(ids)}
        with self.transaction() as conn:
            return set(conn.cursor(row_factory=scalar_row).execute(QUERIES["delete_stale_ids"], values))

    # Flows and settings

    def list_flow_depths(self, where: EnvRef | None = None, /, **parts: str | None) -> list[TierFlowDepth]:
        """Return the cold tier's depth per flow, sorted: of one environment, of the queues that match the given names
        (org, project, env, queue), or of all queues."""
        names = {**NO_NAMES, **(vars(where) if where else {}), **parts}
        with self.transaction() as conn:
            rows = conn.execute(QUERIES["list_flow_depths"], names).fetchall()
        return merge_marked(make_flow_depth(QueueRef(*row[:4]), *row[4:]) for row in rows)

    def record_settings(self, ref: QueueRef | EnvRef, values: Mapping[str, str | None]) -> None:
        with self.transaction() as conn:
            self.put_settings(conn, ref, values)

    def put_settings(self, conn: Connection, ref: QueueRef | EnvRef, values: Mapping[str, str | None]) -> None:
        names = {"queue": "", **vars(ref)}
        for name, value in values.items():
            conn.execute(QUERIES["put_setting"], {**names, "name": name, "value": value or ""})

    def list_settings(self) -> list[tuple[QueueRef | EnvRef, str, str | None]]:
        """Return all recorded settings as (owner, name, value). None: the setting was removed."""
        with self.transaction() as conn:
            rows = conn.execute(QUERIES["list_settings"]).fetchall()
        return [(QueueRef(*row[:4]) if row[3] else EnvRef(*row[:3]), row[4], row[5] or None) for row in rows]

    @contextmanager
    def lock_setting(self, ref: QueueRef | EnvRef, name: str) -> Generator[str | None]:
        """Yield the current value of a setting, locked until the block ends. None: the setting was removed."""
        names = {"queue": "", **vars(ref), "name": name}
        with self.transaction() as conn:
            yield conn.cursor(row_factory=scalar_row).execute(QUERIES["lock_setting"], names).fetchone() or None

    # Audit

    def recount(self, queue_id: int) -> tuple[Counter[str], Counter[FlowKey]]:
        """Return the differences between rows and counters: (of the queue, of its flows). Empty: they agree.

        Each comparison is one statement, which reads one snapshot, so no lock is needed."""
        with self.transaction() as conn:
            return self._recount(conn, queue_id)

    def repair(self, queue_id: int) -> tuple[Counter[str], Counter[FlowKey]]:
        """Correct the counters to agree with the rows, under a lock. Return the differences, as `recount` does."""
        with self.locked_transaction(queue_id) as conn:
            self.lock_queue(conn, queue_id)
            counters, flows = self._recount(conn, queue_id)
            counters.pop("unaccounted", None)
            self.update_counters(conn, queue_id, CounterDelta(**counters), flows, valkey_epoch=None)
        return counters, flows

    def _recount(self, conn: Connection, queue_id: int) -> tuple[Counter[str], Counter[FlowKey]]:
        cursor = conn.cursor(row_factory=dict_row)
        queue = cursor.execute(QUERIES["compare_counters"], {"queue_id": queue_id}).fetchone()
        details = cursor.execute(QUERIES["compare_flow_counts"], {"queue_id": queue_id}).fetchall()
        assert queue is not None
        return (
            Counter({name: value for name, value in queue.items() if value}),
            Counter({(row["task"], row["flow"], row["flow_type"]): row["missing"] for row in details}),
        )

    def delete_obsolete(self) -> None:
        """Delete records of spills that are too old to be checked, and empty counts of flows."""
        with self.transaction() as conn:
            conn.execute(QUERIES["delete_old_spills"])
            conn.execute(QUERIES["delete_empty_flow_counts"])

    # All changes of counters

    def _update_counters(
        self,
        conn: Connection,
        queue_id: int,
        delta: CounterDelta,
        epoch: int | None,
        valkey_epoch: int | None,
        close_epoch: int | None = None,
        limits: ColdLimits = NO_LIMITS,
    ) -> tuple[ColdCounters, int]:
        ref = self._refs.get(queue_id)  # the queue that the id was cached for, to be compared by the query
        values = {
            **vars(delta),
            **{"queue_id": queue_id, "epoch": epoch, "valkey_epoch": valkey_epoch, "close": close_epoch},
            **{"max_items": limits.max_items, "max_bytes": limits.max_bytes},
            **(vars(ref) if ref else NO_NAMES),
        }
        row = conn.cursor(row_factory=dict_row).execute(QUERIES["update_counters"], values).fetchone()
        if row is None:
            self._raise_if_epoch_closed(conn, queue_id, epoch)
            raise ColdFull
        if self._identity not in (None, row["postgres_id"]):  # another database at the same address
            self._identity = None
            self.clear_id_cache()
            raise DatabaseRestored
        return _parse_counters(row), row["xact"]

    def _raise_if_epoch_closed(self, conn: Connection, queue_id: int, epoch: int | None) -> None:
        row: Any = conn.execute(QUERIES["read_epoch"], {"queue_id": queue_id}).fetchone()
        self._check_queue_id(queue_id, row and row[1:])
        if epoch is not None and row[0] > epoch:
            raise EpochClosed(row[0])

    def _add_flow_counts(self, conn: Connection, queue_id: int, details: Mapping[FlowKey, int]) -> None:
        if details:
            tasks, flows, flow_types = (list(values) for values in zip(*details, strict=True))
            counts = list(details.values())
            values = {"queue_id": queue_id, "tasks": tasks, "flows": flows, "flow_types": flow_types, "counts": counts}
            conn.execute(QUERIES["add_flow_counts"], values)


_COPY_TYPES = (
    *("int8", "text", "text", "text", "text", "bytea", "int4", "int2", "int4", "int8", "float8", "int8", "bool"),
)


def make_id_token() -> str:
    """Return a token for ids that are stored together."""
    return secrets.token_hex(4)


def _list_chosen_ids(jobs: Iterable[SpillJob]) -> list[str]:
    return [job.new.id for job in jobs if not isinstance(job.new.id, GeneratedJobId)]


def record_event(
    conn: Connection, server: str, shard: int, kind: str, description: str, losses: Mapping[QueueRef, int]
) -> None:
    """Record an event of a server, and how many accepted jobs of which queues are missing since."""
    values = {"server": server, "shard": shard, "kind": kind, "description": description}
    cursor = conn.cursor(row_factory=scalar_row)
    event_id = cursor.execute(QUERIES["insert_server_event"], values).fetchone()
    rows = [{"event_id": event_id, **vars(ref), "missing": missing} for ref, missing in losses.items()]
    cursor.executemany(QUERIES["insert_server_event_loss"], rows)


def read_due_times(conn: Connection, until_ms: float, at_most: int) -> dict[QueueRef, list[float]]:
    """Return the due times (ms) of delayed jobs for each queue: those due until `until_ms`, the first `at_most` of each
    queue."""
    due_times: dict[QueueRef, list[float]] = {}
    values = {"until": until_ms, "most": at_most}
    for org, project, env, queue, due_ms in conn.execute(QUERIES["list_due_times"], values):
        due_times.setdefault(QueueRef(org, project, env, queue), []).append(due_ms)
    return due_times


def copy_rows(copy: Copy, queue_id: int, jobs: Iterable[SpillJob]) -> None:
    """Write jobs in the columns of the query `copy_rows`."""
    copy.set_types(_COPY_TYPES)
    for job in jobs:
        new = job.new
        copy.write_row(
            (
                *(queue_id, new.id, new.task, new.flow, new.stored_flow_type, new.payload, len(new.payload)),
                *(new.priority, new.max_attempts, job.enqueued_ms, job.due_ms, job.expires_ms, job.delayed),
            )
        )


_COUNTER_COLUMNS = [field.name for field in fields(ColdCounters) if field.name not in ("oldest_ms", "freed_ids")]


def _parse_counters(row: Mapping[str, Any]) -> ColdCounters:
    return ColdCounters(**{name: row[name] for name in _COUNTER_COLUMNS})


def _count_flows(rows: Iterable[Mapping[str, Any]]) -> Counter[FlowKey]:
    return Counter((row["task"], row["flow"], row["flow_type"]) for row in rows)


def _compute_quota_additions(delta: CounterDelta) -> dict[str, int]:
    """Return what a transaction adds to the usage of the quotas of the cold tier."""
    return {
        Quota.COLD_JOBS: delta.waiting + delta.delayed,
        Quota.COLD_BYTES: delta.waiting_bytes + delta.delayed_bytes,
    }


def _filter_params(which: DeadFilter) -> dict[str, Any]:
    return {
        **{"ids": list(which.ids) or None, "task": which.task, "error": which.error},
        **{"from_ms": which.buried_from_ms, "until_ms": which.buried_until_ms},
    }


def compute_removal(rows: Sequence[Mapping[str, Any]], **totals: int) -> tuple[CounterDelta, dict[FlowKey, int]]:
    """Return the changes of the counters, and of the counts per flow, when these rows are deleted."""
    waiting = [row for row in rows if not row["delayed"]]
    delayed = [row for row in rows if row["delayed"]]
    delta = CounterDelta(
        waiting=-len(waiting),
        waiting_bytes=-sum(row["size"] for row in waiting),
        delayed=-len(delayed),
        delayed_bytes=-sum(row["size"] for row in delayed),
        **totals,
    )
    return delta, {flow: -count for flow, count in _count_flows(waiting).items()}
