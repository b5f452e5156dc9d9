"""Iterate over the records of a segment file, whatever its state.

An unreadable range ends at the next valid header of this segment; the salt in the header prevents a payload that
contains another spool's bytes from being taken for one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from headrace.spool.files import Files
from headrace.spool.record import (
    HEADER_BYTES,
    MAGIC,
    Body,
    Head,
    Run,
    Unreadable,
    body_holds,
    decode_body,
    decode_head,
    salt_at,
    scan_run,
)

READ_AHEAD = 2**20


class Found(NamedTuple):
    """An intact record."""

    at: int
    head: Head
    body: Body | None  # decoded only if it has extras (token, marks, part)


class Hole(NamedTuple):
    """A range of bytes that is not a valid record."""

    at: int
    end: int
    reason: str


class Scan:
    """Iterates over a segment's records through a window, because the file may be large. Plain records come in runs,
    several times as fast as one by one; without `marks`, runs include records with extras."""

    def __init__(self, files: Files, handle: int, size: int, start: int, salt: int, *, marks: bool = True) -> None:
        self._marks = marks
        self._files = files
        self._handle = handle
        self._size = size
        self._start = start
        self._salt = salt
        self._window = b""
        self._window_at = 0

    def __iter__(self) -> Iterator[Found | Run | Hole]:
        at = self._start
        while at < self._size:
            here = self._bring(at, HEADER_BYTES)
            run = scan_run(self._window, here, self._window_at, self._salt, with_extras=not self._marks)
            if run is not None:
                yield run
                at = run.end
                continue
            head = decode_head(self._window, here, self._salt)
            if head is not None and at + head.length <= self._size:
                here = self._bring(at, head.length)
                yield self._judge(at, here, head)
                at += head.length
            else:
                end = self._next_header(at + 1)
                yield Hole(at, end, "header" if head is None else "ends beyond the file")
                at = end

    def _judge(self, at: int, here: int, head: Head) -> Found | Hole:
        try:
            if head.extras:
                return Found(at, head, decode_body(self._window, here, head))
            if body_holds(self._window, here, head):
                return Found(at, head, None)
        except Unreadable:
            pass  # treated like a checksum mismatch
        return Hole(at, at + head.length, "checksum")

    def _bring(self, at: int, length: int) -> int:
        """Load these bytes into the window, as far as the file goes. Return their position in the window."""
        here = at - self._window_at
        if here < 0 or here + length > len(self._window):
            self._window = self._files.read(self._handle, min(max(length, READ_AHEAD), self._size - at), at)
            self._window_at, here = at, 0
        return here

    def _next_header(self, at: int) -> int:
        while at < self._size:
            here = self._bring(at, min(READ_AHEAD, self._size - at))
            found = self._window.find(MAGIC, here)
            if found < 0:
                at = max(at + 1, self._window_at + len(self._window) - len(MAGIC) + 1)
                continue
            at = self._window_at + found
            if decode_head(self._window, self._bring(at, HEADER_BYTES), self._salt) is not None:
                return at
            at += 1
        return self._size


def find_salt(files: Files, handle: int, size: int) -> int | None:
    """Return the salt of the first valid record, or None. Used when the segment's header is lost."""
    at = 0
    while at < size:
        window = files.read(handle, READ_AHEAD + HEADER_BYTES, at)
        here = window.find(MAGIC)
        while here >= 0:
            if decode_head(window, here, None) is not None:
                return salt_at(window, here)
            here = window.find(MAGIC, here + 1)
        at += READ_AHEAD
    return None
