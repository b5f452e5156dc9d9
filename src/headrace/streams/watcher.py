"""The watcher: emits metric events for consumer groups of streams, so that history and alerts cover them like queues.

It reads a group's absolute totals in one script call and sends them to the shard, which counts their growth since the
last report. So it can be killed, restarted, or run twice: nothing is counted twice, and the growth meanwhile is counted
with the next report.

There are two kinds of groups. For groups served by Headrace's workers, the totals counted by the workers are emitted,
with waits and run times. For groups of other applications, the server reports how many entries were added, delivered
and acknowledged; failures are unknown and not emitted. While the depth of a group is unknown, no event is emitted: an
event without a depth would be read as an empty stream.

The watcher also stores the latest status of each group, or why it is unknown (group_status.py).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Event

from headrace.errors import HeadraceError
from headrace.model.entry_id import parse_time_ms
from headrace.model.event import COUNT_COLUMN, Op
from headrace.model.names import QueueRef
from headrace.queue.keys import queue_part
from headrace.queue.maintenance import TICK_MS
from headrace.queue.scripts import Stubs
from headrace.runtime.loop import LoopStats, ServiceMetrics
from headrace.runtime.metrics import MetricDeclaration, MetricValues
from headrace.streams import keys
from headrace.streams.consumers import read_consumers
from headrace.streams.dead_letters import count_dead
from headrace.streams.depth import COUNT_BOUND, explain_unknown_depth
from headrace.streams.group_status import GroupStatus, build_status, explain_failure, save_report
from headrace.streams.keys import GroupKeys
from headrace.streams.scripts import FIRST_ID, GroupSnapshot, GroupStubs, script
from headrace.valkey.connect import ScriptError, Valkey, translate_errors
from headrace.valkey.scripts import ScriptCall, run
from headrace.valkey.stream_groups import translate_group_errors
from headrace.valkey.streams import trim_before

log = logging.getLogger(__name__)

SAMPLES = 200  # entries of waits and run times per event
MAX_EMITS = 50  # events of one group in a row, while more samples are waiting
STUCK_AFTER_MS = 300_000

BROKER, SERVER = "broker", "server"

GROUPS = MetricDeclaration("headrace_streams_watched_groups", "gauge", "Watched groups.")
SILENT = MetricDeclaration(
    "headrace_streams_silent_groups", "gauge", "Watched groups that could not be read in the last iteration."
)
METRICS = (GROUPS, SILENT)


@dataclass(frozen=True)
class WatchedGroup:
    """A group, and its name in history."""

    keys: GroupKeys
    ref: QueueRef


def make_watched_group(stream: str, group: str, org: str, project: str, env: str) -> WatchedGroup:
    return WatchedGroup(GroupKeys(stream, group), QueueRef(org, project, env, f"{stream}/{group}"))


@dataclass(frozen=True)
class GroupGauges:
    depth: int  # entries that could run now
    scheduled: int  # failed entries whose retry is not due yet
    running: int
    oldest_ms: int | None


def compute_gauges(snapshot: GroupSnapshot) -> GroupGauges | None:
    """Return the gauges of a group; None if its depth is unknown."""
    if snapshot.undelivered is None:
        return None
    depth, scheduled = snapshot.undelivered + snapshot.due, snapshot.waiting - snapshot.due
    return GroupGauges(depth, scheduled, count_running(snapshot), find_oldest_ms(snapshot))


def count_running(snapshot: GroupSnapshot) -> int:
    return max(0, snapshot.pending - snapshot.waiting)  # an entry that waits for a retry may have been deleted


def find_oldest_ms(snapshot: GroupSnapshot) -> int | None:
    """Return since when the longest-waiting entry waits, in ms; None if no entry waits or its id is not a time."""
    since = (parse_time_ms(snapshot.first_undelivered), snapshot.due_since_ms)
    return min((at for at in since if at is not None), default=None)


def compute_totals(snapshot: GroupSnapshot) -> dict[Op, int]:
    """Return the known totals per verb. They only grow while the stream and its group exist."""
    if snapshot.counted:
        counts = dict(zip(COUNT_COLUMN, snapshot.counts, strict=True))
        emitted = (Op.DEQUEUE, Op.ACK, Op.NACK, Op.BURY, Op.RECLAIM, Op.REDRIVE, Op.DEFER)
        # A redriven entry is added again, but is not a new job.
        return {Op.ENQUEUE: snapshot.entries_added - counts[Op.REDRIVE], **{op: counts[op] for op in emitted}}
    if snapshot.entries_read is None:
        return {Op.ENQUEUE: snapshot.entries_added}
    acked = snapshot.entries_read - snapshot.pending
    acks = {Op.ACK: acked} if acked >= 0 else {}
    return {Op.ENQUEUE: snapshot.entries_added, Op.DEQUEUE: snapshot.entries_read, **acks}


class WatcherMetrics(ServiceMetrics):
    def __init__(self, groups: int) -> None:
        self.rounds = LoopStats("streams")
        self.silent = MetricValues(SILENT)
        watched = MetricValues(GROUPS)
        watched.set(groups)
        super().__init__([self.rounds], [watched, self.silent])


class Watcher:
    """Watcher of consumer groups. `source` is the streams server, `target` Headrace's own server; they may be the
    same. `hard_maxlen` is reported with the length of each stream; None: unknown."""

    def __init__(
        self,
        source: Valkey,
        target: Valkey,
        stubs: Stubs,
        groups: Sequence[WatchedGroup],
        stuck_after_ms: int = STUCK_AFTER_MS,
        hard_maxlen: int | None = None,
    ) -> None:
        self._source = source
        self._target = target
        self._stubs = stubs
        self._groups = groups
        self._stuck_after_ms = stuck_after_ms
        self._hard_maxlen = hard_maxlen
        self._every_ms = 0
        self._failing: dict[WatchedGroup, str] = {}  # groups without metrics → reason
        self.metrics = WatcherMetrics(len(groups))

    def run_forever(self, stop: Event, every_s: float) -> None:
        self._every_ms = int(every_s * 1000)
        while not stop.is_set():
            self.run_once()
            stop.wait(every_s)

    def run_once(self) -> int:
        """Report all groups. Return how many succeeded. A group that cannot be read does not affect the others."""
        began = time.monotonic()
        reported = sum(self._report_group(group) for group in self._groups)
        self.metrics.silent.set(len(self._groups) - reported)
        try:
            for shard in sorted({self._stubs.find_shard(group.ref) for group in self._groups}):
                run(self._target, self._stubs.tick(shard, TICK_MS))
        except (HeadraceError, ScriptError) as error:
            log.warning("%s", error, extra={"action": "unavailable"})
            self.metrics.rounds.record_failure(error)
        else:
            self.metrics.rounds.record_success(time.monotonic() - began)
        return reported

    def _report_group(self, group: WatchedGroup) -> bool:
        """Report a group. Return whether its events were emitted."""
        reason = self._emit_and_save(group)
        if reason and self._failing.get(group) != reason:  # log once, not every few seconds
            log.warning("no metrics for %s: %s", group.ref.queue, reason, extra={"action": "silent"})
        if not reason and self._failing.pop(group, None):
            log.info("metrics for %s resumed", group.ref.queue, extra={"action": "heard"})
        if reason:
            self._failing[group] = reason
        return not reason

    def _emit_and_save(self, group: WatchedGroup) -> str:
        """Emit the events of a group and store its status. Return why no event was emitted; empty if it was."""
        status, reason, unknown_reason = None, "", ""
        shard = self._stubs.find_shard(group.ref)
        try:
            snapshot = self._emit_all(group)
            if snapshot.undelivered is None:
                reason = "its depth is unknown, see `headrace streams list`."
            status, unknown_reason = self._build_status(group, snapshot)
        except (HeadraceError, ScriptError) as error:
            reason, unknown_reason = str(error), explain_failure(error)
        try:
            run(self._target, save_report(shard, group.ref, group.keys, status, unknown_reason, self._every_ms))
        except (HeadraceError, ScriptError) as error:
            reason = reason or str(error)
        return reason

    def _build_status(self, group: WatchedGroup, snapshot: GroupSnapshot) -> tuple[GroupStatus, str]:
        """Return the status of a group, and why a part of it is unknown (empty: everything is known)."""
        stream, name = group.keys.stream, group.keys.group
        try:
            consumers = read_consumers(self._source, stream, name, stuck_after_ms=self._stuck_after_ms)
            dead = count_dead(self._source, group.keys)
        except (HeadraceError, ScriptError) as error:
            return build_status(snapshot, None, None, self._hard_maxlen), explain_failure(error)
        status = build_status(snapshot, consumers, dead, self._hard_maxlen)
        return status, "" if snapshot.undelivered is not None else explain_unknown_depth(COUNT_BOUND)

    def _emit_all(self, group: WatchedGroup) -> GroupSnapshot:
        """Emit events until no samples are left. Return the last snapshot; if its depth is unknown, it was not
        emitted."""
        snapshot, more = self._emit_once(group)
        for _ in range(1, MAX_EMITS):
            if not more:
                break
            snapshot, more = self._emit_once(group)
        return snapshot

    def _emit_once(self, group: WatchedGroup) -> tuple[GroupSnapshot, bool]:
        """Read a snapshot and emit its events. Return it, and whether more samples are waiting."""
        after = self._read_sample_cursor(group)
        with translate_group_errors(group.keys.stream, group.keys.group):
            snapshot = run(self._source, GroupStubs(group.keys).snapshot(COUNT_BOUND, after, SAMPLES))
        now = compute_gauges(snapshot)
        if now is None or not run(self._target, emit_events(self._stubs, group.ref, snapshot, now, after)):
            return snapshot, False  # depth unknown, or another watcher has emitted a newer snapshot
        if snapshot.samples:
            with translate_errors():
                trim_before(self._source, group.keys.samples, snapshot.samples[-1][0])
        return snapshot, len(snapshot.samples) >= SAMPLES

    def _read_sample_cursor(self, group: WatchedGroup) -> str:
        """Return the id of the last sample that was emitted."""
        with translate_errors():
            last = self._target.hget(keys.event_keys(self._stubs.find_shard(group.ref), group.ref)[0], "samples")
        return last.decode() if isinstance(last, bytes) else FIRST_ID


def emit_events(
    stubs: Stubs, ref: QueueRef, snapshot: GroupSnapshot, gauges: GroupGauges, after: str
) -> ScriptCall[bool]:
    """Emit the events of a snapshot whose samples begin after the id `after`. False: a newer snapshot was already
    emitted."""
    known = compute_totals(snapshot)
    waits, runs = (_join_samples(snapshot, kind) for kind in ("waits", "runs"))
    last = snapshot.samples[-1][0] if snapshot.samples else after
    args = [
        *(stubs.stream_maxlen, ref.org, ref.project, ref.env, ref.queue, snapshot.now_us),
        BROKER if snapshot.counted else SERVER,
        *(gauges.depth, gauges.scheduled, gauges.running, "" if gauges.oldest_ms is None else gauges.oldest_ms),
        *(waits, runs, after, last, queue_part(ref)),
        *(known.get(op, "") for op in COUNT_COLUMN),
    ]
    return ScriptCall(script("emit_events"), keys.event_keys(stubs.find_shard(ref), ref), args, bool)


def _join_samples(snapshot: GroupSnapshot, wanted: str) -> str:
    return ",".join(values for _, kind, values in snapshot.samples if kind == wanted)
