"""What the shapes of requests and answers are made of."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from headrace.history.presenter import iso
from headrace.model.names import MAX_NAME_BYTES, name_problem

MAX_ERROR_TEXT = 500

Time = Annotated[str, Field(json_schema_extra={"format": "date-time"})]


def _named(name: str) -> str:
    if problem := name_problem(name):
        raise ValueError(f"a name that {problem}")
    return name


def _named_or_empty(name: str) -> str:
    return _named(name) if name else name


def _plain(text: str) -> str:
    """PostgreSQL keeps no NUL in a text, so none can contain one."""
    if "\x00" in text:
        raise ValueError("text with a NUL in it, which no text here has")
    return text


def _visible(text: str) -> str:
    if not text.isprintable():
        raise ValueError("text of visible characters only")
    return text


Name = Annotated[str, AfterValidator(_named), Field(min_length=1, max_length=MAX_NAME_BYTES)]
NameOrEmpty = Annotated[str, AfterValidator(_named_or_empty), Field(max_length=MAX_NAME_BYTES)]
Visible = Annotated[str, AfterValidator(_visible)]
ErrorText = Annotated[str, AfterValidator(_plain), Field(max_length=MAX_ERROR_TEXT)]


class Asked(BaseModel):
    """What callers send: a field that does not exist is an error, not ignored."""

    model_config = ConfigDict(extra="forbid")


def time_text(milliseconds: int | None) -> str | None:
    return None if milliseconds is None else iso(milliseconds)
