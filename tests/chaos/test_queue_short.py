"""The chaos run in small: `./hr chaos queue` is the long one."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.queue_run import run_chaos


def test_killed_workers_lose_nothing(tmp_path: Path) -> None:
    report = run_chaos(3000, 2, tmp_path, kill_every_s=0.5, most_kills=6, give_up_s=600.0)
    assert report.holds, report
    assert report.jobs == 3000
    assert report.kills > 0
    assert report.executions >= report.done_distinct == report.jobs
