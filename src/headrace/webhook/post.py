"""One POST to an address that was checked: no redirects, no second look at the name, an end in time."""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import urlsplit

from headrace.errors import HeadraceError
from headrace.webhook.guard import AddressPolicy, checked_address

MAX_ANSWER = 4096


class NotTaken(HeadraceError):
    """A receiver did not take a message."""


class Rejected(NotTaken):
    """A receiver refused a message permanently: sending it again would end in the same way."""


TEMPORARY = (408, 429)
"""Statuses between 400 and 499 after which a receiver may take the same message later."""


class _Pinned(http.client.HTTPConnection):
    """Connects to the address, and means the host: in the header, and in the certificate."""

    def __init__(self, host: str, port: int, address: str, timeout_s: float, context: ssl.SSLContext | None) -> None:
        super().__init__(host, port, timeout=timeout_s)
        self._address = address
        self._context = context
        self._wire: socket.socket | None = None  # `sock` is let go before the answer is read, if the receiver closes
        self._is_late = False
        if context is not None:
            self.default_port = 443

    def connect(self) -> None:
        self.sock = self._wire = socket.create_connection((self._address, self.port), self.timeout)
        if self._context is not None:
            self.sock = self._wire = self._context.wrap_socket(self.sock, server_hostname=self.host)
        if self._is_late:  # it was cut before there was anything to cut
            raise TimeoutError("timed out")

    def cut(self) -> None:
        """From another thread: whatever it waits for ends now."""
        self._is_late = True
        if self._wire is not None:
            with suppress(OSError):
                self._wire.shutdown(socket.SHUT_RDWR)


def post(url: str, body: bytes, headers: Mapping[str, str], *, timeout_s: float, policy: AddressPolicy) -> None:
    """Raises NotTaken, Rejected, AddressRefused; the words never hold the URL, which may be a secret."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    context = ssl.create_default_context() if parts.scheme == "https" else None
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        address = checked_address(host, port, policy)
        connection = _Pinned(host, port, address, timeout_s, context)
        status, said = _exchange(connection, path, body, headers, timeout_s)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise NotTaken(f"{host} did not take it: {type(error).__name__}: {error}") from error
    if 300 <= status < 400:
        raise NotTaken(
            f"{host} answered {status}, a redirect; redirects are not followed. Use the address it leads to."
        )
    if 400 <= status < 500 and status not in TEMPORARY:
        raise Rejected(f"{host} answered {status}: {said[:200]!r}")
    if not 200 <= status < 300:
        raise NotTaken(f"{host} answered {status}: {said[:200]!r}")


def _exchange(
    connection: _Pinned, path: str, body: bytes, headers: Mapping[str, str], timeout_s: float
) -> tuple[int, str]:
    # A receiver that sends a byte now and then never runs into the time limit of a single read.
    limit = threading.Timer(timeout_s, connection.cut)
    limit.daemon = True
    limit.start()
    try:
        connection.request("POST", path, body, {"User-Agent": "headrace", **headers})
        answer = connection.getresponse()
        said = b""
        with suppress(OSError, http.client.HTTPException):  # its status says whether it was taken
            said = answer.read(MAX_ANSWER)
        return answer.status, said.decode(errors="replace")
    finally:
        limit.cancel()
        connection.close()
