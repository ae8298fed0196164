"""Connects under a policy: a name is looked up once, and only the addresses that were checked are tried."""

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

from hutch.egress.addresses import Address, plain, read_host
from hutch.egress.policy import Policy, Refused
from hutch.errors import HutchError

RESOLVE_SECONDS = 10.0
CONNECT_SECONDS = 10.0
# RFC 8305: how long an address has for itself before the next is tried beside it.
HEAD_START_SECONDS = 0.25
MAX_ADDRESSES = 16
# Threads that wait for a name server, of all runs together.
MAX_LOOKUPS = 256

_TOO_MANY = "Too many names are being looked up at once; try again later."
_lookups = threading.BoundedSemaphore(MAX_LOOKUPS)


class Unreachable(HutchError):
    """What was to be reached does not answer, or does not exist."""

    code = "unreachable"

    def __init__(self, message: str, *, timed_out: bool = False) -> None:
        super().__init__(message)
        self.timed_out = timed_out


async def connect(policy: Policy, host: str, port: int) -> socket.socket:
    """A connected, non-blocking socket; the caller closes it.

    `host` is as a client wrote it: a name, or an address in any notation.
    Raises Refused where the policy says no, Unreachable where nobody is there.
    """
    return await reach(await resolve(policy, host, port), host, port)


async def reach(addresses: list[Address], host: str, port: int) -> socket.socket:
    """The second half of `connect`, for who wants to do something between both. Raises Unreachable."""
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            return await _first_of(addresses, port)
    except TimeoutError:
        what = f"{host}:{port} did not answer within {CONNECT_SECONDS:g} s."
        raise Unreachable(what, timed_out=True) from None
    except OSError as error:
        raise Unreachable(f"{host}:{port} cannot be reached: {_reason(error)}.") from None


async def resolve(policy: Policy, host: str, port: int) -> list[Address]:
    """The permitted addresses of a host, in the order in which they are to be tried. Raises as `connect`."""
    try:
        where = read_host(host)
    except ValueError as error:
        raise Refused(f"{host[:253]!r} is no host: {error}.") from None
    if not 0 < port < 65536:
        raise Refused(f"{port} is no port.")
    policy.check_host(where, port)
    addresses = await _look_up(where) if isinstance(where, str) else [where]
    refusals = {address: policy.refusal(where, port, address) for address in addresses}
    permitted = [address for address, refusal in refusals.items() if refusal is None]
    if not permitted:
        raise Refused(next(refusal for refusal in refusals.values() if refusal is not None))
    return permitted


async def _look_up(name: str) -> list[Address]:
    try:
        async with asyncio.timeout(RESOLVE_SECONDS):
            found = await _in_thread(lambda: lookup(name))
    except TimeoutError:
        what = f"{name} was not resolved within {RESOLVE_SECONDS:g} s."
        raise Unreachable(what, timed_out=True) from None
    except (OSError, UnicodeError) as error:
        raise Unreachable(f"{name} cannot be resolved: {_reason(error)}.") from None
    # A zone would not survive being checked.
    addresses = list(dict.fromkeys(plain(ip_address(text)) for text in found if "%" not in text))
    if not addresses:
        raise Unreachable(f"{name} has no address.")
    return _interleaved(addresses)[:MAX_ADDRESSES]


def lookup(name: str) -> list[str]:
    """The addresses of a name, from the machine's own resolver. Blocks."""
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


async def _in_thread(call: Callable[[], list[str]]) -> list[str]:
    """In a thread of its own, which neither a slow name server nor the end of the program waits for."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[list[str]] = loop.create_future()

    def settle(found: list[str], error: BaseException | None) -> None:
        if outcome.done():
            return
        if error is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(found)

    def work() -> None:
        found: list[str] = []
        failure: BaseException | None = None
        try:
            found = call()
        except Exception as error:
            failure = error
        finally:
            _lookups.release()
        # The loop may be closed by now.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, found, failure)

    if not _lookups.acquire(blocking=False):
        raise Unreachable(_TOO_MANY)
    try:
        threading.Thread(target=work, name="hutch-lookup", daemon=True).start()
    except RuntimeError:
        _lookups.release()
        raise Unreachable(_TOO_MANY) from None
    return await outcome


def _interleaved(addresses: list[Address]) -> list[Address]:
    """The families by turns, the resolver's first choice first (RFC 8305, section 4)."""
    first = addresses[0].version
    same = [address for address in addresses if address.version == first]
    other = [address for address in addresses if address.version != first]
    pairs = zip_longest(same, other)
    return [address for address in chain.from_iterable(pairs) if address is not None]


async def _first_of(addresses: list[Address], port: int) -> socket.socket:
    """The first to answer; each starts when the one before it fails, or has had its head start."""
    waiting: Iterator[Address] = iter(addresses)
    trying: set[asyncio.Task[socket.socket]] = set()
    failure: BaseException = OSError(errno.EHOSTUNREACH, os.strerror(errno.EHOSTUNREACH))
    more = True
    try:
        while True:
            if more and (address := next(waiting, None)) is not None:
                trying.add(asyncio.get_running_loop().create_task(_connect_to(address, port)))
            else:
                more = False
            if not trying:
                raise failure
            patience = HEAD_START_SECONDS if more else None
            done, trying = await asyncio.wait(trying, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                error = task.exception()
                if error is None:
                    trying |= done - {task}
                    return task.result()
                failure = error
    finally:
        for task in trying:
            task.cancel()
            task.add_done_callback(_discard)


def _discard(task: asyncio.Task[socket.socket]) -> None:
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
    # Event loops have their own words, and a look-up its own numbers.
    number = error.errno if isinstance(error, OSError) and not isinstance(error, socket.gaierror) else None
    text = os.strerror(number) if number else getattr(error, "strerror", None) or str(error)
    return text[:1].lower() + text[1:]
