"""Iterate over the records of a segment file that may be damaged.

An unreadable range ends at the next valid record header of this segment. Headers contain the segment's salt, so the
bytes of another spool in a payload are not mistaken for a header.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from headrace.spool.files import READ_AHEAD, FileReader
from headrace.spool.record import (
    HEADER_BYTES,
    MAGIC,
    RecordBody,
    RecordHeader,
    RecordRun,
    UnreadableRecord,
    decode_body,
    decode_record_header,
    is_body_intact,
    read_salt,
    scan_run,
)


class ScannedRecord(NamedTuple):
    at: int
    head: RecordHeader
    body: RecordBody | None  # decoded only if it has extras (token, marks, part)


class UnreadableRange(NamedTuple):
    at: int
    end: int
    reason: str


class SegmentScan:
    """Iterates over a segment's records. Plain records come in runs, several times as fast as one by one; without
    `marks`, runs include records with extras."""

    def __init__(self, reader: FileReader, size: int, start: int, salt: int, *, marks: bool = True) -> None:
        self._marks = marks
        self._reader = reader
        self._size = size
        self._start = start
        self._salt = salt

    def __iter__(self) -> Iterator[ScannedRecord | RecordRun | UnreadableRange]:
        at, reader = self._start, self._reader
        while at < self._size:
            here = reader.load(at, HEADER_BYTES, self._size)
            run = scan_run(reader.window, here, reader.window_at, self._salt, with_extras=not self._marks)
            if run is not None:
                yield run
                at = run.end
                continue
            head = decode_record_header(reader.window, here, self._salt)
            if head is not None and at + head.length <= self._size:
                here = reader.load(at, head.length, self._size)
                yield self._check_record(at, here, head)
                at += head.length
            else:
                end = self._find_next_header(at + 1)
                yield UnreadableRange(at, end, "header" if head is None else "ends beyond the file")
                at = end

    def _check_record(self, at: int, here: int, head: RecordHeader) -> ScannedRecord | UnreadableRange:
        try:
            if head.extras:
                return ScannedRecord(at, head, decode_body(self._reader.window, here, head))
            if is_body_intact(self._reader.window, here, head):
                return ScannedRecord(at, head, None)
        except UnreadableRecord:
            pass  # treated like a checksum mismatch
        return UnreadableRange(at, at + head.length, "checksum")

    def _find_next_header(self, at: int) -> int:
        reader = self._reader
        while at < self._size:
            here = reader.load(at, min(READ_AHEAD, self._size - at), self._size)
            found = reader.window.find(MAGIC, here)
            if found < 0:
                at = max(at + 1, reader.window_at + len(reader.window) - len(MAGIC) + 1)
                continue
            at = reader.window_at + found
            here = reader.load(at, HEADER_BYTES, self._size)
            if decode_record_header(reader.window, here, self._salt) is not None:
                return at
            at += 1
        return self._size


def find_salt(reader: FileReader, size: int) -> int | None:
    """Return the salt of the first valid record, or None. Used when the segment's header is lost."""
    at = 0
    while at < size:
        window = reader.read(at, READ_AHEAD + HEADER_BYTES)
        here = window.find(MAGIC)
        while here >= 0:
            if decode_record_header(window, here, None) is not None:
                return read_salt(window, here)
            here = window.find(MAGIC, here + 1)
        at += READ_AHEAD
    return None
