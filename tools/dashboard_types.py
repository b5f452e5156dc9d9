"""Generate the TypeScript types of API documents, ui/src/openapi.ts, from the OpenAPI description.

.venv/bin/python tools/dashboard_types.py

The result is committed, because the dashboard is also built where the API cannot be imported. It contains no
descriptions, so that it changes only with the contract. tests/contract/test_dashboard_types.py fails if it is out of
date.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "ui" / "src" / "openapi.ts"
REFERENCE = "#/components/schemas/"
HEADER = """\
/** Types of API documents. Generated from the OpenAPI description by tools/dashboard_types.py; do not edit. */
"""
PRIMITIVES = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}

Schema = Mapping[str, Any]


def main() -> None:
    sys.path.insert(0, str(ROOT))
    from tests.contract.sections import make_application

    TARGET.write_text(generate_types(make_application().openapi()), "utf-8")


def generate_types(description: Schema) -> str:
    """Return a TypeScript module with one exported type per component schema, in alphabetical order."""
    schemas: Mapping[str, Schema] = description["components"]["schemas"]
    return "\n".join([HEADER, *("\n".join(_declare(name, schemas[name])) for name in sorted(schemas))])


def _declare(name: str, schema: Schema) -> Iterator[str]:
    if "properties" not in schema:
        yield f"export type {name} = {format_type(schema)};\n"
        return
    required = schema.get("required", [])
    yield f"export interface {name} {{"
    for field, value in schema["properties"].items():
        key = field if field.isidentifier() else json.dumps(field)
        yield f"  {key}{'' if field in required else '?'}: {format_type(value)};"
    yield "}\n"


def format_type(schema: Schema) -> str:
    """Return the TypeScript type of a schema; raises ValueError for a schema that this generator does not support."""
    if reference := schema.get("$ref"):
        return str(reference).removeprefix(REFERENCE)
    if alternatives := schema.get("anyOf"):
        return " | ".join(dict.fromkeys(format_type(each) for each in alternatives))
    if values := schema.get("enum"):
        return " | ".join(json.dumps(each) for each in values)
    match schema.get("type"):
        case None if not schema.keys() - {"title", "description", "examples", "default"}:
            return "unknown"
        case "array":
            item = format_type(schema["items"])
            return f"({item})[]" if " | " in item else f"{item}[]"
        case "object" if "properties" not in schema:
            return _format_record(schema)
        case str(name) if name in PRIMITIVES:
            return PRIMITIVES[name]
        case _:
            raise ValueError(f"no TypeScript type for the schema {json.dumps(schema)}")


def _format_record(schema: Schema) -> str:
    values = schema.get("additionalProperties", True)
    value = "unknown" if values is True else format_type(values)
    if names := schema.get("propertyNames"):
        return f"Partial<Record<{format_type(names)}, {value}>>"
    return f"Record<string, {value}>"


if __name__ == "__main__":
    main()
