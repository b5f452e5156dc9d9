"""The mover moves jobs from PostgreSQL back to Valkey when there is room, and dead jobs from Valkey to PostgreSQL.

One mover per shard leads, under a lease; the others stand by. For each batch of a queue:

1. lock    its row in cold_movers. A paused mover keeps this lock, so no other can overtake it, until PostgreSQL ends
           its session after `IDLE_IN_TRANSACTION_S`
2. claim   the next rows, in order. Nothing is marked: the lock is the claim
3. refill  one script call places what fits and records the row numbers in `moving`, so that a row placed again does
           not become a second job, even if the first is done. It refuses a mover whose token is outdated or whose lock
           may have ended
4. delete  the rows once their copy in Valkey is safe (valkey/durability.py), update the counters, commit. Meanwhile
           the next batches are placed, up to `MAX_PLACED` rows of a shard
5. sync    the counters to Valkey, and remove the numbers of the deleted rows from `moving`

After a crash before step 4, rows are in both tiers; the next mover, or an audit, finds their numbers in `moving` and
does steps 4 and 5 as soon as the copy is safe. Rows whose copy was lost in a failover are placed again. After a crash
before step 5, `moving` has numbers without a row; numbers are never reused, so they do no harm until they are removed
in the same way.

A queue leaves cold mode when no row waits and Valkey is at most 80 % full. The mover then locks the queue's row, which
blocks spills, moves the last rows, closes the epoch, commits, and reopens the queue in Valkey under the next epoch.
Blocked spills carry the old epoch and are refused; their producers enqueue in Valkey again, which now accepts the jobs.

A row whose id another job in Valkey has (earlier releases accepted such jobs in another queue) waits in PostgreSQL like
a delayed one, and is tried again every ID_RETRY_MS: it blocks no other row, and runs once the id is free.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from threading import Event, Thread
from typing import Any

from headrace.cold.audit import Drift, TierAudit
from headrace.cold.mover_metrics import MoverMetrics
from headrace.cold.placed import PlacedRows
from headrace.cold.settings import SettingsRestorer
from headrace.cold.shares import ROUND_INTERVAL_S, ShareRoundRunner
from headrace.cold.store import CounterDelta, compute_removal
from headrace.cold.tiers import Tiers
from headrace.cold.valkey_losses import ValkeyLossDetector
from headrace.errors import (
    DatabaseUnavailable,
    HeadraceError,
    MemoryFull,
    MoverFenced,
    QueueUnavailable,
    WrongDatabase,
)
from headrace.model.job import make_job_id
from headrace.model.names import QueueRef, find_name_problem
from headrace.postgres.connect import IDLE_IN_TRANSACTION_S, Connection
from headrace.queue import keys
from headrace.queue.scripts import ColdCounters, ColdRow, DeadFilter, PlacedRow, RefillResult, RefillState, Stubs
from headrace.runtime.lease import HELD_ELSEWHERE, LeaseState
from headrace.valkey.connect import ScriptError, find_node, translate_errors
from headrace.valkey.durability import CopySafety, RefillAfter
from headrace.valkey.lease import ValkeyLease
from headrace.valkey.scripts import ScriptCall, run

log = logging.getLogger(__name__)

BATCH = 500
BATCHES_PER_VISIT = 20  # of one queue, before the other queues are served
SWEEP_BATCH = 1000
LOOK_AHEAD_MS = 30_000.0  # delayed jobs are moved to Valkey this long before they are due
ID_RETRY_MS = 2 * LOOK_AHEAD_MS  # a row whose id is in use is due after this, so it is tried again after half of it
RECONNECT_S = 1.0
STOP_S = 10.0  # how long shards may take to stop; the thread of a hanging shard ends with the process
# A mover that was paused for longer than this since it read a queue's state may have lost its lock.
LOCK_VALID_MS = (IDLE_IN_TRANSACTION_S - 2.0) * 1000
MAX_FAILED_ROWS = 10  # placing rows one by one ends after this many failures

IDLE_WAIT_S = 0.25  # how long to block for refill requests of one shard
BUSY_WAIT_S = 0.005  # the same within BUSY_S after a request
BUSY_S = 1.0
REQUEST_PAGE = 100
REQUEST_CHECK_S = 0.05  # interval of serving refill requests during a sweep
MAX_PLACED = 100_000  # rows of a shard that are placed and not yet deleted
DELETE_BATCH = 5000
AUDIT_SLICE_S = 0.1  # how long an audit runs before other work of the shard


@dataclass(frozen=True)
class MoverOptions:
    every_s: float = 5.0  # interval of sweeps
    lease_s: float = 15.0  # longer than a paused mover can hold a lock
    audit_every_s: float = 60.0
    keep_dead_s: float | None = None  # dead jobs are removed after this; None: never
    batch: int = BATCH
    refill_after: RefillAfter = "fsync"  # when a placed row may be deleted: see valkey/durability.py

    def __post_init__(self) -> None:
        assert self.lease_s > IDLE_IN_TRANSACTION_S


@dataclass
class RefillBatch:
    """Outcomes of claimed rows."""

    placed: list[ColdRow] = field(default_factory=list[ColdRow])  # their jobs are in Valkey
    expired: list[ColdRow] = field(default_factory=list[ColdRow])
    quarantined: list[tuple[ColdRow, str]] = field(default_factory=list[tuple[ColdRow, str]])  # row, reason
    id_in_use: list[ColdRow] = field(default_factory=list[ColdRow])  # another job has the id; to be tried again
    full: bool = False  # some rows did not fit
    valkey_epoch: int | None = None

    @property
    def handled(self) -> set[int]:
        """Return the numbers of the rows that must not be claimed again."""
        quarantined = (row for row, _ in self.quarantined)
        return {row.seq for row in (*self.placed, *self.expired, *quarantined, *self.id_in_use)}

    def quarantine(self, row: ColdRow, reason: str) -> None:
        self.quarantined.append((row, reason))

    def apply(self, rows: Sequence[ColdRow], refilled: RefillResult) -> None:
        """Add the result of a refill call with these rows."""
        self.valkey_epoch = refilled.valkey_epoch
        self.full = len(refilled.answers) < len(rows)
        for row, answer in zip(rows, refilled.answers, strict=False):
            if answer == RefillResult.EXPIRED:
                self.expired.append(row)
            elif answer == RefillResult.ID_IN_USE:
                self.id_in_use.append(row)
            else:
                self.placed.append(row)


class MoverLease(ValkeyLease):
    """Lease of a shard. Its token is an argument of the scripts that move jobs, which refuse an older one."""

    fenced = MoverFenced

    def __init__(self, tiers: Tiers, shard: int, lease_s: float, holder: str) -> None:
        super().__init__(tiers.valkey, keys.mover(shard), lease_s, holder)
        self._stubs = tiers.stubs
        self._shard = shard

    def _request(self) -> LeaseState:
        token = run(self._client, self._stubs.elect(self._shard, self.holder, self._lease_ms))
        return LeaseState(token) if token else HELD_ELSEWHERE

    def _release(self) -> None:
        if self.token is not None:
            run(self._client, self._stubs.elect(self._shard, self.holder, 1))

    def _log_change(self) -> None:
        if self.token is not None:
            log.info("became mover of shard %d", self._shard, extra={"action": "elected"})


class Mover:
    """Mover of `shards` (None: all). With several shards, each runs in its own thread, see run_forever."""

    def __init__(
        self,
        tiers: Tiers,
        options: MoverOptions | None = None,
        name: str | None = None,
        shards: Sequence[int] | None = None,
        metrics: MoverMetrics | None = None,
    ) -> None:
        self.name = name or f"{socket.gethostname()}-{os.getpid()}-{make_job_id()[-6:]}"
        self._tiers = tiers
        self._store = tiers.store
        self._options = options or MoverOptions()
        self._audit = TierAudit(tiers, self._adopt_placed)
        self._settings = SettingsRestorer(tiers)
        self._loss_detector = ValkeyLossDetector(tiers)
        self._shares = ShareRoundRunner(tiers)
        self._share_at = 0.0
        self._leases: dict[int, MoverLease] = {}  # by shard
        self._safety: dict[int, CopySafety] = {}
        self._placed: defaultdict[int, dict[QueueRef, PlacedRows]] = defaultdict(dict)  # by shard
        self._deferred: set[QueueRef] = set()  # queues to refill after placed rows are deleted
        self._shards = shards
        self._shard_movers: list[Mover] = []  # one per shard, if each has its own thread
        self.metrics = metrics or MoverMetrics(self.count_led)
        self._last_errors: dict[int, str] = {}  # last error since the last sweep, by shard
        self._renew_at = 0.0
        self._last_request_at = 0.0  # time of the last refill request
        self._next_request_check_at = 0.0
        self._sweep_at: dict[int, float] = {}
        self._audit_at: dict[int, float] = {}
        self._auditing: dict[int, Iterator[Drift]] = {}  # audits in progress, by shard

    @cached_property
    def _stubs(self) -> Stubs:
        return self._tiers.stubs  # may read from Valkey at first use, so not in the constructor

    @property
    def _tokens(self) -> dict[int, int]:
        """Fencing tokens of the shards that this mover leads."""
        return {shard: lease.token for shard, lease in list(self._leases.items()) if lease.token is not None}

    def run_forever(self, stop: Event) -> None:
        """Run until `stop` is set, each shard in a thread with its own connections, so that a shard whose server is
        unavailable, or whose scripts fail, delays only its own jobs."""
        shards = self._wait_for_shards(stop)
        if len(shards) == 1:
            self._run_until_stopped(stop)
            return
        threads = [Thread(target=self._run_shard, args=[shard, stop], name=f"mover-{shard}") for shard in shards]
        for thread in threads:
            thread.daemon = True
            thread.start()
        stop.wait()
        until = time.monotonic() + STOP_S
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))

    def count_led(self) -> int:
        """Return the number of shards that this process leads."""
        return len(self._tokens) + sum(part.count_led() for part in self._shard_movers)

    def _list_shards(self) -> Sequence[int]:
        return range(self._stubs.shards) if self._shards is None else self._shards

    def _wait_for_shards(self, stop: Event) -> Sequence[int]:
        """Return the shards to serve, once their number was read from Valkey; none if `stop` is set before."""
        while not stop.is_set():
            try:
                return self._list_shards()
            except HeadraceError as error:
                self._record_failure(error)
                stop.wait(RECONNECT_S)
        return ()

    def _run_shard(self, shard: int, stop: Event) -> None:
        while not stop.is_set():
            try:
                with self._tiers.open_copy() as tiers:
                    part = Mover(tiers, self._options, self.name, [shard], self.metrics)
                    self._shard_movers.append(part)
                    part.run_forever(stop)
            except QueueUnavailable as error:  # the client of a cluster connects in its constructor
                self._record_failure(error, shard)
                stop.wait(RECONNECT_S)

    def _run_until_stopped(self, stop: Event) -> None:
        while not stop.is_set():
            try:
                self.run_once()
            except Exception as error:  # a server is unavailable or not migrated, or a script failed
                self._record_failure(error, *self._list_shards())
                stop.wait(RECONNECT_S)
        self.resign()

    def _record_failure(self, error: Exception, *shards: int) -> None:
        self.metrics.sweeps.record_failure(error, shards)
        action = "unavailable" if isinstance(error, HeadraceError) else "mover_failed"
        log.warning(
            "could not move jobs of shards %s, retrying: %s",
            list(shards) or "(number unknown)",
            error,
            exc_info=None if isinstance(error, HeadraceError | ScriptError) else error,
            extra={"action": action},
        )

    def run_once(self) -> None:
        """Renew leadership; then do the work that is due in each shard, or wait for refill requests."""
        self.renew_leadership()
        if not self._tokens:
            time.sleep(min(1.0, self._options.lease_s / 3))
            return
        for shard in self._tokens:
            self._serve_shard(shard)

    def _serve_shard(self, shard: int) -> None:
        now = time.monotonic()
        if now >= self._sweep_at.get(shard, 0.0):
            self._sweep_at[shard] = now + self._options.every_s
            self.sweep(shard)
            self.metrics.sweeps.record_success(time.monotonic() - now, (shard,))
        self._continue_audit(shard)
        self._share_out(shard)
        self._delete_safe(shard)
        put_off, self._deferred = self._deferred, set()
        for ref in [*put_off, *self._wait_for_refill_requests(shard)]:
            self.refill_queue(ref)

    def _share_out(self, shard: int) -> None:
        """Start a round of sharing out the quotas of projects and organisations, once per second. Only the mover that
        leads shard 0 does so."""
        now = time.monotonic()
        if shard == 0 and now >= self._share_at:
            self._share_at = now + ROUND_INTERVAL_S
            self._shares.start_round()

    def _continue_audit(self, shard: int) -> None:
        """Start an audit if it is due, and continue it for AUDIT_SLICE_S: it visits every queue, and refill requests
        must not wait for its end. After an audit, remove old dead jobs."""
        now = time.monotonic()
        if shard not in self._auditing and now >= self._audit_at.setdefault(shard, now):
            self._audit_at[shard] = now + self._options.audit_every_s
            self._auditing[shard] = self.metrics.track_audit(self._audit.run_incrementally(shard))
        steps = self._auditing.pop(shard, None)
        if steps is None:
            return
        for _ in steps:
            if time.monotonic() >= now + AUDIT_SLICE_S:
                self._auditing[shard] = steps
                return
        self.remove_old_dead(shard)

    # Leading

    def renew_leadership(self) -> None:
        """Acquire the leadership of shards without a leader, and renew it for shards that this mover leads."""
        now = time.monotonic()
        if now < self._renew_at:
            return
        self._renew_at = now + self._options.lease_s / 3
        for shard in self._list_shards():
            if shard not in self._leases:
                self._leases[shard] = MoverLease(self._tiers, shard, self._options.lease_s, self.name)
            lease = self._leases[shard]
            before = lease.token
            if not lease.acquire() or lease.token != before:
                self._placed.pop(shard, None)  # another mover leads or has led in between; Valkey has the current rows
        if not self._tokens:
            self.metrics.sweeps.record_standby(tuple(self._list_shards()))

    def resign(self) -> None:
        """Give up leadership, so that another mover can lead at once. Does not affect a mover that has already taken
        over."""
        for lease in self._leases.values():
            lease.release()
        self._placed.clear()
        self._shares.wait(STOP_S)
        for safety in self._safety.values():
            safety.close()
        self._safety = {}

    def _drop_leadership(self, shard: int) -> None:
        self.metrics.sweeps.record_superseded((shard,))
        self._leases[shard].mark_lost()
        self._placed.pop(shard, None)
        self._renew_at = 0.0

    # Refill requests and sweeps

    @translate_errors()
    def _wait_for_refill_requests(self, shard: int) -> list[QueueRef]:
        """Return queues that requested a refill. Block for the first one up to IDLE_WAIT_S, or BUSY_WAIT_S if any shard
        had a request within BUSY_S or is being audited: shards are served in turn, and an idle one must not delay the
        others."""
        idle_s = min(IDLE_WAIT_S, self._options.every_s)
        idle = time.monotonic() > self._last_request_at + BUSY_S and not self._auditing.keys() & self._tokens.keys()
        wait_s = idle_s if idle else BUSY_WAIT_S
        key = keys.refill_requests(shard)
        first: Any = self._tiers.valkey.bzpopmin(key, timeout=wait_s)
        if first is None:
            return []
        more: Any = self._tiers.valkey.zpopmin(key, REQUEST_PAGE)
        self._last_request_at = time.monotonic()
        return _parse_refs([first[1], *(part for part, _ in more)])

    @translate_errors()
    def sweep(self, shard: int) -> None:
        """Do a shard's periodic work: restore settings, check for lost data, move dead jobs, expire rows, sync
        counters, and visit every queue with a backlog or in cold mode, in case a refill request was lost."""
        try:
            self._tiers.check_postgres(shard, refresh=True)
        except WrongDatabase as error:
            self._report_status(shard, str(error))
            raise
        self._settings.restore_if_needed(shard)  # first: workers wait for it
        self._loss_detector.check(shard)
        self._check_timeline(shard)
        node = find_node(self._tiers.valkey, keys.meta(shard))
        clock: Any = node.time()
        cold: Any = node.smembers(keys.cold(shard))
        buried: Any = node.smembers(keys.buried(shard))
        now_ms = clock[0] * 1000 + clock[1] / 1000
        backlog = set(self._store.list_queues_with_work(shard, now_ms, now_ms + LOOK_AHEAD_MS))
        self._next_request_check_at = time.monotonic() + REQUEST_CHECK_S
        for ref in _parse_refs(buried):
            self._run_guarded(ref, self._move_dead_jobs)
            self._serve_refill_requests()
        for ref in sorted(backlog):
            self._run_guarded(ref, self._expire)
            self._run_guarded(ref, self._audit.sync_queue)
            self._serve_refill_requests()
        for ref in sorted(backlog.union(_parse_refs(cold))):
            self.refill_queue(ref)
            self._serve_refill_requests()
        self._report_losses(shard)
        self._report_status(shard, self._last_errors.pop(shard, ""))

    # Events of PostgreSQL

    @translate_errors()
    def _check_timeline(self, shard: int) -> None:
        """Detect that PostgreSQL was promoted or recovered, record it, and start an audit."""
        timeline = self._store.read_timeline()
        known: Any = self._tiers.valkey.hget(keys.meta(shard), "postgres_timeline")
        if not timeline or (known and known.decode() == timeline):
            return
        if known:
            description = f"System identifier and timeline were {known.decode()} and are {timeline}."
            log.warning("PostgreSQL was promoted or recovered: %s", description, extra={"action": "server_event"})
            self._store.clear_id_cache()
            self._store.record_event("postgres", shard, "promoted", description)
            self._audit_at[shard] = 0.0
        self._tiers.valkey.hset(keys.meta(shard), "postgres_timeline", timeline)

    @translate_errors()
    def _report_losses(self, shard: int) -> None:
        """Record the accepted jobs that a restored PostgreSQL does not have, as found by `sync_cold`."""
        key, taken = keys.losses(shard), keys.losses(shard) + ":taken"
        if not self._tiers.valkey.exists(taken):
            if not self._tiers.valkey.exists(key):
                return
            self._tiers.valkey.rename(key, taken)
        fields: Any = self._tiers.valkey.hgetall(taken)
        losses = {keys.parse_queue_part(part.decode()): int(missing) for part, missing in fields.items()}
        description = f"Totals of {len(losses)} queues decreased: it was restored to an earlier point."
        log.error("PostgreSQL was restored to an earlier point: %s missing", losses, extra={"action": "server_event"})
        self._store.record_event("postgres", shard, "went back", description, losses)
        self._tiers.valkey.delete(taken)
        self._audit_at[shard] = 0.0

    @translate_errors()
    def _serve_refill_requests(self) -> None:
        """Serve pending refill requests of all shards this mover leads, at most every REQUEST_CHECK_S, so that a long
        sweep does not delay them."""
        if time.monotonic() < self._next_request_check_at:
            return
        for shard in self._tokens:
            requests: Any = self._tiers.valkey.zpopmin(keys.refill_requests(shard), REQUEST_PAGE)
            for ref in _parse_refs(part for part, _ in requests):
                self.refill_queue(ref)
        self._next_request_check_at = time.monotonic() + REQUEST_CHECK_S

    def refill_queue(self, ref: QueueRef) -> None:
        """Move what fits into Valkey, see `_run_guarded`."""
        self._run_guarded(ref, self._refill_queue)

    def _run_guarded(self, ref: QueueRef, do: Callable[[QueueRef], None]) -> None:
        """Run `do` for a queue if this mover leads its shard. Errors of one queue are logged and do not stop the
        others; QueueUnavailable and DatabaseUnavailable are raised."""
        shard = self._stubs.find_shard(ref)
        try:
            if shard in self._tokens:
                self.renew_leadership()
                if shard not in self._tokens:
                    raise MoverFenced  # paused for longer than the lease
                do(ref)
        except MoverFenced:
            self._drop_leadership(shard)
        except (QueueUnavailable, DatabaseUnavailable) as error:
            self._report_status(shard, str(error))
            raise
        except Exception as error:
            log.exception("could not move jobs of %s", ref, extra={"action": "mover_failed"})
            self.metrics.count_queue_failure()
            self._last_errors[shard] = f"{' / '.join(vars(ref).values())}: {error}"

    def _report_status(self, shard: int, error: str) -> None:
        """Store the mover's status for `headrace doctor`. `error` is empty if the sweep succeeded."""
        status = {"name": self.name, "at": str(time.time_ns() // 1_000_000), "error": error[:500]}
        # The next call to Valkey reports a failure of this one.
        with suppress(HeadraceError, ScriptError), translate_errors():
            for what, value in status.items():
                self._tiers.valkey.hset(keys.meta(shard), f"mover_{what}", value)

    # Moving

    def _refill_queue(self, ref: QueueRef) -> None:
        shard = self._stubs.find_shard(ref)
        queue_id = self._store.ensure_queue_id(ref, shard)
        self._delete_safe(shard)
        if shard not in self._tokens:
            raise MoverFenced
        for _ in range(BATCHES_PER_VISIT):
            state = self._tiers.run(self._stubs.read_refill_state(ref))
            if state.placed != len(self._get_placed(ref)):
                self._adopt_placed(ref, queue_id)
            if not state.needs_refill or state.items == 0:
                self._promote_due(ref, queue_id, state)
                return None
            if sum(map(len, self._placed[shard].values())) >= MAX_PLACED:
                self._deferred.add(ref)
                return None
            batch = self._refill_waiting(ref, queue_id, state) or self._refill_delayed(ref, queue_id, state)
            if batch is None:
                return self._leave_cold_mode(ref, queue_id, state)
            # A large job did not fit; a job that became due meanwhile may precede it and fit.
            if batch.full and not self._promote_due(ref, queue_id, state):
                return None
        return None

    # Placed rows that are not deleted yet

    def _get_safety(self, shard: int) -> CopySafety:
        if shard not in self._safety:
            key = keys.meta(shard)
            node = partial(find_node, self._tiers.valkey, key)
            self._safety[shard] = CopySafety(node, key, self._options.refill_after)
        return self._safety[shard]

    def _get_placed(self, ref: QueueRef) -> PlacedRows:
        return self._placed[self._stubs.find_shard(ref)].setdefault(ref, PlacedRows())

    def _adopt_placed(self, ref: QueueRef, queue_id: int) -> None:
        """Take over rows that another mover placed and did not delete. They count as placed now, because the actual
        time is unknown."""
        placed = self._get_placed(ref)
        unconfirmed = self._tiers.list_unconfirmed(ref)
        if unconfirmed and self._get_safety(self._stubs.find_shard(ref)).is_immediate():
            self._tiers.confirm_placed(ref, queue_id, unconfirmed)
            placed.remove(unconfirmed)
        else:
            placed.keep_only({row.seq for row in unconfirmed})
            placed.add(unconfirmed, time.monotonic())

    def _delete_safe(self, shard: int) -> None:
        """Do steps 4 and 5 for all rows whose copy in Valkey is safe."""
        if not any(self._placed[shard].values()):
            return
        before = self._get_safety(shard).find_safe_time()
        for ref in list(self._placed[shard]):
            self._run_guarded(ref, lambda ref: self._delete_placed(ref, before))

    def _delete_placed(self, ref: QueueRef, before: float) -> None:
        shard = self._stubs.find_shard(ref)
        placed = self._get_placed(ref)
        queue_id = self._store.ensure_queue_id(ref, shard)
        while rows := placed.take_safe(before, DELETE_BATCH):
            try:
                kept = self._filter_placed(shard, ref, rows)
                if kept:
                    counters = self._tiers.confirm_placed(ref, queue_id, kept)
                    if counters.version == placed.version + 1:  # no other change of the queue's rows
                        placed.version = counters.version
                if len(kept) < len(rows):
                    placed.restart()
            except BaseException:
                placed.put_back(rows)
                raise
            placed.remove(rows)
        if not placed:
            self._placed[shard].pop(ref, None)

    @translate_errors()
    def _filter_placed(self, shard: int, ref: QueueRef, rows: Sequence[PlacedRow]) -> list[PlacedRow]:
        """Return the rows that are still in Valkey. Others were lost in a failover to a replica that was behind."""
        flags: Any = self._tiers.valkey.smismember(keys.moving(shard, ref), [row.seq for row in rows])
        kept = [row for row, flag in zip(rows, flags, strict=True) if flag]
        if len(kept) < len(rows):
            lost = len(rows) - len(kept)
            log.warning("Valkey lost %d jobs of %s; placing them again", lost, ref, extra={"action": "placed_again"})
        return kept

    # One batch

    def _promote_due(self, ref: QueueRef, queue_id: int, state: RefillState) -> bool:
        """Mark delayed rows that are due as waiting, because the queue has no room. Return whether there were any."""
        placed = self._get_placed(ref).rows
        counters = self._store.promote_due(queue_id, state.now_ms, SWEEP_BATCH, placed, state.valkey_epoch or None)
        if counters is None:
            return False
        self._tiers.sync_counters(ref, counters)
        return True

    def _refill_waiting(self, ref: QueueRef, queue_id: int, state: RefillState) -> RefillBatch | None:
        most, placed = min(self._options.batch, state.items), self._get_placed(ref)
        return self._move_batch(
            ref,
            queue_id,
            state,
            lambda conn, version: self._claim(conn, queue_id, placed, version, most, state.bytes),
        )

    def _claim(
        self, conn: Connection, queue_id: int, placed: PlacedRows, version: int, limit: int, size: int
    ) -> list[ColdRow]:
        """Return the next rows, in order, that are not placed yet."""
        now = time.monotonic()
        if placed.position is not None and placed.can_continue(version, now):
            return self._store.claim_after(conn, queue_id, limit, size, placed.position)
        placed.record_scan(version, now)
        if not placed:
            return self._store.claim(conn, queue_id, limit, size)
        return self._store.claim_unplaced(conn, queue_id, limit, size, placed.rows)

    def _refill_delayed(self, ref: QueueRef, queue_id: int, state: RefillState) -> RefillBatch | None:
        most, until = min(self._options.batch, state.items), state.now_ms + LOOK_AHEAD_MS
        placed = self._get_placed(ref).rows
        return self._move_batch(
            ref,
            queue_id,
            state,
            lambda conn, _: self._store.claim_delayed(conn, queue_id, most, state.bytes, until, placed),
        )

    def _move_batch(
        self, ref: QueueRef, queue_id: int, state: RefillState, claim: Callable[[Connection, int], list[ColdRow]]
    ) -> RefillBatch | None:
        """Do steps 1 to 3 for one batch, and also 4 and 5 if its copy is safe at once. None: there are no rows to
        move."""
        is_immediate = self._get_safety(self._stubs.find_shard(ref)).is_immediate()
        with self._store.transaction() as conn:
            if not is_immediate:
                self._store.disable_synchronous_commit(conn)
            rows = claim(conn, self._store.lock_mover(conn, queue_id))
            if not rows:
                return None
            batch = self._place_rows(ref, rows, state.now_ms + LOCK_VALID_MS)
            counters = self._delete_rows(conn, queue_id, batch, state.now_ms, is_immediate=is_immediate)
        self._record_placed(ref, rows, batch, counters, is_immediate=is_immediate)
        return batch

    def _record_placed(
        self,
        ref: QueueRef,
        rows: Sequence[ColdRow],
        batch: RefillBatch,
        counters: ColdCounters | None,
        *,
        is_immediate: bool,
    ) -> None:
        """Update metrics, placed rows and the counters in Valkey after the commit of a batch."""
        self.metrics.count_rows(refill=len(batch.placed), expire=len(batch.expired), quarantine=len(batch.quarantined))
        placed = self._get_placed(ref)
        if not is_immediate:
            placed.add([PlacedRow(row.seq, row.job_id) for row in batch.placed], time.monotonic())
            if not any(row.delayed for row in rows):
                placed.advance(rows, batch.handled)
        if counters is not None:
            self._tiers.sync_counters(ref, counters, [row.seq for row in batch.placed] if is_immediate else ())

    def _place_rows(self, ref: QueueRef, rows: Sequence[ColdRow], until_ms: float) -> RefillBatch:
        """Do step 3. An invalid row is quarantined, and the others are tried again."""
        batch = RefillBatch()
        remaining: list[ColdRow] = []
        for row in rows:
            if problem := find_row_problem(row):
                batch.quarantine(row, problem)
            else:
                remaining.append(row)
        while remaining:
            try:
                batch.apply(remaining, self._tiers.run(self._make_refill_call(ref, until_ms, remaining)))
                break
            except MemoryFull:
                batch.full = True
                break
            except ScriptError as error:
                rejected = find_rejected_row(error, remaining)
                if rejected is None:
                    return self._place_one_by_one(ref, batch, remaining, until_ms)
                batch.quarantine(rejected, "a numeric column is invalid")
                remaining.remove(rejected)
        return batch

    def _make_refill_call(self, ref: QueueRef, until_ms: float, rows: Sequence[ColdRow]) -> ScriptCall[RefillResult]:
        return self._stubs.refill(ref, self._get_token(ref), until_ms, rows, self._store.read_identity())

    def _place_one_by_one(
        self, ref: QueueRef, batch: RefillBatch, rows: Sequence[ColdRow], until_ms: float
    ) -> RefillBatch:
        """Place rows one by one after the script failed on an unknown row. Rows that fail are quarantined if another
        one was placed; if none was, the rows are not at fault: they stay, and the error is raised."""
        failed: list[tuple[ColdRow, ScriptError]] = []
        for row in rows:
            try:
                batch.apply([row], self._tiers.run(self._make_refill_call(ref, until_ms, [row])))
            except ScriptError as error:
                failed.append((row, error))
            if batch.full or len(failed) == MAX_FAILED_ROWS:
                break
        if failed and not batch.placed:
            raise failed[0][1]
        for row, error in failed:
            batch.quarantine(row, str(error)[:500])
        return batch

    def _get_token(self, ref: QueueRef) -> int:
        return self._tokens[self._stubs.find_shard(ref)]

    def _delete_rows(
        self, conn: Connection, queue_id: int, batch: RefillBatch, now_ms: float, *, is_immediate: bool
    ) -> ColdCounters | None:
        """Do step 4 without the commit. Placed rows stay unless their copy is safe at once; rows whose id is in use
        wait in PostgreSQL. Return the counters; None if no row was changed."""
        placed, counters = batch.placed if is_immediate else [], None
        if batch.id_in_use:
            due_ms = now_ms + ID_RETRY_MS
            counters = self._store.postpone(conn, queue_id, batch.id_in_use, due_ms, batch.valkey_epoch)
        if not placed and not batch.expired and not batch.quarantined:
            return counters
        if not is_immediate:
            self._store.restore_synchronous_commit(conn)
        if placed or batch.expired:
            self._store.delete(conn, [row.seq for row in (*placed, *batch.expired)])
        if batch.quarantined:
            reasons = {row.seq: reason for row, reason in batch.quarantined}
            self._store.quarantine(conn, reasons)
            log.error("quarantined rows that cannot be refilled: %s", reasons, extra={"action": "quarantined"})
        removed = [vars(row) for row in (*placed, *batch.expired, *(row for row, _ in batch.quarantined))]
        counts = {"refilled": len(placed), "expired": len(batch.expired), "quarantined": len(batch.quarantined)}
        removal, ids = compute_removal(removed, **counts), [row["job_id"] for row in removed]
        return self._store.update_counters(conn, queue_id, *removal, valkey_epoch=batch.valkey_epoch, deleted_ids=ids)

    def _leave_cold_mode(self, ref: QueueRef, queue_id: int, state: RefillState) -> None:
        """End cold mode if no row waits: close the epoch while spills are blocked, then reopen the queue in Valkey."""
        if not state.cold_mode or not state.may_leave_cold:
            return
        batch, rows, most = RefillBatch(), [], min(self._options.batch, state.items)
        is_immediate = self._get_safety(self._stubs.find_shard(ref)).is_immediate()
        with self._store.locked_transaction(queue_id) as conn:
            self._store.lock_queue(conn, queue_id)
            placed = list(self._get_placed(ref).rows)
            counters: ColdCounters | None = None
            if rows := self._store.claim_unplaced(conn, queue_id, most, state.bytes, placed):
                batch = self._place_rows(ref, rows, state.now_ms + LOCK_VALID_MS)
                counters = self._delete_rows(conn, queue_id, batch, state.now_ms, is_immediate=is_immediate)
                placed += [row.seq for row in batch.placed]
            if closes := not self._store.claim_unplaced(conn, queue_id, 1, 1, placed):
                epoch = batch.valkey_epoch or state.valkey_epoch or None
                freed = counters.freed_ids if counters else ()
                counters = self._store.update_counters(
                    conn, queue_id, CounterDelta(), {}, valkey_epoch=epoch, close_epoch=state.cold_epoch
                )
                counters = replace(counters, freed_ids=freed)
        self._record_placed(ref, rows, batch, counters, is_immediate=is_immediate)
        if closes and counters is not None:
            self._tiers.run(self._stubs.leave_cold(ref, self._get_token(ref), state.cold_epoch, counters.epoch))

    # Sweeping

    def _expire(self, ref: QueueRef) -> None:
        queue_id = self._store.ensure_queue_id(ref, self._stubs.find_shard(ref))
        state = self._tiers.run(self._stubs.read_refill_state(ref))
        if state.placed != len(self._get_placed(ref)):
            self._adopt_placed(ref, queue_id)
        while True:
            count, counters = self._store.expire(
                queue_id,
                state.now_ms,
                SWEEP_BATCH,
                state.valkey_epoch or None,
                lambda: self._tiers.list_unconfirmed(ref),  # Valkey handles their TTL, and may have run them
            )
            self.metrics.count_rows(expire=count)
            if counters is not None:
                self._tiers.sync_counters(ref, counters)
            if count < SWEEP_BATCH:
                return

    @translate_errors()
    def remove_old_dead(self, shard: int) -> int:
        """Remove dead jobs older than `keep_dead_s`. Return how many. Dead jobs in Valkey move to PostgreSQL first, so
        only PostgreSQL is searched."""
        if self._options.keep_dead_s is None:
            return 0
        clock: Any = find_node(self._tiers.valkey, keys.meta(shard)).time()
        before_ms = clock[0] * 1000 - int(self._options.keep_dead_s * 1000)
        removed = 0

        def remove(ref: QueueRef) -> None:
            nonlocal removed
            removed += self._tiers.remove_dead(ref, DeadFilter(buried_until_ms=before_ms - 1), None)

        for ref in self._store.list_queues_with_old_dead(shard, before_ms):
            self._run_guarded(ref, remove)
        self.metrics.count_rows(remove=removed)
        if removed:
            log.info("removed %d dead jobs of shard %d", removed, shard, extra={"action": "removed_dead"})
        return removed

    def _move_dead_jobs(self, ref: QueueRef) -> None:
        queue_id = self._store.ensure_queue_id(ref, self._stubs.find_shard(ref))
        for _ in range(BATCHES_PER_VISIT):
            if not self._tiers.move_dead(ref, queue_id, self._options.batch):
                return


def _parse_refs(parts: Iterable[bytes]) -> list[QueueRef]:
    return [keys.parse_queue_part(part.decode()) for part in parts]


def find_row_problem(row: ColdRow) -> str | None:
    """Return why a row cannot be placed, or None. Checks the names; the script checks the numeric columns."""
    for what in ("job_id", "task", "flow", "flow_type"):
        name: str = getattr(row, what)
        if (name or what in ("job_id", "task")) and (problem := find_name_problem(name)):
            return f"{what} {problem}"
    return None


def find_rejected_row(error: ScriptError, rows: Iterable[ColdRow]) -> ColdRow | None:
    """Return the row that the script rejected (`POISON <number>`), or None for another error."""
    word, _, number = str(error).partition(" ")
    return next((row for row in rows if word == "POISON" and str(row.seq) == number), None)
