"""Results of `./hr bench peers`: the best of several rounds, ratios, page and chart; and its lock files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from bench.peer_contenders import CONTENDERS, HEADRACE, PYTHON_PEERS, Contender, Mode
from bench.peer_results import BARS, compute_results, draw_chart, format_markdown, format_modes, merge_rounds
from bench.report import find_missed

BENCH = Path(__file__).parents[2] / "bench"
TABLE = {
    "headrace": {
        "enqueue_single_per_s": 4000.0,
        "enqueue_threads_per_s": 4000.0,
        "enqueue_awaits_per_s": 12_000.0,
        "process_async_per_s": 18_000.0,
        "process_threads_per_s": 7000.0,
        "burn_1_per_s": 800.0,
        "burn_2_per_s": 1400.0,
        "pickup_p50_ms": 2.0,
        "pickup_p95_ms": 6.0,
        "idle_calls_per_s": 2.0,
    },
    "headrace-raw": {"enqueue_single_per_s": 5000.0, "process_async_per_s": 20_000.0},
    "dramatiq": {
        "enqueue_single_per_s": 5000.0,
        "enqueue_threads_per_s": 3000.0,
        "process_threads_per_s": 2000.0,
        "pickup_p50_ms": 20.0,
    },
    "taskiq": {"process_async_per_s": 3500.0, "process_threads_per_s": 4500.0, "pickup_p50_ms": 1.0},
    "huey": {"enqueue_threads_per_s": 6000.0, "process_threads_per_s": 2500.0, "pickup_p50_ms": 0.5},
    "arq": {"process_async_per_s": 1000.0, "pickup_p50_ms": 0.6, "idle_calls_per_s": 5000.0},
    "bullmq": {"process_async_per_s": 12_000.0, "pickup_p50_ms": 0.1},
}
PEERS = ["dramatiq", "taskiq", "huey", "arq"]
ACKING = ["headrace", "dramatiq", "taskiq", "arq", "bullmq"]


def test_the_best_of_all_rounds_counts() -> None:
    rounds = [
        {"enqueue_single_per_s": 10.0, "pickup_p50_ms": 3.0, "idle_calls_per_s": 5.0},
        {"enqueue_single_per_s": 12.0, "pickup_p50_ms": 4.0, "burn_1_per_s": 7.0},
    ]
    assert merge_rounds(rounds) == {
        "enqueue_single_per_s": 12.0,
        "pickup_p50_ms": 3.0,
        "idle_calls_per_s": 5.0,
        "burn_1_per_s": 7.0,
    }


def test_ratios_are_to_the_best_peer() -> None:
    results = compute_results(TABLE, PEERS, ACKING)
    assert results["enqueue_ratio_vs_dramatiq"] == 0.8
    assert results["enqueue_concurrent_ratio_vs_best_python"] == 2.0
    assert results["process_ratio_vs_best_python"] == 4.0
    assert results["process_threads_ratio_vs_dramatiq"] == 3.5
    assert results["process_ratio_vs_bullmq"] == 1.5
    assert results["processes_ratio"] == 1.75
    assert results["process_typed_ratio_vs_raw"] == 0.9
    assert results["enqueue_typed_ratio_vs_raw"] == 0.8


def test_the_best_pickup_is_of_a_peer_that_acknowledges_and_does_not_poll_without_a_pause() -> None:
    assert compute_results(TABLE, PEERS, ACKING)["pickup_p50_ratio_vs_best_acking_python"] == 2.0


def test_ratios_to_absent_peers_are_unknown_and_not_missed() -> None:
    results = compute_results({"headrace": TABLE["headrace"]}, PEERS, ACKING)
    assert {key for key, value in results.items() if value is None} == {key for key in results if "_vs_" in key}
    assert find_missed(results, BARS) == ["pickup_p95_ms"]


def test_every_bar_is_a_result() -> None:
    assert {bar.key for bar in BARS} <= compute_results(TABLE, PEERS, ACKING).keys()


def test_modes_are_listed_from_the_fastest() -> None:
    assert format_modes(TABLE["taskiq"]) == "4,500 threads, 3,500 async"
    assert format_modes({"enqueue_single_per_s": 1.0}) == "–"


def test_the_page_lists_measured_and_absent_contenders() -> None:
    machine = {"at": "2026-11-17 15:00 UTC", "cores": 2, "load": 1.25, "python": "3.11.7"}
    page = format_markdown(TABLE, CONTENDERS, {"headrace": "0.4.0"}, {"rq": "two\nlines"}, machine)
    rows = [line for line in page.splitlines() if line.startswith("| headrace")]
    assert rows[0].startswith(
        "| headrace 0.4.0 | 18,000 async, 7,000 threads | 4,000 | 4,000 | 12,000 | – | 800 | 1,400 | 2 | 6 |"
    )
    assert "- rq: two lines" in page
    assert "| rq" not in page


def test_the_chart_is_valid_xml_with_one_bar_per_value() -> None:
    chart = ElementTree.fromstring(draw_chart({"headrace": TABLE["headrace"], "a<b": {"enqueue_single_per_s": 1.0}}))
    bars = [each for each in chart.iter() if each.tag.endswith("rect")]
    assert len(bars) == 1 + 4 + 1  # the background, Headrace's, the other's


def test_a_worker_without_an_option_for_processes_is_started_several_times() -> None:
    mode = Mode("threads", 1, ("--threads",))
    one = Contender("a", "a", "a", ("worker{number}",), (mode,), "")
    assert one.list_commands(mode, 2) == [["worker0", "--threads"], ["worker1", "--threads"]]
    other = Contender("a", "a", "a", ("worker",), (mode,), "", processes="--processes")
    assert other.list_commands(mode, 2) == [["worker", "--threads", "--processes", "2"]]


def test_contenders_begin_with_headrace_and_have_programs() -> None:
    assert CONTENDERS[0].name == HEADRACE
    programs = BENCH / "peer_programs"
    missing = [
        each.name
        for each in CONTENDERS
        if not (programs / each.module).is_dir() and not (programs / f"{each.module}.py").is_file()
    ]
    assert missing == []


@pytest.mark.parametrize("name", PYTHON_PEERS)
def test_locked_peers_have_hashes_and_no_address(name: str) -> None:
    lock = (BENCH / f"{name}-requirements.lock").read_text("utf-8")
    parts = re.split(r"^(?=[a-z0-9])", lock, flags=re.MULTILINE)[1:]
    assert [part.split("=")[0] for part in parts if "--hash=sha256:" not in part] == []
    assert "://" not in lock
    assert not re.search(r"^--", lock, re.MULTILINE)
    locked = {part.split("=")[0] for part in parts}
    assert {each.package for each in CONTENDERS if each.runtime == name} <= locked


def test_locked_npm_packages_have_hashes_and_no_address() -> None:
    lock = json.loads((BENCH / "peer_programs" / "bullmq" / "package-lock.json").read_text("utf-8"))
    packages = {path: package for path, package in lock["packages"].items() if path}
    assert "node_modules/bullmq" in packages
    assert [path for path, package in packages.items() if "integrity" not in package or "resolved" in package] == []
