"""Results of `./hr bench peers`: the best of several rounds, ratios to the peers, a Markdown page and a chart.

Pure functions. A contender's figures map names like `enqueue_single_per_s` to values; what was not measured is absent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from html import escape

from bench.peer_contenders import BULLMQ, DRAMATIQ, HEADRACE, HEADRACE_RAW, OWN, Contender
from bench.report import Bar, round_value

Figures = Mapping[str, float]
Table = Mapping[str, Figures]
"""Contender → its figures."""

PER_SECOND = "_per_s"
CONCURRENT = ("enqueue_threads_per_s", "enqueue_awaits_per_s")
PROCESS_PREFIX = "process_"
IDLE = "idle_calls_per_s"
POLLING_CALLS_PER_S = 100
"""An idle worker that sends more commands polls without a pause, and is no measure for the pick-up time of others."""

BARS = (
    Bar("pickup_p50_ratio_vs_best_acking_python", "<=", 1.5),
    Bar("pickup_p95_ms", "<=", 5),
    Bar("idle_calls_per_s", "<=", 3),
    Bar("enqueue_ratio_vs_dramatiq", ">=", 1, aim=1.5),
    Bar("enqueue_concurrent_ratio_vs_best_python", ">=", 3),
    Bar("process_ratio_vs_best_python", ">=", 5),
    Bar("process_threads_ratio_vs_dramatiq", ">=", 3),
    Bar("process_ratio_vs_bullmq", ">=", 1.5),
    Bar("processes_ratio", ">=", 1.5),
    Bar("process_typed_ratio_vs_raw", ">=", 0.9),
    Bar("enqueue_typed_ratio_vs_raw", ">=", 0.9),
)

COLUMNS: Sequence[tuple[str, str]] = (
    ("enqueue_single_per_s", "enqueued/s one by one"),
    ("enqueue_threads_per_s", "by 16 threads"),
    ("enqueue_awaits_per_s", "by 50 coroutines"),
    ("enqueue_bulk_per_s", "in bulk"),
    ("burn_1_per_s", "1 ms of CPU, processed/s by 1 process"),
    ("burn_2_per_s", "by 2"),
    ("pickup_p50_ms", "pick-up p50 ms"),
    ("pickup_p95_ms", "p95 ms"),
    (IDLE, "calls/s when idle"),
    ("worker_cpu_us", "CPU µs/job, worker"),
    ("server_cpu_us", "server"),
)


def merge_rounds(rounds: Iterable[Figures]) -> dict[str, float]:
    """Return the best value of each figure: the highest rate, the lowest of anything else."""
    best: dict[str, float] = {}
    for figures in rounds:
        for key, value in figures.items():
            choose = max if is_rate(key) else min
            best[key] = choose(best.get(key, value), value)
    return best


def is_rate(key: str) -> bool:
    """Return True if more is better."""
    return key.endswith(PER_SECOND) and key != IDLE


def find_best_process(figures: Figures) -> float | None:
    """Return the processing rate of a contender's fastest mode; None if none was measured."""
    return max((value for key, value in figures.items() if key.startswith(PROCESS_PREFIX)), default=None)


def find_best_concurrent(figures: Figures) -> float | None:
    """Return the rate of the fastest way to enqueue concurrently; None if none was measured."""
    return max((figures[key] for key in CONCURRENT if key in figures), default=None)


def divide(above: float | None, below: float | None) -> float | None:
    return None if above is None or not below else above / below


def compute_results(table: Table, python_peers: Collection[str], acking: Collection[str]) -> dict[str, float | None]:
    """Return the results of Headrace and its ratios to the peers; None: a value that it needs was not measured."""
    headrace, raw, dramatiq, bullmq = (table.get(name, {}) for name in (HEADRACE, HEADRACE_RAW, DRAMATIQ, BULLMQ))
    peers = [table[name] for name in python_peers if name in table]

    def find_highest(read: Callable[[Figures], float | None]) -> float | None:
        return max((value for figures in peers if (value := read(figures)) is not None), default=None)

    pickups = [
        table[name]["pickup_p50_ms"]
        for name in acking
        if name in python_peers and "pickup_p50_ms" in table.get(name, {})
        if table[name].get(IDLE, 0) <= POLLING_CALLS_PER_S
    ]
    process = headrace.get("process_async_per_s")
    pickup = headrace.get("pickup_p50_ms")
    return {
        "pickup_p50_ms": pickup,
        "pickup_p95_ms": headrace.get("pickup_p95_ms"),
        "pickup_p50_ratio_vs_best_acking_python": divide(pickup, min(pickups, default=None)),
        "idle_calls_per_s": headrace.get(IDLE),
        "enqueue_ratio_vs_dramatiq": divide(headrace.get("enqueue_single_per_s"), dramatiq.get("enqueue_single_per_s")),
        "enqueue_concurrent_ratio_vs_best_python": divide(
            find_best_concurrent(headrace), find_highest(find_best_concurrent)
        ),
        "process_ratio_vs_best_python": divide(process, find_highest(find_best_process)),
        "process_threads_ratio_vs_dramatiq": divide(
            headrace.get("process_threads_per_s"), dramatiq.get("process_threads_per_s")
        ),
        "process_ratio_vs_bullmq": divide(process, find_best_process(bullmq)),
        "processes_ratio": divide(headrace.get("burn_2_per_s"), headrace.get("burn_1_per_s")),
        "process_typed_ratio_vs_raw": divide(process, raw.get("process_async_per_s")),
        "enqueue_typed_ratio_vs_raw": divide(headrace.get("enqueue_single_per_s"), raw.get("enqueue_single_per_s")),
    }


def round_figures(figures: Figures) -> dict[str, float]:
    return {key: round_value(value) for key, value in figures.items()}


def format_value(value: float | None) -> str:
    return "–" if value is None else f"{round_value(value):,.10g}"


def format_modes(figures: Figures) -> str:
    """Return the processing rates of a contender, the fastest first: `3,077 greenlets, 2,559 threads`."""
    rates = {
        key.removeprefix(PROCESS_PREFIX).removesuffix(PER_SECOND): value
        for key, value in figures.items()
        if key.startswith(PROCESS_PREFIX)
    }
    ordered = sorted(rates.items(), key=lambda rate: -rate[1])
    return ", ".join(f"{format_value(rate)} {mode}" for mode, rate in ordered) or "–"


def format_markdown(
    table: Table,
    contenders: Sequence[Contender],
    versions: Mapping[str, str],
    absent: Mapping[str, str],
    machine: Mapping[str, object],
) -> str:
    """Return the page `docs/bench/peers.md`."""
    shown = [contender for contender in contenders if contender.name in table]
    lines = [
        "# Headrace beside other job queues",
        "",
        "A full run of `./hr bench peers` writes this page ([method](README.md)): one Valkey without persistence, jobs",
        "of 200 bytes, one worker process of concurrency 10, contenders in turns, the best of all rounds.",
        f"Last run: {machine['at']}, {machine['cores']} cores, load {machine['load']:.1f} at the end, "
        f"Python {machine['python']}.",
        "",
        "![Processed and enqueued jobs per second, and pick-up times](peers.svg)",
        "",
        format_row("contender", "processed/s", *(title for _, title in COLUMNS)),
        format_row(*["---"] * (len(COLUMNS) + 2)),
    ]
    for contender in shown:
        figures = table[contender.name]
        name = f"{contender.name} {versions.get(contender.name, '')}".strip()
        values = (format_value(figures.get(key)) for key, _ in COLUMNS)
        lines.append(format_row(name, format_modes(figures), *values))
    lines += ["", format_row("contender", "settings"), format_row("---", "---")]
    lines += [format_row(contender.name, contender.settings) for contender in shown]
    if absent:
        lines += ["", "Not measured, or not completely:", ""]
        lines += [f"- {name}: {' '.join(reason.split())}" for name, reason in absent.items()]
    return "\n".join(lines) + "\n"


def format_row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


CHARTS: Sequence[tuple[str, Callable[[Figures], float | None]]] = (
    ("processed jobs per second, fastest mode", find_best_process),
    ("enqueued jobs per second, one by one", lambda figures: figures.get("enqueue_single_per_s")),
    ("enqueued jobs per second, concurrently", find_best_concurrent),
    ("pick-up time p50, ms (less is better)", lambda figures: figures.get("pickup_p50_ms")),
)
LABEL_PX, BAR_PX, VALUE_PX, ROW_PX, TITLE_PX = 90, 430, 80, 18, 34


def draw_chart(table: Table) -> str:
    """Return an SVG with one group of horizontal bars per measure."""
    parts: list[str] = []
    y = 8
    for title, read in CHARTS:
        bars = [(name, value) for name, figures in table.items() if (value := read(figures)) is not None]
        bars.sort(key=lambda bar: -bar[1])
        parts.append(f'<text x="8" y="{y + 16}" font-weight="bold">{escape(title)}</text>')
        y += TITLE_PX - 8
        for name, value in bars:
            width = max(1, round(BAR_PX * value / bars[0][1]))
            colour = "#1668a8" if name in OWN else "#9aa5b1"
            parts.append(f'<text x="{LABEL_PX - 6}" y="{y + 13}" text-anchor="end">{escape(name)}</text>')
            parts.append(f'<rect x="{LABEL_PX}" y="{y + 2}" width="{width}" height="{ROW_PX - 5}" fill="{colour}"/>')
            parts.append(f'<text x="{LABEL_PX + width + 5}" y="{y + 13}">{format_value(value)}</text>')
            y += ROW_PX
        y += 10
    width = LABEL_PX + BAR_PX + VALUE_PX
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{y}" viewBox="0 0 {width} {y}" '
        'font-family="sans-serif" font-size="12" fill="#222">\n'
        f'<rect width="{width}" height="{y}" fill="#fff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )
