"""The backlog run in small: `./hr chaos backlog` is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.backlog_run import run_backlog


@pytest.mark.slow
def test_a_backlog_stays_within_the_cap_and_in_order(tmp_path: Path) -> None:
    report = run_backlog(20_000, 500, tmp_path)
    assert report.holds, report
    assert report.spilled > 15_000
    assert report.max_held > 400  # it was put to use
