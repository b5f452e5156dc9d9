"""The segments of a directory: the one being written to, lookup by sequence number, and removal.

Methods are called with the spool's lock held, except those that do slow I/O: `open_segment`, `sync` and `rescan`, which
only the one thread that writes calls, `remove`, which deletes a segment that was already detached, and `make_ballast`.
"""

from __future__ import annotations

import logging
import os
import time
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from headrace.spool.files import FileReader, Files, discard, is_no_space, write_atomically
from headrace.spool.journal import NoteKind
from headrace.spool.options import FSYNC_BOUNDS_S
from headrace.spool.record import Pairs
from headrace.spool.scan import SegmentScan, UnreadableRange
from headrace.spool.segment import Segment

log = logging.getLogger(__name__)

FinishedSegment = tuple[Segment, Segment | None]
"""A finished segment, and the older segment whose journal notes its removal."""

BALLAST = "spool.ballast"
BALLAST_BYTES = 64 * 1024


class SegmentStore:
    def __init__(self, files: Files, folder: Path, segments: Sequence[Segment], lock: int) -> None:
        self.files = files
        self.folder = folder
        self.segments = list(segments)
        self.active: Segment | None = None
        self.rotations = 0
        self.ballast = False
        self._lock = lock  # handle of the lock of the directory
        self._bases = [each.base for each in self.segments]
        self._unread = deque(self.segments)  # segments with records in their own order, oldest first
        self._position = 0  # index in the first of these
        self._fsync_seconds = 0.0
        self._fsync_max_seconds = 0.0
        self._fsync_buckets = [0] * (len(FSYNC_BOUNDS_S) + 1)

    # Lookup

    def find_segment(self, sequence: int) -> Segment | None:
        at = bisect_right(self._bases, sequence) - 1
        return self.segments[at] if at >= 0 else None

    def find_next_fresh(self) -> tuple[Segment, int] | None:
        """Return segment and index of the oldest record still in its segment's order, or None."""
        while self._unread:
            segment = self._unread[0]
            found = segment.find_next_fresh(self._position)
            if found >= 0:
                self._position = found
                return segment, found
            self._position = len(segment)
            if segment is self.active or len(self._unread) == 1:
                return None  # more records may be added
            self._unread.popleft()
            self._position = 0
        return None

    def find_oldest_live(self) -> tuple[Segment, int] | None:
        for segment in self.segments:
            if segment.live:
                return segment, segment.find_first_live()
        return None

    # Writing

    def open_segment(self, base: int, marks: Pairs, reserved: int, *, use_ballast: bool) -> Segment:
        """Create an empty segment on disk. If the disk is full and `use_ballast`, delete the ballast file to make space
        for it."""
        now_us = time.time_ns() // 1000
        try:
            return Segment.create(self.files, self.folder, base, marks, reserved, now_us)
        except OSError as error:
            if not (use_ballast and is_no_space(error)):
                raise
            discard(self.files, self.folder / BALLAST)
            self.ballast = False
            return Segment.create(self.files, self.folder, base, marks, reserved, now_us)

    def adopt(self, segment: Segment) -> list[FinishedSegment]:
        """Write to this segment from now on. Return the segments that are finished thereby."""
        before = self.active
        if self.segments and self.segments[-1].base == segment.base:  # an empty segment of the same name was replaced
            self._detach(self.segments[-1])
        if self.active is not None:
            self.rotations += 1
        self.active = segment
        if segment not in self.segments:
            self.segments.append(segment)
            self._bases.append(segment.base)
            self._unread.append(segment)
        if before is not None and before is not segment:
            before.stop_writing()
            if not before.live and before in self.segments:
                return self.detach_finished(before)
        return []

    def sync(self, segment: Segment) -> None:
        began = time.perf_counter()
        segment.sync()
        elapsed = time.perf_counter() - began
        self._fsync_seconds += elapsed
        self._fsync_max_seconds = max(self._fsync_max_seconds, elapsed)
        self._fsync_buckets[bisect_left(FSYNC_BOUNDS_S, elapsed)] += 1

    def rescan(self, segment: Segment) -> list[UnreadableRange]:
        """Read a segment back through a new handle after a failed fsync. Return its unreadable ranges."""
        with closing(FileReader(self.files, segment.path)) as reader:
            scan = SegmentScan(reader, segment.size, segment.start, segment.salt)
            return [each for each in scan if isinstance(each, UnreadableRange)]

    # Removal

    def detach_finished(self, segment: Segment) -> list[FinishedSegment]:
        """Detach a finished segment and note the gap in the older segment's journal. Return it for `remove`."""
        at = self.segments.index(segment)
        older = self.segments[at - 1] if at > 0 else None
        if older is not None:  # records that the gap up to the next segment is no loss
            older.journal.note(NoteKind.GONE, segment.base, self.segments[at + 1].base - segment.base)
        self._detach(segment)
        return [(segment, older)]

    def _detach(self, segment: Segment) -> None:
        at = self.segments.index(segment)
        del self.segments[at], self._bases[at]
        if segment in self._unread:
            if self._unread[0] is segment:
                self._position = 0
            self._unread.remove(segment)

    def remove(self, segment: Segment, older: Segment | None) -> None:
        """Delete the files of a detached segment, once the older segment's note about the gap is on disk."""
        try:
            if older is not None:
                older.journal.sync()
            segment.remove()
        except OSError as error:  # the next open finds it finished again
            log.warning(
                "could not delete finished segment %s; retried at the next open: %s",
                *(segment.path, error),
                extra={"action": "spool_remove"},
            )

    def close(self) -> None:
        """Close all files and unlock the directory."""
        for segment in self.segments:
            segment.close()
        self.files.close(self._lock)

    # Ballast: a small file that reserves space for a full disk. Deleting it makes room for a new segment, so that the
    # previous one, whose records are finished or may be dropped, can be deleted.

    def make_ballast(self) -> None:
        """Create the ballast file if there is space. It has random bytes, because some file systems do not store
        zeros."""
        path = self.folder / BALLAST
        try:
            if BALLAST not in self.files.names(self.folder):
                write_atomically(self.files, path, os.urandom(BALLAST_BYTES), sync=False)
            self.ballast = True
        except OSError:
            self.ballast = False

    def stats(self) -> dict[str, Any]:
        """Return the statistics of the files, named as the fields of `SpoolStats`."""
        return {
            "segments": len(self.segments),
            "rotations": self.rotations,
            "disk_bytes": sum(each.size + each.journal.size for each in self.segments),
            "fsyncs": sum(self._fsync_buckets),
            "fsync_seconds": self._fsync_seconds,
            "fsync_max_seconds": self._fsync_max_seconds,
            "fsync_buckets": tuple(self._fsync_buckets),
        }
