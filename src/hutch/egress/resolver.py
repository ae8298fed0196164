"""Resolves a name once and connects only to the addresses that the policy permits."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import threading
from collections.abc import Callable, Iterator
from ipaddress import IPv4Address, ip_address
from itertools import chain, zip_longest

from hutch.egress.addresses import Address, parse_host, unmap_ipv4
from hutch.egress.policy import EgressPolicy, EgressRefused
from hutch.errors import HutchError

RESOLVE_SECONDS = 10.0
CONNECT_SECONDS = 10.0
# Delay before the next address is tried in parallel (RFC 8305).
HEAD_START_SECONDS = 0.25
MAX_ADDRESSES = 16
# Maximum number of threads that wait for a name server, for all runs together.
MAX_LOOKUPS = 256

_UNKNOWN_NAME = (socket.EAI_NONAME, socket.EAI_NODATA)
_TOO_MANY_LOOKUPS = "Too many names are being looked up at once; try again later."
_lookups = threading.BoundedSemaphore(MAX_LOOKUPS)


class HostUnreachable(HutchError):
    """The destination does not exist or does not answer."""

    code = "unreachable"

    def __init__(self, message: str, error_code: str, *, timed_out: bool = False) -> None:
        """`error_code` is the code that Node's errors have for this failure, such as `ENOTFOUND`."""
        super().__init__(message)
        self.error_code = error_code
        self.timed_out = timed_out


async def connect(policy: EgressPolicy, host: str, port: int) -> socket.socket:
    """Connects to a permitted address of a host and returns a non-blocking socket. The caller closes it.

    `host` is a name, or an address in any notation. Raises EgressRefused and HostUnreachable.
    """
    return await connect_to_first(await resolve(policy, host, port), host, port)


async def connect_to_first(addresses: list[Address], host: str, port: int) -> socket.socket:
    """Connects to the first address that answers. Raises HostUnreachable."""
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            return await _race(addresses, port)
    except TimeoutError:
        message = f"{host}:{port} did not answer within {CONNECT_SECONDS:g} s."
        raise HostUnreachable(message, "ETIMEDOUT", timed_out=True) from None
    except OSError as error:
        code = errno.errorcode.get(error.errno or 0, "EHOSTUNREACH")
        raise HostUnreachable(f"{host}:{port} cannot be reached: {_reason(error)}.", code) from None


async def resolve(policy: EgressPolicy, host: str, port: int | None) -> list[Address]:
    """Returns the permitted addresses of a host in the order in which to try them. With the port None,
    returns the addresses that are permitted with any port. Raises EgressRefused and HostUnreachable.
    """
    try:
        parsed = parse_host(host)
    except ValueError as error:
        raise EgressRefused(f"{host[:253]!r} is not a host: {error}.") from None
    if port is not None and not 0 < port < 65536:
        raise EgressRefused(f"{port} is not a port.")
    policy.check_host(parsed, port)
    addresses = await _resolve_name(parsed) if isinstance(parsed, str) else [parsed]
    refusals = {address: policy.refusal(parsed, port, address) for address in addresses}
    permitted = [address for address, refusal in refusals.items() if refusal is None]
    if not permitted:
        raise EgressRefused(next(refusal for refusal in refusals.values() if refusal is not None))
    return permitted


async def _resolve_name(name: str) -> list[Address]:
    try:
        async with asyncio.timeout(RESOLVE_SECONDS):
            texts = await _run_in_daemon_thread(lambda: lookup(name))
    except TimeoutError:
        message = f"{name} was not resolved within {RESOLVE_SECONDS:g} s."
        raise HostUnreachable(message, "EAI_AGAIN", timed_out=True) from None
    except (OSError, UnicodeError) as error:
        code = "ENOTFOUND" if isinstance(error, UnicodeError) or error.errno in _UNKNOWN_NAME else "EAI_AGAIN"
        raise HostUnreachable(f"{name} cannot be resolved: {_reason(error)}.", code) from None
    # Addresses with a zone are dropped, because they cannot be checked.
    addresses = list(dict.fromkeys(unmap_ipv4(ip_address(text)) for text in texts if "%" not in text))
    if not addresses:
        raise HostUnreachable(f"{name} has no address.", "ENOTFOUND")
    return _interleave(addresses)[:MAX_ADDRESSES]


def lookup(name: str) -> list[str]:
    """Returns the addresses of a name from the system's resolver. Blocks."""
    entries = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in entries]


async def _run_in_daemon_thread(call: Callable[[], list[str]]) -> list[str]:
    """Runs a lookup in a daemon thread, so that the exit of the process does not wait for a slow name
    server.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[list[str]] = loop.create_future()

    def settle(addresses: list[str], error: BaseException | None) -> None:
        if outcome.done():
            return
        if error is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(addresses)

    def work() -> None:
        addresses: list[str] = []
        failure: BaseException | None = None
        try:
            addresses = call()
        except Exception as error:
            failure = error
        finally:
            _lookups.release()
        # This raises RuntimeError if the event loop is closed by now.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, addresses, failure)

    if not _lookups.acquire(blocking=False):
        raise HostUnreachable(_TOO_MANY_LOOKUPS, "EAI_AGAIN")
    try:
        threading.Thread(target=work, name="hutch-lookup", daemon=True).start()
    except RuntimeError:
        _lookups.release()
        raise HostUnreachable(_TOO_MANY_LOOKUPS, "EAI_AGAIN") from None
    return await outcome


def _interleave(addresses: list[Address]) -> list[Address]:
    """Alternates address families, starting with the resolver's first choice (RFC 8305, section 4)."""
    first = addresses[0].version
    same = [address for address in addresses if address.version == first]
    other = [address for address in addresses if address.version != first]
    pairs = zip_longest(same, other)
    return [address for address in chain.from_iterable(pairs) if address is not None]


async def _race(addresses: list[Address], port: int) -> socket.socket:
    """Returns the first connection that succeeds. The next attempt starts when the previous one has failed,
    or after a delay.
    """
    remaining: Iterator[Address] = iter(addresses)
    attempts: set[asyncio.Task[socket.socket]] = set()
    failure: BaseException = OSError(errno.EHOSTUNREACH, os.strerror(errno.EHOSTUNREACH))
    more = True
    try:
        while True:
            if more and (address := next(remaining, None)) is not None:
                attempts.add(asyncio.get_running_loop().create_task(_connect_to(address, port)))
            else:
                more = False
            if not attempts:
                raise failure
            timeout = HEAD_START_SECONDS if more else None
            done, attempts = await asyncio.wait(
                attempts, timeout=timeout, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                error = task.exception()
                if error is None:
                    attempts |= done - {task}
                    return task.result()
                failure = error
    finally:
        for task in attempts:
            task.cancel()
            task.add_done_callback(_close_late_connection)


def _close_late_connection(task: asyncio.Task[socket.socket]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().close()


async def _connect_to(address: Address, port: int) -> socket.socket:
    family = socket.AF_INET if isinstance(address, IPv4Address) else socket.AF_INET6
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(sock, (str(address), port))
    except BaseException:
        sock.close()
        raise
    return sock


def _reason(error: BaseException) -> str:
    # Derive the text from the number, because event loops replace the text of an OSError. A gaierror has
    # other error numbers, so keep its text.
    number = error.errno if isinstance(error, OSError) and not isinstance(error, socket.gaierror) else None
    text = os.strerror(number) if number else getattr(error, "strerror", None) or str(error)
    return text[:1].lower() + text[1:]
