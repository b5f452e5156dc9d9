"""Read every segment and journal of a directory: what is intact, what is lost, and what was never durable. Read-only.

The last sequence number that is known to have been on disk (durable) comes from three sources: the `DURABLE` notes of
the journal, the same number in every record header, and the existence of a later segment, which is created only when
the one before is on disk.

- Up to that number, a missing sequence number is a lost record.
- Beyond it, which is possible only in the last segment, unreadable bytes are an interrupted write. A power loss may
  have kept a later record and lost an earlier one. Marks after such a gap are ignored, because they would claim that
  the lost record was stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from headrace.spool.files import FileReader, Files, read_all
from headrace.spool.journal import ENDS, NOTE_BYTES, SUFFIX, Journal, Note, NoteKind, read_notes, read_salt_note
from headrace.spool.record import HEADER_BYTES, Pairs, RecordPart, RecordRun
from headrace.spool.scan import ScannedRecord, SegmentScan, UnreadableRange, find_salt
from headrace.spool.segment import DONE, LARGEST_HEADER, Segment, SegmentHeader, decode_header, parse_segment_name

USUAL_HEADER = 2**16  # a longer header costs a second read

ProgressCallback = Callable[[int, int], None]
"""Called with the bytes read so far and the total."""

SequenceRange = tuple[int, int]
"""First and last sequence number of a range; empty if the last is smaller."""


@dataclass(frozen=True)
class ScannedPart:
    sequence: int
    place: int
    part: RecordPart


@dataclass
class SegmentInventory:
    segment: Segment
    header_intact: bool
    marks: Pairs  # marks in the header
    file_size: int
    records: int = 0  # readable records, finished or not
    # unreadable ranges, each with the numbers it may have held
    unreadable: list[tuple[UnreadableRange, SequenceRange]] = field(
        default_factory=list[tuple[UnreadableRange, SequenceRange]]
    )
    gaps: list[SequenceRange] = field(default_factory=list[SequenceRange])  # missing numbers between two records
    record_marks: list[tuple[int, Pairs]] = field(default_factory=list[tuple[int, Pairs]])
    parts: list[ScannedPart] = field(default_factory=list[ScannedPart])
    leases: dict[int, int] = field(default_factory=dict[int, int])
    accounted: list[SequenceRange] = field(default_factory=list[SequenceRange])  # absent numbers that are accounted for
    durable: int = 0
    reserved: int = 0
    damaged_notes: int = 0
    missing: list[SequenceRange] = field(
        default_factory=list[SequenceRange]
    )  # lost numbers that were not counted before
    # those that may have held missing numbers
    lost_ranges: list[tuple[UnreadableRange, SequenceRange]] = field(
        default_factory=list[tuple[UnreadableRange, SequenceRange]]
    )
    torn: UnreadableRange | None = None  # interrupted write at the end

    @property
    def is_empty(self) -> bool:
        """Return True if the segment has nothing but a header. A journal with notes does not count as empty: they may
        be about records that a crash kept from being written, and their numbers can be assigned again."""
        unnoted = self.segment.journal.size <= NOTE_BYTES
        return self.header_intact and self.file_size == self.segment.start and not self.records and unnoted

    @property
    def is_unidentified(self) -> bool:
        """Return True if the file has no valid header, no readable record and no known salt."""
        return not (self.header_intact or self.records or self.segment.salt)


def scan_directory(
    files: Files, folder: Path, progress: ProgressCallback = lambda _done, _total: None
) -> list[SegmentInventory]:
    """Return an inventory of every segment, in order. The newest is read first: its numbers override a tail that was
    written again."""
    found = find_segments(files, folder)
    total = sum(size for _, _, size in found)
    done = 0
    result: list[SegmentInventory] = []
    for base, path, size in reversed(found):
        report = partial(_report_progress, progress, done, total)
        newest_is_nothing = len(result) == 1 and result[0].is_unidentified
        following = result[-1].segment.base if result and not newest_is_nothing else None
        marks = not any(
            each.header_intact for each in result
        )  # marks in a newer header override those in older segments
        try:
            each = _read_segment(files, base, path, following, report, marks=marks)
        except FileNotFoundError:
            continue  # finished and deleted in the meantime by the process that has the spool open
        done += size
        _classify_gaps(each, following)
        result.append(each)
    progress(total, total)
    return result[::-1]


def _report_progress(progress: ProgressCallback, before: int, total: int, at: int) -> None:
    progress(before + at, total)


def find_segments(files: Files, folder: Path) -> list[tuple[int, Path, int]]:
    found: list[tuple[int, Path, int]] = []
    for name in files.names(folder):
        base = parse_segment_name(name)
        if base is not None:
            try:
                found.append((base, folder / name, files.size(folder / name)))
            except FileNotFoundError:
                pass  # deleted in the meantime
    return sorted(found)


def _read_segment(
    files: Files, base: int, path: Path, following: int | None, report: Callable[[int], None], *, marks: bool
) -> SegmentInventory:
    size = files.size(path)
    with closing(FileReader(files, path)) as reader:
        header = decode_header(reader.read(0, min(size, USUAL_HEADER)), base) or decode_header(
            reader.read(0, min(size, LARGEST_HEADER)), base
        )
        noted = read_all(files, path.with_suffix(SUFFIX))
        salt = header.salt if header else read_salt_note(noted) or find_salt(reader, size) or 0
        kept = header or SegmentHeader(salt, base, 0, 0, {}, 0)
        journal = Journal(files, path.with_suffix(SUFFIX), salt, len(noted))
        each = SegmentInventory(Segment(files, path, kept, journal), header is not None, kept.marks, size)
        each.reserved = kept.reserved
        _index_records(each, SegmentScan(reader, size, each.segment.start, salt, marks=marks), following, report)
        notes, each.damaged_notes = read_notes(salt, noted)
        _apply_notes(each, notes)
    return each


def _index_records(
    each: SegmentInventory,
    scan: Iterable[ScannedRecord | RecordRun | UnreadableRange],
    following: int | None,
    report: Callable[[int], None],
) -> None:
    segment = each.segment
    pending: list[UnreadableRange] = []  # unreadable ranges since the last readable record
    for found in scan:
        if isinstance(found, UnreadableRange):
            pending.append(found)
            continue
        report(found.at if isinstance(found, ScannedRecord) else found.end)
        first, last = _sequence_range(found)
        if isinstance(found, RecordRun):  # skip the rest of a tail that was written again
            first = max(first, segment.last + 1)
            last = last if following is None else min(last, following - 1)
        if last < first or last <= segment.last or (following is not None and last >= following):
            continue
        gap = (segment.last + 1, first - 1)
        if gap[0] <= gap[1]:
            each.gaps.append(gap)
        each.unreadable += [(hole, gap) for hole in pending]
        pending.clear()
        if isinstance(found, RecordRun):
            _add_run(each, found, first, last)
        else:
            _add_record(each, found)
    each.unreadable += [(hole, (segment.last + 1, segment.last)) for hole in pending]


def _sequence_range(found: ScannedRecord | RecordRun) -> SequenceRange:
    if isinstance(found, RecordRun):
        return found.first, found.last
    return found.head.place if found.head.is_void else found.head.sequence, found.head.sequence


def _add_run(each: SegmentInventory, run: RecordRun, first: int, last: int) -> None:
    low, high = first - run.first, last + 1 - run.first
    segment = each.segment
    charges = [HEADER_BYTES + raw for raw in run.raws[low:high]]
    segment.add_run(first, run.offsets[low:high], run.lengths[low:high], charges)
    segment.size = run.offsets[high - 1] + run.lengths[high - 1]
    each.records += high - low
    each.durable = max(each.durable, run.durable)


def _add_record(each: SegmentInventory, found: ScannedRecord) -> None:
    head, body = found.head, found.body
    segment = each.segment
    if head.is_void:
        segment.last = head.sequence
    else:
        each.records += 1
        segment.add(head.sequence, found.at, head.length, HEADER_BYTES + head.extras + head.raw)
    segment.size = found.at + head.length
    each.durable = max(each.durable, head.durable)
    if body is not None and body.marks:
        each.record_marks.append((head.sequence, body.marks))
    if body is not None and body.part is not None:
        each.parts.append(ScannedPart(head.sequence, head.place, body.part))


def _apply_notes(each: SegmentInventory, notes: Iterable[Note]) -> None:
    segment = each.segment
    for kind, first, count in notes:
        if kind in ENDS:
            _apply_end_note(each, range(first, first + count))
        elif kind is NoteKind.LEASED or kind is NoteKind.RELEASED:
            step = 1 if kind is NoteKind.LEASED else -1
            for sequence in range(first, first + count):  # ignore a release whose lease was lost in a power loss
                each.leases[sequence] = max(0, each.leases.get(sequence, 0) + step)
        elif kind is NoteKind.DURABLE:
            each.durable = max(each.durable, first)
        elif kind is NoteKind.RESERVED:
            each.reserved = first  # the last note counts: closing the spool withdraws the reservation
        elif kind is NoteKind.GONE:
            each.accounted.append((first, first + count - 1))
    each.leases = {
        sequence: times for sequence, times in each.leases.items() if times > 0 and is_live(segment, sequence)
    }


def _apply_end_note(each: SegmentInventory, sequences: range) -> None:
    for sequence in sequences:
        index = each.segment.find_index(sequence)
        if index is None:
            each.accounted.append((sequence, sequence))
        elif each.segment.states[index] != DONE:
            each.segment.mark_done(index)


def is_live(segment: Segment, sequence: int) -> bool:
    index = segment.find_index(sequence)
    return index is not None and segment.states[index] != DONE


def _classify_gaps(each: SegmentInventory, following: int | None) -> None:
    """Find the lost sequence numbers, the unreadable ranges that may have held them, and a torn write at the end."""
    segment = each.segment
    durable = each.durable if following is None else following - 1
    trailing = (segment.last + 1, durable)
    accounted = merge_ranges(each.accounted)
    each.missing = [piece for gap in [*each.gaps, trailing] for piece in subtract_ranges(gap, accounted)]
    for hole, gap in each.unreadable:
        held = gap if gap[0] <= gap[1] else trailing
        if any(piece[0] <= held[1] and held[0] <= piece[1] for piece in each.missing):
            each.lost_ranges.append((hole, held))
    at_end = [hole for hole, gap in each.unreadable if gap[0] > gap[1]]
    if following is None and at_end and trailing[0] > trailing[1] and each.header_intact:
        each.torn = UnreadableRange(at_end[0].at, each.file_size, "incomplete write")


def merge_ranges(stretches: Iterable[SequenceRange]) -> list[SequenceRange]:
    result: list[SequenceRange] = []
    for first, last in sorted(stretches):
        if result and first <= result[-1][1] + 1:
            result[-1] = (result[-1][0], max(last, result[-1][1]))
        else:
            result.append((first, last))
    return result


def subtract_ranges(stretch: SequenceRange, removed: Iterable[SequenceRange]) -> list[SequenceRange]:
    """Return the parts of a range that are not in `removed`, which must be sorted and without overlaps."""
    first, last = stretch
    left: list[SequenceRange] = []
    for low, high in removed:
        if low > last:
            break
        if first < low:
            left.append((first, low - 1))
        first = max(first, high + 1)
    if first <= last:
        left.append((first, last))
    return left


def collect_marks(surveyed: Iterable[SegmentInventory]) -> dict[str, str]:
    """Return the newest value of every mark. A header holds all marks as of its creation and replaces those of older
    segments."""
    marks: dict[str, str] = {}
    segments = list(surveyed)
    for each in segments:
        if each.header_intact:
            marks = dict(each.marks)
        uncertain = (
            next((first for first, _ in each.gaps if first > each.durable), None) if each is segments[-1] else None
        )
        for sequence, found in each.record_marks:
            if uncertain is None or sequence < uncertain:
                marks.update(found)
    return marks
