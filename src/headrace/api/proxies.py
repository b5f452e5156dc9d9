"""Client address and scheme behind a proxy, from the headers of trusted proxies.

Headers from other senders are ignored, because `X-Forwarded-For` determines the address in the audit log and the one
whose invalid keys are counted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

log = logging.getLogger(__name__)

FOR, PROTO = "x-forwarded-for", "x-forwarded-proto"


class ForwardedHeadersMiddleware:
    """Replaces the proxy's address and scheme with the client's. Must be the outermost middleware."""

    def __init__(self, app: ASGIApp, trusted: Iterable[str]) -> None:
        self._app = app
        self._networks = [ip_network(each) for each in trusted]
        self._has_warned = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            if FOR in headers or PROTO in headers:
                self._read(scope, headers)
        await self._app(scope, receive, send)

    def _read(self, scope: Scope, headers: Headers) -> None:
        peer = (scope.get("client") or ("", 0))[0]
        if not self._is_trusted(peer):
            self._warn(peer)
            return
        hops = [hop for value in headers.getlist(FOR) for hop in value.split(",")]
        scope["client"] = (self._find_first_untrusted(peer, hops), 0)
        schemes = headers.getlist(PROTO)
        if schemes and (scheme := schemes[-1].strip().lower()) in ("http", "https"):
            scope["scheme"] = scheme

    def _find_first_untrusted(self, peer: str, hops: Sequence[str]) -> str:
        """Return the last address that is not a trusted proxy. Each proxy appends the address of its client."""
        client = peer
        for hop in reversed(hops):
            if (address := parse_address(hop)) is None:
                break  # not written by a trusted proxy
            client = str(address)
            if not self._is_trusted(client):
                break
        return client

    def _is_trusted(self, address: str) -> bool:
        parsed = parse_address(address)
        return any(parsed in network for network in self._networks if parsed is not None)

    def _warn(self, peer: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "ignored forwarding headers from %s; if this is your proxy, add it to api.trusted_proxies",
                peer[:64],
                extra={"action": "untrusted_proxy"},
            )


def parse_address(text: str) -> IPv4Address | IPv6Address | None:
    """Parse the address of a client, or an entry of X-Forwarded-For, which may have a port; None if it is not an
    address."""
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        return ip_address(text)
    except ValueError:
        return None
