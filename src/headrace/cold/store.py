"""The rows in PostgreSQL: one method per transaction. Knows nothing of Valkey.

Every method that changes rows changes the queue's counters in the same transaction (`update_counters`), and returns the
numbers as they are after it.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, LiteralString

from headrace.cold.queries import QUERIES
from headrace.cold.quota_records import hold_quotas, lock_tenants, read_cold_use, refuse_beyond, resolve
from headrace.errors import ColdFull, CommitUnclear, DatabaseRestored, DatabaseUnavailable
from headrace.model.names import EnvRef, QueueRef
from headrace.model.quotas import Quota, TenantRef
from headrace.postgres.connect import (
    Connection,
    Copy,
    DuplicateKey,
    NotPermitted,
    Pool,
    class_row,
    connection,
    dict_row,
    scalar_row,
    xact_status,
)
from headrace.queue.dead import DeadEntry, Place
from headrace.queue.details import Detail
from headrace.queue.overflow import EpochClosed, SpillJob
from headrace.queue.scripts import ColdNumbers, ColdRow, DeadFilter, DeadRow, PlacedRow

Kind = tuple[str, str, str]
"""What a job is, for the counts: task, flow, flow type."""

UNCLEAR_S = 30.0
UNCLEAR_PAUSE_S = 0.2
DUPLICATE_TRIES = 5
NO_NAMES: dict[str, str | None] = dict.fromkeys(("org", "project", "env", "queue"))


@dataclass(frozen=True)
class Delta:
    """What a transaction did to a queue. Counters may shrink, totals only grow."""

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
class Limits:
    """Most that may wait in PostgreSQL per queue; None: any."""

    max_items: int | None = None
    max_bytes: int | None = None


NO_LIMITS = Limits()


@dataclass(frozen=True)
class Backlog:
    queue_id: int
    ref: QueueRef


@dataclass(frozen=True)
class Found:
    """A row of a job, waiting or dead."""

    seq: int
    queue_id: int
    org: str
    project: str
    env: str
    queue: str
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
    due_ms: float | None
    expires_ms: int | None
    delayed: bool
    error: str | None

    @property
    def ref(self) -> QueueRef:
        return QueueRef(self.org, self.project, self.env, self.queue)


class Store:
    def __init__(self, pool: Pool, limits: Limits = NO_LIMITS) -> None:
        self._pool = pool
        self._limits = limits
        self._ids: dict[QueueRef, int] = {}
        self._refs: dict[int, QueueRef] = {}  # the same the other way round: what an id is believed to stand for
        self._identity: str | None = None

    def close(self) -> None:
        self._pool.close()

    @contextmanager
    def transaction(self) -> Generator[Connection]:
        with connection(self._pool) as conn:
            yield conn

    # Queues

    def queue_id(self, ref: QueueRef, shard: int) -> int:
        """Made when it is first needed, and never removed."""
        if (known := self._ids.get(ref)) is None:
            known = self._find_queue(ref)
            if known is None:
                with self.transaction() as conn:
                    conn.execute(QUERIES["add_queue"], {**vars(ref), "shard": shard})
                known = self._find_queue(ref)
            assert known is not None, "it was added, and nobody removes queues"
            self._ids[ref], self._refs[known] = known, ref
        return known

    def known_id(self, ref: QueueRef) -> int | None:
        """Return None if no job of this queue ever was here. Asks each time: a restored PostgreSQL may have given the
        id to another tenant's queue."""
        return self._find_queue(ref)

    def identity(self, *, anew: bool = False) -> str:
        """Return the id of this PostgreSQL, which its copies share. `anew` asks although it is known."""
        if self._identity is None or anew:
            with self.transaction() as conn, conn.cursor(row_factory=scalar_row) as cursor:
                found = cursor.execute(QUERIES["read_identity"]).fetchone()
            assert isinstance(found, str), "the migration has added it"
            if self._identity not in (None, found):
                self.forget_ids()
            self._identity = found
        return self._identity

    def forget_ids(self) -> None:
        """Ask for the ids of queues anew: they may stand for others."""
        self._ids.clear()
        self._refs.clear()

    def read_timeline(self) -> str:
        """Return what changes when PostgreSQL is promoted or recovered; empty if this user may not ask."""
        try:
            with self.transaction() as conn, conn.cursor(row_factory=scalar_row) as cursor:
                return str(cursor.execute(QUERIES["read_timeline"]).fetchone())
        except NotPermitted:
            return ""

    def raise_version(self, queue_id: int, known: int) -> None:
        """Give the queue's numbers a later version than the one that Valkey knows."""
        with self.transaction() as conn:
            conn.execute(QUERIES["raise_version"], {"queue_id": queue_id, "known": known})

    def record_event(
        self, server: str, shard: int, kind: str, description: str, losses: Mapping[QueueRef, int] | None = None
    ) -> None:
        with self.transaction() as conn:
            record_event(conn, server, shard, kind, description, losses or {})

    def _find_queue(self, ref: QueueRef) -> int | None:
        with self.transaction() as conn:
            row = conn.execute(QUERIES["find_queue"], vars(ref)).fetchone()
        return None if row is None else int(row[0])

    def numbers(self, shard: int) -> list[tuple[Backlog, ColdNumbers]]:
        """Of every queue of a shard that ever had a job here."""
        with self.transaction() as conn, conn.cursor(row_factory=dict_row) as cursor:
            cursor.execute(QUERIES["list_counters"], {"shard": shard})
            return [(_backlog(row), _numbers(row)) for row in cursor]

    def backlog(self, shard: int, now_ms: float, until_ms: float) -> list[Backlog]:
        """Queues of the shard with rows that wait, are due until then, or have outlived their TTL."""
        with self.transaction() as conn, conn.cursor(row_factory=dict_row) as cursor:
            cursor.execute(QUERIES["list_queues_with_work"], {"shard": shard, "until": until_ms, "now": now_ms})
            return [_backlog({"queue_id": row["id"], **row}) for row in cursor]

    # Spill

    def spill(
        self, ref: QueueRef, shard: int, jobs: Sequence[SpillJob], *, valkey_epoch: int, cold_epoch: int
    ) -> tuple[list[bool], ColdNumbers]:
        """Keep the jobs, all or none. For each: True, or False if one of that id waits here already."""
        first: dict[str, int] = {}
        for number, job in enumerate(jobs):
            first.setdefault(job.new.id, number)
        known: set[str] = set()
        for _ in range(DUPLICATE_TRIES):
            kept = {number for job_id, number in first.items() if job_id not in known}
            queue_id = self.queue_id(ref, shard)
            try:
                new = [jobs[number] for number in sorted(kept)]
                numbers = self._spill(ref, new, queue_id, valkey_epoch, cold_epoch)
            except DatabaseRestored:
                if self._identity is None:
                    raise  # another PostgreSQL: its caller decides whether it is the right one
                continue  # the queue's id is asked for anew
            except DuplicateKey:
                known = self._known_ids(queue_id, jobs)  # found out only now: the usual case need not
                continue
            return [number in kept for number in range(len(jobs))], numbers
        raise DatabaseUnavailable("Other producers spill jobs of the same ids all the time. Nothing was written.")

    def _spill(
        self, ref: QueueRef, jobs: Sequence[SpillJob], queue_id: int, valkey_epoch: int, cold_epoch: int
    ) -> ColdNumbers:
        delayed = [job for job in jobs if job.delayed]
        delta = Delta(
            waiting=len(jobs) - len(delayed),
            waiting_bytes=sum(len(job.new.payload) for job in jobs if not job.delayed),
            delayed=len(delayed),
            delayed_bytes=sum(len(job.new.payload) for job in delayed),
            spilled=len(jobs),
        )
        # Jobs that are not yet due overtake nobody: they may come under any epoch.
        epoch = cold_epoch if delta.waiting else None
        spill_id, xact = uuid.uuid4(), None
        try:
            with self.transaction() as conn:
                self._copy_in(conn, queue_id, jobs)
                tenant = TenantRef.of(ref.environment)
                rows = conn.execute(QUERIES["insert_spill"], {"id": spill_id, **vars(tenant)}).fetchall()
                quotas = resolve(tenant, rows)
                # Last, because from here until the commit other producers of this queue wait, and those of its tenant
                # if that has a quota.
                lock_tenants(conn, quotas)
                numbers, xact = self._change(conn, queue_id, delta, epoch, valkey_epoch, limits=self._limits)
                refuse_beyond(quotas, partial(read_cold_use, conn), _adding(delta))
                details = Counter((job.new.task, job.new.flow, job.new.flow_type) for job in jobs if not job.delayed)
                self._count_details(conn, queue_id, details)
        except CommitUnclear as error:
            assert xact is not None, "the commit is last"
            if not self._was_spilled(spill_id, xact):
                raise DatabaseUnavailable(f"{DatabaseUnavailable()} ({error})") from error
            numbers = self.numbers_of(queue_id)
        return numbers

    def _copy_in(self, conn: Connection, queue_id: int, jobs: Iterable[SpillJob]) -> None:
        with conn.cursor() as cursor, cursor.copy(QUERIES["copy_rows"]) as copy:
            copy_rows(copy, queue_id, jobs)

    def _known_ids(self, queue_id: int, jobs: Iterable[SpillJob]) -> set[str]:
        with self.transaction() as conn, conn.cursor(row_factory=scalar_row) as cursor:
            cursor.execute(QUERIES["find_duplicate_ids"], {"queue_id": queue_id, "ids": [job.new.id for job in jobs]})
            return set(cursor)

    def _was_spilled(self, spill_id: uuid.UUID, xact: int) -> bool:
        """The connection was lost during the commit. PostgreSQL knows whether it happened: wait until it says so.
        Raises CommitUnclear if it does not."""
        deadline = time.monotonic() + UNCLEAR_S
        while time.monotonic() < deadline:
            try:
                if xact_status(self._pool, xact) != "in progress":
                    with self.transaction() as conn:
                        return conn.execute(QUERIES["find_spill"], {"id": spill_id}).fetchone() is not None
            except DatabaseUnavailable:
                pass  # asked again until the deadline
            time.sleep(UNCLEAR_PAUSE_S)
        raise CommitUnclear

    def numbers_of(self, queue_id: int) -> ColdNumbers:
        with self.transaction() as conn:
            return self._numbers_of(conn, queue_id)

    def all_numbers_of(self, queue_id: int) -> ColdNumbers:
        """Since when the oldest waits as well, all of one moment: the version stands for both."""
        with self.transaction() as conn:
            conn.execute(QUERIES["repeatable_read"])
            return with_oldest(self._numbers_of(conn, queue_id), self.oldest_ms(conn, queue_id))

    def _numbers_of(self, conn: Connection, queue_id: int) -> ColdNumbers:
        with conn.cursor(row_factory=dict_row) as cursor:
            row = cursor.execute(QUERIES["read_counters"], {"queue_id": queue_id}).fetchone()
        if row is None:
            self._check_id(queue_id, None)
        assert row is not None
        return _numbers(row)

    # Parts of a mover's transaction

    def lock_mover(self, conn: Connection, queue_id: int) -> int:
        """Keep others from moving, cancelling or redriving jobs of this queue until the transaction ends.

        Returns the version of the queue's numbers."""
        row = conn.execute(QUERIES["lock_mover"], {"queue_id": queue_id}).fetchone()
        self._check_id(queue_id, row and row[1:])
        assert row is not None
        return int(row[0])

    def _check_id(self, queue_id: int, names: Sequence[Any] | None) -> None:
        """Raise DatabaseRestored if the id does not stand for the queue that it was found for."""
        if names is None or self._refs.get(queue_id, QueueRef(*names)) != QueueRef(*names):
            self.forget_ids()
            raise DatabaseRestored

    def place_quickly(self, conn: Connection) -> None:
        """Let the commit of a transaction that deletes nothing not wait for the disk."""
        conn.execute(QUERIES["disable_synchronous_commit"])

    def place_durably(self, conn: Connection) -> None:
        """Take `place_quickly` back: the transaction deletes something."""
        conn.execute(QUERIES["reset_synchronous_commit"])

    def lock_queue(self, conn: Connection, queue_id: int) -> None:
        """Nobody spills either."""
        conn.execute(QUERIES["lock_queue"], {"queue_id": queue_id})

    def claim(self, conn: Connection, queue_id: int, most: int, size: int) -> list[ColdRow]:
        """Return the next rows in order, up to `most` and about `size` bytes."""
        return self._rows(conn, QUERIES["claim"], {"queue_id": queue_id, "most": most, "bytes": max(size, 1)})

    def claim_but(self, conn: Connection, queue_id: int, most: int, size: int, placed: Iterable[int]) -> list[ColdRow]:
        """Return the next rows in order that are not placed yet."""
        values = {"queue_id": queue_id, "most": most, "bytes": max(size, 1), "placed": list(placed)}
        return self._rows(conn, QUERIES["claim_unplaced"], values)

    def claim_after(
        self, conn: Connection, queue_id: int, most: int, size: int, position: tuple[int, float, int]
    ) -> list[ColdRow]:
        """Return the next rows in order behind a position (priority, due ms, number)."""
        priority, due_ms, seq = position
        values = {"queue_id": queue_id, "most": most, "bytes": max(size, 1)}
        return self._rows(conn, QUERIES["claim_after"], {**values, "priority": priority, "due_ms": due_ms, "seq": seq})

    def claim_delayed(
        self, conn: Connection, queue_id: int, most: int, size: int, until_ms: float, placed: Iterable[int] = ()
    ) -> list[ColdRow]:
        """Return rows that are due until then and not placed yet, next first."""
        values = {"queue_id": queue_id, "most": most, "bytes": max(size, 1), "until": until_ms}
        return self._rows(conn, QUERIES["claim_delayed"], {**values, "placed": list(placed)})

    def _rows(self, conn: Connection, query: LiteralString, values: Mapping[str, Any]) -> list[ColdRow]:
        with conn.cursor(row_factory=class_row(ColdRow), binary=True) as cursor:
            return cursor.execute(query, values).fetchall()

    def existing(self, conn: Connection, seqs: Sequence[int]) -> set[int]:
        with conn.cursor(row_factory=scalar_row) as cursor:
            return set(cursor.execute(QUERIES["find_existing_rows"], {"seqs": list(seqs)}))

    def delete(self, conn: Connection, seqs: Sequence[int]) -> None:
        conn.execute(QUERIES["delete_rows"], {"seqs": list(seqs)})

    def quarantine(self, conn: Connection, reasons: Mapping[int, str]) -> None:
        conn.execute(QUERIES["quarantine"], {"seqs": list(reasons), "reasons": list(reasons.values())})

    def change(
        self,
        conn: Connection,
        queue_id: int,
        delta: Delta,
        details: Mapping[Kind, int],
        *,
        valkey_epoch: int | None,
        close_epoch: int | None = None,
    ) -> ColdNumbers:
        """Count what this transaction did. No spill of `close_epoch`, or of any before, is taken from now on.

        Returns the numbers after that, with since when the oldest waits if that may have changed: nobody else changes
        the queue before the commit."""
        numbers, _ = self._change(conn, queue_id, delta, None, valkey_epoch, close_epoch)
        self._count_details(conn, queue_id, details)
        return with_oldest(numbers, self.oldest_ms(conn, queue_id)) if delta.waiting else numbers

    def oldest_ms(self, conn: Connection, queue_id: int) -> float | None:
        row = conn.execute(QUERIES["find_oldest_due"], {"queue_id": queue_id}).fetchone()
        return None if row is None else row[0]

    def expire(
        self,
        queue_id: int,
        now_ms: float,
        most: int,
        valkey_epoch: int | None,
        had: Callable[[], Iterable[PlacedRow]],
    ) -> tuple[int, ColdNumbers | None]:
        """Give up rows whose TTL is over; how many. Not those that Valkey `had` already: only their row was left."""
        with self.transaction() as conn:
            self.lock_mover(conn, queue_id)
            with conn.cursor(row_factory=dict_row) as cursor:
                values = {"queue_id": queue_id, "now": now_ms, "most": most, "placed": [row.seq for row in had()]}
                rows = cursor.execute(QUERIES["expire_rows"], values).fetchall()
            if not rows:
                return 0, None
            waiting = [row for row in rows if not row["delayed"]]
            delta = _leaving(rows, expired=len(rows))
            numbers = self.change(conn, queue_id, delta, _details(waiting, -1), valkey_epoch=valkey_epoch)
        return len(rows), numbers

    def confirm(self, queue_id: int, placed: Sequence[PlacedRow]) -> ColdNumbers:
        """Delete rows whose jobs are in Valkey; returns the numbers after that."""
        with self.transaction() as conn:
            self.lock_mover(conn, queue_id)
            ids = {"seqs": [row.seq for row in placed], "job_ids": [row.job_id or "" for row in placed]}
            with conn.cursor(row_factory=dict_row) as cursor:
                rows = cursor.execute(QUERIES["delete_placed_rows"], {"queue_id": queue_id, **ids}).fetchall()
            details = _details((row for row in rows if not row["delayed"]), -1)
            return self.change(conn, queue_id, _leaving(rows, refilled=len(rows)), details, valkey_epoch=None)

    def promote(
        self, conn: Connection, queue_id: int, until_ms: float, most: int, placed: Iterable[int] = ()
    ) -> tuple[Delta, Counter[Kind]]:
        """Let rows that are due and found no room wait for it like the others, but those that are placed."""
        with conn.cursor(row_factory=dict_row) as cursor:
            values = {"queue_id": queue_id, "until": until_ms, "most": most, "placed": list(placed)}
            rows = cursor.execute(QUERIES["promote_due_rows"], values).fetchall()
        size = sum(row["size"] for row in rows)
        delta = Delta(waiting=len(rows), waiting_bytes=size, delayed=-len(rows), delayed_bytes=-size)
        return delta, _details(rows, 1)

    # Single jobs

    def find(self, env: EnvRef, job_id: str) -> Found | None:
        """A job that waits, else one that is dead."""
        with self.transaction() as conn, conn.cursor(row_factory=class_row(Found)) as cursor:
            for query in (QUERIES["find_waiting_job"], QUERIES["find_dead_job"]):
                if found := cursor.execute(query, {**vars(env), "job_id": job_id}).fetchone():
                    return found
        return None

    def cancel(self, found: Found, had: Callable[[], Iterable[PlacedRow]]) -> ColdNumbers | None:
        """None: it is not here any more, or Valkey `had` it already and only its row was left."""
        with self.transaction() as conn:
            self.lock_mover(conn, found.queue_id)
            is_placed = any(row.seq == found.seq and row.job_id in (None, found.job_id) for row in had())
            if is_placed or not self.existing(conn, [found.seq]):
                return None
            self.delete(conn, [found.seq])
            row = vars_of(found)
            details = _details([] if found.delayed else [row], -1)
            return self.change(conn, found.queue_id, _leaving([row], cancelled=1), details, valkey_epoch=None)

    # Dead jobs

    def keep_dead(
        self, queue_id: int, read: Callable[[], Sequence[DeadRow]], valkey_epoch: int | None
    ) -> tuple[Sequence[DeadRow], ColdNumbers | None]:
        """Take what `read` gives. It reads under the lock, so that no job is among it that was redriven meanwhile."""
        with self.transaction() as conn:
            self.lock_mover(conn, queue_id)
            rows = read()
            added = 0
            for row in rows:
                added += conn.execute(QUERIES["insert_dead_job"], {"queue_id": queue_id, **vars(row)}).rowcount
            if not added:
                return rows, None
            return rows, self.change(conn, queue_id, Delta(dead=added), {}, valkey_epoch=valkey_epoch)

    def dead_page(self, queue_id: int, which: DeadFilter, after: Place | None, scan: int) -> list[DeadEntry]:
        """Newest first, after a place. Looks at `scan` of them; those that do not match are marked."""
        place = {"after_ms": after[0] if after else None, "after_id": after[1] if after else None}
        values = {"queue_id": queue_id, "scan": scan, **place, **_matching(which)}
        with self.transaction() as conn, conn.cursor(row_factory=class_row(DeadEntry)) as cursor:
            return cursor.execute(QUERIES["list_dead"], values).fetchall()

    def dead_job(self, queue_id: int, job_id: str, payload_bytes: int) -> DeadEntry | None:
        values = {"queue_id": queue_id, "job_id": job_id, "payload_bytes": payload_bytes}
        with self.transaction() as conn, conn.cursor(row_factory=class_row(DeadEntry)) as cursor:
            return cursor.execute(QUERIES["find_dead_in_queue"], values).fetchone()

    def remove_dead(self, queue_id: int, which: DeadFilter, most: int) -> tuple[int, ColdNumbers | None]:
        """Dead jobs are gone for good; how many."""
        values = {"queue_id": queue_id, "most": most, **_matching(which)}
        with self.transaction() as conn:
            self.lock_mover(conn, queue_id)
            removed = conn.execute(QUERIES["delete_dead"], values).rowcount
            if not removed:
                return 0, None
            return removed, self.change(conn, queue_id, Delta(dead=-removed, removed=removed), {}, valkey_epoch=None)

    def queues_with_dead(self, shard: int, before_ms: int) -> list[Backlog]:
        """Queues of the shard with jobs that were buried before then."""
        with self.transaction() as conn, conn.cursor(row_factory=dict_row) as cursor:
            cursor.execute(QUERIES["list_queues_with_old_dead"], {"shard": shard, "before_ms": before_ms})
            return [_backlog(row) for row in cursor]

    def redrive(
        self, ref: QueueRef, queue_id: int, which: DeadFilter, most: int, now_ms: float
    ) -> tuple[int, ColdNumbers | None]:
        """Dead jobs wait again; how many. Raises QuotaExceeded, and then all of them stay dead."""
        values = {"queue_id": queue_id, "most": most, "now": now_ms, **_matching(which)}
        with self.transaction() as conn:
            self.lock_mover(conn, queue_id)
            quotas = hold_quotas(conn, TenantRef.of(ref.environment), (Quota.COLD_JOBS, Quota.COLD_BYTES))
            with conn.cursor(row_factory=dict_row) as cursor:
                rows = cursor.execute(QUERIES["redrive_dead"], values).fetchall()
            if not rows:
                return 0, None
            size = sum(row["size"] for row in rows)
            delta = Delta(waiting=len(rows), waiting_bytes=size, dead=-len(rows), redriven=len(rows))
            numbers = self.change(conn, queue_id, delta, _details(rows, 1), valkey_epoch=None)
            refuse_beyond(quotas, partial(read_cold_use, conn), _adding(delta))
        return len(rows), numbers

    # Details and settings

    def details(self, where: EnvRef | None = None, /, **parts: str | None) -> list[Detail]:
        """How many wait here and since when, by what they are part of: in an environment, where some parts of the name
        (org, project, env, queue) are these, or everywhere."""
        names = {**dict.fromkeys(("org", "project", "env", "queue")), **(vars(where) if where else {}), **parts}
        with self.transaction() as conn:
            rows = conn.execute(QUERIES["list_flow_depths"], names).fetchall()
        return [Detail(QueueRef(*row[:4]), *row[4:]) for row in rows]

    def record_settings(self, ref: QueueRef | EnvRef, values: Mapping[str, str | None]) -> None:
        with self.transaction() as conn:
            self.put_settings(conn, ref, values)

    def put_settings(self, conn: Connection, ref: QueueRef | EnvRef, values: Mapping[str, str | None]) -> None:
        names = {"queue": "", **vars(ref)}
        for name, value in values.items():
            conn.execute(QUERIES["put_setting"], {**names, "name": name, "value": value or ""})

    def settings(self) -> list[tuple[QueueRef | EnvRef, str, str | None]]:
        """Every setting that was ever made; None: it was taken back."""
        with self.transaction() as conn:
            rows = conn.execute(QUERIES["list_settings"]).fetchall()
        return [(QueueRef(*row[:4]) if row[3] else EnvRef(*row[:3]), row[4], row[5] or None) for row in rows]

    @contextmanager
    def held_setting(self, ref: QueueRef | EnvRef, name: str) -> Generator[str | None]:
        """As `settings` told it or as it is by now; nobody changes it until this ends."""
        with self.transaction() as conn, conn.cursor(row_factory=scalar_row) as cursor:
            names = {"queue": "", **vars(ref), "name": name}
            yield cursor.execute(QUERIES["lock_setting"], names).fetchone() or None

    # Audit

    def recount(self, queue_id: int) -> tuple[Counter[str], Counter[Kind]]:
        """What is missing in the counters: (of the queue, of its details). Empty: they agree with the rows.

        A statement sees one state of the database, so nothing need be locked to compare."""
        with self.transaction() as conn:
            return self._recount(conn, queue_id)

    def repair(self, queue_id: int) -> tuple[Counter[str], Counter[Kind]]:
        """Set the counters to what the rows say, while nobody changes either; returns what was missing in them."""
        with self.transaction() as conn:
            self.lock_mover(conn, queue_id)
            self.lock_queue(conn, queue_id)
            off, details = self._recount(conn, queue_id)
            off.pop("unaccounted", None)
            self.change(conn, queue_id, Delta(**off), details, valkey_epoch=None)
        return off, details

    def _recount(self, conn: Connection, queue_id: int) -> tuple[Counter[str], Counter[Kind]]:
        with conn.cursor(row_factory=dict_row) as cursor:
            queue = cursor.execute(QUERIES["compare_counters"], {"queue_id": queue_id}).fetchone()
            details = cursor.execute(QUERIES["compare_flow_counts"], {"queue_id": queue_id}).fetchall()
        assert queue is not None
        return (
            Counter({name: value for name, value in queue.items() if value}),
            Counter({(row["task"], row["flow"], row["flow_type"]): row["missing"] for row in details}),
        )

    def tidy(self) -> None:
        """Forget spills that nobody asks about any more, and details that are empty."""
        with self.transaction() as conn:
            conn.execute(QUERIES["delete_old_spills"])
            conn.execute(QUERIES["delete_empty_flow_counts"])

    # The one way counters change

    def _change(
        self,
        conn: Connection,
        queue_id: int,
        delta: Delta,
        epoch: int | None,
        valkey_epoch: int | None,
        close_epoch: int | None = None,
        limits: Limits = NO_LIMITS,
    ) -> tuple[ColdNumbers, int]:
        values = {
            **vars_of(delta),
            **{"queue_id": queue_id, "epoch": epoch, "valkey_epoch": valkey_epoch, "close": close_epoch},
            **{"max_items": limits.max_items, "max_bytes": limits.max_bytes},
            **self._believed_names(queue_id),
        }
        with conn.cursor(row_factory=dict_row) as cursor:
            row = cursor.execute(QUERIES["update_counters"], values).fetchone()
            if row is None:
                self._refuse(conn, queue_id, epoch)
                raise ColdFull
            if self._identity not in (None, row["postgres_id"]):  # another one answers at the same address
                self._identity = None
                self.forget_ids()
                raise DatabaseRestored
            return _numbers(row), row["xact"]

    def _believed_names(self, queue_id: int) -> dict[str, str | None]:
        """Return the names that the id was found for, to be compared; None for each if it is not from memory."""
        ref = self._refs.get(queue_id)
        return {**NO_NAMES} if ref is None else {**vars(ref)}

    def _refuse(self, conn: Connection, queue_id: int, epoch: int | None) -> None:
        row: Any = conn.execute(QUERIES["read_epoch"], {"queue_id": queue_id}).fetchone()
        self._check_id(queue_id, row and row[1:])
        if epoch is not None and row[0] > epoch:
            raise EpochClosed(row[0])

    def _count_details(self, conn: Connection, queue_id: int, details: Mapping[Kind, int]) -> None:
        if details:
            tasks, flows, flow_types = (list(values) for values in zip(*details, strict=True))
            counts = list(details.values())
            values = {"queue_id": queue_id, "tasks": tasks, "flows": flows, "flow_types": flow_types, "counts": counts}
            conn.execute(QUERIES["add_flow_counts"], values)


_COPY_TYPES = (
    *("int8", "text", "text", "text", "text", "bytea", "int4", "int2", "int4", "int8", "float8", "int8", "bool"),
)


def record_event(
    conn: Connection, server: str, shard: int, kind: str, description: str, losses: Mapping[QueueRef, int]
) -> None:
    """Note what happened to a server, and how many accepted jobs of which queues are missing since."""
    values = {"server": server, "shard": shard, "kind": kind, "description": description}
    with conn.cursor(row_factory=scalar_row) as cursor:
        event_id = cursor.execute(QUERIES["insert_server_event"], values).fetchone()
        rows = [{"event_id": event_id, **vars(ref), "missing": missing} for ref, missing in losses.items()]
        cursor.executemany(QUERIES["insert_server_event_loss"], rows)


def copy_rows(copy: Copy, queue_id: int, jobs: Iterable[SpillJob]) -> None:
    """Write jobs in the columns of the query `copy_rows`."""
    copy.set_types(_COPY_TYPES)
    for job in jobs:
        new = job.new
        copy.write_row(
            (
                *(queue_id, new.id, new.task, new.flow, new.flow_type, new.payload, len(new.payload)),
                *(new.priority, new.max_attempts, job.enqueued_ms, job.due_ms, job.expires_ms, job.delayed),
            )
        )


_NUMBERS = [field.name for field in fields(ColdNumbers) if field.name != "oldest_ms"]


def vars_of(data: Any) -> dict[str, Any]:
    return {field.name: getattr(data, field.name) for field in fields(data)}


def with_oldest(numbers: ColdNumbers, oldest_ms: float | None) -> ColdNumbers:
    return replace(numbers, oldest_ms=oldest_ms)


def _numbers(row: Mapping[str, Any]) -> ColdNumbers:
    return ColdNumbers(**{name: row[name] for name in _NUMBERS})


def _backlog(row: Mapping[str, Any]) -> Backlog:
    return Backlog(row["queue_id"], QueueRef(row["org"], row["project"], row["env"], row["queue"]))


def _details(rows: Iterable[Mapping[str, Any]], sign: int) -> Counter[Kind]:
    counts: Counter[Kind] = Counter()
    for row in rows:
        counts[row["task"], row["flow"], row["flow_type"]] += sign
    return counts


def _adding(delta: Delta) -> dict[str, int]:
    """Return what a transaction adds to what the quotas of the cold tier count."""
    return {
        Quota.COLD_JOBS: delta.waiting + delta.delayed,
        Quota.COLD_BYTES: delta.waiting_bytes + delta.delayed_bytes,
    }


def _matching(which: DeadFilter) -> dict[str, Any]:
    return {
        **{"ids": list(which.ids) or None, "task": which.task, "error": which.error},
        **{"from_ms": which.buried_from_ms, "until_ms": which.buried_until_ms},
    }


def _leaving(rows: Sequence[Mapping[str, Any]], **totals: int) -> Delta:
    delayed = [row for row in rows if row["delayed"]]
    delayed_bytes = sum(row["size"] for row in delayed)
    return Delta(
        waiting=len(delayed) - len(rows),
        waiting_bytes=delayed_bytes - sum(row["size"] for row in rows),
        delayed=-len(delayed),
        delayed_bytes=-delayed_bytes,
        **totals,
    )


def leaving(rows: Sequence[ColdRow], **totals: int) -> tuple[Delta, Counter[Kind]]:
    """What it means for the counters that these rows are no longer here."""
    as_mappings = [vars(row) for row in rows]
    return _leaving(as_mappings, **totals), _details((row for row in as_mappings if not row["delayed"]), -1)
