"""Helpers for alert tests: hand-written history, recording receivers, and an evaluator on both."""

from __future__ import annotations

import hashlib
import json
import socketserver
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from uuid import uuid4

from headrace.alerts import records
from headrace.alerts.channel_policy import DEFAULT_POLICY
from headrace.alerts.channels import make_channel
from headrace.alerts.evaluator import EvaluationReport, Evaluator, EvaluatorOptions
from headrace.alerts.lease import EvaluatorLease
from headrace.alerts.outbox import Outbox, OutboxOptions
from headrace.alerts.records import Channel, Incident
from headrace.alerts.rules import Rule, make_rule
from headrace.alerts.senders import SendOptions
from headrace.model.names import EnvRef, QueueRef
from headrace.pipeline.buckets import bucketize
from headrace.postgres.connect import Pool, transaction
from headrace.runtime.backoff import Backoff
from headrace.warehouse import pipeline_batches
from headrace.warehouse.connect import Client
from headrace.warehouse.connect import connect as connect_clickhouse
from headrace.warehouse.pipeline_batches import PipelineBatch
from headrace.webhook.guard import AddressPolicy
from headrace.webhook.signing import compute_signature
from tests.events import event_table
from tests.warehouse import insert_rows

REF = QueueRef("acme", "shop", "prod", "emails")
ENV = REF.environment
LOOPBACK = AddressPolicy(("127.0.0.1",))
ANY_MAIL = replace(DEFAULT_POLICY, email_domains={"*": {"*"}})
LOCAL = SendOptions(timeout_s=240.0, policy=LOOPBACK, channels=ANY_MAIL)
SLOW = OutboxOptions(backoff=Backoff(3600.0, longest_s=3600.0))
"""A failed channel is retried only when the test calls `Alerting.retry_now`."""
ANSWER_S = 60


class History:
    """Rows as the pipeline would have written them."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def add(self, *events: dict[str, Any], ref: QueueRef = REF) -> None:
        names = {"org": ref.org, "project": ref.project, "env": ref.env, "queue": ref.queue}
        self.add_table([{**names, **event} for event in events])

    def add_table(self, events: list[dict[str, Any]]) -> None:
        token = hashlib.sha256(f"{events}{uuid4()}".encode()).hexdigest()
        insert_rows(self.client, bucketize(event_table(*events)), token)

    def add_depth(self, at_ms: int, depth: int, ref: QueueRef = REF, oldest_ms: int | None = None) -> None:
        """As an enqueue leaves it."""
        oldest = (oldest_ms or at_ms) if depth else None
        self.add({"at_ms": at_ms, "op": "enqueue", "n": 1, "depth": depth, "oldest_ms": oldest}, ref=ref)

    def set_watermark(self, watermark_ms: int, lost: int = 0) -> None:
        at = datetime.fromtimestamp(watermark_ms / 1000, UTC)
        batch = PipelineBatch(at, 1, 1, 1, 1, watermark_ms, watermark_ms, lost_events=lost, watermark_ms=watermark_ms)
        self.client.insert_arrow(pipeline_batches.TABLE, pipeline_batches.to_arrow(batch))


class Crash(BaseException):
    """Stands for a process that ends: nothing catches it."""


class Alerting:
    """An evaluator and an outbox that the test steps by hand, with its own time."""

    def __init__(self, pool: Pool, clickhouse_url: str, database: str) -> None:
        self.pool = pool
        self.lease = EvaluatorLease(pool, 3600.0)
        options = EvaluatorOptions(query_timeout_s=ANSWER_S)
        self.evaluator = Evaluator(
            pool, self.lease, lambda: connect_clickhouse(clickhouse_url, database, ANSWER_S), options
        )
        self.outbox = Outbox(pool, LOCAL, SLOW)

    def evaluate_once(self, now_ms: int) -> EvaluationReport:
        assert self.lease.acquire()
        return self.evaluator.run_once(now_ms)

    def send(self) -> int:
        """Try what is due once, and wait for the outcome."""
        begun = self.outbox.run_once()
        self.outbox.wait_idle(2 * LOCAL.timeout_s)
        return begun

    def send_all(self) -> None:
        while self.send():
            pass

    def retry_now(self) -> None:
        """Channels that failed have waited for long enough."""
        with transaction(self.pool) as conn:
            conn.execute("UPDATE alert_channels SET retry_at = now() WHERE retry_at IS NOT NULL")

    def expire_lease(self) -> None:
        """As when its holder was paused for too long, and does not know it."""
        with transaction(self.pool) as conn:
            conn.execute("UPDATE leases SET until = '-infinity'")

    def add_channel(self, given: dict[str, Any], env: EnvRef = ENV) -> Channel:
        made, _ = make_channel(records.generate_id("channel"), env, {"name": uuid4().hex, **given}, policy=ANY_MAIL)
        with transaction(self.pool) as conn:
            records.put_channel(conn, made)
        return made

    def add_rule(self, env: EnvRef = ENV, **given: Any) -> Rule:
        made = make_rule(records.generate_id("rule"), env, {"name": uuid4().hex, **given})
        with transaction(self.pool) as conn:
            records.put_rule(conn, made)
        return made

    def incidents(self) -> list[Incident]:
        """Oldest first."""
        with transaction(self.pool) as conn:
            return records.list_incidents(conn, records.ANY_ENVIRONMENT)[::-1]

    def phases(self) -> dict[tuple[str, str], str]:
        with transaction(self.pool) as conn:
            rows = conn.execute("SELECT rule_id, queue, phase FROM alert_states").fetchall()
        return {(str(rule), str(queue)): str(phase) for rule, queue, phase in rows}

    def count(self, query: str) -> int:
        with transaction(self.pool) as conn:
            return int(conn.execute(query).fetchall()[0][0])  # pyright: ignore[reportArgumentType, reportCallIssue]

    def close(self) -> None:
        self.outbox.close()
        self.lease.release()


@dataclass
class Received:
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> dict[str, Any]:
        return json.loads(self.body)

    def is_signed_with(self, secret: str) -> bool:
        made = compute_signature(secret, self.headers["x-headrace-timestamp"], self.body)
        return made == self.headers["x-headrace-signature"]


@dataclass
class Receiver:
    """An HTTP server that notes what it is sent. `answer` decides the status and may wait."""

    url: str
    received: list[Received] = field(default_factory=list[Received])
    answer: Callable[[Received], int] = lambda received: 200

    @property
    def kinds(self) -> list[str]:
        return [each.document["kind"] for each in self.received]

    def list_transitions(self, kind: str) -> list[dict[str, Any]]:
        return [
            transition
            for each in self.received
            if each.document["kind"] == kind
            for transition in each.document["transitions"]
        ]


@contextmanager
def http_receiver() -> Generator[Receiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got = Received(self.path, {key.lower(): value for key, value in self.headers.items()}, body)
            status = receiver.answer(got)
            receiver.received.append(got)
            try:
                self.send_response(status)
                if 300 <= status < 400:
                    self.send_header("Location", f"{receiver.url}elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()
            except OSError:
                pass  # the sender did not wait for the response

        do_GET = do_POST

        def log_message(self, format: str, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    receiver = Receiver(f"http://127.0.0.1:{server.server_port}/")
    with _served(server):
        yield receiver


@dataclass
class Mailbox:
    url: str
    letters: list[str] = field(default_factory=list[str])
    commands: list[str] = field(default_factory=list[str])
    refuses: bool = False
    recipients: dict[str, str] = field(default_factory=dict[str, str])
    """Address → what the server answers to it; others are accepted."""


@contextmanager
def mail_server() -> Generator[Mailbox]:
    """As much of SMTP as a client needs to hand over a letter."""

    class Handler(socketserver.StreamRequestHandler):
        def reply(self, line: str) -> None:
            self.wfile.write(f"{line}\r\n".encode())

        def handle(self) -> None:
            self.reply("220 here")
            while line := self.rfile.readline().strip():
                verb = line[:4].upper()
                mailbox.commands.append(line.decode())
                if verb == b"DATA":
                    self.reply("354 go on")
                    letter = b""
                    while (part := self.rfile.readline()) != b".\r\n":
                        letter += part
                    mailbox.letters.append(letter.decode())
                    self.reply("250 kept")
                elif verb == b"MAIL" and mailbox.refuses:
                    self.reply("451 not now")
                elif verb == b"RCPT":
                    address = line.decode().partition("<")[2].partition(">")[0]
                    self.reply(mailbox.recipients.get(address, "250 fine"))
                else:
                    self.reply("221 bye" if verb == b"QUIT" else "250 fine")
                    if verb == b"QUIT":
                        return

    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    mailbox = Mailbox(f"smtp://127.0.0.1:{server.server_address[1]}")
    with _served(server):
        yield mailbox


@contextmanager
def _served(server: socketserver.BaseServer) -> Generator[None]:
    thread = threading.Thread(target=server.serve_forever, args=[0.02], daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
