"""Read the data for back-tests of alert rules: one environment, cut at the edges of windows that slide over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.errors import HeadraceError
from headrace.model.names import EnvRef
from headrace.warehouse.alert_samples import UnknownPeriod, WindowPiece, make_histogram_parameters, parse_pieces
from headrace.warehouse.query_runner import QueryRunner
from headrace.warehouse.sql import render_query
from headrace.warehouse.tiers import Tier

MAX_PIECES = 100_000
"""Pieces that a back-test reads at most; a queue that is always active has up to two per step."""


class BacktestTooLarge(HeadraceError):
    """The back-test covers too many active queues. Choose one queue."""


@dataclass(frozen=True)
class SlidingCut:
    """How to cut history for windows of one length that end at every multiple of `step_s` from the first to the last
    end. No piece crosses the start or the end of a window."""

    tier: Tier
    window_s: int
    step_s: int
    first_end_s: int
    last_end_s: int

    @property
    def start_s(self) -> int:
        return self.first_end_s - self.window_s

    @property
    def offset_s(self) -> int:
        """Position of the starts of windows within a step."""
        return -self.window_s % self.step_s

    @property
    def shared(self) -> tuple[int, int]:
        """The part that all windows contain, as [start, end), which needs no cut; empty for short windows."""
        start_s = self.last_end_s - self.window_s
        return (start_s, self.first_end_s) if start_s < self.first_end_s else (0, 0)


def read_sliding_pieces(
    queries: QueryRunner,
    env: EnvRef,
    queue: str | None,
    cut: SlidingCut,
    *,
    histograms: bool,
    slo: bool,
    unknown: Sequence[UnknownPeriod] = (),
) -> dict[str, list[WindowPiece]]:
    """Return the pieces of each queue with events, in order; the number of a piece is its start in seconds.

    `queue` None reads all queues. Raises BacktestTooLarge.
    """
    shared_start_s, shared_end_s = cut.shared
    parameters = {
        **vars(env),
        "queues": [] if queue is None else [queue],
        "start_s": cut.start_s,
        "end_s": cut.last_end_s,
        "step_s": cut.step_s,
        "offset_s": cut.offset_s,
        "shared_start_s": shared_start_s,
        "shared_end_s": shared_end_s,
        "limit": MAX_PIECES + 1,
        **make_histogram_parameters(cut.tier, histograms, slo, unknown),
    }
    found = queries.run(render_query("alert_sliding_pieces", table=cut.tier.queues), parameters)
    by_queue: dict[str, list[WindowPiece]] = {}
    if not found:
        return by_queue
    if len(found["queue"]) > MAX_PIECES:
        raise BacktestTooLarge
    for name, piece in zip(found["queue"], parse_pieces(found), strict=True):
        by_queue.setdefault(name, []).append(piece)
    for pieces in by_queue.values():
        pieces.sort(key=lambda piece: piece.number)
    return by_queue


def read_watermarks(queries: QueryRunner, start_s: int, end_s: int, step_s: int) -> list[int | None]:
    """Return the watermark (ms) that was known at each multiple of `step_s` from `start_s` to `end_s`; None before the
    first batch. `start_s` must be a multiple of `step_s`."""
    bounds = {"start_ms": start_s * 1000, "end_ms": end_s * 1000, "step_ms": step_s * 1000}
    found = queries.run(render_query("watermarks_at_steps"), bounds)
    known = dict(zip(found["step"], found["watermark_ms"], strict=True)) if found else {}
    watermarks: list[int | None] = []
    newest = 0
    for step in range((end_s - start_s) // step_s + 1):
        newest = max(newest, int(known.get(step, 0)))
        watermarks.append(newest or None)
    return watermarks
