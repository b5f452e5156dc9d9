"""One POST: whoever is told, it ends in time."""

from __future__ import annotations

import socket
from collections.abc import Generator
from contextlib import contextmanager, suppress
from threading import Event, Thread

import pytest

from headrace.webhook.post import NotTaken, post
from tests.conftest import wait_until

BEFORE_EACH_BYTE_S = 0.1
TIMEOUT_S = 0.5


@contextmanager
def dripping(head: bytes) -> Generator[str]:
    """A receiver that answers a byte now and then, without end."""
    stop = Event()

    def answer() -> None:
        with suppress(OSError):
            peer, _ = server.accept()
            with peer:
                peer.recv(65536)
                peer.sendall(head)
                while not stop.wait(BEFORE_EACH_BYTE_S):
                    peer.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = Thread(target=answer, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/"
        stop.set()
    thread.join(5)


def told(url: str) -> list[BaseException | None]:
    """What became of a message, once something has."""
    ended: list[BaseException | None] = []

    def tell() -> None:
        try:
            post(url, b"{}", {}, timeout_s=TIMEOUT_S, allow_private=True)
        except NotTaken as error:
            ended.append(error)
        else:
            ended.append(None)

    Thread(target=tell, daemon=True).start()
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
def test_a_body_without_end_is_cut_and_the_status_counts(head: bytes) -> None:
    with dripping(head) as url:
        assert told(url) == [None]


def test_headers_without_end_are_cut() -> None:
    with dripping(b"HTTP/1.1 2") as url:
        [error] = told(url)
    assert isinstance(error, NotTaken)
