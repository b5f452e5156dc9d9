"""Read the data for alert rules: many environments and windows in few queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace.model.names import EnvRef, QueueRef
from headrace.warehouse.pipeline_coverage import read_gaps
from headrace.warehouse.query_runner import Columns, QueryRunner
from headrace.warehouse.series import compute_before_bounds
from headrace.warehouse.sql import render_query
from headrace.warehouse.tiers import Tier


@dataclass(frozen=True)
class WindowPiece:
    """Activity of one queue between two consecutive window starts; absent where it had no events."""

    number: int  # from 1, in chronological order
    max_depth: int
    max_age_ms: int
    depth: int  # at the end of the piece
    oldest_ms: int | None
    dequeues: int
    failures: int
    wait_ms: int
    waits: int
    histogram: Mapping[int, int]  # waits
    known_histogram: Mapping[int, int] = field(default_factory=dict[int, int])  # waits, without unknown periods


@dataclass(frozen=True)
class UnknownPeriod:
    """A period in which events are missing from history: (start_ms, end_ms]."""

    start_ms: int
    end_ms: int

    def overlaps(self, start_s: int, end_s: int) -> bool:
        """Return True if events of [start, end) may be missing."""
        return self.start_ms < end_s * 1000 and self.end_ms >= start_s * 1000


@dataclass(frozen=True)
class CarriedGauges:
    """Last gauges of a queue before the first piece."""

    depth: int
    oldest_ms: int | None


@dataclass(frozen=True)
class PipelineProgress:
    watermark_ms: int | None  # None: the pipeline never finished a batch
    losses: int  # lost events, and gaps in the delivered data
    reported_since_ms: int | None = None  # when the oldest known batch finished


def read_window_pieces(
    queries: QueryRunner,
    tier: Tier,
    envs: Sequence[EnvRef],
    starts_s: Sequence[int],
    end_s: int,
    *,
    histograms: bool,
    slo: bool = False,
    unknown: Sequence[UnknownPeriod] = (),
) -> dict[QueueRef, list[WindowPiece]]:
    """Return the pieces of each queue with events, in order. `starts_s` must be ascending.

    `histograms` and `slo` say which histograms are read; others are empty. `unknown` is left out of the second.
    """
    parameters = {**_name_parameters(envs), "starts": list(starts_s), "end_s": end_s}
    parameters |= make_histogram_parameters(tier, histograms, slo, unknown)
    found = queries.run(render_query("alert_window_pieces", table=tier.queues), parameters)
    by_queue: dict[QueueRef, list[WindowPiece]] = {}
    if found:
        pieces = zip(_parse_refs(found), parse_pieces(found), strict=True)
        for ref, piece in sorted(pieces, key=lambda pair: pair[1].number):
            by_queue.setdefault(ref, []).append(piece)
    return by_queue


def read_carried_gauges(
    queries: QueryRunner, envs: Sequence[EnvRef], start_s: int
) -> dict[QueueRef, CarriedGauges | None]:
    """Return the last gauges of every known queue before `start_s`; None where there are none."""
    found = queries.run(
        render_query("alert_gauges_before"), {**_name_parameters(envs), **compute_before_bounds(start_s)}
    )
    if not found:
        return {}
    known = zip(_parse_refs(found), found["at"], found["depth"], found["oldest_ms"], strict=True)
    return {ref: CarriedGauges(depth, oldest_ms or None) if at else None for ref, at, depth, oldest_ms in known}


def read_unknown_periods(
    queries: QueryRunner, start_ms: int, end_ms: int, reported_since_ms: int | None
) -> list[UnknownPeriod]:
    """Return the periods of [start, end) in which events of any shard are missing, merged and in order.

    `reported_since_ms` is when the oldest known batch finished.
    """
    gaps = sorted((gap.start_ms, gap.end_ms) for gap in read_gaps(queries, start_ms, end_ms, reported_since_ms))
    merged: list[UnknownPeriod] = []
    for gap_start_ms, gap_end_ms in gaps:
        if merged and gap_start_ms <= merged[-1].end_ms:
            merged[-1] = UnknownPeriod(merged[-1].start_ms, max(merged[-1].end_ms, gap_end_ms))
        else:
            merged.append(UnknownPeriod(gap_start_ms, gap_end_ms))
    return merged


def read_progress(queries: QueryRunner, since_ms: int) -> PipelineProgress:
    found = queries.run(render_query("pipeline_progress"), {"since_ms": since_ms}, threads=1)
    [watermark_ms], [losses], [reported_since_ms] = (found[name] for name in ("watermark_ms", "losses", "since_ms"))
    gaps = read_gaps(queries, since_ms, int(watermark_ms), reported_since_ms) if watermark_ms else []
    return PipelineProgress(int(watermark_ms) or None, int(losses) + len(gaps), int(reported_since_ms))


def make_histogram_parameters(
    tier: Tier, histograms: bool, slo: bool, unknown: Sequence[UnknownPeriod]
) -> dict[str, int | list[int]]:
    """Return the parameters of `alert_piece_columns`."""
    return {
        "bucket_s": tier.seconds,
        "histograms": int(histograms),
        "slo": int(slo),
        "unknown_starts": [each.start_ms for each in unknown],
        "unknown_ends": [each.end_ms for each in unknown],
    }


def _name_parameters(envs: Sequence[EnvRef]) -> dict[str, list[str]]:
    return {
        "orgs": [env.org for env in envs],
        "projects": [env.project for env in envs],
        "envs": [env.env for env in envs],
    }


def _parse_refs(found: Columns) -> list[QueueRef]:
    return list(map(QueueRef, found["org"], found["project"], found["env"], found["queue"]))


def parse_pieces(found: Columns) -> list[WindowPiece]:
    """Return the pieces of a result with `piece` and `alert_piece_columns`."""
    oldest = [oldest_ms or None for oldest_ms in found["oldest_ms"]]
    names = ("dequeues", "failures", "wait_ms", "waits", "all_waits", "known_waits")
    gauges = (found["piece"], found["max_depth"], found["max_age_ms"], found["depth"], oldest)
    return list(map(WindowPiece, *gauges, *(found[name] for name in names)))
