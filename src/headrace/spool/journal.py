"""Journal of a segment: a file of notes about its records, deleted together with the segment.

Records are never rewritten. When a record is leased or finished, a note of 20 bytes is appended to the journal. Each
note has its own checksum, mixed with the segment's salt, so damage affects only the damaged note: if an `ACKED` note is
lost, its record is delivered again, and no damage removes a record. A note is passed to the operating system at once
(kill -9 loses none) and is on disk after the next `sync`. While the disk is full, notes wait in memory; they are
written as soon as there is space.
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


class NoteKind(IntEnum):
    """Kind of a note. The numbers are part of the file format. Kinds up to `REPLACED` finish a record."""

    ACKED = 1
    DROPPED = 2
    DEAD = 3
    CORRUPT = 4  # counted and quarantined already
    REPLACED = 5
    LEASED = 16
    RELEASED = 17  # undo a lease without counting an attempt
    DURABLE = 32  # every record up to this one was synced
    RESERVED = 33  # sequence numbers up to this one may have been handed out
    GONE = 34  # these numbers were in a segment that was finished and deleted
    SALT = 64  # the first note: the segment's salt, under a checksum without salt


# Constants for the hot path: looking up an enum member takes Python 3.11 as long as packing a note.
ACKED, LEASED = NoteKind.ACKED, NoteKind.LEASED

ENDS = frozenset((NoteKind.ACKED, NoteKind.DROPPED, NoteKind.DEAD, NoteKind.CORRUPT, NoteKind.REPLACED))
_KINDS = {int(kind): kind for kind in NoteKind}


class Note(NamedTuple):
    """A note about `run` consecutive sequence numbers from `sequence` on."""

    kind: NoteKind
    sequence: int
    run: int = 1


def encode_note(salt: int, kind: int, sequence: int, count: int = 1) -> bytes:
    data = _pack_note(kind, count, sequence)
    return data + _pack_check(_crc(salt, data))


def decode_notes(salt: int, data: bytes) -> Iterator[Note | None]:
    """Decode notes; None for each unreadable one. An incomplete note at the end is ignored."""
    for at in range(0, len(data) - NOTE_BYTES + 1, NOTE_BYTES):
        piece = data[at : at + _NOTE.size]
        kind, count, sequence = _NOTE.unpack(piece)
        if _CHECK.unpack_from(data, at + _NOTE.size)[0] == _crc(salt, piece) and kind in _KINDS:
            yield Note(_KINDS[kind], sequence, count)
        elif data[at : at + NOTE_BYTES] != _EMPTY:  # zeros: a block that the file system never filled
            yield None


def read_salt_note(data: bytes) -> int | None:
    """Return the salt stored in the journal's first note, or None. Used when the segment's header is unreadable."""
    first = next(decode_notes(0, data[:NOTE_BYTES]), None)
    return first.sequence if first is not None and first.kind is NoteKind.SALT else None


class Journal:
    """Appends notes to the file. Not thread-safe; callers hold the spool's lock."""

    def __init__(self, files: Files, path: Path, salt: int, size: int = 0) -> None:
        self.path = path
        self.dirty = False  # written and not synced
        self.size = size
        self._files = files
        self._salt = salt
        self._handle: int | None = None
        self._waiting: list[bytes] = []  # could not be written yet

    def create(self) -> None:
        """Create the file, so that its name is synced together with the segment's."""
        self._handle = self._open()

    def note(self, kind: int, sequence: int, count: int = 1) -> None:
        data = _pack_note(kind, count, sequence)
        self.write(data + _pack_check(_crc(self._salt, data)))

    def write(self, notes: bytes) -> None:
        """Append encoded notes. Never raises: the state in memory is already changed, so notes that cannot be written
        wait."""
        if self._waiting:
            notes = b"".join((*self._waiting, notes))
        try:
            if self._handle is None:
                self._handle = self._open()
            self._files.write(self._handle, notes)
        except OSError:
            self._waiting = [notes]
            self.close()  # reopening truncates a partial write
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
            self.dirty = False  # later notes belong to the next sync
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
        """Open the file and truncate an incomplete note, which would shift all later ones."""
        handle = self._files.open_append(self.path)
        self.size -= self.size % NOTE_BYTES
        try:
            self._files.truncate(handle, self.size)
            if not self.size:
                self._files.write(handle, encode_note(0, NoteKind.SALT, self._salt))
                self.size = NOTE_BYTES
        except OSError:
            self._files.close(handle)
            raise
        return handle


def read_notes(salt: int, data: bytes) -> tuple[list[Note], int]:
    """Return the readable notes, and the number of unreadable ones."""
    has_salt = read_salt_note(data) is not None
    found = list(decode_notes(salt, data[NOTE_BYTES:] if has_salt else data))
    notes = [note for note in found if note is not None]
    return notes, len(found) - len(notes)
