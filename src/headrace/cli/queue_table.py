"""Builds the tables and JSON documents of `headrace queues`. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from headrace.cli.formatting import ABSENT, format_age, format_size
from headrace.cold.flow_depths import FlowDetail
from headrace.model.event import Op
from headrace.model.names import QueueRef
from headrace.queue.state import QueueState

_NAMES = ("environment", "queue")
_COUNTS = ("warm", "cold", "total", "scheduled", "running", "limit", "dead", "oldest", "bytes")
RATE_COLUMNS = ("enqueued/s", "done/s", "failed/s")
COLUMNS = (*_NAMES, *_COUNTS, "flags")
COLUMNS_WITH_RATES = (*_NAMES, *_COUNTS, *RATE_COLUMNS, "flags")
FLOW_COLUMNS = ("environment", "queue", "task", "flow", "type", "warm", "cold", "total", "oldest")

NARROWING = ("bytes", "warm", "cold", "scheduled", "limit", "enqueued/s", "failed/s", "type", "flow")
"""Columns that a narrow terminal does without, the first ones first."""

_GAP = 3  # between two columns


@dataclass(frozen=True)
class QueueFilter:
    """Selects queues by exact names; None matches every name."""

    org: str | None = None
    project: str | None = None
    env: str | None = None
    queue: str | None = None

    def matches(self, ref: QueueRef) -> bool:
        return all(wanted in (None, getattr(ref, part)) for part, wanted in asdict(self).items())


@dataclass(frozen=True)
class QueueRates:
    """Rates of one queue, per second."""

    enqueued: float
    done: float
    failed: float  # failed attempts, whether the job is retried or buried


@dataclass(frozen=True)
class QueuesSnapshot:
    """States of all queues at one time of the server's clock, in milliseconds."""

    at_ms: int
    states: Sequence[QueueState]

    def filter(self, which: QueueFilter) -> QueuesSnapshot:
        return QueuesSnapshot(self.at_ms, [state for state in self.states if which.matches(state.ref)])


def compute_rates(before: QueuesSnapshot | None, after: QueuesSnapshot) -> dict[QueueRef, QueueRates]:
    """Return the rates of each queue between two snapshots. A new or recreated queue has no rates."""
    if before is None or after.at_ms <= before.at_ms:
        return {}
    seconds = (after.at_ms - before.at_ms) / 1000
    earlier = {(state.ref, state.epoch_ms): state for state in before.states}
    return {
        state.ref: QueueRates(
            _count_increase(earlier[key], state, Op.ENQUEUE) / seconds,
            _count_increase(earlier[key], state, Op.ACK) / seconds,
            _count_increase(earlier[key], state, Op.NACK, Op.BURY) / seconds,
        )
        for state in after.states
        if (key := (state.ref, state.epoch_ms)) in earlier
    }


def _count_increase(before: QueueState, after: QueueState, *ops: Op) -> int:
    return sum(after.odometers.get(op, 0) - before.odometers.get(op, 0) for op in ops)


def build_rows(reading: QueuesSnapshot, rates: dict[QueueRef, QueueRates] | None) -> list[list[str]]:
    """Return a row per queue, with the columns of COLUMNS_WITH_RATES, or of COLUMNS if `rates` is None."""
    return [
        [
            *_format_gauges(state, reading.at_ms),
            *([] if rates is None else _format_rates(rates.get(state.ref))),
            _format_flags(state),
        ]
        for state in reading.states
    ]


def fit_width(
    columns: Sequence[str], rows: Sequence[Sequence[str]], width: int
) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Return a table without those columns of NARROWING that do not fit a terminal of this width."""
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    kept = list(range(len(columns)))
    for name in NARROWING:
        if sum(widths[each] + _GAP for each in kept) <= width:
            break
        if name in columns:
            kept.remove(columns.index(name))
    return [columns[each] for each in kept], [[row[each] for each in kept] for row in rows]


def _format_gauges(state: QueueState, now_ms: int) -> list[str]:
    ref = state.ref
    return [
        *(_format_env(ref), ref.queue),
        *(str(state.warm), str(state.cold), str(state.depth), str(state.scheduled), str(state.running)),
        ABSENT if state.limit is None else str(state.limit),
        str(state.dead),
        format_age(_compute_age_ms(state.oldest_ms, now_ms)),
        format_size(state.bytes),
    ]


def _format_env(ref: QueueRef) -> str:
    return f"{ref.org}/{ref.project}/{ref.env}"


def _format_rates(found: QueueRates | None) -> list[str]:
    if found is None:
        return [ABSENT] * 3
    return [f"{per_s:.1f}" for per_s in (found.enqueued, found.done, found.failed)]


def _format_flags(state: QueueState) -> str:
    flags = (("paused", state.paused), ("closed", state.closed), ("cold", state.cold_mode))
    return " ".join(flag for flag, is_set in flags if is_set)


def _compute_age_ms(since_ms: float | None, now_ms: int) -> int | None:
    return None if since_ms is None else max(0, int(now_ms - since_ms))


def build_flow_row(row: FlowDetail, now_ms: int) -> list[str]:
    ref, named = row.ref, (row.task, row.flow or ABSENT, row.flow_type or ABSENT)
    counts = map(str, (row.warm, row.cold, row.total))
    return [
        _format_env(ref),
        ref.queue,
        *named,
        *counts,
        format_age(_compute_age_ms(row.oldest_ms, now_ms)),
    ]


def build_flows_document(now_ms: int, rows: Sequence[FlowDetail]) -> dict[str, Any]:
    def document(row: FlowDetail) -> dict[str, Any]:
        fields = asdict(row)
        return {
            **fields.pop("ref"),
            **fields,
            "total": row.total,
            "oldest_age_ms": _compute_age_ms(row.oldest_ms, now_ms),
        }

    return {"at_ms": now_ms, "flows": [document(row) for row in rows]}


def build_document(reading: QueuesSnapshot, rates: dict[QueueRef, QueueRates] | None) -> dict[str, Any]:
    return {
        "at_ms": reading.at_ms,
        "queues": [_build_queue_document(state, reading.at_ms, rates) for state in reading.states],
    }


def _build_queue_document(state: QueueState, now_ms: int, rates: dict[QueueRef, QueueRates] | None) -> dict[str, Any]:
    fields = asdict(state)
    document = {**fields.pop("ref"), **fields, "oldest_age_ms": _compute_age_ms(state.oldest_ms, now_ms)}
    if rates is not None:
        found = rates.get(state.ref)
        document["per_s"] = None if found is None else asdict(found)
    return document
