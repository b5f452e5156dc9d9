"""Helpers for exporter tests: a small HTTP server with scripted failures, and a destination that sends to it.

The server recognises tokens as ClickHouse does: a repeated one is applied once. `applied` shows what was counted, and
`requests` what was sent.
"""

from __future__ import annotations

import http.client
import threading
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import cast

from headrace.export.destination import PermanentSendError, RetryableSendError, SendBatch
from headrace.export.http_status import error_for_status, parse_retry_after
from headrace.spool.record import NewRecord, SpoolRecord

POISON = b"poison"


@dataclass(frozen=True)
class Answer:
    status: int = 200
    retry_after: str | None = None
    applies: bool | None = None  # None: according to the status
    hangs: bool = False  # no response until the server is closed
    breaks: bool = False  # the connection closes in the middle of the response


class ScriptedServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.lock = threading.Lock()
        self.script: deque[Answer] = deque()  # responses to the next requests; then `otherwise`
        self.once: dict[bytes, Answer] = {}  # response to the next request with this body, before the script
        self.otherwise = Answer()
        self.max_bytes = 2**30  # larger bodies are refused with 413, before anything else
        self.requests: list[tuple[str, bytes]] = []
        self.applied: dict[str, bytes] = {}
        self.at_once = 0
        self.most_at_once = 0
        self.gate = threading.Event()  # while it is closed, every response waits
        self.gate.set()
        self.gate_after: int | None = None  # the gate closes once this many more were applied
        self.closing = threading.Event()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def answer(self, token: str, body: bytes) -> Answer:
        with self.lock:
            self.requests.append((token, body))
            if len(body) > self.max_bytes:
                return Answer(413)
            answer = self.once.pop(body, None) or (self.script.popleft() if self.script else self.otherwise)
            if answer.status < 300 if answer.applies is None else answer.applies:
                self.applied.setdefault(token, body)
                self._count_down()
            return answer

    def _count_down(self) -> None:
        if self.gate_after == 0:
            self.gate_after = None
            self.gate.clear()
        elif self.gate_after is not None:
            self.gate_after -= 1

    def open_gate(self) -> None:
        with self.lock:
            self.gate_after = None
            self.gate.set()

    def bodies(self) -> list[bytes]:
        with self.lock:
            return list(self.applied.values())

    def sent(self) -> list[bytes]:
        with self.lock:
            return [body for _, body in self.requests]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        server = cast("ScriptedServer", self.server)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with server.lock:
            server.at_once += 1
            server.most_at_once = max(server.most_at_once, server.at_once)
        try:
            answer = server.answer(self.headers["X-Token"], body)
            while not server.gate.wait(0.05) and not server.closing.is_set():
                pass
            if answer.hangs:
                server.closing.wait()
        finally:
            # Before the reply: a client that has it may send the next request before this thread runs again.
            with server.lock:
                server.at_once -= 1
        self.reply(answer)

    def reply(self, answer: Answer) -> None:
        if answer.hangs:
            self.close_connection = True
            return
        if answer.breaks:
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
            self.close_connection = True
            return
        self.send_response(answer.status)
        if answer.retry_after is not None:
            self.send_header("Retry-After", answer.retry_after)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serving(port: int = 0) -> Generator[ScriptedServer]:
    server = ScriptedServer(port)
    thread = threading.Thread(target=lambda: server.serve_forever(0.02))
    thread.start()
    try:
        yield server
    finally:
        server.closing.set()
        server.shutdown()
        server.server_close()
        thread.join()


@dataclass
class HttpDestination:
    """Sends payloads unchanged; a payload of several lines becomes several batches."""

    port: int
    timeout_s: float = 60.0
    dedup_window_blocks: int | None = 10_000
    name: str = "http"
    prepared: list[int] = field(default_factory=list[int])
    closed: bool = False

    def prepare(self, record: SpoolRecord) -> Sequence[SendBatch]:
        self.prepared.append(record.id)
        if record.payload == POISON:
            raise PermanentSendError("poison")
        lines = record.payload.split(b"\n")
        tokens = [record.token] if len(lines) == 1 else [f"{record.token}/{n}" for n in range(len(lines))]
        return [SendBatch(line, token) for line, token in zip(lines, tokens, strict=True)]

    def send(self, batch: SendBatch) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=self.timeout_s)
        sent = False
        try:
            connection.connect()
            sent = True
            connection.request("POST", "/", batch.body, {"X-Token": batch.token})
            self.await_answer(connection)
            response = connection.getresponse()
            said = response.read().decode()
        except (OSError, http.client.HTTPException) as error:
            raise RetryableSendError(
                f"no answer: {error!r}", outcome_unknown=sent, kind="timeout" if sent else "refused"
            ) from error
        finally:
            connection.close()
        wait_s = parse_retry_after(response.headers["Retry-After"], datetime.now(UTC))
        if error := error_for_status(response.status, said, wait_s):
            raise error

    def await_answer(self, connection: http.client.HTTPConnection) -> None:
        """Wait for the response; overridden by tests that need another timeout."""

    def split(self, record: SpoolRecord, batches: Sequence[SendBatch], refused: int) -> Sequence[NewRecord]:
        pieces: list[NewRecord] = []
        for number, batch in enumerate(batches):
            body: bytes = batch.body
            if number != refused:
                pieces.append(NewRecord(body, batch.token, record.meta))
            elif len(body) < 2:
                return ()
            else:
                half = len(body) // 2
                for index, piece in enumerate((body[:half], body[half:])):
                    pieces.append(NewRecord(piece, f"{batch.token}/{index}", record.meta))
        return pieces

    def close(self) -> None:
        self.closed = True
