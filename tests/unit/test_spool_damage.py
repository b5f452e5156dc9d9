"""Whatever is wrong with the files: never a crash, never a wrong payload, and exactly what is damaged is counted."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import google_crc32c
import pytest

from headrace.errors import SpoolFormatError
from headrace.spool.aside import read_aside
from headrace.spool.files import Files, SystemFiles
from headrace.spool.meta import write_meta
from headrace.spool.segment import SEGMENT_MAGIC, encode_header
from headrace.spool.spool import Spool, SpoolOptions, SpoolStats, list_quarantine, verify
from headrace.spool.store import BALLAST
from tests.model.spool_files import CrashFiles, Inode

COUNT = 5
SEGMENT, JOURNAL, META = "0000000000000001.seg", "0000000000000001.notes", "spool.meta"
PAYLOADS = {number: b"record %d " % number * 8 for number in range(1, COUNT + 1)}


FOLDER = Path("/spool")

Image = dict[str, bytes]
"""A directory: names and what is in the files."""


def options(path: Path, **others: object) -> SpoolOptions:
    return SpoolOptions(path=path, **others)  # type: ignore[arg-type]


def reopened(path: Path, files: Files | None = None) -> Spool:
    return Spool.open(options(path), files=files, background=False)


def fill(path: Path, files: Files | None = None) -> None:
    """Five records of which the second is acked and the first was tried once; closed in good order."""
    with reopened(path, files) as spool:
        for number, payload in PAYLOADS.items():
            spool.put(payload, token=f"t{number}", marks={"0": str(number)})
        first, second = spool.lease_many(2)
        spool.nack(first.id)
        spool.ack(second.id)


@pytest.fixture(scope="module")
def image() -> Image:
    """In memory, for tests that open it a thousand times."""
    files = CrashFiles()
    fill(FOLDER, files)
    return {name: bytes(inode.data) for name, inode in files.folders[FOLDER].names.items() if name != BALLAST}


@pytest.fixture(scope="module")
def spans() -> list[tuple[int, int]]:
    """Where each record of the image begins and ends."""
    files = CrashFiles()
    fill(FOLDER, files)
    with reopened(FOLDER, files) as spool:
        return record_spans(spool)


def record_spans(spool: Spool) -> list[tuple[int, int]]:
    segment = vars(spool)["_store"].segments[0]
    return [segment.span(index) for index in range(len(segment))]


def disk(image: Image) -> CrashFiles:
    files = CrashFiles()
    files.make_directory(FOLDER)
    for name, data in image.items():
        files.folders[FOLDER].names[name] = Inode(bytearray(data), bytearray(data))
    return files


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("small") / "spool"
    fill(path)
    return path


@pytest.fixture
def copy(small: Path, tmp_path: Path) -> Callable[[], Path]:
    def make() -> Path:
        target = tmp_path / "copy"
        shutil.rmtree(target, ignore_errors=True)
        return Path(shutil.copytree(small, target))

    return make


def contents(path: Path, files: Files | None = None) -> tuple[set[int], SpoolStats]:
    """What comes out; and a second opening counts nothing again."""
    with reopened(path, files) as spool:
        found = {record.id: record.payload for record in spool.lease_many(100)}
        stats = spool.stats()
    assert list(found) == sorted(found)
    assert all(PAYLOADS[id] == payload for id, payload in found.items()), "a wrong payload"
    assert stats.conserved
    with reopened(path, files) as again:
        assert again.stats().corrupt == again.stats().torn == 0, "counted again"
        assert again.stats().size == len(found)
        assert again.stats().next_id > COUNT, "a number would be used twice"
    return set(found), stats


def flipped(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Every byte with a bit flipped, over eight neighbours each bit."""
    for at in range(len(data)):
        yield at, data[:at] + bytes((data[at] ^ 1 << at % 8,)) + data[at + 1 :]


def segment_of(path: Path) -> Path:
    return next(path.glob("*.seg"))


def places(path: Path) -> list[tuple[int, int]]:
    with reopened(path) as spool:
        return record_spans(spool)


def test_a_flipped_bit_anywhere_in_the_segment(image: Image, spans: list[tuple[int, int]]) -> None:
    for at, broken in flipped(image[SEGMENT]):
        files = disk({**image, SEGMENT: broken})
        hit = {number for number, (start, end) in enumerate(spans, 1) if start <= at < end}
        lost = hit - {2}  # the second one is acked: nobody misses it
        found, stats = contents(FOLDER, files)
        assert found == {1, 3, 4, 5} - lost, at
        assert stats.corrupt == len(lost), at
        assert len(list_quarantine(FOLDER, files=files)) == len(lost), at


def test_a_truncation_anywhere_in_the_segment(image: Image, spans: list[tuple[int, int]]) -> None:
    """It was closed in good order, so the journal knows how many there were."""
    for length in range(len(image[SEGMENT])):
        lost = {number for number, (_, end) in enumerate(spans, 1) if length < end} - {2}
        found, stats = contents(FOLDER, disk({**image, SEGMENT: image[SEGMENT][:length]}))
        assert found == {1, 3, 4, 5} - lost, length
        assert stats.corrupt == len(lost), length


def test_a_flipped_bit_anywhere_in_the_journal(image: Image) -> None:
    """Costs no record; an acked one may come again, an attempt may be forgotten."""
    for at, broken in flipped(image[JOURNAL]):
        found, stats = contents(FOLDER, disk({**image, JOURNAL: broken}))
        assert found in ({1, 3, 4, 5}, {1, 2, 3, 4, 5}), at
        assert stats.corrupt == 0, at
        assert stats.damaged_notes == 1, at


def test_a_truncation_anywhere_in_the_journal(image: Image) -> None:
    for length in range(len(image[JOURNAL])):
        found, stats = contents(FOLDER, disk({**image, JOURNAL: image[JOURNAL][:length]}))
        assert found in ({1, 3, 4, 5}, {1, 2, 3, 4, 5}), length
        assert stats.corrupt == 0, length


def test_a_flipped_bit_or_truncation_anywhere_in_the_hint_changes_nothing(image: Image) -> None:
    for at, broken in flipped(image[META]):
        for text in (broken, image[META][:at]):
            found, stats = contents(FOLDER, disk({**image, META: text}))
            assert found == {1, 3, 4, 5}, at
            assert stats.corrupt == 0, at


def test_a_truncation_that_was_never_promised_is_a_torn_write(image: Image, spans: list[tuple[int, int]]) -> None:
    """Without the journal, a cut-off tail is what a crash leaves: dropped, kept aside, and no record is missed."""
    start, end = spans[-1]
    without_journal = {name: data for name, data in image.items() if name != JOURNAL}
    for length in range(start + 1, end):
        files = disk({**without_journal, SEGMENT: image[SEGMENT][:length]})
        with reopened(FOLDER, files) as spool:
            stats = spool.stats()
        assert (stats.size, stats.corrupt, stats.torn, stats.quarantined) == (4, 0, 1, 1), length
        assert files.size(FOLDER / SEGMENT) == start
        (kept,) = list_quarantine(FOLDER, files=files)
        assert read_aside(kept.path, files)[1] == image[SEGMENT][start:length]


def test_zeros_at_the_end_are_a_torn_write_of_nothing(copy: Callable[[], Path]) -> None:
    path = copy()
    data = segment_of(path).read_bytes()
    segment_of(path).write_bytes(data + bytes(5000))
    found, stats = contents(path)
    assert found == {1, 3, 4, 5}
    assert (stats.torn, stats.quarantined) == (1, 0)


@pytest.mark.parametrize("text", [None, b"", b"garbage", b"\xff\x00", b"[]", b'{"meta": 3}', b"[" * 100_000])
def test_a_missing_or_garbage_hint_changes_nothing(copy: Callable[[], Path], text: bytes | None) -> None:
    path = copy()
    (path / "spool.meta").unlink()
    if text is not None:
        (path / "spool.meta").write_bytes(text)
    assert contents(path)[0] == {1, 3, 4, 5}


@pytest.mark.parametrize(("hint", "expected"), [(1, 6), (3, 6), (1000, 1000), (2**61, 6), (-5, 6)])
def test_a_stale_hint_is_ignored_and_a_newer_one_only_skips_numbers(
    copy: Callable[[], Path], hint: int, expected: int
) -> None:
    path = copy()
    write_meta(SystemFiles(), path, {"next_sequence": hint})
    with reopened(path) as spool:
        assert spool.put(b"new") == expected
        assert spool.stats().corrupt == 0
    with reopened(path) as spool:
        assert spool.stats().corrupt == 0
        assert [record.id for record in spool.lease_many(10)] == [1, 3, 4, 5, expected]


def test_the_number_survives_even_if_every_segment_is_gone(copy: Callable[[], Path]) -> None:
    path = copy()
    for file in [*path.glob("*.seg"), *path.glob("*.notes")]:
        file.unlink()
    with reopened(path) as spool:
        assert spool.put(b"new") == COUNT + 1


def test_marks_survive_a_damaged_header_copy(copy: Callable[[], Path]) -> None:
    path = copy()
    reopened(path).close()  # a second segment, whose header carries the marks
    for file in path.glob("*.seg"):
        data = bytearray(file.read_bytes())
        data[len(SEGMENT_MAGIC) + 9] ^= 1
        file.write_bytes(data)
    with reopened(path) as spool:
        assert spool.marks() == {"0": "5"}
        assert spool.stats().size == 4


def test_a_missing_middle_segment_is_counted_once(tmp_path: Path) -> None:
    path = tmp_path / "spool"
    with Spool.open(options(path, segment_size=4096, compression="none"), background=False) as spool:
        for _ in range(9):
            spool.put(b"x" * 1500)
    segments = sorted(path.glob("*.seg"))
    assert len(segments) >= 4
    segments[1].unlink()
    assert any(finding.records == 2 for finding in verify(path))
    with reopened(path) as spool:
        assert (spool.stats().corrupt, spool.stats().size) == (2, 7)
        assert [record.id for record in spool.lease_many(20)] == [1, 2, 5, 6, 7, 8, 9]
        assert spool.stats().conserved
    with reopened(path) as spool:
        assert (spool.stats().corrupt, spool.stats().size) == (0, 7)


def test_a_middle_segment_of_garbage_is_counted_once_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "spool"
    with Spool.open(options(path, segment_size=4096, compression="none"), background=False) as spool:
        for _ in range(9):
            spool.put(b"x" * 1500)
    segments = sorted(path.glob("*.seg"))
    garbage = b"garbage" * 500
    segments[1].write_bytes(garbage)
    with reopened(path) as spool:
        assert (spool.stats().corrupt, spool.stats().size) == (2, 7)
    assert read_aside(list_quarantine(path)[0].path)[1] == garbage
    with reopened(path) as spool:
        assert (spool.stats().corrupt, spool.stats().size) == (0, 7)


def test_a_stray_file_with_a_segments_name_is_set_aside(copy: Callable[[], Path]) -> None:
    path = copy()
    (path / "00000000000000ff.seg").write_bytes(b"not a segment")
    (path / "notes.txt").write_text("mine")
    found, stats = contents(path)
    assert found == {1, 3, 4, 5}
    assert (stats.corrupt, stats.quarantined) == (0, 1)
    assert (path / "notes.txt").read_text() == "mine"


def test_a_payload_that_is_a_segment_is_not_taken_for_one(tmp_path: Path, small: Path) -> None:
    """Damage before it makes the scan search for a header, and the payload is full of them."""
    path = tmp_path / "spool"
    with Spool.open(options(path, compression="none"), background=False) as spool:
        spool.put(b"first")
        spool.put(segment_of(small).read_bytes())
        spool.put(b"last")
    start = places(path)[1][0]
    file = segment_of(path)
    data = bytearray(file.read_bytes())
    data[start + 5] ^= 1
    file.write_bytes(data)
    with reopened(path) as spool:
        assert [record.payload for record in spool.lease_many(10)] == [b"first", b"last"]
        assert spool.stats().corrupt == 1


def test_damage_while_it_runs_costs_that_record_only(tmp_path: Path) -> None:
    path = tmp_path / "spool"
    with Spool.open(options(path, inmemory_blocks=0), background=False) as spool:
        for payload in PAYLOADS.values():
            spool.put(payload)
        file = segment_of(path)
        at = vars(spool)["_store"].segments[0].offsets[2]
        data = bytearray(file.read_bytes())
        data[at + 70] ^= 1
        file.write_bytes(data)
        assert [record.id for record in spool.lease_many(10)] == [1, 2, 4, 5]
        stats = spool.stats()
        assert (stats.corrupt, stats.quarantined) == (1, 1)
        assert stats.conserved
    with reopened(path) as spool:
        assert spool.stats().corrupt == 0
        assert spool.stats().size == 4


def test_a_newer_format_is_refused_and_left_alone(copy: Callable[[], Path]) -> None:
    path = copy()
    file = segment_of(path)
    newer = bytearray(encode_header(1, 6, 0, 0, {}))
    half = len(newer) // 2
    newer[8] = 2
    one = bytes(newer[: half - 4])
    (path / "0000000000000006.seg").write_bytes(one + google_crc32c.value(one).to_bytes(4, "little"))
    before = {each.name: each.read_bytes() for each in path.iterdir() if each.suffix in (".seg", ".notes")}
    with pytest.raises(SpoolFormatError, match="version 2"):
        reopened(path)
    assert {each.name: each.read_bytes() for each in path.iterdir() if each.suffix in (".seg", ".notes")} == before
    assert file.exists()


def test_verify_finds_what_is_wrong_and_changes_nothing(copy: Callable[[], Path]) -> None:
    path = copy()
    assert verify(path) == []
    start = places(copy())[3][0]
    path = copy()
    data = bytearray(segment_of(path).read_bytes())
    data[start + 80] ^= 1
    segment_of(path).write_bytes(data)
    findings = verify(path)
    assert sum(finding.records for finding in findings) == 1
    assert all(finding.grade == "problem" for finding in findings)
    assert segment_of(path).read_bytes() == bytes(data)
    assert not (path / "quarantine").exists()
