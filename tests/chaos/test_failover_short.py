"""The failover run in small: `./hr chaos failover` is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.failover_run import SHORT, run_chaos


@pytest.mark.slow
def test_servers_that_go_back_in_time_lose_nothing_silently(tmp_path: Path) -> None:
    report = run_chaos(SHORT, tmp_path)
    assert report.holds, report
    assert report.jobs > 0
    assert report.faults.keys() >= {"valkey_failover", "postgres_restored", "all_workers_killed", "slot_moved"}
