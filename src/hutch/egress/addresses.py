"""Parses hosts and URLs strictly, and classifies addresses that are not on the public internet."""

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
from urllib.parse import urljoin

import msgspec

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# A host name is ASCII without percent signs, because clients encode a host before they send it.
_NAME = re.compile(r"[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*")
_NUMBER = re.compile(r"0x[0-9a-f]*|[0-9]+")

# Networks that are not on the public internet: IANA's special-purpose registries, and the addresses of
# metadata services in clouds. The first match wins.
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

MAX_URL_LENGTH = 16 * 1024
DEFAULT_PORTS = {"http": 80, "https": 443}

# User names, backslashes, spaces and non-ASCII characters are rejected, because parsers disagree about them.
_URL = re.compile(
    r"(?P<scheme>[A-Za-z]+)://(?P<host>\[[^\[\]/?#@\\]*\]|[^:\[\]/?#@\\]+)(?::(?P<port>[0-9]{0,5}))?"
    r"(?P<path>/[^?#\\]*)?(?P<query>\?[^#]*)?(?:#(?P<fragment>.*))?"
)
_VISIBLE = re.compile(r"[\x21-\x7e]*")
_UNSAFE = re.compile(rb"[^\x21-\x7e]")


# --- hosts and addresses ---


def parse_host(text: str) -> Address | str:
    """Parses a host. Returns an address, accepting every notation that clients accept, or a name in lower
    case. Raises ValueError.
    """
    host = text.lower()
    if host.startswith("[") and host.endswith("]"):
        return _parse_ipv6(host[1:-1])
    host = host.removesuffix(".")
    if len(host) > 253 or not _NAME.fullmatch(host):
        raise ValueError("it is neither a name nor an address")
    if _NUMBER.fullmatch(host.rpartition(".")[2]):
        return _parse_ipv4(host)
    return host


def _parse_ipv6(text: str) -> Address:
    if "%" in text:
        raise ValueError("an address with a zone is not supported")
    try:
        return unmap_ipv4(IPv6Address(text))
    except ValueError:
        raise ValueError("it is not an IPv6 address") from None


def _parse_ipv4(host: str) -> IPv4Address:
    """Parses an IPv4 address like `inet_aton` and the URL standard: up to four parts, each of them decimal,
    octal or hexadecimal.
    """
    parts = host.split(".")
    if len(parts) > 4 or not all(map(_NUMBER.fullmatch, parts)):
        raise ValueError("it ends in a number but is not an IPv4 address")
    try:
        *leading, last = map(_parse_number, parts)
    except ValueError:
        raise ValueError("it has a part that is not a number") from None
    if any(part > 255 for part in leading) or last >= 256 ** (4 - len(leading)):
        raise ValueError("it has a part that is too large for an IPv4 address")
    return IPv4Address(last + sum(part << (8 * (3 - at)) for at, part in enumerate(leading)))


def _parse_number(part: str) -> int:
    if part.startswith("0x"):
        return int(part[2:] or "0", 16)
    return int(part, 8 if part.startswith("0") else 10)


def unmap_ipv4(address: Address) -> Address:
    """Converts an IPv4-mapped IPv6 address to IPv4, as the kernel does."""
    return (isinstance(address, IPv6Address) and address.ipv4_mapped) or address


def special_kind(address: Address) -> str | None:
    """Describes an address that is not on the public internet ("a private address"), or returns None."""
    address = unmap_ipv4(address)
    for network, kind in _SPECIAL:
        if address.version == network.version and address in network:
            return kind
    if isinstance(address, IPv6Address):
        return _special_ipv6(address)
    return "an address of this machine" if _is_local(address) else None


def _special_ipv6(address: IPv6Address) -> str | None:
    """Classifies an address of a translator or tunnel by the IPv4 address that it leads to."""
    inner: IPv4Address | None = None
    if address in _NAT64:
        inner = IPv4Address(int(address) & 0xFFFFFFFF)
    elif address not in _GLOBAL_IPV6:
        return "a reserved address"
    elif address in _6TO4:
        inner = address.sixtofour
    elif (int(address) >> 32) & 0xFDFFFFFF == 0x5EFE:  # ISATAP (RFC 5214)
        inner = IPv4Address(int(address) & 0xFFFFFFFF)
    if inner is not None and (kind := special_kind(inner)) is not None:
        return f"{inner}, {kind}, in another form"
    return "an address of this machine" if _is_local(address) else None


def _is_local(address: Address) -> bool:
    """Returns True if an address belongs to this machine. Such an address may be public, but is not safe to
    reach, because the machine's firewall may trust connections to itself.

    Connecting a datagram socket sends nothing. It only makes the kernel choose a source address.
    """
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), 9))
            return ip_address(probe.getsockname()[0]) == address
    except OSError:
        return False


# --- URLs ---


class Url(msgspec.Struct, frozen=True):
    """A parsed URL. `host` is a name in lower case or an address in canonical form."""

    scheme: str
    host: str
    port: int
    target: str
    """Path and query, exactly as they are sent."""
    fragment: str = ""

    @property
    def origin(self) -> tuple[str, str, int]:
        return self.scheme, self.host, self.port

    @property
    def authority(self) -> str:
        """Returns the value of the `Host` header. The default port is omitted."""
        return self.host if self.port == DEFAULT_PORTS[self.scheme] else f"{self.host}:{self.port}"

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    def is_under(self, domain: str) -> bool:
        """Returns True if the host is this domain or a subdomain of it. Addresses and single labels such as
        `com` have no subdomains.
        """
        domain = domain.lower().removesuffix(".")
        if self.host == domain:
            return True
        is_address = self.host.rpartition(".")[2].isdigit()
        return "." in domain and not is_address and self.host.endswith(f".{domain}")

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.target}"


def parse_url(text: str) -> Url:
    """Parses a URL. Raises ValueError with the reason, but without the URL, which may contain a secret."""
    if len(text) > MAX_URL_LENGTH:
        raise ValueError(f"it is longer than {MAX_URL_LENGTH} characters")
    if not _VISIBLE.fullmatch(text):
        raise ValueError("it contains characters that have to be encoded")
    match = _URL.fullmatch(text)
    if match is None:
        if re.match(r"[A-Za-z]+://[^/?#]*@", text):
            raise ValueError("it contains a user name; use a header instead")
        raise ValueError("expected https://host/path")
    scheme = match["scheme"].lower()
    if scheme not in DEFAULT_PORTS:
        raise ValueError(f"the scheme {scheme} is not supported")
    parsed = parse_host(match["host"])
    host = parsed if isinstance(parsed, str) else f"[{parsed}]" if parsed.version == 6 else str(parsed)
    port = int(match["port"]) if match["port"] else DEFAULT_PORTS[scheme]
    if not 0 < port < 65536:
        raise ValueError(f"{port} is not a port")
    return Url(scheme, host, port, (match["path"] or "/") + (match["query"] or ""), match["fragment"] or "")


def resolve_redirect(base: Url, location: bytes) -> Url:
    """Resolves a redirect and encodes characters that servers leave unencoded. Raises ValueError."""
    escaped = _UNSAFE.sub(lambda match: b"%%%02X" % ord(match[0]), location.strip(b" \t"))
    url = parse_url(urljoin(str(base), escaped.decode("ascii")))
    return url if url.fragment else msgspec.structs.replace(url, fragment=base.fragment)
