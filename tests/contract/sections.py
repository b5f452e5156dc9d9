"""Sections of the contract record: what users, stored data and other processes rely on, one line per item.

Descriptions, examples, help texts and Python names are left out, because they may change. The package is imported here
only, and in few places: the application, the command group, the settings and the declarations of formats.
"""

from __future__ import annotations

import gc
import hashlib
import importlib
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, cast

import click
from click.types import FuncParamType
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

import headrace
from headrace.api.app import create_app
from headrace.api.services import Services
from headrace.cli import main
from headrace.cli.postgres_schemas import POSTGRES_SCHEMAS
from headrace.model import event
from headrace.postgres import migrate as postgres
from headrace.settings import CONFIG_ENV, FILE_NAME, SETTINGS
from headrace.snapshot import queue_families as snapshot_queues
from headrace.spool import journal, meta, record, segment
from headrace.warehouse import migrate as warehouse
from tests.contract import extract

TEXTS = {"description", "example", "examples", "title", "summary"}
METRIC_TYPES = {"gauge", "counter", "histogram"}
METRIC_NAME = re.compile(r"(headrace|convoy)_[a-z0-9_]+")


def make_application() -> FastAPI:
    return create_app(Services("redis://127.0.0.1:1/0", "http://127.0.0.1:1", "x", 2))  # not connected to


# --- HTTP -------------------------------------------------------------------------------------------------------


def list_openapi() -> Iterator[str]:
    schema = make_application().openapi()
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            yield from _list_operation(f"{method.upper()} {path}", operation)
    for name, component in schema["components"]["schemas"].items():
        yield from _list_component(f"schema {name}", component)


def _list_operation(name: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield f"{name} operation {operation['operationId']}"
    for each in operation.get("parameters", []):
        required = " required" if each.get("required") else ""
        yield f"{name} {each['in']} {each['name']}{required}: {_format_schema(each['schema'])}"
    if body := operation.get("requestBody"):
        for media, content in body["content"].items():
            required = " required" if body.get("required") else ""
            yield f"{name} body{required} {media}: {_format_schema(content['schema'])}"
    for status, response in operation["responses"].items():
        for media, content in response.get("content", {"-": {}}).items():
            yield f"{name} {status} {media}: {_format_schema(content.get('schema', {}))}"


def _list_component(name: str, component: Mapping[str, Any]) -> Iterator[str]:
    required = component.get("required", [])
    for field, schema in component.get("properties", {}).items():
        yield f"{name} .{field}{' required' if field in required else ''}: {_format_schema(schema)}"
    others = {key: value for key, value in component.items() if key not in ("properties", "required")}
    yield f"{name}: {_format_schema(others)}"


def _format_schema(schema: Any) -> str:
    return json.dumps(_remove_texts(schema), sort_keys=True, ensure_ascii=False)


def _remove_texts(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_remove_texts(each) for each in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    pairs = cast("dict[str, Any]", schema).items()
    return {key: _remove_texts(value) for key, value in pairs if key not in TEXTS or not isinstance(value, str | list)}


def list_answers() -> Iterator[str]:
    """Yield keys of JSON documents that are not OpenAPI models: answers of routes, and all others."""
    for route in _list_routes(make_application()):
        function = extract.find_function(route.endpoint)
        for path in {*extract.find_written_paths(function), *extract.find_returned_paths(function)}:
            yield f"{','.join(sorted(route.methods))} {route.path}: {path}"
    commands = main.headrace.callback
    assert commands is not None
    package = commands.__module__.rpartition(".")[0]
    yield from (f"document: {line}" for line in extract.find_documents(f"{package}."))
    yield from (f"fields: {line}" for line in extract.find_matched_fields())


def _list_routes(app: FastAPI) -> list[Any]:
    found: list[Any] = []
    pending: list[Any] = list(app.routes)
    while pending:
        route = pending.pop()
        pending += getattr(getattr(route, "original_router", None), "routes", [])
        if getattr(route, "endpoint", None) and route.endpoint.__module__.startswith("headrace.") and route.methods:
            found.append(route)
    return found


# --- Settings, commands -----------------------------------------------------------------------------------------


SAMPLES = (
    *("", "1", "100", "0.5", "10s", "1h", "1MiB", "50%", "true", "word", "a.b", "a@b", "a,b", "host:1", "/path", "a/b"),
    *("redis://h/", "postgresql://h/", "http://h/", "https://h/", "10.0.0.0/8", '{"a": ["b"]}'),
)
"""Values that some settings accept and others do not: they show the type of a setting without its description."""


def list_settings() -> Iterator[str]:
    yield f"file {FILE_NAME}"
    yield f"file named by {CONFIG_ENV}"
    for each in SETTINGS.values():
        literals = sorted(set(re.findall(r"`[^`]+`|\d[\w.%]*", each.kind.allowed)))
        accepted = [sample for sample in SAMPLES if _accepts(each.kind.parse, sample)]
        yield f"{each.key} {each.env} default {each.format(each.default)!r}"
        yield f"{each.key} accepts {json.dumps(accepted)}, names {' '.join(literals)}".removesuffix(", names ")


def _accepts(parse: Callable[[object], object], text: str) -> bool:
    try:
        parse(text)
    except (ValueError, KeyError):
        return False
    return True


def list_commands() -> Iterator[str]:
    for path, command in _walk_commands(main.headrace, "headrace"):
        yield f"{path}: {'group' if isinstance(command, click.Group) else 'command'}"
        for each in command.params:
            yield f"{path} {_format_parameter(each)}"
        arguments = [each.human_readable_name for each in command.params if isinstance(each, click.Argument)]
        if arguments:
            yield f"{path} arguments in this order: {' '.join(arguments)}"


def _walk_commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            _, found, _ = command.resolve_command(context, [name])
            assert found is not None
            yield from _walk_commands(found, f"{path} {name}")


def _format_parameter(each: click.Parameter) -> str:
    facts = each.to_info_dict()
    is_click = type(each.type).__module__.startswith("click") and not isinstance(each.type, FuncParamType)
    limits = {key: value for key, value in facts["type"].items() if key not in ("name", "param_type") and value}
    shown: dict[str, object] = {
        **({"default": facts["default"]} if _is_plain(facts["default"]) else {}),
        **{key: True for key in ("required", "multiple", "is_flag", "count") if facts.get(key)},
        **({"nargs": facts["nargs"]} if facts["nargs"] != 1 else {}),
        **({"type": facts["type"]["param_type"]} if is_click else {}),
        **{key: value for key, value in limits.items() if is_click and _is_plain(value)},
    }
    names = [each.human_readable_name] if isinstance(each, click.Argument) else [*each.opts, *each.secondary_opts]
    return f"{facts['param_type_name']} {' '.join(names)} {json.dumps(shown, sort_keys=True)}"


def _is_plain(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, cast("list[object]", value)))
    return isinstance(value, str | int | float | bool)


def list_command_json() -> Iterator[str]:
    """Yield the keys of the documents that commands print with `--json`."""
    for path, command in _walk_commands(main.headrace, "headrace"):
        if any("--json" in each.opts for each in command.params):
            assert command.callback is not None
            found = extract.find_written_paths(extract.find_function(command.callback))
            assert found, f"{path} --json: no keys were found. Let tests/contract/shapes.py follow how it is written."
            yield from (f"{path}: {key}" for key in found)


# --- Metrics, logs ----------------------------------------------------------------------------------------------


def list_metrics() -> Iterator[str]:
    per_queue = {each.name for each in snapshot_queues.QUEUE_FAMILIES}
    for name, kind, labels in map(_read_declared_metric, _list_module_values()):
        if name:
            yield _format_metric(name, kind, (*(snapshot_queues.TENANT if name in per_queue else ()), *labels))
    for file in sorted(Path(headrace.__file__).parent.rglob("presets/*.toml")):
        for family in tomllib.loads(file.read_text("utf-8"))["family"]:
            yield _format_metric(family["name"], family.get("type", "gauge"), family.get("labels", []))
    yield from _list_registered(_find_registry(make_application().state.instruments))


def _format_metric(name: str, kind: str, labels: Iterable[str]) -> str:
    return f"{name} {kind} ({', '.join(labels)})"


def _list_module_values(pattern: str = r"[\"'](headrace|convoy)_[a-z]") -> Iterator[object]:
    """Yield the top-level values of modules whose source matches, and the items of tuples and lists among them."""
    for name in [name for name, module in extract.load_modules().items() if re.search(pattern, module.text)]:
        for value in vars(importlib.import_module(name)).values():
            yield value
            if isinstance(value, tuple | list):
                yield from cast("tuple[object, ...]", value)


def _read_declared_metric(value: object) -> tuple[str, str, tuple[str, ...]]:
    """Return name, type and labels of a metric declaration, recognised by its values; empty for anything else."""
    if not type(value).__module__.startswith("headrace.") or isinstance(value, type):
        return "", "", ()
    values = [getattr(value, name) for name in dir(value) if not name.startswith("_")]
    names = [each for each in values if isinstance(each, str) and METRIC_NAME.fullmatch(each)]
    kinds = [each for each in values if isinstance(each, str) and each in METRIC_TYPES]
    labels = [each for each in values if isinstance(each, tuple)]
    if len(names) != 1 or len(kinds) != 1:
        return "", "", ()
    return names[0], kinds[0], max(labels, key=len, default=())


def _find_registry(holder: object) -> CollectorRegistry:
    return next(each for each in vars(holder).values() if isinstance(each, CollectorRegistry))


def _list_registered(registry: CollectorRegistry) -> Iterator[str]:
    for collector in cast("dict[Any, Any]", vars(registry)["_collector_to_names"]):
        if hasattr(collector, "_labelnames"):
            (family,) = collector.describe()
            suffix = "_total" if family.type == "counter" else ""
            yield _format_metric(family.name + suffix, family.type, collector._labelnames)


def list_names() -> Iterator[str]:
    """Yield names in log lines, in the audit log and in rows."""
    yield from (f"log action {name}" for name in extract.find_log_actions())
    yield from (f"audit action {name}" for name in extract.find_audit_actions() - SETTINGS.keys())
    yield from (f"lease {name}" for name in extract.find_lease_names())
    for each in _list_module_values(r"[\"']health:"):
        if isinstance(name := getattr(each, "id", None), str) and name.startswith("health:"):
            yield f"rule {name}"


# --- Stored data ------------------------------------------------------------------------------------------------


def list_valkey() -> Iterator[str]:
    yield from (f"declared key {line}" for line in extract.find_declared_keys())
    yield from (f"key in Python {line}" for line in extract.find_valkey_keys())
    yield from (f"field in Python {line}" for line in extract.find_valkey_fields())
    yield from (f"key or field in Lua {line}" for line in extract.find_lua_keys())
    yield from (f"word in Lua {line}" for line in extract.find_lua_words())


def list_events() -> Iterator[str]:
    for number, column in enumerate(event.COLUMNS):
        yield f"column {number:02} {column.name} {column.kind}"
    for number, (verb, column) in enumerate(event.COUNT_COLUMN.items()):
        yield f"verb {number:02} {verb} {column}"
    yield f"layout version {event.VERSION}"
    yield f"layout field {event.FIELD!r} separator {event.SEPARATOR!r} in lists {event.LIST_SEPARATOR!r}"
    yield f"other {event.RESYNC}"
    yield f"other {event.TICK}"
    yield from (f"packed {line}" for line in event.generate_event_lua().splitlines())


def list_spool() -> Iterator[str]:
    """Yield encoded records with fixed values, layouts, versions and file names of a spool."""
    pairs, part = {"table": "t"}, record.RecordPart(1, 2, 3)
    extras = record.pack_extras("token", pairs, {"mark": "1"}, part)
    for name, data in {
        "record": record.encode(7, 8, b"payload" * 20, 9, 10, 11, extras, record.PART),
        "record without extras": record.encode(7, 8, b"payload", 9, 10, compress=False),
        "void": record.encode_void(7, 8, 9, durable=10, marks={"mark": "1"}),
    }.items():
        yield f"{name} {data.hex()}"
    for module in (record, segment, journal, meta):
        yield from _list_formats(module)
    yield from (f"file {name}" for name in _find_spool_names())


def _list_formats(module: Any) -> Iterator[str]:
    """Yield struct layouts, magic bytes and versions of a module, by value."""
    where = module.__name__.rpartition(".")[2]
    for name, value in vars(module).items():
        if type(value).__name__ == "Struct":
            yield f"{where} struct {value.format}"
        elif isinstance(value, bytes) and name.isupper():
            yield f"{where} bytes {value!r}"
        elif isinstance(value, int) and "VERSION" in name:
            yield f"{where} version {value}"


def _find_spool_names() -> set[str]:
    """Return the names and suffixes of files that are constants in the source."""
    sources = [module.text for name, module in extract.load_modules().items() if ".spool" in name or ".export" in name]
    pattern = r"^\w+ = \"(\.[a-z]+|spool\.[a-z]+|quarantine|dead)\""
    return {name for text in sources for name in re.findall(pattern, text, re.MULTILINE)}


def list_migrations() -> Iterator[str]:
    for each in postgres.list_migrations(POSTGRES_SCHEMAS):
        yield f"postgres {each.name} {each.checksum}"
    for each in warehouse.load_migrations():
        yield f"clickhouse {each.name} {each.checksum}"
    for name, statement in (("postgres", postgres.CREATE_TABLE), ("clickhouse", warehouse.APPLIED)):
        yield f"{name} table of migrations {hashlib.sha256(statement.encode()).hexdigest()}"


SECTIONS: dict[str, Callable[[], Iterator[str]]] = {
    "openapi": list_openapi,
    "answers": list_answers,
    "settings": list_settings,
    "commands": list_commands,
    "command_json": list_command_json,
    "metrics": list_metrics,
    "names": list_names,
    "valkey": list_valkey,
    "events": list_events,
    "spool": list_spool,
    "migrations": list_migrations,
}


@cache
def read_contract() -> dict[str, list[str]]:
    """Return the lines of each section, sorted and without duplicates. Sections are always read in this order."""
    gc.disable()  # half of the time: the syntax trees are hundreds of thousands of objects
    try:
        return {name: sorted(set(section())) for name, section in SECTIONS.items()}
    finally:
        gc.enable()
