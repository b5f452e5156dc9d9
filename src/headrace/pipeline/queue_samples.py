"""Turn rows of history into samples for Prometheus. This module does no I/O.

Every queue with a row gets one sample of each of its series at the time of the row's newest event: its gauges, and a
counter per verb from the odometers. An odometer is the total since the queue's epoch, so a lost or repeated sample
changes nothing in the next one, and a new epoch is a counter reset.

Guarantees, which the receiver needs:
- The times of a series only increase. If two rows of a queue have events of the same millisecond, the later one is
  moved forward.
- A payload has at most one sample per series, so sending it again never brings an older sample after a newer one.

The newest values of each queue are kept. Prometheus hides a series that gets no sample for 5 minutes, and cannot
compute a rate from a single sample, so the values of idle queues are repeated, at a time up to which every shard has
been read: nothing has changed until then. A queue without events for a day is forgotten, and its series end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.export.remote_write_format import encode_label, encode_series
from headrace.model.entry_id import SEQUENCE_BITS
from headrace.model.event import COUNT_COLUMN
from headrace.pipeline.buckets import NAMES
from headrace.pipeline.entries import Ints

SERIES_PER_PAYLOAD = 20_000  # about 3 MB
ROWS_AT_ONCE = 5_000  # rows converted to Python objects together
SCAN_EVERY_MS = 5_000  # how often idle queues are looked for, in event time
FORGET_AFTER_MS = 86_400_000

QUEUE_LABELS = ("org", "project", "env", "queue")
"""Labels of a queue, in the order of `buckets.NAMES`."""
JOBS, BYTES = "headrace_queue_jobs", "headrace_queue_bytes"
OLDEST, LIMIT = "headrace_queue_oldest_job_timestamp_seconds", "headrace_queue_concurrency_limit"
OPERATIONS = "headrace_queue_operations_total"

GAUGES: Sequence[tuple[str, Mapping[str, str]]] = (
    (JOBS, {"state": "ready", "tier": "warm"}),
    (JOBS, {"state": "ready", "tier": "cold"}),
    (JOBS, {"state": "running", "tier": "warm"}),
    (JOBS, {"state": "scheduled", "tier": "both"}),
    (BYTES, {"tier": "warm"}),
    (BYTES, {"tier": "cold"}),
    (OLDEST, {}),
    (LIMIT, {}),
)
"""Name and labels of each gauge of a queue, in the order of `_read_gauges`."""
COUNTERS: Sequence[tuple[str, Mapping[str, str]]] = tuple((OPERATIONS, {"op": str(op)}) for op in COUNT_COLUMN)
"""The same for the counters, in the order of the odometers."""

QueueNames = tuple[str, ...]
Gauges = tuple[float | None, ...]
NO_GAUGES: Gauges = (None,) * len(GAUGES)


@dataclass(slots=True)
class _QueueValues:
    epoch: int
    event_ms: int = 0  # time of the newest event
    sampled_ms: int = 0  # time of the newest sample
    gauges: Gauges = NO_GAUGES
    odometers: dict[int, int] = field(default_factory=dict[int, int])  # by index of the verb


class QueueSamples:
    """Builds payloads of samples from the rows of successive batches. Use from one thread."""

    def __init__(self, labels: Mapping[str, str], repeat_s: float | None) -> None:
        """`labels` are added to every series. Values of idle queues are repeated after `repeat_s`; None: never."""
        self._repeat_ms = None if repeat_s is None else round(repeat_s * 1000)
        self._next_scan_ms = 0
        self._queues: dict[QueueNames, _QueueValues] = {}
        self._gauges = [_SeriesTemplate(name, {**labels, **own}) for name, own in GAUGES]
        self._counters = [_SeriesTemplate(name, {**labels, **own}) for name, own in COUNTERS]

    def __len__(self) -> int:
        """Return the number of queues whose values are kept."""
        return len(self._queues)

    def build(self, rows: pa.Table, watermark_ms: int) -> Iterator[bytes]:
        """Yield payloads with the samples of a batch, to be sent in this order. `watermark_ms` is the time up to which
        all shards were read."""
        for positions in _group_rows(rows):
            yield from _join(self._sample_rows(rows.take(positions)))
        yield from _join(self._repeat_idle(watermark_ms))

    def _sample_rows(self, rows: pa.Table) -> Iterator[bytes]:
        wanted = rows.select([*NAMES, "epoch", "last", "last_odometers"])
        for start in range(0, wanted.num_rows, ROWS_AT_ONCE):
            for row in wanted.slice(start, ROWS_AT_ONCE).to_pylist():
                yield from self._sample_row(row)

    def _sample_row(self, row: Mapping[str, Any]) -> Iterator[bytes]:
        names = tuple(row[name] for name in NAMES)
        known = self._queues.get(names)
        values = known or self._queues.setdefault(names, _QueueValues(row["epoch"]))
        if values.epoch != row["epoch"]:
            values.epoch, values.odometers = row["epoch"], {}
        before, values.gauges = values.gauges, _read_gauges(row["last"])
        values.odometers |= row["last_odometers"]
        values.event_ms = row["last"]["at"] >> SEQUENCE_BITS
        values.sampled_ms = max(values.event_ms, values.sampled_ms + 1)
        # An earlier process may have sent a value that is absent now.
        ended = [known is None or old is not None for old in before]
        yield from self._encode(names, values, ended)

    def _repeat_idle(self, watermark_ms: int) -> Iterator[bytes]:
        if self._repeat_ms is None or watermark_ms < self._next_scan_ms:
            return
        self._next_scan_ms = watermark_ms + SCAN_EVERY_MS
        for names, values in list(self._queues.items()):
            if values.sampled_ms + self._repeat_ms > watermark_ms:
                continue
            values.sampled_ms = watermark_ms
            if watermark_ms - values.event_ms <= FORGET_AFTER_MS:
                yield from self._encode(names, values)
            else:
                del self._queues[names]
                yield from self._encode_end(names, values)

    def _encode(self, names: QueueNames, values: _QueueValues, ended: Sequence[bool] = ()) -> Iterator[bytes]:
        """Encode the newest values of a queue. An absent gauge gets a stale marker if its flag in `ended` is set."""
        labels, at = _encode_names(names), values.sampled_ms
        for index, value in enumerate(values.gauges):
            if value is not None or (ended and ended[index]):
                yield encode_series(self._gauges[index].fill(labels), value, at)
        for index, value in values.odometers.items():
            yield encode_series(self._counters[index].fill(labels), value, at)

    def _encode_end(self, names: QueueNames, values: _QueueValues) -> Iterator[bytes]:
        labels = _encode_names(names)
        series = [self._gauges[index] for index, value in enumerate(values.gauges) if value is not None]
        for each in (*series, *(self._counters[index] for index in values.odometers)):
            yield encode_series(each.fill(labels), None, values.sampled_ms)


class _SeriesTemplate:
    """The encoded labels of a series, with places for the labels of the queue."""

    def __init__(self, name: str, labels: Mapping[str, str]) -> None:
        own = {"__name__": name, **labels}
        order = sorted({*own, *QUEUE_LABELS})
        self._parts: list[bytes | int] = [
            QUEUE_LABELS.index(each) if each in QUEUE_LABELS else encode_label(each, own[each]) for each in order
        ]

    def fill(self, queue_labels: Sequence[bytes]) -> bytes:
        return b"".join([part if isinstance(part, bytes) else queue_labels[part] for part in self._parts])


def _group_rows(rows: pa.Table) -> list[Ints]:
    """Return the positions of the first row of every queue, then those of the second, and so on. The rows of a queue
    are in the order of time, because `buckets.merge` sorts them."""
    seen: Counter[QueueNames] = Counter()
    numbers = np.empty(rows.num_rows, np.int64)
    for position, names in enumerate(zip(*(rows[name].to_pylist() for name in NAMES), strict=True)):
        numbers[position] = seen[names]
        seen[names] += 1
    order = np.argsort(numbers, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1) if rows.num_rows else []


def _read_gauges(last: Mapping[str, int]) -> Gauges:
    return (
        max(last["depth"] - last["cold_depth"], 0),
        last["cold_depth"],
        last["running"],
        last["scheduled"],
        max(last["bytes"] - last["cold_bytes"], 0),
        last["cold_bytes"],
        last["oldest_at"] / 1000 if last["oldest_at"] else None,
        last["limit"] if last["limit"] >= 0 else None,
    )


def _encode_names(names: QueueNames) -> list[bytes]:
    return [encode_label(label, value) for label, value in zip(QUEUE_LABELS, names, strict=True)]


def _join(series: Iterable[bytes]) -> Iterator[bytes]:
    """Join series to payloads of up to SERIES_PER_PAYLOAD."""
    held: list[bytes] = []
    for each in series:
        held.append(each)
        if len(held) == SERIES_PER_PAYLOAD:
            yield b"".join(held)
            held = []
    if held:
        yield b"".join(held)
