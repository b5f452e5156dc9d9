"""Samples for Prometheus from rows of history."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.model.event import COUNT_COLUMN, Op
from headrace.pipeline import queue_samples
from headrace.pipeline.buckets import bucketize, merge
from headrace.pipeline.queue_samples import FORGET_AFTER_MS, QueueSamples
from tests.events import event_table
from tests.remote_write import Labels, Sample, decode_request, is_stale

MS = 1_800_000_000_000
NO_ROWS = merge([])


def decode(payloads: list[bytes]) -> list[dict[Labels, Sample]]:
    """Return the sample of every series, per payload."""
    found: list[dict[Labels, Sample]] = []
    for payload in payloads:
        samples: dict[Labels, Sample] = {}
        for labels, [sample] in decode_request(payload):
            assert labels not in samples, "two samples of a series in one payload"
            assert list(labels) == sorted(labels)
            samples[labels] = sample
        found.append(samples)
    return found


def build(made: QueueSamples, *events: dict[str, Any], watermark_ms: int = 0) -> list[dict[Labels, Sample]]:
    return decode(list(made.build(merge([bucketize(event_table(*events))]), watermark_ms)))


def pick(samples: dict[Labels, Sample], name: str, **labels: str) -> Sample | None:
    wanted = {("__name__", name), *labels.items()}
    found = [sample for each, sample in samples.items() if wanted <= set(each)]
    return found[0] if found else None


def test_the_values_of_a_queue() -> None:
    event = {"depth": 7, "cold_depth": 3, "scheduled": 2, "running": 4, "limit": 9, "bytes": 100, "cold_bytes": 60}
    [found] = build(QueueSamples({"job": "x"}, None), {**event, "oldest_ms": MS - 5000, "odometer": 12})
    queue = {"org": "o", "project": "p", "env": "e", "queue": "q", "job": "x"}
    assert pick(found, "headrace_queue_jobs", state="ready", tier="warm", **queue) == (MS, 4)
    assert pick(found, "headrace_queue_jobs", state="ready", tier="cold", **queue) == (MS, 3)
    assert pick(found, "headrace_queue_jobs", state="running", tier="warm", **queue) == (MS, 4)
    assert pick(found, "headrace_queue_jobs", state="scheduled", tier="both", **queue) == (MS, 2)
    assert pick(found, "headrace_queue_bytes", tier="warm", **queue) == (MS, 40)
    assert pick(found, "headrace_queue_bytes", tier="cold", **queue) == (MS, 60)
    assert pick(found, "headrace_queue_oldest_job_timestamp_seconds", **queue) == (MS, MS / 1000 - 5)
    assert pick(found, "headrace_queue_concurrency_limit", **queue) == (MS, 9)
    assert pick(found, "headrace_queue_operations_total", op="enqueue", **queue) == (MS, 12)
    assert len(found) == 9


def test_a_resync_has_every_counter() -> None:
    readings = list(range(len(COUNT_COLUMN)))
    [found] = build(QueueSamples({}, None), {"op": "resync", "n": 0, "odometer": None, "odometers": readings})
    for op, value in zip(Op, readings, strict=True):
        assert pick(found, "headrace_queue_operations_total", op=str(op)) == (MS, value)


def test_counters_that_did_not_move_are_sent_with_the_others() -> None:
    made = QueueSamples({}, None)
    build(made, {"op": "ack", "odometer": 5})
    [found] = build(made, {"at_ms": MS + 1, "op": "enqueue", "odometer": 6})
    assert pick(found, "headrace_queue_operations_total", op="ack") == (MS + 1, 5)
    assert pick(found, "headrace_queue_operations_total", op="enqueue") == (MS + 1, 6)


def test_a_new_epoch_is_a_counter_reset() -> None:
    made = QueueSamples({}, None)
    build(made, {"op": "ack", "odometer": 5}, {"odometer": 8, "at_seq": 1})
    [found] = build(made, {"at_ms": MS + 1, "epoch": 2, "odometer": 1})
    assert pick(found, "headrace_queue_operations_total", op="enqueue") == (MS + 1, 1)
    assert pick(found, "headrace_queue_operations_total", op="ack") is None


def test_a_value_that_became_absent_ends_its_series_once() -> None:
    made = QueueSamples({}, None)
    name = "headrace_queue_oldest_job_timestamp_seconds"
    [first] = build(made, {"oldest_ms": MS})
    [second] = build(made, {"at_ms": MS + 1})
    [third] = build(made, {"at_ms": MS + 2})
    assert pick(first, name) == (MS, MS / 1000)
    ended = pick(second, name)
    assert ended is not None
    assert is_stale(ended[1])
    assert pick(third, name) is None
    # The limit was absent from the start. An earlier process may have sent one.
    limits = [pick(each, "headrace_queue_concurrency_limit") for each in (first, second)]
    assert limits[0] is not None
    assert is_stale(limits[0][1])
    assert limits[1] is None


def test_one_payload_per_row_of_a_queue() -> None:
    """Two buckets of one queue, one of another."""
    found = build(
        QueueSamples({}, None),
        {"odometer": 1},
        {"at_ms": MS + 2, "odometer": 2},
        {"at_ms": MS + 5000, "odometer": 3},
        {"at_ms": MS + 1, "queue": "r", "odometer": 4},
    )
    counter = "headrace_queue_operations_total"
    assert [pick(each, counter, queue="q") for each in found] == [(MS + 2, 2), (MS + 5000, 3)]
    assert [pick(each, counter, queue="r") for each in found] == [(MS + 1, 4), None]


def test_large_batches_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_samples, "SERIES_PER_PAYLOAD", 10)
    monkeypatch.setattr(queue_samples, "ROWS_AT_ONCE", 2)
    found = build(QueueSamples({}, None), *({"queue": f"q{number}"} for number in range(7)))
    assert {len(each) for each in found[:-1]} == {10}
    assert len(set().union(*found)) == sum(map(len, found)) == 63


class TestIdleQueues:
    def test_are_repeated_at_the_watermark(self) -> None:
        made = QueueSamples({}, 60.0)
        [first] = build(made, {"depth": 3, "odometer": 4})
        assert build(made, watermark_ms=MS + 55_000) == []
        [found] = build(made, {"at_ms": MS + 90_000, "queue": "r"}, watermark_ms=MS + 60_000)[1:]
        counter = "headrace_queue_operations_total"
        assert pick(found, counter, queue="q") == (MS + 60_000, 4)
        assert pick(found, counter, queue="r") is None
        assert found.keys() < first.keys()  # all but the stale markers
        [later] = build(made, {"at_ms": MS + 60_000, "odometer": 5}, watermark_ms=MS + 60_000)
        assert pick(later, counter) == (MS + 60_001, 5)  # after the repetition

    def test_are_not_repeated_if_not_wanted(self) -> None:
        made = QueueSamples({}, None)
        build(made, {})
        assert build(made, watermark_ms=MS + 86_400_000) == []

    def test_are_forgotten_after_a_day(self) -> None:
        made = QueueSamples({}, 60.0)
        build(made, {"odometer": 4})
        assert len(made) == 1
        [found] = build(made, watermark_ms=MS + FORGET_AFTER_MS + 1)
        assert len(made) == 0
        assert all(is_stale(value) for _, value in found.values())
        assert pick(found, "headrace_queue_operations_total")


@settings(max_examples=40)
@given(st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=8), max_size=4))
def test_the_times_of_a_series_increase_and_its_last_value_is_the_newest(batches: list[list[tuple[int, int]]]) -> None:
    """Events of three queues, some in the same millisecond and in another batch, as after a clock was set back."""
    made, at, seq = QueueSamples({}, 5.0), MS, 0
    totals: dict[str, int] = {}
    newest: dict[Labels, Sample] = {}
    for batch in batches:
        events: list[dict[str, Any]] = []
        for step, number in batch:
            at, seq, queue = at + step * 2000, seq + 1, f"q{number}"
            totals[queue] = totals.get(queue, 0) + 1
            events.append({"at_ms": at, "at_seq": seq, "queue": queue, "odometer": totals[queue], "depth": seq})
        for payload in build(made, *events, watermark_ms=at):
            for labels, sample in payload.items():
                assert labels not in newest or sample[0] > newest[labels][0]
                newest[labels] = sample
    for queue, total in totals.items():
        found = pick(newest, "headrace_queue_operations_total", queue=queue)
        assert found is not None
        assert found[1] == total
