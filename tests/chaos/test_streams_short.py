"""The chaos run in small: `./hr chaos streams` is the long one."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.streams_run import run_chaos


def test_killed_workers_of_streams_lose_nothing(tmp_path: Path) -> None:
    report = run_chaos(4.0, 2, tmp_path, kill_every_s=1.0, give_up_s=300.0)
    assert report.holds, report
    assert report.kills > 0
    assert report.jobs > 0
