"""A short chaos run of the spool; `./hr chaos spool` is the long one."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.spool_run import run_chaos


def test_a_killed_process_loses_nothing(tmp_path: Path) -> None:
    report = run_chaos(12, tmp_path)
    assert report.holds, report
    assert report.rounds == 12
    assert report.records > 0
    assert report.delivered > 0
