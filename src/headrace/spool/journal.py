"""What became of a segment's records: a file of notes beside it, deleted with it.

Records are never rewritten; that one was leased or finished is a note of 20 bytes at the end of the journal. Each note
has its own checksum, mixed with the segment's salt, so a damaged one costs itself only: a lost "acked" brings a
record again, never takes one away. A note reaches the system at once (kill -9 loses none) and the disk with the next
`sync`. When there is no space, notes wait here and are written as soon as there is.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from struct import Struct
from typing import NamedTuple

import google_crc32c

from headrace.spool.files import Files

SUFFIX = ".notes"
_NOTE = Struct("<BxxxIQ")
_CHECK = Struct("<I")
_pack_note, _pack_check = _NOTE.pack, _CHECK.pack
NOTE_BYTES = _NOTE.size + _CHECK.size
_EMPTY = bytes(NOTE_BYTES)

_crc = google_crc32c.extend


class Kind(IntEnum):
    """The number is part of the format. Kinds up to `REPLACED` end a record."""

    ACKED = 1
    DROPPED = 2
    DEAD = 3
    CORRUPT = 4  # counted and quarantined; not to be counted again
    REPLACED = 5
    LEASED = 16
    RELEASED = 17  # a lease that does not count
    DURABLE = 32  # every record up to this one was synced
    RESERVED = 33  # sequence numbers up to this one may have been handed out
    GONE = 34  # these numbers lay in a segment that was finished and deleted
    SALT = 64  # the first note: the segment's salt, under a checksum without salt


# For those who need them with every record: to look a member up takes Python 3.11 as long as to pack a note.
ACKED, LEASED = Kind.ACKED, Kind.LEASED

ENDS = frozenset((Kind.ACKED, Kind.DROPPED, Kind.DEAD, Kind.CORRUPT, Kind.REPLACED))
_KINDS = {int(kind): kind for kind in Kind}


class Note(NamedTuple):
    """About so many sequence numbers from `sequence` on."""

    kind: Kind
    sequence: int
    run: int = 1


def encode_note(salt: int, kind: int, sequence: int, count: int = 1) -> bytes:
    data = _pack_note(kind, count, sequence)
    return data + _pack_check(_crc(salt, data))


def decode_notes(salt: int, data: bytes) -> Iterator[Note | None]:
    """None for a note that cannot be believed. An unfinished one at the end is none at all."""
    for at in range(0, len(data) - NOTE_BYTES + 1, NOTE_BYTES):
        piece = data[at : at + _NOTE.size]
        kind, count, sequence = _NOTE.unpack(piece)
        if _CHECK.unpack_from(data, at + _NOTE.size)[0] == _crc(salt, piece) and kind in _KINDS:
            yield Note(_KINDS[kind], sequence, count)
        elif data[at : at + NOTE_BYTES] != _EMPTY:  # zeros: a block the file system never filled
            yield None


def salt_of(data: bytes) -> int | None:
    """The salt by the journal's own word, for a segment that can no longer tell it."""
    first = next(decode_notes(0, data[:NOTE_BYTES]), None)
    return first.sequence if first is not None and first.kind is Kind.SALT else None


class Journal:
    """Appends notes. Not thread-safe; the spool's lock is around it."""

    def __init__(self, files: Files, path: Path, salt: int, size: int = 0) -> None:
        self.path = path
        self.dirty = False  # written and not synced
        self.size = size
        self._files = files
        self._salt = salt
        self._handle: int | None = None
        self._waiting: list[bytes] = []  # found no space

    def create(self) -> None:
        """An empty one, so that its name is synced together with the segment's."""
        self._handle = self._open()

    def note(self, kind: int, sequence: int, count: int = 1) -> None:
        data = _pack_note(kind, count, sequence)
        self.write(data + _pack_check(_crc(self._salt, data)))

    def write(self, notes: bytes) -> None:
        """Never raises for want of space: what the notes say is true in memory already."""
        if self._waiting:
            notes = b"".join((*self._waiting, notes))
        try:
            if self._handle is None:
                self._handle = self._open()
            self._files.write(self._handle, notes)
        except OSError:
            self._waiting = [notes]
            self.close()  # opening it again cuts off what was written of them
            return
        if self._waiting:
            self._waiting = []
        self.size += len(notes)
        self.dirty = True

    @property
    def needs_sync(self) -> bool:
        return self.dirty or bool(self._waiting)

    def sync(self) -> None:
        if self._waiting:
            self.write(b"")
        if self.dirty and self._handle is not None:
            self.dirty = False  # notes that come meanwhile are for the next one
            try:
                self._files.sync(self._handle)
            except OSError:
                self.dirty = True
                raise

    def close(self) -> None:
        if self._handle is not None:
            self._files.close(self._handle)
            self._handle = None

    def _open(self) -> int:
        """An unfinished note, of a crash or of a write that failed, would shift all that follow: cut it off."""
        handle = self._files.open_append(self.path)
        self.size -= self.size % NOTE_BYTES
        try:
            self._files.truncate(handle, self.size)
            if not self.size:
                self._files.write(handle, encode_note(0, Kind.SALT, self._salt))
                self.size = NOTE_BYTES
        except OSError:
            self._files.close(handle)
            raise
        return handle


def read_notes(salt: int, data: bytes) -> tuple[list[Note], int]:
    """The notes, and how many were damaged."""
    has_salt = salt_of(data) is not None
    found = list(decode_notes(salt, data[NOTE_BYTES:] if has_salt else data))
    notes = [note for note in found if note is not None]
    return notes, len(found) - len(notes)
