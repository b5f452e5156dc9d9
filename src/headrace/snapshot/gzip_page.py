"""Gzip a metrics page whose large part is compressed once per version. Pure.

The large part of a page changes with the version, the small part with each scrape. Deflate output can be concatenated
after a full flush and a CRC can be continued, so the large part is compressed once for all scrapes.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

LEVEL = 3
GZIP_HEAD = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x04\xff"  # RFC 1952, without name and time


@dataclass(frozen=True)
class CompressedPart:
    text: bytes
    deflated: bytes
    checksum: int


def compress_part(text: bytes) -> CompressedPart:
    return CompressedPart(text, _deflate(text, zlib.Z_FULL_FLUSH), zlib.crc32(text))


def gzip_page(large: CompressedPart, small: bytes) -> bytes:
    """Return one gzip member of the large part followed by the small part."""
    end = struct.pack("<II", zlib.crc32(small, large.checksum), (len(large.text) + len(small)) & 0xFFFFFFFF)
    return b"".join((GZIP_HEAD, large.deflated, _deflate(small, zlib.Z_FINISH), end))


def _deflate(text: bytes, end: int) -> bytes:
    """Deflate and end with this flush mode. After a full flush the following data does not depend on this one."""
    deflate = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    return deflate.compress(text) + deflate.flush(end)


EMPTY_PART = compress_part(b"")
