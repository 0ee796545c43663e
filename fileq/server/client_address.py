"""Addresses of clients: how they are read, which are trusted proxies, and what counts as one client."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network


def parsed(text: str) -> IPv4Address | IPv6Address | None:
    """None for what is no address. On a socket for IPv6 an IPv4 client has an address such as ::ffff:192.0.2.1; here it
    is an IPv4 address all the same. The zone of a link-local address is left out."""
    try:
        found = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return (found.ipv4_mapped or found) if isinstance(found, IPv6Address) else found


def shown(text: str) -> str:
    """The address as limits, logs and the audit name it."""
    return str(parsed(text) or text)


def client_network(text: str) -> str:
    """What counts as one client: of IPv6 a network of 64 bits, which one machine may have for itself."""
    found = parsed(text)
    if isinstance(found, IPv6Address):
        return str(ip_network((int(found), 64), strict=False))
    return str(found or text[:64])


class Proxies:
    """The networks of server.trusted_proxies."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._networks = [_unmapped(ip_network(text)) for text in texts]

    def __contains__(self, address: str) -> bool:
        found = parsed(address)
        return found is not None and any(found in network for network in self._networks)


def _unmapped(network: IPv4Network | IPv6Network) -> IPv4Network | IPv6Network:
    """::ffff:192.0.2.0/120 is 192.0.2.0/24, as addresses are read."""
    mapped = network.network_address.ipv4_mapped if isinstance(network, IPv6Network) else None
    return network if mapped is None or network.prefixlen < 96 else ip_network((int(mapped), network.prefixlen - 96))
