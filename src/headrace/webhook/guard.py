"""Where messages may go. A tenant chooses the address and this server opens the connection, so without a guard every
channel would be a way into the network behind it.

A name is resolved here, all its addresses must be public, and the connection is made to one of those that were checked:
a name that answers differently a moment later changes nothing.
"""

from __future__ import annotations

import ipaddress
import socket
from urllib.parse import urlsplit

from headrace.errors import HeadraceError

# Within these, addresses of the old protocol hide in those of the new one.
NAT64 = ipaddress.ip_network("64:ff9b::/96")


class AddressRefused(HeadraceError):
    """A channel leads to a private address. Nothing was sent."""


def is_public(address: str) -> bool:
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour or (found.teredo[1] if found.teredo else None)
        if found in NAT64:
            inner = ipaddress.ip_address(int(found) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(str(inner))
        if found.is_site_local:  # no longer given out, and not private to Python
            return False
    return found.is_global and not found.is_multicast and not found.is_reserved


def checked_address(host: str, port: int, *, allow_private: bool) -> str:
    """An address of this host to connect to. Raises AddressRefused, or OSError for a name that nobody knows."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [str(each[4][0]) for each in found]
    if not allow_private and (private := [each for each in addresses if not is_public(each)]):
        raise AddressRefused(
            f"{host} is {private[0]}, which is not a public address. Nothing was sent. Where such addresses are meant, "
            "set alerts.allow_private or autoscale.allow_private."
        )
    return addresses[0]


def checked_url(url: str) -> str:
    """A URL that messages can be posted to; ValueError says why not."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https"):
        raise ValueError("must begin with https:// or http://")
    if not parts.hostname:
        raise ValueError("names no host")
    if any(char.isspace() or not char.isprintable() for char in url):
        raise ValueError("holds spaces or control characters")
    if parts.username or parts.password:
        raise ValueError("must not hold a password: it is not sent")
    _ = parts.port  # raises ValueError unless it is a port
    return url
