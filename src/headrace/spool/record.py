"""One record: what `lease` hands out, and how it lies in a segment.

The bytes are described in docs/reference/spool-format.md, enough for a reader in another language; change both
together. Promises: a length is believed only after the header's own checksum held, so no damage makes us allocate by a
wild number; a body is returned only if the checksum over header and body holds. No I/O here.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from struct import Struct
from struct import error as StructError
from types import MappingProxyType
from typing import NamedTuple

import google_crc32c
from cramjam import snappy

MAGIC = b"HRRC"
VERSION = 1
SNAPPY, VOID, EXTRAS, PART = 1, 2, 4, 8

# magic, header checksum, record checksum, then the fields: salt, version, flags, zero, sequence, place, durable,
# put_at_us, and the lengths of extras, stored and raw payload
HEADER = Struct("<4sIIIBBHQQQQIII")
HEADER_BYTES = HEADER.size
FIELDS = Struct("<IBBHQQQQIII")
FIELDS_AT = HEADER_BYTES - FIELDS.size
_pack_start, _pack_check, _pack_fields = Struct("<4sI").pack, Struct("<I").pack, FIELDS.pack
_OF_RECORD = Struct("<8xIIxB2xQ16xQIII")  # the same header, without what only a scan needs
_OF_RUN = Struct("<4sIIIBB2xQ8xQ8xIII")  # and without what a scan of plain records does not need
HEADER_CHECK_AT, RECORD_CHECK_AT = 4, 8
SMALLEST_TO_COMPRESS = 64  # below, snappy's own framing eats what it saves
MAX_LENGTH = 2**32 - 1

Pairs = Mapping[str, str]
NO_PAIRS: Pairs = MappingProxyType({})

_crc = google_crc32c.extend
squeeze, decompress = snappy.compress_raw, snappy.decompress_raw


class Record(NamedTuple):
    """A leased record. It comes back unless it is acked, rejected or replaced. (A tuple: a frozen dataclass takes three
    times as long to make, which is a good part of what it takes to read a record.)"""

    id: int  # sequence number: strictly increasing over the life of the directory, never reused
    payload: bytes
    token: str  # deduplication token; travels with the record
    meta: Pairs  # small facts for the destination, such as table and part
    attempts: int  # how often it was leased before, without an end; survives restarts
    put_at: float  # unix time of the put


@dataclass(frozen=True, slots=True)
class NewRecord:
    """What `put_many` and `replace` take."""

    payload: bytes
    token: str = ""
    meta: Pairs = field(default_factory=dict[str, str])


class Part(NamedTuple):
    """One of the records that took another one's place."""

    replaced: int
    number: int
    total: int


class Head(NamedTuple):
    """A header whose checksum held."""

    flags: int
    sequence: int
    place: int  # where it stands in the order: its own sequence, or that of the record it replaces a part of
    durable: int  # every record up to this one was on disk when this one was written
    put_at_us: int
    extras: int
    stored: int
    raw: int
    record_check: int

    @property
    def length(self) -> int:
        return HEADER_BYTES + self.extras + self.stored

    @property
    def is_void(self) -> bool:
        return bool(self.flags & VOID)


class Body(NamedTuple):
    payload: bytes
    token: str
    meta: Pairs
    marks: Pairs
    part: Part | None


class Unreadable(Exception):
    """The bytes are not what was written. Never leaves this package."""


def encode(
    salt: int,
    sequence: int,
    payload: bytes,
    put_at_us: int,
    durable: int,
    place: int | None = None,
    extras: bytes = b"",
    flags: int = 0,
    compress: bool = True,
) -> bytes:
    """The record as it is appended."""
    pieces: list[bytes] = []
    encode_onto(pieces, salt, sequence, payload, put_at_us, durable, place, extras, flags, compress)
    return b"".join(pieces)


def encode_onto(
    pieces: list[bytes],
    salt: int,
    sequence: int,
    payload: bytes,
    put_at_us: int,
    durable: int,
    place: int | None,
    extras: bytes,
    flags: int,
    compress: bool,
) -> int:
    """Add the record's bytes to the pieces; how many. Compressed only where that makes it smaller."""
    stored = payload
    raw = length = len(payload)
    if compress and raw >= SMALLEST_TO_COMPRESS:
        squeezed = squeeze(payload)
        if len(squeezed) < raw:
            stored = bytes(squeezed)
            length = len(stored)
            flags |= SNAPPY
    if extras:
        flags |= EXTRAS
    where = sequence if place is None else place
    fields = _pack_fields(salt, VERSION, flags, 0, sequence, where, durable, put_at_us, len(extras), length, raw)
    body = extras + stored if extras else stored
    checked = _pack_check(_crc(_crc(0, fields), body)) + fields
    pieces += (_pack_start(MAGIC, _crc(0, checked)), checked, body)
    return HEADER_BYTES + len(body)


def encode_void(salt: int, first: int, last: int, *, durable: int, marks: Pairs = NO_PAIRS) -> bytes:
    """Says that the sequence numbers first … last hold nothing, so that their absence is no loss."""
    extras = pack_extras("", NO_PAIRS, marks) if marks else b""
    return encode(salt, last, b"", place=first, put_at_us=0, durable=durable, extras=extras, flags=VOID)


def decode_head(data: bytes, at: int, salt: int | None) -> Head | None:
    """The header at this place, or None if none can be believed. Without a salt, any segment's header will do."""
    if len(data) - at < HEADER_BYTES or data[at : at + 4] != MAGIC:
        return None
    _, header_check, record_check, found_salt, version, flags, _, *rest = HEADER.unpack_from(data, at)
    if header_check != _crc(0, data[at + RECORD_CHECK_AT : at + HEADER_BYTES]):
        return None
    if version != VERSION or (salt is not None and found_salt != salt):
        return None
    return Head._make((flags, *rest, record_check))


def salt_at(data: bytes, at: int) -> int:
    return HEADER.unpack_from(data, at)[3]


def body_holds(data: bytes, at: int, head: Head) -> bool:
    """Whether header and body, all of them in `data`, are what was written."""
    return _crc(0, data[at + FIELDS_AT : at + head.length]) == head.record_check


def decode_body(data: bytes, at: int, head: Head) -> Body:
    """Payload and company; raises Unreadable rather than return anything else than what was put."""
    if not body_holds(data, at, head):
        raise Unreadable("checksum")
    start = at + HEADER_BYTES + head.extras
    payload = data[start : at + head.length]
    if head.flags & SNAPPY:
        payload = unsqueeze(payload, head.raw)
    if not head.extras:
        return Body(payload, "", NO_PAIRS, NO_PAIRS, None)
    return Body(payload, *unpack_extras(data[at + HEADER_BYTES : start], bool(head.flags & PART)))


def decode_record(data: bytes, at: int, end: int, salt: int, attempts: int) -> Record:
    """A record whose place is known from the index: one checksum covers all of it, header included."""
    found = decode_records(data, (at,), (end - at,), salt, (attempts,))
    if not found:
        raise Unreadable("checksum" if end <= len(data) else "ends beyond the file")
    return found[0]


def decode_records(
    data: bytes, starts: Iterable[int], lengths: Iterable[int], salt: int, attempts: Iterable[int]
) -> list[Record]:
    """Several at once, which is most of what makes reading them quick. Ends before the first that does not hold."""
    records: list[Record] = []
    crc, unpack, new = _crc, _OF_RECORD.unpack_from, tuple.__new__
    size = len(data)
    for at, length, tried in zip(starts, lengths, attempts, strict=False):
        end = at + length
        if end > size or length < HEADER_BYTES:
            break
        check, found, flags, sequence, put_at_us, extras, stored, raw = unpack(data, at)
        if check != crc(0, data[at + FIELDS_AT : end]) or found != salt or HEADER_BYTES + extras + stored != length:
            break
        payload, token, meta = data[end - stored : end], "", NO_PAIRS
        try:
            if flags & SNAPPY:
                payload = unsqueeze(payload, raw)
            if extras:
                token, meta, _, _ = unpack_extras(data[at + HEADER_BYTES : end - stored], bool(flags & PART))
        except Unreadable:
            break
        # what Record(…) does, in half the time
        records.append(new(Record, (sequence, payload, token, meta, tried, put_at_us / 1e6)))
    return records


class Run(NamedTuple):
    """Plain records that follow each other, in the bytes and in their numbers."""

    first: int
    offsets: array[int]
    lengths: array[int]  # in the file
    raws: array[int]  # extras and payload, as they were put
    durable: int  # the highest
    end: int

    @property
    def last(self) -> int:
        return self.first + len(self.offsets) - 1


def scan_run(data: bytes, at: int, origin: int, salt: int, *, with_extras: bool) -> Run | None:
    """As many records from here on as hold and need no closer look: with voids, parts, gaps, damage, the end of the
    data, and extras unless told otherwise, it ends before them. `origin` is where the data begin in the file."""
    plain = (0, SNAPPY, EXTRAS, EXTRAS | SNAPPY)
    offsets, lengths, raws = array("I"), array("I"), array("I")
    add_offset, add_length, add_raw = offsets.append, lengths.append, raws.append
    crc, unpack, size = _crc, _OF_RUN.unpack_from, len(data)
    first = expected = -1
    highest = 0
    while at + HEADER_BYTES <= size:
        magic, header_check, check, found, version, flags, sequence, durable, extras, stored, raw = unpack(data, at)
        if magic != MAGIC or found != salt or version != VERSION:
            break
        if flags not in plain or (extras and not with_extras):
            break
        length = HEADER_BYTES + extras + stored
        end = at + length
        if end > size or (sequence != expected and expected >= 0):
            break
        if crc(0, data[at + FIELDS_AT : end]) != check:
            break
        if crc(0, data[at + RECORD_CHECK_AT : at + HEADER_BYTES]) != header_check:
            break
        if expected < 0:
            first = sequence
        expected = sequence + 1
        add_offset(origin + at)
        add_length(length)
        add_raw(extras + raw)
        if durable > highest:
            highest = durable
        at = end
    return Run(first, offsets, lengths, raws, highest, origin + at) if offsets else None


def unsqueeze(stored: bytes, raw: int) -> bytes:
    """Only for bytes whose checksum held: the length that snappy allocates is part of them."""
    try:
        payload = bytes(decompress(stored))
    except Exception as error:  # cramjam's own class has no stable name
        raise Unreadable("snappy") from error
    if len(payload) != raw:
        raise Unreadable("length")
    return payload


_LENGTH = Struct("<I")
_PART = Struct("<QII")


def pack_extras(token: str, meta: Pairs, marks: Pairs, part: Part | None = None) -> bytes:
    if not (token or meta or marks or part):
        return b""
    pieces = [_PART.pack(*part)] if part else []
    _add_text(pieces, token)
    for pairs in (meta, marks):
        pieces.append(_LENGTH.pack(len(pairs)))
        for key, value in pairs.items():
            _add_text(pieces, key)
            _add_text(pieces, value)
    return b"".join(pieces)


def _add_text(pieces: list[bytes], text: str) -> None:
    data = text.encode()
    pieces.append(_LENGTH.pack(len(data)))
    pieces.append(data)


def unpack_extras(data: bytes, has_part: bool) -> tuple[str, Pairs, Pairs, Part | None]:
    """Their checksum held, so they are what some writer wrote; another writer's mistake is still no crash."""
    try:
        part = Part(*_PART.unpack_from(data)) if has_part else None
        token, at = _take_text(data, _PART.size if has_part else 0)
        meta, at = _take_pairs(data, at)
        marks, at = _take_pairs(data, at)
    except (ValueError, IndexError, OverflowError, StructError) as error:
        raise Unreadable("extras") from error
    return token, meta, marks, part


def _take_pairs(data: bytes, at: int) -> tuple[Pairs, int]:
    count = _LENGTH.unpack_from(data, at)[0]
    at += _LENGTH.size
    if not count:
        return NO_PAIRS, at
    pairs: dict[str, str] = {}
    for _ in range(count):
        key, at = _take_text(data, at)
        pairs[key], at = _take_text(data, at)
    return pairs, at


def _take_text(data: bytes, at: int) -> tuple[str, int]:
    end = at + _LENGTH.size + _LENGTH.unpack_from(data, at)[0]
    if end > len(data):
        raise ValueError("text ends beyond the extras")
    return data[at + _LENGTH.size : end].decode(), end


def pack_pairs(pairs: Pairs) -> bytes:
    """Marks in a segment's header."""
    return pack_extras("", NO_PAIRS, pairs) if pairs else b""


def unpack_pairs(data: bytes) -> Pairs:
    return unpack_extras(data, False)[2] if data else NO_PAIRS


def newest_marks(sources: Sequence[Pairs]) -> dict[str, str]:
    """Merged in the order given: the last value of a key wins."""
    merged: dict[str, str] = {}
    for each in sources:
        merged.update(each)
    return merged
