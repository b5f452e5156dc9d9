"""Further formats for arguments: `Pydantic` for more types, `Zlib` and `Offload` for large arguments.

`Headrace(codec=...)` sets the codec of all tasks of an app, `@app.task(codec=...)` that of one. Every codec stores JSON
where it can, and every task reads plain JSON whatever its codec is, so clients in other languages can enqueue jobs.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Protocol

import msgspec

from headrace.app.codec import (
    ArgumentCodec,
    Codec,
    Json,
    JsonByName,
    SeveralFormats,
    Undecodable,
    describe_invalid,
    find_encoder,
    list_formats,
)
from headrace.app.signature import TaskSignature, locate
from headrace.errors import ArgumentsInvalid, MissingExtra, TaskInvalid
from headrace.model.envelope import JSON_CODEC

__all__ = ["BlobStore", "Offload", "Pydantic", "Zlib"]

MAX_DECODED_BYTES = 64 * 2**20  # a small payload must not fill the memory of a worker


class Pydantic:
    """Arguments as a JSON object, checked by pydantic. Supports every type that pydantic does, for example unions of
    dataclasses. Needs the extra `pydantic`.

    Jobs that wait can be read after a change from `Json` to this codec, and back, as far as both support the types;
    bytes in models are encoded as the model says. With `strict` values are not converted: "1" is no int."""

    name = JSON_CODEC

    def __init__(self, *, strict: bool = False) -> None:
        """Raises MissingExtra if pydantic is not installed."""
        self._strict = strict
        try:
            import pydantic  # noqa: F401  # pyright: ignore[reportUnusedImport]
        except ImportError as error:
            raise MissingExtra(
                "The codec Pydantic needs the extra `pydantic`. Install it: pip install 'headrace[pydantic]'"
            ) from error

    def prepare(self, signature: TaskSignature) -> ArgumentCodec:
        return PydanticArguments(signature, self._strict)


class PydanticArguments(JsonByName):
    """The codec of a task: one TypeAdapter per argument."""

    def __init__(self, signature: TaskSignature, strict: bool) -> None:
        self._strict = strict or None
        super().__init__(signature)

    def _make_decoder(self, what: str, annotation: Any) -> Any:
        return self._make_adapter(what, annotation)

    def _make_adapter(self, what: str, annotation: Any) -> Any:
        from pydantic import ConfigDict, TypeAdapter
        from pydantic.errors import PydanticUserError

        config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
        try:
            try:
                return TypeAdapter(annotation, config=config)
            except PydanticUserError as error:
                if error.code != "type-adapter-config-unused":
                    raise
                return TypeAdapter(annotation)  # a model, which has its own configuration
        except Exception as error:
            signature = self._signature
            raise TaskInvalid(
                f"Task {signature.name!r} ({locate(signature.function)}): {what} has a type that pydantic cannot "
                f"handle: {error}"
            ) from error

    def _decode_value(self, decoder: Any, name: str, value: msgspec.Raw) -> Any:
        from pydantic import ValidationError

        try:
            return decoder.validate_json(bytes(value), strict=self._strict)
        except ValidationError as error:
            message, path = describe_invalid(error)
            raise Undecodable(f"{message} - at `$.{name}{path}`") from None  # its text contains values

    def _dump(self, arguments: Mapping[str, Any]) -> bytes:
        parts = {
            name: msgspec.Raw(self._get_adapter(name).dump_json(value, warnings="error"))
            for name, value in arguments.items()
        }
        return msgspec.json.encode(parts)

    def _get_adapter(self, name: str) -> Any:
        return self._decoders.get(name, self._extra)

    def encode_result(self, value: object) -> bytes:
        return self._result_adapter.dump_json(value)

    def decode_result(self, body: bytes) -> Any:
        return self._result_adapter.validate_json(body)

    @cached_property
    def _result_adapter(self) -> Any:
        return self._make_adapter("the result", self._signature.result_annotation)


class Zlib:
    """Arguments in the format of another codec, compressed if they have more than `above` bytes. Smaller ones are
    stored as they are."""

    name = "zlib"

    def __init__(self, inner: Codec | None = None, *, above: int = 4096) -> None:
        self._inner = inner or Json()
        self._above = above
        self.formats = extend_formats(self._inner, self.name)

    def prepare(self, signature: TaskSignature) -> ArgumentCodec:
        return CompressedArguments(signature, self._inner, self._above)


class Offload:
    """Arguments in the format of another codec, written to a store if they have more than `above` bytes; the job then
    contains only their key. Smaller ones are stored in the job.

    Arguments are written before the job is enqueued, and never removed by Headrace: retries and redrives need them. Let
    the store remove them after a time that is longer than any job waits. The key is a hash of the arguments; equal
    arguments are written again, which renews their age. A job whose arguments are missing is buried."""

    name = "offload"
    blocks = True

    def __init__(self, inner: Codec | None, store: BlobStore, *, above: int = 256 * 1024) -> None:
        """`inner` is the codec of the arguments; None: Json."""
        self._inner = inner or Json()
        self._store = store
        self._above = above
        self.formats = extend_formats(self._inner, self.name)

    def prepare(self, signature: TaskSignature) -> ArgumentCodec:
        return OffloadedArguments(signature, self._inner, self._store, self._above)


class BlobStore(Protocol):
    """Where large arguments are kept, for example a bucket. Called in producers and workers, in several threads. Errors
    of `put` refuse the enqueue, those of `get` fail the attempt."""

    def put(self, key: str, data: bytes, /) -> None:
        """Store data under a key. The same key always has the same data."""
        ...

    def get(self, key: str, /) -> bytes | None:
        """Return the data; None if the store has none under this key."""
        ...


def extend_formats(inner: Codec, name: str) -> tuple[str, ...]:
    """Return the formats of a codec around another one: those of the inner one, and each of them changed."""
    inside = list_formats(inner)
    return (*inside, *(name_format(each, name) for each in inside))


def name_format(inside: str, name: str) -> str:
    """Return the name of a format: `zlib` for compressed JSON, `pickle+zlib` for another compressed format."""
    return name if inside == JSON_CODEC else f"{inside}+{name}"


class WrappedArguments:
    """Base of codecs of a task that change what another codec has encoded, if it is large. Implements SeveralFormats
    and ArgumentCodec."""

    name = ""

    def __init__(self, signature: TaskSignature, inner: Codec, above: int) -> None:
        self._signature = signature
        self._codec = inner
        self._inner = inner.prepare(signature)
        self._above = above
        self._changed = {name_format(each, self.name): each for each in list_formats(inner)}

    def encode_named(self, arguments: Mapping[str, Any]) -> tuple[str, bytes]:
        name, body = find_encoder(self._codec, self._inner)(arguments)
        if len(body) <= self._above:
            return name, body
        return name_format(name, self.name), self.wrap(body)

    def decode_from(self, name: str, body: bytes) -> dict[str, Any]:
        if name in self._changed:
            name, body = self._changed[name], self.unwrap(body)
        if isinstance(self._inner, SeveralFormats):
            return self._inner.decode_from(name, body)
        return self._inner.decode(body)

    def encode(self, arguments: Mapping[str, Any]) -> bytes:
        return self.encode_named(arguments)[1]

    def decode(self, body: bytes) -> dict[str, Any]:
        return self.decode_from(self.name, body)

    def encode_result(self, value: object) -> bytes:
        return self._inner.encode_result(value)

    def decode_result(self, body: bytes) -> Any:
        return self._inner.decode_result(body)

    def wrap(self, body: bytes) -> bytes:
        """Change encoded arguments."""
        raise NotImplementedError

    def unwrap(self, body: bytes) -> bytes:
        """Restore what `wrap` has changed. Raises Undecodable."""
        raise NotImplementedError


class CompressedArguments(WrappedArguments):
    """The codec of a task with Zlib."""

    name = Zlib.name

    def wrap(self, body: bytes) -> bytes:
        if len(body) > MAX_DECODED_BYTES:
            raise ArgumentsInvalid(
                f"Task {self._signature.name!r}: the arguments have {len(body)} bytes, more than {MAX_DECODED_BYTES}. "
                "Nothing was written."
            )
        return zlib.compress(body)

    def unwrap(self, body: bytes) -> bytes:
        stream = zlib.decompressobj()
        try:
            found = stream.decompress(body, MAX_DECODED_BYTES)
        except zlib.error as error:
            raise Undecodable(f"The payload is not compressed with zlib: {error}") from error
        if stream.unconsumed_tail or not stream.eof:
            raise Undecodable(
                f"The compressed payload is cut off, or has more than {MAX_DECODED_BYTES} bytes when decompressed"
            )
        return found


class OffloadedArguments(WrappedArguments):
    """The codec of a task with Offload."""

    name = Offload.name

    def __init__(self, signature: TaskSignature, inner: Codec, store: BlobStore, above: int) -> None:
        super().__init__(signature, inner, above)
        self._store = store

    def wrap(self, body: bytes) -> bytes:
        key = hashlib.sha256(body).hexdigest()
        self._store.put(key, body)
        return json.dumps({"key": key, "bytes": len(body)}).encode()

    def unwrap(self, body: bytes) -> bytes:
        try:
            key = str(json.loads(body)["key"])
        except (ValueError, LookupError, TypeError) as error:
            raise Undecodable(f"The payload does not name the offloaded arguments: {error!r}") from error
        data = self._store.get(key)
        if data is None:
            raise Undecodable(f"The offloaded arguments {key!r} are missing in the store")
        if hashlib.sha256(data).hexdigest() != key:
            raise Undecodable(f"The offloaded arguments {key!r} are damaged: they do not match their hash")
        return data
