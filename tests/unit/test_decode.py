"""Unreadable entries do not affect other entries."""

from __future__ import annotations

import pytest

from headrace.errors import ImpossibleEntry
from headrace.model.entry_id import EntryId
from headrace.model.event import COLUMNS
from headrace.pipeline.decode import SAMPLE_BYTES, decode, parse_seq
from headrace.valkey.streams import StreamEntry

GOOD = {"version": "1", "seq": "1", "org": "o", "project": "p", "env": "e", "queue": "q", "op": "enqueue", "n": "1"}


def entry(number: int, **changes: str) -> StreamEntry:
    values = {**GOOD, "seq": str(number), **changes}
    packed = "\t".join(values.get(column.name, "") for column in COLUMNS)
    return f"1000-{number}".encode(), [b"e", packed.encode()]


def test_events_keep_their_columns() -> None:
    [row] = decode(3, [entry(7, waits="0,5", depth="2", queue="ünï")]).to_pylist()
    assert (row["shard"], row["at_ms"], row["at_seq"], row["seq"]) == (3, 1000, 7, 7)
    assert (row["waits"], row["depth"], row["limit"], row["queue"], row["aside"]) == ([0, 5], 2, None, "ünï", None)


@pytest.mark.parametrize(
    ("changes", "reason", "seq"),
    [
        ({"version": "2"}, "unknown version", 2),
        ({"op": "juggle"}, "malformed", None),
        ({"n": "many"}, "malformed", None),
        ({"n": "-1"}, "malformed", None),
        ({"n": ""}, "malformed", None),
        ({"depth": "1.5"}, "malformed", None),
        ({"queue": "two\nlines"}, "malformed", None),
        ({"queue": "a\ttab"}, "malformed", None),
        ({"seq": "x"}, "not an event", None),
        ({"seq": ""}, "not an event", None),
        ({"seq": "99999999999999999999"}, "not an event", None),
    ],
)
def test_invalid_entries_are_marked_unreadable(changes: dict[str, str], reason: str, seq: int | None) -> None:
    rows = decode(0, [entry(1), entry(2, **changes), entry(3)]).to_pylist()
    assert [row["aside"] for row in rows] == [None, reason, None]
    assert [row["seq"] for row in rows] == [1, seq, 3]
    assert rows[1]["sample"] == entry(2, **changes)[1][1]


@pytest.mark.parametrize(
    "fields",
    [[b"other", b"1\t2"], [b"e", b""], [b"e", b"\xff\xfe"], [b"a", b"1", b"b", b"2"], [b"e", b"\n\n\n"]],
)
def test_entries_of_others(fields: list[bytes]) -> None:
    rows = decode(0, [entry(1), (b"1000-2", fields), entry(3)]).to_pylist()
    assert [row["aside"] for row in rows] == [None, "not an event", None]
    assert (rows[1]["at_seq"], rows[1]["org"], rows[1]["seq"]) == (2, None, None)


def test_a_sample_is_bounded() -> None:
    [row] = decode(0, [(b"1000-1", [b"e", b"x" * 10_000])]).to_pylist()
    assert len(row["sample"]) == SAMPLE_BYTES


def test_many_among_many() -> None:
    entries = [entry(number, **({"n": "?"} if number % 100 == 50 else {})) for number in range(1, 1001)]
    rows = decode(0, entries)
    assert rows["at_seq"].to_pylist() == list(range(1, 1001))
    assert rows["aside"].null_count == 990


def test_entries_of_a_newer_version_are_marked_unreadable_in_bulk() -> None:
    entries = [entry(number, version="2" if number % 2 else "1") for number in range(1, 10_001)]
    rows = decode(0, entries)
    assert rows["seq"].to_pylist() == list(range(1, 10_001))
    assert rows["aside"].to_pylist()[:2] == ["unknown version", None]


@pytest.mark.parametrize("entry_id", [b"9999999999999-0", b"18446744073709551615-1", b"1000-9999999999999"])
def test_an_impossible_time_is_reported(entry_id: bytes) -> None:
    with pytest.raises(ImpossibleEntry, match="XDEL"):
        decode(0, [entry(1), (entry_id, entry(2)[1])])


def test_events_of_a_clock_that_was_set_back_go_on_in_one_millisecond() -> None:
    """Regression: more than a million of them stopped the pipeline permanently."""
    ids = [b"1000-1048575", b"1000-1048576", b"1000-3000000"]
    rows = decode(0, [(entry_id, entry(number)[1]) for number, entry_id in enumerate(ids, 1)])
    assert rows["aside"].null_count == 3
    assert rows["at_ms"].to_pylist() == [1000] * 3
    places = [EntryId.parse(entry_id.decode()).packed for entry_id in ids]
    assert places == sorted(places)
    assert places[-1] < EntryId(1001, 0).packed


def test_the_number_of_an_entry() -> None:
    assert parse_seq(entry(12)) == 12
    assert parse_seq((b"1-1", [b"e", b"garbage"])) is None
