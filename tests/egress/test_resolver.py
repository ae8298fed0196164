from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import threading
from collections.abc import Callable, Iterator
from ipaddress import ip_address

import pytest

from hutch.egress import resolver
from hutch.egress.policy import EgressPolicy, EgressRefused
from hutch.egress.resolver import HostUnreachable, connect, resolve

PUBLIC = EgressPolicy("public")

Names = dict[str, list[str]]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    """Replaces the system's resolver by a dict of names, and records the names that were looked up in
    `asked`.
    """
    known: Names = {"asked": []}

    def lookup(name: str) -> list[str]:
        known["asked"].append(name)
        if name not in known:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return known[name]

    monkeypatch.setattr(resolver, "lookup", lookup)
    return known


@contextlib.contextmanager
def listening(address: str = "127.0.0.1", port: int = 0) -> Iterator[int]:
    with socket.create_server((address, port)) as server:
        yield server.getsockname()[1]


def shown(addresses: list[resolver.Address]) -> list[str]:
    return [str(address) for address in addresses]


async def test_only_permitted_addresses_are_returned(names: Names) -> None:
    names["mixed.example"] = ["10.0.0.1", "1.1.1.1", "::1", "2606:4700::1111", "169.254.169.254"]
    assert shown(await resolve(PUBLIC, "mixed.example", 443)) == ["1.1.1.1", "2606:4700::1111"]


async def test_name_without_permitted_addresses_is_refused(names: Names) -> None:
    names["inside.example"] = ["::ffff:10.0.0.1", "127.0.0.1"]
    with pytest.raises(EgressRefused, match=r"^inside\.example resolves to 10\.0\.0\.1, a private address; "):
        await resolve(PUBLIC, "inside.example", 443)


async def test_address_families_alternate(names: Names) -> None:
    names["a.example"] = ["2606:4700::1", "2606:4700::2", "1.1.1.1", "1.1.1.2", "1.1.1.3"]
    expected = ["2606:4700::1", "1.1.1.1", "2606:4700::2", "1.1.1.2", "1.1.1.3"]
    assert shown(await resolve(PUBLIC, "a.example", 443)) == expected


@pytest.mark.parametrize(
    "host", ["127.1", "0x7f.1", "[::1]", "localhost%", "[fe80::1%eth0]", "①.example", ""]
)
async def test_invalid_name_is_never_resolved(names: Names, host: str) -> None:
    with pytest.raises(EgressRefused):
        await resolve(PUBLIC, host, 80)
    assert names["asked"] == []


async def test_refused_name_is_never_resolved(names: Names) -> None:
    for policy in (
        EgressPolicy("none"),
        EgressPolicy("allowlist", ("a.example",)),
        EgressPolicy("public", (), ("a.example",)),
    ):
        with pytest.raises(EgressRefused):
            await resolve(policy, "secret.evil.example", 443)
    assert names["asked"] == []


@pytest.mark.parametrize("port", [0, -1, 65536])
async def test_invalid_port_is_refused(names: Names, port: int) -> None:
    with pytest.raises(EgressRefused, match="is not a port"):
        await resolve(PUBLIC, "1.1.1.1", port)


async def test_address_with_a_zone_is_ignored(names: Names) -> None:
    names["zone.example"] = ["fe80::1%lo"]
    with pytest.raises(HostUnreachable, match="has no address"):
        await resolve(EgressPolicy("public", ("zone.example",)), "zone.example", 80)


async def test_name_is_resolved_once_before_connecting(names: Names) -> None:
    """Protects against DNS rebinding: a second query could return another address."""
    with listening() as port:
        names["once.example"] = ["127.0.0.1"]
        (await connect(EgressPolicy("public", (f"once.example:{port}",)), "once.example", port)).close()
    assert names["asked"] == ["once.example"]


async def test_unknown_name_is_unreachable(names: Names) -> None:
    with pytest.raises(
        HostUnreachable, match=r"^no\.example cannot be resolved: name or service not known\.$"
    ) as caught:
        await connect(PUBLIC, "no.example", 443)
    assert caught.value.error_code == "ENOTFOUND"


async def test_system_resolver_is_used() -> None:
    assert ip_address("127.0.0.1") in await resolve(EgressPolicy("public", ("localhost",)), "localhost", 80)


async def test_unresponsive_name_server_does_not_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer = threading.Event()

    def lookup(name: str) -> list[str]:
        answer.wait(20)
        return ["1.1.1.1"]

    monkeypatch.setattr(resolver, "lookup", lookup)
    monkeypatch.setattr(resolver, "RESOLVE_SECONDS", 0.05)
    with pytest.raises(HostUnreachable, match="was not resolved within") as caught:
        await connect(PUBLIC, "slow.example", 443)
    assert (caught.value.timed_out, caught.value.error_code) == (True, "EAI_AGAIN")
    answer.set()
    # The lookup thread releases a slot of the semaphore at its end. Wait for the thread, because the next
    # test replaces the semaphore.
    for thread in threading.enumerate():
        if thread.name == "hutch-lookup":
            thread.join()


async def test_lookups_are_limited(monkeypatch: pytest.MonkeyPatch, names: Names) -> None:
    monkeypatch.setattr(resolver, "_lookups", threading.BoundedSemaphore(1))
    names["a.example"] = ["1.1.1.1"]
    resolver._lookups.acquire()
    with pytest.raises(HostUnreachable, match="Too many names"):
        await resolve(PUBLIC, "a.example", 443)
    resolver._lookups.release()
    for _ in range(3):
        await resolve(PUBLIC, "a.example", 443)


async def test_next_address_is_tried_after_a_failure(names: Names) -> None:
    names["two.example"] = ["::1", "127.0.0.1"]
    with (
        listening() as port,
        await connect(EgressPolicy("public", ("two.example",)), "two.example", port) as sock,
    ):
        assert sock.getpeername()[0] == "127.0.0.1"


async def test_next_address_is_tried_beside_an_unresponsive_one(
    names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []
    real = resolver._connect_to

    async def connect_to(address: resolver.Address, port: int) -> socket.socket:
        tried.append(str(address))
        if str(address) == "127.0.0.2":
            await asyncio.Event().wait()
        return await real(address, port)

    monkeypatch.setattr(resolver, "_connect_to", connect_to)
    names["two.example"] = ["127.0.0.2", "127.0.0.1"]
    with (
        listening() as port,
        await connect(EgressPolicy("public", ("two.example",)), "two.example", port) as sock,
    ):
        assert sock.getpeername()[0] == "127.0.0.1"
    assert tried == ["127.0.0.2", "127.0.0.1"]


async def test_last_failure_is_reported(names: Names) -> None:
    with listening() as port:
        pass
    with pytest.raises(
        HostUnreachable, match=rf"^127\.0\.0\.1:{port} cannot be reached: .*refused"
    ) as caught:
        await connect(EgressPolicy("public", ("127.0.0.1",)), "127.0.0.1", port)
    assert (caught.value.timed_out, caught.value.error_code) == (False, "ECONNREFUSED")


async def test_unresponsive_host_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async def connect_to(address: resolver.Address, port: int) -> socket.socket:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(resolver, "_connect_to", connect_to)
    monkeypatch.setattr(resolver, "CONNECT_SECONDS", 0.05)
    with pytest.raises(HostUnreachable, match=r"1\.1\.1\.1:443 did not answer within") as caught:
        await connect(PUBLIC, "1.1.1.1", 443)
    assert (caught.value.timed_out, caught.value.error_code) == (True, "ETIMEDOUT")


async def test_second_of_two_connections_is_closed(monkeypatch: pytest.MonkeyPatch, names: Names) -> None:
    made: list[socket.socket] = []
    both = asyncio.Event()
    real = resolver._connect_to

    async def connect_to(address: resolver.Address, port: int) -> socket.socket:
        sock = await real(address, port)
        made.append(sock)
        if len(made) == 2:
            both.set()
        await both.wait()
        return sock

    monkeypatch.setattr(resolver, "_connect_to", connect_to)
    monkeypatch.setattr(resolver, "HEAD_START_SECONDS", 0)
    names["two.example"] = ["127.0.0.1", "127.0.0.2"]
    with listening("0.0.0.0") as port:
        sock = await connect(EgressPolicy("public", ("two.example",)), "two.example", port)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert [each.fileno() >= 0 for each in made].count(True) == 1
        sock.close()


async def test_unsupported_address_family_is_skipped(monkeypatch: pytest.MonkeyPatch, names: Names) -> None:
    real: Callable[..., socket.socket] = socket.socket

    def make(family: int = socket.AF_INET, *rest: int, **more: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return real(family, *rest, **more)

    names["two.example"] = ["2606:4700::1", "127.0.0.1"]
    with listening() as port:
        monkeypatch.setattr(resolver.socket, "socket", make)
        (await connect(EgressPolicy("public", ("two.example",)), "two.example", port)).close()
