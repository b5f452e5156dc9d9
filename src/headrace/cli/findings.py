"""What `headrace doctor` found out about one thing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    check: str
    ok: bool
    found: str
    advice: str = ""  # what to do; of something that is ok, what would be better
