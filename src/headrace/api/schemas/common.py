"""Types shared by all request and response models."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from headrace.model.names import MAX_NAME_BYTES, find_name_problem
from headrace.model.time import format_iso_ms

MAX_ERROR_TEXT = 500


def format_time(at: datetime) -> str:
    return format_iso_ms(int(at.timestamp() * 1000))


def _format_if_datetime(value: object) -> object:
    return format_time(value) if isinstance(value, datetime) else value


Time = Annotated[str, BeforeValidator(_format_if_datetime), Field(json_schema_extra={"format": "date-time"})]
"""ISO 8601 text; models also accept a datetime, and format it."""


def _check_name(name: str) -> str:
    if problem := find_name_problem(name):
        raise ValueError(f"name {problem}")
    return name


def _check_name_or_empty(name: str) -> str:
    return _check_name(name) if name else name


def _check_text(text: str) -> str:
    """Refuse NUL, which PostgreSQL cannot store in text."""
    if "\x00" in text:
        raise ValueError("must not contain NUL")
    return text


def _check_printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("only printable characters are allowed")
    return text


Name = Annotated[str, AfterValidator(_check_name), Field(min_length=1, max_length=MAX_NAME_BYTES)]
NameOrEmpty = Annotated[str, AfterValidator(_check_name_or_empty), Field(max_length=MAX_NAME_BYTES)]
PrintableText = Annotated[str, AfterValidator(_check_printable)]
ErrorText = Annotated[str, AfterValidator(_check_text), Field(max_length=MAX_ERROR_TEXT)]


class RequestBody(BaseModel):
    """Base of request bodies; unknown fields are an error."""

    model_config = ConfigDict(extra="forbid")


def format_time_ms(milliseconds: float | None) -> str | None:
    return None if milliseconds is None else format_iso_ms(int(milliseconds))
