"""What a snapshot is made of: families of series, as Prometheus knows them. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import TypeVar

from headrace.errors import HeadraceError

T = TypeVar("T")

NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
LABEL = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")

GAUGE, COUNTER = "gauge", "counter"
REST = ""
"""The value of the labels of series that stand for all those that were not named. No tenant's name is empty, and to
Prometheus an empty label is one that is not there."""


class InvalidFamily(HeadraceError):
    """A family of metrics cannot be served as it is declared. Nothing was published; correct its declaration."""

    exit_code = 3


class BadSeries(HeadraceError):
    """A family's rows do not make series. Nothing was published, and what was published before is served."""


@dataclass(frozen=True)
class Described:
    name: str  # of its samples: those of counters end in _total
    help: str
    labels: tuple[str, ...] = ()
    type: str = GAUGE
    aged: bool = False  # values are times in seconds since 1970; what is served is how long ago that was


@dataclass(frozen=True)
class Series:
    labels: tuple[str, ...]
    value: float


@dataclass
class Family:
    described: Described
    series: list[Series] = field(default_factory=list[Series])

    def add(self, value: float, *labels: str) -> None:
        self.series.append(Series(labels, value))


@dataclass(frozen=True)
class Ranked:
    """A series, and the time of the oldest thing in it; None: nothing waits."""

    series: Series
    oldest_s: float | None


def refuse_duplicates(family: Family) -> None:
    """The same labels twice would be two values of one thing, and Prometheus would take either."""
    seen: set[tuple[str, ...]] = set()
    for each in family.series:
        if each.labels in seen:
            labels = dict(zip(family.described.labels, each.labels, strict=True))
            raise BadSeries(
                f"The family {family.described.name} has two series with the labels {labels}. Nothing was published. "
                "Let its SQL group by what the labels show: NULL and '' are one label."
            )
        seen.add(each.labels)


def oldest_first(items: Sequence[T], oldest: Callable[[T], float | None], top: int) -> tuple[list[T], list[T]]:
    """The `top` whose oldest thing is oldest, and all the others; both in the order they came. Where nothing waits
    (None) is no reason to be among the first."""
    if len(items) <= top:
        return list(items), []

    def rank(number: int) -> tuple[bool, float, int]:
        at = oldest(items[number])
        return at is None, at or 0.0, number

    first = frozenset(nsmallest(top, range(len(items)), key=rank))
    return (
        [item for number, item in enumerate(items) if number in first],
        [item for number, item in enumerate(items) if number not in first],
    )


def limited(described: Described, rows: Sequence[Ranked], top: int) -> Family:
    """At most `top` series, and one more that tells all the others together."""
    named, rest = oldest_first(rows, lambda row: row.oldest_s, top)
    if rest:
        # One without any label that says something has the labels of the others, so it is one of them.
        rest += [row for row in named if not any(row.series.labels)]
        named = [row for row in named if any(row.series.labels)]
    family = Family(described, [row.series for row in named])
    if rest:
        values = [row.series.value for row in rest]
        family.add(min(values) if described.aged else sum(values), *(REST for _ in described.labels))
    return family


def series_total(families: Iterable[Family]) -> int:
    return sum(len(family.series) for family in families)
