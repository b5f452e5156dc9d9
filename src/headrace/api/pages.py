"""Lists in pages: a cursor says after which item to go on. Callers treat it as text without meaning."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Generic, TypeVar

from fastapi import Query
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from headrace.api.problems import Problem

T = TypeVar("T")
P = TypeVar("P")

MAX_PAGE = 500
MAX_CURSOR = 4096

CursorText = Annotated[
    str | None, Query(max_length=MAX_CURSOR, description="`next` of the page before; with the same other parameters.")
]


class Cursor(Generic[P]):
    """Places in a list as text. `what` names the list and its order; a cursor of another one is refused."""

    def __init__(self, place: Any) -> None:
        said_and_place: Any = tuple.__class_getitem__((str, place))
        self._adapter: TypeAdapter[tuple[str, P]] = TypeAdapter(said_and_place)

    def text(self, what: str, place: P) -> str:
        return base64.urlsafe_b64encode(to_json((what, place))).decode().rstrip("=")

    def place(self, what: str, text: str | None) -> P | None:
        if text is None:
            return None
        try:
            whole = text.encode() + b"=" * (-len(text) % 4)
            said, place = self._adapter.validate_json(base64.b64decode(whole, altchars=b"-_", validate=True))
        except (ValidationError, binascii.Error, ValueError) as error:
            raise _foreign() from error
        if said != what:
            raise _foreign()
        return place


def page_of(
    items: Sequence[T], key: Callable[[T], Any], after: Any | None, limit: int, down: bool = False
) -> tuple[list[T], bool]:
    """The items whose key is beyond `after`, in order of their keys (or `down`), and whether there are more."""
    rest = [item for item in items if after is None or (key(item) < after if down else key(item) > after)]
    rest.sort(key=key, reverse=down)
    return rest[:limit], len(rest) > limit


def _foreign() -> Problem:
    return Problem(
        400,
        "cursor: it does not belong to this list, or to this order of it. Give `next` of the page before as it was "
        "answered, with the same other parameters; or start again without one.",
    )
