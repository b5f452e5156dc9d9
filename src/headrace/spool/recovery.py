"""Recover a spool directory after a crash or damage.

Intact records are kept. Lost records are counted, their bytes are copied to quarantine/, and the journal notes them, so
that they are not counted again at the next open. Incomplete writes are truncated. Nothing is overwritten.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path

from headrace.spool.aside import QUARANTINE, set_aside
from headrace.spool.files import Files, discard
from headrace.spool.journal import SUFFIX, Kind
from headrace.spool.meta import next_sequence_hint, read_meta
from headrace.spool.scan import Hole
from headrace.spool.segment import DONE, SEGMENT_SUFFIX, WAITING, Segment
from headrace.spool.survey import PartRecord, Progress, Stretch, Surveyed, is_live, marks_of, survey

log = logging.getLogger(__name__)

FARTHEST_HINT = 2**31  # a hint farther ahead than this belongs to another spool


@dataclass
class Recovered:
    """Content of a recovered directory."""

    segments: list[Segment] = field(default_factory=list[Segment])
    marks: dict[str, str] = field(default_factory=dict[str, str])
    leases: dict[int, int] = field(default_factory=dict[int, int])  # of unfinished records
    places: dict[int, int] = field(default_factory=dict[int, int])  # positions other than the sequence number
    next_sequence: int = 1
    first_void: int = 1  # numbers from here up to next_sequence are skipped: they may have been used in memory
    corrupt: int = 0
    torn: int = 0
    quarantined: int = 0
    damaged_notes: int = 0
    reusable: Segment | None = None  # the last segment, if it is empty and can be written to


def recover(files: Files, folder: Path, progress: Progress | None = None) -> Recovered:
    """Read every segment, record losses and repair the tail of the last one."""
    result = Recovered()
    _discard_leftovers(files, folder)
    found = survey(files, folder, progress)
    # Only at the end: in the middle, even an unidentified file accounts for its sequence numbers.
    if found and found[-1].is_nothing:
        _set_aside_whole(files, folder, found.pop().segment, result)
    for each in found:
        _settle(files, folder, each, result)
    if found:
        _settle_tail(files, folder, found[-1], result)
    result.marks = marks_of(found)
    _join_parts(found, result)
    _number(found, next_sequence_hint(read_meta(files, folder)), result)
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


def _set_aside_whole(files: Files, folder: Path, segment: Segment, result: Recovered) -> None:
    size = files.size(segment.path)
    if size:
        _quarantine(files, folder, segment, Hole(0, size, "not a segment"), (0, -1), result)
    segment.close()
    discard(files, segment.path)
    discard(files, segment.journal.path)


def _settle(files: Files, folder: Path, each: Surveyed, result: Recovered) -> None:
    segment = each.segment
    for hole, held in each.lost_holes:
        _quarantine(files, folder, segment, hole, held, result)
    for first, last in each.missing:
        result.corrupt += last - first + 1
        segment.journal.note(Kind.CORRUPT, first, last - first + 1)
        log.error(
            "%s: lost records %d to %d to corruption; any bytes left of them are in %s/",
            *(segment.path, first, last, QUARANTINE),
            extra={"action": "spool_corrupt"},
        )
    result.leases |= each.leases
    result.damaged_notes += each.damaged_notes


def _settle_tail(files: Files, folder: Path, each: Surveyed, result: Recovered) -> None:
    """Truncate a torn write at the end of the last segment and sync it. The segment gets no more records, so nothing
    follows an uncertain tail."""
    segment = each.segment
    if each.torn is not None:
        result.torn += 1
        data = segment.read_bytes(each.torn.at, each.torn.end - each.torn.at)
        if data.count(0) != len(data):
            _quarantine(files, folder, segment, each.torn, (0, -1), result)
        if segment.cut():
            each.file_size = segment.size
    if not each.is_empty:
        try:
            segment.sync()
            segment.journal.note(Kind.DURABLE, max(segment.last, each.durable))
        except OSError as error:
            log.warning("could not sync %s: %s", segment.path, error, extra={"action": "spool_sync"})
        segment.stop_writing()


def _quarantine(files: Files, folder: Path, segment: Segment, hole: Hole, held: Stretch, result: Recovered) -> None:
    try:
        quarantine(files, folder, segment, hole, held)
    except OSError as error:  # the bytes stay in the segment until it is finished
        log.warning(
            "%s: could not copy damaged bytes to quarantine/: %s",
            segment.path,
            error,
            extra={"action": "spool_quarantine"},
        )
        return
    result.quarantined += 1


def quarantine(files: Files, folder: Path, segment: Segment, hole: Hole, held: Stretch) -> None:
    """Copy an unreadable range to quarantine/, with facts about it. Raises OSError."""
    facts = {
        "segment": segment.path.name,
        "offset": hole.at,
        "length": hole.end - hole.at,
        "reason": hole.reason,
        "sequences": list(held) if held[0] <= held[1] else [],
    }
    data = segment.read_bytes(hole.at, hole.end - hole.at)
    set_aside(files, folder / QUARANTINE, f"{segment.path.stem}-{hole.at:010d}", facts, data)


def _join_parts(found: list[Surveyed], result: Recovered) -> None:
    """Decide for each replaced record whether its parts or the record itself is kept: the parts if all of them are
    there or the record is finished, otherwise the record."""
    groups: dict[int, list[tuple[Segment, PartRecord]]] = {}
    for each in found:
        for part in each.parts:
            groups.setdefault(part.part.replaced, []).append((each.segment, part))
    for replaced, members in sorted(groups.items()):
        original = next((each.segment for each in found if is_live(each.segment, replaced)), None)
        if original is None:
            continue
        if len({member.part.number for _, member in members}) == members[0][1].part.total:
            _end(original, replaced, Kind.REPLACED)
        else:
            for segment, member in members:
                _end(segment, member.sequence, Kind.DROPPED)
    for members in groups.values():  # in a second pass: a part may have been replaced itself
        for segment, member in members:
            _place(segment, member, result)


def _place(segment: Segment, member: PartRecord, result: Recovered) -> None:
    index = segment.index_of(member.sequence)
    if index is not None and segment.states[index] == WAITING:
        segment.take(index)
        result.places[member.sequence] = member.place


def _end(segment: Segment, sequence: int, kind: Kind) -> None:
    """Mark a record as finished in the index and the journal; the outcome was decided before the crash."""
    index = segment.index_of(sequence)
    if index is not None and segment.states[index] != DONE:
        segment.end(index)
        segment.journal.note(kind, sequence)


def _number(found: list[Surveyed], hint: int, result: Recovered) -> None:
    """Choose the next sequence number so that none is reused, not even one that existed only in memory before a
    crash."""
    for each in found:
        known = max([each.segment.last, each.durable, *(last for _, last in each.missing)])
        result.first_void = max(result.first_void, each.segment.base, known + 1)
        result.next_sequence = max(result.next_sequence, result.first_void, each.reserved + 1)
    if not found or hint - result.next_sequence < FARTHEST_HINT:
        result.next_sequence = max(result.next_sequence, hint)
