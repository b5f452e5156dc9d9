"""ClickHouse's HTTP interface for the embedded engine, so that ClickHouse clients and tools work unchanged.

    python -m headrace.embedded.clickhouse_http --data-dir DIR --port P [--host 127.0.0.1]

The server is ready when GET /ping responds. On SIGTERM or SIGINT, running requests have three seconds to finish,
then their queries are cancelled; the engine is closed and the exit code is 0. Exit code 5: the data directory is in
use or cannot be written. Exit code 4: the port is in use or the engine does not start. A message is printed on stderr.

As in ClickHouse, the statement is the URL parameter `query`, the body, or both; `param_*` are typed parameters;
`database`, `default_format` and the other transport parameters apply; every other parameter is a setting for this
request, checked by the engine. GET is read-only. Multipart forms carry external tables, and parameters that are too
long for a URL. Errors have ClickHouse's text, code and status; an error after the response has started is appended
under the exception tag, and the connection is closed.

Differences from ClickHouse:
- No sessions: every request is independent. A `session_id` is accepted and ignored, because clickhouse-connect sends
  one by default; statements that need a session (SET, USE, temporary tables) are refused.
- `wait_end_of_query` is not needed: responses of up to 4 MiB are always sent when they are complete, and larger ones
  never are. clickhouse-connect raises an error in the middle of a larger one when the rows are read.
- `query_id` is returned in the response but is not the engine's own: KILL QUERY does not find it.
- `compress=1` and `decompress=1` (blocks of the native protocol) are refused; HTTP content codings work.
- One user, whose password is in credentials.json of the data directory: by basic authentication, the headers
  X-ClickHouse-User and X-ClickHouse-Key, or the URL parameters `user` and `password`. /ping needs no password.
- No access to files, programs and other servers (see clickhouse_access.py). Formats that read a schema or a template
  from a file are refused. Expressions in the data of INSERT ... VALUES are refused if the data is longer than 256 KiB
  or contains the name of a forbidden function.
- It listens on loopback, accepts only loopback Host headers while it does (to prevent DNS rebinding), and refuses
  requests from web pages.
"""

from __future__ import annotations

import argparse
import contextlib
import ipaddress
import signal
import socket
import sys
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import partial
from hmac import compare_digest
from itertools import chain
from pathlib import Path
from types import FrameType
from typing import TypeVar

import uvicorn
from anyio import CancelScope, CapacityLimiter, to_thread
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from headrace.embedded import http_coding
from headrace.embedded.clickhouse_access import USER
from headrace.embedded.clickhouse_engine import (
    MAX_BUFFERED_RESULT_BYTES,
    ChdbEngine,
    ChdbSession,
    QueryFailed,
    can_stream,
)
from headrace.embedded.clickhouse_request import (
    ClickHouseRequest,
    find_credentials,
    iter_body,
    parse_request,
    read_at_least,
    read_statement,
)
from headrace.embedded.clickhouse_statement import (
    find_output_format,
    find_unsupported,
    split_insert,
    tokenize_top_level,
)
from headrace.embedded.credentials import ensure_passwords
from headrace.errors import HeadraceError, PortTaken

MAX_ENGINE_CALLS = 16  # concurrent engine calls, each in its own thread; further requests wait
STATEMENT_HEAD_BYTES = 256 * 1024  # the FORMAT of an INSERT must be within these bytes: ClickHouse's max_query_size
INSERT_PIECE_BYTES = 1024 * 1024
# A response of up to this many bytes is sent complete: its errors have a status, and its summary is exact.
READ_AHEAD_BYTES = 4 * 1024 * 1024
GRACE_S = 3

_LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})
_CONTENT_TYPES = {
    "JSON": "application/json; charset=UTF-8",
    "CSV": "text/csv; charset=UTF-8",
    "TabSeparated": "text/tab-separated-values; charset=UTF-8",
    "TSV": "text/tab-separated-values; charset=UTF-8",
}

# ClickHouse's exceptionCodeToHTTPStatus, by error name.
_STATUS_ERRORS = {
    400: "BAD_ARGUMENTS CANNOT_COMPILE_REGEXP CANNOT_PARSE_TEXT CANNOT_PARSE_ESCAPE_SEQUENCE"
    " CANNOT_PARSE_QUOTED_STRING CANNOT_PARSE_DATE CANNOT_PARSE_DATETIME CANNOT_PARSE_NUMBER"
    " CANNOT_PARSE_DOMAIN_VALUE_FROM_STRING CANNOT_PARSE_IPV4 CANNOT_PARSE_IPV6 CANNOT_PARSE_UUID"
    " CANNOT_PARSE_INPUT_ASSERTION_FAILED DUPLICATE_COLUMN ILLEGAL_COLUMN THERE_IS_NO_COLUMN"
    " UNKNOWN_ELEMENT_IN_AST UNKNOWN_TYPE_OF_AST_NODE TOO_DEEP_AST TOO_BIG_AST UNEXPECTED_AST_STRUCTURE"
    " SYNTAX_ERROR INCORRECT_DATA TYPE_MISMATCH VALUE_IS_OUT_OF_RANGE_OF_DATA_TYPE",
    403: "ACCESS_DENIED AUTHENTICATION_FAILED SETTING_CONSTRAINT_VIOLATION",
    404: "UNKNOWN_TABLE UNKNOWN_FUNCTION UNKNOWN_IDENTIFIER UNKNOWN_TYPE UNKNOWN_STORAGE UNKNOWN_DATABASE"
    " UNKNOWN_SETTING UNKNOWN_DIRECTION_OF_SORTING UNKNOWN_AGGREGATE_FUNCTION UNKNOWN_FORMAT"
    " UNKNOWN_DATABASE_ENGINE UNKNOWN_TYPE_OF_QUERY UNKNOWN_ROLE",
    408: "TIMEOUT_EXCEEDED",
    413: "QUERY_IS_TOO_LARGE",
    501: "NOT_IMPLEMENTED",
    503: "SOCKET_TIMEOUT CANNOT_OPEN_FILE CANNOT_SCHEDULE_TASK",
}
_STATUS = {name: status for status, names in _STATUS_ERRORS.items() for name in names.split()}

_T = TypeVar("_T")


class ClickHouseApp:
    """The ASGI application: parses requests, runs statements in engine sessions, and formats the responses."""

    def __init__(self, engine: ChdbEngine, *, host: str, password: str) -> None:
        self._engine = engine
        self._password = password
        self._loopback_only = _is_loopback(host)
        self._slots = CapacityLimiter(MAX_ENGINE_CALLS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # there are no websockets, and uvicorn runs without lifespan
            return
        request = Request(scope, receive)
        if response := self._respond_early(request):
            await response(scope, receive, send)
            return
        given = request.query_params.get("query_id", "")
        query_id = given if given.isascii() and given.isprintable() and given else str(uuid.uuid4())
        try:
            self._check_credentials(request)
            await self._handle_statement(request, send, query_id)
        except QueryFailed as failure:
            await self._build_error_response(failure, request.method, query_id)(scope, receive, send)
        except ClientDisconnect:
            pass  # the session is closed; an unfinished INSERT is dropped

    def _respond_early(self, request: Request) -> Response | None:
        """Return a response that needs no engine (ping, refusals), or None."""
        headers = request.headers
        if "origin" in headers or headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return _build_text_response(403, "This database refuses requests from web pages.")
        if self._loopback_only and _parse_host_name(headers.get("host", "")) not in _LOOPBACK_NAMES:
            return _build_text_response(
                403, "This database listens on loopback only: use 127.0.0.1 or localhost as the host name."
            )
        if request.method not in ("GET", "POST"):
            return _build_text_response(405, "Use GET or POST for queries.")
        if request.url.path == "/ping" or (request.method == "GET" and "query" not in request.query_params):
            return _build_text_response(200, "Ok.")
        if request.url.path != "/":
            return _build_text_response(404, "Unknown path: send queries to / and health checks to /ping.")
        return None

    def _check_credentials(self, request: Request) -> None:
        """Raise QueryFailed unless the request has the user name and password. Does not read the body."""
        user, password = find_credentials(request)
        is_user = compare_digest(user.encode(), USER.encode())
        if not compare_digest(password.encode(), self._password.encode()) or not is_user:
            reason = f"{user or 'default'}: Authentication failed: password is incorrect, or there is no such user"
            raise QueryFailed.from_endpoint(516, "AUTHENTICATION_FAILED", reason)

    async def _handle_statement(self, request: Request, send: Send, query_id: str) -> None:
        body = iter_body(request)
        call = await parse_request(request, body)
        # The head is read before a session is opened, so that slow clients do not occupy sessions.
        text = b"\n".join(filter(None, (call.query, await read_at_least(body, STATEMENT_HEAD_BYTES))))
        if head := split_insert(text):
            async with self._open_session(call.settings, call.database) as session:
                data = text[head.data_start :]
                whole = data if len(text) < STATEMENT_HEAD_BYTES else None
                await self._run_in_thread(session.begin_insert, head, call.binds, whole)
                await self._insert_data(session, data, body)
                await _send_whole(request, send, self._build_headers(query_id, session))
        else:
            text += await read_statement(body)
            await self._run_query(request, send, call, text, query_id)

    async def _insert_data(self, session: ChdbSession, data: bytes, body: AsyncIterator[bytes]) -> None:
        while data := data or await read_at_least(body, INSERT_PIECE_BYTES):
            await self._run_in_thread(session.insert_chunk, data)
            data = b""
        await self._run_in_thread(session.finish_insert)

    async def _run_query(
        self, request: Request, send: Send, call: ClickHouseRequest, sql: bytes, query_id: str
    ) -> None:
        tokens = list(tokenize_top_level(sql))
        if reason := find_unsupported(tokens):
            raise QueryFailed.from_endpoint(48, "NOT_IMPLEMENTED", reason)
        format = find_output_format(sql, tokens) or call.default_format
        bound = {} if can_stream(tokens, format) else {"max_result_bytes": str(MAX_BUFFERED_RESULT_BYTES)}
        async with self._open_session(bound | dict(call.settings), call.database) as session:
            for table in call.external:
                await self._run_in_thread(session.add_external_table, *table)
            rows = session.iter_result(sql, tokens, format, call.binds)
            begun, ended = await self._run_in_thread(_buffer_start, rows)
            headers = self._build_headers(query_id, session)
            if begun or session.returns_rows:
                headers |= {"X-ClickHouse-Format": format, "Content-Type": _choose_content_type(format)}
            if call.coding:
                headers["Content-Encoding"] = call.coding
            encoder = http_coding.make_encoder(call.coding)
            if ended:
                body = await self._run_in_thread(lambda: encoder.compress(begun) + encoder.flush())
                await _send_whole(request, send, headers, body)
            else:
                await self._send_stream(request, send, headers, encoder, chain((begun,), rows))

    async def _send_stream(
        self,
        request: Request,
        send: Send,
        headers: dict[str, str],
        encoder: http_coding.BodyEncoder,
        rows: Iterator[bytes],
    ) -> None:
        tag = uuid.uuid4().hex[:16]
        await _send_start(send, headers | {"X-ClickHouse-Exception-Tag": tag})
        pieces = map(encoder.compress, rows)
        try:
            while (piece := await self._run_in_thread(lambda: next(pieces, None))) is not None:
                await _send_piece(send, piece, more=True)
                if await request.is_disconnected():
                    return
        except QueryFailed as failure:
            await _send_piece(
                send, encoder.compress(_format_exception_block(tag, str(failure))) + encoder.flush(), more=True
            )
            return  # not completed: uvicorn closes the connection, so that clients detect the incomplete result
        await _send_piece(send, encoder.flush(), more=False)

    def _build_headers(self, query_id: str, session: ChdbSession | None = None) -> dict[str, str]:
        headers = {
            "X-ClickHouse-Server-Display-Name": self._engine.host_name,
            "X-ClickHouse-Query-Id": query_id,
            "X-ClickHouse-Timezone": (session and session.timezone) or self._engine.timezone,
        }
        return headers | ({"X-ClickHouse-Summary": session.summary.as_json()} if session else {})

    def _build_error_response(self, failure: QueryFailed, method: str, query_id: str) -> Response:
        text = str(failure)
        if failure.name == "READONLY" and method == "GET":
            text += " For queries over HTTP, method GET implies readonly: use POST to change anything."
        headers = self._build_headers(query_id) | {"X-ClickHouse-Exception-Code": str(failure.code)}
        return _build_text_response(_STATUS.get(failure.name, 500), text, headers)

    @contextlib.asynccontextmanager
    async def _open_session(self, settings: Mapping[str, str], database: str) -> AsyncGenerator[ChdbSession]:
        session = await self._run_in_thread(self._engine.open_session, settings, database)
        try:
            yield session
        finally:
            with CancelScope(shield=True):
                await self._run_in_thread(session.close)

    async def _run_in_thread(self, function: Callable[..., _T], *args: object) -> _T:
        return await to_thread.run_sync(partial(function, *args), limiter=self._slots)


class _ClickHouseServer(uvicorn.Server):
    """A uvicorn server that cancels running queries after the grace period, because threads cannot be stopped."""

    def __init__(self, config: uvicorn.Config, engine: ChdbEngine) -> None:
        super().__init__(config)
        self._engine = engine

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        await to_thread.run_sync(self._engine.kill_queries)


def _buffer_start(rows: Iterator[bytes]) -> tuple[bytes, bool]:
    """Return the first chunks of a result, joined, and whether they are the complete result."""
    begun: list[bytes] = []
    size = 0
    for piece in rows:
        begun.append(piece)
        size += len(piece)
        if size >= READ_AHEAD_BYTES:
            return b"".join(begun), False
    return b"".join(begun), True


def _format_exception_block(tag: str, message: str) -> bytes:
    """Format an error in the middle of a response, as ClickHouse 25.11 and later do."""
    text = message.encode()
    return b"\r\n__exception__\r\n%b\r\n%b\n%d %b\r\n__exception__\r\n" % (
        tag.encode(),
        text,
        len(text),
        tag.encode(),
    )


def _choose_content_type(format: str) -> str:
    kinds = (kind for prefix, kind in _CONTENT_TYPES.items() if format.startswith(prefix))
    return next(kinds, "application/octet-stream")


def _build_text_response(status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    return PlainTextResponse(text + "\n", status, headers)


async def _send_start(send: Send, headers: Mapping[str, str]) -> None:
    encoded = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": 200, "headers": encoded})


async def _send_piece(send: Send, piece: bytes, *, more: bool) -> None:
    await send({"type": "http.response.body", "body": piece, "more_body": more})


async def _send_whole(request: Request, send: Send, headers: Mapping[str, str], body: bytes = b"") -> None:
    await Response(body, headers=headers)(request.scope, request.receive, send)


def _parse_host_name(host: str) -> str:
    """Return the host name in a Host header, without port and brackets."""
    return host.rpartition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0].lower()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With an explicit protocol, asyncio disables Nagle's algorithm, which would add 40 ms per request.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        raise PortTaken(
            f"Cannot listen on {host}:{port}: {error.strerror}. Free that port, or choose another --port."
        ) from error
    return listener


def _ignore_signal(_signal: int, _frame: FrameType | None) -> None: ...


def serve(data_dir: Path, host: str, port: int) -> None:
    """Serve the engine on `data_dir` until SIGTERM or SIGINT."""
    engine = ChdbEngine(data_dir)
    try:
        listener = _listen(host, port)
        config = uvicorn.Config(
            ClickHouseApp(engine, host=host, password=ensure_passwords(data_dir, USER)[USER]),
            http="httptools",
            ws="none",
            lifespan="off",
            access_log=False,
            log_level="warning",
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=60,
            timeout_graceful_shutdown=GRACE_S,
        )
        for stop in (signal.SIGTERM, signal.SIGINT):
            # uvicorn raises the signal again for the previous handler when it is done; it must have no effect then.
            signal.signal(stop, _ignore_signal)
        _ClickHouseServer(config, engine).run([listener])
    finally:
        engine.close()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m headrace.embedded.clickhouse_http", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--data-dir", type=Path, required=True, help="data directory; created if missing")
    parser.add_argument("--port", type=int, required=True, help="port to listen on")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    options = parser.parse_args(argv)
    try:
        serve(options.data_dir.resolve(), options.host, options.port)
    except HeadraceError as error:
        print(f"headrace clickhouse: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
