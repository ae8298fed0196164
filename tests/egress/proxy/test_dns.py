"""DNS server of a jail: valid answers for permitted names, and no answer to malformed queries."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from ipaddress import ip_address

import pytest
from tests.support.stalls import LoopStalls, repeat_on_stall

from hutch.egress.addresses import Address
from hutch.egress.policy import EgressRefused
from hutch.egress.proxy import dns
from hutch.egress.proxy.dns import MAX_PENDING, DnsServer, parse_query
from hutch.egress.resolver import HostUnreachable

A, AAAA, MX = 1, 28, 15
SECONDS = 10


def question(name: str, type: int) -> bytes:
    labels = b"".join(bytes([len(label)]) + label.encode("latin-1") for label in name.split(".") if label)
    return labels + b"\0" + struct.pack("!HH", type, 1)


def query(name: str, type: int = A, *, id: int = 7, flags: int = 0x0100) -> bytes:
    return struct.pack("!6H", id, flags, 1, 0, 0, 0) + question(name, type)


class Client:
    def __init__(self, port: int) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setblocking(False)
        self.socket.connect(("127.0.0.1", port))

    def send(self, data: bytes) -> None:
        self.socket.send(data)

    async def receive(self) -> tuple[int, int, list[str]]:
        """Receives a response. Returns its id, response code and addresses."""
        async with asyncio.timeout(SECONDS):
            data = await asyncio.get_running_loop().sock_recv(self.socket, 2000)
        assert len(data) <= dns.MAX_RESPONSE_BYTES
        id, flags, questions, answers, *_ = struct.unpack_from("!6H", data)
        assert flags & 0x8000
        assert questions == 1
        at = data.index(b"\0", 12) + 5
        addresses = []
        for _ in range(answers):
            _, _, _, _, length = struct.unpack_from("!HHHIH", data, at)
            addresses.append(str(ip_address(data[at + 12 : at + 12 + length])))
            at += 12 + length
        assert at == len(data)
        return id, flags & 15, addresses

    async def ask(self, name: str, type: int = A) -> tuple[int, list[str]]:
        self.send(query(name, type))
        _, code, addresses = await self.receive()
        return code, addresses


Resolve = Callable[[str], Awaitable[list[Address]]]


@contextlib.asynccontextmanager
async def run_dns(resolve: Resolve) -> AsyncIterator[Client]:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", 0))
    server = DnsServer(sock, resolve)
    client = Client(sock.getsockname()[1])
    try:
        yield client
    finally:
        client.socket.close()
        await server.close()


async def resolve(name: str) -> list[Address]:
    if name == "refused.example":
        raise EgressRefused("It is not permitted.")
    if name == "down.example":
        raise HostUnreachable("It cannot be resolved.", "EAI_AGAIN")
    if name == "many.example":
        return [ip_address(f"2606:4700::{number:x}") for number in range(100)]
    if name != "both.example":
        raise HostUnreachable("It does not exist.", "ENOTFOUND")
    return [ip_address("1.2.3.4"), ip_address("2606:4700::1"), ip_address("1.2.3.5")]


async def test_answers_contain_the_addresses_of_the_requested_type() -> None:
    async with run_dns(resolve) as client:
        assert await client.ask("both.example") == (0, ["1.2.3.4", "1.2.3.5"])
        assert await client.ask("BOTH.example", AAAA) == (0, ["2606:4700::1"])
        assert await client.ask("localhost") == (0, ["127.0.0.1"])
        assert await client.ask("localhost", AAAA) == (0, ["::1"])
        code, addresses = await client.ask("many.example", AAAA)
        assert (code, await client.ask("many.example")) == (0, (0, []))
        assert 10 < len(addresses) < 100


async def test_failures_have_the_codes_that_getaddrinfo_expects() -> None:
    async with run_dns(resolve) as client:
        codes = {name: (await client.ask(f"{name}.example"))[0] for name in ("refused", "no", "down")}
        assert codes == {"refused": 3, "no": 3, "down": 2}
        assert await client.ask("both.example", MX) == (4, [])
        assert await client.ask("") == (1, [])
        assert await client.ask("b\xfccher.example") == (1, [])
        client.send(query("both.example", flags=0x2000))
        assert (await client.receive())[1] == 4


async def test_both_types_share_one_lookup() -> None:
    asked: list[str] = []
    started, go = asyncio.Event(), asyncio.Event()

    async def slow(name: str) -> list[Address]:
        asked.append(name)
        started.set()
        await go.wait()
        return await resolve(name)

    async with run_dns(slow) as client:
        client.send(query("both.example", A, id=1))
        client.send(query("both.example", AAAA, id=2))
        await started.wait()
        go.set()
        assert {(await client.receive())[0] for _ in range(2)} == {1, 2}
        assert asked == ["both.example"]


async def test_number_of_waiting_queries_is_limited() -> None:
    waiting: set[str] = set()
    go = asyncio.Event()

    async def slow(name: str) -> list[Address]:
        waiting.add(name)
        await go.wait()
        return await resolve("both.example")

    async with run_dns(slow) as client:
        for number in range(2 * MAX_PENDING):
            client.send(query(f"n{number}.example", id=number))
        client.send(query("localhost", id=999))
        # The server answers a query for `localhost` without a lookup. When this answer arrives, the server
        # has read all earlier queries.
        assert (await client.receive())[0] == 999
        assert len(waiting) == MAX_PENDING
        go.set()
        assert {(await client.receive())[0] for _ in range(MAX_PENDING)} == {*range(MAX_PENDING)}


async def test_close_ends_waiting_queries() -> None:
    started = asyncio.Event()

    async def hang(_: str) -> list[Address]:
        started.set()
        await asyncio.sleep(SECONDS)
        return []

    async with run_dns(hang) as client:
        client.send(query("both.example"))
        await started.wait()


@repeat_on_stall
async def test_flood_does_not_block_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dns, "MAX_PER_SECOND", 50)
    async with run_dns(resolve) as client:
        began = time.monotonic()
        async with LoopStalls() as stalls:
            for number in range(2_000):
                with contextlib.suppress(BlockingIOError):
                    client.send(query(f"n{number}.example", id=number))
                if number % 100 == 0:
                    await asyncio.sleep(0)
            answers = 0
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.3):
                    while True:
                        await client.receive()
                        answers += 1
        assert answers <= 50 * (1 + time.monotonic() - began)
        stalls.assert_short()


MALFORMED = {
    "empty": b"",
    "short": query("both.example")[:11],
    "response": query("both.example", flags=0x8180),
    "no question": struct.pack("!6H", 7, 0, 0, 0, 0, 0),
    "two questions": struct.pack("!6H", 7, 0, 2, 0, 0, 0) + 2 * question("both.example", A),
    "no type": query("both.example")[:-4],
    "pointer": struct.pack("!6H", 7, 0, 1, 0, 0, 0) + b"\xc0\x0c" + struct.pack("!HH", A, 1),
    "long label": struct.pack("!6H", 7, 0, 1, 0, 0, 0) + b"\x40" + b"x" * 64 + b"\0\0\1\0\1",
    "long name": query(".".join(["x" * 60] * 6)),
    "truncated label": struct.pack("!6H", 7, 0, 1, 0, 0, 0) + b"\x3fx",
    "other class": query("both.example")[:-1] + b"\3",
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED)
async def test_malformed_query_is_ignored(data: bytes) -> None:
    assert parse_query(data) is None
    async with run_dns(resolve) as client:
        client.send(data)
        assert await client.ask("both.example") == (0, ["1.2.3.4", "1.2.3.5"])


def test_random_changes_of_a_query_never_raise() -> None:
    choose = random.Random(16)
    valid = query("some.name.example", AAAA)
    for _ in range(5_000):
        data = bytearray(valid)
        for _ in range(choose.randrange(1, 6)):
            data[choose.randrange(len(data))] = choose.randrange(256)
        del data[choose.randrange(len(data) + 1) :]
        parsed = parse_query(bytes(data))
        if parsed is not None:
            assert len(parsed.response(0, [ip_address("1.2.3.4")])) <= dns.MAX_RESPONSE_BYTES
