"""Ratios between two trees' benchmark results, and which arguments go to the benchmark."""

from __future__ import annotations

import pytest
from tools.compare_bench import parse_args
from tools.ratios import Ratio, compute_ratios, count_missed, find_missed


def test_one_disturbed_round_does_not_move_the_median_but_widens_the_spread() -> None:
    current = [{"process_per_s": 100}, {"process_per_s": 10}, {"process_per_s": 98}]
    older = [{"process_per_s": 100}, {"process_per_s": 100}, {"process_per_s": 100}]
    assert compute_ratios(current, older) == {"process_per_s": Ratio(0.98, 0.1, 1.0)}


def test_only_numbers_of_both_trees_are_compared() -> None:
    current = [{"bench": "queue", "missed": [], "new": 3, "both": 3, "zero": 3, "sometimes": 1}, {"both": 6, "zero": 3}]
    older = [{"bench": "queue", "missed": [], "both": 2, "zero": 0}, {"both": 2, "zero": 0, "old": 1}]
    assert compute_ratios(current, older) == {"both": Ratio(2.25, 1.5, 3.0)}


def test_rounds_of_both_trees_must_be_as_many() -> None:
    with pytest.raises(ValueError, match="zip"):
        compute_ratios([{"a": 1}, {"a": 1}], [{"a": 1}])


def test_a_median_below_its_bar_and_an_absent_result_are_missed() -> None:
    ratios = {"enqueue_per_s": Ratio(0.95, 0.5, 2.0), "process_per_s": Ratio(0.949, 0.9, 1.0)}
    assert find_missed("queue", ratios) == ["enqueue_many_per_s", "process_per_s"]
    assert find_missed("spool", ratios) == []


def test_missed_bars_of_a_tree_are_counted_by_round() -> None:
    assert count_missed([{"missed": ["a"]}, {"missed": ["a", "b"]}, {"missed": []}]) == {"a": 2, "b": 1}


def test_other_arguments_go_to_the_benchmark() -> None:
    options, rest = parse_args(
        ["exactly-once", "--against", "843d254", "--quick", "--rounds=3", "--json", "--rows", "5"]
    )
    assert (options.name, options.against, options.rounds) == ("exactly_once", "843d254", 3)
    assert rest == ["--quick", "--rows", "5"]


@pytest.mark.parametrize("args", [["queue"], ["queue", "--against", "HEAD", "--rounds", "0"]])
def test_a_comparison_without_a_commit_or_a_round_is_refused(args: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse_args(args)
