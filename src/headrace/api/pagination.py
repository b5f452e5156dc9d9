"""Cursor encoding and paging. A cursor marks the last item of a page and is opaque to clients."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter
from pydantic_core import to_json

from headrace.api.problems import Problem

T = TypeVar("T")
P = TypeVar("P")

MAX_PAGE = 500
MAX_CURSOR = 4096


class CursorCodec(Generic[P]):
    """Encodes positions in a list. `what` names the list and its order; cursors of another list are refused."""

    def __init__(self, place: Any) -> None:
        list_and_place: Any = tuple.__class_getitem__((str, place))
        self._adapter: TypeAdapter[tuple[str, P]] = TypeAdapter(list_and_place)

    def encode(self, what: str, place: P) -> str:
        return base64.urlsafe_b64encode(to_json((what, place))).decode().rstrip("=")

    def decode(self, what: str, text: str | None) -> P | None:
        if text is None:
            return None
        try:
            whole = text.encode() + b"=" * (-len(text) % 4)
            list_name, place = self._adapter.validate_json(base64.b64decode(whole, altchars=b"-_", validate=True))
        except ValueError:  # also the errors of base64 and pydantic
            list_name = place = None
        if list_name != what:
            raise Problem(
                400,
                "cursor: not valid for this list or sort order. Pass `next` of the previous page unchanged, with the "
                "same parameters, or omit it to start over.",
            )
        return place


def paginate(
    items: Sequence[T], key: Callable[[T], Any], after: Any | None, limit: int, down: bool = False
) -> tuple[list[T], bool]:
    """Return up to `limit` items whose key is beyond `after`, sorted by key (descending with `down`), and whether there
    are more."""
    rest = [item for item in items if after is None or (key(item) < after if down else key(item) > after)]
    rest.sort(key=key, reverse=down)
    return rest[:limit], len(rest) > limit


def keep_largest(items: Sequence[T], size: Callable[[T], int], most: int) -> list[T]:
    """Return the `most` items of the largest size, in their original order."""
    chosen = sorted(range(len(items)), key=lambda number: -size(items[number]))[:most]
    return [items[number] for number in sorted(chosen)]
