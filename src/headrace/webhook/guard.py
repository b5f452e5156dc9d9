"""Addresses that messages may be sent to. A tenant chooses the address and this server opens the connection, so without
a check every channel would be a way into the internal network.

A name is resolved here, all its addresses must be allowed, and the connection is made to one of the checked addresses:
a DNS answer that changes afterwards has no effect.
"""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass, field
from functools import cached_property
from urllib.parse import urlsplit

from headrace.errors import HeadraceError
from headrace.kinds import host as host_kind

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# Network whose IPv6 addresses embed IPv4 addresses.
NAT64 = ipaddress.ip_network("64:ff9b::/96")

NOT_PUBLIC = tuple(map(ipaddress.ip_network, ("192.0.0.0/24", "192.88.99.0/24", "3fff::/20", "5f00::/16")))
"""Special-purpose networks that some versions of Python treat as public."""

METADATA = tuple(
    map(
        ipaddress.ip_network,
        ("169.254.169.254", "168.63.129.16", "192.0.0.192", "100.100.100.200", "fd00:ec2::/32", "fd20:ce::254"),
    )
)
"""Addresses at which clouds provide credentials to any process of a machine."""

METADATA_NAMES = frozenset({"metadata.google.internal", "instance-data.ec2.internal"})

PRIVATE = tuple(
    map(ipaddress.ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"))
)

LOCAL_ONLY = tuple(map(ipaddress.ip_network, ("0.0.0.0/8", "255.255.255.255")))


class AddressRefused(HeadraceError):
    """The host resolves to an address that is not allowed. Nothing was sent."""


def is_public(address: str) -> bool:
    ip = _unwrap_address(address)
    if any(ip in network for network in (*NOT_PUBLIC, *METADATA)):
        return False
    if isinstance(ip, ipaddress.IPv6Address) and ip.is_site_local:  # deprecated; not private according to Python
        return False
    return ip.is_global and not ip.is_multicast and not ip.is_reserved


def is_restricted(address: str) -> bool:
    """Return True for addresses that no network setting allows: loopback, link-local, multicast, cloud metadata."""
    ip = _unwrap_address(address)
    return (
        ip.is_loopback
        or ip.is_link_local
        or ip.is_multicast
        or ip.is_unspecified
        or any(ip in network for network in (*LOCAL_ONLY, *METADATA))
    )


def is_loopback(address: str) -> bool:
    return _unwrap_address(address).is_loopback


@dataclass(frozen=True)
class AddressPolicy:
    """Policy for addresses that are not public.

    `allowed_hosts` contains names, addresses and networks. A restricted address is allowed only by its exact name or
    address; a network that contains it, and `allow_private`, are not enough.
    """

    allowed_hosts: tuple[str, ...] = ()
    allow_private: bool = False
    setting: str = field(
        default="alerts.allowed_hosts", compare=False
    )  # setting to name in the error for a refused address

    def is_allowed_host(self, host: str) -> bool:
        return _canonicalise(host) in self._hosts

    def is_allowed_address(self, address: str) -> bool:
        """Return True if connections to the address are allowed, whatever name resolved to it."""
        ip = _unwrap_address(address)
        if is_public(address) or ip in self._addresses:
            return True
        if is_restricted(address):
            return False
        return self.allow_private or any(ip in network for network in self._networks)

    @cached_property
    def _hosts(self) -> frozenset[str]:
        return frozenset(map(_canonicalise, self.allowed_hosts))

    @cached_property
    def _addresses(self) -> frozenset[Address]:
        singles = (each.network_address for each in self._networks if each.num_addresses == 1)
        return frozenset(_unwrap_address(str(each)) for each in singles)

    @cached_property
    def _networks(self) -> tuple[Network, ...]:
        return tuple(ipaddress.ip_network(each) for each in self.allowed_hosts if _is_network(each))


PUBLIC_ONLY = AddressPolicy()


def describe_danger(allowed_host: str) -> str | None:
    """Describe what an entry of `allowed_hosts` opens beyond one host or network of your own; None if nothing."""
    if not _is_network(allowed_host):
        name = _canonicalise(allowed_host)
        if name == "localhost" or name.endswith(".localhost"):
            return "loopback"
        return "cloud metadata" if name in METADATA_NAMES else None
    network = ipaddress.ip_network(allowed_host)
    if network.num_addresses > 1:
        is_whole = any(each[0] in network and each[-1] in network for each in PRIVATE)
        return "a whole private network" if is_whole else None
    address = str(network.network_address)
    if is_loopback(address):
        return "loopback"
    if any(_unwrap_address(address) in each for each in METADATA):
        return "cloud metadata"
    return "a link-local, multicast or unspecified address" if is_restricted(address) else None


def resolve_addresses(host: str, port: int, policy: AddressPolicy) -> list[str]:
    """Resolve a host and return all its addresses, in order of preference. Raises AddressRefused, or OSError for an
    unknown name."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [str(each[4][0]) for each in found]
    if not policy.is_allowed_host(host) and (
        refused := [each for each in addresses if not policy.is_allowed_address(each)]
    ):
        raise AddressRefused(describe_refusal(host, refused[0], policy))
    return addresses


def describe_refusal(host: str, address: str, policy: AddressPolicy) -> str:
    kind = (
        "a loopback, link-local, multicast or cloud metadata address" if is_restricted(address) else "a private address"
    )
    return (
        f"{host} resolves to {address}, which is not a public address but {kind}. Nothing was sent. To allow this "
        f"host, add it to {policy.setting}."
    )


def validate_url(url: str) -> str:
    """Return `url` if messages can be posted to it. Raises ValueError with the reason otherwise."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https"):
        raise ValueError("must begin with https:// or http://")
    if not parts.hostname:
        raise ValueError("has no host")
    if any(char.isspace() or not char.isprintable() for char in url):
        raise ValueError("contains spaces or control characters")
    if parts.username or parts.password:
        raise ValueError("must not contain a user name or password")
    _ = parts.port  # raises ValueError for an invalid port
    return url


def _unwrap_address(address: str) -> Address:
    """Return the address without its zone; for an IPv4 address embedded in an IPv6 one, the IPv4 address."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv4Address):
        return found
    if found in NAT64:
        return ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
    return found.ipv4_mapped or found.sixtofour or (found.teredo[1] if found.teredo else found)


def _canonicalise(host: str) -> str:
    try:
        return host_kind().parse(host.rstrip("."))
    except ValueError:
        return host


def _is_network(text: str) -> bool:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        return False
    return True
