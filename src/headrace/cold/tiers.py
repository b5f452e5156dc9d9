"""Both tiers as producers and operators see them: what does not fit into Valkey is kept in PostgreSQL.

    client = SyncClient(url, options, Tiers(url, postgres_url, options))

A job is accepted when PostgreSQL has committed it. Telling Valkey afterwards is a courtesy that may fail: whoever tells
it next tells the whole truth.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from functools import cached_property
from typing import Any, TypeVar

from headrace.cold.store import NO_LIMITS, Found, Limits, Store, with_oldest
from headrace.errors import DatabaseRestored, HeadraceError, QuotaExceeded, WrongDatabase
from headrace.model.job import JobInfo, JobState
from headrace.model.names import EnvRef, QueueRef
from headrace.postgres.connect import open_pool
from headrace.queue import keys
from headrace.queue.bounds import NO_BOUNDS
from headrace.queue.overflow import SpillJob
from headrace.queue.queue import QueueOptions, store_shards
from headrace.queue.quotas import count_refusal
from headrace.queue.scripts import DEAD_BYTES, ColdNumbers, DeadFilter, DeadRow, Enqueued, PlacedRow, Stubs
from headrace.valkey.connect import ScriptError, Valkey, available, connect
from headrace.valkey.scripts import Call, run

T = TypeVar("T")

log = logging.getLogger(__name__)

FAR_MS = 60_000
KEEP_MS = 60_000
PAGE = 500


class Tiers:
    """Fulfils `headrace.queue.overflow.Overflow`. Safe to share between threads."""

    def __init__(
        self,
        valkey_url: str,
        postgres_url: str,
        options: QueueOptions | None = None,
        limits: Limits = NO_LIMITS,
        far_ms: int = FAR_MS,
        keep_ms: int = KEEP_MS,
    ) -> None:
        self.far_ms = far_ms
        self._keep_ms = keep_ms  # how long the id of a dead job stays taken once it is in PostgreSQL
        self._options = options or QueueOptions()
        self.store = Store(open_pool(postgres_url), limits)
        self._valkey_url = valkey_url
        self.valkey: Valkey = connect(valkey_url)

    @cached_property
    def stubs(self) -> Stubs:
        """Made at first use, when the number of shards is read from Valkey, or stored there. Raises ShardMismatch."""
        with available():
            found = store_shards(self.valkey, self._options.shards)
        return self._options.resolve(found, NO_BOUNDS).stubs()

    def close(self) -> None:
        self.store.close()
        self.valkey.close()

    @contextmanager
    def reconnected(self) -> Generator[Tiers]:
        """A copy with Valkey connections of its own: calls to a cluster wait for each other while one of its servers is
        away. PostgreSQL's pool is shared."""
        other = copy(self)
        other.valkey = connect(self._valkey_url)
        try:
            yield other
        finally:
            other.valkey.close()

    def run(self, call: Call[T]) -> T:
        return run(self.valkey, call)

    # What producers do

    def spill(self, ref: QueueRef, jobs: Sequence[SpillJob], told: Enqueued) -> Sequence[bool]:
        shard = self.stubs.shard_of(ref)
        epochs = {"valkey_epoch": told.valkey_epoch, "cold_epoch": told.cold_epoch}
        self._check_postgres(shard, told.postgres_id)
        try:
            kept, numbers = self.store.spill(ref, shard, jobs, **epochs)
        except DatabaseRestored:
            self.check_postgres(shard, anew=True)
            kept, numbers = self.store.spill(ref, shard, jobs, **epochs)
        except QuotaExceeded as error:
            self._count_refusal(ref.environment, error)
            raise
        waiting = [job.due_ms for job, was_kept in zip(jobs, kept, strict=True) if was_kept and not job.delayed]
        if numbers.waiting == len(waiting) > 0:  # they are all there is
            numbers = with_oldest(numbers, min(waiting))
        self.tell(ref, numbers)
        return kept

    def _count_refusal(self, env: EnvRef, error: QuotaExceeded) -> None:
        try:
            count_refusal(self.valkey, self.stubs.shards, env, error.quota)
        except HeadraceError as unavailable:
            log.warning("could not count a refusal: %s", unavailable, extra={"action": "unavailable"})

    def find(self, env: EnvRef, job_id: str) -> JobInfo | None:
        found = self.store.find(env, job_id)
        return None if found is None else job_info(env, found)

    def cancel(self, env: EnvRef, job_id: str) -> JobState | None:
        found = self.store.find(env, job_id)
        self.check_postgres(self.stubs.shard_of(env))
        if found is None or found.error is not None:
            return None if found is None else JobState.DEAD
        numbers = self.store.cancel(found, lambda: self.unconfirmed(found.ref))
        if numbers is None:  # it came to Valkey meanwhile
            return self.run(self.stubs.cancel(env, job_id))
        self.tell(found.ref, numbers)
        return waiting_state(found)

    # What operators do

    def redrive(self, ref: QueueRef, which: DeadFilter) -> int:
        return self.redrive_some(ref, which, None)

    def redrive_some(self, ref: QueueRef, which: DeadFilter, most: int | None) -> int:
        """Those in Valkey come here first: from there on one place knows which jobs are dead."""
        queue_id = self.gather_dead(ref)

        def redrive(page: int) -> tuple[int, ColdNumbers | None]:
            return self.store.redrive(ref, queue_id, which, page, self.run(self.stubs.room(ref)).now_ms)

        return self._in_pages(ref, redrive, most)

    def remove_dead(self, ref: QueueRef, which: DeadFilter, most: int | None) -> int:
        """Dead jobs of both tiers are gone for good, longest dead first; how many."""
        queue_id = self.gather_dead(ref)
        return self._in_pages(ref, lambda page: self.store.remove_dead(queue_id, which, page), most)

    def _in_pages(self, ref: QueueRef, do: Callable[[int], tuple[int, ColdNumbers | None]], most: int | None) -> int:
        """A transaction for each, until there are no more, `most` are done, or a quota leaves no room. Returns how
        many. Raises QuotaExceeded if there is no room for one."""
        done, page = 0, PAGE
        while most is None or done < most:
            size = page if most is None else min(page, most - done)
            try:
                count, numbers = do(size)
            except QuotaExceeded as error:
                if size > 1:
                    page = size // 2
                    continue
                self._count_refusal(ref.environment, error)
                if done:
                    break
                raise
            if numbers is not None:
                self.tell(ref, numbers)
            done += count
            if count < size:
                break
        return done

    def gather_dead(self, ref: QueueRef) -> int:
        """All dead jobs that Valkey holds come here; the number of the queue."""
        self.check_postgres(self.stubs.shard_of(ref))
        queue_id = self.store.queue_id(ref, self.stubs.shard_of(ref))
        while self.move_dead(ref, queue_id, PAGE):
            pass
        return queue_id

    def move_dead(self, ref: QueueRef, queue_id: int, most: int) -> bool:
        """Dead jobs leave Valkey's memory; were there more? (One that died meanwhile does not count: while jobs keep
        dying there always is one.) A job that is in both places, after a crash, is forgotten there."""
        epoch = self.run(self.stubs.room(ref)).valkey_epoch

        def read() -> Sequence[DeadRow]:
            return self.run(self.stubs.dead(ref, most, DEAD_BYTES))

        rows, numbers = self.store.keep_dead(queue_id, read, epoch)
        if rows:
            self.run(self.stubs.forget(ref, rows, self._keep_ms))
        if numbers is not None:
            self.tell(ref, numbers)
        return len(rows) == most or sum(row.size for row in rows) >= DEAD_BYTES

    def unconfirmed(self, ref: QueueRef) -> Sequence[PlacedRow]:
        """Return the rows whose jobs are in Valkey and whose removal PostgreSQL has not confirmed."""
        return self.run(self.stubs.room(ref, name_placed=True)).unconfirmed

    def confirm(self, ref: QueueRef, queue_id: int, placed: Sequence[PlacedRow]) -> ColdNumbers:
        """Delete rows whose jobs are in Valkey, and let Valkey drop their numbers; returns what PostgreSQL holds."""
        numbers = self.store.confirm(queue_id, placed)
        self.tell(ref, numbers, [row.seq for row in placed])
        return numbers

    def record_settings(self, ref: QueueRef | EnvRef, values: Mapping[str, str | None]) -> None:
        self.check_postgres(self.stubs.shard_of(ref))
        self.store.record_settings(ref, values)

    # Which PostgreSQL it is

    def check_postgres(self, shard: int, *, anew: bool = False) -> None:
        """Raise WrongDatabase if jobs of this shard wait in another PostgreSQL. `anew` asks PostgreSQL which one it is
        although that is known."""
        self._check_postgres(shard, self.known_postgres(shard), anew=anew)

    def known_postgres(self, shard: int) -> str:
        """Return the id of the PostgreSQL where jobs of this shard wait; empty: not known yet."""
        with available():
            known: Any = self.valkey.hget(keys.meta(shard), "postgres")
        return known.decode() if known else ""

    def _check_postgres(self, shard: int, known: str, *, anew: bool = False) -> None:
        own = self.store.identity(anew=anew)
        if not known:
            with available():
                self.valkey.hsetnx(keys.meta(shard), "postgres", own)
                found: Any = self.valkey.hget(keys.meta(shard), "postgres")
            known = found.decode()
        if known != own and (anew or known != self.store.identity(anew=True)):
            raise WrongDatabase

    def adopt_postgres(self) -> None:
        """Let every shard's jobs wait in this PostgreSQL from now on, in place of any other."""
        own = self.store.identity(anew=True)
        for shard in range(self.stubs.shards):
            with available():
                self.valkey.hset(keys.meta(shard), "postgres", own)
            self.store.record_event("postgres", shard, "adopted", "An operator let jobs wait in this PostgreSQL.")

    def tell(self, ref: QueueRef, numbers: ColdNumbers, gone: Sequence[int] = ()) -> None:
        """Never raises for Valkey's sake: what PostgreSQL has committed is done, whether or not Valkey heard of it."""
        try:
            self.run(self.stubs.settle(ref, numbers, gone, self.store.identity()))
        except (HeadraceError, ScriptError) as error:
            log.warning("told nobody what PostgreSQL holds: %s", error, extra={"action": "unavailable"})


def waiting_state(found: Found) -> JobState:
    return JobState.SCHEDULED if found.delayed else JobState.COLD


def job_info(env: EnvRef, found: Found) -> JobInfo:
    return JobInfo(
        environment=env,
        id=found.job_id,
        state=waiting_state(found) if found.error is None else JobState.DEAD,
        queue=found.queue,
        task=found.task,
        payload=found.payload,
        flow=found.flow,
        flow_type=found.flow_type,
        priority=found.priority,
        attempts=found.attempts,
        max_attempts=found.max_attempts,
        enqueued_at_ms=found.enqueued_ms,
        due_at_ms=None if found.due_ms is None else int(found.due_ms),
        expires_at_ms=found.expires_ms,
        error=found.error,
    )
