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
from headrace.webhook.guard import AddressPolicy, resolve_addresses

MAX_RESPONSE_BYTES = 4096


class DeliveryFailed(HeadraceError):
    """The receiver did not accept the message."""


class DeliveryRejected(DeliveryFailed):
    """The receiver rejected the message permanently: sending it again would fail in the same way."""


TEMPORARY = (408, 429)
"""Statuses between 400 and 499 after which the receiver may accept the same message later."""


class _PinnedConnection(http.client.HTTPConnection):
    """HTTP connection to a fixed address that keeps the host name for the Host header and the certificate check."""

    def __init__(self, host: str, port: int, address: str, timeout_s: float, context: ssl.SSLContext | None) -> None:
        super().__init__(host, port, timeout=timeout_s)
        self._address = address
        self._context = context
        self._socket: socket.socket | None = (
            None  # `sock` is cleared before the response is read if the receiver closes the connection
        )
        self._is_aborted = False
        if context is not None:
            self.default_port = 443

    def connect(self) -> None:
        self.sock = self._socket = socket.create_connection((self._address, self.port), self.timeout)
        if self._context is not None:
            self.sock = self._socket = self._context.wrap_socket(self.sock, server_hostname=self.host)
        if self._is_aborted:  # aborted before the connection was open
            raise TimeoutError("timed out")

    def abort(self) -> None:
        """Abort the connection from another thread; pending reads and writes fail at once."""
        self._is_aborted = True
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)


def post(url: str, body: bytes, headers: Mapping[str, str], *, timeout_s: float, policy: AddressPolicy) -> None:
    """Post a message. Raises DeliveryFailed, DeliveryRejected or AddressRefused; their messages never contain the URL,
    which may be a secret."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    context = ssl.create_default_context() if parts.scheme == "https" else None
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        address = resolve_addresses(host, port, policy)[0]
        connection = _PinnedConnection(host, port, address, timeout_s, context)
        status, response_text = _send_request(connection, path, body, headers, timeout_s)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise DeliveryFailed(f"Delivery to {host} failed: {type(error).__name__}: {error}") from error
    if 300 <= status < 400:
        raise DeliveryFailed(
            f"{host} responded with redirect {status}; redirects are not followed. Configure the final address."
        )
    if not 200 <= status < 300:
        kind = DeliveryRejected if 400 <= status < 500 and status not in TEMPORARY else DeliveryFailed
        raise kind(f"{host} responded with status {status}: {response_text[:200]!r}")


def _send_request(
    connection: _PinnedConnection, path: str, body: bytes, headers: Mapping[str, str], timeout_s: float
) -> tuple[int, str]:
    # A receiver that sends a byte now and then never exceeds the timeout of a single read.
    limit = threading.Timer(timeout_s, connection.abort)
    limit.daemon = True
    limit.start()
    try:
        connection.request("POST", path, body, {"User-Agent": "headrace", **headers})
        response = connection.getresponse()
        content = b""
        with suppress(
            OSError, http.client.HTTPException
        ):  # the status is enough to know whether the message was accepted
            content = response.read(MAX_RESPONSE_BYTES)
        return response.status, content.decode(errors="replace")
    finally:
        limit.cancel()
        connection.close()
