"""Hosts as clients write them, and which addresses are nobody's business: one word of ours for every kind."""

from __future__ import annotations

import re
import socket
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# No percent signs, no zones, nothing beyond ASCII: whoever sends a host over a wire has encoded it by then.
_NAME = re.compile(r"[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*")
_NUMBER = re.compile(r"0x[0-9a-f]*|[0-9]+")

# IANA's special-purpose registries, and what clouds keep behind public addresses. The first that fits counts.
_SPECIAL: tuple[tuple[Network, str], ...] = tuple(
    (ip_network(network), kind)
    for kind, networks in (
        (
            "a metadata address",
            "169.254.169.254 100.100.100.200 168.63.129.16 192.0.0.192 fd00:ec2::254 fd20:ce::254",
        ),
        ("the unspecified address", "0.0.0.0 ::"),
        ("a loopback address", "127.0.0.0/8 ::1"),
        ("a link-local address", "169.254.0.0/16 fe80::/10"),
        ("a private address", "10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 fc00::/7 fec0::/10"),
        ("a shared address (carrier-grade NAT)", "100.64.0.0/10"),
        ("a multicast address", "224.0.0.0/4 ff00::/8"),
        ("the broadcast address", "255.255.255.255"),
        ("a benchmarking address", "198.18.0.0/15 2001:2::/48"),
        ("a documentation address", "192.0.2.0/24 198.51.100.0/24 203.0.113.0/24 2001:db8::/32 3fff::/20"),
        ("a reserved address", "0.0.0.0/8 192.0.0.0/24 192.88.99.0/24 240.0.0.0/4 2001::/23"),
    )
    for network in networks.split()
)
_GLOBAL_IPV6 = IPv6Network("2000::/3")
_NAT64 = IPv6Network("64:ff9b::/96")
_6TO4 = IPv6Network("2002::/16")


def read_host(text: str) -> Address | str:
    """An address in any notation that a client may connect to, or else a name in lower case.

    Raises ValueError, which says why, for what is neither.
    """
    host = text.lower()
    if host.startswith("[") and host.endswith("]"):
        return _ipv6(host[1:-1])
    host = host.removesuffix(".")
    if len(host) > 253 or not _NAME.fullmatch(host):
        raise ValueError("it is neither a name nor an address")
    if _NUMBER.fullmatch(host.rpartition(".")[2]):
        return _ipv4(host)
    return host


def _ipv6(text: str) -> Address:
    if "%" in text:
        raise ValueError("an address with a zone is of no use here")
    try:
        return plain(IPv6Address(text))
    except ValueError:
        raise ValueError("it is not an IPv6 address") from None


def _ipv4(host: str) -> IPv4Address:
    """As `inet_aton` and the URL standard read it: up to four parts, each decimal, octal or hexadecimal."""
    parts = host.split(".")
    if len(parts) > 4 or not all(map(_NUMBER.fullmatch, parts)):
        raise ValueError("it ends in a number but is not an IPv4 address")
    try:
        *leading, last = map(_number, parts)
    except ValueError:
        raise ValueError("it has a part that is no number") from None
    if any(part > 255 for part in leading) or last >= 256 ** (4 - len(leading)):
        raise ValueError("it has a part that is too large for an IPv4 address")
    return IPv4Address(last + sum(part << (8 * (3 - at)) for at, part in enumerate(leading)))


def _number(part: str) -> int:
    if part.startswith("0x"):
        return int(part[2:] or "0", 16)
    return int(part, 8 if part.startswith("0") else 10)


def plain(address: Address) -> Address:
    """An IPv4 address also where it comes as an IPv6 one: the kernel makes no difference either."""
    return (isinstance(address, IPv6Address) and address.ipv4_mapped) or address


def special(address: Address) -> str | None:
    """What an address is if not one of the public internet: "a private address"."""
    address = plain(address)
    for network, kind in _SPECIAL:
        if address.version == network.version and address in network:
            return kind
    if isinstance(address, IPv6Address):
        return _special_ipv6(address)
    return "an address of this machine" if _is_own(address) else None


def _special_ipv6(address: IPv6Address) -> str | None:
    """What is reached through a translator or tunnel is judged by where that ends."""
    inner: IPv4Address | None = None
    if address in _NAT64:
        inner = IPv4Address(int(address) & 0xFFFFFFFF)
    elif address not in _GLOBAL_IPV6:
        return "a reserved address"
    elif address in _6TO4:
        inner = address.sixtofour
    elif (int(address) >> 32) & 0xFDFFFFFF == 0x5EFE:  # ISATAP
        inner = IPv4Address(int(address) & 0xFFFFFFFF)
    if inner is not None and (kind := special(inner)) is not None:
        return f"{inner}, {kind}, in another form"
    return "an address of this machine" if _is_own(address) else None


def _is_own(address: Address) -> bool:
    """Whether a public address is this machine's own: its firewall would not take us for strangers there.

    Connecting a datagram socket sends nothing; it only has the kernel choose the address to send from.
    """
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), 9))
            return ip_address(probe.getsockname()[0]) == address
    except OSError:
        return False
