"""Which addresses a webhook may call: public ones, and those of `webhooks.allow_networks`. Fails closed.

The rules are listed here instead of taken from `ipaddress.is_global`, whose meaning changes between releases of Python.
Of IPv6 only the space that is assigned for global use counts as public; everything else is blocked, so that forms which
carry an IPv4 address (IPv4-mapped, NAT64, 6to4, Teredo) reach nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TypeAlias

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

_BLOCKED_V4 = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8",  # this network, and the unspecified address
            "10.0.0.0/8",  # private
            "100.64.0.0/10",  # carrier-grade NAT
            "127.0.0.0/8",  # loopback
            "169.254.0.0/16",  # link-local, with the metadata services of clouds
            "172.16.0.0/12",  # private
            "192.0.0.0/24",  # IETF protocol assignments
            "192.0.2.0/24",  # documentation
            "192.88.99.0/24",  # relays of 6to4
            "192.168.0.0/16",  # private
            "198.18.0.0/15",  # benchmarks of networks
            "198.51.100.0/24",  # documentation
            "203.0.113.0/24",  # documentation
            "224.0.0.0/4",  # multicast
            "240.0.0.0/4",  # reserved, and broadcast
        ),
    )
)
_GLOBAL_V6 = IPv6Network("2000::/3")
_BLOCKED_V6 = tuple(
    map(
        IPv6Network,
        (
            "2001::/23",  # IETF protocol assignments: Teredo, ORCHID, benchmarks
            "2001:db8::/32",  # documentation
            "2002::/16",  # 6to4
            "3fff::/20",  # documentation
        ),
    )
)


def networks(texts: Sequence[str]) -> tuple[Network, ...]:
    return tuple(map(ip_network, texts))


def blocked_because(address: str, allowed: Sequence[Network] = ()) -> str:
    """Why this address may not be called; "" if it may."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return f"{address!r} is not an IP address"
    if isinstance(parsed, IPv6Address) and parsed.scope_id is not None:
        return f"{address} belongs to one link only"
    if any(parsed.version == network.version and parsed in network for network in allowed):
        return ""
    return "" if is_public(parsed) else f"{address} is not a public address"


def is_public(address: Address) -> bool:
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _BLOCKED_V4)
    return address in _GLOBAL_V6 and not any(address in network for network in _BLOCKED_V6)
