"""Compares two descriptions of tasks: could the newer code run every job that the older code has enqueued?

The rules: a new argument has a default; an argument is removed after a release in which it had one; a type is never
narrowed; a task or argument is renamed with its former name. Workers are deployed before producers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

Description = Mapping[str, Any]

# Keyword of JSON Schema → 1 if a larger value allows less, -1 if a smaller one does.
_BOUNDS = {
    "minimum": 1,
    "exclusiveMinimum": 1,
    "minLength": 1,
    "minItems": 1,
    "minProperties": 1,
    "maximum": -1,
    "exclusiveMaximum": -1,
    "maxLength": -1,
    "maxItems": -1,
    "maxProperties": -1,
}
_EXACT = ("format", "pattern", "contentEncoding", "multipleOf", "x-python")


@dataclass(frozen=True)
class Incompatibility:
    """A change after which jobs of the older code fail, and what to do instead."""

    task: str
    problem: str
    advice: str

    def __str__(self) -> str:
        return f"{self.task}: {self.problem} {self.advice}"


def find_incompatible(old: Description, new: Description) -> list[Incompatibility]:
    """Return the incompatible changes from one description to a later one, by task."""
    known = {name: task for task in new["tasks"] for name in (task["name"], *task["aliases"])}
    return [problem for task in old["tasks"] for problem in _compare_task(task, known)]


def _compare_task(old: Description, known: Mapping[str, Description]) -> Iterator[Incompatibility]:
    if old["external"]:
        return  # its jobs run elsewhere
    name = old["name"]
    new = known.get(name)
    for alias in old["aliases"]:
        if alias not in known:
            advice = f"Keep it in `aliases` until no job of {alias!r} waits."
            yield Incompatibility(name, f"its former name {alias!r} was removed.", advice)
    if new is None:
        advice = f"Keep the task until no job of it waits, or add aliases=[{name!r}] to its successor."
        yield Incompatibility(name, "the task was removed.", advice)
    elif new["external"]:
        advice = "Keep a worker that runs its jobs until none waits, or until another application has the task."
        yield Incompatibility(name, "the task is external now.", advice)
    elif old["raw"] != new["raw"]:
        advice = "Declare a task of another name, and keep this one until no job of it waits."
        yield Incompatibility(name, "it no longer takes the same kind of payload.", advice)
    else:
        for problem, advice in _compare_arguments(old, new):
            yield Incompatibility(name, problem, advice)


def _compare_arguments(old: Description, new: Description) -> Iterator[tuple[str, str]]:
    before: dict[str, Description] = {each["name"]: each for each in old["arguments"]}
    after: dict[str, Description] = {each["name"]: each for each in new["arguments"]}
    former = {each["former_name"]: each for each in new["arguments"] if each["former_name"]}
    for name, argument in before.items():
        successor = after.get(name) or former.get(name)
        if successor is not None:
            yield from _compare_argument(name, argument, successor)
        elif new["further"] is not None:
            yield from _compare_types(name, argument["schema"], new["further"])
        elif argument["required"]:
            yield (
                f"the argument {name!r} was removed.",
                "Give it a default first, and remove it in a later release; to rename it, add "
                f'`Annotated[..., Renamed("{name}")]` to the new one.',
            )
    for name, argument in after.items():
        is_new = name not in before and argument["former_name"] not in before
        if is_new and argument["required"] and old["further"] is None:
            yield f"the new argument {name!r} has no default: jobs that wait lack it.", "Give it a default."
    if old["further"] is not None:
        if new["further"] is None:
            yield "`**kwargs` was removed: jobs may have further arguments.", "Keep it until no such job waits."
        else:
            yield from _compare_types("**kwargs", old["further"], new["further"])


def _compare_argument(name: str, old: Description, new: Description) -> Iterator[tuple[str, str]]:
    if new["required"] and not old["required"]:
        yield f"the argument {name!r} no longer has a default: jobs that wait may lack it.", "Keep the default."
    yield from _compare_types(name, old["schema"], new["schema"])


def _compare_types(name: str, old: Description, new: Description) -> Iterator[tuple[str, str]]:
    if problem := find_narrowing(old, new):
        yield (
            f"the type of {name!r} was narrowed: {problem}.",
            "Accept both types, or add an argument of another name with a default.",
        )


def find_narrowing(old: Description, new: Description, path: str = "$") -> str | None:
    """Return why a value of the older JSON Schema may not be valid for the newer one; None: every one is."""
    if not new or old == new:
        return None
    choices, allowed = _list_alternatives(old), _list_alternatives(new)
    if len(choices) > 1 or len(allowed) > 1:
        for choice in choices:
            if all(find_narrowing(choice, each, path) for each in allowed):
                return f"{path} was {_describe(choice)}, which it no longer may be"
        return None
    return _find_simple_narrowing(choices[0], allowed[0], path)


def _list_alternatives(schema: Description) -> list[Description]:
    for keyword in ("anyOf", "oneOf"):
        if keyword in schema:
            found = cast("list[Description]", schema[keyword])
            return [inner for each in found for inner in _list_alternatives(each)]
    return [schema]


def _find_simple_narrowing(old: Description, new: Description, path: str) -> str | None:
    if not new or old == new:
        return None
    changed = f"{path} was {_describe(old)} and is {_describe(new)}"
    if "enum" in new or "const" in new:
        missing = [value for value in _list_values(old) if value not in _list_values(new)]
        if missing or not _list_values(old):
            return f"{path} no longer allows {missing[0]!r}" if missing else changed
        return None
    if _list_values(old):
        kinds = {_name_type(value) for value in _list_values(old)}
        return None if all(_is_type_allowed(kind, new.get("type")) for kind in kinds) else changed
    if not _is_type_allowed(old.get("type"), new.get("type")):
        return changed
    if any(name in new and old.get(name) != new[name] for name in _EXACT):
        return changed
    for name, sign in _BOUNDS.items():
        if name in new and (name not in old or new[name] * sign > old[name] * sign):
            return f"{path} has the bound {name} {new[name]}"
    return _find_member_narrowing(old, new, path)


def _find_member_narrowing(old: Description, new: Description, path: str) -> str | None:
    """Compare the items of arrays and the members of objects."""
    before, after = old.get("properties", {}), new.get("properties", {})
    for name in new.get("required", ()):
        if name not in old.get("required", ()):
            return f"{path}.{name} is required"
    for name, schema in after.items():
        if name in before and (problem := find_narrowing(before[name], schema, f"{path}.{name}")):
            return problem
    others_before, others_after = old.get("additionalProperties", True), new.get("additionalProperties", True)
    if others_after is False and (others_before is not False or before.keys() - after.keys()):
        return f"{path} no longer allows further members"
    if isinstance(others_after, dict) and "additionalProperties" in old and others_before is not False:
        values = cast(Description, others_before) if isinstance(others_before, dict) else {}
        if problem := find_narrowing(values, cast(Description, others_after), f"{path}[key]"):
            return problem
    items_before, items_after = old.get("prefixItems", []), new.get("prefixItems", [])
    for number, (one, other) in enumerate(zip(items_before, items_after, strict=False)):
        if problem := find_narrowing(one, other, f"{path}[{number}]"):
            return problem
    if isinstance(new.get("items"), dict):
        inner: Any = old.get("items", {})
        for schema in (*items_before[len(items_after) :], *([inner] if inner is not False else [])):
            if problem := find_narrowing(cast(Description, schema), new["items"], f"{path}[]"):
                return problem
    elif new.get("items") is False and old.get("items", True) is not False:
        return f"{path} has a fixed number of items"
    return None


def _list_values(schema: Description) -> list[Any]:
    return [schema["const"]] if "const" in schema else list(schema.get("enum", ()))


def _is_type_allowed(old: object, new: object) -> bool:
    return new is None or old == new or (old == "integer" and new == "number")


def _name_type(value: object) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    return "integer" if isinstance(value, int) else "number" if isinstance(value, float) else "string"


def _describe(schema: Description) -> str:
    if values := _list_values(schema):
        return f"one of {values}"
    kind = schema.get("format") or schema.get("contentEncoding") or schema.get("x-python") or schema.get("type")
    return "any value" if kind is None else str(kind)
