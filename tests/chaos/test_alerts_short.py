"""The run of alerts in small: `./hr chaos alerts` is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.warehouse.connect import Client
from tests.chaos.alerts_run import Places, run_alerts


@pytest.mark.slow
def test_every_transition_arrives_once_by_its_id(
    postgres_url: str, clickhouse_url: str, warehouse: Client, tmp_path: Path
) -> None:
    report = run_alerts(Places(postgres_url, clickhouse_url, str(warehouse.database)), 3, tmp_path)
    assert report.holds, report
    assert report.kills >= 3
    assert report.arrived == report.transitions >= 2
