"""The mover brings jobs back from PostgreSQL when Valkey has room, and takes dead ones there.

One mover per shard leads, under a lease; the others stand by. For each batch of a queue:

1. lock    its row in cold_movers: whoever paused here holds it, so nobody passes him (PostgreSQL ends his session after
           `IDLE_IN_TRANSACTION_S`, and with it the lock)
2. claim   the next rows, in order. Nothing is marked: the lock is the claim
3. refill  one script call. It refuses a mover that is no longer the leader, takes what fits, and notes the rows'
           numbers as `moving`, so that a row that comes again is not a job again, even if the job is done by then
4. delete  the rows once their copy in Valkey is safe (valkey/durability.py), count, commit. Meanwhile the next batches
           are placed, behind these, up to `MAX_PLACED` rows of a shard
5. settle  Valkey learns the new numbers, and that the rows are gone: their numbers may be forgotten

A crash before 4 leaves rows that are in Valkey; the next mover, or audit, finds their numbers there and does 4 and 5 as
soon as the copy is safe. Rows whose copy is gone again by then, after a failover, are placed once more.
A crash before 5 leaves numbers in `moving` that no row has; numbers are never used twice, so they harm nobody until
they are dropped in the same way.

A queue leaves cold mode when nothing waits and Valkey is at most 80 % full. The mover then locks the queue's row, which
makes spills wait, moves what came last, closes the epoch, commits, and reopens the queue in Valkey under the next
epoch. Spills that waited carry the old epoch and are refused; their producers ask Valkey again, and find it open.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from threading import Event, Thread
from typing import Any

from headrace.cold.audit import Audit, Drift
from headrace.cold.figures import MoverFigures
from headrace.cold.placed import PlacedRows
from headrace.cold.settings import SettingsKeeper
from headrace.cold.shares import EVERY_S as SHARE_EVERY_S
from headrace.cold.shares import ShareRounds
from headrace.cold.store import Delta, leaving
from headrace.cold.tiers import Tiers
from headrace.cold.valkey_watch import ValkeyWatch
from headrace.errors import (
    DatabaseUnavailable,
    HeadraceError,
    MemoryFull,
    MoverFenced,
    QueueUnavailable,
    WrongDatabase,
)
from headrace.model.job import new_job_id
from headrace.model.names import QueueRef, name_problem
from headrace.postgres.connect import IDLE_IN_TRANSACTION_S, Connection
from headrace.queue import keys
from headrace.queue.scripts import ColdNumbers, ColdRow, DeadFilter, PlacedRow, Refilled, Room, Stubs
from headrace.valkey.connect import ScriptError, available, node_of
from headrace.valkey.durability import CopySafety, RefillAfter
from headrace.valkey.scripts import Call, run

log = logging.getLogger(__name__)

BATCH = 500
BATCHES_PER_VISIT = 20  # then the other queues have their turn
SWEEP_BATCH = 1000
LOOK_AHEAD_MS = 30_000.0  # jobs that are due this soon wait in Valkey
RECONNECT_S = 1.0
STOP_S = 10.0  # how long shards may take to end; one whose server hangs ends with the process
# A mover that was paused for longer than this since it looked at a queue cannot know that its lock still holds.
SURE_OF_LOCK_MS = (IDLE_IN_TRANSACTION_S - 2.0) * 1000
HOPELESS = 10  # rows that fail one after the other, and then no more are tried

IDLE_WAIT_S = 0.25  # for one shard's queues to ask for jobs
BUSY_WAIT_S = 0.005  # the same within BUSY_S after some queue did
BUSY_S = 1.0
HUNGRY_PAGE = 100
ATTEND_S = 0.05  # how long a sweep goes on before it looks who asks for jobs
MAX_PLACED = 100_000  # rows of a shard that are placed and wait for their deletion
DELETE_BATCH = 5000
AUDIT_SLICE_S = 0.1  # how long an audit goes on before it is another one's turn


@dataclass(frozen=True)
class MoverOptions:
    every_s: float = 5.0  # how often PostgreSQL is asked for queues with a backlog
    lease_s: float = 15.0  # longer than a paused mover can hold a lock
    audit_every_s: float = 60.0
    keep_dead_s: float | None = None  # None: until somebody redrives or removes them
    batch: int = BATCH
    refill_after: RefillAfter = "fsync"  # when a row may be deleted: see valkey/durability.py

    def __post_init__(self) -> None:
        assert self.lease_s > IDLE_IN_TRANSACTION_S


@dataclass
class Batch:
    """What became of claimed rows."""

    gone: list[ColdRow] = field(default_factory=list[ColdRow])  # they are in Valkey
    expired: list[ColdRow] = field(default_factory=list[ColdRow])
    aside: list[tuple[ColdRow, str]] = field(default_factory=list[tuple[ColdRow, str]])  # cannot be moved, and why
    full: bool = False  # some found no room
    valkey_epoch: int | None = None

    @property
    def placed(self) -> list[PlacedRow]:
        return [PlacedRow(row.seq, row.job_id) for row in self.gone]

    @property
    def handled(self) -> set[int]:
        """Numbers of the rows that need not be claimed again."""
        return {row.seq for row in (*self.gone, *self.expired, *(row for row, _ in self.aside))}

    def counts(self) -> dict[str, int]:
        """By the verb of a mover."""
        return {"refill": len(self.gone), "expire": len(self.expired), "quarantine": len(self.aside)}

    def set_aside(self, row: ColdRow, reason: str) -> None:
        self.aside.append((row, reason))

    def apply(self, rows: Sequence[ColdRow], refilled: Refilled) -> None:
        self.valkey_epoch = refilled.valkey_epoch
        self.full = len(refilled.answers) < len(rows)
        for row, answer in zip(rows, refilled.answers, strict=False):
            if answer == Refilled.EXPIRED:
                self.expired.append(row)
            elif answer == Refilled.ID_IN_USE:
                self.set_aside(row, "another job of this id is in Valkey")
            else:
                self.gone.append(row)


class Mover:
    """Moves the jobs of `shards` (None: all of the queue); several run apart from each other, see run_forever."""

    def __init__(
        self,
        tiers: Tiers,
        options: MoverOptions | None = None,
        name: str | None = None,
        shards: Sequence[int] | None = None,
        figures: MoverFigures | None = None,
    ) -> None:
        self.name = name or f"{socket.gethostname()}-{os.getpid()}-{new_job_id()[-6:]}"
        self._tiers = tiers
        self._store = tiers.store
        self._options = options or MoverOptions()
        self._audit = Audit(tiers, self._adopt)
        self._settings = SettingsKeeper(tiers)
        self._valkey_watch = ValkeyWatch(tiers)
        self._shares = ShareRounds(tiers)
        self._share_at = 0.0
        self._tokens: dict[int, int] = {}  # of the shards that we lead
        self._safety: dict[int, CopySafety] = {}
        self._placed: defaultdict[int, dict[QueueRef, PlacedRows]] = defaultdict(dict)  # by shard
        self._put_off: set[QueueRef] = set()  # until rows that are placed are deleted
        self._shards = shards
        self._parts: list[Mover] = []  # one per shard, while they run apart
        self.figures = figures or MoverFigures(self.count_led)
        self._failed: dict[int, str] = {}  # what could not be done since the last sweep
        self._renew_at = 0.0
        self._fed_at = 0.0  # when a queue last asked for jobs
        self._attend_at = 0.0
        self._sweep_at: dict[int, float] = {}
        self._audit_at: dict[int, float] = {}
        self._auditing: dict[int, Iterator[Drift]] = {}  # of the shards whose audit is under way

    @cached_property
    def _stubs(self) -> Stubs:
        return self._tiers.stubs  # may ask Valkey at first use, so not in the constructor

    def run_forever(self, stop: Event) -> None:
        """Run until `stop` is set, each shard in a thread with connections of its own: a shard whose server is away, or
        whose scripts fail, delays its own jobs only."""
        shards = self._await_shards(stop)
        if len(shards) == 1:
            self._run_until(stop)
            return
        threads = [Thread(target=self._run_part, args=[shard, stop], name=f"mover-{shard}") for shard in shards]
        for thread in threads:
            thread.daemon = True
            thread.start()
        stop.wait()
        until = time.monotonic() + STOP_S
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))

    def count_led(self) -> int:
        """Return the number of shards whose jobs this process moves."""
        return len(self._tokens) + sum(part.count_led() for part in self._parts)

    def _all_shards(self) -> Sequence[int]:
        return range(self._stubs.shards) if self._shards is None else self._shards

    def _await_shards(self, stop: Event) -> Sequence[int]:
        """Return the shards to serve once Valkey has said how many there are; none if `stop` is set before."""
        while not stop.is_set():
            try:
                return self._all_shards()
            except HeadraceError as error:
                self._note_failure(error)
                stop.wait(RECONNECT_S)
        return ()

    def _run_part(self, shard: int, stop: Event) -> None:
        while not stop.is_set():
            try:
                with self._tiers.reconnected() as tiers:
                    part = Mover(tiers, self._options, self.name, [shard], self.figures)
                    self._parts.append(part)
                    part.run_forever(stop)
            except QueueUnavailable as error:  # a cluster is asked for its nodes at once
                self._note_failure(error, shard)
                stop.wait(RECONNECT_S)

    def _run_until(self, stop: Event) -> None:
        while not stop.is_set():
            try:
                self.turn()
            except Exception as error:  # a server is away, has no tables yet, or a script failed
                self._note_failure(error, *self._all_shards())
                stop.wait(RECONNECT_S)
        self.resign()

    def _note_failure(self, error: Exception, *shards: int) -> None:
        self.figures.sweeps.failed(error, shards)
        action = "unavailable" if isinstance(error, HeadraceError) else "mover_failed"
        log.warning(
            "could not move jobs of shards %s, retrying: %s",
            list(shards) or "(number unknown)",
            error,
            exc_info=None if isinstance(error, HeadraceError | ScriptError) else error,
            extra={"action": action},
        )

    def turn(self) -> None:
        """Lead what can be led; then do what is due, or wait for a queue that has room."""
        self.elect()
        if not self._tokens:
            time.sleep(min(1.0, self._options.lease_s / 3))
            return
        for shard in list(self._tokens):
            self._turn_of(shard)

    def _turn_of(self, shard: int) -> None:
        now = time.monotonic()
        if now >= self._sweep_at.get(shard, 0.0):
            self._sweep_at[shard] = now + self._options.every_s
            self.sweep(shard)
            self.figures.sweeps.done(time.monotonic() - now, (shard,))
        self._audit_some(shard)
        self._share_out(shard)
        self._delete_safe(shard)
        put_off, self._put_off = self._put_off, set()
        for ref in [*put_off, *self._hungry(shard)]:
            self.visit(ref)

    def _share_out(self, shard: int) -> None:
        """Share out the quotas of projects and organisations, each second, where we lead the first shard."""
        now = time.monotonic()
        if shard == 0 and now >= self._share_at:
            self._share_at = now + SHARE_EVERY_S
            self._shares.begin()

    def _audit_some(self, shard: int) -> None:
        """An audit looks at every queue there is, some per turn: those that have room must not wait for all of it."""
        now = time.monotonic()
        if shard not in self._auditing and now >= self._audit_at.setdefault(shard, now):
            self._audit_at[shard] = now + self._options.audit_every_s
            self._auditing[shard] = self.figures.counted(self._audit.steps(shard))
        steps = self._auditing.pop(shard, None)
        if steps is None:
            return
        for _ in steps:
            if time.monotonic() >= now + AUDIT_SLICE_S:
                self._auditing[shard] = steps
                return
        self.remove_old_dead(shard)

    # Leading

    def elect(self) -> None:
        """Take what nobody leads, keep what we lead."""
        now = time.monotonic()
        if now < self._renew_at:
            return
        self._renew_at = now + self._options.lease_s / 3
        for shard in self._all_shards():
            token = run(self._tiers.valkey, self._stubs.elect(shard, self.name, int(self._options.lease_s * 1000)))
            if token and self._tokens.get(shard) != token:
                log.info("moves jobs of shard %d", shard, extra={"action": "elected"})
                self._tokens[shard] = token
                self._placed.pop(shard, None)  # another mover may have led in between; they are in Valkey
            elif not token:
                self._tokens.pop(shard, None)
                self._placed.pop(shard, None)  # the next leader finds them in Valkey
        if not self._tokens:
            self.figures.sweeps.stands_by(tuple(self._all_shards()))

    def resign(self) -> None:
        """Let another one lead at once. (Only if it is still us: the lease may have ended.)"""
        for shard in list(self._tokens):
            try:
                run(self._tiers.valkey, self._stubs.elect(shard, self.name, 1))
            except QueueUnavailable:
                pass  # the lease ends by itself
        self._tokens = {}
        self._placed.clear()
        self._shares.end(STOP_S)
        for safety in self._safety.values():
            safety.close()
        self._safety = {}

    def _lost(self, shard: int) -> None:
        self.figures.sweeps.superseded((shard,))
        self._tokens.pop(shard, None)
        self._placed.pop(shard, None)
        self._renew_at = 0.0

    # What is to do

    def _hungry(self, shard: int) -> list[QueueRef]:
        """Queues that asked for jobs; waits a little for the first one, and less while any shard has some: they take
        turns, and one that is idle must not hold up another's workers."""
        idle_s = min(IDLE_WAIT_S, self._options.every_s)
        idle = time.monotonic() > self._fed_at + BUSY_S and not self._auditing.keys() & self._tokens.keys()
        wait_s = idle_s if idle else BUSY_WAIT_S
        key = keys.hungry(shard)
        with available():
            first: Any = self._tiers.valkey.bzpopmin(key, timeout=wait_s)
            if first is None:
                return []
            more: Any = self._tiers.valkey.zpopmin(key, HUNGRY_PAGE)
        self._fed_at = time.monotonic()
        return _refs([first[1], *(part for part, _ in more)])

    def sweep(self, shard: int) -> None:
        """Everything that nobody asks for: due jobs, passed TTLs, dead jobs, queues whose call was lost."""
        try:
            self._tiers.check_postgres(shard, anew=True)
        except WrongDatabase as error:
            self._say(shard, str(error))
            raise
        self._settings.restore_if_needed(shard)  # first: workers wait for it
        self._valkey_watch.look(shard)
        self._watch_timeline(shard)
        with available():
            node = node_of(self._tiers.valkey, keys.meta(shard))
            clock: Any = node.time()
            cold: Any = node.smembers(keys.cold(shard))
            buried: Any = node.smembers(keys.buried(shard))
        now_ms = clock[0] * 1000 + clock[1] / 1000
        backlog = {found.ref for found in self._store.backlog(shard, now_ms, now_ms + LOOK_AHEAD_MS)}
        self._attend_at = time.monotonic() + ATTEND_S
        for ref in _refs(buried):
            self._guarded(ref, self._move_dead)
            self._attend()
        for ref in sorted(backlog):
            self._guarded(ref, self._expire)
            self._guarded(ref, self._audit.tell)
            self._attend()
        for ref in sorted(backlog.union(_refs(cold))):
            self.visit(ref)
            self._attend()
        self._report_losses(shard)
        self._say(shard, self._failed.pop(shard, ""))

    # What happened to PostgreSQL

    def _watch_timeline(self, shard: int) -> None:
        """Notice that PostgreSQL was promoted or recovered; then every queue is audited at once."""
        timeline = self._store.read_timeline()
        with available():
            known: Any = self._tiers.valkey.hget(keys.meta(shard), "postgres_timeline")
        if not timeline or (known and known.decode() == timeline):
            return
        if known:
            description = f"System identifier and timeline were {known.decode()} and are {timeline}."
            log.warning("PostgreSQL was promoted or recovered: %s", description, extra={"action": "server_event"})
            self._store.forget_ids()
            self._store.record_event("postgres", shard, "promoted", description)
            self._audit_at[shard] = 0.0
        with available():
            self._tiers.valkey.hset(keys.meta(shard), "postgres_timeline", timeline)

    def _report_losses(self, shard: int) -> None:
        """Record the accepted jobs that a restored PostgreSQL does not have, as `settle` found them."""
        key, taken = keys.losses(shard), keys.losses(shard) + ":taken"
        with available():
            if not self._tiers.valkey.exists(taken):
                if not self._tiers.valkey.exists(key):
                    return
                self._tiers.valkey.rename(key, taken)
            found: Any = self._tiers.valkey.hgetall(taken)
        losses = {keys.queue_of_part(part.decode()): int(missing) for part, missing in found.items()}
        description = f"Totals of {len(losses)} queues went back: it was restored to an earlier point."
        log.error("PostgreSQL went back: %s missing", losses, extra={"action": "server_event"})
        self._store.record_event("postgres", shard, "went back", description, losses)
        with available():
            self._tiers.valkey.delete(taken)
        self._audit_at[shard] = 0.0

    def _attend(self) -> None:
        """Now and then in a sweep, which may have thousands of queues to look at: one whose workers are about to run
        dry does not wait for its end, whichever shard it is of."""
        if time.monotonic() < self._attend_at:
            return
        for shard in list(self._tokens):
            with available():
                asking: Any = self._tiers.valkey.zpopmin(keys.hungry(shard), HUNGRY_PAGE)
            for ref in _refs(part for part, _ in asking):
                self.visit(ref)
        self._attend_at = time.monotonic() + ATTEND_S

    def visit(self, ref: QueueRef) -> None:
        """Move what fits. One queue's trouble never stops the others; only servers that are gone do."""
        self._guarded(ref, self._visit)

    def _guarded(self, ref: QueueRef, do: Callable[[QueueRef], None]) -> None:
        shard = self._stubs.shard_of(ref)
        try:
            if shard in self._tokens:
                self.elect()
                if shard not in self._tokens:
                    raise MoverFenced  # it slept through its lease
                do(ref)
        except MoverFenced:
            self._lost(shard)
        except (QueueUnavailable, DatabaseUnavailable) as error:
            self._say(shard, str(error))
            raise
        except Exception as error:
            log.exception("could not move jobs of %s", ref, extra={"action": "mover_failed"})
            self.figures.queue_failed()
            self._failed[shard] = f"{' / '.join(vars(ref).values())}: {error}"

    def _say(self, shard: int, error: str) -> None:
        """What `headrace doctor` shows of us."""
        try:
            with available():
                said = {"name": self.name, "at": str(time.time_ns() // 1_000_000), "error": error[:500]}
                for what, value in said.items():
                    self._tiers.valkey.hset(keys.meta(shard), f"mover_{what}", value)
        except (HeadraceError, ScriptError):
            pass  # it is about to be noticed by whoever asks for more

    # Moving

    def _visit(self, ref: QueueRef) -> None:
        shard = self._stubs.shard_of(ref)
        queue_id = self._store.queue_id(ref, shard)
        self._delete_safe(shard)
        if shard not in self._tokens:
            raise MoverFenced
        for _ in range(BATCHES_PER_VISIT):
            room = self._tiers.run(self._stubs.room(ref))
            if room.placed != len(self._placed_of(ref)):
                self._adopt(ref, queue_id)
            if not room.refill or room.items == 0:
                self._hold(ref, queue_id, room)
                return None
            if sum(map(len, self._placed[shard].values())) >= MAX_PLACED:
                self._put_off.add(ref)
                return None
            batch = self._move(ref, queue_id, room) or self._move_delayed(ref, queue_id, room)
            if batch is None:
                return self._leave(ref, queue_id, room)
            # A large job found no room; one that became due meanwhile may be before it, and fit.
            if batch.full and not self._hold(ref, queue_id, room):
                return None
        return None

    # Rows that are placed and not deleted

    def _safety_of(self, shard: int) -> CopySafety:
        if shard not in self._safety:
            key = keys.meta(shard)
            node = partial(node_of, self._tiers.valkey, key)
            self._safety[shard] = CopySafety(node, key, self._options.refill_after)
        return self._safety[shard]

    def _placed_of(self, ref: QueueRef) -> PlacedRows:
        return self._placed[self._stubs.shard_of(ref)].setdefault(ref, PlacedRows())

    def _adopt(self, ref: QueueRef, queue_id: int) -> None:
        """Take over rows that another mover placed and did not delete. How long ago is not known."""
        placed = self._placed_of(ref)
        found = self._tiers.unconfirmed(ref)
        if found and self._safety_of(self._stubs.shard_of(ref)).is_immediate():
            self._tiers.confirm(ref, queue_id, found)
            placed.forget(found)
        else:
            placed.keep_only({row.seq for row in found})
            placed.add(found, time.monotonic())

    def _delete_safe(self, shard: int) -> None:
        """Step 4 and 5 for all rows whose copy in Valkey is safe by now."""
        if not any(self._placed[shard].values()):
            return
        before = self._safety_of(shard).safe_before()
        for ref in list(self._placed[shard]):
            self._guarded(ref, lambda ref: self._delete_placed(ref, before))

    def _delete_placed(self, ref: QueueRef, before: float) -> None:
        shard = self._stubs.shard_of(ref)
        placed = self._placed_of(ref)
        queue_id = self._store.queue_id(ref, shard)
        while rows := placed.take_safe(before, DELETE_BATCH):
            try:
                kept = self._still_placed(shard, ref, rows)
                if kept:
                    numbers = self._tiers.confirm(ref, queue_id, kept)
                    if numbers.version == placed.version + 1:  # nothing else has changed
                        placed.version = numbers.version
                if len(kept) < len(rows):
                    placed.restart()
            except BaseException:
                placed.add_again(rows)
                raise
            placed.forget(rows)
        if not placed:
            self._placed[shard].pop(ref, None)

    def _still_placed(self, shard: int, ref: QueueRef, rows: Sequence[PlacedRow]) -> list[PlacedRow]:
        """Leave out rows that Valkey does not have any more: it failed over to a replica that was behind."""
        with available():
            flags: Any = self._tiers.valkey.smismember(keys.moving(shard, ref), [row.seq for row in rows])
        kept = [row for row, flag in zip(rows, flags, strict=True) if flag]
        if len(kept) < len(rows):
            lost = len(rows) - len(kept)
            log.warning("%d jobs of %s are placed again: Valkey lost them", lost, ref, extra={"action": "placed_again"})
        return kept

    # One batch

    def _hold(self, ref: QueueRef, queue_id: int, room: Room) -> bool:
        """No room. What has become due meanwhile waits like the rest from now on; was there any?"""
        with self._store.transaction() as conn:
            self._store.lock_mover(conn, queue_id)
            placed = self._placed_of(ref).rows
            delta, details = self._store.promote(conn, queue_id, room.now_ms, SWEEP_BATCH, placed)
            if not delta.waiting:
                return False
            numbers = self._store.change(conn, queue_id, delta, details, valkey_epoch=room.valkey_epoch or None)
        self._tiers.tell(ref, numbers)
        return True

    def _move(self, ref: QueueRef, queue_id: int, room: Room) -> Batch | None:
        most, placed = min(self._options.batch, room.items), self._placed_of(ref)

        def claim(conn: Connection, version: int) -> list[ColdRow]:
            return self._claim(conn, queue_id, placed, version, most, room.bytes)

        return self._transfer(ref, queue_id, room, claim)

    def _claim(
        self, conn: Connection, queue_id: int, placed: PlacedRows, version: int, most: int, size: int
    ) -> list[ColdRow]:
        """Return the next rows that are not placed."""
        now = time.monotonic()
        if placed.position is not None and placed.can_go_on(version, now):
            return self._store.claim_after(conn, queue_id, most, size, placed.position)
        placed.has_scanned(version, now)
        if not placed:
            return self._store.claim(conn, queue_id, most, size)
        return self._store.claim_but(conn, queue_id, most, size, placed.rows)

    def _move_delayed(self, ref: QueueRef, queue_id: int, room: Room) -> Batch | None:
        most, until = min(self._options.batch, room.items), room.now_ms + LOOK_AHEAD_MS
        placed = self._placed_of(ref).rows

        def claim(conn: Connection, _: int) -> list[ColdRow]:
            return self._store.claim_delayed(conn, queue_id, most, room.bytes, until, placed)

        return self._transfer(ref, queue_id, room, claim)

    def _transfer(
        self, ref: QueueRef, queue_id: int, room: Room, claim: Callable[[Connection, int], list[ColdRow]]
    ) -> Batch | None:
        """Steps 1 to 3 for one batch, and if its copy is safe at once 4 and 5; None if there is nothing to move."""
        is_immediate = self._safety_of(self._stubs.shard_of(ref)).is_immediate()
        with self._store.transaction() as conn:
            if not is_immediate:
                self._store.place_quickly(conn)
            rows = claim(conn, self._store.lock_mover(conn, queue_id))
            if not rows:
                return None
            batch = self._refill(ref, rows, room.now_ms + SURE_OF_LOCK_MS)
            numbers = self._delete(conn, queue_id, batch, is_immediate=is_immediate)
        self._note_placed(ref, rows, batch, numbers, is_immediate=is_immediate)
        return batch

    def _note_placed(
        self, ref: QueueRef, rows: Sequence[ColdRow], batch: Batch, numbers: ColdNumbers | None, *, is_immediate: bool
    ) -> None:
        """What follows the commit of a batch."""
        self.figures.moved(**batch.counts())
        placed = self._placed_of(ref)
        if not is_immediate:
            placed.add(batch.placed, time.monotonic())
            if not any(row.delayed for row in rows):
                placed.advance(rows, batch.handled)
        if numbers is not None:
            self._tiers.tell(ref, numbers, [row.seq for row in batch.gone] if is_immediate else ())

    def _refill(self, ref: QueueRef, rows: Sequence[ColdRow], until_ms: float) -> Batch:
        """Step 3. A row that makes no sense is set aside, and the rest tried again."""
        batch = Batch()
        left: list[ColdRow] = []
        for row in rows:
            if problem := unfit(row):
                batch.set_aside(row, problem)
            else:
                left.append(row)
        while left:
            try:
                batch.apply(left, self._tiers.run(self._placing(ref, until_ms, left)))
                break
            except MemoryFull:
                batch.full = True
                break
            except ScriptError as error:
                bad = poison(error, left)
                if bad is None:
                    return self._refill_one_by_one(ref, batch, left, until_ms)
                batch.set_aside(bad, "its numbers make no sense")
                left.remove(bad)
        return batch

    def _placing(self, ref: QueueRef, until_ms: float, rows: Sequence[ColdRow]) -> Call[Refilled]:
        return self._stubs.refill(ref, self._token(ref), until_ms, rows, self._store.identity())

    def _refill_one_by_one(self, ref: QueueRef, batch: Batch, rows: Sequence[ColdRow], until_ms: float) -> Batch:
        """Some row made the script fail, nobody knows which. If all do it is not the rows' fault: they stay."""
        failed: list[tuple[ColdRow, ScriptError]] = []
        for row in rows:
            try:
                batch.apply([row], self._tiers.run(self._placing(ref, until_ms, [row])))
            except ScriptError as error:
                failed.append((row, error))
            if batch.full or len(failed) == HOPELESS:
                break
        if failed and not batch.gone:
            raise failed[0][1]
        for row, error in failed:
            batch.set_aside(row, str(error)[:500])
        return batch

    def _token(self, ref: QueueRef) -> int:
        return self._tokens[self._stubs.shard_of(ref)]

    def _delete(self, conn: Connection, queue_id: int, batch: Batch, *, is_immediate: bool) -> ColdNumbers | None:
        """Step 4, all but the commit. Rows that are placed stay unless their copy is safe at once; None if no row was
        deleted."""
        gone = batch.gone if is_immediate else []
        if not is_immediate:
            if not batch.expired and not batch.aside:
                return None
            self._store.place_durably(conn)
        if gone or batch.expired:
            self._store.delete(conn, [row.seq for row in (*gone, *batch.expired)])
        if batch.aside:
            reasons = {row.seq: reason for row, reason in batch.aside}
            self._store.quarantine(conn, reasons)
            log.error("set aside rows that cannot be moved: %s", reasons, extra={"action": "quarantined"})
        left = [*gone, *batch.expired, *(row for row, _ in batch.aside)]
        counts = {"refilled": len(gone), "expired": len(batch.expired), "quarantined": len(batch.aside)}
        delta, details = leaving(left, **counts)
        return self._store.change(conn, queue_id, delta, details, valkey_epoch=batch.valkey_epoch)

    def _leave(self, ref: QueueRef, queue_id: int, room: Room) -> None:
        """Nothing waits: close the epoch while nobody can spill, then reopen the queue."""
        if not room.cold or not room.leave:
            return
        batch, rows, most = Batch(), [], min(self._options.batch, room.items)
        is_immediate = self._safety_of(self._stubs.shard_of(ref)).is_immediate()
        with self._store.transaction() as conn:
            self._store.lock_mover(conn, queue_id)
            self._store.lock_queue(conn, queue_id)
            placed = list(self._placed_of(ref).rows)
            numbers: ColdNumbers | None = None
            if rows := self._store.claim_but(conn, queue_id, most, room.bytes, placed):
                batch = self._refill(ref, rows, room.now_ms + SURE_OF_LOCK_MS)
                numbers = self._delete(conn, queue_id, batch, is_immediate=is_immediate)
                placed += [row.seq for row in batch.gone]
            if closes := not self._store.claim_but(conn, queue_id, 1, 1, placed):
                epoch = batch.valkey_epoch or room.valkey_epoch or None
                numbers = self._store.change(
                    conn, queue_id, Delta(), {}, valkey_epoch=epoch, close_epoch=room.cold_epoch
                )
        self._note_placed(ref, rows, batch, numbers, is_immediate=is_immediate)
        if closes and numbers is not None:
            self._tiers.run(self._stubs.reopen(ref, self._token(ref), room.cold_epoch, numbers.epoch))

    # Sweeping

    def _expire(self, ref: QueueRef) -> None:
        queue_id = self._store.queue_id(ref, self._stubs.shard_of(ref))
        room = self._tiers.run(self._stubs.room(ref))
        if room.placed != len(self._placed_of(ref)):
            self._adopt(ref, queue_id)
        while True:
            count, numbers = self._store.expire(
                queue_id,
                room.now_ms,
                SWEEP_BATCH,
                room.valkey_epoch or None,
                lambda: self._tiers.unconfirmed(ref),  # their TTL is Valkey's business, they may even be done
            )
            self.figures.moved(expire=count)
            if numbers is not None:
                self._tiers.tell(ref, numbers)
            if count < SWEEP_BATCH:
                return

    def remove_old_dead(self, shard: int) -> int:
        """Dead jobs that nobody wanted back in time; how many. Those in Valkey come to PostgreSQL first, so they are
        found there."""
        if self._options.keep_dead_s is None:
            return 0
        with available():
            clock: Any = node_of(self._tiers.valkey, keys.meta(shard)).time()
        before_ms = clock[0] * 1000 - int(self._options.keep_dead_s * 1000)
        removed = 0

        def remove(ref: QueueRef) -> None:
            nonlocal removed
            removed += self._tiers.remove_dead(ref, DeadFilter(buried_until_ms=before_ms - 1), None)

        for found in self._store.queues_with_dead(shard, before_ms):
            self._guarded(found.ref, remove)
        self.figures.moved(remove=removed)
        if removed:
            log.info("removed %d dead jobs of shard %d", removed, shard, extra={"action": "removed_dead"})
        return removed

    def _move_dead(self, ref: QueueRef) -> None:
        queue_id = self._store.queue_id(ref, self._stubs.shard_of(ref))
        for _ in range(BATCHES_PER_VISIT):
            if not self._tiers.move_dead(ref, queue_id, self._options.batch):
                return


def _refs(parts: Iterable[bytes]) -> list[QueueRef]:
    return [keys.queue_of_part(part.decode()) for part in parts]


def unfit(row: ColdRow) -> str | None:
    """Why a row cannot be a job. Names must not run into each other; the script looks at the numbers."""
    for what in ("job_id", "task", "flow", "flow_type"):
        name: str = getattr(row, what)
        if (name or what in ("job_id", "task")) and (problem := name_problem(name)):
            return f"its {what} {problem}"
    return None


def poison(error: ScriptError, rows: Iterable[ColdRow]) -> ColdRow | None:
    word, _, number = str(error).partition(" ")
    return next((row for row in rows if word == "POISON" and str(row.seq) == number), None)
