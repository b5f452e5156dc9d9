"""The result of one check of `headrace doctor`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DoctorCheck:
    check: str
    ok: bool
    found: str
    advice: str = ""  # suggested action; may also be set if the check is ok, as a recommendation
