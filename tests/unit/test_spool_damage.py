"""Damaged files: never a crash, never a wrong payload, and exactly the damaged records are counted."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import google_crc32c
import pytest

from headrace.errors import SpoolFormatError
from headrace.spool.files import Files, read_all
from headrace.spool.inspect import inspect_spool, list_quarantine
from headrace.spool.inventory import SegmentInventory, scan_directory
from headrace.spool.journal import NoteKind, encode_note
from headrace.spool.meta import write_meta
from headrace.spool.options import SpoolOptions, SpoolStats
from headrace.spool.record import NewRecord
from headrace.spool.segment import SEGMENT_MAGIC, decode_header, encode_header
from headrace.spool.spool import Spool
from headrace.spool.store import BALLAST
from tests.model.spool_files import CrashFiles, Inode

COUNT = 5
SEGMENT, JOURNAL, META = "0000000000000001.seg", "0000000000000001.notes", "spool.meta"
PAYLOADS = {number: b"record %d " % number * 8 for number in range(1, COUNT + 1)}


FOLDER = Path("/spool")

Image = dict[str, bytes]
"""Content of a directory: file names and bytes."""


def options(path: Path, **others: object) -> SpoolOptions:
    return SpoolOptions(path=path, **others)  # type: ignore[arg-type]


def reopened(path: Path, files: Files | None = None) -> Spool:
    return Spool.open(options(path), files=files, background=False)


def read_kept(path: Path, files: Files) -> bytes:
    """Return the data of a retained file, which follow its description line."""
    return read_all(files, path).partition(b"\n")[2]


def fill(path: Path, files: Files | None = None, *, plain: bool = False) -> None:
    """Create five records of which the second is acked and the first was tried once; closed cleanly."""
    with reopened(path, files) as spool:
        for number, payload in PAYLOADS.items():
            if plain:
                spool.put(payload)
            else:
                spool.put(payload, token=f"t{number}", marks={"0": str(number)})
        first, second = spool.lease_many(2)
        spool.nack(first.id)
        spool.ack(second.id)


@pytest.fixture(scope="module")
def image() -> Image:
    """Content of a spool directory, for tests that open it a thousand times."""
    return build_image(plain=False, sealed=False)


def build_image(*, plain: bool, sealed: bool) -> Image:
    """Return the content of a directory. Sealed: there is a later segment, so all of this one was durable, and the
    later header has its marks."""
    files = CrashFiles()
    fill(FOLDER, files, plain=plain)
    if sealed:
        reopened(FOLDER, files).close()
    return {name: bytes(inode.data) for name, inode in files.folders[FOLDER].names.items() if name != BALLAST}


@pytest.fixture(scope="module")
def spans(image: Image) -> list[tuple[int, int]]:
    """Start and end of each record in the image."""
    return read_spans(image)


def read_spans(image: Image) -> list[tuple[int, int]]:
    with reopened(FOLDER, disk(image)) as spool:
        return record_spans(spool)


def record_spans(spool: Spool) -> list[tuple[int, int]]:
    segment = vars(spool)["_state"].store.segments[0]
    return [segment.byte_range(index) for index in range(len(segment))]


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
    """Return the records of a spool and its statistics; check that opening it again counts nothing twice."""
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
    """Yield the data with one bit of each byte flipped in turn, each bit position once in eight bytes."""
    for at in range(len(data)):
        yield at, data[:at] + bytes((data[at] ^ 1 << at % 8,)) + data[at + 1 :]


def find_segment(path: Path) -> Path:
    return next(path.glob("*.seg"))


def places(path: Path) -> list[tuple[int, int]]:
    with reopened(path) as spool:
        return record_spans(spool)


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("plain", [False, True])
def test_a_flipped_bit_anywhere_in_the_segment(plain: bool, sealed: bool) -> None:
    image = build_image(plain=plain, sealed=sealed)
    spans = read_spans(image)
    for at, broken in flipped(image[SEGMENT]):
        files = disk({**image, SEGMENT: broken})
        hit = {number for number, (start, end) in enumerate(spans, 1) if start <= at < end}
        lost = hit - {2}  # the second one is acked, so it is not missed
        found, stats = contents(FOLDER, files)
        assert found == {1, 3, 4, 5} - lost, at
        assert stats.corrupt == len(lost), at
        assert len(list_quarantine(FOLDER, files=files)) == len(lost), at


def test_a_truncation_anywhere_in_the_segment(image: Image, spans: list[tuple[int, int]]) -> None:
    """The spool was closed cleanly, so the journal knows how many records there were."""
    for length in range(len(image[SEGMENT])):
        lost = {number for number, (_, end) in enumerate(spans, 1) if length < end} - {2}
        found, stats = contents(FOLDER, disk({**image, SEGMENT: image[SEGMENT][:length]}))
        assert found == {1, 3, 4, 5} - lost, length
        assert stats.corrupt == len(lost), length


def test_a_flipped_bit_anywhere_in_the_journal(image: Image) -> None:
    """No record is lost; an acked one may be delivered again, an attempt may be lost."""
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


def test_a_truncation_of_unsynced_records_is_a_torn_write(image: Image, spans: list[tuple[int, int]]) -> None:
    """Without the journal, a truncated tail is what a crash leaves: removed, quarantined, and no record is missed."""
    start, end = spans[-1]
    without_journal = {name: data for name, data in image.items() if name != JOURNAL}
    for length in range(start + 1, end):
        files = disk({**without_journal, SEGMENT: image[SEGMENT][:length]})
        with reopened(FOLDER, files) as spool:
            stats = spool.stats()
        assert (stats.size, stats.corrupt, stats.torn, stats.quarantined) == (4, 0, 1, 1), length
        assert files.size(FOLDER / SEGMENT) == start
        (kept,) = list_quarantine(FOLDER, files=files)
        assert read_kept(kept.path, files) == image[SEGMENT][start:length]


def test_zeros_at_the_end_are_a_torn_write_of_nothing(copy: Callable[[], Path]) -> None:
    path = copy()
    data = find_segment(path).read_bytes()
    find_segment(path).write_bytes(data + bytes(5000))
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
    write_meta(Files(), path, {"next_sequence": hint})
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
        assert spool.read_marks() == {"0": "5"}
        assert spool.stats().size == 4


def test_a_missing_middle_segment_is_counted_once(tmp_path: Path) -> None:
    path = tmp_path / "spool"
    with Spool.open(options(path, segment_size=4096, compression="none"), background=False) as spool:
        for _ in range(9):
            spool.put(b"x" * 1500)
    segments = sorted(path.glob("*.seg"))
    assert len(segments) >= 4
    segments[1].unlink()
    assert any(finding.records == 2 for finding in inspect_spool(path).findings)
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
    assert read_kept(list_quarantine(path)[0].path, Files()) == garbage
    with reopened(path) as spool:
        assert (spool.stats().corrupt, spool.stats().size) == (0, 7)


def test_a_stray_file_with_a_segments_name_is_quarantined(copy: Callable[[], Path]) -> None:
    path = copy()
    (path / "00000000000000ff.seg").write_bytes(b"not a segment")
    (path / "notes.txt").write_text("mine")
    found, stats = contents(path)
    assert found == {1, 3, 4, 5}
    assert (stats.corrupt, stats.quarantined) == (0, 1)
    assert (path / "notes.txt").read_text() == "mine"


def test_a_payload_that_is_a_segment_is_not_taken_for_one(tmp_path: Path, small: Path) -> None:
    """Damage before the payload makes the scan search for a header, and the payload is full of them."""
    path = tmp_path / "spool"
    with Spool.open(options(path, compression="none"), background=False) as spool:
        spool.put(b"first")
        spool.put(find_segment(small).read_bytes())
        spool.put(b"last")
    start = places(path)[1][0]
    file = find_segment(path)
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
        file = find_segment(path)
        at = vars(spool)["_state"].store.segments[0].offsets[2]
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


def test_damage_while_it_is_leased_one_by_one_costs_that_record_only(tmp_path: Path) -> None:
    """Consecutive records are read together; invalid ones are then checked one by one."""
    path = tmp_path / "spool"
    with Spool.open(options(path, inmemory_blocks=0), background=False) as spool:
        for payload in PAYLOADS.values():
            spool.put(payload)
        file = find_segment(path)
        at = vars(spool)["_state"].store.segments[0].offsets[2]
        data = bytearray(file.read_bytes())
        data[at + 70] ^= 1
        file.write_bytes(data)
        leased = list(iter(spool.lease, None))
        assert [(record.id, record.payload) for record in leased] == [(id, PAYLOADS[id]) for id in (1, 2, 4, 5)]
        assert (spool.stats().corrupt, spool.stats().quarantined) == (1, 1)
        assert spool.stats().conserved
    with reopened(path) as spool:
        assert spool.stats().quarantine_bytes == sum(each.stat().st_size for each in (path / "quarantine").iterdir())


def test_a_scan_in_runs_finds_what_a_scan_one_by_one_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scanning in runs must find the same as the general scan, on directories of any state."""
    random = Random(5)
    for _ in range(150):
        image = damaged(random, mixed(random))
        quick = [collect_facts(each) for each in scan_directory(disk(image), FOLDER)]
        with monkeypatch.context() as patched:
            patched.setattr("headrace.spool.scan.scan_run", no_run)
            assert quick == [collect_facts(each) for each in scan_directory(disk(image), FOLDER)]


def no_run(*_: object, **__: object) -> None:
    """Replacement for `scan_run` that finds no runs."""


def mixed(random: Random) -> Image:
    """Return a directory with plain records and others, voids, parts, gaps between segments."""
    files = CrashFiles()
    given = options(FOLDER, segment_size=4096, inmemory_blocks=4)
    with Spool.open(given, files=files, background=False) as spool:
        for _ in range(random.randrange(5, 60)):
            payload = random.randbytes(random.choice((0, 20, 200, 900))) * random.choice((1, 3))
            token = random.choice(("", "", "token"))
            spool.put(payload, token=token, durable=random.random() < 0.5)
            if random.random() < 0.2 and (record := spool.lease()) is not None:
                end = random.randrange(3)
                if end == 0:
                    spool.ack(record.id)
                elif end == 1:
                    spool.replace(record.id, [NewRecord(b"a"), NewRecord(b"b")])
                else:
                    spool.nack(record.id)
    return {name: bytes(inode.data) for name, inode in files.folders[FOLDER].names.items() if name != BALLAST}


def damaged(random: Random, image: Image) -> Image:
    """Return the directory with some bytes flipped, overwritten or removed, or a range of records written twice."""
    name = random.choice([name for name in image if name.endswith(".seg")])
    data = bytearray(image[name])
    for _ in range(random.randrange(4)):
        at = random.randrange(len(data) + 1)
        how = random.randrange(4)
        if how == 0 and at < len(data):
            data[at] ^= 1 << random.randrange(8)
        elif how == 1:
            data[at : at + 100] = random.randbytes(random.randrange(200))
        elif how == 2:
            del data[at:]
        else:
            data += data[at:]
    return {**image, name: bytes(data)}


def collect_facts(each: SegmentInventory) -> tuple[object, ...]:
    segment = each.segment
    index = (list(segment.offsets), list(segment.lengths), list(segment.charges), bytes(segment.states))
    numbers = [segment.get_sequence(at) for at in range(len(segment))]
    rest = (each.records, each.unreadable, each.gaps, each.parts, each.missing, each.lost_ranges, each.torn)
    return (segment.path.name, *index, numbers, segment.size, segment.last, segment.live, segment.fresh, *rest)


def test_a_release_whose_lease_a_power_loss_took_cancels_no_later_lease(image: Image) -> None:
    header = decode_header(image[SEGMENT], 1)
    assert header is not None
    notes = encode_note(header.salt, NoteKind.RELEASED, 3) + encode_note(header.salt, NoteKind.LEASED, 3)
    with reopened(FOLDER, disk({**image, JOURNAL: image[JOURNAL] + notes})) as spool:
        assert {record.id: record.attempts for record in spool.lease_many(10)} == {1: 1, 3: 1, 4: 0, 5: 0}


def test_a_newer_format_is_refused_and_left_alone(copy: Callable[[], Path]) -> None:
    path = copy()
    file = find_segment(path)
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
    assert inspect_spool(path).findings == []
    start = places(copy())[3][0]
    path = copy()
    data = bytearray(find_segment(path).read_bytes())
    data[start + 80] ^= 1
    find_segment(path).write_bytes(data)
    findings = inspect_spool(path).findings
    assert sum(finding.records for finding in findings) == 1
    assert all(finding.grade == "problem" for finding in findings)
    assert find_segment(path).read_bytes() == bytes(data)
    assert not (path / "quarantine").exists()
