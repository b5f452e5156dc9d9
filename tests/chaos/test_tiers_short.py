"""The chaos run of the two tiers in small: `./hr chaos tiers` is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.tiers_run import SHORT, run_chaos


@pytest.mark.slow
def test_kills_and_a_database_outage_lose_nothing(tmp_path: Path) -> None:
    report = run_chaos(SHORT, tmp_path)
    assert report.holds, report
    assert report.accepted > 0
    assert report.spilled > 0
    assert report.refilled > 0
    assert report.kills
