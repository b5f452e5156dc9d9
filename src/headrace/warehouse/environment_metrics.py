"""History of environments: `environment_metrics_5s_v1` and the coarser tables."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.model.event import COUNT_COLUMN, Op
from headrace.model.names import EnvRef
from headrace.warehouse.reads import Reads
from headrace.warehouse.series import Gauges, Series, before_bounds, gauges_of, rows_of, series_of
from headrace.warehouse.sql import query_text
from headrace.warehouse.tiers import Tier


@dataclass(frozen=True)
class Before:
    """State of an environment when a window began."""

    known: bool  # whether the environment has any history
    gauges: Gauges | None  # None: no events before the window


@dataclass(frozen=True)
class Odometers:
    """Operations that odometers show beyond those counted."""

    missing: dict[Op, int]
    unsure: bool  # the position of some odometer at the start of the window is unknown


def points(reads: Reads, tier: Tier, ref: EnvRef, start_s: int, end_s: int, step_s: int) -> Series:
    query = query_text("environment_points", table=tier.environments)
    window = {"start_s": start_s, "end_s": end_s, "step_s": step_s, "tier_s": tier.seconds}
    return series_of(reads.ask(query, {**_names(ref), **window}, threads=1))


def before(reads: Reads, ref: EnvRef, start_s: int) -> Before:
    bound = {**_names(ref), **before_bounds(start_s)}
    [row] = rows_of(reads.ask(query_text("environment_gauges_before"), bound, threads=1))
    return Before(known=bool(row["known"]), gauges=gauges_of(row) if row["at"] else None)


def odometers(reads: Reads, tier: Tier, ref: EnvRef, start_s: int, end_s: int, since_s: int) -> Odometers:
    """Return, per verb, how many operations in [start, end) the odometers show beyond those counted. Reads every queue
    of the environment."""
    query = query_text("environment_missing_counts", table=tier.queues)
    window = {"start_s": start_s, "end_s": end_s, "since_s": since_s}
    [row] = rows_of(reads.ask(query, {**_names(ref), **window}))
    missing = zip(COUNT_COLUMN, row["missing"], strict=False)  # empty without rows
    return Odometers({op: int(count) for op, count in missing if count}, bool(row["unsure"]))


def _names(ref: EnvRef) -> dict[str, str]:
    return {"org": ref.org, "project": ref.project, "env": ref.env}
