"""Read the data for alert rules: many environments and windows in few queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
    histogram: Mapping[int, int]


@dataclass(frozen=True)
class CarriedGauges:
    """Last gauges of a queue before the first piece."""

    depth: int
    oldest_ms: int | None


@dataclass(frozen=True)
class PipelineProgress:
    watermark_ms: int | None  # None: the pipeline never finished a batch
    losses: int  # lost events, and gaps in the delivered data


def read_window_pieces(
    queries: QueryRunner, tier: Tier, envs: Sequence[EnvRef], starts_s: Sequence[int], end_s: int, *, histograms: bool
) -> dict[QueueRef, list[WindowPiece]]:
    """Return the pieces of each queue with events, in order. `starts_s` must be ascending."""
    parameters = {**_name_parameters(envs), "starts": list(starts_s), "end_s": end_s, "histograms": int(histograms)}
    found = queries.run(render_query("alert_window_pieces", table=tier.queues), parameters)
    by_queue: dict[QueueRef, list[WindowPiece]] = {}
    if found:
        pieces = zip(_parse_refs(found), _parse_pieces(found), strict=True)
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


def read_progress(queries: QueryRunner, since_ms: int) -> PipelineProgress:
    found = queries.run(render_query("pipeline_progress"), {"since_ms": since_ms}, threads=1)
    [watermark_ms], [losses], [reported_since_ms] = (found[name] for name in ("watermark_ms", "losses", "since_ms"))
    gaps = read_gaps(queries, since_ms, int(watermark_ms), reported_since_ms) if watermark_ms else []
    return PipelineProgress(int(watermark_ms) or None, int(losses) + len(gaps))


def _name_parameters(envs: Sequence[EnvRef]) -> dict[str, list[str]]:
    return {
        "orgs": [env.org for env in envs],
        "projects": [env.project for env in envs],
        "envs": [env.env for env in envs],
    }


def _parse_refs(found: Columns) -> list[QueueRef]:
    return list(map(QueueRef, found["org"], found["project"], found["env"], found["queue"]))


def _parse_pieces(found: Columns) -> list[WindowPiece]:
    return [
        WindowPiece(
            number, max_depth, max_age_ms, depth, oldest_ms or None, dequeues, failures, wait_ms, waits, histogram
        )
        for number, max_depth, max_age_ms, depth, oldest_ms, dequeues, failures, wait_ms, waits, histogram in zip(
            found["piece"],
            found["max_depth"],
            found["max_age_ms"],
            found["depth"],
            found["oldest_ms"],
            found["dequeues"],
            found["failures"],
            found["wait_ms"],
            found["waits"],
            found["wait_histogram"],
            strict=True,
        )
    ]
