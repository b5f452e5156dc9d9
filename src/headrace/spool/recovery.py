"""Recover a spool directory after a crash or damage.

Intact records are kept. Lost records are counted and noted in the journal, so that they are not counted again when the
directory is next opened; unreadable bytes in their place are copied to quarantine/. Incomplete writes are truncated.
Nothing is overwritten.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path

from headrace.spool.files import Files, discard
from headrace.spool.inventory import (
    ScannedPart,
    SegmentInventory,
    SequenceRange,
    collect_marks,
    is_live,
    scan_directory,
)
from headrace.spool.journal import SUFFIX, NoteKind
from headrace.spool.ledger import Ledger
from headrace.spool.meta import read_next_sequence_hint
from headrace.spool.retained_files import QUARANTINE, write_retained_file
from headrace.spool.scan import UnreadableRange
from headrace.spool.segment import DONE, SEGMENT_SUFFIX, WAITING, Segment

log = logging.getLogger(__name__)

MAX_HINT_DISTANCE = 2**31  # a hint farther ahead than this belongs to another spool


@dataclass
class RecoveryResult:
    segments: list[Segment] = field(default_factory=list[Segment])
    marks: dict[str, str] = field(default_factory=dict[str, str])
    leases: dict[int, int] = field(default_factory=dict[int, int])  # of unfinished records
    places: dict[int, int] = field(default_factory=dict[int, int])  # positions other than the sequence number
    next_sequence: int = 1
    first_void: int = 1  # numbers from here up to next_sequence are skipped: they may have been used in memory
    ledger: Ledger = field(default_factory=Ledger)  # has counted the damage
    reusable: Segment | None = None  # the last segment, if it is empty and can be written to


def recover(files: Files, folder: Path) -> RecoveryResult:
    """Read every segment, record losses and repair the tail of the last one."""
    result = RecoveryResult()
    _discard_leftovers(files, folder)
    found = scan_directory(files, folder)
    # Only at the end: in the middle, even an unidentified file accounts for its sequence numbers.
    if found and found[-1].is_unidentified:
        _quarantine_segment(files, folder, found.pop().segment, result)
    for each in found:
        _record_losses(files, folder, each, result)
    if found:
        _repair_tail(files, folder, found[-1], result)
    result.marks = collect_marks(found)
    _join_parts(found, result)
    _restore_numbering(found, read_next_sequence_hint(files, folder), result)
    result.segments = [each.segment for each in found]
    last = found[-1] if found else None
    if last and last.is_empty and last.segment.base == result.next_sequence and dict(last.marks) == result.marks:
        result.reusable = last.segment
    return result


def _discard_leftovers(files: Files, folder: Path) -> None:
    names = set(files.names(folder))
    for name in names:
        orphan = name.endswith(SUFFIX) and name.removesuffix(SUFFIX) + SEGMENT_SUFFIX not in names
        if orphan or name.endswith(".tmp"):
            discard(files, folder / name)


def _quarantine_segment(files: Files, folder: Path, segment: Segment, result: RecoveryResult) -> None:
    size = files.size(segment.path)
    if size:
        unknown = UnreadableRange(0, size, "not a segment")
        result.ledger.quarantined += quarantine_range(files, folder, segment, unknown, (0, -1))
    segment.close()
    discard(files, segment.path)
    discard(files, segment.journal.path)


def _record_losses(files: Files, folder: Path, each: SegmentInventory, result: RecoveryResult) -> None:
    segment = each.segment
    for hole, held in each.lost_ranges:
        result.ledger.quarantined += quarantine_range(files, folder, segment, hole, held)
    for first, last in each.missing:
        result.ledger.count_corrupt_at_open(last - first + 1)
        segment.journal.note(NoteKind.CORRUPT, first, last - first + 1)
        log.error(
            "%s: lost records %d to %d to corruption; any bytes left of them are in %s/",
            *(segment.path, first, last, QUARANTINE),
            extra={"action": "spool_corrupt"},
        )
    result.leases |= each.leases
    result.ledger.damaged_notes += each.damaged_notes


def _repair_tail(files: Files, folder: Path, each: SegmentInventory, result: RecoveryResult) -> None:
    """Truncate a torn write at the end of the last segment and sync it. The segment gets no more records, so nothing
    follows an uncertain tail."""
    segment = each.segment
    if each.torn is not None:
        result.ledger.torn += 1
        data = segment.reader.read(each.torn.at, each.torn.end - each.torn.at)
        if data.count(0) != len(data):
            result.ledger.quarantined += quarantine_range(files, folder, segment, each.torn, (0, -1))
        if segment.truncate_tail():
            each.file_size = segment.size
    if not each.is_empty:
        try:
            segment.sync()
            segment.journal.note(NoteKind.DURABLE, max(segment.last, each.durable))
        except OSError as error:
            log.warning("could not sync %s: %s", segment.path, error, extra={"action": "spool_sync"})
        segment.stop_writing()


def quarantine_range(files: Files, folder: Path, segment: Segment, hole: UnreadableRange, held: SequenceRange) -> bool:
    """Copy an unreadable range to quarantine/, with facts about it. Return False if that failed, which is logged."""
    facts = {
        "segment": segment.path.name,
        "offset": hole.at,
        "length": hole.end - hole.at,
        "reason": hole.reason,
        "sequences": list(held) if held[0] <= held[1] else [],
    }
    try:
        data = segment.reader.read(hole.at, hole.end - hole.at)
        write_retained_file(files, folder / QUARANTINE, f"{segment.path.stem}-{hole.at:010d}", facts, data)
    except OSError as error:  # the bytes stay in the segment until it is finished
        log.warning(
            "%s: could not copy damaged bytes to quarantine/: %s",
            *(segment.path, error),
            extra={"action": "spool_quarantine"},
        )
        return False
    return True


def _join_parts(found: list[SegmentInventory], result: RecoveryResult) -> None:
    """Decide for each replaced record whether its parts or the record itself is kept: the parts if all of them are
    there or the record is finished, otherwise the record."""
    groups: dict[int, list[tuple[Segment, ScannedPart]]] = {}
    for each in found:
        for part in each.parts:
            groups.setdefault(part.part.replaced, []).append((each.segment, part))
    for replaced, members in sorted(groups.items()):
        original = next((each.segment for each in found if is_live(each.segment, replaced)), None)
        if original is None:
            continue
        if len({member.part.number for _, member in members}) == members[0][1].part.total:
            _finish_record(original, replaced, NoteKind.REPLACED)
        else:
            for segment, member in members:
                _finish_record(segment, member.sequence, NoteKind.DROPPED)
    for members in groups.values():  # in a second pass: a part may have been replaced itself
        for segment, member in members:
            _place_part(segment, member, result)


def _place_part(segment: Segment, member: ScannedPart, result: RecoveryResult) -> None:
    index = segment.find_index(member.sequence)
    if index is not None and segment.states[index] == WAITING:
        segment.mark_taken(index)
        result.places[member.sequence] = member.place


def _finish_record(segment: Segment, sequence: int, kind: NoteKind) -> None:
    """Mark a record as finished in the index and the journal; the outcome was decided before the crash."""
    index = segment.find_index(sequence)
    if index is not None and segment.states[index] != DONE:
        segment.mark_done(index)
        segment.journal.note(kind, sequence)


def _restore_numbering(found: list[SegmentInventory], hint: int, result: RecoveryResult) -> None:
    """Choose the next sequence number so that none is reused, not even one that existed only in memory before a
    crash."""
    for each in found:
        known = max([each.segment.last, each.durable, *(last for _, last in each.missing)])
        result.first_void = max(result.first_void, each.segment.base, known + 1)
        result.next_sequence = max(result.next_sequence, result.first_void, each.reserved + 1)
    if not found or hint - result.next_sequence < MAX_HINT_DISTANCE:
        result.next_sequence = max(result.next_sequence, hint)
