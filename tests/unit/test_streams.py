"""What is pure of jobs on streams: how a job is written and read, and what a watcher makes of what it read."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.streams import list_watched_groups
from headrace.errors import SettingsError
from headrace.model.entry_id import parse_time_ms
from headrace.model.event import COUNT_COLUMN, Op
from headrace.model.job import NewJob
from headrace.settings import load_settings
from headrace.streams.codec import StreamCodec, UndecodableEntry
from headrace.streams.keys import GroupKeys, is_headrace_stream
from headrace.streams.scripts import GroupSnapshot
from headrace.streams.watcher import GroupGauges, compute_gauges, compute_totals

NOW = 1_800_000_000_000
SURVEY = GroupSnapshot(
    NOW * 1000, 5, 4, f"{NOW - 9000}-0", 3, 1, NOW - 20_000, 100, 60, False, [0] * len(COUNT_COLUMN), []
)


@given(st.binary(max_size=50), st.integers(1, 1000))
def test_a_job_reads_as_it_was_written(payload: bytes, attempts: int) -> None:
    job = NewJob("tásk", payload, max_attempts=attempts)
    assert StreamCodec().decode("1-0", {b"json": StreamCodec().encode(job).encode()}) == job


@given(st.binary(max_size=60))
def test_anything_is_a_job_or_undecodable(raw: bytes) -> None:
    try:
        job = StreamCodec().decode("1-0", {b"json": raw})
    except UndecodableEntry:
        return  # and nothing else is raised
    assert job.task


@pytest.mark.parametrize(
    ("text", "payload"),
    [
        ('{"type": "a"}', b'{"type": "a"}'),
        ('{"type": "a", "payload": "x"}', b"x"),
        ('{"type": "a", "payload": {"n": 1}}', b'{"n": 1}'),
        ('{"type": "a", "payload_base64": "/w=="}', b"\xff"),
    ],
)
def test_payloads_of_other_applications(text: str, payload: bytes) -> None:
    assert StreamCodec().decode("1-0", {b"json": text.encode()}).payload == payload


def test_an_entry_without_an_id_of_its_own_is_known_by_the_entrys() -> None:
    codec = StreamCodec("body", "kind", "key", max_attempts=3)
    job = codec.decode("5-1", {b"body": b'{"kind": "a", "max_attempts": true}'})
    assert (job.id, job.task, job.max_attempts) == ("5-1", "a", 3)
    assert codec.decode("5-1", {b"body": b'{"kind": "a", "key": "mine", "max_attempts": 0}'}).max_attempts == 1


def test_ids_are_times_only_if_they_can_be() -> None:
    assert (parse_time_ms(""), parse_time_ms("17-3"), parse_time_ms(f"{NOW}-3")) == (None, None, NOW)


def test_entries_that_wait_to_be_tried_again_are_not_running() -> None:
    assert compute_gauges(SURVEY) == GroupGauges(depth=6, scheduled=2, running=1, oldest_ms=NOW - 20_000)
    assert compute_gauges(replace(SURVEY, undelivered=None)) is None
    empty = replace(SURVEY, undelivered=0, pending=0, first_undelivered="", waiting=0, due=0, due_since_ms=None)
    assert compute_gauges(empty) == GroupGauges(0, 0, 0, None)


def test_unknown_totals_of_a_foreign_group_are_not_emitted() -> None:
    assert compute_totals(SURVEY) == {Op.ENQUEUE: 100, Op.DEQUEUE: 60, Op.ACK: 56}
    assert compute_totals(replace(SURVEY, entries_read=None)) == {Op.ENQUEUE: 100}
    assert Op.ACK not in compute_totals(replace(SURVEY, entries_read=1))


def test_totals_counted_by_headrace_workers_are_emitted() -> None:
    counts = {Op.DEQUEUE: 9, Op.ACK: 7, Op.REDRIVE: 2}
    told = compute_totals(replace(SURVEY, counted=True, counts=[counts.get(op, 0) for op in COUNT_COLUMN]))
    assert told[Op.ENQUEUE] == 98  # a redriven entry was added again, and is no new job
    assert (told[Op.DEQUEUE], told[Op.ACK], told[Op.NACK]) == (9, 7, 0)


def test_streams_of_headrace_are_recognised() -> None:
    assert is_headrace_stream("hr:{0}:metrics")
    assert is_headrace_stream(GroupKeys("jobs", "workers").dead)
    assert is_headrace_stream(GroupKeys("jobs", "a:b").samples)
    assert is_headrace_stream(GroupKeys("jobs", "workers").wake)
    assert not is_headrace_stream("browser:jobs")
    assert not is_headrace_stream("acme:hr:jobs")  # of a department


def test_the_streams_of_the_settings() -> None:
    loaded = load_settings({"streams.watch": "jobs/workers, a/b/c"}, {}, None).settings
    assert list_watched_groups(loaded) == [("jobs", "workers"), ("a/b", "c")]
    assert list_watched_groups(load_settings({}, {}, None).settings) == []
    for bad in ({"streams.watch": "jobs"}, {"streams.lease": "4s"}, {"streams.maxlen": 200_000}):
        with pytest.raises(SettingsError):
            load_settings(bad, {}, None)
