"""Types shared by all request and response models."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from headrace.history.presenter import iso
from headrace.model.names import MAX_NAME_BYTES, name_problem

MAX_ERROR_TEXT = 500

Time = Annotated[str, Field(json_schema_extra={"format": "date-time"})]


def _named(name: str) -> str:
    if problem := name_problem(name):
        raise ValueError(f"name {problem}")
    return name


def _named_or_empty(name: str) -> str:
    return _named(name) if name else name


def _plain(text: str) -> str:
    """Refuse NUL, which PostgreSQL cannot store in text."""
    if "\x00" in text:
        raise ValueError("must not contain NUL")
    return text


def _visible(text: str) -> str:
    if not text.isprintable():
        raise ValueError("only printable characters are allowed")
    return text


Name = Annotated[str, AfterValidator(_named), Field(min_length=1, max_length=MAX_NAME_BYTES)]
NameOrEmpty = Annotated[str, AfterValidator(_named_or_empty), Field(max_length=MAX_NAME_BYTES)]
Visible = Annotated[str, AfterValidator(_visible)]
ErrorText = Annotated[str, AfterValidator(_plain), Field(max_length=MAX_ERROR_TEXT)]


class Asked(BaseModel):
    """Base of request bodies; unknown fields are an error."""

    model_config = ConfigDict(extra="forbid")


def time_text(milliseconds: int | None) -> str | None:
    return None if milliseconds is None else iso(milliseconds)
