"""Watched streams on /metrics: correct depths, and unknown values reported as unknown."""

from __future__ import annotations

import time
from typing import Any

import pytest

from headrace.snapshot.queue_families import TenantLabelPolicy
from headrace.snapshot.sources import SnapshotSourceOptions, SnapshotSources
from headrace.snapshot.stream_families import StreamDepthReader
from headrace.valkey.connect import Valkey, connect
from tests.snapshots import reader, refresher, scrape

GROUP = (("group", "workers"), ("stream", "browser:jobs"))
GONE = (("group", "workers"), ("stream", "gone"))


def render_families(valkey: Valkey, url: str) -> dict[str, Any]:
    groups = [("browser:jobs", "workers"), ("gone", "workers")]
    sources = SnapshotSources(
        valkey,
        SnapshotSourceOptions(label_policy=TenantLabelPolicy()),
        streams=StreamDepthReader(lambda: connect(url), groups),
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


def test_a_server_that_does_not_answer_hides_no_queue(valkey: Valkey) -> None:
    found = render_families(valkey, "redis://127.0.0.1:1/0")
    assert set(found["headrace_stream_depth_known"].values()) == {0}
    assert "headrace_stream_undelivered_entries" not in found
    assert found["headrace_queues"] == {(): 0}
