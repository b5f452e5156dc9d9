"""Streaming content codings of HTTP bodies: gzip, deflate, lz4 (frames) and zstd.

A body is never held in memory as a whole. Request bodies may consist of many frames, because clickhouse-connect
compresses block by block; responses are a single frame, because clients expect one. Independent of ClickHouse.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Callable
from typing import Protocol, cast

import lz4.frame  # pyright: ignore[reportMissingTypeStubs] (it has none)
import zstandard


class BodyEncoder(Protocol):
    def compress(self, data: bytes, /) -> bytes: ...
    def flush(self) -> bytes: ...


class FrameDecoder(Protocol):
    """Decompresses one frame, and returns the data after it as `unused_data`."""

    def decompress(self, data: bytes, /) -> bytes: ...
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes | None: ...


class InvalidBody(Exception):
    """The body does not match its Content-Encoding, or ends in the middle of a frame."""


class _IdentityEncoder:
    def compress(self, data: bytes) -> bytes:
        return data

    def flush(self) -> bytes:
        return b""


class _Lz4Encoder:
    """Compresses an lz4 frame; lz4's own compressor does not write the frame header itself."""

    def __init__(self) -> None:
        self._frame = lz4.frame.LZ4FrameCompressor()
        self._header = cast(bytes, self._frame.begin())  # pyright: ignore[reportUnknownMemberType] (untyped)

    def compress(self, data: bytes) -> bytes:
        header, self._header = self._header, b""
        return header + cast(bytes, self._frame.compress(data))  # pyright: ignore[reportUnknownMemberType]

    def flush(self) -> bytes:
        return self._header + cast(bytes, self._frame.flush())  # pyright: ignore[reportUnknownMemberType]


# In order of preference if a client accepts several: the cheapest first.
_ENCODERS: dict[str, Callable[[], BodyEncoder]] = {
    "lz4": _Lz4Encoder,
    "zstd": lambda: zstandard.ZstdCompressor(level=1).compressobj(),
    "gzip": lambda: zlib.compressobj(level=1, wbits=31),
    "deflate": lambda: zlib.compressobj(level=1, wbits=15),
}
_DECODERS: dict[str, Callable[[], FrameDecoder]] = {
    "lz4": lambda: cast(FrameDecoder, lz4.frame.LZ4FrameDecompressor()),
    "zstd": lambda: zstandard.ZstdDecompressor().decompressobj(),
    "gzip": lambda: zlib.decompressobj(wbits=31),
    "deflate": lambda: zlib.decompressobj(wbits=15),
}
SUPPORTED = tuple(_ENCODERS)

# Number of bytes decompressed at once, chosen so that they produce at most 16 MiB: a zstd block of 4 bytes can contain
# 128 KiB of data, and deflate's maximum ratio is 1032.
_INPUT_BYTES = {"zstd": 512}
_DEFAULT_INPUT_BYTES = 16 * 1024


def choose_coding(accept_encoding: str) -> str | None:
    """Return the preferred coding that the client accepts, or None if it accepts none of the supported ones."""
    accepted: set[str] = set()
    for offer in accept_encoding.lower().split(","):
        name, _, weight = offer.partition(";")
        if weight.replace(" ", "") not in ("q=0", "q=0.0"):
            accepted.add(name.strip())
    return next((name for name in SUPPORTED if name in accepted), None)


def make_encoder(coding: str | None) -> BodyEncoder:
    """Create a compressor; for None, one that leaves the data unchanged."""
    return _ENCODERS[coding]() if coding else _IdentityEncoder()


async def decode_body(chunks: AsyncIterator[bytes], coding: str) -> AsyncIterator[bytes]:
    """Decompress a body with a coding in SUPPORTED, in chunks of bounded size. Raises InvalidBody."""
    new_frame = _DECODERS[coding]
    frame, inside = new_frame(), False
    size = _INPUT_BYTES.get(coding, _DEFAULT_INPUT_BYTES)
    async for chunk in chunks:
        rest, start = b"", 0
        while rest or start < len(chunk):
            if not rest:
                rest, start = chunk[start : start + size], start + size
            try:
                plain = frame.decompress(rest)
            except (zlib.error, zstandard.ZstdError, RuntimeError, EOFError) as error:
                raise InvalidBody(f"the request body is not valid {coding}: {error}") from error
            inside = not frame.eof
            rest = (frame.unused_data or b"") if frame.eof else b""
            if frame.eof:
                frame = new_frame()
            if plain:
                yield plain
    if inside:
        raise InvalidBody(f"the request body ends in the middle of a {coding} frame")
