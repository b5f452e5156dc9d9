"""Aggregate events to rows of the warehouse, in Arrow and numpy: no Python code runs per event.

`bucketize` computes partial sums of events, in the task that read them; `merge` adds partial sums. Neither does I/O.
`merge(bucketize(a), bucketize(b))` equals `bucketize(a + b)`, so the result does not depend on how events were split
among partitions, nor on whether they were streamed or replayed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.model.event import COUNT_COLUMN, TICK
from headrace.model.histogram import BUCKETS_PER_DOUBLING, ZERO_BUCKET
from headrace.pipeline.arrow import pc
from headrace.pipeline.entries import Ints, pack

BUCKET_S = 5
MAX_UINT32 = 2**32 - 1  # maximum of a UInt32 column
MAX_VALUE = 2**62

NAMES = ("organization_id", "project_id", "environment_id", "queue_name")
COUNTS = tuple(COUNT_COLUMN.values())
HIGHS = (
    *("max_queue_length", "max_cold_queue_length", "max_concurrency_current", "max_env_queue_length"),
    *("max_env_concurrency", "max_oldest_message_age_ms", "max_bytes"),
)
LAST = (
    *("depth", "cold_depth", "scheduled", "running", "limit", "oldest_at", "bytes", "cold_bytes"),
    *("env_depth", "env_running", "env_limit"),
)
"""Gauges of the newest event of a bucket, in one tuple with the time of that event. −1: no limit; 0: nothing waits."""
SUMS = ("total_wait_duration_ms", "wait_duration_count", "total_run_duration_ms", "run_duration_count")
HISTOGRAMS = ("wait_histogram", "run_histogram")

_LAST_TYPE = pa.struct([("at", pa.int64()), *((name, pa.int64()) for name in LAST)])
_MAP_TYPE = pa.map_(pa.int16(), pa.int64())

SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in NAMES),
        ("bucket_start", pa.timestamp("s", "UTC")),
        ("epoch", pa.int64()),
        *((name, pa.int64()) for name in (*COUNTS, *HIGHS, *SUMS)),
        ("last", _LAST_TYPE),
        *((name, _MAP_TYPE) for name in (*HISTOGRAMS, "first_odometers", "last_odometers")),
    ]
)

ENVIRONMENT_NAMES = NAMES[:-1]
ENVIRONMENT_HIGHS = {"max_queue_length": "max_env_queue_length", "max_concurrency_current": "max_env_concurrency"}
"""Columns of an environment, and the columns of its queues that they are computed from."""
ENVIRONMENT_LAST = {"depth": "env_depth", "running": "env_running", "limit": "env_limit"}
_ENVIRONMENT_LAST_TYPE = pa.struct([("at", pa.int64()), *((name, pa.int64()) for name in ENVIRONMENT_LAST)])

ENVIRONMENT_SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ENVIRONMENT_NAMES),
        ("bucket_start", pa.timestamp("s", "UTC")),
        *((name, pa.int64()) for name in (*COUNTS, *ENVIRONMENT_HIGHS, *SUMS)),
        ("last", _ENVIRONMENT_LAST_TYPE),
        *((name, _MAP_TYPE) for name in HISTOGRAMS),
    ]
)


@dataclass
class PartialSums:
    """Partial sums as columns. A row is one event, or a bucket of many events."""

    keys: pa.Table
    bucket: Ints
    epoch: Ints
    counts: Ints  # row × verb
    highs: Ints
    sums: Ints
    at: Ints  # packed entry id of the newest event
    last: Ints
    histograms: Sequence[MapEntries]
    odometers: MapEntries  # by verb: the lowest and the highest reading


@dataclass
class MapEntries:
    """Entries of map columns with equal keys: row, key, and one value per column."""

    row: Ints
    key: Ints
    values: Sequence[Ints]


def bucketize(events: pa.Table) -> pa.Table:
    """Return the partial sums of decoded events. Ticks have no queue and are skipped."""
    of_queues = events.filter(pc.not_equal(events["op"], TICK))
    return _to_table(_combine(_from_events(of_queues)))


def merge(partials: Iterable[pa.Table]) -> pa.Table:
    """Add partial sums. Return one row per queue, epoch and bucket, in this order."""
    table = pa.concat_tables([SCHEMA.empty_table(), *partials])
    return _to_table(_combine(_from_table(table)))


def coarsen(rows: pa.Table, seconds: int) -> pa.Table:
    """Aggregate rows to longer buckets, as the views do with the rows of the tier below."""
    fine = _from_table(rows)
    return _to_table(_combine(replace(fine, bucket=fine.bucket // seconds * seconds)))


def aggregate_environments(rows: pa.Table) -> pa.Table:
    """Aggregate the rows of queues to environments, in the order of environments and buckets, as the views do.

    Two queues may have the same newest entry id, in different shards; as in ClickHouse, the higher gauges count then.
    """
    last = rows["last"].combine_chunks()
    gauges = [last.field(name).to_numpy(zero_copy_only=False) for name in reversed(ENVIRONMENT_LAST.values())]
    queues = _from_table(rows.take(np.lexsort(gauges)))
    no_queue = pa.array([""]).take(pa.array(np.zeros(rows.num_rows, np.int64)))
    keys = queues.keys.set_column(NAMES.index("queue_name"), "queue_name", no_queue)
    return _to_environments(_to_table(_combine(replace(queues, keys=keys, epoch=np.zeros(rows.num_rows, np.int64)))))


# Reading --------------------------------------------------------------------------------------------


def _from_events(events: pa.Table) -> PartialSums:
    at_ms, n = _read_ints(events, "at_ms"), _read_ints(events, "n")
    verb = _read_verbs(events)
    counted = verb >= 0
    counts = np.zeros((events.num_rows, len(COUNTS)), np.int64)
    counts[np.flatnonzero(counted), verb[counted]] = n[counted]
    oldest = _clamped_ints(events, "oldest_ms", MAX_VALUE)
    bytes, cold_bytes = (_clamped_ints(events, name, MAX_VALUE) for name in ("bytes", "cold_bytes"))
    lengths = ("depth", "cold_depth", "scheduled", "running", "env_depth", "env_running")
    gauges = {name: _clamped_ints(events, name, MAX_UINT32) for name in lengths}
    age = np.where(oldest > 0, np.maximum(at_ms - oldest, 0), 0)
    waits, runs = _read_durations(events, "waits"), _read_durations(events, "runs")
    return PartialSums(
        keys=events.select(["org", "project", "env", "queue"]).rename_columns(list(NAMES)),
        bucket=at_ms // (BUCKET_S * 1000) * BUCKET_S,
        epoch=_read_ints(events, "epoch"),
        counts=counts,
        highs=np.column_stack(
            [
                *(gauges[name] for name in ("depth", "cold_depth", "running", "env_depth", "env_running")),
                *(age, bytes),
            ]
        ),
        sums=np.column_stack([*waits.sum_per_row(events.num_rows), *runs.sum_per_row(events.num_rows)]),
        at=pack(at_ms, _read_ints(events, "at_seq")),
        last=np.column_stack(
            [
                *(gauges[name] for name in ("depth", "cold_depth", "scheduled", "running")),
                *(_read_ints(events, "limit", -1), oldest, bytes, cold_bytes),
                *(gauges["env_depth"], gauges["env_running"], _read_ints(events, "env_limit", -1)),
            ]
        ),
        histograms=[waits.to_histogram_entries(), runs.to_histogram_entries()],
        odometers=_read_odometers(events, verb, n),
    )


@dataclass(frozen=True)
class EventDurations:
    """Values of a list column, and the rows they belong to."""

    row: Ints
    value: Ints

    def sum_per_row(self, rows: int) -> tuple[Ints, Ints]:
        """Return the sum and the number of values per row."""
        total = np.zeros(rows, np.int64)
        np.add.at(total, self.row, self.value)
        return total, np.bincount(self.row, minlength=rows).astype(np.int64)

    def to_histogram_entries(self) -> MapEntries:
        """Return the values as entries of a histogram; see model/histogram.py."""
        key = np.full(len(self.value), ZERO_BUCKET, np.int64)
        positive = self.value > 0
        key[positive] = np.ceil(BUCKETS_PER_DOUBLING * np.log2(self.value[positive])).astype(np.int64)
        return MapEntries(self.row, key, [np.ones(len(key), np.int64)])


def _read_durations(events: pa.Table, name: str) -> EventDurations:
    row, value = _read_list_entries(events, name)
    return EventDurations(row, np.maximum(value, 0))


def _read_odometers(events: pa.Table, verb: Ints, n: Ints) -> MapEntries:
    """Return the lowest and highest odometer reading per event and verb. A counted event advances its odometer by n; a
    resync only reports readings, so what they exceed the counts by was lost."""
    moved = np.flatnonzero((verb >= 0) & pc.is_valid(events["odometer"]).to_numpy())
    after = _read_ints(events, "odometer")[moved]
    row, reading = _read_list_entries(events, "odometers")
    place = np.arange(len(row)) - np.searchsorted(row, row)  # index within its list, which is in the order of COUNTS
    known = place < len(COUNTS)
    row, place, reading = row[known], place[known], reading[known]
    lowest, highest = np.r_[np.maximum(after - n[moved], 0), reading], np.r_[after, reading]
    return MapEntries(np.r_[moved, row], np.r_[verb[moved], place], [lowest, highest])


def _read_list_entries(events: pa.Table, name: str) -> tuple[Ints, Ints]:
    """Return rows, in order, and values of all entries of a list column."""
    column = events[name].combine_chunks()
    row = pc.list_parent_indices(column).to_numpy(zero_copy_only=False).astype(np.int64)
    return row, pc.list_flatten(column).to_numpy(zero_copy_only=False).astype(np.int64)


def _read_verbs(events: pa.Table) -> Ints:
    """Return the index of each event's count column; −1 for a resync, which counts nothing, and for unknown verbs."""
    known = pa.array([str(op) for op in COUNT_COLUMN])
    return pc.fill_null(pc.index_in(events["op"], value_set=known), -1).to_numpy().astype(np.int64)


def _read_ints(events: pa.Table, name: str, absent: int = 0) -> Ints:
    return pc.fill_null(events[name], absent).to_numpy().astype(np.int64)


def _clamped_ints(events: pa.Table, name: str, most: int) -> Ints:
    """Return a column clamped to [0, most]: the target column is unsigned, so a negative number would become huge."""
    return np.clip(_read_ints(events, name), 0, most)


def _from_table(table: pa.Table) -> PartialSums:
    last = table["last"].combine_chunks()
    return PartialSums(
        keys=table.select(list(NAMES)),
        bucket=table["bucket_start"].cast(pa.int64()).to_numpy(),
        epoch=_read_ints(table, "epoch"),
        counts=_stack_columns(table, COUNTS),
        highs=_stack_columns(table, HIGHS),
        sums=_stack_columns(table, SUMS),
        at=last.field("at").to_numpy(zero_copy_only=False).astype(np.int64),
        last=np.column_stack([last.field(name).to_numpy(zero_copy_only=False) for name in LAST]).astype(np.int64),
        histograms=[_read_map_entries(table[name]) for name in HISTOGRAMS],
        odometers=_read_map_entries(table["first_odometers"], table["last_odometers"]),
    )


def _stack_columns(table: pa.Table, names: Sequence[str]) -> Ints:
    return np.column_stack([_read_ints(table, name) for name in names])


def _read_map_entries(*columns: pa.ChunkedArray) -> MapEntries:
    """Return all entries of map columns, whose rows have equal keys in the same order."""
    maps = [column.combine_chunks() for column in columns]
    row = np.repeat(np.arange(len(maps[0])), np.diff(maps[0].offsets.to_numpy()))
    values = [each.items.to_numpy().astype(np.int64) for each in maps]
    return MapEntries(row, maps[0].keys.to_numpy().astype(np.int64), values)


# Aggregation ----------------------------------------------------------------------------------------


def _combine(rows: PartialSums) -> PartialSums:
    """Combine rows to one per key, epoch and bucket. Every column is a sum, a maximum or the newest value of a
    group."""
    if not len(rows.bucket):
        return rows
    group, heads = _find_groups(rows)
    order = np.lexsort((rows.at, group))  # by group, and within it by time
    starts = np.flatnonzero(np.r_[True, np.diff(group[order]) > 0])
    newest = order[np.r_[starts[1:], len(order)] - 1]

    def reduced(operation: Any, values: Ints) -> Ints:
        return operation.reduceat(values[order], starts, axis=0)

    return PartialSums(
        keys=rows.keys.take(heads),
        bucket=rows.bucket[heads],
        epoch=rows.epoch[heads],
        counts=reduced(np.add, rows.counts),
        highs=reduced(np.maximum, rows.highs),
        sums=reduced(np.add, rows.sums),
        at=rows.at[newest],
        last=rows.last[newest],
        histograms=[_combine_entries(entries, group, np.add) for entries in rows.histograms],
        odometers=_combine_entries(rows.odometers, group, np.minimum, np.maximum),
    )


def _find_groups(rows: PartialSums) -> tuple[Ints, Ints]:
    """Return the group number of each row, and one row of each group; groups are in the order of their keys."""
    codes: list[Ints] = []
    for name in NAMES:
        encoded = rows.keys[name].combine_chunks().dictionary_encode()
        # Ranked, so that the order of groups does not depend on which name came first.
        rank = np.argsort(np.argsort(encoded.dictionary.to_numpy(zero_copy_only=False).astype(str)))
        codes.append(rank[encoded.indices.to_numpy()])
    columns = [*codes, rows.bucket, rows.epoch]
    order = np.lexsort(columns[::-1])
    changed = np.zeros(len(order), bool)
    changed[0] = True
    for column in columns:
        changed[1:] |= np.diff(column[order]) != 0
    group = np.empty(len(order), np.int64)
    group[order] = np.cumsum(changed) - 1
    return group, order[changed]


def _combine_entries(entries: MapEntries, group: Ints, *operations: Any) -> MapEntries:
    """Combine the entries with the same group and key, the values of each column by its operation."""
    if not len(entries.row):
        return entries
    row = group[entries.row]
    order = np.lexsort((entries.key, row))
    row, key = row[order], entries.key[order]
    starts = np.flatnonzero(np.r_[True, (np.diff(row) != 0) | (np.diff(key) != 0)])
    values = [
        operation.reduceat(column[order], starts) for operation, column in zip(operations, entries.values, strict=True)
    ]
    return MapEntries(row[starts], key[starts], values)


# Writing --------------------------------------------------------------------------------------------


def _to_table(rows: PartialSums) -> pa.Table:
    maps = (*rows.histograms, rows.odometers)
    arrays: list[Any] = [
        *(rows.keys[name].combine_chunks() for name in NAMES),
        pa.array(rows.bucket).cast(pa.timestamp("s", "UTC")),
        pa.array(rows.epoch),
        *_split_columns(rows.counts),
        *_split_columns(rows.highs),
        *_split_columns(rows.sums),
        pa.StructArray.from_arrays([pa.array(rows.at), *_split_columns(rows.last)], fields=list(_LAST_TYPE)),
        *(array for entries in maps for array in _build_map_arrays(len(rows.bucket), entries)),
    ]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def _split_columns(matrix: Ints) -> list[pa.Array]:
    return [pa.array(matrix[:, i]) for i in range(matrix.shape[1])]


def _to_environments(table: pa.Table) -> pa.Table:
    """Return rows of queues, of which there is one per environment and bucket, as rows of environments."""
    last = table["last"].combine_chunks()
    gauges = [last.field(name) for name in ("at", *ENVIRONMENT_LAST.values())]
    columns = {
        **{name: table[ENVIRONMENT_HIGHS.get(name, name)] for name in ENVIRONMENT_SCHEMA.names},
        "last": pa.StructArray.from_arrays(gauges, fields=list(_ENVIRONMENT_LAST_TYPE)),
    }
    return pa.Table.from_pydict(columns, schema=ENVIRONMENT_SCHEMA)


def _build_map_arrays(size: int, entries: MapEntries) -> list[pa.Array]:
    """Build map columns; entries must be in the order of their rows."""
    offsets = np.r_[0, np.cumsum(np.bincount(entries.row, minlength=size))].astype(np.int32)
    key = pa.array(entries.key.astype(np.int16))
    return [pa.MapArray.from_arrays(pa.array(offsets), key, pa.array(value)) for value in entries.values]
