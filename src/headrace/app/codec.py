"""Encodes arguments and results. The default is JSON: arguments by name in one object."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, NoReturn, Protocol, Union

import msgspec

from headrace.app.signature import ArgumentSpec, TaskSignature, locate
from headrace.errors import ArgumentsInvalid, TaskInvalid
from headrace.model.envelope import JSON_CODEC


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


class Json:
    """Arguments as a JSON object, checked against the annotations. Supports dataclasses, TypedDict, NamedTuple,
    datetime, UUID, Decimal, Enum, bytes, and models of pydantic."""

    name = JSON_CODEC

    def prepare(self, signature: TaskSignature) -> ArgumentCodec:
        if signature.extra_name is not None or any(each.old_name for each in signature.arguments.values()):
            return JsonByName(signature)
        return JsonStruct(signature)


class _JsonCodec:
    def __init__(self, signature: TaskSignature) -> None:
        self._signature = signature
        self._untyped = [each.name for each in signature.arguments.values() if each.annotation is Any]

    def encode(self, arguments: Mapping[str, Any]) -> bytes:
        try:
            body = _encoder.encode(arguments)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise self._refuse(error) from error
        try:
            if not self._untyped:
                self.check(body)
                return body
            decoded = self.decode(body)
        except (UnknownArguments, Undecodable) as error:
            raise self._refuse(error) from error
        for name in self._untyped:
            if name in arguments and decoded[name] != arguments[name]:
                raise self._refuse(
                    f"{name} is {arguments[name]!r} and would arrive as {decoded[name]!r}. Annotate the parameter with "
                    "its type"
                )
        return body

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


class JsonStruct(_JsonCodec):
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
        except (msgspec.DecodeError, RecursionError) as error:
            raise Undecodable(f"The payload is not JSON: {error}") from error


class JsonByName(_JsonCodec):
    """For functions with renamed parameters or `**kwargs`: each argument is decoded on its own."""

    def __init__(self, signature: TaskSignature) -> None:
        super().__init__(signature)
        self._decoders = {
            each.name: _make_decoder(signature, repr(each.name), each.annotation)
            for each in signature.arguments.values()
        }
        self._renamed = {each.old_name: each.name for each in signature.arguments.values() if each.old_name}
        self._required = [each.name for each in signature.arguments.values() if each.is_required]
        self._extra = (
            None
            if signature.extra_name is None
            else _make_decoder(signature, signature.extra_name, signature.extra_annotation)
        )

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
            try:
                arguments[name] = decoder.decode(value)
            except msgspec.ValidationError as error:
                raise Undecodable(f"{error} (argument {name!r})") from error
        if missing := [name for name in self._required if name not in arguments]:
            raise Undecodable(f"The argument {missing[0]!r} is missing.")
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
    except (msgspec.DecodeError, RecursionError) as error:
        raise Undecodable(f"The payload is not a JSON object of arguments by name: {error}") from error


def _encode_model(value: Any) -> Any:
    """Convert a model of pydantic to JSON values."""
    dump = getattr(type(value), "model_dump", None)
    if dump is None:
        raise TypeError(f"a {type(value).__qualname__} cannot be written as JSON")
    return dump(value, mode="json")


def _decode_model(kind: type, value: Any) -> Any:
    """Convert JSON values to a model of pydantic."""
    validate = getattr(kind, "model_validate", None)
    if validate is None:
        raise TypeError(f"a {kind.__qualname__} cannot be read from JSON")
    return validate(value)


_encoder = msgspec.json.Encoder(enc_hook=_encode_model, decimal_format="string")
_raw_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
