"""Which changes of tasks are compatible with jobs that wait."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pytest

from headrace import Headrace, LeasedJob, Renamed
from headrace.app.description import describe_tasks, make_schema
from headrace.app.evolution import find_incompatible, find_narrowing


@dataclass
class Small:
    a: int


@dataclass
class WithDefault:
    a: int
    b: int = 0


@dataclass
class WithMore:
    a: int
    b: int


@dataclass
class Tree:
    children: list[Tree]
    label: str = ""


class Point(NamedTuple):
    x: int
    y: int


class Words(TypedDict):
    a: str


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class MoreColours(Enum):
    RED = "red"
    BLUE = "blue"
    GREEN = "green"


ACCEPTED: list[tuple[Any, Any]] = [
    (int, int),
    (int, float),
    (int, int | None),
    (int, Any),
    (int, int | str),
    (int | None, int | str | None),
    (UUID, str),
    (datetime, str),
    (Colour, MoreColours),
    (Colour, str),
    (Literal["a"], Literal["a", "b"]),
    (list[int], list[float]),
    (dict[str, int], dict[str, int | None]),
    (Small, WithDefault),
    (WithMore, WithDefault),
    (WithMore, Small),
    (Tree, Tree),
    (Point, Point),
    (Annotated[int, msgspec.Meta(ge=2)], Annotated[int, msgspec.Meta(ge=1)]),
    (Annotated[int, msgspec.Meta(ge=2)], int),
    (tuple[int, int], list[int]),
]
REFUSED: list[tuple[Any, Any]] = [
    (Any, int),
    (float, int),
    (int | None, int),
    (int, str),
    (str, UUID),
    (str, Colour),
    (MoreColours, Colour),
    (Literal["a", "b"], Literal["a"]),
    (Literal["a"], int),
    (str, datetime),
    (list[int | None], list[int]),
    (list[int], tuple[int, int]),
    (tuple[int, str], tuple[int, int]),
    (dict[str, float], dict[str, int]),
    (Small, WithMore),
    (WithDefault, WithMore),
    (int, Annotated[int, msgspec.Meta(ge=1)]),
    (Annotated[str, msgspec.Meta(max_length=9)], Annotated[str, msgspec.Meta(max_length=8)]),
    (Words, Small),
]


@pytest.mark.parametrize(("old", "new"), ACCEPTED)
def test_wider_types_are_compatible(old: Any, new: Any) -> None:
    assert find_narrowing(make_schema(old), make_schema(new)) is None


@pytest.mark.parametrize(("old", "new"), REFUSED)
def test_narrower_types_are_not(old: Any, new: Any) -> None:
    assert find_narrowing(make_schema(old), make_schema(new))


def compare(old: Headrace, new: Headrace) -> list[str]:
    found = find_incompatible(describe_tasks(old.list_typed()), describe_tasks(new.list_typed()))
    return [f"{each.task}: {each.problem}" for each in found]


def make_app(function: Any, **options: Any) -> Headrace:
    app = Headrace()
    app.task("send", **options)(function)
    return app


def test_arguments() -> None:
    async def first(to: str) -> None: ...
    async def optional(to: str, copies: int = 1) -> None: ...
    async def required(to: str, copies: int) -> None: ...
    async def renamed(address: Annotated[str, Renamed("to")]) -> None: ...
    async def other(address: str) -> None: ...
    async def narrower(to: Decimal) -> None: ...
    async def anything(**others: str) -> None: ...
    async def nothing() -> None: ...

    old = make_app(first)
    assert compare(old, make_app(optional)) == []
    assert compare(old, make_app(renamed)) == []
    assert compare(old, make_app(anything)) == []
    assert compare(make_app(optional), old) == [], "it had a default before it was removed"
    assert compare(make_app(required), make_app(optional)) == []
    assert compare(old, make_app(required)) == [
        "send: the new argument 'copies' has no default: jobs that wait lack it."
    ]
    assert compare(make_app(optional), make_app(required)) == [
        "send: the argument 'copies' no longer has a default: jobs that wait may lack it."
    ]
    assert compare(old, make_app(nothing)) == ["send: the argument 'to' was removed."]
    assert compare(old, make_app(other)) == [
        "send: the argument 'to' was removed.",
        "send: the new argument 'address' has no default: jobs that wait lack it.",
    ]
    assert compare(old, make_app(narrower)) == ["send: the type of 'to' was narrowed: $ was string and is decimal."]
    assert compare(make_app(anything), make_app(nothing)) == [
        "send: `**kwargs` was removed: jobs may have further arguments."
    ]


def test_tasks() -> None:
    async def first(to: str) -> None: ...
    async def raw(job: LeasedJob) -> None: ...

    old = make_app(first, aliases=["mail"])
    renamed, other = Headrace(), Headrace()
    renamed.task("deliver", aliases=["send", "mail"])(first)
    other.task("deliver")(first)
    assert compare(old, renamed) == []
    assert compare(old, other) == ["send: its former name 'mail' was removed.", "send: the task was removed."]
    assert compare(make_app(first), make_app(first, external=True)) == ["send: the task is external now."]
    assert compare(make_app(first, external=True), Headrace()) == []
    assert compare(make_app(first), make_app(raw)) == ["send: it no longer takes the same kind of payload."]


def test_the_description_is_stable() -> None:
    async def send(to: str, items: list[Small], when: datetime | None = None) -> Tree: ...

    app = make_app(send)
    [described] = describe_tasks(app.list_typed())["tasks"]
    small = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    assert described["arguments"] == [
        {"name": "to", "required": True, "former_name": None, "schema": {"type": "string"}},
        {"name": "items", "required": True, "former_name": None, "schema": {"type": "array", "items": small}},
        {
            "name": "when",
            "required": False,
            "former_name": None,
            "schema": {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}]},
        },
    ]
    tree = {"type": "array", "items": {"x-python": "Tree"}}
    assert described["result"]["properties"] == {"children": tree, "label": {"type": "string"}}


def test_models_of_pydantic_are_described() -> None:
    from pydantic import BaseModel

    class Inner(BaseModel):
        a: int

    class Outer(BaseModel):
        inner: Inner

    class WithMore(BaseModel):
        inner: Inner
        b: str

    schema = make_schema(list[Outer])
    assert schema["items"]["properties"]["inner"]["properties"] == {"a": {"type": "integer"}}
    assert find_narrowing(make_schema(Outer), make_schema(WithMore)) == "$.b is required"
    assert find_narrowing(make_schema(WithMore), make_schema(Outer)) is None
