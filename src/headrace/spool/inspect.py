"""Read a spool directory without opening the spool. Takes no lock and writes nothing, so another process may have the
spool open; then the result is a snapshot in which the last write may look incomplete."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headrace.errors import SpoolError
from headrace.spool.directory_lock import is_locked, read_holder
from headrace.spool.files import Files
from headrace.spool.inventory import ProgressCallback, SegmentInventory, collect_marks, scan_directory
from headrace.spool.record import Pairs
from headrace.spool.retained_files import DEAD, QUARANTINE, RetainedFile, list_retained_files


@dataclass(frozen=True)
class SegmentInfo:
    name: str
    base: int
    last: int
    created_at: float  # unix time; 0 if the header is damaged
    file_bytes: int
    journal_bytes: int
    records: int  # readable
    pending: int  # of these, not finished


@dataclass(frozen=True)
class SpoolFinding:
    """A `problem` has lost or may lose data, a `note` has not."""

    grade: Literal["problem", "note"]
    segment: str
    text: str
    records: int = 0  # number of records lost


@dataclass(frozen=True)
class Inspection:
    path: Path
    in_use: bool  # opened by this or another process
    holder: str  # its process id, if known
    segments: list[SegmentInfo]
    pending: int
    pending_bytes: int  # as put, uncompressed
    disk_bytes: int
    oldest_put_at: float | None
    newest_id: int
    marks: Pairs
    attempts: dict[int, int]  # of pending records that were leased before, by id
    quarantined: int
    dead: int
    findings: list[SpoolFinding]  # empty if the spool is intact


def inspect_spool(
    path: Path, *, files: Files | None = None, progress: ProgressCallback = lambda _done, _total: None
) -> Inspection:
    """Read all segments and journals of a spool, and check every checksum and sequence number. Takes some seconds per
    gigabyte, hence `progress`. Raises SpoolError if there is no spool."""
    files = files or Files()
    path = path.absolute()
    if not path.is_dir() and not files.names(path):
        raise SpoolError(f"There is no spool at {path}.")
    found = scan_directory(files, path, progress)
    try:
        return Inspection(
            path=path,
            in_use=is_locked(files, path),
            holder=read_holder(files, path),
            segments=[_describe_segment(each) for each in found],
            pending=sum(each.segment.live for each in found),
            pending_bytes=sum(each.segment.sum_live_charges() for each in found),
            disk_bytes=sum(each.file_size + each.segment.journal.size for each in found),
            oldest_put_at=_read_oldest_put_at(found),
            newest_id=max((each.segment.last for each in found), default=0),
            marks=collect_marks(found),
            attempts={seq: times for each in found for seq, times in each.leases.items()},
            quarantined=len(list_quarantine(path, files=files)),
            dead=len(list_dead(path, files=files)),
            findings=[finding for each in found for finding in _list_findings(each)],
        )
    finally:
        for each in found:
            each.segment.close()


def list_quarantine(path: Path, *, files: Files | None = None) -> list[RetainedFile]:
    return list_retained_files(path / QUARANTINE, files)


def list_dead(path: Path, *, files: Files | None = None) -> list[RetainedFile]:
    return list_retained_files(path / DEAD, files)


def _describe_segment(each: SegmentInventory) -> SegmentInfo:
    segment = each.segment
    return SegmentInfo(
        name=segment.path.name,
        base=segment.base,
        last=segment.last,
        created_at=segment.created_at_us / 1e6,
        file_bytes=each.file_size,
        journal_bytes=segment.journal.size,
        records=each.records,
        pending=segment.live,
    )


def _read_oldest_put_at(found: list[SegmentInventory]) -> float | None:
    for each in found:
        if each.segment.live:
            return each.segment.read_put_at(each.segment.find_first_live())
    return None


def _list_findings(each: SegmentInventory) -> list[SpoolFinding]:
    name = each.segment.path.name
    result: list[SpoolFinding] = []
    if not each.header_intact:
        result.append(SpoolFinding("problem", name, "header is damaged"))
    for first, last in each.missing:
        result.append(SpoolFinding("problem", name, f"records {first} to {last} are lost", last - first + 1))
    result += [
        SpoolFinding("problem", name, f"damaged bytes {hole.at} to {hole.end}: {hole.reason}")
        for hole, _ in each.lost_ranges
    ]
    if each.torn is not None:
        text = f"incomplete write of {each.torn.end - each.torn.at} bytes at the end; the next open truncates it"
        result.append(SpoolFinding("note", name, text))
    if each.damaged_notes:
        text = f"{each.damaged_notes} unreadable notes in the journal; finished records may be delivered again"
        result.append(SpoolFinding("problem", name, text))
    return result
