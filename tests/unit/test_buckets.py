"""Partial sums of events against a model that adds one event at a time."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.model.event import COLUMNS, COUNT_COLUMN, RESYNC, TICK, Op
from headrace.model.histogram import Histogram, compute_percentile, merge_histograms
from headrace.pipeline.buckets import (
    COUNTS,
    ENVIRONMENT_SCHEMA,
    HISTOGRAMS,
    LAST,
    NAMES,
    SUMS,
    aggregate_environments,
    bucketize,
    coarsen,
    merge,
)
from headrace.pipeline.decode import SCHEMA
from tests.events import event_table, find_bucket

OPS = [*map(str, COUNT_COLUMN), RESYNC, TICK, "verb of the future"]
numbers = st.integers(0, 3000)
events = st.fixed_dictionaries(
    {
        "at_ms": st.integers(1_000_000, 1_020_000),
        "org": st.sampled_from(["a", "ü"]),
        "queue": st.sampled_from(["q", "r"]),
        "op": st.sampled_from(OPS),
        "n": st.integers(1, 9),
        "epoch": st.sampled_from([5, 6]),
        "depth": numbers,
        "limit": st.none() | numbers,
        "oldest_ms": st.none() | st.integers(990_000, 1_010_000),
        "waits": st.lists(st.integers(-5, 100_000), max_size=3),
        "runs": st.none() | st.lists(numbers, max_size=2),
        "odometers": st.none() | st.lists(numbers, max_size=len(COUNT_COLUMN) + 1),  # one of an unknown verb
    }
)
moves = st.tuples(st.sampled_from(list(COUNT_COLUMN)), st.integers(1, 9), st.booleans())


def at_ms(event: dict[str, Any]) -> int:
    return event["at_ms"]


def age_ms(event: dict[str, Any]) -> int:
    return max(0, event["at_ms"] - (event["oldest_ms"] or event["at_ms"]))


def to_table(found: list[dict[str, Any]]) -> pa.Table:
    """Fields that a test does not name are 1, or empty."""
    empty: dict[str, Any] = {column.name: 1 if column.kind == "int" else "" for column in COLUMNS}
    odometers: Counter[Any] = Counter()
    rows: list[dict[str, Any]] = []
    for seq, event in enumerate(found):
        key = (event["org"], event["queue"], event["epoch"], event["op"])
        odometers[key] += event["n"]
        rows.append({**empty, "shard": 0, "at_seq": seq, **event, "odometer": odometers[key]})
    return pa.Table.from_pylist(rows, schema=SCHEMA)


@settings(max_examples=200, deadline=None)
@given(st.lists(events, max_size=30), st.data())
def test_any_split_of_events_adds_up_to_the_same(found: list[dict[str, Any]], data: st.DataObject) -> None:
    table = to_table(sorted(found, key=at_ms))
    cut = data.draw(st.integers(0, len(found)))
    whole = merge([bucketize(table)])
    assert merge([bucketize(table.slice(cut)), bucketize(table.slice(0, cut))]) == whole
    assert whole.to_pylist() == expected(table.to_pylist())


def expected(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    groups: defaultdict[Any, list[dict[str, Any]]] = defaultdict(list)
    for event in found:
        if event["op"] != TICK:
            second = event["at_ms"] // 5000 * 5
            groups[event["org"], event["project"], event["env"], event["queue"], second, event["epoch"]].append(event)
    return [row(key, groups[key]) for key in sorted(groups)]


def row(key: tuple[Any, ...], group: list[dict[str, Any]]) -> dict[str, Any]:
    *names, second, epoch = key
    newest = group[-1]
    waits = [max(0, wait) for event in group for wait in event["waits"] or []]
    runs = [run for event in group for run in event["runs"] or []]
    counted = [(number, op) for number, op in enumerate(COUNT_COLUMN) if any(event["op"] == op for event in group)]
    of = {op: [event for event in group if event["op"] == op] for _, op in counted}
    read = sorted(readings(group).items())
    gauges = {
        **{name: newest.get(name) for name in LAST},
        **{"limit": -1 if newest["limit"] is None else newest["limit"], "oldest_at": newest["oldest_ms"] or 0},
    }
    return {
        **dict(zip(("organization_id", "project_id", "environment_id", "queue_name"), names, strict=True)),
        "bucket_start": pa.scalar(second, pa.timestamp("s", "UTC")).as_py(),
        "epoch": epoch,
        **{column: sum(event["n"] for event in of.get(op, [])) for op, column in COUNT_COLUMN.items()},
        "max_queue_length": max(event["depth"] for event in group),
        **dict.fromkeys(("max_cold_queue_length", "max_concurrency_current", "max_env_queue_length"), 1),
        "max_env_concurrency": 1,
        "max_oldest_message_age_ms": max(map(age_ms, group)),
        "max_bytes": 1,
        **{"total_wait_duration_ms": sum(waits), "wait_duration_count": len(waits)},
        **{"total_run_duration_ms": sum(runs), "run_duration_count": len(runs)},
        "last": {"at": newest["at_ms"] * 2**20 + newest["at_seq"], **gauges},
        "wait_histogram": sorted(Counter(map(find_bucket, waits)).items()),
        "run_histogram": sorted(Counter(map(find_bucket, runs)).items()),
        "first_odometers": [(number, min(values)) for number, values in read],
        "last_odometers": [(number, max(values)) for number, values in read],
    }


def readings(group: list[dict[str, Any]]) -> dict[int, list[int]]:
    """Return the odometer readings of each verb, by its number: before and after each event, and from resyncs."""
    found: defaultdict[int, list[int]] = defaultdict(list)
    for event in group:
        for number, op in enumerate(COUNT_COLUMN):
            if event["op"] == op:
                found[number] += [event["odometer"] - event["n"], event["odometer"]]
            found[number] += (event["odometers"] or [])[number : number + 1]
    return {number: values for number, values in found.items() if values}


@settings(deadline=None)
@given(
    st.lists(moves, max_size=30), st.lists(numbers, min_size=len(COUNT_COLUMN), max_size=len(COUNT_COLUMN)), st.data()
)
def test_after_a_resync_the_odometers_show_the_loss(
    moves: list[tuple[Op, int, bool]], before: list[int], data: st.DataObject
) -> None:
    """Each move has a verb, a number of jobs, and whether its event was lost."""
    odometers = dict(zip(COUNT_COLUMN, before, strict=True))
    counts, lost = Counter[Op](), Counter[Op]()
    found = [{"op": RESYNC, "n": 0, "odometer": None, "odometers": before}]
    for op, n, is_lost in moves:
        odometers[op] += n
        (lost if is_lost else counts)[op] += n
        found += [] if is_lost else [{"op": op, "n": n, "odometer": odometers[op]}]
    found.append({"op": RESYNC, "n": 0, "odometer": None, "odometers": list(odometers.values())})
    table = event_table(*({**event, "at_ms": 1_000_000 + 1000 * second} for second, event in enumerate(found)))
    cut = data.draw(st.integers(0, len(found)))
    rows = merge([bucketize(table.slice(cut)), bucketize(table.slice(0, cut))]).to_pylist()
    for number, (op, column) in enumerate(COUNT_COLUMN.items()):
        first = min(value for row in rows for verb, value in row["first_odometers"] if verb == number)
        last = max(value for row in rows for verb, value in row["last_odometers"] if verb == number)
        counted = sum(row[column] for row in rows)
        assert (counted, last - first - counted) == (counts[op], lost[op])


@given(st.lists(st.integers(0, 10**9), min_size=1), st.sampled_from([0.5, 0.9, 0.95, 0.99, 1.0]))
def test_percentiles_are_within_two_and_a_half_percent(values: list[int], share: float) -> None:
    """Whatever histograms the values were merged from."""
    half = len(values) // 2
    histogram: Histogram = merge_histograms(
        [Counter(map(find_bucket, values[:half])), Counter(map(find_bucket, values[half:]))]
    )
    exact = sorted(values)[max(1, -(-len(values) * int(share * 100) // 100)) - 1]
    found = compute_percentile(histogram, share)
    assert found is not None
    assert abs(found - exact) <= 0.025 * exact


def test_nothing_measured_has_no_percentile() -> None:
    assert compute_percentile({}, 0.5) is None


@settings(max_examples=40, deadline=None)
@given(st.lists(events, max_size=30), st.data())
def test_coarser_buckets_do_not_depend_on_how_finer_ones_were_split(
    found: list[dict[str, Any]], data: st.DataObject
) -> None:
    table = to_table(sorted(found, key=at_ms))
    cut = data.draw(st.integers(0, len(found)))
    parts = [bucketize(table.slice(0, cut)), bucketize(table.slice(cut))]
    minutes = coarsen(merge(parts), 60)
    assert minutes == merge([coarsen(part, 60) for part in parts])
    assert coarsen(minutes, 3600) == coarsen(merge(parts), 3600)
    assert all(start.second == 0 for start in minutes["bucket_start"].to_pylist())
    for name in (*COUNTS, *SUMS):
        assert sum(minutes[name].to_pylist()) == sum(row[name] for row in merge(parts).to_pylist())


@settings(max_examples=40, deadline=None)
@given(st.lists(events, max_size=30))
def test_an_environment_is_all_its_queues(found: list[dict[str, Any]]) -> None:
    rows = bucketize(to_table(sorted(found, key=at_ms)))
    groups: defaultdict[Any, list[dict[str, Any]]] = defaultdict(list)
    for each in rows.to_pylist():
        groups[tuple(each[name] for name in (*NAMES[:3], "bucket_start"))].append(each)
    whole = aggregate_environments(rows)
    assert whole.schema == ENVIRONMENT_SCHEMA
    assert whole.to_pylist() == [environment(key, groups[key]) for key in sorted(groups)]


def environment(key: tuple[Any, ...], queues: list[dict[str, Any]]) -> dict[str, Any]:
    newest = max(
        (q["last"]["at"], q["last"]["env_depth"], q["last"]["env_running"], q["last"]["env_limit"]) for q in queues
    )
    histograms = {name: sum((Counter(dict(q[name])) for q in queues), Counter[int]()) for name in HISTOGRAMS}
    return {
        **dict(zip((*NAMES[:3], "bucket_start"), key, strict=True)),
        **{name: sum(q[name] for q in queues) for name in COUNTS},
        "max_queue_length": max(q["max_env_queue_length"] for q in queues),
        "max_concurrency_current": max(q["max_env_concurrency"] for q in queues),
        **{name: sum(q[name] for q in queues) for name in SUMS},
        "last": dict(zip(("at", "depth", "running", "limit"), newest, strict=True)),
        **{name: sorted(counted.items()) for name, counted in histograms.items()},
    }


def test_of_two_queues_with_the_same_newest_entry_the_higher_gauges_are_the_environments() -> None:
    """Entries of two shards may have the same id."""
    tie = [{"queue": "a", "env_depth": 3, "env_running": 9}, {"queue": "b", "env_depth": 4}, {"queue": "c"}]
    for order in (tie, tie[::-1]):
        [whole] = aggregate_environments(bucketize(event_table(*order))).to_pylist()
        assert (whole["last"]["depth"], whole["last"]["running"]) == (4, 0)
