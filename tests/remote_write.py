"""A receiver of Prometheus remote write for tests: decodes requests independently of Headrace's encoder, and refuses
what Prometheus refuses, with nothing of such a request stored."""

from __future__ import annotations

import struct
import threading
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import cast

from cramjam import snappy

Labels = tuple[tuple[str, str], ...]
Sample = tuple[int, float]  # time in ms, value
STALE_BITS = 0x7FF0_0000_0000_0002


def decode_request(data: bytes) -> list[tuple[Labels, list[Sample]]]:
    """Return labels, in the order of the request, and samples of every series."""
    return [_decode_series(cast("bytes", content)) for number, content in _fields(data) if number == 1]


def is_stale(value: float) -> bool:
    return struct.unpack("<Q", struct.pack("<d", value))[0] == STALE_BITS


def _decode_series(data: bytes) -> tuple[Labels, list[Sample]]:
    labels: list[tuple[str, str]] = []
    samples: list[Sample] = []
    for number, content in _fields(data):
        inner = dict(_fields(cast("bytes", content)))
        if number == 1:
            labels.append((cast("bytes", inner[1]).decode(), cast("bytes", inner[2]).decode()))
        else:
            [value] = struct.unpack("<d", cast("bytes", inner[1]))
            samples.append((cast("int", inner[2]), value))
    return tuple(labels), samples


def _fields(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    at = 0

    def varint() -> int:
        nonlocal at
        number, shift = 0, 0
        while True:
            byte = data[at]
            at += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number

    while at < len(data):
        tag = varint()
        match tag & 7:
            case 0:
                yield tag >> 3, varint()
            case 1:
                at += 8
                yield tag >> 3, data[at - 8 : at]
            case 2:
                length = varint()
                at += length
                assert at <= len(data)
                yield tag >> 3, data[at - length : at]
            case other:
                raise AssertionError(f"wire type {other}")


@dataclass(frozen=True)
class Reply:
    status: int
    retry_after: str | None = None
    location: str | None = None
    stores: bool = False
    hangs_up: bool = False  # closes the connection after the response, without saying so


class Receiver(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.lock = threading.Lock()
        self.script: deque[Reply] = deque()  # responses to the next requests; then as Prometheus does
        self.max_series = 10**9  # larger requests are refused with 413
        self.headers: list[dict[str, str]] = []
        self.sizes: list[int] = []
        self.stored: dict[Labels, list[Sample]] = {}
        self.at_once = self.most_at_once = 0
        self.meet: threading.Barrier | None = None  # requests wait here for each other

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/api/v1/write"

    def reply(self, body: bytes) -> Reply:
        series = decode_request(bytes(snappy.decompress_raw(body)))
        with self.lock:
            self.sizes.append(len(series))
            if len(series) > self.max_series:
                return Reply(413)
            scripted = self.script.popleft() if self.script else None
            if scripted is not None and not scripted.stores:
                return scripted
            if any(not self._is_acceptable(labels, each) for labels, samples in series for each in samples):
                return Reply(400)
            for labels, samples in series:
                assert list(labels) == sorted(labels), labels
                for each in samples:
                    if each not in self.stored.setdefault(labels, []):
                        self.stored[labels].append(each)
            return scripted or Reply(204)

    def _is_acceptable(self, labels: Labels, sample: Sample) -> bool:
        known = self.stored.get(labels)
        return not known or sample[0] > known[-1][0] or repr(sample) == repr(known[-1])

    def find(self, **wanted: str) -> list[Sample]:
        """Return the samples of the only series with these labels; `name` is the label __name__."""
        name = wanted.pop("name", None)
        pairs = {*wanted.items(), *([("__name__", name)] if name else [])}
        with self.lock:
            [found] = [samples for labels, samples in self.stored.items() if pairs <= set(labels)]
            return list(found)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        server = cast("Receiver", self.server)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with server.lock:
            server.headers.append(dict(self.headers))
            server.at_once += 1
            server.most_at_once = max(server.most_at_once, server.at_once)
        if server.meet is not None:
            server.meet.wait(60)
        reply = server.reply(body)
        with server.lock:
            server.at_once -= 1
        self.send_response(reply.status)
        if reply.retry_after is not None:
            self.send_header("Retry-After", reply.retry_after)
        if reply.location is not None:
            self.send_header("Location", reply.location)
        text = b"" if reply.status == 204 else b"out of order sample"
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
        self.close_connection = reply.hangs_up

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def receiving(port: int = 0) -> Generator[Receiver]:
    server = Receiver(port)
    thread = threading.Thread(target=lambda: server.serve_forever(0.02))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
