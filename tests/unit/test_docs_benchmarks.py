"""The README repeats results of the recorded benchmarks."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = [
    ("`async` task", "queue", "process_ratio_vs_dramatiq"),
    ("plain function", "queue", "process_sync_ratio_vs_dramatiq"),
    ("in bulk", "queue", "enqueue_many_ratio_vs_dramatiq"),
    ("one by one", "queue", "enqueue_ratio_vs_dramatiq"),
    ("quiet tenants", "fairness", "fairness_ratio"),
]


@pytest.mark.parametrize(("words", "bench", "result"), RESULTS)
def test_the_readme_repeats_recorded_results(words: str, bench: str, result: str) -> None:
    recorded = json.loads((ROOT / "docs" / "bench" / f"{bench}.json").read_text("utf-8"))
    section = (ROOT / "README.md").read_text("utf-8").partition("## Benchmarks")[2].partition("\n## ")[0]
    [shown] = [row for row in section.splitlines() if row.startswith("|") and words in row]
    assert re.search(r"\| ([\d.]+) × \|$", shown), shown
    assert f"| {recorded[result]:g} × |" in shown
