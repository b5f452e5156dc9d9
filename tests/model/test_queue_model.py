"""All verbs from several clients, against a model; then the same while clients die."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.model.dying import DyingClientsMachine
from tests.model.machine import QueueMachine

SETTINGS = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    print_blob=True,
    report_multiple_bugs=False,
    phases=[phase for phase in Phase if phase is not Phase.explain],  # takes minutes and says little here
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)


def drive(machine: Callable[[], RuleBasedStateMachine]) -> None:
    run_state_machine_as_test(cast("type[RuleBasedStateMachine]", machine), settings=SETTINGS)


def test_every_verb_does_what_the_model_says(valkey_url: str) -> None:
    drive(lambda: QueueMachine(valkey_url))


def test_nothing_is_stranded_when_clients_die(valkey_url: str) -> None:
    drive(lambda: DyingClientsMachine(valkey_url))
