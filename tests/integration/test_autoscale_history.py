"""What the autoscaler learns from history: how long jobs take, and loads to try again."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from headrace.autoscale.run_times import RunTimeCache
from headrace.cli.main import headrace
from headrace.model.names import QueueRef
from headrace.warehouse.connect import Client
from tests.alerting import History
from tests.autoscaling import REF


@pytest.fixture
def now_ms(warehouse: Client) -> int:
    """When ten jobs had arrived and four were done, which had taken 2 s on average."""
    now_ms = time.time_ns() // 1_000_000
    where = {"org": REF.org, "project": REF.project, "env": REF.env, "queue": REF.queue}
    History(warehouse).add_table(
        [
            {**where, "at_ms": now_ms - 120_000, "op": "enqueue", "n": 7, "depth": 7, "oldest_ms": now_ms - 120_000},
            # `enqueue` counts jobs in either tier, `spill` those of them that went to PostgreSQL.
            {**where, "at_ms": now_ms - 110_000, "op": "enqueue", "n": 3, "depth": 10, "oldest_ms": now_ms - 120_000},
            {**where, "at_ms": now_ms - 110_000, "op": "spill", "n": 3, "depth": 10, "oldest_ms": now_ms - 120_000},
            {**where, "at_ms": now_ms - 60_000, "op": "ack", "n": 4, "depth": 6, "runs": [1000, 3000, 1500, 2500]},
        ]
    )
    return now_ms


def test_run_times_come_from_history(warehouse: Client, now_ms: int) -> None:
    asked: list[int] = []

    def connect() -> Client:
        asked.append(1)
        return warehouse

    known = RunTimeCache(connect)
    assert known.get_mean_run_s(REF, now_ms) == 2.0
    assert known.get_mean_run_s(QueueRef("acme", "shop", "prod", "idle"), now_ms) is None
    assert known.get_mean_run_s(REF, now_ms + 600_000) is None, "that was too long ago"
    for number in range(50):
        known.get_mean_run_s(QueueRef("acme", "shop", "prod", f"q{number}"), now_ms + 700_000)
    assert len(known._cache) == 22, "two before, and no more than twenty at once"  # pyright: ignore[reportPrivateUsage]
    assert asked == [1]


def test_unavailable_history_gives_no_result_and_is_not_queried_for_a_while() -> None:
    asked: list[int] = []

    def connect() -> Client:
        asked.append(1)
        raise ConnectionError("nobody there")

    away = RunTimeCache(connect)
    assert [away.get_mean_run_s(REF, at_ms) for at_ms in (100_000, 110_000, 170_000)] == [None, None, None]
    assert len(asked) == 2


@pytest.mark.usefixtures("now_ms")
def test_a_recorded_load_can_be_tried_again(warehouse: Client, clickhouse_url: str, tmp_path: Path) -> None:
    env = {"HEADRACE_CLICKHOUSE_URL": clickhouse_url, "HEADRACE_WAREHOUSE_DATABASE": str(warehouse.database)}
    arguments = ["autoscale", "simulate", "--history", *vars(REF).values(), "--for", "10m", "--json"]
    answer = CliRunner().invoke(headrace, arguments, env=env)
    assert answer.exit_code == 0, answer.output
    figures = json.loads(answer.output.splitlines()[-1])
    assert (figures["load"], figures["jobs"]) == ("emails", 10)
    arguments[arguments.index("emails")] = "unknown"
    refused = CliRunner().invoke(headrace, arguments, env=env)
    assert refused.exit_code == 1
    assert "No history for queue 'unknown'" in refused.output
