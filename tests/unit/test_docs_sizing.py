"""The page about sizing repeats the recorded results, and its formulas fit them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from headrace.warehouse.tiers import TIERS

ROOT = Path(__file__).parents[2]
SIZING = (ROOT / "docs" / "sizing.md").read_text("utf-8")
SIZING_RESULTS: dict[str, Any] = json.loads((ROOT / "docs" / "bench" / "sizing.json").read_text("utf-8"))
OVERHEADS = {"waiting": 700, "running": 600, "scheduled": 600, "cold": 400}


def test_the_page_about_sizing_repeats_the_recorded_results() -> None:
    """One result per row, or one of a quiet and one of a busy queue."""
    alone = re.findall(r"\| ([\d,]+) \| `(\w+)` \|$", SIZING, re.MULTILINE)
    both = re.findall(r"\| ([\d,]+) \| ([\d,]+) \| `…_(\w+)` \|$", SIZING, re.MULTILINE)
    shown = {name: value for value, name in alone}
    for quiet, busy, name in both:
        shown |= {f"quiet_{name}": quiet, f"busy_{name}": busy}
    assert shown == {name: f"{SIZING_RESULTS[name]:,}" for name in shown}
    unused = {name for name in SIZING_RESULTS if "bytes" in name} - shown.keys()
    assert unused == set()


@pytest.mark.parametrize("kind", OVERHEADS)
@pytest.mark.parametrize("payload", [200, 1000])
def test_the_formula_of_a_job_fits_the_recorded_results(kind: str, payload: int) -> None:
    assert f"jobs × ({OVERHEADS[kind]} + payload)" in SIZING
    measured = SIZING_RESULTS[f"{kind}_job_bytes_payload_{payload}"]
    assert measured == pytest.approx(OVERHEADS[kind] + payload, rel=0.06)


@pytest.mark.parametrize(
    ("load", "kind", "megabytes"),
    [
        ("quiet", "queue", 7.0),
        ("busy", "queue", 16.3),
        ("quiet", "environment", 3.7),
        ("busy", "environment", 13.0),
    ],
)
def test_complete_tiers_add_up(load: str, kind: str, megabytes: float) -> None:
    total = sum(SIZING_RESULTS[f"{load}_{kind}_{tier.name}_bytes_per_day"] * tier.kept_days for tier in TIERS)
    assert total / 1e6 == pytest.approx(megabytes, abs=0.06)
    assert f"{megabytes:g}" in SIZING
