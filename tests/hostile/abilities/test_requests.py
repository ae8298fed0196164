"""Abilities that attack shared resources: connections, the memory and the time of the host, and later
executions.
"""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from tests.contract.abilities.harness import HOST, TOKEN, AbilityHarness
from tests.egress.recording_server import RecordedRequest, http_response, send_and_hang
from tests.hostile.conftest import peak_bytes

from hutch.protocols.abilities.execute import AbilityResponse

pytestmark = pytest.mark.anyio


async def run(abilities: AbilityHarness, body: str, **fields: Any) -> AbilityResponse:
    params = {"api": abilities.api.url(""), **fields.pop("params", {})}
    return await abilities.run(
        f"export async function wrapper({{ api, ...rest }}) {{ {body} }}", params, **fields
    )


# Body of a wrapper that sends a forged request to the host. A guest can forge messages, because it controls
# the realm in which its messages are serialised.
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
        {"headers": [["X-A", "1"]] * 50_000},
        {"headers": [["X-A", "x" * 70_000]]},
    ],
    ids=lambda changes: json.dumps(changes)[:40],
)
async def test_request_that_would_be_read_as_another_is_not_sent(
    abilities: AbilityHarness, changes: dict[str, Any]
) -> None:
    forged: dict[str, Any] = {"method": "GET", "url": "/", "headers": [], "redirect": "follow", "body": None}
    forged |= changes
    forged["url"] = abilities.api.url("") + forged["url"]
    response = await run(abilities, FORGED, params={"forged": forged})
    assert not abilities.api.requests
    assert "Error" in response.body["result"].get("body", ""), response.body


async def test_wrapper_cannot_set_framing_headers(abilities: AbilityHarness) -> None:
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
        "url": abilities.api.url("/"),
        "headers": [[name, "7"] for name in [*names, *map(str.upper, names), "Proxy-Authorization"]],
        "redirect": "follow",
        "body": {"text": "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"},
    }
    for _ in range(3):
        await run(abilities, FORGED, params={"forged": forged})
    await asyncio.sleep(0)
    assert [received.target for received in abilities.api.requests] == ["/"] * 3
    for received in abilities.api.requests:
        assert received.all("content-length") == [str(len(received.body))]
        assert not {"transfer-encoding", "connection", "expect", "te", "upgrade"} & {
            name for name, _ in received.headers
        }


async def test_unsolicited_response_is_discarded(abilities: AbilityHarness) -> None:
    """The host must not use a second response to a request as the response for the next user."""
    poison = http_response(body=b"poison")

    async def twice(requests: RecordedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(http_response(body=b"first") + poison)
        await writer.drain()
        writer.write(poison)
        await writer.drain()
        await asyncio.sleep(0.05)

    abilities.api.responses["/twice"] = twice
    abilities.api.responses["/next"] = http_response(body=b"mine")
    body = "return new Response(await (await fetch(api + '/twice')).text()"
    body += " + await (await fetch(api + '/next')).text())"
    for _ in range(3):
        abilities.user = await abilities.new_user()
        assert (await run(abilities, body)).body["result"]["body"] == "firstmine"


async def test_connections_are_never_shared_between_users(abilities: AbilityHarness) -> None:
    for _ in range(3):
        abilities.user = await abilities.new_user()
        assert (await run(abilities, "return await fetch(api + '/')")).body["success"]
    assert len({received.connection for received in abilities.api.requests}) == 3


async def test_vm_keeps_no_state_for_the_next_execution(abilities: AbilityHarness) -> None:
    """An execution leaves state. This state is not visible to the ability's transform, to the user's next
    execution, or to another user.
    """
    await abilities.credential("Authorization", TOKEN)
    abilities.api.responses["/slow"] = send_and_hang()
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
    owner = abilities.user
    for user in (owner, await abilities.new_user(), owner):
        abilities.user = owner
        response = await run(abilities, leave, dynamic_header_keys=[f"{HOST}::Authorization"])
        assert response.status in (200, 500), response.body
        abilities.user = user
        results = await run(abilities, f"return Response.json((() => {{ {look} }})())")
        assert results.body["result"]["body"] == []
        ability_id = await abilities.add(
            "export async function wrapper() { globalThis.left = 1; return Response.json(1) }"
        )
        transformed = await abilities.execute(ability_id, {}, f"() => {{ {look} }}")
        assert transformed.body["result"]["body"] == []


WASTEFUL_WRAPPERS = (
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


async def test_unread_responses_and_aborted_requests_cost_little(
    abilities: AbilityHarness,
) -> None:
    async def endless(requests: RecordedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        while True:
            writer.write(b"x" * 65536)
            await writer.drain()

    abilities.api.responses["/endless"] = endless
    abilities.api.responses["/silent"] = send_and_hang()
    before = peak_bytes(_pid())
    for body in WASTEFUL_WRAPPERS:
        await run(abilities, body)
    connections = abilities.abilities._http_client.pool
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
async def test_endless_response_head_is_given_up(abilities: AbilityHarness, head: bytes) -> None:
    abilities.api.responses["/"] = send_and_hang(head)
    began = time.monotonic()
    response = await run(abilities, "return await fetch(api + '/')")
    assert response.body["errorCode"] == "UPSTREAM_ERROR"
    assert time.monotonic() - began < 10


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
async def test_malicious_json_does_no_harm(abilities: AbilityHarness, body: bytes) -> None:
    abilities.api.responses["/"] = http_response("200 OK", "Content-Type: application/json", body=body)
    response = await run(abilities, "return await fetch(api + '/')")
    assert response.body["success"], response.body
    assert len(json.dumps(response.body)) < 200_000
    ability_id = await abilities.add(
        "export async function wrapper({ api }) { return await fetch(api + '/') }"
    )
    response = await abilities.execute(
        ability_id, {"api": abilities.api.url("")}, "(data) => typeof data + ({}).left"
    )
    assert response.body["success"], response.body


@pytest.mark.parametrize(
    "content",
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
        pytest.param({"status": 200, "headers": [["a", "b"]] * 200_000, "text": "x"}, id="many headers"),
        [[[]]],
        None,
    ],
    ids=lambda content: str(content)[:40],
)
async def test_wrapper_may_report_any_response(abilities: AbilityHarness, content: Any) -> None:
    """A wrapper controls the realm that serialises the response, so it can report any response. The host must
    accept or refuse each response without harm.
    """
    code = "JSON.stringify = () => JSON.rest; Object.prototype.toJSON = function () { return rest.content };"
    response = await run(abilities, f"{code} return new Response('x')", params={"content": content})
    assert response.status in (200, 429, 500)
    assert len(str(response.body.get("error", ""))) < 1_000
    assert all("\n" not in value for value in response.headers.values())


async def test_many_or_long_secrets_do_not_slow_down_responses(abilities: AbilityHarness) -> None:
    """Tests very long secrets, and a cookie with 800 values. The redaction searches the response for each
    value.
    """
    await abilities.credential("Cookie", "; ".join(f"c{at}=value-{at:06}" for at in range(800)))
    abilities.api.responses["/"] = http_response(body=b"<p>value-123456 & \\u0041 %41</p>" * 25_000)
    began = time.monotonic()
    body = "return new Response((await (await fetch(api + '/')).text()).length)"
    response = await run(abilities, body, dynamic_header_keys=[f"{HOST}::Cookie"])
    assert response.body["success"], response.body
    assert time.monotonic() - began < 10
    # Every character of the response could be the beginning of this long secret.
    await abilities.credential("X-Long", "a" * 12_000 + "b" + "a" * 4_000)
    abilities.api.responses["/"] = http_response(body=b"a" * 500_000)
    began = time.monotonic()
    response = await run(abilities, body, dynamic_header_keys=[f"{HOST}::X-Long"])
    assert response.body["success"], response.body
    assert time.monotonic() - began < 10
    names = [f"X-{number}" for number in range(5)]
    for name in names:
        await abilities.credential(name, "x" * 16_000)
    response = await run(abilities, body, dynamic_header_keys=[f"{HOST}::{name}" for name in names])
    assert (response.status, response.body["errorCode"]) == (400, "INVALID_REQUEST")


def _pid() -> int:
    return int(Path("/proc/self").readlink().name)
