"""A segment: an append-only file of records, with a compact index.

The file begins with its header, written twice, because the marks in it may exist nowhere else. Records follow in the
order of their sequence numbers, without gaps: if a number is missing, its record was lost and can be counted
(`inventory.py`).

The index takes 13 bytes per record. This module takes no locks: one thread writes; reads are positional and use their
own handle.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from struct import Struct
from typing import NamedTuple

import google_crc32c

from headrace.errors import SpoolFormatError
from headrace.spool.files import READ_AHEAD, FileReader, Files, write_atomically
from headrace.spool.journal import SUFFIX, Journal
from headrace.spool.record import (
    HEADER_BYTES,
    NO_PAIRS,
    Pairs,
    SpoolRecord,
    UnreadableRecord,
    decode_record,
    decode_record_header,
    decode_records,
    pack_extras,
    unpack_extras,
)

SEGMENT_MAGIC = b"HRSPOOL\n"
SEGMENT_VERSION = 1
SEGMENT_SUFFIX = ".seg"
NAME_DIGITS = 16
# magic, version, zero, length of one copy, salt, base sequence, created_at_us, reserved
_HEADER = Struct("<8sHHIIQQQ")
_CHECK = Struct("<I")
LARGEST_HEADER = 2**24  # marks are small; a longer header is treated as invalid

WAITING, OUT, DONE = 0, 1, 2  # OUT: leased, or waiting outside the segment's own order


class SegmentHeader(NamedTuple):
    salt: int
    base: int
    created_at_us: int
    reserved: int  # sequence numbers up to this one may have been used
    marks: Pairs
    length: int  # in bytes, of one copy


def format_segment_name(base: int) -> str:
    return f"{base:0{NAME_DIGITS}x}{SEGMENT_SUFFIX}"


def parse_segment_name(name: str) -> int | None:
    stem, dot, suffix = name.partition(".")
    if dot + suffix != SEGMENT_SUFFIX or len(stem) != NAME_DIGITS:
        return None
    try:
        return int(stem, 16)
    except ValueError:
        return None


def encode_header(salt: int, base: int, created_at_us: int, reserved: int, marks: Pairs) -> bytes:
    """Return both copies of the header."""
    packed = pack_extras("", NO_PAIRS, marks)
    length = _HEADER.size + len(packed) + _CHECK.size
    one = _HEADER.pack(SEGMENT_MAGIC, SEGMENT_VERSION, 0, length, salt, base, created_at_us, reserved) + packed
    return (one + _CHECK.pack(google_crc32c.value(one))) * 2


def decode_header(data: bytes, base: int) -> SegmentHeader | None:
    """Return the first valid copy of the header, if it belongs to a file of this name; None otherwise."""
    at = data.find(SEGMENT_MAGIC)
    while at >= 0:
        found = _parse_header(data, at)
        if found is not None and found.base == base:
            return found
        at = data.find(SEGMENT_MAGIC, at + 1)
    return None


def _parse_header(data: bytes, at: int) -> SegmentHeader | None:
    if len(data) - at < _HEADER.size + _CHECK.size:
        return None
    _, version, _, length, salt, base, created_at_us, reserved = _HEADER.unpack_from(data, at)
    end = at + length - _CHECK.size
    if not _HEADER.size <= end - at <= len(data) - at - _CHECK.size:
        return None
    if _CHECK.unpack_from(data, end)[0] != google_crc32c.value(data[at:end]):
        return None
    if version > SEGMENT_VERSION:
        raise SpoolFormatError(
            f"A segment has format version {version}; this release reads up to {SEGMENT_VERSION}. Nothing was changed;"
            " use the release that wrote it."
        )
    try:
        packed = data[at + _HEADER.size : end]
        marks = unpack_extras(packed, has_part=False)[2] if packed else NO_PAIRS
    except UnreadableRecord:
        return None
    return SegmentHeader(salt, base, created_at_us, reserved, marks, length)


class Segment:
    """A segment file, its journal, and the index of its records."""

    def __init__(self, files: Files, path: Path, header: SegmentHeader, journal: Journal) -> None:
        self.path = path
        self.base = header.base
        self.salt = header.salt
        self.created_at_us = header.created_at_us
        self.journal = journal
        self.reader = FileReader(files, path)
        self.start = 2 * header.length  # offset of the first record
        self.size = self.start  # offset of the next record
        self.last = header.base - 1  # highest sequence number it accounts for
        self.live = 0  # unfinished records
        self.fresh = 0  # of these, those waiting in the segment's own order
        self.offsets = array("I")
        self.lengths = array("I")  # in the file
        self.charges = array("I")  # bytes that each record counts against max_bytes
        self.states = bytearray()
        self._runs: list[int] = []  # first sequence number of each run without gaps …
        self._run_at: list[int] = []  # … and its index in the arrays
        self._run_end = -1
        self._low = 0  # every record before this index is done
        self._files = files
        self._writer: int | None = None

    @classmethod
    def create(cls, files: Files, folder: Path, base: int, marks: Pairs, reserved: int, now_us: int) -> Segment:
        """Create an empty segment, durable together with its name. Replaces a file of this name that has nothing to
        keep."""
        salt = int.from_bytes(os.urandom(4), "little") or 1
        data = encode_header(salt, base, now_us, reserved, marks)
        path = folder / format_segment_name(base)
        write_atomically(files, path, data, sync=False)
        journal = Journal(files, path.with_suffix(SUFFIX), salt)
        if journal.path.name in files.names(folder):
            files.remove(journal.path)  # journal of the replaced file: it has another salt and is invalid
        journal.create()
        files.sync_directory(folder)
        return cls(files, path, SegmentHeader(salt, base, now_us, reserved, marks, len(data) // 2), journal)

    def __len__(self) -> int:
        return len(self.offsets)

    # Index

    def add(self, sequence: int, offset: int, length: int, charge: int) -> None:
        self.add_run(sequence, (offset,), (length,), (charge,))

    def add_run(self, first: int, offsets: Sequence[int], lengths: Sequence[int], charges: Sequence[int]) -> None:
        """Add records with consecutive sequence numbers to the index."""
        count = len(offsets)
        if first != self._run_end:
            self._runs.append(first)
            self._run_at.append(len(self.offsets))
        self.offsets.extend(offsets)
        self.lengths.extend(lengths)
        self.charges.extend(charges)
        self.states.extend(bytes((WAITING,)) * count)
        self._run_end = first + count
        self.last = first + count - 1
        self.live += count
        self.fresh += count

    def find_index(self, sequence: int) -> int | None:
        if len(self._runs) == 1:  # true for most segments
            index = sequence - self._runs[0]
            return index if 0 <= index < len(self.offsets) else None
        run = bisect_right(self._runs, sequence) - 1
        if run < 0:
            return None
        index = self._run_at[run] + sequence - self._runs[run]
        end = self._run_at[run + 1] if run + 1 < len(self._run_at) else len(self.offsets)
        return index if index < end else None

    def get_sequence(self, index: int) -> int:
        if len(self._runs) == 1:
            return self._runs[0] + index
        run = bisect_right(self._run_at, index) - 1
        return self._runs[run] + index - self._run_at[run]

    def find_next_fresh(self, index: int) -> int:
        """Return the index of the next waiting record from `index` on, or -1."""
        return self.states.find(WAITING, index) if self.fresh else -1

    def find_first_live(self) -> int:
        """Return the index of the oldest unfinished record; there must be one."""
        while self.states[self._low] == DONE:
            self._low += 1
        return self._low

    def list_live_sequences(self) -> list[int]:
        return [self.get_sequence(index) for index, state in enumerate(self.states) if state != DONE]

    def mark_taken(self, index: int) -> bool:
        """Mark a waiting record as taken (leased, or waiting elsewhere). Return False if it was not waiting."""
        if self.states[index] != WAITING:
            return False
        self.states[index] = OUT
        self.fresh -= 1
        return True

    def mark_run_taken(self, index: int, most: int) -> int:
        """Mark waiting records from `index` on as taken, as long as their sequence numbers are consecutive. Return how
        many."""
        run = bisect_right(self._run_at, index)
        end = self._run_at[run] if run < len(self._run_at) else len(self.states)
        end = min(end, index + most)
        taken = self.states.find(OUT, index, end)
        done = self.states.find(DONE, index, end)
        end = min(each for each in (taken, done, end) if each >= 0)
        self.states[index:end] = bytes((OUT,)) * (end - index)
        self.fresh -= end - index
        return end - index

    def sum_live_charges(self) -> int:
        """Return the charge in bytes of all unfinished records."""
        if self.live == len(self.states):
            return sum(self.charges)
        return sum(charge for charge, state in zip(self.charges, self.states, strict=True) if state != DONE)

    def mark_run_done(self, index: int, count: int) -> int:
        """Mark taken records as done. Return their charge in bytes."""
        self.states[index : index + count] = bytes((DONE,)) * count
        self.live -= count
        return sum(self.charges[index : index + count])

    def mark_done(self, index: int) -> int:
        """Mark a record as done. Return its charge in bytes."""
        if self.states[index] == WAITING:
            self.fresh -= 1
        self.states[index] = DONE
        self.live -= 1
        return self.charges[index]

    # Reading

    def read(self, index: int, attempts: int) -> SpoolRecord:
        """Read a record. Raises UnreadableRecord if its bytes are not what was written, OSError if they cannot be
        read."""
        at, end = self.byte_range(index)
        here = self._load_window(at, end - at)
        return decode_record(self.reader.window, here, here + end - at, self.salt, attempts)

    def read_run(self, index: int, attempts: Sequence[int]) -> list[SpoolRecord]:
        """Read consecutive records up to the first unreadable one; `read` raises the error for that one."""
        records: list[SpoolRecord] = []
        end = index + len(attempts)
        while index < end:
            at = self.offsets[index]
            stop = bisect_right(self.offsets, at + READ_AHEAD, index, end)
            try:
                here = self._load_window(at, self.byte_range(stop - 1)[1] - at)
            except OSError:
                break  # raised again by `read`
            starts = [offset - at + here for offset in self.offsets[index:stop]]
            tried = attempts[len(records) :]
            records += decode_records(self.reader.window, starts, self.lengths[index:stop], self.salt, tried)
            index = end - len(attempts) + len(records)
            if index < stop:
                break
        return records

    def read_ahead(self, index: int, attempts: int, most: int, most_bytes: int) -> list[SpoolRecord]:
        """Read a record and the waiting ones after it, up to `most` records and `most_bytes`. Raises as `read` does."""
        end, room = index + 1, most_bytes - self.charges[index]
        last = min(index + most, len(self.states))
        while end < last and self.states[end] == WAITING and room >= self.charges[end]:
            room -= self.charges[end]
            end += 1
        records = self.read_run(index, bytes(end - index))
        if not records:
            return [self.read(index, attempts)]
        if attempts:
            records[0] = records[0]._replace(attempts=attempts)
        return records

    def byte_range(self, index: int) -> tuple[int, int]:
        """Return the byte offsets of a record's start and end."""
        at = self.offsets[index]
        return at, at + self.lengths[index]

    def read_put_at(self, index: int) -> float | None:
        """Return the unix time at which a record was put; None if its header cannot be read."""
        try:
            data = self.reader.read(self.offsets[index], HEADER_BYTES)
        except OSError:
            return None
        head = decode_record_header(data, 0, self.salt)
        return None if head is None else head.put_at_us / 1e6

    def _load_window(self, at: int, length: int) -> int:
        return self.reader.load(at, length, self.size)  # never beyond `size`: bytes there may be rewritten

    # Writing

    def append(self, pieces: Sequence[bytes], total: int, write_buffer: int) -> None:
        """Append to the file. If this raises, `truncate_tail` restores its previous size."""
        if self._writer is None:
            self._writer = self._files.open_append(self.path)
        if total <= write_buffer:
            self._files.write(self._writer, b"".join(pieces))
            return
        batch: list[bytes] = []
        length = 0
        for piece in pieces:
            if batch and length + len(piece) > write_buffer:
                self._files.write(self._writer, b"".join(batch))
                batch, length = [], 0
            batch.append(piece)
            length += len(piece)
        if batch:
            self._files.write(self._writer, b"".join(batch))

    def sync(self) -> None:
        """Sync everything written to the file, by this process or an earlier one."""
        if self._writer is None:
            self._writer = self._files.open_append(self.path)
        self._files.sync(self._writer)

    def truncate_tail(self) -> bool:
        """Truncate the file to `size` through a new handle. Return False if that failed; the caller must then stop
        writing to this segment."""
        self.stop_writing()
        try:
            handle = self._files.open_append(self.path)
            try:
                self._files.truncate(handle, self.size)
            finally:
                self._files.close(handle)
        except OSError:
            return False
        return True

    def stop_writing(self) -> None:
        if self._writer is not None:
            self._files.close(self._writer)
            self._writer = None

    def close(self) -> None:
        self.stop_writing()
        self.journal.close()
        self.reader.close()

    def remove(self) -> None:
        """Delete the segment, then its journal: a segment without its journal would deliver every record again."""
        self.close()
        self._files.remove(self.path)
        self._files.sync_directory(self.path.parent)
        self._files.remove(self.journal.path)
