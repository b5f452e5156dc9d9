"""The README repeats figures of the recorded benchmarks."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FIGURES = [
    ("`async` task", "queue", "process_ratio_vs_dramatiq"),
    ("plain function", "queue", "process_sync_ratio_vs_dramatiq"),
    ("in bulk", "queue", "enqueue_many_ratio_vs_dramatiq"),
    ("one by one", "queue", "enqueue_ratio_vs_dramatiq"),
    ("quiet tenants", "fairness", "fairness_ratio"),
]


@pytest.mark.parametrize(("words", "bench", "figure"), FIGURES)
def test_the_readme_repeats_recorded_figures(words: str, bench: str, figure: str) -> None:
    recorded = json.loads((ROOT / "docs" / "bench" / f"{bench}.json").read_text("utf-8"))
    section = (ROOT / "README.md").read_text("utf-8").partition("## Benchmarks")[2].partition("\n## ")[0]
    [shown] = [row for row in section.splitlines() if row.startswith("|") and words in row]
    assert re.search(r"\| ([\d.]+) × \|$", shown), shown
    assert f"| {recorded[figure]:g} × |" in shown
