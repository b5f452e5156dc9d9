"""Decide who may read the endpoints of a process: this machine without a token, others with one. Pure.

A loopback address alone proves nothing: a proxy on this machine forwards requests of others from there, and a browser
on it sends those of any page whose name resolves to 127.0.0.1. The first adds headers, the second names another host.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence
from functools import lru_cache
from ipaddress import IPv6Address, ip_address

FORWARDED = "x-forwarded"
"""Prefix of headers that proxies add. ADDED_BY_PROXIES lists others."""
ADDED_BY_PROXIES = frozenset({"forwarded", "via", "x-real-ip"})


def is_direct_loopback(peer: str | None, hosts: Sequence[str], header_names: Iterable[str]) -> bool:
    """Return True if a request comes from this machine, is addressed to a loopback name, and came through no proxy.

    `peer` is the address of the connection, `hosts` the values of all its Host headers.
    """
    return (
        peer is not None
        and is_loopback(peer)
        and len(hosts) == 1
        and _is_loopback_host(hosts[0])
        and not any(_is_added_by_proxies(name.lower()) for name in header_names)
    )


@lru_cache(maxsize=1024)  # asked at every scrape, about few addresses
def is_loopback(address: str) -> bool:
    """Return True for an IP address of the loopback interface; False for names."""
    try:
        ip = ip_address(address)
    except ValueError:
        return False
    mapped = ip.ipv4_mapped if isinstance(ip, IPv6Address) else None
    return (mapped or ip).is_loopback


def has_token(authorization: str | None, token: str | None) -> bool:
    """Return True if an Authorization header carries this token; False if no token is configured."""
    scheme, _, given = (authorization or "").partition(" ")
    if token is None or scheme.lower() != "bearer":
        return False
    return hmac.compare_digest(given.strip().encode(errors="replace"), token.encode())


def _is_loopback_host(host: str) -> bool:
    name = host.strip()
    if name.startswith("["):
        name = name[1:].partition("]")[0]
    elif name.count(":") == 1:
        name = name.partition(":")[0]
    return name.lower() == "localhost" or is_loopback(name)


def _is_added_by_proxies(name: str) -> bool:
    return name in ADDED_BY_PROXIES or name.startswith(FORWARDED)
