"""History of environments: `environment_metrics_5s_v1` and the coarser tables."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from headrace.model.event import COUNT_COLUMN, Op
from headrace.model.names import EnvRef
from headrace.warehouse.bucket_series import BucketSeries, build_bucket_series
from headrace.warehouse.query_runner import QueryRunner
from headrace.warehouse.series import (
    GaugeValues,
    HistorySeries,
    build_gauges,
    build_series,
    columns_to_rows,
    compute_before_bounds,
)
from headrace.warehouse.sql import make_buckets_parts, make_points_parts, render_query, select_generation
from headrace.warehouse.tiers import Tier


@dataclass(frozen=True)
class EnvironmentStateBefore:
    """State of an environment when a window began."""

    known: bool  # whether the environment has any history
    gauges: GaugeValues | None  # None: no events before the window


@dataclass(frozen=True)
class MissingCounts:
    """Operations that odometers show beyond those counted."""

    missing: dict[Op, int]
    is_uncertain: bool  # the position of some odometer at the start of the window is unknown


def read_points(
    queries: QueryRunner,
    tier: Tier,
    ref: EnvRef,
    start_s: int,
    end_s: int,
    step_s: int,
    *,
    histograms: bool = True,
    rewritten: bool = True,
) -> HistorySeries:
    """Return history of an environment, added up in ClickHouse, like `queue_metrics.read_points`."""
    parts = make_points_parts(histograms=histograms, rewritten=rewritten)
    query = render_query("environment_points", table=tier.environments, **parts)
    window = {"start_s": start_s, "end_s": end_s, "step_s": step_s, "tier_s": tier.seconds}
    return build_series(queries.run(query, {**asdict(ref), **window}, threads=1))


def read_buckets(
    queries: QueryRunner,
    tier: Tier,
    ref: EnvRef,
    start_s: int,
    end_s: int,
    step_s: int,
    *,
    from_s: int,
    histograms: bool,
    rewritten: bool,
) -> BucketSeries:
    """Return history of an environment, added up here from its stored rows, like `queue_metrics.read_buckets`."""
    parts = make_buckets_parts(histograms=histograms, rewritten=rewritten)
    query = render_query("environment_buckets", table=tier.environments, **parts)
    found = queries.run(query, {**asdict(ref), "from_s": from_s, "end_s": end_s}, threads=1)
    return build_bucket_series(found, start_s, step_s, tier.seconds)


def read_state_before(
    queries: QueryRunner, ref: EnvRef, start_s: int, *, rewritten: bool = True
) -> EnvironmentStateBefore:
    bound = {**asdict(ref), **compute_before_bounds(start_s)}
    query = render_query("environment_gauges_before", generation=select_generation(rewritten))
    [row] = columns_to_rows(queries.run(query, bound, threads=1))
    return EnvironmentStateBefore(known=bool(row["known"]), gauges=build_gauges(row) if row["at"] else None)


def read_missing_counts(
    queries: QueryRunner, tier: Tier, ref: EnvRef, start_s: int, end_s: int, since_s: int
) -> MissingCounts:
    """Return, per verb, how many operations in [start, end) the odometers show beyond those counted. Reads every queue
    of the environment."""
    query = render_query("environment_missing_counts", table=tier.queues)
    window = {"start_s": start_s, "end_s": end_s, "since_s": since_s}
    [row] = columns_to_rows(queries.run(query, {**asdict(ref), **window}))
    missing = zip(COUNT_COLUMN, row["missing"], strict=False)  # empty without rows
    return MissingCounts({op: int(count) for op, count in missing if count}, bool(row["unsure"]))
