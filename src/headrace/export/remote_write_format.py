"""The body of a Prometheus remote write 1.0 request: a protobuf `WriteRequest`, compressed with snappy. Pure.

Only the messages that Headrace sends are encoded, with the field numbers of the specification:

    WriteRequest { TimeSeries timeseries = 1; }
    TimeSeries   { Label labels = 1; Sample samples = 2; }
    Label        { string name = 1; string value = 2; }
    Sample       { double value = 1; int64 timestamp = 2; }

A field of a WriteRequest is self-contained, so series that are encoded one by one can be joined to a request, and a
request can be split into its series without decoding them.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from struct import Struct

from cramjam import snappy

FIRST_FIELD, SECOND_FIELD = b"\x0a", b"\x12"  # field 1 or 2 with a length
_VALUE_TAG, _TIMESTAMP_TAG = b"\x09", b"\x10"  # field 1 as eight bytes, field 2 as a varint
_DOUBLE = Struct("<d").pack
STALE = Struct("<Q").pack(0x7FF0_0000_0000_0002)
"""Value that ends a series: Prometheus stops returning its last value. A NaN that a Python float may not preserve."""


def encode_varint(number: int) -> bytes:
    """Encode a number; a negative one as its two's complement in 64 bits."""
    number &= 2**64 - 1
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def encode_label(name: str, value: str) -> bytes:
    """Encode one label as a field of a series. The labels of a series must be joined in the order of their names."""
    label = _encode_field(FIRST_FIELD, name.encode()) + _encode_field(SECOND_FIELD, value.encode())
    return _encode_field(FIRST_FIELD, label)


def encode_series(labels: bytes, value: float | None, timestamp_ms: int) -> bytes:
    """Encode a series with one sample as a field of a request. `labels` are joined labels; None is a stale marker."""
    number = STALE if value is None else _DOUBLE(value)
    sample = _encode_field(SECOND_FIELD, _VALUE_TAG + number + _encode_timestamp(timestamp_ms))
    return FIRST_FIELD + _encode_length(len(labels) + len(sample)) + labels + sample


def split_series(request: bytes) -> list[bytes]:
    """Split an uncompressed request into its encoded series. Raises ValueError if it is malformed."""
    series: list[bytes] = []
    at = 0
    while at < len(request):
        start = at
        if request[at : at + 1] != FIRST_FIELD:
            raise ValueError(f"no series at byte {at}")
        length, at = _decode_varint(request, at + 1)
        at += length
        if at > len(request):
            raise ValueError(f"the series at byte {start} is truncated")
        series.append(request[start:at])
    return series


def compress_request(series: Iterable[bytes]) -> bytes:
    """Return the body of a request with these encoded series."""
    return bytes(snappy.compress_raw(b"".join(series)))


def _encode_field(tag: bytes, content: bytes) -> bytes:
    return tag + _encode_length(len(content)) + content


# Most lengths are short, and all series of a queue have the same time.
_encode_length = lru_cache(1024)(encode_varint)


@lru_cache(1024)
def _encode_timestamp(milliseconds: int) -> bytes:
    return _TIMESTAMP_TAG + encode_varint(milliseconds)


def _decode_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at `at` and the position after it. Raises ValueError if it is truncated or too long."""
    number = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise ValueError(f"no number at byte {at}")
