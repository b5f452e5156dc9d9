"""Where messages may go. A tenant chooses the address and this server opens the connection, so without a guard every
channel would be a way into the network behind it.

A name is resolved here, all its addresses must be allowed, and the connection is made to one of those that were
checked: a name that answers differently a moment later changes nothing.
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

# Within these, addresses of the old protocol hide in those of the new one.
NAT64 = ipaddress.ip_network("64:ff9b::/96")

NOT_PUBLIC = tuple(map(ipaddress.ip_network, ("192.0.0.0/24", "192.88.99.0/24", "3fff::/20", "5f00::/16")))
"""Special-purpose networks that some versions of Python take for public ones."""

METADATA = tuple(
    map(
        ipaddress.ip_network,
        ("169.254.169.254", "168.63.129.16", "192.0.0.192", "100.100.100.200", "fd00:ec2::/32", "fd20:ce::254"),
    )
)
"""Where clouds hand credentials to any process of the machine."""

METADATA_NAMES = frozenset({"metadata.google.internal", "instance-data.ec2.internal"})

PRIVATE = tuple(
    map(ipaddress.ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"))
)

THIS_NETWORK = ipaddress.ip_network("0.0.0.0/8")
BROADCAST = ipaddress.ip_address("255.255.255.255")


class AddressRefused(HeadraceError):
    """A channel leads to an address that is not allowed. Nothing was sent."""


def is_public(address: str) -> bool:
    found = _plain_address(address)
    if any(found in network for network in (*NOT_PUBLIC, *METADATA)):
        return False
    if isinstance(found, ipaddress.IPv6Address) and found.is_site_local:  # no longer given out, not private to Python
        return False
    return found.is_global and not found.is_multicast and not found.is_reserved


def is_restricted(address: str) -> bool:
    """Return True for addresses that no network setting opens: loopback, link-local, multicast, cloud metadata."""
    found = _plain_address(address)
    return (
        found.is_loopback
        or found.is_link_local
        or found.is_multicast
        or found.is_unspecified
        or found == BROADCAST
        or found in THIS_NETWORK
        or any(found in network for network in METADATA)
    )


def is_loopback(address: str) -> bool:
    return _plain_address(address).is_loopback


@dataclass(frozen=True)
class AddressPolicy:
    """Addresses beyond public ones that connections may be made to.

    `allowed_hosts` holds names, addresses and networks. A restricted address is allowed only by the exact name or
    address; a network that contains it, and `allow_private`, are not enough.
    """

    allowed_hosts: tuple[str, ...] = ()
    allow_private: bool = False
    setting: str = field(default="alerts.allowed_hosts", compare=False)  # named where an address is refused

    def names(self, host: str) -> bool:
        return _canonical(host) in self._hosts

    def allows(self, address: str) -> bool:
        """Return True if the address may be connected to, whatever name led to it."""
        found = _plain_address(address)
        if is_public(address) or found in self._addresses:
            return True
        if is_restricted(address):
            return False
        return self.allow_private or any(found in network for network in self._networks)

    @cached_property
    def _hosts(self) -> frozenset[str]:
        return frozenset(map(_canonical, self.allowed_hosts))

    @cached_property
    def _addresses(self) -> frozenset[Address]:
        singles = (each.network_address for each in self._networks if each.num_addresses == 1)
        return frozenset(_plain_address(str(each)) for each in singles)

    @cached_property
    def _networks(self) -> tuple[Network, ...]:
        return tuple(ipaddress.ip_network(each) for each in self.allowed_hosts if _is_network(each))


PUBLIC_ONLY = AddressPolicy()


def describe_danger(allowed_host: str) -> str | None:
    """Return what an entry of `allowed_hosts` opens beyond one host or network of your own; None if nothing."""
    if not _is_network(allowed_host):
        name = _canonical(allowed_host)
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
    if any(_plain_address(address) in each for each in METADATA):
        return "cloud metadata"
    return "a link-local, multicast or unspecified address" if is_restricted(address) else None


def checked_address(host: str, port: int, policy: AddressPolicy) -> str:
    """Return an address of this host to connect to. Raises AddressRefused, or OSError for an unknown name."""
    return checked_addresses(host, port, policy)[0]


def checked_addresses(host: str, port: int, policy: AddressPolicy) -> list[str]:
    """Return all addresses of this host, in the order of preference. Raises as `checked_address` does."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [str(each[4][0]) for each in found]
    if not policy.names(host) and (refused := [each for each in addresses if not policy.allows(each)]):
        raise AddressRefused(refusal(host, refused[0], policy))
    return addresses


def refusal(host: str, address: str, policy: AddressPolicy) -> str:
    which = (
        "a loopback, link-local, multicast or cloud metadata address" if is_restricted(address) else "a private address"
    )
    return (
        f"{host} is {address}, which is not a public address but {which}. Nothing was sent. Where this host is meant, "
        f"add it to {policy.setting}."
    )


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


def _plain_address(address: str) -> Address:
    """Return the address without its zone; of an IPv4 address inside an IPv6 one, the IPv4 address."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv4Address):
        return found
    if found in NAT64:
        return ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
    return found.ipv4_mapped or found.sixtofour or (found.teredo[1] if found.teredo else found)


def _canonical(host: str) -> str:
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
