"""Reports of batches follow the rows of their batches, however many workers send and whatever dies."""

from __future__ import annotations

import pytest
from hypothesis.stateful import run_state_machine_as_test

from headrace.spool.spool import Spool
from tests.model.export_order_machine import ExportOrderMachine
from tests.model.test_spool_model import SETTINGS


def test_a_report_never_arrives_before_its_rows() -> None:
    run_state_machine_as_test(ExportOrderMachine, settings=SETTINGS)


def test_the_model_finds_a_report_that_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    def hold_nothing(self: Spool, id: int, *, holds_later: bool = False) -> bool:
        return False

    monkeypatch.setattr(Spool, "hold", hold_nothing)
    with pytest.raises(AssertionError, match="arrived before"):
        run_state_machine_as_test(ExportOrderMachine, settings=SETTINGS)
