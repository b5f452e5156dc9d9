"""`headrace up` without a worker: jobs become ready, history advances, and alerts on a backlog fire."""

from __future__ import annotations

import os
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from headrace.alerts.plan import apply_changes, diff_plan, read_plan
from headrace.model.job import JobState, NewJob
from headrace.model.names import QueueRef
from headrace.postgres.connect import open_pool, transaction
from headrace.queue.client import SyncClient
from tests.conftest import wait_until
from tests.stack import CHART_S, POLL_S, QUICK, RunningStack

EMAILS = QueueRef("acme", "shop", "prod", "emails")
RULE = """
[[rule]]
org = "acme"
project = "shop"
env = "prod"
name = "backlog"
queue = "emails"
metric = "BACKLOG"
operator = ">"
threshold = 100
window = "30s"
"""
# On a busy machine Spark takes minutes to start; the lag of history is checked below.
PATIENT_ALERTS = {"HEADRACE_ALERTS_MAX_LAG": "30m"}


@pytest.mark.slow
def test_a_backlog_is_reported_and_delayed_jobs_become_ready_without_a_worker(tmp_path: Path) -> None:
    stack = RunningStack(tmp_path / "data", "--port", "0", env={**os.environ, **QUICK, **PATIENT_ALERTS})
    try:
        urls, rule = stack.urls, tmp_path / "rule.toml"
        assert stack.dashboard
        rule.write_text(RULE)
        with open_pool(urls["postgres"], max_size=1) as pool, transaction(pool) as conn:
            apply_changes(conn, diff_plan(conn, read_plan(rule), prune=False))
        with SyncClient(urls["redis"]) as client:
            client.enqueue_many(EMAILS, [NewJob("send") for _ in range(500)])
            client.enqueue(EMAILS, NewJob("send", id="delayed", delay_ms=5000))
            enqueued_s = time.time()

            def is_ready() -> bool:
                info = client.get(EMAILS.environment, "delayed")
                assert info is not None
                return info.state is JobState.READY

            wait_until(is_ready, "the delayed job is ready", CHART_S, POLL_S)
        wait_until(lambda: incidents(stack), "the rule fires", CHART_S, POLL_S)
        wait_until(lambda: watermark_s(stack) > enqueued_s + 30, "history advances without events", CHART_S, POLL_S)
        assert {(each["rule"], each["queue"]) for each in incidents(stack)} == {("backlog", "emails")}
    finally:
        code, _, err = stack.stop()
    assert code == 0, err


def incidents(stack: RunningStack) -> list[dict[str, Any]]:
    """Return all incidents, including those about Headrace's own health."""
    answer = stack.get("api/v1/alerts/incidents")
    return [] if answer is None else answer["incidents"]


def watermark_s(stack: RunningStack) -> float:
    """Return the time up to which history is complete, in Unix seconds; 0 if there is none."""
    answer = stack.get("api/v1/pipeline")
    found = answer and answer["watermark"]
    return datetime.fromisoformat(found).timestamp() if found else 0.0
