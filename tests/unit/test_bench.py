"""The arithmetic of benchmark reports."""

from __future__ import annotations

import json

import pytest
from bench.report import Bar, finish, median_ratio, missed, percentile, rounded

BARS = [Bar("fast", ">=", 2, aim=4), Bar("cheap", "<=", 1.5)]


def test_a_bar_holds_at_its_limit() -> None:
    assert missed({"fast": 2, "cheap": 1.5}, BARS) == []


def test_a_missed_bar_is_named() -> None:
    assert missed({"fast": 1.99, "cheap": 1.51}, BARS) == ["fast", "cheap"]


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1), (0.5, 50), (0.99, 99), (1.0, 100)])
def test_a_percentile_is_a_value_that_was_seen(share: float, expected: int) -> None:
    assert percentile(list(range(100, 0, -1)), share) == expected


def test_one_disturbed_round_does_not_move_a_ratio() -> None:
    assert median_ratio([20, 2, 20], [10, 100, 10]) == 2


@pytest.mark.parametrize(("value", "shown"), [(7701.6, 7702), (0.97713, 0.977), (14.96, 15.0)])
def test_figures_are_rounded_to_what_repeats(value: float, shown: float) -> None:
    assert rounded(value) == shown


def test_the_last_line_of_output_is_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    finish("queue", {"fast": 1.0, "cheap": 1.0}, BARS, json_only=True, record=False)
    out, err = capsys.readouterr()
    assert json.loads(out) == {"bench": "queue", "fast": 1.0, "cheap": 1.0, "missed": ["fast"]}
    assert "MISSED (bar >= 2, aim >= 4)" in err


def test_a_bar_is_judged_before_rounding(capsys: pytest.CaptureFixture[str]) -> None:
    finish("queue", {"cheap": 1.5004}, BARS[1:], json_only=True, record=False)
    assert json.loads(capsys.readouterr().out) == {"bench": "queue", "cheap": 1.5, "missed": ["cheap"]}
