"""The arithmetic of benchmark reports, and the events that the pipeline's benchmark writes and sums up."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from bench.pipeline_readers import sums
from bench.pipeline_stream import AFTER_EPOCH, AFTER_OLDEST, NAMES, Pattern, Queues, Step
from bench.report import Bar, find_missed, finish, median_ratio, percentile, round_value

from headrace.model.event import COUNT_COLUMN, Op
from headrace.model.names import EnvRef

BARS = [Bar("fast", ">=", 2, aim=4), Bar("cheap", "<=", 1.5)]


def test_a_bar_holds_at_its_limit() -> None:
    assert find_missed({"fast": 2, "cheap": 1.5}, BARS) == []


def test_a_missed_bar_is_named() -> None:
    assert find_missed({"fast": 1.99, "cheap": 1.51}, BARS) == ["fast", "cheap"]


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1), (0.5, 50), (0.99, 99), (1.0, 100)])
def test_a_percentile_is_a_value_that_was_seen(share: float, expected: int) -> None:
    assert percentile(list(range(100, 0, -1)), share) == expected


def test_one_disturbed_round_does_not_move_a_ratio() -> None:
    assert median_ratio([20, 2, 20], [10, 100, 10]) == 2


@pytest.mark.parametrize(("value", "shown"), [(7701.6, 7702), (0.97713, 0.977), (14.96, 15.0)])
def test_results_are_rounded_to_repeatable_digits(value: float, shown: float) -> None:
    assert round_value(value) == shown


def test_the_last_line_of_output_is_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    finish("queue", {"fast": 1.0, "cheap": 1.0}, BARS, json_only=True, record=False)
    out, err = capsys.readouterr()
    assert json.loads(out) == {"bench": "queue", "fast": 1.0, "cheap": 1.0, "missed": ["fast"]}
    assert "MISSED (bar >= 2, aim >= 4)" in err


def test_a_bar_is_judged_before_rounding(capsys: pytest.CaptureFixture[str]) -> None:
    finish("queue", {"cheap": 1.5004}, BARS[1:], json_only=True, record=False)
    assert json.loads(capsys.readouterr().out) == {"bench": "queue", "cheap": 1.5, "missed": ["cheap"]}


def test_a_result_that_was_not_measured_is_null_and_misses_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    finish("queue", {"cheap": None}, BARS[1:], json_only=True, record=False, details={"absent": ["peer"]})
    out, err = capsys.readouterr()
    assert json.loads(out) == {"bench": "queue", "cheap": None, "missed": [], "absent": ["peer"]}
    assert "not measured (bar <= 1.5)" in err


def step(op: str, n: int, counted: int, age_ms: int | None, **values: str) -> Step:
    gauges, rest = ("\t".join(values.get(name, "") for name in names) for names in (AFTER_EPOCH, AFTER_OLDEST))
    return Step(op, n, counted, gauges, age_ms, rest)


PATTERN = Pattern(
    [
        step("enqueue", 3, 3, 40, depth="3", running="0"),
        step("dequeue", 2, 2, None, depth="1", running="2", waits="0,30"),
        step("enqueue", 1, 4, 45, depth="2", running="2"),
    ],
    Counter({"enqueue": 4, "dequeue": 2}),
)
AT_MS = 1_800_000_000_000


def packed(number: int) -> str:
    return PATTERN.packed(number, number + 1, "o\tp\te\tq", 7, AT_MS)


def test_odometers_of_a_repeated_pattern_go_on() -> None:
    events = [dict(zip(NAMES, packed(number).split("\t"), strict=True)) for number in range(6)]
    assert [event["odometer"] for event in events] == ["3", "2", "4", "7", "4", "8"]
    assert [event["oldest_ms"] for event in events[:2]] == [str(AT_MS - 40), ""]
    assert [event["seq"] for event in events] == ["1", "2", "3", "4", "5", "6"]


def test_queues_of_a_stored_stream_are_where_the_queue_would_put_them() -> None:
    for shard, names in enumerate(Queues("bench", 20, 0).names):
        assert len(names) == 10
        assert {EnvRef(*name.split("\t")[:3]).shard(2) for name in names} == {shard}


def test_the_plain_consumer_sums_up_five_seconds_of_a_queue() -> None:
    entries = [(f"{AT_MS + 2500 * number}-0".encode(), {b"e": packed(number).encode()}) for number in range(3)]
    first, second = sums(entries)
    assert (first["bucket_start"], second["bucket_start"]) == (AT_MS // 1000, AT_MS // 1000 + 5)
    assert (first[COUNT_COLUMN[Op.ENQUEUE]], first[COUNT_COLUMN[Op.DEQUEUE]]) == (3, 2)
    assert (first["total_wait_duration_ms"], first["wait_duration_count"]) == (30, 2)
    assert (first["max_queue_length"], first["max_concurrency_current"]) == (3, 2)
    assert first["max_oldest_message_age_ms"] == 40
    assert second[COUNT_COLUMN[Op.ENQUEUE]] == 1
