"""The chaos run in small: `./hr chaos queue` is the long one."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.queue_batches import run_batch_faults
from tests.chaos.queue_hangs import run_hang_faults
from tests.chaos.queue_run import run_chaos
from tests.chaos.queue_wake import run_wake_faults


def test_killed_workers_lose_nothing(tmp_path: Path) -> None:
    report = run_chaos(3000, 2, tmp_path, kill_every_s=0.5, most_kills=6, give_up_s=600.0)
    assert report.holds, report
    assert report.jobs == 3000
    assert report.kills > 0
    assert report.executions >= report.done_distinct == report.jobs


def test_jobs_of_a_worker_that_dies_after_its_wake_are_started_by_another(tmp_path: Path) -> None:
    report = run_wake_faults(tmp_path / "wake", 1)
    assert report.holds, report
    assert report.wake_kills == 1


def test_acknowledged_jobs_exist_once_after_kills_of_server_and_producers(tmp_path: Path) -> None:
    report = run_batch_faults(tmp_path / "batches", 1)
    assert report.holds, report
    assert report.batch_server_kills == report.batch_producer_kills == 1
    assert report.batch_jobs > 0
    assert report.batch_failed_calls > 0  # the server was killed while calls were in flight


def test_tasks_that_hang_cost_no_other_job_an_attempt(tmp_path: Path) -> None:
    report = run_hang_faults(tmp_path / "hangs", 1)
    assert report.holds, report
    assert report.hang_jobs == 8
    assert report.hang_stops >= 2
