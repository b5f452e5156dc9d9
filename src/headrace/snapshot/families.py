"""Metric families of a snapshot and their samples. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import TypeVar

from headrace.errors import HeadraceError
from headrace.runtime.metrics import MetricDeclaration

T = TypeVar("T")

GAUGE, COUNTER = "gauge", "counter"
TOTAL = "_total"  # suffix of the samples of counters
OTHERS_LABEL = ""
"""Label value of the aggregated remainder. Tenant names are never empty, and Prometheus treats an empty label as
absent."""


class InvalidFamily(HeadraceError):
    """A metric family is declared incorrectly. Nothing was published; correct its declaration."""

    exit_code = 3


class InvalidSamples(HeadraceError):
    """The rows of a family are not valid samples. Nothing was published; the previous snapshot is still served."""


@dataclass(frozen=True)
class FamilyDescriptor(MetricDeclaration):
    is_age: bool = False  # values are Unix times in seconds, served as ages


@dataclass(frozen=True)
class MetricSample:
    labels: tuple[str, ...]
    value: float


@dataclass
class SnapshotFamily:
    descriptor: FamilyDescriptor
    samples: list[MetricSample] = field(default_factory=list[MetricSample])

    def add(self, value: float, *labels: str) -> None:
        self.samples.append(MetricSample(labels, value))


@dataclass(frozen=True)
class RankedSample:
    """A sample and the Unix time of its oldest item; None if nothing waits."""

    sample: MetricSample
    oldest_s: float | None


def refuse_duplicates(family: SnapshotFamily) -> None:
    """Raise InvalidSamples if two samples have the same labels: Prometheus would keep either of them."""
    seen: set[tuple[str, ...]] = set()
    for each in family.samples:
        if each.labels in seen:
            labels = dict(zip(family.descriptor.labels, each.labels, strict=True))
            raise InvalidSamples(
                f"Family {family.descriptor.name} has two series with the labels {labels}. Nothing was published. "
                "Group by the label columns in its SQL; NULL and '' are the same label."
            )
        seen.add(each.labels)


def split_by_oldest(items: Sequence[T], oldest: Callable[[T], float | None], top: int) -> tuple[list[T], list[T]]:
    """Split items into the `top` with the oldest timestamp and the rest, keeping their order.

    Items without a timestamp (nothing waiting) rank last.
    """
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


def limit_to_top(descriptor: FamilyDescriptor, rows: Sequence[RankedSample], top: int) -> SnapshotFamily:
    """Keep the `top` oldest samples and aggregate the rest into one more."""
    named, rest = split_by_oldest(rows, lambda row: row.oldest_s, top)
    if not rest:
        return SnapshotFamily(descriptor, [row.sample for row in named])
    # A sample whose labels are all empty has the labels of the remainder, so it is merged into it.
    rest += [row for row in named if not any(row.sample.labels)]
    values = [row.sample.value for row in rest]
    family = SnapshotFamily(descriptor, [row.sample for row in named if any(row.sample.labels)])
    family.add(min(values) if descriptor.is_age else sum(values), *(OTHERS_LABEL for _ in descriptor.labels))
    return family
