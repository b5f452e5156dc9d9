"""Ratios between the results of two trees, for `./hr bench NAME --against COMMIT`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

RATIO_BARS: Mapping[str, Mapping[str, float]] = {
    "queue": {"enqueue_per_s": 0.95, "enqueue_many_per_s": 0.95, "process_per_s": 0.95},
    "cold": {"refill_per_s": 0.9},
}
"""Per benchmark, the smallest median ratio (current tree to older tree) of a result that counts as "as before"."""


@dataclass(frozen=True)
class Ratio:
    """Median and spread of one result's ratios over all rounds."""

    median: float
    min: float
    max: float

    def as_json(self) -> dict[str, float]:
        return {"median": round(self.median, 3), "min": round(self.min, 3), "max": round(self.max, 3)}


def compute_ratios(current: Sequence[Mapping[str, Any]], older: Sequence[Mapping[str, Any]]) -> dict[str, Ratio]:
    """Return the ratio current / older per result that every round of both trees has and that is never 0 in `older`.

    Each round gives one ratio, so a round that the machine disturbed counts once, for both trees.
    """
    rounds = list(zip(current, older, strict=True))
    ratios: dict[str, Ratio] = {}
    for key in current[0]:
        if all(_is_number(now.get(key)) and _is_number(then.get(key)) and then[key] != 0 for now, then in rounds):
            values = [now[key] / then[key] for now, then in rounds]
            ratios[key] = Ratio(median(values), min(values), max(values))
    return ratios


def find_missed(name: str, ratios: Mapping[str, Ratio]) -> list[str]:
    """Return the results of a benchmark whose median ratio is below its bar, or which have no ratio."""
    return [key for key, bar in RATIO_BARS.get(name, {}).items() if key not in ratios or ratios[key].median < bar]


def count_missed(results: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return in how many rounds a tree missed each of the benchmark's own bars."""
    names = [key for result in results for key in result.get("missed", [])]
    return {key: names.count(key) for key in dict.fromkeys(names)}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
