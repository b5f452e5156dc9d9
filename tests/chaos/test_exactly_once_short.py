"""A short chaos run of the pipeline; `./hr chaos exactly-once` is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.exactly_once_run import SHORT, run_chaos


@pytest.mark.slow
def test_kills_of_every_part_count_no_event_twice_and_lose_none(tmp_path: Path) -> None:
    report = run_chaos(SHORT, tmp_path)
    assert report.holds, report
    assert report.jobs > 0
    assert set(report.kills_by_kind) == {"pipeline", "clickhouse", "connections"}
    assert report.checkpoint_files_removed > 0
