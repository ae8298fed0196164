"""Rules for requests to authorization servers, whose URLs an MCP server chooses."""

from __future__ import annotations

import asyncio
import socket
from ipaddress import ip_address

import httpx2

from hutch.egress.addresses import Address, parse_host, special_kind
from hutch.mcp_client.errors import ServerUnreachable
from hutch.text import printable

MAX_RESPONSE_BYTES = 256 * 1024
SECONDS = 30.0
_EXTENSION = "hutch_oauth"
_METADATA = "a metadata address"


def mark_request(request: httpx2.Request) -> httpx2.Request:
    """Marks a request that an OAuth flow makes. Also sets a timeout, because such requests have none."""
    request.extensions |= {_EXTENSION: True, "timeout": httpx2.Timeout(SECONDS).as_dict()}
    return request


def is_marked(request: httpx2.Request) -> bool:
    return _EXTENSION in request.extensions


async def check_url(server_url: str, url: str) -> None:
    """Raises ServerUnreachable if an MCP server may not direct a login to this URL.

    A server on the internet may name only https URLs on the internet or on its own host, because it must not
    make Hutch send requests to this machine or its network. URLs on its own host are safe, even if the server
    makes its name resolve to an address of another server: the other server has no certificate for the name,
    so https fails. A server on this machine or its network may also name other servers there. The metadata
    services of clouds are always refused.
    """
    server, target = httpx2.URL(server_url), httpx2.URL(url)
    kinds = await _special_kinds(target.host)
    if _METADATA not in kinds:
        if target.scheme == "https" and (not kinds or target.host == server.host):
            return
        # An http URL is allowed if its scheme, host and port are those of the configured server, because
        # Hutch connects there anyway.
        if _origin(target) == _origin(server) or await _is_local(server.host):
            return
    where = target.copy_with(userinfo=b"", query=None, fragment=None)
    reason = kinds[0] if kinds else "an http URL"
    message = f"it directs the login to {printable(str(where))}, which is refused because it is {reason}"
    raise ServerUnreachable(message, "login_required", lasting=True)


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


async def _is_local(host: str) -> bool:
    """Returns True if the host has addresses and none of them is on the public internet. One private address
    is not enough, because a server on the internet can add private addresses to its name.
    """
    addresses = await _addresses(host)
    return bool(addresses) and all(special_kind(address) is not None for address in addresses)


async def _special_kinds(host: str) -> list[str]:
    """Returns the kinds of those addresses of the host that are not on the public internet."""
    kinds = (special_kind(address) for address in await _addresses(host))
    return list(dict.fromkeys(kind for kind in kinds if kind is not None))


async def _addresses(host: str) -> list[Address]:
    """Returns the addresses of a host. The list is empty if the host has none, because a request to this host
    would fail anyway.
    """
    try:
        parsed = parse_host(f"[{host}]" if ":" in host else host)
        if not isinstance(parsed, str):
            return [parsed]
        entries = await asyncio.get_running_loop().getaddrinfo(parsed, None, type=socket.SOCK_STREAM)
    except (ValueError, OSError):
        return []
    return [ip_address(str(entry[4][0]).partition("%")[0]) for entry in entries]
