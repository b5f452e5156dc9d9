"""Builds the tables and JSON documents of `headrace queues`. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from headrace.cli.humane import ABSENT, age_text, rate_text, size_text
from headrace.cold.details import FlowDetail
from headrace.model.event import Op
from headrace.model.names import QueueRef
from headrace.queue.state import QueueState

_GAUGES = (
    *("org", "project", "env", "queue", "warm", "cold", "total"),
    *("scheduled", "running", "limit", "dead", "oldest", "bytes"),
)
COLUMNS = (*_GAUGES, "flags")
FLOW_COLUMNS = ("org", "project", "env", "queue", "task", "flow", "type", "warm", "cold", "total", "oldest")
COLUMNS_WITH_RATES = (*_GAUGES, "enqueued/s", "done/s", "failed/s", "flags")


@dataclass(frozen=True)
class Filter:
    """Selects queues by exact names; None matches every name."""

    org: str | None = None
    project: str | None = None
    env: str | None = None
    queue: str | None = None

    def matches(self, ref: QueueRef) -> bool:
        return all(wanted in (None, getattr(ref, part)) for part, wanted in asdict(self).items())


@dataclass(frozen=True)
class Rates:
    """Rates of one queue, per second."""

    enqueued: float
    done: float
    failed: float  # failed attempts, whether the job is retried or buried


@dataclass(frozen=True)
class Reading:
    """States of all queues at one time of the server's clock, in milliseconds."""

    at_ms: int
    states: Sequence[QueueState]

    def only(self, which: Filter) -> Reading:
        return Reading(self.at_ms, [state for state in self.states if which.matches(state.ref)])


def rates_between(before: Reading | None, after: Reading) -> dict[QueueRef, Rates]:
    """Return the rates of each queue between two snapshots. A new or recreated queue has no rates."""
    if before is None or after.at_ms <= before.at_ms:
        return {}
    seconds = (after.at_ms - before.at_ms) / 1000
    earlier = {(state.ref, state.epoch_ms): state for state in before.states}
    return {
        state.ref: Rates(
            _gained(earlier[key], state, Op.ENQUEUE) / seconds,
            _gained(earlier[key], state, Op.ACK) / seconds,
            _gained(earlier[key], state, Op.NACK, Op.BURY) / seconds,
        )
        for state in after.states
        if (key := (state.ref, state.epoch_ms)) in earlier
    }


def _gained(before: QueueState, after: QueueState, *ops: Op) -> int:
    return sum(after.odometers.get(op, 0) - before.odometers.get(op, 0) for op in ops)


def table_rows(reading: Reading, rates: dict[QueueRef, Rates] | None) -> list[list[str]]:
    """Return a row per queue, with the columns of COLUMNS_WITH_RATES, or of COLUMNS if `rates` is None."""
    return [
        [*_gauges(state, reading.at_ms), *([] if rates is None else _rates(rates.get(state.ref))), _marks(state)]
        for state in reading.states
    ]


def _gauges(state: QueueState, now_ms: int) -> list[str]:
    ref = state.ref
    return [
        *(ref.org, ref.project, ref.env, ref.queue),
        *(str(state.warm), str(state.cold), str(state.depth), str(state.scheduled), str(state.running)),
        ABSENT if state.limit is None else str(state.limit),
        str(state.dead),
        age_text(oldest_age_ms(state, now_ms)),
        size_text(state.bytes),
    ]


def _rates(found: Rates | None) -> list[str]:
    if found is None:
        return [ABSENT] * 3
    return [rate_text(per_s) for per_s in (found.enqueued, found.done, found.failed)]


def _marks(state: QueueState) -> str:
    flags = (("paused", state.paused), ("closed", state.closed), ("cold", state.cold_mode))
    return " ".join(flag for flag, is_set in flags if is_set)


def oldest_age_ms(state: QueueState, now_ms: int) -> int | None:
    return _age_ms(state.oldest_ms, now_ms)


def _age_ms(since_ms: float | None, now_ms: int) -> int | None:
    return None if since_ms is None else max(0, int(now_ms - since_ms))


def flow_row(row: FlowDetail, now_ms: int) -> list[str]:
    ref, named = row.ref, (row.task, row.flow or ABSENT, row.flow_type or ABSENT)
    counts = map(str, (row.warm, row.cold, row.total))
    return [ref.org, ref.project, ref.env, ref.queue, *named, *counts, age_text(_age_ms(row.oldest_ms, now_ms))]


def flows_document(now_ms: int, rows: Sequence[FlowDetail]) -> dict[str, Any]:
    def document(row: FlowDetail) -> dict[str, Any]:
        fields = asdict(row)
        return {**fields.pop("ref"), **fields, "total": row.total, "oldest_age_ms": _age_ms(row.oldest_ms, now_ms)}

    return {"at_ms": now_ms, "flows": [document(row) for row in rows]}


def as_document(reading: Reading, rates: dict[QueueRef, Rates] | None) -> dict[str, Any]:
    return {"at_ms": reading.at_ms, "queues": [_document(state, reading.at_ms, rates) for state in reading.states]}


def _document(state: QueueState, now_ms: int, rates: dict[QueueRef, Rates] | None) -> dict[str, Any]:
    fields = asdict(state)
    document = {**fields.pop("ref"), **fields, "oldest_age_ms": oldest_age_ms(state, now_ms)}
    if rates is not None:
        found = rates.get(state.ref)
        document["per_s"] = None if found is None else asdict(found)
    return document
