"""Live state as server-sent events, over a real connection: who listens, who reads, and who is gone."""

from __future__ import annotations

import json
import socket
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from headrace.api.access import GLOBAL_SCOPE, AccessLevel, KeyScope
from headrace.api.api_keys import parse_key_id, revoke_key
from headrace.api.live_feed import FeedHub
from headrace.api.routes import live_events as stream
from headrace.api.services import Services
from headrace.embedded.valkey import EmbeddedValkey
from headrace.model.job import NewJob
from headrace.model.names import QueueRef
from headrace.postgres.connect import connect
from headrace.queue.client import SyncClient
from headrace.settings import ApiSettings
from tests.access import make_key
from tests.conftest import READY_S, wait_until
from tests.operating import Server

REF = QueueRef("acme", "shop", "prod", "emails")
OTHER = QueueRef("globex", "shop", "prod", "secrets")
SETTINGS = ApiSettings(rate=1000.0, streams=4, streams_per_key=3)


class StreamServer(Server):
    @property
    def hub(self) -> FeedHub:
        return self.services.feed_hub

    def key(self, scope: KeyScope = GLOBAL_SCOPE) -> str:
        made = make_key(self.services.postgres_url, scope, AccessLevel.READ)
        self.services.key_ring.refresh()  # or it might be one that was unknown a moment ago
        return made

    @contextmanager
    def listen(self, key: str, **params: str) -> Generator[Iterator[dict[str, Any]]]:
        headers = {"Authorization": f"Bearer {key}"}
        with (
            httpx.Client(base_url=self.url, headers=headers, timeout=60.0) as client,
            client.stream("GET", "/api/v1/stream", params=params) as answer,
        ):
            assert answer.status_code == 200, answer.read()
            assert answer.headers["content-type"].startswith("text/event-stream")
            yield events(answer.iter_lines())

    @contextmanager
    def news(self, key: str, **params: str) -> Generator[Iterator[dict[str, Any]]]:
        """Without the heartbeats, which come when it takes long."""
        with self.listen(key, **params) as told:
            yield (each for each in told if each["event"] != ":")

    def refused(self, key: str) -> httpx.Response:
        return httpx.get(f"{self.url}/api/v1/stream", headers={"Authorization": f"Bearer {key}"}, timeout=60.0)


def events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """Comments come as events called `:`."""
    fields: dict[str, Any] = {}
    for line in lines:
        name, _, value = line.partition(": ")
        if line.startswith(":"):
            yield {"event": ":"}
        elif line:
            fields[name] = json.loads(value) if name == "data" else value
        elif "event" in fields:
            yield fields
            fields = {}


@pytest.fixture
def server(valkey_url: str, postgres_url: str) -> Iterator[StreamServer]:
    with StreamServer(Services(valkey_url, "http://127.0.0.1:1", "x", 2, postgres_url, SETTINGS)) as made:
        yield made


@pytest.fixture
def queue(valkey_url: str) -> Iterator[SyncClient]:
    with SyncClient(valkey_url) as client:
        yield client


def test_a_snapshot_and_then_what_changed(server: StreamServer, queue: SyncClient) -> None:
    quiet = QueueRef("acme", "shop", "prod", "quiet")
    for ref in (REF, quiet, OTHER):
        queue.enqueue(ref, NewJob("t"))
    with server.news(server.key(KeyScope("acme", "shop", "prod"))) as told:
        snapshot = next(told)
        assert (snapshot["event"], snapshot["id"]) == ("snapshot", "1")
        assert [found["queue"] for found in snapshot["data"]["queues"]] == ["emails", "quiet"]
        queue.enqueue(REF, NewJob("t"))
        queue.enqueue(OTHER, NewJob("t"))
        change = next(told)
        assert (change["event"], change["id"], change["data"]["gone"]) == ("change", "2", [])
        [found] = change["data"]["queues"]
        assert (found["queue"], found["depth"]) == ("emails", 2)
        headers = {"Authorization": f"Bearer {server.key(KeyScope('acme'))}"}
        listed = httpx.get(f"{server.url}/api/v1/queues", headers=headers, timeout=60.0).json()
        assert set(found) == set(listed["queues"][0])


def test_a_filter_beyond_the_scope_shows_nothing(server: StreamServer, queue: SyncClient) -> None:
    queue.enqueue(OTHER, NewJob("t"))
    key = server.key(KeyScope("acme"))
    shown = []
    for org in ("globex", "nobody"):
        with server.news(key, org=org) as told:
            shown.append(next(told)["data"]["queues"])
    assert shown == [[], []]


def test_one_reader_serves_all_listeners_and_ends_with_the_last(server: StreamServer, queue: SyncClient) -> None:
    queue.enqueue(REF, NewJob("t"))
    keys = [server.key(KeyScope("acme", "shop", "prod")) for _ in range(2)]
    with (
        server.news(keys[0]) as first,
        server.news(keys[0]) as second,
        server.news(keys[1]) as third,
        server.news(keys[1], env="test") as elsewhere,
    ):
        assert [next(told)["event"] for told in (first, second, third, elsewhere)] == ["snapshot"] * 4
        assert (server.hub.subscriber_count, len(server.hub.feeds)) == (4, 2)
        queue.enqueue(REF, NewJob("t"))
        for told in (first, second, third):
            assert next(told)["data"]["queues"][0]["depth"] == 2
    wait_until(lambda: (server.hub.subscriber_count, len(server.hub.feeds)) == (0, 0), "everybody is forgotten")


def test_streams_are_bounded_per_key_and_in_all(server: StreamServer) -> None:
    keys = [server.key(), server.key()]
    with server.news(keys[0]) as first, server.news(keys[0]) as second, server.news(keys[0]) as third:
        for told in (first, second, third):
            next(told)
        answer = server.refused(keys[0])
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "30")
        assert "api.streams_per_key" in answer.json()["detail"]
        with server.news(keys[1]) as fourth:
            next(fourth)
            assert "api.streams)" in server.refused(server.key()).json()["detail"]
    wait_until(lambda: server.hub.subscriber_count == 0, "places are given back")
    with server.news(keys[0]) as again:
        assert next(again)["event"] == "snapshot"


def test_a_stream_ends_when_its_key_is_revoked(server: StreamServer) -> None:
    key = server.key()
    with server.news(key) as told:
        next(told)
        with connect(server.services.postgres_url) as conn:
            assert revoke_key(conn, str(parse_key_id(key)))
        assert next(told)["event"] == "end"
        assert list(told) == []
    assert server.refused(key).status_code == 401


def test_heartbeats_and_the_maximum_duration_of_a_stream(server: StreamServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "HEARTBEAT_S", 0.0)
    monkeypatch.setattr(stream, "CHECK_S", 0.05)
    with server.listen(server.key()) as told:
        assert [next(told)["event"] for _ in range(3)] == ["snapshot", ":", ":"]
        monkeypatch.setattr(stream, "MAX_STREAM_S", 0.0)
        assert {each["event"] for each in told} <= {":"}


def test_valkey_becomes_unavailable(postgres_url: str, tmp_path: Any) -> None:
    own = EmbeddedValkey(tmp_path / "valkey", tmp_path / "log")
    own.start()
    own.wait_ready(READY_S)
    try:
        with StreamServer(Services(own.url, "http://127.0.0.1:1", "x", 2, postgres_url, SETTINGS)) as server:
            key = server.key()
            with SyncClient(own.url) as queue:
                queue.enqueue(REF, NewJob("t"))
            with server.news(key) as told:
                assert next(told)["event"] == "snapshot"
                own.stop()
                assert next(told)["event"] == "unavailable"
                answer = server.refused(server.key(KeyScope("acme")))
                assert (answer.status_code, answer.headers["content-type"]) == (503, "application/problem+json")
            wait_until(lambda: server.hub.subscriber_count == 0, "everybody is forgotten")
    finally:
        own.stop()


def test_clients_that_go_without_a_word_hold_no_place(server: StreamServer) -> None:
    """More of them than there are places: some before they read anything, some before there is anything to read."""
    key = server.key()
    for _ in range(SETTINGS.streams + 2):
        with server.news(key):
            pass
        with socket.create_connection(server.address) as line:
            line.sendall(f"GET /api/v1/stream HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n\r\n".encode())
        wait_until(lambda: server.hub.subscriber_count == 0, "the place is given back")
    wait_until(lambda: (server.hub.subscriber_count, len(server.hub.feeds)) == (0, 0), "no feed or subscriber is left")
