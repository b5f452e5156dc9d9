"""Compare a snapshot with direct readings of the servers, series by series. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headrace.snapshot.exposition import RenderedFamily
from headrace.snapshot.memory_families import FULL_IN, USED

VOLATILE = frozenset({USED.name, FULL_IN.name})


@dataclass(frozen=True)
class SeriesDifference:
    series: str
    snapshot: float | None  # None: absent
    direct: float | None


@dataclass(frozen=True)
class ParityReport:
    same: int
    differences: Sequence[SeriesDifference]

    def counts(self) -> dict[str, int]:
        return {
            "same": self.same,
            "different": sum(None not in (each.snapshot, each.direct) for each in self.differences),
            "only_snapshot": sum(each.direct is None for each in self.differences),
            "only_direct": sum(each.snapshot is None for each in self.differences),
        }


def compare(snapshot: Iterable[RenderedFamily], direct: Iterable[RenderedFamily]) -> ParityReport:
    """Compare two sets of families. Ages are compared by the times from which they are computed. Families whose values
    differ between any two readings are not compared."""
    left, right = collect_values(snapshot), collect_values(direct)
    differences = [
        SeriesDifference(series, left.get(series), right.get(series))
        for series in sorted(left.keys() | right.keys())
        if not _is_equal(left.get(series), right.get(series))
    ]
    return ParityReport(len(left.keys() | right.keys()) - len(differences), differences)


def collect_values(families: Iterable[RenderedFamily]) -> dict[str, float]:
    """Return the values by series (name with labels)."""
    by_series: dict[str, float] = {}
    for family in families:
        if family.name in VOLATILE:
            continue
        for line in family.lines.split("\n")[:-1]:
            series, _, value = line.rpartition(" ")
            by_series[series] = float(value)
        by_series.update((begin.rstrip(" "), at) for begin, at in family.aged)
    return by_series


def _is_equal(left: float | None, right: float | None) -> bool:
    return left == right or (left is not None and right is not None and left != left and right != right)
