"""OpenAPI schema, corrected where FastAPI's defaults differ from the actual responses."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from headrace.api.problems import MEDIA_TYPE

FASTAPI_ERROR_SCHEMAS = ("HTTPValidationError", "ValidationError")


def install(app: FastAPI) -> None:
    def describe() -> dict[str, Any]:
        if not app.openapi_schema:
            app.openapi_schema = _correct_schema(get_openapi(title=app.title, version=app.version, routes=app.routes))
        return app.openapi_schema

    app.openapi = describe


def _correct_schema(schema: dict[str, Any]) -> dict[str, Any]:
    for operation in [operation for path in schema.get("paths", {}).values() for operation in path.values()]:
        operation["responses"].pop("422", None)  # invalid requests get a 400
        for status, response in operation["responses"].items():
            if int(status) >= 400:
                response["content"] = {MEDIA_TYPE: response["content"]["application/json"]}
    for name in FASTAPI_ERROR_SCHEMAS:
        schema.get("components", {}).get("schemas", {}).pop(name, None)
    return schema
