"""Parses HTTP requests like ClickHouse: URL parameters, headers, forms, and the body as a stream of plain bytes.

The statement is the URL parameter `query`, the body, or both. Parameters `param_*` are typed parameters, a few belong
to the transport, and all others are settings, which the engine checks. Multipart forms carry external tables, and
parameters that are too long for a URL. Only forms are held in memory.
"""

from __future__ import annotations

import base64
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import parse_qsl

from starlette.requests import Request

from headrace.embedded import http_coding
from headrace.embedded.clickhouse_engine import QueryFailed
from headrace.embedded.clickhouse_statement import name_external_columns

MAX_STATEMENT_BYTES = 64 * 1024 * 1024  # for SQL text and forms; the data of an INSERT is not limited

_TRANSPORT_PARAMETERS = frozenset(
    {
        "query",
        "database",
        "default_format",
        "query_id",
        "session_id",
        "session_timeout",
        "session_check",
        "user",
        "password",
        "quota_key",
        "role",
        "stacktrace",
        "compress",
        "decompress",
        "wait_end_of_query",
        "buffer_size",
        "client_protocol_version",
    }
)
_FORM_NAME = re.compile(rb'[; ]name="([^"]*)"')


class ExternalTable(NamedTuple):
    """Data sent with a query: its table name, columns, format and bytes."""

    name: str
    columns: str
    format: str
    data: bytes


@dataclass(frozen=True, slots=True)
class ClickHouseRequest:
    """Parameters of a request, without its body."""

    query: bytes
    database: str
    default_format: str
    settings: Mapping[str, str]
    binds: Mapping[str, str]
    coding: str | None  # content coding of the response
    external: tuple[ExternalTable, ...]


async def parse_request(request: Request, body: AsyncIterator[bytes]) -> ClickHouseRequest:
    """Parse the URL and headers of a request, and its body if that is a form. Raises QueryFailed."""
    form, files = await _read_form(request, body)
    given = dict(parse_qsl(request.url.query, keep_blank_values=True)) | form
    _check_supported(given)
    external = tuple(_build_external_table(name, data, given) for name, data in files.items())
    settings = _select_settings(given, external)
    if request.method == "GET" and settings.get("readonly", "0") == "0":
        settings["readonly"] = "2"  # not 1, which would reject the other settings of this request
    wants_coding = settings.get("enable_http_compression") in ("1", "true")
    headers = request.headers
    return ClickHouseRequest(
        query=given.get("query", "").rstrip().encode(),
        database=given.get("database") or headers.get("x-clickhouse-database", ""),
        default_format=given.get("default_format") or headers.get("x-clickhouse-format", "TabSeparated"),
        settings=settings,
        binds={name.removeprefix("param_"): text for name, text in given.items() if name.startswith("param_")},
        coding=http_coding.choose_coding(headers.get("accept-encoding", "")) if wants_coding else None,
        external=external,
    )


def find_credentials(request: Request) -> tuple[str, str]:
    """Return the user and password of a request in any of ClickHouse's forms; empty if it has none."""
    headers, parameters = request.headers, request.query_params
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "basic":
        try:
            user, _, password = base64.b64decode(token, validate=True).decode().partition(":")
        except ValueError:
            return "", ""
        return user, password
    if "x-clickhouse-user" in headers:
        return headers["x-clickhouse-user"], headers.get("x-clickhouse-key", "")
    return parameters.get("user", ""), parameters.get("password", "")


async def iter_body(request: Request) -> AsyncIterator[bytes]:
    """Yield the decompressed body as it arrives. Raises QueryFailed for an unsupported coding or an invalid body."""
    coding = request.headers.get("content-encoding", "identity").lower()
    if coding == "identity":
        chunks = request.stream()
    elif coding in http_coding.SUPPORTED:
        chunks = http_coding.decode_body(request.stream(), coding)
    else:
        reason = f"Unsupported Content-Encoding {coding}; supported: {', '.join(http_coding.SUPPORTED)}"
        raise QueryFailed.from_endpoint(48, "NOT_IMPLEMENTED", reason)
    try:
        async for chunk in chunks:
            yield chunk
    except http_coding.InvalidBody as error:
        raise QueryFailed.from_endpoint(117, "INCORRECT_DATA", str(error)) from error


async def read_at_least(chunks: AsyncIterator[bytes], size: int) -> bytes:
    """Read at least `size` bytes, or all remaining bytes if there are fewer."""
    read: list[bytes] = []
    async for chunk in chunks:
        read.append(chunk)
        size -= len(chunk)
        if size <= 0:
            break
    return b"".join(read)


async def read_statement(chunks: AsyncIterator[bytes]) -> bytes:
    """Read all remaining bytes. Raises QueryFailed if there are more than MAX_STATEMENT_BYTES."""
    text = await read_at_least(chunks, MAX_STATEMENT_BYTES + 1)
    if len(text) > MAX_STATEMENT_BYTES:
        limit = f"{MAX_STATEMENT_BYTES >> 20} MiB"
        raise QueryFailed.from_endpoint(229, "QUERY_IS_TOO_LARGE", f"Statements and forms are limited to {limit}")
    return text


def _check_supported(given: Mapping[str, str]) -> None:
    for name in ("compress", "decompress"):
        if given.get(name, "0") not in ("0", ""):
            reason = f"{name}=1 is not supported: use enable_http_compression=1, Accept-Encoding, Content-Encoding"
            raise QueryFailed.from_endpoint(48, "NOT_IMPLEMENTED", reason)
    if given.get("session_check", "0") == "1":
        raise QueryFailed.from_endpoint(
            372, "SESSION_NOT_FOUND", "Session not found: this endpoint does not support sessions"
        )


def _select_settings(given: Mapping[str, str], external: tuple[ExternalTable, ...]) -> dict[str, str]:
    described = {f"{table.name}_{kind}" for table in external for kind in ("format", "structure", "types")}
    elsewhere = _TRANSPORT_PARAMETERS | described
    return {name: value for name, value in given.items() if name not in elsewhere and not name.startswith("param_")}


def _build_external_table(name: str, data: bytes, given: Mapping[str, str]) -> ExternalTable:
    types = given.get(f"{name}_types", "")
    columns = given.get(f"{name}_structure") or (name_external_columns(types) if types else "")
    if not columns:
        reason = f"External table {name} needs the URL parameter {name}_structure or {name}_types"
        raise QueryFailed.from_endpoint(36, "BAD_ARGUMENTS", reason)
    return ExternalTable(name, columns, given.get(f"{name}_format", "TabSeparated"), data)


async def _read_form(request: Request, body: AsyncIterator[bytes]) -> tuple[dict[str, str], dict[str, bytes]]:
    """Read the text fields and files of a multipart form; both are empty for other bodies, which stay unread."""
    kind, _, rest = request.headers.get("content-type", "").partition(";")
    if kind.strip().lower() != "multipart/form-data":
        return {}, {}
    boundary = rest.partition("boundary=")[2].strip().strip('"').encode()
    texts: dict[str, str] = {}
    files: dict[str, bytes] = {}
    for part in (b"\r\n" + await read_statement(body)).split(b"\r\n--" + boundary)[1:-1]:
        head, _, content = part.partition(b"\r\n\r\n")
        name = _FORM_NAME.search(head)
        if name and b"filename=" in head:
            files[name[1].decode()] = content
        elif name:
            texts[name[1].decode()] = content.decode()
    return texts, files
