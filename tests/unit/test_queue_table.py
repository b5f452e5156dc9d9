"""The tables of `headrace queues` without a server: rates and formatted numbers."""

from __future__ import annotations

import sys

import pytest

from headrace.cli.formatting import escape_control, format_age, format_size, format_time
from headrace.cli.output import live_table
from headrace.cli.queue_table import (
    COLUMNS,
    COLUMNS_WITH_RATES,
    QueueRates,
    QueuesSnapshot,
    build_rows,
    compute_rates,
    fit_width,
)
from headrace.model.names import QueueRef
from headrace.queue.state import QueueState

REF = QueueRef("acme", "shop", "prod", "emails")


def reading(at_ms: int, epoch_ms: int = 0, **odometers: int) -> QueuesSnapshot:
    state = QueueState(
        ref=REF,
        depth=3,
        warm=1,
        cold=2,
        scheduled=0,
        running=0,
        limit=None,
        paused=False,
        closed=False,
        epoch_ms=epoch_ms,
        oldest_ms=500,
        bytes=0,
        cold_bytes=0,
        cold_mode=False,
        dead=0,
        odometers=odometers,
    )
    return QueuesSnapshot(at_ms, [state])


def test_rates_are_what_the_odometers_gained_per_second() -> None:
    before = reading(1000, enqueue=10, ack=5)
    after = reading(3000, enqueue=30, ack=5, nack=3, bury=1)
    assert compute_rates(before, after) == {REF: QueueRates(enqueued=10.0, done=0.0, failed=2.0)}


@pytest.mark.parametrize("before", [None, QueuesSnapshot(1000, []), reading(1000, epoch_ms=7), reading(3000)])
def test_no_rates_without_an_earlier_reading_of_the_same_queue(before: QueuesSnapshot | None) -> None:
    after = reading(3000, enqueue=30)
    assert compute_rates(before, after) == {}
    [row] = build_rows(after, {})
    assert row[-4:] == ["-", "-", "-", ""]


def test_both_tiers_are_shown_and_their_total() -> None:
    [row] = build_rows(reading(1000), None)
    assert row[COLUMNS.index("warm") : COLUMNS.index("total") + 1] == ["1", "2", "3"]


def test_an_age_is_never_negative() -> None:
    assert [build_rows(reading(at_ms), None)[0][COLUMNS.index("oldest")] for at_ms in (400, 1500)] == ["0ms", "1s"]


def test_a_table_with_rates_fits_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    before, after = reading(1000, enqueue=10, ack=5), reading(2000, enqueue=123_456, ack=120_000, nack=12)
    columns, rows = fit_width(COLUMNS_WITH_RATES, build_rows(after, compute_rates(before, after)), 80)
    assert {"environment", "queue", "total", "running", "dead", "oldest", "done/s", "flags"} <= set(columns)
    with live_table() as show:
        show(columns, rows)
    lines = list({line for line in capsys.readouterr().out.splitlines() if "emails" in line})  # it is drawn twice
    assert len(lines) == 1, "the row is wrapped"
    assert "acme/shop/prod" in lines[0]
    assert "119995.0" in lines[0]
    assert "…" not in lines[0]


def test_a_wide_terminal_shows_every_column() -> None:
    assert fit_width(COLUMNS_WITH_RATES, build_rows(reading(1000), {}), 200)[0] == list(COLUMNS_WITH_RATES)


@pytest.mark.parametrize(
    ("age_ms", "told"),
    [(None, "-"), (999, "999ms"), (59_999, "59s"), (185_000, "3m 5s"), (7_800_000, "2h 10m"), (349_200_000, "4d 1h")],
)
def test_ages(age_ms: int | None, told: str) -> None:
    assert format_age(age_ms) == told


@pytest.mark.parametrize(
    ("count", "told"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**30, "1.0 GiB"), (2**50, "1048576.0 GiB")]
)
def test_sizes(count: int, told: str) -> None:
    assert format_size(count) == told


def test_times_and_text() -> None:
    assert format_time(1_700_000_000_123) == "2023-11-14 22:13:20.123 UTC"
    assert escape_control("ü\n\t\x1b\x07\u202e") == "ü\n\t\\x1b\\x07\\u202e"


def test_a_terminal_gets_a_table_in_place(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    with live_table() as show:
        show(["queue"], [["[red]"]])
    assert "[red]" in capsys.readouterr().out
