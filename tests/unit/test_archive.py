"""Archive files: their contents, and that each event counts once even if it was written twice."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.entry_id import EntryId
from headrace.pipeline import archive
from headrace.pipeline.archive import (
    DAY_MS,
    EVENTS,
    HOUR_MS,
    Archive,
    ArchiveFileName,
    ArchiveFileSlice,
    compact_and_expire,
    select_slices,
)
from headrace.pipeline.decode import SCHEMA
from headrace.pipeline.replay import ReplayedHour, describe_missing, read_shard
from tests.events import event_table

START = 1_800_000_000_000  # 2027-01-15T08:00:00Z
LATER = START + 40 * DAY_MS


def events(*seconds: float, shard: int = 0) -> pa.Table:
    """Return one event each, that many seconds after START."""
    return event_table(
        *(
            {"shard": shard, "seq": number, "at_ms": START + round(each * 1000)}
            for number, each in enumerate(seconds, 1)
        )
    )


def files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def read_seconds(root: Path, hour_ms: int = START, shard: int = 0) -> list[float]:
    found = list(Archive(str(root)).read_events(hour_ms, shard))
    return [(at - START) / 1000 for batch in found for at in batch["at_ms"].to_pylist()]


def test_an_hour_has_files_of_its_own_named_by_what_they_hold(tmp_path: Path) -> None:
    Archive(str(tmp_path)).write(events(0, 1, 3599.999, 3600, shard=3))
    first, last, next_hour = (at << 20 for at in (START, START + 3_599_999, START + HOUR_MS))
    assert files(tmp_path) == [
        f"date=2027-01-15/hour=08/shard-00003-{first:020d}-{last:020d}.parquet",
        f"date=2027-01-15/hour=09/shard-00003-{next_hour:020d}-{next_hour:020d}.parquet",
    ]
    assert read_seconds(tmp_path, shard=3) == [0, 1, 3599.999]
    assert read_seconds(tmp_path, START + HOUR_MS, shard=3) == [3600]
    assert read_seconds(tmp_path) == []


def test_events_come_back_as_they_were_decoded(tmp_path: Path) -> None:
    whole = event_table({"op": "dequeue", "waits": [3, 0], "limit": 4, "org": "ü/\n"}, {"at_seq": 1, "waits": None})
    Archive(str(tmp_path)).write(whole)
    found = pa.Table.from_batches(Archive(str(tmp_path)).read_events(START, 0))
    assert found.schema == SCHEMA
    assert found.to_pylist() == whole.to_pylist()


def test_the_archive_has_no_column_of_unreadable_entries(tmp_path: Path) -> None:
    Archive(str(tmp_path)).write(events(0))
    [file] = tmp_path.rglob("*.parquet")
    written = pyarrow.parquet.read_schema(file)
    assert written.names == EVENTS.names
    assert not {"aside", "sample"} & set(written.names)


def test_nothing_makes_no_file(tmp_path: Path) -> None:
    Archive(str(tmp_path)).write(events(0).slice(1))
    assert files(tmp_path) == []


def test_the_same_events_make_the_same_file_once(tmp_path: Path) -> None:
    Archive(str(tmp_path)).write(events(0, 1))
    [before] = tmp_path.rglob("*.parquet")
    stamp = os.stat(before).st_mtime_ns
    Archive(f"file://{tmp_path}").write(events(0, 1))
    assert [os.stat(path).st_mtime_ns for path in tmp_path.rglob("*.parquet")] == [stamp]


def test_a_longer_replay_counts_each_event_once(tmp_path: Path) -> None:
    writer = Archive(str(tmp_path))
    for part in (events(0, 1, 2), events(0, 1, 2, 3), events(2, 3, 4), events(9)):
        writer.write(part)
    assert read_seconds(tmp_path) == [0, 1, 2, 3, 4, 9]


def test_a_crash_while_writing_leaves_no_file_that_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(archive, "_sync", die)
    with pytest.raises(KeyboardInterrupt):
        Archive(str(tmp_path)).write(events(0))
    assert files(tmp_path) == []


ranges = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60), st.integers(1, 20)), max_size=12)


@given(ranges)
def test_clips_take_every_entry_once(found: list[tuple[int, int, int]]) -> None:
    """Each range stands for a file with all entries of its shard in it."""
    names = [ArchiveFileName(shard, EntryId(0, first), EntryId(0, first + size - 1)) for shard, first, size in found]
    taken: list[tuple[int, int]] = []
    for clip in select_slices(names):
        begin = max(clip.name.first.seq, clip.after.seq + 1 if clip.after else 0)
        taken += [(clip.name.shard, entry) for entry in range(begin, clip.name.last.seq + 1)]
    assert sorted(taken) == sorted(
        {(name.shard, entry) for name in names for entry in range(name.first.seq, name.last.seq + 1)}
    )


def test_a_file_that_others_cover_is_not_needed() -> None:
    small, big, beyond = (ArchiveFileName(0, EntryId(1, a), EntryId(1, b)) for a, b in ((1, 10), (1, 15), (12, 20)))
    assert select_slices([small, beyond, big]) == [
        ArchiveFileSlice(big, None),
        ArchiveFileSlice(beyond, EntryId(1, 15)),
    ]


def test_names_sort_as_their_entries_do() -> None:
    ranges = [(0, 9, 9), (0, 10, 10), (0, 10, 100), (2, 0, 0), (10, 0, 0)]
    names = [ArchiveFileName(shard, EntryId(0, first), EntryId(0, last)) for shard, first, last in ranges]
    assert sorted(map(str, names)) == list(map(str, names))
    assert [ArchiveFileName.parse(str(name)) for name in names] == names
    assert ArchiveFileName.parse(f".{names[0]}.ab") is None


def test_names_are_exact_within_a_millisecond() -> None:
    """Also if a clock that was set back gave a million entries the same millisecond."""
    ids = [EntryId(START, 2**20 - 1), EntryId(START, 2**20), EntryId(START, 2**40 - 1), EntryId(START + 1, 0)]
    for first, last in pairwise(ids):
        assert ArchiveFileName.parse(str(ArchiveFileName(7, first, last))) == ArchiveFileName(7, first, last)


def test_events_of_a_clock_that_was_set_back_are_archived_once(tmp_path: Path) -> None:
    """Regression: files of later milliseconds were treated as covered by the previous one, and a third of the files of
    one millisecond as already written."""
    writer = Archive(str(tmp_path))
    ids = [(0, 3 * 2**20), (0, 3 * 2**20 + 1), (0, 2**39), (0, 2**39 + 1), (1, 0), (2, 0), (3, 1)]
    for seq, (ms, at_seq) in enumerate(ids, 1):
        writer.write(event_table({"at_ms": START + ms, "at_seq": at_seq, "seq": seq}))
    for _ in range(2):
        found = [row for batch in Archive(str(tmp_path)).read_events(START, 0) for row in batch["seq"].to_pylist()]
        assert found == [1, 2, 3, 4, 5, 6, 7]
        compact_and_expire(str(tmp_path), START + HOUR_MS, 30, START + HOUR_MS)


def test_closed_hours_become_one_file_per_shard(tmp_path: Path) -> None:
    writer = Archive(str(tmp_path))
    for part in (events(0, 1), events(1, 2), events(5, shard=1), events(3700), events(3800)):
        writer.write(part)
    compact_and_expire(str(tmp_path), START + HOUR_MS, 30, START + HOUR_MS)
    in_hour = [name for name in files(tmp_path) if "hour=08" in name]
    assert [ArchiveFileName.parse(name.split("/")[-1]) for name in in_hour] == [
        ArchiveFileName(0, EntryId(START, 0), EntryId(START + 2000, 0)),
        ArchiveFileName(1, EntryId(START + 5000, 0), EntryId(START + 5000, 0)),
    ]
    assert read_seconds(tmp_path) == [0, 1, 2]
    assert len([name for name in files(tmp_path) if "hour=09" in name]) == 2, "this hour is not closed"


@pytest.mark.parametrize("removed", range(3))
def test_tidying_that_was_interrupted_counts_nothing_twice(
    tmp_path: Path, removed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulates a kill after the compacted file was written and some of the others were removed."""
    writer = Archive(str(tmp_path))
    for part in (events(0, 1), events(2), events(3, 4)):
        writer.write(part)
    left = removed
    remove = archive._remove  # pyright: ignore[reportPrivateUsage]

    def remove_some(store: Any, path: str) -> None:
        nonlocal left
        if not left:
            raise KeyboardInterrupt
        left -= 1
        remove(store, path)

    with monkeypatch.context() as patch:
        patch.setattr(archive, "_remove", remove_some)
        with pytest.raises(KeyboardInterrupt):
            compact_and_expire(str(tmp_path), START, 30, START + HOUR_MS)
    assert len(files(tmp_path)) == 4 - removed
    assert read_seconds(tmp_path) == [0, 1, 2, 3, 4]
    compact_and_expire(str(tmp_path), START, 30, START + HOUR_MS)
    assert len(files(tmp_path)) == 1
    assert read_seconds(tmp_path) == [0, 1, 2, 3, 4]


def test_dates_past_their_time_are_removed(tmp_path: Path) -> None:
    writer = Archive(str(tmp_path))
    for day in (0, 1, 2):
        writer.write(events(day * DAY_MS // 1000))
    last_of_first_day = START - START % DAY_MS + DAY_MS
    compact_and_expire(str(tmp_path), last_of_first_day + 30 * DAY_MS - 1, 30, 0)
    assert [name[:15] for name in files(tmp_path)] == ["date=2027-01-15", "date=2027-01-16", "date=2027-01-17"]
    compact_and_expire(str(tmp_path), last_of_first_day + 30 * DAY_MS, 30, 0)
    assert [name[:15] for name in files(tmp_path)] == ["date=2027-01-16", "date=2027-01-17"]


def test_what_a_crash_left_unfinished_is_removed_in_time(tmp_path: Path) -> None:
    Archive(str(tmp_path)).write(events(0))
    [whole] = files(tmp_path)
    unfinished = tmp_path / Path(whole).parent / ".shard-00000-x.parquet.ab"
    unfinished.write_bytes(b"PAR1")
    written_ms = unfinished.stat().st_mtime_ns // 10**6
    compact_and_expire(str(tmp_path), written_ms, 36_500, START + HOUR_MS)
    assert unfinished.exists(), "somebody may be writing it"
    compact_and_expire(str(tmp_path), written_ms + 2 * HOUR_MS, 36_500, START + HOUR_MS)
    assert files(tmp_path) == [whole]


def test_a_damaged_file_does_not_stop_the_tidying_of_others(tmp_path: Path) -> None:
    writer = Archive(str(tmp_path))
    for part in (events(0), events(1), events(5, shard=1), events(6, shard=1)):
        writer.write(part)
    (tmp_path / files(tmp_path)[0]).write_bytes(b"no parquet")
    compact_and_expire(str(tmp_path), START, 30, START + HOUR_MS)
    assert len(files(tmp_path)) == 3
    assert read_seconds(tmp_path, shard=1) == [5, 6]


def test_an_archive_that_is_not_there_is_empty(tmp_path: Path) -> None:
    nowhere = str(tmp_path / "nowhere")
    compact_and_expire(nowhere, LATER, 30, LATER)
    assert Archive(nowhere).list_names(START) == []
    assert Archive(nowhere).read_adjacent_seqs(START) == {}


def test_the_numbers_around_an_hour(tmp_path: Path) -> None:
    writer = Archive(str(tmp_path))
    writer.write(events(0, 10, 3600, 3601))
    writer.write(events(20, shard=1))
    around = [Archive(str(tmp_path)).read_adjacent_seqs(START + hours * HOUR_MS) for hours in (-1, 0, 1, 2)]
    assert [each[0] for each in around] == [(None, 1), (None, 3), (2, None), (4, None)]
    assert [each[1] for each in around] == [(None, 1), (None, None), (1, None), (1, None)]


def test_columns_that_an_older_release_did_not_write_are_unknown(tmp_path: Path) -> None:
    old = events(0).select([name for name in EVENTS.names if name != "runs"])
    folder = tmp_path / "date=2027-01-15" / "hour=08"
    folder.mkdir(parents=True)
    pyarrow.parquet.write_table(old, folder / str(ArchiveFileName(0, EntryId(START, 0), EntryId(START, 0))))
    [batch] = Archive(str(tmp_path)).read_events(START, 0)
    assert batch.schema == SCHEMA
    assert batch["runs"].to_pylist() == [None]


def test_files_compacted_during_a_read_are_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = str(tmp_path)
    for part in (events(0, 1), events(2), events(3, 4)):
        Archive(uri).write(part)
    names = Archive.list_names
    looks: list[int] = []

    def tidied_meanwhile(self: Archive, hour_ms: int) -> list[ArchiveFileName]:
        found = names(self, hour_ms)
        looks.append(len(found))
        compact_and_expire(uri, START, 30, START + HOUR_MS)
        return found

    monkeypatch.setattr(Archive, "list_names", tidied_meanwhile)
    [summary] = read_shard(uri, START, 0)
    assert looks == [3, 1]
    assert summary["events"].to_pylist() == [5]


def test_files_next_to_an_hour_may_be_compacted_during_a_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = str(tmp_path)
    for part in (events(0), events(0, 1)[1:], events(0, 1, 3600)[2:], events(0, 1, 3600, 7200)[3:]):
        Archive(uri).write(part)
    seq_in = Archive.__dict__["_read_seq"]

    def tidied_meanwhile(self: Archive, path: str, place: int) -> int:
        compact_and_expire(uri, START, 30, START + HOUR_MS)
        return seq_in(self, path, place)

    monkeypatch.setattr(Archive, "_read_seq", tidied_meanwhile)
    hour = ReplayedHour(START + HOUR_MS, SCHEMA.empty_table(), 1, 0, {0: (3, 3)})
    assert describe_missing(Archive(uri), hour) is None


def test_many_events_are_read_in_pieces_and_all_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "ROW_GROUP", 7)
    whole = events(*range(50))
    Archive(str(tmp_path)).write(whole)
    batches = list(Archive(str(tmp_path)).read_events(START, 0))
    assert len(batches) > 1
    assert [ms for batch in batches for ms in batch["at_ms"].to_pylist()] == whole["at_ms"].to_pylist()
