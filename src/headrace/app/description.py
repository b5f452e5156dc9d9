"""A description of tasks as JSON: names and the types of arguments. It depends on the code alone, so that two releases
of an application can be compared (evolution.py)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, time
from types import UnionType
from typing import Annotated, Any, Union, cast, get_args, get_origin

import msgspec

from headrace.app.task import Task

VERSION = 1

Schema = dict[str, Any]

_TIMES: dict[Any, str] = {datetime: "date-time", time: "time"}
_CONTAINERS: tuple[Any, ...] = (Union, UnionType, list, tuple, dict, set, frozenset)


def describe_tasks(tasks: Iterable[Task[Any, Any]]) -> dict[str, Any]:
    """Return the description of tasks, sorted by name. Raises TaskInvalid if an annotation cannot be resolved."""
    ordered = sorted(tasks, key=lambda task: task.name)
    return {"version": VERSION, "tasks": [describe_task(task) for task in ordered]}


def describe_task(task: Task[Any, Any]) -> dict[str, Any]:
    """Return the description of a task. A task that takes the job as it is (`raw`) has no arguments."""
    signature = task.signature
    described: dict[str, Any] = {
        "name": task.name,
        "aliases": sorted(task.settings.aliases),
        "external": task.settings.external,
        "raw": signature.is_raw,
        "arguments": [],
        "further": None,
        "result": None,
    }
    if signature.is_raw:
        return described
    described["arguments"] = [
        {
            "name": each.name,
            "required": each.is_required,
            "former_name": each.old_name,
            "schema": make_schema(each.annotation),
        }
        for each in signature.arguments.values()
    ]
    if signature.extra_name is not None:
        described["further"] = make_schema(signature.extra_annotation)
    described["result"] = make_schema(signature.result_annotation)
    return described


def make_schema(annotation: Any) -> Schema:
    """Return the JSON Schema of an annotation, without references. A type that only another codec than JSON supports is
    described by its name."""
    try:
        named = _name_times(annotation)
        schema = msgspec.json.schema(named, schema_hook=_describe_model, ref_template="#/$defs/{name}")
    except (TypeError, NotImplementedError):
        return {"x-python": str(annotation)}
    return _inline(schema, {}, ())


def _name_times(annotation: Any) -> Any:
    """Return an annotation in which times have a format, also within lists and unions: msgspec describes those that may
    lack a time zone as any text."""
    if annotation in _TIMES:
        return Annotated[annotation, msgspec.Meta(extra_json_schema={"format": _TIMES[annotation]})]
    origin, args = get_origin(annotation), get_args(annotation)
    if origin not in _CONTAINERS or (named := tuple(map(_name_times, args))) == args:
        return annotation
    return Union[named] if origin in (Union, UnionType) else origin[named]  # noqa: UP007 (any number of types)


def _describe_model(kind: type) -> Schema:
    """Return the schema of a model of pydantic."""
    describe = getattr(kind, "model_json_schema", None)
    if describe is None:
        raise NotImplementedError
    return cast(Schema, describe())


def _inline(value: Any, outer: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    """Return a schema with its references replaced by what they refer to. A type that contains itself is named there.
    Titles and descriptions are left out: a changed docstring changes no job."""
    if isinstance(value, list):
        return [_inline(each, outer, path) for each in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    schema = cast(Schema, value)
    definitions = {**outer, **schema.get("$defs", {})}
    reference = schema.get("$ref")
    if isinstance(reference, str):
        name = reference.rpartition("/")[2]
        if name in path or name not in definitions:
            return {"x-python": name}
        return _inline(definitions[name], definitions, (*path, name))
    left_out = ("$defs", "title", "description", "default", "examples")
    return {
        key: _inline_properties(each, definitions, path) if key == "properties" else _inline(each, definitions, path)
        for key, each in schema.items()
        if key not in left_out
    }


def _inline_properties(properties: Schema, outer: Mapping[str, Any], path: tuple[str, ...]) -> Schema:
    return {name: _inline(each, outer, path) for name, each in properties.items()}
