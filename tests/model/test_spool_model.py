"""Compare the spool with its model, on a file system that loses unsynced data."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.spool_machine import SpoolMachine

SETTINGS = settings(
    max_examples=120,
    stateful_step_count=40,
    deadline=None,
    print_blob=True,
    report_multiple_bugs=False,
    phases=[phase for phase in Phase if phase is not Phase.explain],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)


def test_nothing_is_lost_whatever_dies() -> None:
    run_state_machine_as_test(SpoolMachine, settings=SETTINGS)
