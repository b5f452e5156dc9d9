"""Figures in the documentation are those of the recorded benchmarks; nothing else that looks measured is published."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from bench import publish
from bench.peer_contenders import CONTENDERS
from bench.peer_results import draw_chart, format_markdown
from click.testing import CliRunner

from headrace.cli.main import headrace
from headrace.settings import SETTINGS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
BENCH_PAGE = (DOCS / "bench" / "README.md").read_text("utf-8")
AUTOSCALE_PAGE = (DOCS / "autoscale.md").read_text("utf-8")
CODE = re.compile(r"`([^`\n]*)`")
FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
GENERATED = re.compile(re.escape(publish.BEGIN) + ".*?" + re.escape(publish.END), re.DOTALL)


# --- Pages that are written from records ----------------------------------------------------------


@pytest.mark.parametrize("page", publish.PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_shows_what_is_recorded(page: Path) -> None:
    text = page.read_text("utf-8")
    assert publish.PAGES[page](text) == text, "run `./hr bench publish`"


@pytest.mark.parametrize("page", publish.PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_changed_figure_on_such_a_page_is_found(page: Path) -> None:
    written = publish.PAGES[page]
    text = page.read_text("utf-8")
    changes = 0
    for match in re.finditer(r"\| (\d[\d.,]*)(?: ×| ms)? \|", text):
        changed = f"{text[: match.start(1)]}9{text[match.start(1) :]}"
        in_bench_page = page == publish.RECORDS / "README.md"
        if not in_bench_page or text.index(publish.BEGIN) < match.start() < text.index(publish.END):
            assert written(changed) == text
            changes += 1
    assert changes >= len(publish.README_ROWS)


def test_every_record_is_published() -> None:
    assert {file.stem for file in publish.RECORDS.glob("*.json")} <= set(publish.BENCHES)


def test_the_page_of_peers_and_its_chart_show_what_is_recorded() -> None:
    record = publish.read_record("peers")
    arguments = (record["contenders"], CONTENDERS, record["versions"], record["absent"], record["machine"])
    expected, found = format_markdown(*arguments), (publish.RECORDS / "peers.md").read_text("utf-8")
    # Words about settings may be newer than the last run.
    assert found.partition("| contender | settings |")[0] == expected.partition("| contender | settings |")[0]
    # Bars are drawn from values that are not rounded yet.
    texts = [re.findall(r">([^<>]+)</text>", chart) for chart in (read_chart(), draw_chart(record["contenders"]))]
    assert texts[0] == texts[1]


def read_chart() -> str:
    return (publish.RECORDS / "peers.svg").read_text("utf-8")


# --- The descriptions of the benchmarks ------------------------------------------------------------


def read_targets(bench: str) -> dict[str, str]:
    """Return the targets by result, from the tables of a benchmark's section."""
    [section] = re.findall(rf"^## `\./hr bench {bench}`.*?(?=^## )", BENCH_PAGE, re.MULTILINE | re.DOTALL)
    found: dict[str, str] = {}
    for names, target in re.findall(r"^\| (`[^|]+) \| ([^|]*) \|", section, re.MULTILINE):
        for name in CODE.findall(names):
            found[name] = target.strip().removeprefix("p95 ")
    return found


@pytest.mark.parametrize("bench", publish.BENCHES)
def test_described_targets_are_those_of_the_program(bench: str) -> None:
    targets, bars = read_targets(bench), publish.read_bars(bench)
    for bar in bars:
        assert targets[bar.key] == publish.format_bar(bar), bar.key
    if bench != "peers":  # one row describes p50 and p95
        assert {name for name, target in targets.items() if target} == {bar.key for bar in bars}


def test_described_sizes_are_those_of_the_program() -> None:
    from bench.alerts import Size as AlertsSize
    from bench.imports import ROUNDS
    from bench.pipeline import QUICK, Size
    from bench.pipeline_stream import EVENTS_PER_S

    pipeline = BENCH_PAGE.partition("## `./hr bench pipeline`")[2].partition("\n## ")[0]
    full = Size()
    assert f"{full.events:,} events of {full.queues} queues" in pipeline
    assert f"covering {full.events / EVENTS_PER_S:g} s" in pipeline
    assert f"In each of {full.rounds} rounds" in pipeline
    assert f"`--quick`: {QUICK.events:,} events, {QUICK.rounds} rounds" in pipeline
    assert f"among {full.events:,} / among {full.events // 10:,}" in pipeline
    assert f"with {EVENTS_PER_S:,} events/s" in pipeline
    alerts = AlertsSize()
    assert f"{alerts.environments * alerts.rules:,} rules of {alerts.environments:,} environments" in BENCH_PAGE
    assert f"{ROUNDS} rounds in turns" in BENCH_PAGE


# --- Figures on other pages ------------------------------------------------------------------------


@dataclass(frozen=True)
class PublishedFigure:
    """A recorded figure within the text of a page. `{}` stands for the figure."""

    page: str
    text: str
    bench: str
    key: str
    show: Callable[[float], str]


FIGURES = (
    PublishedFigure(
        "docs/streams.md",
        "{} ms for a thousand entries and for a million",
        "autoscale",
        "depth_small_us",
        lambda us: f"{us / 1000:.1f}",
    ),
    PublishedFigure(
        "docs/streams.md",
        "{} ms for a thousand entries and for a million",
        "autoscale",
        "depth_large_us",
        lambda us: f"{us / 1000:.1f}",
    ),
)
MEASURED = re.compile(
    r"(?<![\w.])\d[\d,.]*(?: to \d[\d,.]*)? ?"
    r"(?:×|µs|ns\b|ms\b|(?:\w+ ?)?(?:/s\b|per second|per minute)"
    r"|% (?:faster|slower|less|more)|times (?:as|faster|slower))"
)
SKIPPED = {
    "docs/reference/settings.md": "written from the declarations of the settings",
    "docs/bench/peers.md": "compared with its record above",
    "docs/sizing.md": "compared with its record in test_docs_sizing.py",
    "docs/decisions/": "measurements behind a decision, as they were then",
}
NOT_MEASURED = {
    "docs/bench/README.md": [
        *("1 ms of CPU time", "tasks of 2 ms", "20 to 50 ms apart", "5,000 events/s", "every 250 ms"),
        *("more than 50 ms", "at most 100 commands per second", "takes 50 ms"),
    ],
    "docs/history.md": ["0 ms counts"],
    "docs/how-to/operate-the-spool.md": ["50 ms"],
    "docs/how-to/prometheus.md": ["last 250 ms", "next 250 ms"],
    "docs/reference/design-names.md": ["0 ms counts", "2 × CPU", "8 × CPU"],
    "docs/reference/warehouse.md": ["0 ms counts"],
    "docs/state-machine.md": ["finishes in 5 ms"],
}
"""Numbers that look measured but are examples, limits, or parameters of a benchmark."""


def read_prose(page: Path) -> str:
    """Return a page without code blocks, inline code and what is written from records."""
    text = GENERATED.sub("", FENCE.sub("", page.read_text("utf-8")))
    if page in publish.PAGES and page.parent != publish.RECORDS:
        text = re.sub(r"\| [\d.]+ (?:×|ms)(?= \|)", "|", text)
    return CODE.sub("", text)


def list_measured(name: str, text: str) -> Iterator[str]:
    """Yield the figures of a page that no record has."""
    for phrase in NOT_MEASURED.get(name, ()):
        text = text.replace(phrase, "")
    for figure in FIGURES:
        if figure.page == name:
            shown = figure.show(publish.read_record(figure.bench)[figure.key])
            text = text.replace(figure.text.format(shown), "")
    for match in MEASURED.finditer(text):
        line = text[text.rfind("\n", 0, match.start()) + 1 : text.find("\n", match.end())]
        yield f"{name}: {match[0]!r} in {line.strip()!r}"


def list_pages() -> Iterator[tuple[str, Path]]:
    for page in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]:
        name = str(page.relative_to(ROOT))
        if not name.startswith(tuple(SKIPPED)):
            yield name, page


def test_no_page_publishes_a_figure_that_is_not_recorded() -> None:
    unknown = [figure for name, page in list_pages() for figure in list_measured(name, read_prose(page))]
    assert not unknown, "not recorded: remove it, or add it to FIGURES or NOT_MEASURED:\n" + "\n".join(unknown)


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: f"{figure.page}: {figure.key}")
def test_figures_within_texts_are_recorded(figure: PublishedFigure) -> None:
    shown = figure.show(publish.read_record(figure.bench)[figure.key])
    assert figure.text.format(shown) in (ROOT / figure.page).read_text("utf-8")


def test_exceptions_are_needed() -> None:
    for name, phrases in NOT_MEASURED.items():
        text = read_prose(ROOT / name)
        assert not [phrase for phrase in phrases if phrase not in text], name


@pytest.mark.parametrize(
    "text", ["3.6 × as fast", "takes 50 µs", "in 0.3 ms", "20,000 jobs/s", "12 requests per second", "5 times faster"]
)
def test_a_figure_without_a_record_is_found(text: str) -> None:
    assert list(list_measured("docs/concepts.md", f"Headrace {text}.\n"))


# --- Figures that can be computed ------------------------------------------------------------------


def simulate(load: str, length: str) -> dict[str, Any]:
    answer = CliRunner().invoke(headrace, ["autoscale", "simulate", "--load", load, "--for", length, "--json"])
    assert answer.exit_code == 0, answer.output
    return json.loads(answer.output.splitlines()[-1])


def rounds_to(value: float, shown: str) -> bool:
    """Return True if a value is the shown one to its last digit."""
    return abs(value - float(shown)) <= 0.5 * 10 ** -len(shown.partition(".")[2]) + 1e-9


def list_simulations() -> list[tuple[str, str, str, str]]:
    row = r"^\| `(\w+)` \| [^|]+ \| ([\d.]+) s \| ([\d.]+) in (\d+) h \|"
    return re.findall(row, AUTOSCALE_PAGE, re.MULTILINE)


@pytest.mark.parametrize(("load", "wait", "worker_hours", "hours"), list_simulations())
def test_simulated_waits_are_those_of_the_simulator(load: str, wait: str, worker_hours: str, hours: str) -> None:
    found = simulate(load, f"{hours}h")
    assert rounds_to(found["p95_wait_s"], wait), found
    assert rounds_to(found["worker_hours"], worker_hours), found


def test_the_table_of_simulations_is_found() -> None:
    assert {load for load, *_ in list_simulations()} == {"burst", "poison", "outage", "day"}


UNITS = {
    "seconds": "s",
    "second": "s",
    "min": "m",
    "minutes": "m",
    "minute": "m",
    "hours": "h",
    "hour": "h",
    "days": "d",
}
DEFAULT = re.compile(
    r"`(?P<key>[a-z_.]+)`(?: \(|, )(?P<number>\d[\d,.]*)"
    r"(?: (?P<unit>ms|seconds?|s|minutes?|min|hours?|h|days?|[KMG]iB))?\)"
)


def test_defaults_of_settings_within_texts_are_the_real_ones() -> None:
    """`queue.lease` (30 s), or (`queue.lease`, 30 s)."""
    found = 0
    for name, page in list_pages():
        for match in DEFAULT.finditer(" ".join(page.read_text("utf-8").split())):
            if spec := SETTINGS.get(match["key"]):
                unit = match["unit"] or ""
                shown = match["number"].replace(",", "") + UNITS.get(unit, unit)
                assert shown == spec.format(spec.default), f"{name}: {match[0]}"
                found += 1
    assert found >= 20
