"""A TCP relay that can hold data back, cut every connection, or point at another server."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

from headrace.embedded.process import LOOPBACK

CHUNK = 65_536
BACKLOG = 512


class Relay:
    """Forwards connections on a fixed port of its own to `target`; refuses them while there is none.

    A thread per direction: the processes of a run hold some dozens of connections."""

    def __init__(self, target: int | None = None) -> None:
        self._listener = socket.create_server((LOOPBACK, 0), backlog=BACKLOG)
        self.port = int(self._listener.getsockname()[1])
        self._target = target
        self._flowing = threading.Event()
        self._flowing.set()
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def hold(self) -> None:
        """Stop forwarding in both directions; connections stay open."""
        self._flowing.clear()

    def point_at(self, target: int | None) -> None:
        """Cut every connection, drop what was held back, and send new connections to `target`."""
        with self._lock:
            self._target = target
            cut, self._sockets = self._sockets, set()
        for one in cut:
            _close(one)
        self._flowing.set()

    def close(self) -> None:
        self._closed = True
        _close(self._listener)
        self.point_at(None)

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._connect, args=[client], daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        with self._lock:
            target = self._target
            self._sockets.add(client)
        try:
            if target is None:
                raise ConnectionRefusedError
            server = socket.create_connection((LOOPBACK, target), timeout=10)
            server.settimeout(None)
        except OSError:
            self._drop(client)
            return
        with self._lock:
            self._sockets.add(server)
            is_stale = target != self._target
        if is_stale:  # the target changed in between
            self._drop(client, server)
            return
        for one in (client, server):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=self._forward, args=[server, client], daemon=True).start()
        self._forward(client, server)

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(CHUNK):
                self._flowing.wait()
                with self._lock:
                    is_cut = source not in self._sockets
                if is_cut:
                    break
                sink.sendall(data)
        self._drop(source, sink)

    def _drop(self, *sockets: socket.socket) -> None:
        with self._lock:
            self._sockets.difference_update(sockets)
        for one in sockets:
            _close(one)


def _close(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
