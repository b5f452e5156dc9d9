"""A POST ends within its time limit, whatever the receiver does."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import Any

import pytest

from headrace.webhook import post as webhook
from headrace.webhook.post import DeliveryFailed, post
from tests.alerting import LOOPBACK
from tests.conftest import wait_until

BEFORE_EACH_BYTE_S = 0.05
TIMEOUT_S = 120.0


class Limit:
    """Replacement for a timer that expires when the test says so, not when a slow machine gets there."""

    started: list[Limit]

    def __init__(self, after_s: float, over: Callable[[], None]) -> None:
        self.after_s = after_s
        self.over = over
        self.daemon = False

    def start(self) -> None:
        self.started.append(self)

    def cancel(self) -> None:
        """Do nothing: the test may still expire it, when there is nothing left to abort."""


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[Limit]:
    """Timers that were started."""
    Limit.started = []
    monkeypatch.setattr(webhook.threading, "Timer", Limit)
    return Limit.started


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> Event:
    """Event that is set once the head of a response was read and its body is requested."""
    begun, read = Event(), http.client.HTTPResponse.read

    def noted(answer: http.client.HTTPResponse, *size: Any) -> bytes:
        begun.set()
        return read(answer, *size)

    monkeypatch.setattr(http.client.HTTPResponse, "read", noted)
    return begun


@contextmanager
def dripping(head: bytes) -> Generator[tuple[str, Event]]:
    """Run a receiver that sends a byte now and then, without end; yield its URL and whether it has begun to."""
    stop, dripped = Event(), Event()

    def answer() -> None:
        with suppress(OSError):
            peer, _ = server.accept()
            with peer:
                peer.recv(65536)
                peer.sendall(head)
                while not stop.wait(BEFORE_EACH_BYTE_S):
                    peer.sendall(b"x")
                    dripped.set()

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = Thread(target=answer, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/", dripped
        stop.set()
    thread.join(60)


def post_and_catch(url: str, limits: list[Limit], late: Event) -> list[BaseException | None]:
    """Post a message whose time limit expires at that moment; return how it ended."""
    ended: list[BaseException | None] = []

    def tell() -> None:
        try:
            post(url, b"{}", {}, timeout_s=TIMEOUT_S, policy=LOOPBACK)
        except DeliveryFailed as error:
            ended.append(error)
        else:
            ended.append(None)

    Thread(target=tell, daemon=True).start()
    assert late.wait(60)
    assert not ended
    [limit] = limits
    assert limit.after_s == TIMEOUT_S
    limit.over()
    wait_until(lambda: bool(ended), "an end")
    return ended


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\n",
    ],
)
def test_a_body_without_end_is_cut_and_the_status_counts(head: bytes, limits: list[Limit], reading: Event) -> None:
    with dripping(head) as (url, _):
        assert post_and_catch(url, limits, reading) == [None]


def test_headers_without_end_are_cut(limits: list[Limit]) -> None:
    with dripping(b"HTTP/1.1 2") as (url, dripped):
        [error] = post_and_catch(url, limits, dripped)
    assert isinstance(error, DeliveryFailed)
