"""Replay a rule over history with the evaluation and the state machine of the live evaluator. Pure.

At each evaluation the window of every queue is one merged piece, kept up to date while the window slides: the cost
depends on the pieces that enter and leave, not on the length of the window.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from headrace.alerts.rule_values import compute_no_data_values, compute_window_value, is_lag_acceptable
from headrace.alerts.rules import Rule, RuleMetric
from headrace.alerts.state_machine import Phase, RuleState, Values, evaluate
from headrace.warehouse.alert_history import SlidingCut
from headrace.warehouse.alert_samples import CarriedGauges, UnknownPeriod, WindowPiece


@dataclass(frozen=True)
class ReplayedIncident:
    queue: str
    fired_ms: int
    value: float | None  # when it fired
    resolved_ms: int | None = None  # None: still open at the end


@dataclass(frozen=True)
class ReplayHistory:
    """The history of the queues in the time of a replay."""

    pieces: Mapping[str, Sequence[WindowPiece]]  # by queue; the number of a piece is its start in seconds
    carried: Mapping[str, CarriedGauges | None]  # by queue: the gauges before the first window
    unknown: Sequence[UnknownPeriod] = ()


@dataclass
class ReplayResult:
    evaluations: int = 0
    unknown: int = 0  # evaluations without known values, which changed nothing
    incidents: list[ReplayedIncident] = field(default_factory=list[ReplayedIncident])  # in the order of firing


class SlidingWindow:
    """The pieces of one queue within a window that moves forward."""

    def __init__(self, pieces: Sequence[WindowPiece], carried: CarriedGauges | None) -> None:
        self.left = carried  # gauges before the window
        self._pieces = pieces
        self._first = 0  # of the window
        self._end = 0
        self._dequeues = self._failures = self._wait_ms = self._wait_count = 0
        self._waits = Counter[int]()
        self._known_waits = Counter[int]()
        self._deepest = deque[int]()  # positions of the pieces that are, or can become, the maximum
        self._oldest = deque[int]()

    def move(self, start_s: int, end_s: int) -> None:
        """Move to [start, end), which must not be earlier than before."""
        while self._end < len(self._pieces) and self._pieces[self._end].number < end_s:
            self._add(self._end)
            self._end += 1
        while self._first < self._end and self._pieces[self._first].number < start_s:
            self._remove(self._first)
            self._first += 1

    def merge(self) -> list[WindowPiece]:
        """Return the content as one piece, or no piece if there were no events."""
        if self._first == self._end:
            return []
        newest = self._pieces[self._end - 1]
        return [
            WindowPiece(
                newest.number,
                self._pieces[self._deepest[0]].max_depth,
                self._pieces[self._oldest[0]].max_age_ms,
                newest.depth,
                newest.oldest_ms,
                self._dequeues,
                self._failures,
                self._wait_ms,
                self._wait_count,
                self._waits,
                self._known_waits,
            )
        ]

    def _add(self, position: int) -> None:
        pieces, piece = self._pieces, self._pieces[position]
        self._count(piece, 1)
        self._waits.update(piece.histogram)
        self._known_waits.update(piece.known_histogram)
        while self._deepest and pieces[self._deepest[-1]].max_depth <= piece.max_depth:
            self._deepest.pop()
        self._deepest.append(position)
        while self._oldest and pieces[self._oldest[-1]].max_age_ms <= piece.max_age_ms:
            self._oldest.pop()
        self._oldest.append(position)

    def _remove(self, position: int) -> None:
        piece = self._pieces[position]
        self.left = CarriedGauges(piece.depth, piece.oldest_ms)
        self._count(piece, -1)
        _subtract(self._waits, piece.histogram)
        _subtract(self._known_waits, piece.known_histogram)
        for queue in (self._deepest, self._oldest):
            if queue[0] == position:
                queue.popleft()

    def _count(self, piece: WindowPiece, sign: int) -> None:
        self._dequeues += sign * piece.dequeues
        self._failures += sign * piece.failures
        self._wait_ms += sign * piece.wait_ms
        self._wait_count += sign * piece.waits


def _subtract(histogram: Counter[int], removed: Mapping[int, int]) -> None:
    for bucket, count in removed.items():
        histogram[bucket] -= count
        if not histogram[bucket]:
            del histogram[bucket]


class SlidingValues:
    """The values of a rule for all queues, as its window slides."""

    def __init__(self, rule: Rule, cut: SlidingCut, history: ReplayHistory) -> None:
        self._rule, self._cut = rule, cut
        self._unknown = history.unknown
        self._windows = {
            queue: SlidingWindow(history.pieces.get(queue, ()), history.carried.get(queue))
            for queue in history.pieces.keys() | history.carried.keys()
            if rule.queue in (None, queue)
        }
        self._due = self._schedule(history.pieces)
        self._values: dict[str, float | None] = {}
        self._end_s: int | None = None

    def _schedule(self, pieces: Mapping[str, Sequence[WindowPiece]]) -> dict[int, set[str]]:
        """Return the queues whose windows change, by the end of the window."""
        cut, due = self._cut, dict[int, set[str]]()
        for queue in self._windows.keys() & pieces.keys():
            for piece in pieces[queue]:
                for moment_s in (piece.number, piece.number + cut.window_s):  # it enters; it leaves
                    end_s = max(cut.first_end_s, (moment_s // cut.step_s + 1) * cut.step_s)
                    due.setdefault(end_s, set()).add(queue)
        return due

    def compute(self, end_s: int) -> Values:
        """Return the values of the windows that end at `end_s`, which must be a later end than before, or the same."""
        if end_s == self._end_s:
            return self._values
        # An age grows without events, and so does the known part of a window.
        is_every = self._end_s is None or self._rule.metric == RuleMetric.OLDEST_AGE or bool(self._unknown)
        first_s = end_s if self._end_s is None else self._end_s + self._cut.step_s
        queues = self._windows.keys() if is_every else set[str]()
        if not is_every:
            for each_s in range(first_s, end_s + 1, self._cut.step_s):
                queues |= self._due.get(each_s, set())
        for queue in queues:
            window = self._windows[queue]
            window.move(end_s - self._cut.window_s, end_s)
            self._values[queue] = compute_window_value(self._rule, window.merge(), window.left, end_s, self._unknown)
        self._end_s = end_s
        return self._values


@dataclass(frozen=True)
class ReplayClock:
    """The evaluations of a replay: one for each watermark, every `every_s` from `start_s` on."""

    start_s: int
    every_s: int
    watermarks_ms: Sequence[int | None]  # known at each evaluation; never lower than before
    max_lag_s: float

    def list_times_ms(self) -> list[int]:
        return [(self.start_s + number * self.every_s) * 1000 for number in range(len(self.watermarks_ms))]

    def compute_window_ends(self, step_s: int) -> list[int | None]:
        """Return the end of the window of each evaluation: the multiple of `step_s` at or before the watermark.

        None: history was more than `max_lag_s` behind, or did not exist yet.
        """
        return [
            min(now_ms, watermark_ms) // 1000 // step_s * step_s
            if watermark_ms is not None and is_lag_acceptable(max(0, now_ms - watermark_ms), self.max_lag_s)
            else None
            for now_ms, watermark_ms in zip(self.list_times_ms(), self.watermarks_ms, strict=True)
        ]


def replay_rule(rule: Rule, clock: ReplayClock, cut: SlidingCut, history: ReplayHistory) -> ReplayResult:
    """Evaluate the rule at each time of the clock, as if it had been created at the first."""
    result = ReplayResult()
    created = replace(rule, created_ms=clock.start_s * 1000)
    values = SlidingValues(created, cut, history)
    ends_s = clock.compute_window_ends(cut.step_s)
    states: dict[str, RuleState] = {}
    open_incidents: dict[str | None, int] = {}  # incident → position in the result
    for now_ms, end_s, watermark_ms in zip(clock.list_times_ms(), ends_s, clock.watermarks_ms, strict=True):
        found: Values | None = None
        if rule.metric == RuleMetric.NO_DATA:
            found = compute_no_data_values(created, watermark_ms, now_ms)
        elif end_s is not None:
            found = values.compute(end_s)
        result.evaluations += 1
        result.unknown += found is None
        changed, transitions = evaluate(created, found, states, now_ms)
        states |= changed
        for each in transitions:
            if each.kind == Phase.FIRING:
                open_incidents[each.incident] = len(result.incidents)
                result.incidents.append(ReplayedIncident(each.queue, each.at_ms, each.value))
            elif each.kind == Phase.RESOLVED:
                position = open_incidents.pop(each.incident)
                result.incidents[position] = replace(result.incidents[position], resolved_ms=each.at_ms)
    return result
