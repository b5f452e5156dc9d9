"""Compare the dashboard's generated types with the OpenAPI description."""

from __future__ import annotations

from typing import Any

import pytest
from tools.dashboard_types import TARGET, format_type, generate_types

from tests.contract.sections import make_application

REWRITE = ".venv/bin/python tools/dashboard_types.py"


def test_the_types_of_the_dashboard_are_those_of_the_api() -> None:
    current = TARGET.read_text("utf-8") == generate_types(make_application().openapi())
    assert current, f"{TARGET.name} is out of date; generate it again and commit it: {REWRITE}"


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "integer"}, "number"),
        ({"type": "string", "format": "date-time"}, "string"),
        ({"type": "string", "enum": ["up", "down"]}, '"up" | "down"'),
        ({"anyOf": [{"type": "integer"}, {"type": "number"}, {"type": "null"}]}, "number | null"),
        ({"type": "array", "items": {"$ref": "#/components/schemas/Job"}}, "Job[]"),
        ({"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "null"}]}}, "(string | null)[]"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "Record<string, number>"),
        ({"type": "object", "additionalProperties": True}, "Record<string, unknown>"),
        ({"description": "anything"}, "unknown"),
    ],
)
def test_a_schema_has_a_type(schema: dict[str, Any], expected: str) -> None:
    assert format_type(schema) == expected


@pytest.mark.parametrize("schema", [{"allOf": [{"type": "string"}]}, {"type": "object", "properties": {}}])
def test_an_unsupported_schema_is_an_error(schema: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no TypeScript type"):
        format_type(schema)
