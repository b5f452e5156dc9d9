"""Plot a simulation: waiting jobs, oldest wait and workers over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace.autoscale.simulation import SimulationResult
from headrace.errors import MissingExtra

SIZE_INCHES = (9.0, 6.0)
DPI = 90
COLOUR = "#2563eb"
SHADE = "#f3f4f6"


def plot(outcome: SimulationResult, title: str, file: Path, outages: Sequence[tuple[int, int]] = ()) -> None:
    """Write a PNG with three charts over the same hours; outages are shaded. Raises MissingExtra."""
    figure, axes = _make_figure()
    hours = [at_s / 3600 for at_s in outcome.at_s]
    rows: list[tuple[str, Sequence[float]]] = [
        ("jobs waiting", outcome.depth),
        ("oldest wait, s", outcome.age_s),
        ("workers", outcome.workers),
    ]
    for axis, (label, values) in zip(axes, rows, strict=True):
        axis.plot(hours, values, color=COLOUR, linewidth=1.0, drawstyle="steps-post")
        axis.fill_between(hours, values, color=COLOUR, alpha=0.15, step="post")
        axis.set_ylabel(label)
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
        for begins, ends in outages:
            axis.axvspan(begins / 3600, ends / 3600, color=SHADE, zorder=0)
    axes[0].set_title(title, loc="left", fontsize=10)
    axes[-1].set_xlabel("hours")
    axes[-1].set_xlim(0, max(hours))
    figure.savefig(file, dpi=DPI)


def _make_figure() -> tuple[Any, Any]:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise MissingExtra(
            "Plotting requires matplotlib, which is not installed. Install it with "
            "pip install 'headrace[simulate]', or omit --plot."
        ) from error
    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(3, 1, sharex=True)
