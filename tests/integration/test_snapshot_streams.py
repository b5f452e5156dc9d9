"""Watched streams on /metrics: correct depths, and unknown values reported as unknown."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from headrace.snapshot.queue_families import TenantLabelPolicy
from headrace.snapshot.sources import SnapshotSourceOptions, SnapshotSources
from headrace.snapshot.stream_families import StreamDepthReader
from headrace.streams.depth import read_depth
from headrace.streams.keys import GroupKeys
from headrace.streams.scripts import RETRY_CONSUMER, GroupStubs
from headrace.valkey.connect import Valkey, connect
from headrace.valkey.scripts import run
from tests.snapshots import reader, refresher, scrape

GROUP = (("group", "workers"), ("stream", "browser:jobs"))
GONE = (("group", "workers"), ("stream", "gone"))


def render_families(valkey: Valkey, url: str, stuck_after_ms: int = 10**9) -> dict[str, Any]:
    groups = [("browser:jobs", "workers"), ("gone", "workers")]
    sources = SnapshotSources(
        valkey,
        SnapshotSourceOptions(label_policy=TenantLabelPolicy()),
        streams=StreamDepthReader(lambda: connect(url), groups, stuck_after_ms, hard_maxlen=1000),
    )
    refresher(valkey, sources).run_once()
    return scrape(reader(valkey))


def test_groups_are_reported_with_their_backlog(valkey: Valkey, valkey_url: str) -> None:
    valkey.xgroup_create("browser:jobs", "workers", mkstream=True)
    an_hour_ago_ms = time.time_ns() // 1_000_000 - 3_600_000
    for number in range(5):
        valkey.xadd("browser:jobs", {"json": "{}"}, id=f"{an_hour_ago_ms}-{number + 1}")
    valkey.xreadgroup("workers", "one", {"browser:jobs": ">"}, count=2)
    found = render_families(valkey, valkey_url)
    assert found["headrace_stream_undelivered_entries"] == {GROUP: 3}
    assert found["headrace_stream_pending_entries"] == {GROUP: 2}
    assert found["headrace_stream_depth_known"] == {GROUP: 1, GONE: 0}
    assert found["headrace_stream_oldest_undelivered_age_seconds"][GROUP] == pytest.approx(3600, abs=600)
    assert found["headrace_stream_oldest_pending_age_seconds"][GROUP] == pytest.approx(3600, abs=600)


def test_stuck_consumers_idle_times_and_the_length_of_the_stream_are_reported(valkey: Valkey, valkey_url: str) -> None:
    valkey.xgroup_create("browser:jobs", "workers", mkstream=True)
    entries: list[Any] = [valkey.xadd("browser:jobs", {"json": "{}"}) for _ in range(5)]
    valkey.xreadgroup("workers", "one", {"browser:jobs": ">"}, count=2)
    valkey.xreadgroup("workers", "two", {"browser:jobs": ">"}, count=1)
    valkey.xack("browser:jobs", "workers", entries[0], entries[2])
    valkey.xclaim("browser:jobs", "workers", "one", 0, [entries[1]], idle=600_000, justid=True)
    found = render_families(valkey, valkey_url, stuck_after_ms=0)
    assert found["headrace_stream_stuck_consumers"] == {GROUP: 1}  # the other one holds nothing
    assert found["headrace_stream_longest_idle_seconds"][GROUP] >= 600
    assert found["headrace_stream_total_messages"] == {GROUP: 5}  # two of them are finished
    assert found["headrace_stream_hard_maxlen"] == {GROUP: 1000}


def test_a_group_without_pending_entries_has_no_idle_time_and_no_stuck_consumer(
    valkey: Valkey, valkey_url: str
) -> None:
    valkey.xgroup_create("browser:jobs", "workers", mkstream=True)
    valkey.xgroup_createconsumer("browser:jobs", "workers", "one")
    found = render_families(valkey, valkey_url, stuck_after_ms=0)
    assert found["headrace_stream_stuck_consumers"] == {GROUP: 0}
    assert "headrace_stream_longest_idle_seconds" not in found


def test_an_entry_in_retry_backoff_is_not_idle(valkey: Valkey) -> None:
    valkey.xgroup_create("browser:jobs", "workers", mkstream=True)
    entry: Any = valkey.xadd("browser:jobs", {"json": "{}"})
    ours = GroupStubs(GroupKeys("browser:jobs", "workers"), "headrace:one")
    run(valkey, ours.nack([(run(valkey, ours.dequeue(1)).entries[0], 3_600_000)]))
    valkey.xclaim("browser:jobs", "workers", RETRY_CONSUMER, 0, [entry], idle=600_000, justid=True)
    depth = read_depth(valkey, "browser:jobs", "workers")
    assert (depth.pending, depth.longest_idle_ms) == (1, None)


def test_a_stream_that_may_not_be_read_hides_no_queue(valkey: Valkey, valkey_url: str) -> None:
    valkey.xgroup_create("browser:jobs", "workers", mkstream=True)
    valkey.acl_setuser("few", enabled=True, passwords=["+pw"], categories=["+@all"], keys=["hr:*"])
    try:
        found = render_families(valkey, re.sub("//.*@", "//few:pw@", valkey_url))
    finally:
        valkey.acl_deluser("few")
    assert set(found["headrace_stream_depth_known"].values()) == {0}
    assert "headrace_stream_stuck_consumers" not in found
    assert found["headrace_queues"] == {(): 0}


def test_a_server_that_does_not_answer_hides_no_queue(valkey: Valkey) -> None:
    found = render_families(valkey, "redis://127.0.0.1:1/0")
    assert set(found["headrace_stream_depth_known"].values()) == {0}
    assert "headrace_stream_undelivered_entries" not in found
    assert found["headrace_queues"] == {(): 0}
