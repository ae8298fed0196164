"""Abilities that spoil what is shared: connections, the host's memory and time, the next execution."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from tests.contract.abilities.workshop import HERE, TOKEN, Workshop
from tests.egress.upstreams import Asked, answer, silent
from tests.hostile.conftest import peak_bytes

from hutch.doors.abilities.execute import Answer

pytestmark = pytest.mark.anyio


async def run(shop: Workshop, body: str, **fields: Any) -> Answer:
    params = {"api": shop.api.url(""), **fields.pop("params", {})}
    return await shop.run(f"export async function wrapper({{ api, ...rest }}) {{ {body} }}", params, **fields)


# A guest that owns its realm: whatever it is asked to write for the host, it writes this.
FORGED = """
    const forged = rest.forged;
    Object.prototype.toJSON = function () {
      return this && this.url && this.redirect ? { ...forged, id: this.id } : this;
    };
    try { const r = await fetch(api + '/'); delete Object.prototype.toJSON; return Response.json(r.status); }
    catch (error) { delete Object.prototype.toJSON; return Response.json(String(error)); }
"""


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "GET /admin HTTP/1.1\r\nX: y\r\n\r\nGET"},
        {"method": "GET "},
        {"method": "CONNECT"},
        {"method": "G\tT"},
        {"method": ""},
        {"url": "/ HTTP/1.1\r\nX-Smuggled: 1\r\n\r\n"},
        {"url": "/a b"},
        {"url": "/\x00"},
        {"url": "/\u0161\u010a"},
        {"headers": [["X-A", "1\r\nX-Smuggled: 1"]]},
        {"headers": [["X-A", "1\r\n folded"]]},
        {"headers": [["X-A", "1\nX-Smuggled: 1"]]},
        {"headers": [["X-A", "1\u010aX-Smuggled: 1"]]},
        {"headers": [["X-A\r\nX-Smuggled", "1"]]},
        {"headers": [["X-A ", "1"]]},
        {"headers": [["X-Smuggled: 1\r\nX-A", "1"]]},
        {"headers": [["", "1"]]},
        {"headers": [["X-A", "1"]] * 200_000},
        {"headers": [["X-A", "x" * 70_000]]},
    ],
    ids=lambda changes: json.dumps(changes)[:40],
)
async def test_what_would_be_read_as_another_request_is_not_sent(
    shop: Workshop, changes: dict[str, Any]
) -> None:
    forged: dict[str, Any] = {"method": "GET", "url": "/", "headers": [], "redirect": "follow", "body": None}
    forged |= changes
    forged["url"] = shop.api.url("") + forged["url"]
    given = await run(shop, FORGED, params={"forged": forged})
    assert not shop.api.asked
    assert "Error" in given.body["result"].get("body", ""), given.body


async def test_framing_is_not_the_wrappers(shop: Workshop) -> None:
    names = [
        "Content-Length",
        "Transfer-Encoding",
        "Connection",
        "Host",
        "Expect",
        "Upgrade",
        "TE",
        "Trailer",
    ]
    forged = {
        "method": "POST",
        "url": shop.api.url("/"),
        "headers": [[name, "7"] for name in [*names, *map(str.upper, names), "Proxy-Authorization"]],
        "redirect": "follow",
        "body": {"text": "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"},
    }
    for _ in range(3):
        await run(shop, FORGED, params={"forged": forged})
    await asyncio.sleep(0)
    assert [asked.target for asked in shop.api.asked] == ["/"] * 3
    for asked in shop.api.asked:
        assert asked.all("content-length") == [str(len(asked.body))]
        assert not {"transfer-encoding", "connection", "expect", "te", "upgrade"} & {
            name for name, _ in asked.headers
        }


async def test_an_answer_that_nobody_asked_for_is_nobodys(shop: Workshop) -> None:
    """A service that answers twice would have its second answer taken for that to the next user."""
    poison = answer(body=b"poison")

    async def twice(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(body=b"first") + poison)
        await writer.drain()
        writer.write(poison)
        await writer.drain()
        await asyncio.sleep(0.05)

    shop.api.answers["/twice"] = twice
    shop.api.answers["/next"] = answer(body=b"mine")
    body = "return new Response(await (await fetch(api + '/twice')).text()"
    body += " + await (await fetch(api + '/next')).text())"
    for _ in range(3):
        shop.user = await shop.new_user()
        assert (await run(shop, body)).body["result"]["body"] == "firstmine"


async def test_a_connection_of_one_user_is_never_anothers(shop: Workshop) -> None:
    for _ in range(3):
        shop.user = await shop.new_user()
        assert (await run(shop, "return await fetch(api + '/')")).body["success"]
    assert len({asked.connection for asked in shop.api.asked}) == 3


async def test_nothing_is_left_in_a_vm_for_whoever_is_next(shop: Workshop) -> None:
    """Neither for another user, nor for the user's next execution, nor for the transform of this one."""
    await shop.credential("Authorization", TOKEN)
    shop.api.answers["/slow"] = silent()
    leave = """
        globalThis.left = Array.prototype.left = Object.prototype.left = Function.prototype.left = 'left';
        Object.defineProperty(Object.prototype, 'headers', { get: () => 'left', configurable: true });
        delete Object.prototype.headers;
        JSON.parse = JSON.stringify = () => 'left';
        Promise.prototype.then.left = Response.left = Headers.prototype.left = 'left';
        process.env.LEFT = 'left'; Buffer.left = 'left'; console.log = () => {};
        setTimeout(() => { globalThis.late = 'left' }, 30); setInterval(() => {}, 1);
        fetch(api + '/slow').catch(() => {}); Promise.resolve().then(function again() {
          globalThis.ticks = (globalThis.ticks ?? 0) + 1; });
        return new Response('done');
    """
    look = """
        const names = ['left', 'late', 'ticks'];
        const all = [globalThis, {}, [], () => 0, Promise.prototype.then, globalThis.Response ?? {},
          globalThis.Headers?.prototype ?? {}, globalThis.Buffer ?? {}, globalThis.process?.env ?? {}];
        return all.flatMap((each) => names.filter((name) => each[name] !== undefined))
          .concat(Object.keys(globalThis.process?.env ?? {}), JSON.parse('[]'));
    """
    owner = shop.user
    for user in (owner, await shop.new_user(), owner):
        shop.user = owner
        given = await run(shop, leave, dynamic_header_keys=[f"{HERE}::Authorization"])
        assert given.status in (200, 500), given.body
        shop.user = user
        told = await run(shop, f"return Response.json((() => {{ {look} }})())")
        assert told.body["result"]["body"] == []
        ability_id = await shop.add(
            "export async function wrapper() { globalThis.left = 1; return Response.json(1) }"
        )
        transformed = await shop.execute(ability_id, {}, f"() => {{ {look} }}")
        assert transformed.body["result"]["body"] == []


CARELESS = (
    """for (let i = 0; i < 60; i++) fetch(api + '/endless').catch(() => {});
       await new Promise((r) => setTimeout(r, 300)); return new Response('');""",
    """for (let i = 0; i < 500; i++) {
         const c = new AbortController();
         fetch(api + '/silent', { signal: c.signal }).catch(() => {}); c.abort(); }
       await new Promise((r) => setTimeout(r, 100)); return new Response('');""",
    "for (let i = 0; i < 40; i++) fetch(api + '/silent').catch(() => {}); return new Response('');",
    """const rs = await Promise.all([...Array(20)].map(() => fetch(api + '/endless')));
       await Promise.all(rs.map((r) => r.body.getReader().read())); return rs[0];""",
)


async def test_answers_that_are_never_read_and_requests_that_are_called_off_cost_little(
    shop: Workshop,
) -> None:
    async def endless(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        while True:
            writer.write(b"x" * 65536)
            await writer.drain()

    shop.api.answers["/endless"] = endless
    shop.api.answers["/silent"] = silent()
    before = peak_bytes(_pid())
    for body in CARELESS:
        await run(shop, body)
    connections = shop.abilities._broker.connections
    for _ in range(100):
        if connections.open == connections.idle:
            break
        await asyncio.sleep(0.01)
    assert connections.open == connections.idle
    assert peak_bytes(_pid()) - before < 150 * 2**20


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\n" + b"".join(b"X-%d: y\r\n" % at for at in range(10_000)),
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 10_000_000,
        b"HTTP/1.1 100 Continue\r\n\r\n" * 100_000,
        b"HTTP/1.1 200 " + b"OK" * 1_000_000,
    ],
    ids=["names", "value", "interim", "reason"],
)
async def test_a_head_without_end_is_given_up(shop: Workshop, head: bytes) -> None:
    shop.api.answers["/"] = silent(head)
    began = time.monotonic()
    given = await run(shop, "return await fetch(api + '/')")
    assert given.body["errorCode"] == "UPSTREAM_ERROR"
    assert time.monotonic() - began < 2.5


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 500_000,
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        b'{"__proto__":{"left":1},"constructor":{"prototype":{"left":1}}}',
        b"1" * 400_000,
        b"-1e" + b"9" * 400_000,
        b'"\\ud800"',
        b'"\\u0000\xff\xfe"',
    ],
    ids=["arrays", "objects", "prototypes", "digits", "exponent", "surrogate", "no utf-8"],
)
async def test_json_that_is_meant_to_hurt_does_not(shop: Workshop, body: bytes) -> None:
    shop.api.answers["/"] = answer("200 OK", "Content-Type: application/json", body=body)
    given = await run(shop, "return await fetch(api + '/')")
    assert given.body["success"], given.body
    assert len(json.dumps(given.body)) < 200_000
    ability_id = await shop.add("export async function wrapper({ api }) { return await fetch(api + '/') }")
    given = await shop.execute(ability_id, {"api": shop.api.url("")}, "(data) => typeof data + ({}).left")
    assert given.body["success"], given.body


@pytest.mark.parametrize(
    "said",
    [
        {"status": "200"},
        {"status": 200, "held": 10**9},
        {"status": 200, "held": -1},
        {"status": 10**30, "text": "x"},
        {"status": 200, "headers": [["a\r\nb", "c\r\nd"]], "text": "x"},
        {"status": 429, "headers": [["Retry-After", "1\r\nX: y"]], "text": "x"},
        {"status": -1, "text": "x"},
        {"status": 99, "text": "x"},
        {"status": 1.5, "text": "x"},
        {"returned": "x" * 1_000_000},
        {"status": 200, "headers": [["a", "b"]] * 200_000, "text": "x"},
        [[[]]],
        None,
    ],
    ids=lambda said: str(said)[:40],
)
async def test_a_wrapper_can_say_of_its_response_what_it_likes(shop: Workshop, said: Any) -> None:
    """It owns the realm in which that is written down."""
    code = "JSON.stringify = () => JSON.rest; Object.prototype.toJSON = function () { return rest.said };"
    given = await run(shop, f"{code} return new Response('x')", params={"said": said})
    assert given.status in (200, 429, 500)
    assert len(str(given.body.get("error", ""))) < 1_000
    assert all("\n" not in value for value in given.headers.values())


async def test_many_secrets_in_one_do_not_make_every_answer_slow(shop: Workshop) -> None:
    """Cookies without number, each of which is looked for."""
    await shop.credential("Cookie", "; ".join(f"c{at}=value-{at:06}" for at in range(800)))
    shop.api.answers["/"] = answer(body=b"<p>value-123456 & \\u0041 %41</p>" * 25_000)
    began = time.monotonic()
    body = "return new Response((await (await fetch(api + '/')).text()).length)"
    given = await run(shop, body, dynamic_header_keys=[f"{HERE}::Cookie"])
    assert given.body["success"], given.body
    assert time.monotonic() - began < 2
    # And one that could have begun at every letter of what the service says.
    await shop.credential("X-Long", "a" * 12_000 + "b" + "a" * 4_000)
    shop.api.answers["/"] = answer(body=b"a" * 500_000)
    began = time.monotonic()
    given = await run(shop, body, dynamic_header_keys=[f"{HERE}::X-Long"])
    assert given.body["success"], given.body
    assert time.monotonic() - began < 2
    names = [f"X-{number}" for number in range(5)]
    for name in names:
        await shop.credential(name, "x" * 16_000)
    given = await run(shop, body, dynamic_header_keys=[f"{HERE}::{name}" for name in names])
    assert (given.status, given.body["errorCode"]) == (400, "INVALID_REQUEST")


def _pid() -> int:
    return int(Path("/proc/self").readlink().name)
