"""History of environments: `environment_metrics_5s_v1` and its coarser twins."""

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
    known: bool  # the environment was ever seen
    gauges: Gauges | None  # as the window began; None: nothing was known of it yet


@dataclass(frozen=True)
class Odometers:
    missing: dict[Op, int]
    unsure: bool  # of some odometer it is not known where it stood when the window began


def points(reads: Reads, tier: Tier, ref: EnvRef, start_s: int, end_s: int, step_s: int) -> Series:
    query = query_text("environment_points", table=tier.environments)
    window = {"start_s": start_s, "end_s": end_s, "step_s": step_s, "tier_s": tier.seconds}
    return series_of(reads.ask(query, {**_names(ref), **window}, threads=1))


def before(reads: Reads, ref: EnvRef, start_s: int) -> Before:
    bound = {**_names(ref), **before_bounds(start_s)}
    [row] = rows_of(reads.ask(query_text("environment_gauges_before"), bound, threads=1))
    return Before(known=bool(row["known"]), gauges=gauges_of(row) if row["at"] else None)


def odometers(reads: Reads, tier: Tier, ref: EnvRef, start_s: int, end_s: int, since_s: int) -> Odometers:
    """How often verbs happened that were not counted in [start, end). Costs a look at every queue."""
    query = query_text("environment_missing_counts", table=tier.queues)
    window = {"start_s": start_s, "end_s": end_s, "since_s": since_s}
    [row] = rows_of(reads.ask(query, {**_names(ref), **window}))
    missing = zip(COUNT_COLUMN, row["missing"], strict=False)  # no rows, no entries
    return Odometers({op: int(count) for op, count in missing if count}, bool(row["unsure"]))


def _names(ref: EnvRef) -> dict[str, str]:
    return {"org": ref.org, "project": ref.project, "env": ref.env}
