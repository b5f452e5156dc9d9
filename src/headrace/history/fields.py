"""Fields of a history response: which exist, and which of them a request selects. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from headrace.errors import InvalidFields
from headrace.warehouse.series import PERCENTILES

FAILURE_COLUMNS = {"nack": "nack_count", "dlq": "dlq_count", "ttl_expired": "ttl_expire_count"}
"""Fields of the section `failures` and their count columns."""
MOVE_COLUMNS = {
    "spilled": "spill_count",
    "refilled": "refill_count",
    "reclaimed": "reclaim_count",
    "released": "release_count",
    "redriven": "redrive_count",
    "cancelled": "cancel_count",
    "deferred": "defer_count",
}
"""Fields of the section `moves` and their count columns."""
THROUGHPUT_COLUMNS = {"enqueued": "enqueue_count", "dequeued": "dequeue_count", "completed": "ack_count"}

SECTIONS = {
    "throughput": (*THROUGHPUT_COLUMNS, *(f"{name}_per_s" for name in THROUGHPUT_COLUMNS)),
    "queue_depth": ("max", "last", "warm", "cold", "scheduled", "bytes", "max_bytes"),
    "latency": ("avg_wait_ms", "max_age_ms", "avg_run_ms"),
    "percentiles.wait_ms": tuple(PERCENTILES),
    "percentiles.run_ms": tuple(PERCENTILES),
    "concurrency": ("max", "last", "limit", "utilization_pct"),
    "failures": tuple(FAILURE_COLUMNS),
    "moves": tuple(MOVE_COLUMNS),
}
"""Sections of a point and their fields, in the order of the response."""

HEADLINE = "headline"
"""Name that selects `headline` and the percentiles of the whole range."""

POINT_FIELDS = tuple(f"{section}.{name}" for section, names in SECTIONS.items() for name in names)
_PARTS = {"latency.max_age_ms", *(f"queue_depth.{name}" for name in ("warm", "cold", "scheduled", "bytes"))}
_SELECTABLE = {name for field in POINT_FIELDS for name in (field, field.rsplit(".", 1)[0], field.split(".", 1)[0])}


@dataclass(frozen=True)
class FieldSelection:
    """Fields of points, as `section.name`, and whether the response has values of the whole range."""

    points: frozenset[str]
    headline: bool

    def find_names(self, section: str) -> tuple[str, ...]:
        """Return the selected fields of a section."""
        return tuple(name for name in SECTIONS[section] if f"{section}.{name}" in self.points)

    @property
    def needs_parts(self) -> bool:
        """Whether gauges are needed that environments do not record."""
        return self.headline or not self.points.isdisjoint(_PARTS)

    @property
    def needs_histograms(self) -> bool:
        return self.headline or any(field.startswith("percentiles.") for field in self.points)


ALL_FIELDS = FieldSelection(frozenset(POINT_FIELDS), headline=True)


@lru_cache(256)
def parse_fields(text: str | None) -> FieldSelection:
    """Parse a list such as `throughput,queue_depth.max,headline`; None selects everything. Raises InvalidFields."""
    if text is None:
        return ALL_FIELDS
    names = [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name != HEADLINE and name not in _SELECTABLE]:
        raise InvalidFields(
            f"fields={unknown[0]!r} does not exist. Write names of sections or fields, separated by commas, as in "
            f"throughput,queue_depth.max,{HEADLINE}; sections are {', '.join(SECTIONS)}."
        )
    chosen = {field for field in POINT_FIELDS if any(field == name or field.startswith(f"{name}.") for name in names)}
    return FieldSelection(frozenset(chosen), HEADLINE in names)
