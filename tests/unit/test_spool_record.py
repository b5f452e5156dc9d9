"""Encoding of one record: decoding returns exactly what was encoded, or fails."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.spool.record import (
    HEADER_BYTES,
    RecordPart,
    UnreadableRecord,
    decode_body,
    decode_record,
    decode_record_header,
    encode,
    encode_void,
    pack_extras,
)

SALT = 77
pairs = st.dictionaries(st.text(max_size=5), st.text(max_size=20), max_size=3)


@given(
    payload=st.binary(max_size=300) | st.binary(max_size=20).map(lambda piece: piece * 50),
    token=st.text(max_size=20),
    meta=pairs,
    marks=pairs,
    compress=st.booleans(),
)
def test_what_went_in_comes_out(
    payload: bytes, token: str, meta: dict[str, str], marks: dict[str, str], compress: bool
) -> None:
    extras = pack_extras(token, meta, marks)
    data = encode(SALT, 5, payload, put_at_us=1_500_000, durable=4, extras=extras, compress=compress)
    head = decode_record_header(data, 0, SALT)
    assert head is not None
    assert (head.sequence, head.place, head.durable, head.length) == (5, 5, 4, len(data))
    body = decode_body(data, 0, head)
    assert (body.payload, body.token, dict(body.meta), dict(body.marks)) == (payload, token, meta, marks)
    record = decode_record(data, 0, len(data), SALT, 3)
    assert (record.id, record.payload, record.token, dict(record.meta)) == (5, payload, token, meta)
    assert (record.attempts, record.put_at) == (3, 1.5)


def test_compressed_only_where_it_pays() -> None:
    incompressible = bytes(range(256)) * 4
    assert len(encode(SALT, 1, b"ab" * 500, put_at_us=0, durable=0)) < 500
    assert len(encode(SALT, 1, incompressible[:256], put_at_us=0, durable=0)) == HEADER_BYTES + 256


def test_every_flipped_bit_is_noticed() -> None:
    extras = pack_extras("token", {"table": "x"}, {"0": "1-1"}, RecordPart(3, 0, 2))
    data = encode(SALT, 5, b"payload " * 20, put_at_us=9, durable=4, extras=extras)
    for bit in range(len(data) * 8):
        broken = bytearray(data)
        broken[bit // 8] ^= 1 << bit % 8
        if bit // 8 >= HEADER_BYTES:
            head = decode_record_header(bytes(broken), 0, SALT)
            assert head is not None
            with pytest.raises(UnreadableRecord):
                decode_body(bytes(broken), 0, head)
        else:
            assert decode_record_header(bytes(broken), 0, SALT) is None
        if bit // 8 < 4 or 4 <= bit // 8 < 8:
            continue  # magic and header check are for scans; a record found by the index has its own checksum
        with pytest.raises(UnreadableRecord):
            decode_record(bytes(broken), 0, len(broken), SALT, 0)


def test_every_truncation_is_noticed() -> None:
    data = encode(SALT, 5, b"payload", put_at_us=9, durable=4)
    for length in range(len(data)):
        with pytest.raises(UnreadableRecord):
            decode_record(data[:length], 0, len(data), SALT, 0)
        if length < HEADER_BYTES:
            assert decode_record_header(data[:length], 0, SALT) is None


def test_a_record_of_another_segment_is_rejected() -> None:
    data = encode(SALT + 1, 5, b"payload", put_at_us=9, durable=4)
    assert decode_record_header(data, 0, SALT) is None
    with pytest.raises(UnreadableRecord):
        decode_record(data, 0, len(data), SALT, 0)


def test_a_void_range_has_its_first_and_last_number_and_keeps_marks() -> None:
    data = encode_void(SALT, 10, 20, durable=9, marks={"0": "5-1"})
    head = decode_record_header(data, 0, SALT)
    assert head is not None
    assert head.is_void
    assert (head.place, head.sequence) == (10, 20)
    assert dict(decode_body(data, 0, head).marks) == {"0": "5-1"}
