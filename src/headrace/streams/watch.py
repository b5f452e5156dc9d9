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
from headrace.model.event import COUNT_COLUMN, Op
from headrace.model.names import QueueRef
from headrace.queue.keys import queue_part
from headrace.queue.maintenance import TICK_MS
from headrace.queue.scripts import Stubs
from headrace.streams import keys
from headrace.streams.consumers import read_holders
from headrace.streams.dead import count_dead
from headrace.streams.depth import COUNT_BOUND, why_unknown
from headrace.streams.figures import WatchFigures
from headrace.streams.ids import time_of
from headrace.streams.keys import GroupKeys
from headrace.streams.scripts import FIRST_ID, GroupStubs, Survey, script
from headrace.streams.sight import Sight, note, sight_of, why_unseen
from headrace.valkey.connect import ScriptError, Valkey, available
from headrace.valkey.scripts import Call, run
from headrace.valkey.stream_groups import of_group
from headrace.valkey.streams import trim_before

log = logging.getLogger(__name__)

SAMPLES = 200  # entries of waits and run times per event
MOST_TELLINGS = 50  # events of one group in a row, while more samples are waiting
STUCK_AFTER_MS = 300_000

BROKER, SERVER = "broker", "server"


@dataclass(frozen=True)
class Watched:
    """A group, and its name in history."""

    keys: GroupKeys
    ref: QueueRef


def watched(stream: str, group: str, org: str, project: str, env: str) -> Watched:
    return Watched(GroupKeys(stream, group), QueueRef(org, project, env, f"{stream}/{group}"))


@dataclass(frozen=True)
class Gauges:
    depth: int  # entries that could run now
    scheduled: int  # failed entries whose retry is not due yet
    running: int
    oldest_ms: int | None


def gauges(survey: Survey) -> Gauges | None:
    """Return the gauges of a group; None if its depth is unknown."""
    if survey.undelivered is None:
        return None
    depth, scheduled = survey.undelivered + survey.due, survey.waiting - survey.due
    return Gauges(depth, scheduled, running_of(survey), oldest_ms(survey))


def running_of(survey: Survey) -> int:
    return max(0, survey.pending - survey.waiting)  # an entry that waits for a retry may have been deleted


def oldest_ms(survey: Survey) -> int | None:
    """Return since when the longest-waiting entry waits, in ms; None if no entry waits or its id is not a time."""
    since = (time_of(survey.first_undelivered), survey.due_since_ms)
    return min((at for at in since if at is not None), default=None)


def totals(survey: Survey) -> dict[Op, int]:
    """Return the known totals per verb. They only grow while the stream and its group exist."""
    if survey.counted:
        counts = dict(zip(COUNT_COLUMN, survey.counts, strict=True))
        emitted = (Op.DEQUEUE, Op.ACK, Op.NACK, Op.BURY, Op.RECLAIM, Op.REDRIVE)
        # A redriven entry is added again, but is not a new job.
        return {Op.ENQUEUE: survey.entries_added - counts[Op.REDRIVE], **{op: counts[op] for op in emitted}}
    if survey.entries_read is None:
        return {Op.ENQUEUE: survey.entries_added}
    acked = survey.entries_read - survey.pending
    acks = {Op.ACK: acked} if acked >= 0 else {}
    return {Op.ENQUEUE: survey.entries_added, Op.DEQUEUE: survey.entries_read, **acks}


class Watcher:
    """Watcher of consumer groups. `source` is the streams server, `target` Headrace's own server; they may be the
    same."""

    def __init__(
        self,
        source: Valkey,
        target: Valkey,
        stubs: Stubs,
        groups: Sequence[Watched],
        stuck_after_ms: int = STUCK_AFTER_MS,
    ) -> None:
        self._source = source
        self._target = target
        self._stubs = stubs
        self._groups = groups
        self._stuck_after_ms = stuck_after_ms
        self._every_ms = 0
        self._silent: dict[Watched, str] = {}  # groups without metrics → reason
        self.figures = WatchFigures(len(groups))

    def run_forever(self, stop: Event, every_s: float) -> None:
        self._every_ms = int(every_s * 1000)
        while not stop.is_set():
            self.run_once()
            stop.wait(every_s)

    def run_once(self) -> int:
        """Report all groups. Return how many succeeded. A group that cannot be read does not affect the others."""
        began = time.monotonic()
        reported = sum(self._try(group) for group in self._groups)
        self.figures.told(len(self._groups) - reported)
        try:
            for shard in sorted({self._stubs.shard_of(group.ref) for group in self._groups}):
                run(self._target, self._stubs.tick(shard, TICK_MS))
        except (HeadraceError, ScriptError) as error:
            log.warning("%s", error, extra={"action": "unavailable"})
            self.figures.rounds.failed(error)
        else:
            self.figures.rounds.done(time.monotonic() - began)
        return reported

    def _try(self, group: Watched) -> bool:
        """Report a group. Return whether its events were emitted."""
        reason = self._tell_and_note(group)
        if reason and self._silent.get(group) != reason:  # log once, not every few seconds
            log.warning("no metrics for %s: %s", group.ref.queue, reason, extra={"action": "silent"})
        if not reason and self._silent.pop(group, None):
            log.info("metrics for %s resumed", group.ref.queue, extra={"action": "heard"})
        if reason:
            self._silent[group] = reason
        return not reason

    def _tell_and_note(self, group: Watched) -> str:
        """Emit the events of a group and store its status. Return why no event was emitted; empty if it was."""
        status, reason, unknown_reason = None, "", ""
        shard = self._stubs.shard_of(group.ref)
        try:
            snapshot = self._tell_all(group)
            if snapshot.undelivered is None:
                reason = "its depth is unknown, see `headrace streams list`."
            status, unknown_reason = self._see(group, snapshot)
        except (HeadraceError, ScriptError) as error:
            reason, unknown_reason = str(error), why_unseen(error)
        try:
            run(self._target, note(shard, group.ref, group.keys, status, unknown_reason, self._every_ms))
        except (HeadraceError, ScriptError) as error:
            reason = reason or str(error)
        return reason

    def _see(self, group: Watched, survey: Survey) -> tuple[Sight, str]:
        """Return the status of a group, and why a part of it is unknown (empty: everything is known)."""
        stream, name = group.keys.stream, group.keys.group
        try:
            consumers = read_holders(self._source, stream, name, stuck_after_ms=self._stuck_after_ms)
            dead = count_dead(self._source, group.keys)
        except (HeadraceError, ScriptError) as error:
            return sight_of(survey, None, None), why_unseen(error)
        return sight_of(survey, consumers, dead), "" if survey.undelivered is not None else why_unknown(COUNT_BOUND)

    def _tell_all(self, group: Watched) -> Survey:
        """Emit events until no samples are left. Return the last snapshot; if its depth is unknown, it was not
        emitted."""
        snapshot, more = self._tell(group)
        for _ in range(1, MOST_TELLINGS):
            if not more:
                break
            snapshot, more = self._tell(group)
        return snapshot

    def _tell(self, group: Watched) -> tuple[Survey, bool]:
        """Read a snapshot and emit its events. Return it, and whether more samples are waiting."""
        after = self._samples_told(group)
        with of_group(group.keys.stream, group.keys.group):
            snapshot = run(self._source, GroupStubs(group.keys).survey(COUNT_BOUND, after, SAMPLES))
        now = gauges(snapshot)
        if now is None or not run(self._target, tell(self._stubs, group.ref, snapshot, now, after)):
            return snapshot, False  # depth unknown, or another watcher has emitted a newer snapshot
        if snapshot.samples:
            with available():
                trim_before(self._source, group.keys.samples, snapshot.samples[-1][0])
        return snapshot, len(snapshot.samples) >= SAMPLES

    def _samples_told(self, group: Watched) -> str:
        """Return the id of the last sample that was emitted."""
        with available():
            last = self._target.hget(keys.told(self._stubs.shard_of(group.ref), group.ref)[0], "samples")
        return last.decode() if isinstance(last, bytes) else FIRST_ID


def tell(stubs: Stubs, ref: QueueRef, survey: Survey, now: Gauges, after: str) -> Call[bool]:
    """Emit the events of a snapshot whose samples begin after the id `after`. False: a newer snapshot was already
    emitted."""
    known = totals(survey)
    waits, runs = (_joined(survey, kind) for kind in ("waits", "runs"))
    last = survey.samples[-1][0] if survey.samples else after
    args = [
        *(stubs.stream_maxlen, ref.org, ref.project, ref.env, ref.queue, survey.now_us),
        BROKER if survey.counted else SERVER,
        *(now.depth, now.scheduled, now.running, "" if now.oldest_ms is None else now.oldest_ms),
        *(waits, runs, after, last, queue_part(ref)),
        *(known.get(op, "") for op in COUNT_COLUMN),
    ]
    return Call(script("emit_events"), keys.told(stubs.shard_of(ref), ref), args, bool)


def _joined(survey: Survey, wanted: str) -> str:
    return ",".join(values for _, kind, values in survey.samples if kind == wanted)
