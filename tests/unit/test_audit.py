"""Compare rows of the archive with rows of the warehouse: every difference is found and described."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from headrace.errors import InvalidPeriod
from headrace.pipeline.audit import ENVIRONMENT_KEYS, QUEUE_KEYS, compare
from headrace.pipeline.buckets import SCHEMA, aggregate_environments, bucketize
from headrace.pipeline.replay import validate_window
from tests.events import event_table

HOUR_MS = 3_600_000
START = 1_800_000_000_000
ROWS = bucketize(
    event_table(
        {"queue": "a", "op": "dequeue", "n": 2, "waits": [3, 0]},
        {"queue": "b", "op": "ack", "n": 5, "odometer": 5, "runs": [7]},
        {"queue": "c", "n": 4, "odometer": 4, "at_ms": START + 5000},
    )
)


def changed(row: int, **values: Any) -> pa.Table:
    rows = ROWS.to_pylist()
    rows[row] |= values
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def test_the_same_rows_in_any_order_are_equal() -> None:
    found = compare(ROWS, ROWS.take([2, 0, 1]), QUEUE_KEYS)
    assert (found.rows, found.equal, found.difference, found.examples) == (3, True, 0, [])


def test_rows_that_one_side_lacks_are_counted_with_all_their_counters() -> None:
    found = compare(ROWS, ROWS.slice(1), QUEUE_KEYS)
    assert (found.rows, found.missing, found.extra, found.different, found.difference) == (2, 1, 0, 0, 2)
    assert found.examples == ["missing o/p/e/a 2027-01-15T08:00:00Z"]
    found = compare(ROWS.slice(1), ROWS, QUEUE_KEYS)
    assert (found.rows, found.missing, found.extra, found.different, found.difference) == (2, 0, 1, 0, 2)
    assert found.examples == ["extra o/p/e/a 2027-01-15T08:00:00Z"]
    assert compare(ROWS, ROWS.slice(0, 0), QUEUE_KEYS).missing == 3


def test_errors_of_counters_do_not_cancel_out() -> None:
    both = changed(0, dequeue_count=1, nack_count=1)
    found = compare(ROWS, both, QUEUE_KEYS)
    assert (found.different, found.difference) == (1, 2)
    assert found.examples == [
        "different o/p/e/a 2027-01-15T08:00:00Z: dequeue_count is 1 in the warehouse, 2 by the archive"
    ]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("max_bytes", 1),
        ("total_run_duration_ms", 8),
        ("last", {**ROWS["last"][1].as_py(), "env_limit": 7}),
        ("run_histogram", [(44, 1)]),
        ("run_histogram", []),
        ("wait_histogram", [(1, 1)]),
        ("run_histogram", [(45, 2)]),
        ("first_odometers", [(4, 1)]),
        ("last_odometers", [(4, 6)]),
    ],
)
def test_a_difference_in_any_column_is_found(column: str, value: Any) -> None:
    """The difference is found in its own row, also beside rows whose maps have other sizes."""
    assert ROWS[column][1].as_py() != value
    found = compare(ROWS, changed(1, **{column: value}), QUEUE_KEYS)
    assert (found.rows, found.different, found.difference) == (3, 1, 0)
    assert f"o/p/e/b 2027-01-15T08:00:00Z: {column} is" in found.examples[0]


def test_another_epoch_is_another_row() -> None:
    found = compare(ROWS, changed(0, epoch=2), QUEUE_KEYS)
    assert (found.missing, found.extra) == (1, 1)


def test_environments_are_compared_by_their_own_keys() -> None:
    one, other = aggregate_environments(ROWS), aggregate_environments(changed(1, ack_count=6))
    assert compare(one, one, ENVIRONMENT_KEYS).equal
    found = compare(one, other, ENVIRONMENT_KEYS)
    assert (found.different, found.difference) == (1, 1)
    assert found.examples == ["different o/p/e 2027-01-15T08:00:00Z: ack_count is 6 in the warehouse, 5 by the archive"]


@pytest.mark.parametrize(("start", "end"), [(1, HOUR_MS), (0, HOUR_MS - 1), (0, 0), (HOUR_MS, 0)])
def test_only_whole_hours_are_taken_and_the_nearest_are_named(start: int, end: int) -> None:
    with pytest.raises(InvalidPeriod) as refused:
        validate_window(START + start, START + end, START + 9 * HOUR_MS)
    hours = ("09:00", "10:00") if start == HOUR_MS else ("08:00", "09:00")
    assert f"--from 2027-01-15T{hours[0]}:00Z --to 2027-01-15T{hours[1]}:00Z" in str(refused.value)


@pytest.mark.parametrize("watermark", [None, 0, START + HOUR_MS - 1])
def test_hours_that_may_still_change_are_not_taken(watermark: int | None) -> None:
    with pytest.raises(InvalidPeriod, match="Wait"):
        validate_window(START, START + HOUR_MS, watermark)
    assert list(validate_window(START, START + HOUR_MS, START + HOUR_MS).list_hours) == [START]
