"""A record: as leased (`SpoolRecord`), and as bytes in a segment. This module does no I/O.

docs/reference/spool-format.md describes the bytes in enough detail to write a reader in another language; change both
together. Guarantees: a length is used only after the header's own checksum matched, so damage never causes a huge
allocation; a body is returned only if the checksum over header and body matches.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
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
_RECORD_VIEW = Struct("<8xIIxB2xQ16xQIII")  # the same header, with only the fields that decoding a record needs
_RUN_VIEW = Struct("<4sIIIBB2xQ8xQ8xIII")  # the same header, with only the fields that scanning plain records needs
RECORD_CHECK_AT = 8
SMALLEST_TO_COMPRESS = 64  # below this size, snappy's framing costs more than it saves
MAX_LENGTH = 2**32 - 1

Pairs = Mapping[str, str]
NO_PAIRS: Pairs = MappingProxyType({})

_crc = google_crc32c.extend
compress_raw, decompress_raw = snappy.compress_raw, snappy.decompress_raw


class SpoolRecord(NamedTuple):
    """A leased record. It is leased again unless it is acked, rejected or replaced. (A named tuple: creating a frozen
    dataclass takes three times as long, a large part of the time to read a record.)"""

    id: int  # sequence number: strictly increasing over the life of the directory, never reused
    payload: bytes
    token: str  # deduplication token, passed to the destination
    meta: Pairs  # small key-value data for the destination, such as the table
    attempts: int  # earlier leases that were not acknowledged; survives restarts
    put_at: float  # unix time of the put


@dataclass(frozen=True, slots=True)
class NewRecord:
    payload: bytes
    token: str = ""
    meta: Pairs = field(default_factory=dict[str, str])


class RecordPart(NamedTuple):
    """Which part of a replaced record this record is."""

    replaced: int
    number: int
    total: int


class RecordHeader(NamedTuple):
    """A record header with a valid checksum."""

    flags: int
    sequence: int
    place: int  # position in the order: its own sequence, or that of the record it replaces a part of
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


class RecordBody(NamedTuple):
    payload: bytes
    token: str
    meta: Pairs
    marks: Pairs
    part: RecordPart | None


class UnreadableRecord(Exception):
    """The bytes differ from what was written. Never raised outside this package."""


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
    """Append the encoded record to `pieces` and return its length. The payload is compressed only if that is
    smaller."""
    stored = payload
    raw = length = len(payload)
    if compress and raw >= SMALLEST_TO_COMPRESS:
        compressed = compress_raw(payload)
        if len(compressed) < raw:
            stored = bytes(compressed)
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
    """Encode a void record: the sequence numbers `first` to `last` hold nothing, so their absence is no loss."""
    extras = pack_extras("", NO_PAIRS, marks)
    return encode(salt, last, b"", place=first, put_at_us=0, durable=durable, extras=extras, flags=VOID)


def decode_record_header(data: bytes, at: int, salt: int | None) -> RecordHeader | None:
    """Return the record header at `at`, or None if there is no valid one. Without a salt, accept that of any
    segment."""
    if len(data) - at < HEADER_BYTES or data[at : at + 4] != MAGIC:
        return None
    _, header_check, record_check, found_salt, version, flags, _, *rest = HEADER.unpack_from(data, at)
    if header_check != _crc(0, data[at + RECORD_CHECK_AT : at + HEADER_BYTES]):
        return None
    if version != VERSION or (salt is not None and found_salt != salt):
        return None
    return RecordHeader._make((flags, *rest, record_check))


def read_salt(data: bytes, at: int) -> int:
    return HEADER.unpack_from(data, at)[3]


def is_body_intact(data: bytes, at: int, head: RecordHeader) -> bool:
    """Return True if the checksum over header and body matches. `data` must contain all of both."""
    return _crc(0, data[at + FIELDS_AT : at + head.length]) == head.record_check


def decode_body(data: bytes, at: int, head: RecordHeader) -> RecordBody:
    """Return payload and extras. Raises UnreadableRecord if they differ from what was written."""
    if not is_body_intact(data, at, head):
        raise UnreadableRecord("checksum")
    start = at + HEADER_BYTES + head.extras
    payload = data[start : at + head.length]
    if head.flags & SNAPPY:
        payload = decompress_payload(payload, head.raw)
    if not head.extras:
        return RecordBody(payload, "", NO_PAIRS, NO_PAIRS, None)
    return RecordBody(payload, *unpack_extras(data[at + HEADER_BYTES : start], bool(head.flags & PART)))


def decode_record(data: bytes, at: int, end: int, salt: int, attempts: int) -> SpoolRecord:
    """Return a record located by the index: one checksum covers all of it, including the header. Raises
    UnreadableRecord."""
    found = decode_records(data, (at,), (end - at,), salt, (attempts,))
    if not found:
        raise UnreadableRecord("checksum" if end <= len(data) else "ends beyond the file")
    return found[0]


def decode_records(
    data: bytes, starts: Iterable[int], lengths: Iterable[int], salt: int, attempts: Iterable[int]
) -> list[SpoolRecord]:
    """Return several records, which is much faster than one by one. Stops before the first invalid one."""
    records: list[SpoolRecord] = []
    crc, unpack, new = _crc, _RECORD_VIEW.unpack_from, tuple.__new__
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
                payload = decompress_payload(payload, raw)
            if extras:
                token, meta, _, _ = unpack_extras(data[at + HEADER_BYTES : end - stored], bool(flags & PART))
        except UnreadableRecord:
            break
        # as SpoolRecord(…), in half the time
        records.append(new(SpoolRecord, (sequence, payload, token, meta, tried, put_at_us / 1e6)))
    return records


class RecordRun(NamedTuple):
    """Plain records that are consecutive in the file and in their sequence numbers."""

    first: int
    offsets: array[int]
    lengths: array[int]  # in the file
    raws: array[int]  # length of extras and payload, uncompressed
    durable: int  # highest `durable` of these records
    end: int

    @property
    def last(self) -> int:
        return self.first + len(self.offsets) - 1


def scan_run(data: bytes, at: int, origin: int, salt: int, *, with_extras: bool) -> RecordRun | None:
    """Decode consecutive plain records from `at`. Stop before the first void record, part, sequence gap, damaged record
    or end of data, and before extras unless `with_extras`. Return None if there is none. `origin` is the file offset of
    `data`."""
    plain = (0, SNAPPY, EXTRAS, EXTRAS | SNAPPY)
    offsets, lengths, raws = array("I"), array("I"), array("I")
    add_offset, add_length, add_raw = offsets.append, lengths.append, raws.append
    crc, unpack, size = _crc, _RUN_VIEW.unpack_from, len(data)
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
    return RecordRun(first, offsets, lengths, raws, highest, origin + at) if offsets else None


def decompress_payload(stored: bytes, raw: int) -> bytes:
    """Decompress bytes with a valid checksum; snappy allocates by a length stored in them. Raises UnreadableRecord."""
    try:
        payload = bytes(decompress_raw(stored))
    except Exception as error:  # cramjam's exception class has no stable name
        raise UnreadableRecord("snappy") from error
    if len(payload) != raw:
        raise UnreadableRecord("length")
    return payload


_LENGTH = Struct("<I")
_PART = Struct("<QII")


def pack_extras(token: str, meta: Pairs, marks: Pairs, part: RecordPart | None = None) -> bytes:
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


def unpack_extras(data: bytes, has_part: bool) -> tuple[str, Pairs, Pairs, RecordPart | None]:
    """Return token, meta, marks and part. The checksum matched, but another writer may have encoded them wrongly:
    raises UnreadableRecord."""
    try:
        part = RecordPart(*_PART.unpack_from(data)) if has_part else None
        token, at = _read_text(data, _PART.size if has_part else 0)
        meta, at = _read_pairs(data, at)
        marks, at = _read_pairs(data, at)
    except (ValueError, IndexError, OverflowError, StructError) as error:
        raise UnreadableRecord("extras") from error
    return token, meta, marks, part


def _read_pairs(data: bytes, at: int) -> tuple[Pairs, int]:
    count = _LENGTH.unpack_from(data, at)[0]
    at += _LENGTH.size
    if not count:
        return NO_PAIRS, at
    pairs: dict[str, str] = {}
    for _ in range(count):
        key, at = _read_text(data, at)
        pairs[key], at = _read_text(data, at)
    return pairs, at


def _read_text(data: bytes, at: int) -> tuple[str, int]:
    end = at + _LENGTH.size + _LENGTH.unpack_from(data, at)[0]
    if end > len(data):
        raise ValueError("text ends beyond the extras")
    return data[at + _LENGTH.size : end].decode(), end


def merge_marks(sources: Iterable[Pairs]) -> dict[str, str]:
    """Merge marks in the given order: the last value of a key wins."""
    return {key: value for marks in sources for key, value in marks.items()}
