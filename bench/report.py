"""Report results of a benchmark: a table for people, one line of JSON for machines, a file for the record.

A missed target is reported, not raised: the person who runs the benchmark decides what it means.
"""

from __future__ import annotations

import json
import math
import os
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Literal, TextIO

RECORDS = Path(__file__).parents[1] / "docs" / "bench"


@dataclass(frozen=True)
class Bar:
    """Limit that a result must meet; `aim` is the target beyond it."""

    key: str
    sign: Literal["<=", ">="]
    limit: float
    aim: float | None = None

    def is_met(self, value: float) -> bool:
        return value <= self.limit if self.sign == "<=" else value >= self.limit

    def describe_verdict(self, results: Mapping[str, float | None]) -> str:
        aim = "" if self.aim is None else f", aim {self.sign} {self.aim:g}"
        value = results[self.key]
        verdict = "not measured" if value is None else "ok" if self.is_met(value) else "MISSED"
        return f"{verdict} (bar {self.sign} {self.limit:g}{aim})"


def find_missed(results: Mapping[str, float | None], bars: Iterable[Bar]) -> list[str]:
    """Return the bars that results miss. A result that was not measured (None) misses none."""
    values = ((bar, results[bar.key]) for bar in bars)
    return [bar.key for bar, value in values if value is not None and not bar.is_met(value)]


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of all values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * share) - 1)]


def median_ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """Return the median of the ratios of each round: a disturbed round counts once, for both sides."""
    return median(a / b for a, b in zip(above, below, strict=True))


def round_value(value: float) -> float:
    """Round to three significant digits, more than two busy cores reproduce; rates keep their units digit."""
    return round(value) if abs(value) >= 100 else float(f"{value:.3g}")


def finish(
    name: str,
    results: Mapping[str, float | None],
    bars: Sequence[Bar],
    *,
    json_only: bool,
    record: bool,
    details: Mapping[str, Any] | None = None,
) -> None:
    """Print the table (to standard error if `json_only`), write the record, and print the line of JSON.

    A result of None was not measured. `details` are added to the JSON as they are.
    """
    _print_table(results, bars, sys.stderr if json_only else sys.stdout)
    shown = {key: None if value is None else round_value(value) for key, value in results.items()}
    # Compared before rounding: 15.04 is more than 15.
    result: dict[str, Any] = {"bench": name, **shown, "missed": find_missed(results, bars), **(details or {})}
    if record:
        RECORDS.mkdir(parents=True, exist_ok=True)
        text = json.dumps({**result, "machine": describe_machine()}, indent=2)
        (RECORDS / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    print(json.dumps(result), flush=True)


def note(text: str) -> None:
    """Print progress to standard error; a run takes minutes."""
    print(f"[{datetime.now(UTC):%H:%M:%S}] {text}", file=sys.stderr, flush=True)


def describe_machine() -> dict[str, Any]:
    return {
        "at": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "platform": platform.platform(),
        "python": platform.python_version(),
    }


def _print_table(results: Mapping[str, float | None], bars: Sequence[Bar], out: TextIO) -> None:
    by_key = {bar.key: bar for bar in bars}
    width = max(map(len, results))
    for key, value in results.items():
        verdict = by_key[key].describe_verdict(results) if key in by_key else ""
        shown = "–" if value is None else f"{round_value(value):,.10g}"
        print(f"{key:<{width}}  {shown:>12}  {verdict}".rstrip(), file=out)
