"""Abilities over HTTP: overhead per call, concurrency, and many stored abilities."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import httpx2
import msgspec

from bench.client import Client
from bench.protocols.tools import serving
from bench.report import Row, Scale, median, number, percentile
from hutch.settings import load_settings
from hutch.store import models
from hutch.store.models import Ability

UPSTREAM_SECONDS = 0.005
TRANSFORM = "(data) => ({ name: data.name, followers: data.followers_count })"
WRAPPER = """
export async function wrapper(payload, options) {
  const response = await fetch(`http://127.0.0.1:%d/users/${payload.username}`);
  if (!response.ok) throw new Error(`The API returned ${response.status}`);
  return response;
}
"""
AT_ONCE = 50
USERS = 5


async def execute(client: Client, **body: Any) -> None:
    await client.post("/abilities/profile/execute", {"params": {"username": "bo"}, **body})


def client_of(port: int, key: str) -> Client:
    return Client(port, {"authorization": f"Bearer {key}"})


async def abilities(scale: Scale) -> list[Row]:
    async with upstream() as port:
        with tempfile.TemporaryDirectory(prefix="hutch-bench-") as home:
            keys = await prepare(home, port, 10)
            flags = {"HUTCH_EGRESS_ALLOW": f"127.0.0.1:{port}", "HUTCH_ABILITY_RATE_LIMIT": "0"}
            async with serving(home, **flags) as server:
                server_port = server.port
                rows = await _overhead(server_port, keys[0], port, scale)
                rows.append(await _at_once(server_port, keys, scale))
                count = scale.of(300, 30)
                few = await _executed(server_port, keys[0], count)
                await prepare(home, port, 10_000)
                rows.append(_many_stored(few, await _executed(server_port, keys[0], count)))
    return rows


@contextlib.asynccontextmanager
async def upstream() -> AsyncIterator[int]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "bench.upstream",
        str(UPSTREAM_SECONDS),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        yield int(await process.stdout.readline())
    finally:
        process.terminate()
        await process.wait()


async def prepare(home: str, port: int, count: int) -> list[str]:
    """Creates users with an ability, an API key and a credential each, and `count` other abilities and
    credentials. Returns the keys.
    """
    from hutch.store.store import Store
    from hutch.vault.vault import Vault

    keys: list[str] = []
    settings = load_settings({"home": home})
    async with await Store.open(settings) as store:
        vault = await Vault.open(store, settings.home_path, {})
        for number_ in range(USERS):
            user = await store.users.by_name(f"user{number_}") or await vault.add_user(f"user{number_}")
            await store.abilities.put(_ability(user.id, "profile", port))
            keys.append((await vault.issue_key(user, "bench"))[1])
            for each in range(count // USERS):
                await store.abilities.put(_ability(user.id, f"other_{each}", port))
                await vault.put_credential(user, f"host{each}.example", "header", "X-Key", f"secret {each}")
            await vault.put_credential(user, "127.0.0.1", "header", "X-Key", f"the key of {number_}")
    return keys


def _ability(owner: str, name: str, port: int) -> Ability:
    now = models.now()
    document = {
        "ability_id": name,
        "ability_name": name,
        "service_name": "127.0.0.1",
        "description": "Gets a profile.",
        "wrapper_code": WRAPPER % port,
        "static_headers": {"accept": "application/json"},
        "dynamic_header_keys": ["127.0.0.1::X-Key"],
        "requires_dynamic_headers": True,
    }
    return Ability(
        ability_id=name,
        owner_id=owner,
        name=name,
        service_name="127.0.0.1",
        document=msgspec.json.encode(document).decode(),
        requires_dynamic_headers=True,
        created_at=now,
        updated_at=now,
    )


async def _executed(port: int, key: str, count: int) -> list[float]:
    client = client_of(port, key)
    await client.open()
    try:
        return [await _timed(execute(client)) for _ in range(count + 5)][5:]
    finally:
        client.close()


async def _timed(work: Awaitable[object]) -> float:
    """Returns the milliseconds that the work takes."""
    began = time.perf_counter()
    await work
    return (time.perf_counter() - began) * 1000


async def _overhead(port: int, key: str, upstream_port: int, scale: Scale) -> list[Row]:
    """Compares a plain and a transformed ability call with a direct request. Takes one sample of each in
    every round, so that changes in the machine's load affect all three equally.
    """
    url = f"http://127.0.0.1:{upstream_port}/users/bo"
    direct: list[float] = []
    plain: list[float] = []
    transformed: list[float] = []
    client = client_of(port, key)
    await client.open()
    async with httpx2.AsyncClient(trust_env=False) as http:
        for index in range(scale.of(500, 30) + 5):
            times = (
                await _timed(http.get(url)),
                await _timed(execute(client)),
                await _timed(execute(client, transformCode=TRANSFORM)),
            )
            if index >= 5:
                for figures, time_ in zip((direct, plain, transformed), times, strict=True):
                    figures.append(time_)
    client.close()
    p50, p99 = median(plain) - median(direct), percentile(plain, 0.99) - median(direct)
    transform = median(transformed) - median(plain)
    return [
        Row(
            what="ability: overhead on top of the API call, p50 / p99",
            measured=f"{number(p50)} / {number(p99)} ms",
            baseline=f"{number(median(direct))} ms: the same request with httpx2, of which the API takes 5",
            target="≤ 4 / ≤ 15 ms",
            met=p50 <= 4 and p99 <= 15,
            data={"direct_ms": direct, "ability_ms": plain},
        ),
        Row(
            what="ability: overhead of a transform, p50",
            measured=f"{number(transform)} ms",
            baseline=f"{number(median(plain))} ms without it",
            target="≤ 1 ms",
            met=transform <= 1,
            data={"transformed_ms": transformed},
        ),
    ]


async def _at_once(port: int, keys: list[str], scale: Scale) -> Row:
    """Measures many calls at once, by several users in alternation."""
    clients = [client_of(port, keys[index % len(keys)]) for index in range(AT_ONCE)]
    for client in clients:
        await client.open()
    each = scale.of(60, 6)

    async def work(client: Client, count: int) -> None:
        for _ in range(count):
            await execute(client)

    try:
        await asyncio.gather(*(work(client, 2) for client in clients))
        began = time.perf_counter()
        await asyncio.gather(*(work(client, each) for client in clients))
        rate = AT_ONCE * each / (time.perf_counter() - began)
    finally:
        for client in clients:
            client.close()
    return Row(
        what=f"ability: {AT_ONCE} at once, of {len(keys)} users",
        measured=f"{number(rate)}/s",
        target="≥ 400/s",
        met=rate >= 400,
        data={"per_second": rate},
    )


def _many_stored(few: list[float], many: list[float]) -> Row:
    less, more = median(few), median(many)
    return Row(
        what="ability: with 10 000 stored abilities and credentials, p50",
        measured=f"{number(more)} ms",
        baseline=f"{number(less)} ms with 10",
        target="no slower",
        # Allow 10 % more, because two medians of the same measurement differ by a few per cent on any
        # machine.
        met=more <= less * 1.1,
        data={"few_ms": few, "many_ms": many},
    )
