"""Encodes arguments and results. The default is JSON: arguments by name in one object."""

from __future__ import annotations

import math
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cached_property
from typing import Any, NoReturn, Protocol, Union, runtime_checkable

import msgspec

from headrace.app.signature import ArgumentSpec, TaskSignature, locate
from headrace.errors import ArgumentsInvalid, TaskInvalid
from headrace.model.envelope import JSON_CODEC

MAX_SHOWN_CHARS = 100  # of a value in an error


class UnknownArguments(Exception):
    """The payload has arguments that the function does not have. Newer code may have them."""


class Undecodable(Exception):
    """The payload cannot be decoded, or an argument is missing or has the wrong type. No retry can succeed."""


class ArgumentCodec(Protocol):
    """Encodes and decodes the arguments and the result of one task."""

    def encode(self, arguments: Mapping[str, Any]) -> bytes:
        """Return the encoded arguments. Raises ArgumentsInvalid if a worker could not decode them."""
        ...

    def decode(self, body: bytes) -> dict[str, Any]:
        """Return the arguments. Raises UnknownArguments or Undecodable."""
        ...

    def encode_result(self, value: object) -> bytes:
        """Return the encoded result. Raises ValueError or TypeError if that is not possible."""
        ...

    def decode_result(self, body: bytes) -> Any: ...


class Codec(Protocol):
    """A format for arguments and results."""

    name: str  # stored with each job; jobs in the format of an unknown codec wait for newer code

    def prepare(self, signature: TaskSignature) -> ArgumentCodec:
        """Return the codec of a task. Raises TaskInvalid if it cannot handle an annotation. Called on first use and
        when a worker starts."""
        ...


@runtime_checkable
class SeveralFormats(Protocol):
    """An ArgumentCodec that chooses the format of each job, for example plain JSON for small arguments. Its Codec lists
    the names of all formats in `formats`."""

    def encode_named(self, arguments: Mapping[str, Any]) -> tuple[str, bytes]:
        """Return the name of the format, and the encoded arguments. Raises ArgumentsInvalid."""
        ...

    def decode_from(self, name: str, body: bytes) -> dict[str, Any]:
        """Return the arguments, encoded in the format `name`. Raises UnknownArguments or Undecodable."""
        ...


def is_blocking(codec: Codec) -> bool:
    """Return whether encoding and decoding must not happen on an event loop, because the codec waits for a server. Such
    a codec has a true attribute `blocks`."""
    return getattr(codec, "blocks", False)


def list_formats(codec: Codec) -> tuple[str, ...]:
    """Return the names of the formats that a codec can decode."""
    return getattr(codec, "formats", None) or (codec.name,)


NamedEncoder = Callable[[Mapping[str, Any]], tuple[str, bytes]]
"""Returns the name of the format that arguments are stored in, and the encoded arguments. Raises ArgumentsInvalid."""


def find_encoder(codec: Codec, prepared: ArgumentCodec) -> NamedEncoder:
    """Return what encodes the arguments of a task. Found once, since the check of a protocol takes longer than to
    encode."""
    if isinstance(prepared, SeveralFormats):
        return prepared.encode_named
    name = codec.name
    return lambda arguments: (name, prepared.encode(arguments))


class Json:
    """Arguments as a JSON object, checked against the annotations. Supports dataclasses, TypedDict, NamedTuple,
    datetime, UUID, Decimal, Enum, bytes, and models of pydantic."""

    name = JSON_CODEC

    def prepare(self, signature: TaskSignature) -> ArgumentCodec:
        if signature.extra_name is not None or any(each.old_name for each in signature.arguments.values()):
            return JsonByName(signature)
        return JsonStruct(signature)


class JsonArguments:
    """What the codecs for JSON have in common: the checks of an enqueue."""

    def __init__(self, signature: TaskSignature) -> None:
        self._signature = signature
        self._typed = {each.name for each in signature.arguments.values() if not is_untyped(each.annotation)}
        self._has_typed_extra = signature.extra_name is None or not is_untyped(signature.extra_annotation)
        self._is_typed = len(self._typed) == len(signature.arguments) and self._has_typed_extra

    def encode(self, arguments: Mapping[str, Any]) -> bytes:
        try:
            body = self._dump(arguments)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise self._refuse(error) from error
        try:
            if self._is_typed:
                self.check(body)
            else:
                self._check_untyped(arguments, self.decode(body))
        except (UnknownArguments, Undecodable) as error:
            raise self._refuse(error) from error
        if b"null" in body and _has_nan(arguments):
            raise self._refuse("JSON has no NaN and no infinite numbers; they would arrive as None")
        return body

    def _check_untyped(self, arguments: Mapping[str, Any], decoded: Mapping[str, Any]) -> None:
        """Refuse arguments that JSON changes, where no annotation says how to restore them."""
        for name, value in arguments.items():
            is_typed = name in self._typed if name in self._signature.arguments else self._has_typed_extra
            if not is_typed and decoded[name] != value:
                raise self._refuse(
                    f"{name} is {_shorten(value)} and would arrive as {_shorten(decoded[name])}. Annotate the "
                    "parameter with its type"
                )

    def _dump(self, arguments: Mapping[str, Any]) -> bytes:
        return _encoder.encode(arguments)

    def decode(self, body: bytes) -> dict[str, Any]:
        raise NotImplementedError

    def check(self, body: bytes) -> None:
        """Raise what `decode` raises."""
        self.decode(body)

    def encode_result(self, value: object) -> bytes:
        return _encoder.encode(value)

    def decode_result(self, body: bytes) -> Any:
        return self._result_decoder.decode(body)

    @cached_property
    def _result_decoder(self) -> msgspec.json.Decoder[Any]:
        return _make_decoder(self._signature, "the result", self._signature.result_annotation)

    def _refuse(self, reason: object) -> ArgumentsInvalid:
        return ArgumentsInvalid(f"Task {self._signature.name!r}: {reason}. Nothing was written.")


class JsonStruct(JsonArguments):
    """The fast path: all arguments are decoded and checked in one step."""

    def __init__(self, signature: TaskSignature) -> None:
        super().__init__(signature)
        for each in signature.arguments.values():
            _make_decoder(signature, repr(each.name), each.annotation)
        fields = [_make_field(each) for each in signature.arguments.values()]
        kind = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)
        self._names = tuple(signature.arguments)
        self._decoder = msgspec.json.Decoder(kind, dec_hook=_decode_model)
        self._has_defaults = any(not each.is_required for each in signature.arguments.values())

    def check(self, body: bytes) -> None:
        self._read(body)

    def decode(self, body: bytes) -> dict[str, Any]:
        found = self._read(body)
        arguments = {name: getattr(found, name) for name in self._names}
        if self._has_defaults:
            return {name: value for name, value in arguments.items() if value is not msgspec.UNSET}
        return arguments

    def _read(self, body: bytes) -> Any:
        try:
            return self._decoder.decode(body)
        except msgspec.ValidationError as error:
            _raise_unknown(body, self._names, error)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Undecodable(f"The payload is not JSON: {error}") from error


class JsonByName(JsonArguments):
    """For functions with renamed parameters or `**kwargs`: each argument is decoded on its own."""

    def __init__(self, signature: TaskSignature) -> None:
        super().__init__(signature)
        self._decoders = {
            each.name: self._make_decoder(repr(each.name), each.annotation) for each in signature.arguments.values()
        }
        self._renamed = {each.old_name: each.name for each in signature.arguments.values() if each.old_name}
        self._required = [each.name for each in signature.arguments.values() if each.is_required]
        self._extra = (
            None
            if signature.extra_name is None
            else self._make_decoder(repr(signature.extra_name), signature.extra_annotation)
        )

    def _make_decoder(self, what: str, annotation: Any) -> Any:
        """Return what `_decode_value` needs for one argument. Raises TaskInvalid."""
        return _make_decoder(self._signature, what, annotation)

    def _decode_value(self, decoder: Any, name: str, value: msgspec.Raw) -> Any:
        """Return one argument. Raises Undecodable."""
        try:
            return decoder.decode(value)
        except (msgspec.ValidationError, UnicodeDecodeError) as error:
            path = str(error).replace("`$", f"`$.{name}")
            raise Undecodable(path if path != str(error) else f"{error} - at `$.{name}`") from error

    def decode(self, body: bytes) -> dict[str, Any]:
        raw = _decode_raw(body)
        for old, name in self._renamed.items():
            if old in raw and name not in raw:
                raw[name] = raw.pop(old)
        arguments: dict[str, Any] = {}
        for name, value in raw.items():
            decoder = self._decoders.get(name, self._extra)
            if decoder is None:
                raise UnknownArguments(f"unknown argument {name!r}")
            arguments[name] = self._decode_value(decoder, name, value)
        if missing := [name for name in self._required if name not in arguments]:
            raise Undecodable(f"The argument {missing[0]!r} is missing")
        return arguments


def _make_field(argument: ArgumentSpec) -> tuple[str, Any] | tuple[str, Any, Any]:
    if argument.is_required:
        return argument.name, argument.annotation
    # The default is applied by the function: a changed default is valid for jobs that wait, too.
    return argument.name, Union[argument.annotation, msgspec.UnsetType], msgspec.UNSET  # noqa: UP007 (any object)


def _make_decoder(signature: TaskSignature, what: str, annotation: Any) -> msgspec.json.Decoder[Any]:
    try:
        return msgspec.json.Decoder(annotation, dec_hook=_decode_model)
    except TypeError as error:
        raise TaskInvalid(
            f"Task {signature.name!r} ({locate(signature.function)}): {what} cannot be read from JSON: {error} "
            "Change the annotation, or use codec=Pydantic() from headrace.codecs."
        ) from error


def _raise_unknown(body: bytes, names: tuple[str, ...], error: Exception) -> NoReturn:
    """Raise UnknownArguments if that is why a payload is refused, else Undecodable."""
    unknown = [name for name in _decode_raw(body) if name not in names]
    if unknown:
        raise UnknownArguments(f"unknown argument {unknown[0]!r}") from error
    raise Undecodable(str(error)) from error


def _decode_raw(body: bytes) -> dict[str, msgspec.Raw]:
    try:
        return _raw_decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Undecodable(f"The payload is not a JSON object of arguments by name: {error}") from error


def is_untyped(annotation: Any) -> bool:
    """Return whether an annotation leaves the type of a value, or of a part of it, open."""
    if annotation in (Any, object, list, dict, tuple, set, frozenset):
        return True
    if typing.get_origin(annotation) is typing.Literal:
        return False
    return any(is_untyped(each) for each in typing.get_args(annotation))


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}…"


def _has_nan(value: Any) -> bool:
    """Return whether a value contains a number that JSON cannot represent."""
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, Mapping):
        return any(_has_nan(each) for each in value.values())
    if isinstance(value, list | tuple | set | frozenset):
        return any(_has_nan(each) for each in value)
    if value is None or isinstance(value, str | bytes | int):
        return False
    fields = getattr(value, "__dict__", None)
    if fields is None:
        fields = {name: getattr(value, name, None) for name in getattr(type(value), "__slots__", ())}
    return not isinstance(value, Enum) and any(_has_nan(each) for each in fields.values())


def _encode_model(value: Any) -> Any:
    """Convert a model of pydantic to JSON values, and instances of subclasses of str, int and float, for example the id
    of a job, to plain ones."""
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    dump = getattr(type(value), "model_dump", None)
    if dump is None:
        raise TypeError(f"a {type(value).__qualname__} cannot be written as JSON")
    return dump(value, mode="json")


def _decode_model(kind: type, value: Any) -> Any:
    """Convert JSON values to a model of pydantic."""
    validate = getattr(kind, "model_validate", None)
    if validate is None:
        raise TypeError(f"a {kind.__qualname__} cannot be read from JSON")
    try:
        return validate(value)
    except ValueError as error:
        if not hasattr(error, "errors"):
            raise
        # Without the error of pydantic, whose text contains values.
        message, path = describe_invalid(error)
        raise ValueError(f"{message} (in {kind.__qualname__}, at `{path or '.'}`)") from None


def describe_invalid(error: Any) -> tuple[str, str]:
    """Return the message and the path of the first problem in a ValidationError of pydantic, without values."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return first["msg"], "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in first["loc"])


def encode_sorted(value: object) -> bytes:
    """Return JSON that is the same for equal values: members of objects and elements of sets are sorted. Raises
    TypeError and ValueError."""
    return _sorting_encoder.encode(value)


_encoder = msgspec.json.Encoder(enc_hook=_encode_model, decimal_format="string")
_sorting_encoder = msgspec.json.Encoder(enc_hook=_encode_model, decimal_format="string", order="deterministic")
_raw_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
