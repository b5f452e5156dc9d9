"""The watcher: makes metric events of streams, so that history and alerts know them like queues.

It reads absolute numbers of a group at one instant and tells them to the shard, which counts by how much they grew
since they were last told. So it can be killed, started again, or run twice: nothing is counted twice, and what
happened meanwhile is counted with the next reading.

Two kinds of groups. Where Headrace's workers work, their own counts are told, with waits and run times. Of a group that
other applications read, the server knows how many entries were added, delivered, and left the pending list; failures
nobody can know, so nothing is said of them. A group whose depth is unknown is not told at all until it is known again:
an event without a depth would be read as an empty stream.

What it saw, or why it saw nothing, it notes as well (sight.py), for those who look at the group now.
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
MOST_TELLINGS = 50  # of one group in a row, while more samples wait
STUCK_AFTER_MS = 300_000

BROKER, SERVER = "broker", "server"


@dataclass(frozen=True)
class Watched:
    """A group, and the queue as which it appears in history."""

    keys: GroupKeys
    ref: QueueRef


def watched(stream: str, group: str, org: str, project: str, env: str) -> Watched:
    return Watched(GroupKeys(stream, group), QueueRef(org, project, env, f"{stream}/{group}"))


@dataclass(frozen=True)
class Gauges:
    depth: int  # entries that could be run now
    scheduled: int  # failed, and not yet to be tried again
    running: int
    oldest_ms: int | None


def gauges(survey: Survey) -> Gauges | None:
    """None: unknown."""
    if survey.undelivered is None:
        return None
    depth, scheduled = survey.undelivered + survey.due, survey.waiting - survey.due
    return Gauges(depth, scheduled, running_of(survey), oldest_ms(survey))


def running_of(survey: Survey) -> int:
    return max(0, survey.pending - survey.waiting)  # an entry that waits may have been deleted


def oldest_ms(survey: Survey) -> int | None:
    """Since when the entry waits that has waited longest."""
    since = (time_of(survey.first_undelivered), survey.due_since_ms)
    return min((at for at in since if at is not None), default=None)


def totals(survey: Survey) -> dict[Op, int]:
    """What is known of each verb, as a number that only grows while the stream and its group live."""
    if survey.counted:
        ours = dict(zip(COUNT_COLUMN, survey.counts, strict=True))
        told = (Op.DEQUEUE, Op.ACK, Op.NACK, Op.BURY, Op.RECLAIM, Op.REDRIVE)
        # A redriven entry is added again; it is not a new job.
        return {Op.ENQUEUE: survey.entries_added - ours[Op.REDRIVE], **{op: ours[op] for op in told}}
    if survey.entries_read is None:
        return {Op.ENQUEUE: survey.entries_added}
    left = survey.entries_read - survey.pending
    return {Op.ENQUEUE: survey.entries_added, Op.DEQUEUE: survey.entries_read, **({Op.ACK: left} if left >= 0 else {})}


class Watcher:
    """`source` is the server of the streams, `target` Headrace's own; often they are the same."""

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
        self._silent: dict[Watched, str] = {}  # groups of which nothing can be told, with the reason
        self.figures = WatchFigures(len(groups))

    def run_forever(self, stop: Event, every_s: float) -> None:
        self._every_ms = int(every_s * 1000)
        while not stop.is_set():
            self.run_once()
            stop.wait(every_s)

    def run_once(self) -> int:
        """How many groups were told of. One that cannot be read never hides the others."""
        began = time.monotonic()
        told = sum(self._try(group) for group in self._groups)
        self.figures.told(len(self._groups) - told)
        try:
            for shard in sorted({self._stubs.shard_of(group.ref) for group in self._groups}):
                run(self._target, self._stubs.tick(shard, TICK_MS))
        except (HeadraceError, ScriptError) as error:
            log.warning("%s", error, extra={"action": "unavailable"})
            self.figures.rounds.failed(error)
        else:
            self.figures.rounds.done(time.monotonic() - began)
        return told

    def _try(self, group: Watched) -> bool:
        reason = self._tell_and_note(group)
        if reason and self._silent.get(group) != reason:  # once, not every few seconds
            log.warning("%s: nothing is told of it: %s", group.ref.queue, reason, extra={"action": "silent"})
        if not reason and self._silent.pop(group, None):
            log.info("%s: is told of again", group.ref.queue, extra={"action": "heard"})
        if reason:
            self._silent[group] = reason
        return not reason

    def _tell_and_note(self, group: Watched) -> str:
        """The reason why nothing could be told; empty if it was."""
        sight, reason, why = None, "", ""
        try:
            survey = self._tell_all(group)
            if survey.undelivered is None:
                reason = "its depth is unknown, see `headrace streams list`."
            sight, why = self._see(group, survey)
        except (HeadraceError, ScriptError) as error:
            reason, why = str(error), why_unseen(error)
        try:
            run(self._target, note(self._stubs.shard_of(group.ref), group.ref, group.keys, sight, why, self._every_ms))
        except (HeadraceError, ScriptError) as error:
            reason = reason or str(error)
        return reason

    def _see(self, group: Watched, survey: Survey) -> tuple[Sight, str]:
        """And why not all of it is known."""
        stream, name = group.keys.stream, group.keys.group
        try:
            holders = read_holders(self._source, stream, name, stuck_after_ms=self._stuck_after_ms)
            dead = count_dead(self._source, group.keys)
        except (HeadraceError, ScriptError) as error:
            return sight_of(survey, None, None), why_unseen(error)
        return sight_of(survey, holders, dead), "" if survey.undelivered is not None else why_unknown(COUNT_BOUND)

    def _tell_all(self, group: Watched) -> Survey:
        """The last reading. One without a depth was not told."""
        survey, more = self._tell(group)
        for _ in range(1, MOST_TELLINGS):
            if not more:
                break
            survey, more = self._tell(group)
        return survey

    def _tell(self, group: Watched) -> tuple[Survey, bool]:
        """A reading, and whether more samples wait."""
        after = self._samples_told(group)
        with of_group(group.keys.stream, group.keys.group):
            survey = run(self._source, GroupStubs(group.keys).survey(COUNT_BOUND, after, SAMPLES))
        now = gauges(survey)
        if now is None or not run(self._target, tell(self._stubs, group.ref, survey, now, after)):
            return survey, False  # unknown, or another watcher was quicker
        if survey.samples:
            with available():
                trim_before(self._source, group.keys.samples, survey.samples[-1][0])
        return survey, len(survey.samples) >= SAMPLES

    def _samples_told(self, group: Watched) -> str:
        with available():
            found = self._target.hget(keys.told(self._stubs.shard_of(group.ref), group.ref)[0], "samples")
        return found.decode() if isinstance(found, bytes) else FIRST_ID


def tell(stubs: Stubs, ref: QueueRef, survey: Survey, now: Gauges, after: str) -> Call[bool]:
    """The telling of a reading whose samples begin after an id. False: a newer one was told already."""
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
