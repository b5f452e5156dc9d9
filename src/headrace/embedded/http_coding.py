"""Content codings of HTTP bodies, in a stream: gzip, deflate, lz4 (frames) and zstd.

Promises that a body is never held whole: a chunk goes in, what it yields comes out. Request bodies may be
made of many frames, because clickhouse-connect compresses block by block; answers are one frame, because its
readers expect one. Knows nothing of ClickHouse.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Callable
from typing import Protocol, cast

import lz4.frame  # pyright: ignore[reportMissingTypeStubs] (it has none)
import zstandard


class Encoder(Protocol):
    """Compresses one stream."""

    def compress(self, data: bytes, /) -> bytes: ...
    def flush(self) -> bytes: ...


class Decoder(Protocol):
    """Decompresses one frame, and tells what came after it."""

    def decompress(self, data: bytes, /) -> bytes: ...
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes | None: ...


class DamagedBody(Exception):
    """The body is not what its Content-Encoding says, or ends in the middle of a frame."""


class _Plain:
    def compress(self, data: bytes) -> bytes:
        return data

    def flush(self) -> bytes:
        return b""


class _Lz4Encoder:
    """lz4's compressor, which wants its frame header written by hand."""

    def __init__(self) -> None:
        self._frame = lz4.frame.LZ4FrameCompressor()
        self._header = cast(bytes, self._frame.begin())  # pyright: ignore[reportUnknownMemberType] (untyped)

    def compress(self, data: bytes) -> bytes:
        header, self._header = self._header, b""
        return header + cast(bytes, self._frame.compress(data))  # pyright: ignore[reportUnknownMemberType]

    def flush(self) -> bytes:
        return self._header + cast(bytes, self._frame.flush())  # pyright: ignore[reportUnknownMemberType]


# In the order in which they are offered to a client that accepts several: the cheapest first.
_ENCODERS: dict[str, Callable[[], Encoder]] = {
    "lz4": _Lz4Encoder,
    "zstd": lambda: zstandard.ZstdCompressor(level=1).compressobj(),
    "gzip": lambda: zlib.compressobj(level=1, wbits=31),
    "deflate": lambda: zlib.compressobj(level=1, wbits=15),
}
_DECODERS: dict[str, Callable[[], Decoder]] = {
    "lz4": lambda: cast(Decoder, lz4.frame.LZ4FrameDecompressor()),
    "zstd": lambda: zstandard.ZstdDecompressor().decompressobj(),
    "gzip": lambda: zlib.decompressobj(wbits=31),
    "deflate": lambda: zlib.decompressobj(wbits=15),
}
SUPPORTED = tuple(_ENCODERS)

# Bytes that are decompressed at once, so that they yield 16 MiB at most: a block of 4 bytes in zstd can be 128 KiB of
# data, and deflate's ratio is 1032 at best.
_INPUT_BYTES = {"zstd": 512}
_INPUT_BYTES_OF_OTHERS = 16 * 1024


def choose(accept_encoding: str) -> str | None:
    """The coding for an answer, or None when the client accepts none of ours."""
    accepted: set[str] = set()
    for offer in accept_encoding.lower().split(","):
        name, _, weight = offer.partition(";")
        if weight.replace(" ", "") not in ("q=0", "q=0.0"):
            accepted.add(name.strip())
    return next((name for name in SUPPORTED if name in accepted), None)


def encoder(coding: str | None) -> Encoder:
    """A fresh compressor; None leaves the bytes as they are."""
    return _ENCODERS[coding]() if coding else _Plain()


async def decoded(chunks: AsyncIterator[bytes], coding: str) -> AsyncIterator[bytes]:
    """The body behind a coding named in SUPPORTED, in pieces of bounded size; raises DamagedBody."""
    new_frame = _DECODERS[coding]
    frame, inside = new_frame(), False
    size = _INPUT_BYTES.get(coding, _INPUT_BYTES_OF_OTHERS)
    async for chunk in chunks:
        rest, start = b"", 0
        while rest or start < len(chunk):
            if not rest:
                rest, start = chunk[start : start + size], start + size
            try:
                plain = frame.decompress(rest)
            except (zlib.error, zstandard.ZstdError, RuntimeError, EOFError) as error:
                raise DamagedBody(f"the request body is not valid {coding}: {error}") from error
            inside = not frame.eof
            rest = (frame.unused_data or b"") if frame.eof else b""
            if frame.eof:
                frame = new_frame()
            if plain:
                yield plain
    if inside:
        raise DamagedBody(f"the request body ends in the middle of a {coding} frame; nothing more was read")
