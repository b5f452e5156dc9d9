"""Read every segment and journal of a directory: what is intact, what is lost, and what was never durable. Read-only.

How far records were durable is known from three sources: the journal's `DURABLE` notes, the same number in every record
header, and the existence of a later segment, which is created only when the one before is on disk. Up to there, a
missing sequence number is a lost record. Beyond, in the last segment, bytes that are no record are an interrupted
write; and a power loss may have kept a later record and lost an earlier one. Marks after such a gap are ignored,
because they would claim that the lost record had arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from headrace.spool.files import Files, read_all
from headrace.spool.journal import ENDS, NOTE_BYTES, SUFFIX, Journal, Kind, Note, read_notes, salt_of
from headrace.spool.record import HEADER_BYTES, Pairs, Part, Run
from headrace.spool.scan import Found, Hole, Scan, find_salt
from headrace.spool.segment import DONE, LARGEST_HEADER, Segment, SegmentHeader, base_of, decode_header

USUAL_HEADER = 2**16  # a longer header costs a second read

Progress = Callable[[int, int], None]
"""Called with the bytes read so far and the total."""

Stretch = tuple[int, int]
"""First and last sequence number of a range; empty if the last is smaller."""


@dataclass(frozen=True)
class PartRecord:
    sequence: int
    place: int
    part: Part


@dataclass
class Surveyed:
    """Content and state of one segment."""

    segment: Segment
    header_held: bool
    marks: Pairs  # marks in the header
    file_size: int
    records: int = 0  # readable records, finished or not
    # unreadable ranges, each with the numbers it may have held
    holes: list[tuple[Hole, Stretch]] = field(default_factory=list[tuple[Hole, Stretch]])
    gaps: list[Stretch] = field(default_factory=list[Stretch])  # missing numbers between two records
    record_marks: list[tuple[int, Pairs]] = field(default_factory=list[tuple[int, Pairs]])
    parts: list[PartRecord] = field(default_factory=list[PartRecord])
    leases: dict[int, int] = field(default_factory=dict[int, int])
    accounted: list[Stretch] = field(default_factory=list[Stretch])  # absent numbers that are accounted for
    durable: int = 0
    reserved: int = 0
    damaged_notes: int = 0
    missing: list[Stretch] = field(default_factory=list[Stretch])  # lost numbers that were not counted before
    # those that may have held missing numbers
    lost_holes: list[tuple[Hole, Stretch]] = field(default_factory=list[tuple[Hole, Stretch]])
    torn: Hole | None = None  # interrupted write at the end

    @property
    def is_empty(self) -> bool:
        """Whether the segment has nothing but a header. A journal with notes does not count as empty: they may be about
        records that a crash kept from being written, and their numbers can be assigned again."""
        unnoted = self.segment.journal.size <= NOTE_BYTES
        return self.header_held and self.file_size == self.segment.start and not self.records and unnoted

    @property
    def is_nothing(self) -> bool:
        """Whether the file has no valid header, no readable record and no known salt."""
        return not (self.header_held or self.records or self.segment.salt)


def survey(files: Files, folder: Path, progress: Progress | None = None) -> list[Surveyed]:
    """Return an inventory of every segment, in order. The newest is read first: its numbers override a tail that was
    written again."""
    found = find_segments(files, folder)
    total = sum(size for _, _, size in found)
    done = 0
    result: list[Surveyed] = []
    for base, path, size in reversed(found):
        report = None if progress is None else partial(_report, progress, done, total)
        newest_is_nothing = len(result) == 1 and result[0].is_nothing
        following = result[-1].segment.base if result and not newest_is_nothing else None
        marks = not any(each.header_held for each in result)  # marks in a newer header override those in older segments
        try:
            each = _read_segment(files, base, path, following, report, marks=marks)
        except FileNotFoundError:
            continue  # finished and deleted in the meantime by the process that has the spool open
        done += size
        _judge(each, following)
        result.append(each)
    if progress is not None:
        progress(total, total)
    return result[::-1]


def _report(progress: Progress, before: int, total: int, at: int) -> None:
    progress(before + at, total)


def find_segments(files: Files, folder: Path) -> list[tuple[int, Path, int]]:
    found: list[tuple[int, Path, int]] = []
    for name in files.names(folder):
        base = base_of(name)
        if base is not None:
            try:
                found.append((base, folder / name, files.size(folder / name)))
            except FileNotFoundError:
                pass  # deleted in the meantime
    return sorted(found)


def _read_segment(
    files: Files, base: int, path: Path, following: int | None, report: Callable[[int], None] | None, *, marks: bool
) -> Surveyed:
    size = files.size(path)
    handle = files.open_read(path)
    try:
        header = decode_header(files.read(handle, min(size, USUAL_HEADER), 0), base) or decode_header(
            files.read(handle, min(size, LARGEST_HEADER), 0), base
        )
        noted = read_all(files, path.with_suffix(SUFFIX))
        salt = header.salt if header else salt_of(noted) or find_salt(files, handle, size) or 0
        kept = header or SegmentHeader(salt, base, 0, 0, {}, 0)
        journal = Journal(files, path.with_suffix(SUFFIX), salt, len(noted))
        each = Surveyed(Segment(files, path, kept, journal), header is not None, kept.marks, size)
        each.reserved = kept.reserved
        _index(each, Scan(files, handle, size, each.segment.start, salt, marks=marks), following, report)
        notes, each.damaged_notes = read_notes(salt, noted)
        _apply(each, notes)
    finally:
        files.close(handle)
    return each


def _index(
    each: Surveyed, scan: Iterable[Found | Run | Hole], following: int | None, report: Callable[[int], None] | None
) -> None:
    segment = each.segment
    pending: list[Hole] = []  # unreadable ranges since the last readable record
    for found in scan:
        if isinstance(found, Hole):
            pending.append(found)
            continue
        if report is not None:
            report(found.at if isinstance(found, Found) else found.end)
        first, last = _numbers_of(found)
        if isinstance(found, Run):  # skip the rest of a tail that was written again
            first = max(first, segment.last + 1)
            last = last if following is None else min(last, following - 1)
        if last < first or last <= segment.last or (following is not None and last >= following):
            continue
        gap = (segment.last + 1, first - 1)
        if gap[0] <= gap[1]:
            each.gaps.append(gap)
        each.holes += [(hole, gap) for hole in pending]
        pending.clear()
        if isinstance(found, Run):
            _take_run(each, found, first, last)
        else:
            _take(each, found)
    each.holes += [(hole, (segment.last + 1, segment.last)) for hole in pending]


def _numbers_of(found: Found | Run) -> Stretch:
    if isinstance(found, Run):
        return found.first, found.last
    return found.head.place if found.head.is_void else found.head.sequence, found.head.sequence


def _take_run(each: Surveyed, run: Run, first: int, last: int) -> None:
    """Add the records `first` to `last` of a run."""
    low, high = first - run.first, last + 1 - run.first
    segment = each.segment
    charges = [HEADER_BYTES + raw for raw in run.raws[low:high]]
    segment.add_run(first, run.offsets[low:high], run.lengths[low:high], charges)
    segment.size = run.offsets[high - 1] + run.lengths[high - 1]
    each.records += high - low
    each.durable = max(each.durable, run.durable)


def _take(each: Surveyed, found: Found) -> None:
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
        each.parts.append(PartRecord(head.sequence, head.place, body.part))


def _apply(each: Surveyed, notes: Iterable[Note]) -> None:
    segment = each.segment
    for kind, first, count in notes:
        if kind in ENDS:
            _apply_end(each, range(first, first + count))
        elif kind is Kind.LEASED or kind is Kind.RELEASED:
            step = 1 if kind is Kind.LEASED else -1
            for sequence in range(first, first + count):  # ignore a release whose lease was lost in a power loss
                each.leases[sequence] = max(0, each.leases.get(sequence, 0) + step)
        elif kind is Kind.DURABLE:
            each.durable = max(each.durable, first)
        elif kind is Kind.RESERVED:
            each.reserved = first  # the last note counts: closing the spool withdraws the reservation
        elif kind is Kind.GONE:
            each.accounted.append((first, first + count - 1))
    each.leases = {
        sequence: times for sequence, times in each.leases.items() if times > 0 and is_live(segment, sequence)
    }


def _apply_end(each: Surveyed, sequences: range) -> None:
    for sequence in sequences:
        index = each.segment.index_of(sequence)
        if index is None:
            each.accounted.append((sequence, sequence))
        elif each.segment.states[index] != DONE:
            each.segment.end(index)


def is_live(segment: Segment, sequence: int) -> bool:
    index = segment.index_of(sequence)
    return index is not None and segment.states[index] != DONE


def _judge(each: Surveyed, following: int | None) -> None:
    """Find the lost sequence numbers, the unreadable ranges that may have held them, and a torn write at the end."""
    segment = each.segment
    durable = each.durable if following is None else following - 1
    trailing = (segment.last + 1, durable)
    accounted = merged(each.accounted)
    each.missing = [piece for gap in [*each.gaps, trailing] for piece in without(gap, accounted)]
    for hole, gap in each.holes:
        held = gap if gap[0] <= gap[1] else trailing
        if any(piece[0] <= held[1] and held[0] <= piece[1] for piece in each.missing):
            each.lost_holes.append((hole, held))
    at_end = [hole for hole, gap in each.holes if gap[0] > gap[1]]
    if following is None and at_end and trailing[0] > trailing[1] and each.header_held:
        each.torn = Hole(at_end[0].at, each.file_size, "incomplete write")


def merged(stretches: Iterable[Stretch]) -> list[Stretch]:
    result: list[Stretch] = []
    for first, last in sorted(stretches):
        if result and first <= result[-1][1] + 1:
            result[-1] = (result[-1][0], max(last, result[-1][1]))
        else:
            result.append((first, last))
    return result


def without(stretch: Stretch, taken: Iterable[Stretch]) -> list[Stretch]:
    """Return the parts of a range that are not in `removed`, which must be sorted and without overlaps."""
    first, last = stretch
    left: list[Stretch] = []
    for low, high in taken:
        if low > last:
            break
        if first < low:
            left.append((first, low - 1))
        first = max(first, high + 1)
    if first <= last:
        left.append((first, last))
    return left


def marks_of(surveyed: Iterable[Surveyed]) -> dict[str, str]:
    """Return the newest value of every mark. A header holds all marks as of its creation and replaces those of older
    segments."""
    marks: dict[str, str] = {}
    segments = list(surveyed)
    for each in segments:
        if each.header_held:
            marks = dict(each.marks)
        uncertain = (
            next((first for first, _ in each.gaps if first > each.durable), None) if each is segments[-1] else None
        )
        for sequence, found in each.record_marks:
            if uncertain is None or sequence < uncertain:
                marks.update(found)
    return marks
