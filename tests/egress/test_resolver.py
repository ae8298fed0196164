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
from hutch.egress.policy import Policy, Refused
from hutch.egress.resolver import Unreachable, connect, resolve

PUBLIC = Policy("public")

Names = dict[str, list[str]]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    """What the machine's resolver knows, instead of what it really does. Counts in `asked`."""
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


async def test_only_permitted_addresses_of_a_name_are_left(names: Names) -> None:
    names["mixed.example"] = ["10.0.0.1", "1.1.1.1", "::1", "2606:4700::1111", "169.254.169.254"]
    assert shown(await resolve(PUBLIC, "mixed.example", 443)) == ["1.1.1.1", "2606:4700::1111"]


async def test_a_name_without_permitted_addresses_is_refused(names: Names) -> None:
    names["inside.example"] = ["::ffff:10.0.0.1", "127.0.0.1"]
    with pytest.raises(Refused, match=r"^inside\.example resolves to 10\.0\.0\.1, a private address; "):
        await resolve(PUBLIC, "inside.example", 443)


async def test_families_take_turns_after_the_first_choice_of_the_machine(names: Names) -> None:
    names["a.example"] = ["2606:4700::1", "2606:4700::2", "1.1.1.1", "1.1.1.2", "1.1.1.3"]
    expected = ["2606:4700::1", "1.1.1.1", "2606:4700::2", "1.1.1.2", "1.1.1.3"]
    assert shown(await resolve(PUBLIC, "a.example", 443)) == expected


@pytest.mark.parametrize(
    "host", ["127.1", "0x7f.1", "[::1]", "localhost%", "[fe80::1%eth0]", "①.example", ""]
)
async def test_what_is_no_name_is_never_looked_up(names: Names, host: str) -> None:
    with pytest.raises(Refused):
        await resolve(PUBLIC, host, 80)
    assert names["asked"] == []


async def test_what_may_not_be_reached_is_never_looked_up(names: Names) -> None:
    for policy in (Policy("none"), Policy("allowlist", ("a.example",)), Policy("public", (), ("a.example",))):
        with pytest.raises(Refused):
            await resolve(policy, "secret.evil.example", 443)
    assert names["asked"] == []


@pytest.mark.parametrize("port", [0, -1, 65536])
async def test_a_port_that_is_none_is_refused(names: Names, port: int) -> None:
    with pytest.raises(Refused, match="is no port"):
        await resolve(PUBLIC, "1.1.1.1", port)


async def test_an_address_with_a_zone_is_not_tried(names: Names) -> None:
    names["zone.example"] = ["fe80::1%lo"]
    with pytest.raises(Unreachable, match="has no address"):
        await resolve(Policy("public", ("zone.example",)), "zone.example", 80)


async def test_a_name_is_looked_up_once_and_its_answer_is_what_is_connected_to(names: Names) -> None:
    """Whoever answers differently the second time (DNS rebinding) is not asked a second time."""
    with listening() as port:
        names["once.example"] = ["127.0.0.1"]
        (await connect(Policy("public", (f"once.example:{port}",)), "once.example", port)).close()
    assert names["asked"] == ["once.example"]


async def test_an_unknown_name_is_said_to_be_so(names: Names) -> None:
    with pytest.raises(Unreachable, match=r"^no\.example cannot be resolved: name or service not known\.$"):
        await connect(PUBLIC, "no.example", 443)


async def test_the_machine_resolves_names_itself() -> None:
    assert ip_address("127.0.0.1") in await resolve(Policy("public", ("localhost",)), "localhost", 80)


async def test_a_name_server_that_does_not_answer_does_not_hold_anybody_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer = threading.Event()

    def lookup(name: str) -> list[str]:
        answer.wait(20)
        return ["1.1.1.1"]

    monkeypatch.setattr(resolver, "lookup", lookup)
    monkeypatch.setattr(resolver, "RESOLVE_SECONDS", 0.05)
    with pytest.raises(Unreachable, match="was not resolved within") as caught:
        await connect(PUBLIC, "slow.example", 443)
    assert caught.value.timed_out
    answer.set()
    # It gives its place back, which is not to be one of the next test's.
    for thread in threading.enumerate():
        if thread.name == "hutch-lookup":
            thread.join()


async def test_look_ups_are_bounded(monkeypatch: pytest.MonkeyPatch, names: Names) -> None:
    monkeypatch.setattr(resolver, "_lookups", threading.BoundedSemaphore(1))
    names["a.example"] = ["1.1.1.1"]
    resolver._lookups.acquire()
    with pytest.raises(Unreachable, match="Too many names"):
        await resolve(PUBLIC, "a.example", 443)
    resolver._lookups.release()
    for _ in range(3):
        await resolve(PUBLIC, "a.example", 443)


async def test_the_next_address_is_tried_when_one_fails(names: Names) -> None:
    names["two.example"] = ["::1", "127.0.0.1"]
    with listening() as port, await connect(Policy("public", ("two.example",)), "two.example", port) as sock:
        assert sock.getpeername()[0] == "127.0.0.1"


async def test_the_next_address_is_tried_beside_one_that_does_not_answer(
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
    with listening() as port, await connect(Policy("public", ("two.example",)), "two.example", port) as sock:
        assert sock.getpeername()[0] == "127.0.0.1"
    assert tried == ["127.0.0.2", "127.0.0.1"]


async def test_the_last_failure_is_told(names: Names) -> None:
    with listening() as port:
        pass
    with pytest.raises(Unreachable, match=rf"^127\.0\.0\.1:{port} cannot be reached: .*refused") as caught:
        await connect(Policy("public", ("127.0.0.1",)), "127.0.0.1", port)
    assert not caught.value.timed_out


async def test_who_does_not_answer_at_all_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def connect_to(address: resolver.Address, port: int) -> socket.socket:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(resolver, "_connect_to", connect_to)
    monkeypatch.setattr(resolver, "CONNECT_SECONDS", 0.05)
    with pytest.raises(Unreachable, match=r"1\.1\.1\.1:443 did not answer within") as caught:
        await connect(PUBLIC, "1.1.1.1", 443)
    assert caught.value.timed_out


async def test_of_two_connections_one_is_closed(monkeypatch: pytest.MonkeyPatch, names: Names) -> None:
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
        sock = await connect(Policy("public", ("two.example",)), "two.example", port)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert [each.fileno() >= 0 for each in made].count(True) == 1
        sock.close()


async def test_a_machine_without_the_family_goes_on_with_the_other(
    monkeypatch: pytest.MonkeyPatch, names: Names
) -> None:
    real: Callable[..., socket.socket] = socket.socket

    def make(family: int = socket.AF_INET, *rest: int, **more: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return real(family, *rest, **more)

    names["two.example"] = ["2606:4700::1", "127.0.0.1"]
    with listening() as port:
        monkeypatch.setattr(resolver.socket, "socket", make)
        (await connect(Policy("public", ("two.example",)), "two.example", port)).close()
