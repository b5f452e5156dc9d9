"""A page of metrics as it goes over the wire, most of it made once per version.

The large part of a page changes with the version, the small one with each scrape. A page is the one and then the other,
and compressed it is so too: deflate can be cut where it was flushed, and a checksum can be continued. So the large part
is compressed once, however many scrapers there are. Pure.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

LEVEL = 3
GZIP_HEAD = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x04\xff"  # no name, no time; as RFC 1952 has it


@dataclass(frozen=True)
class Fixed:
    """The large part."""

    text: bytes
    deflated: bytes
    checksum: int


def fixed(text: bytes) -> Fixed:
    return Fixed(text, _deflated(text, zlib.Z_FULL_FLUSH), zlib.crc32(text))


def gzipped(large: Fixed, small: bytes) -> bytes:
    """One gzip member: the large part, then the small one."""
    end = struct.pack("<II", zlib.crc32(small, large.checksum), (len(large.text) + len(small)) & 0xFFFFFFFF)
    return b"".join((GZIP_HEAD, large.deflated, _deflated(small, zlib.Z_FINISH), end))


def _deflated(text: bytes, end: int) -> bytes:
    """Flushed in full, what follows need not know what came before."""
    deflate = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    return deflate.compress(text) + deflate.flush(end)


NOTHING = fixed(b"")
