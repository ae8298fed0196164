"""Abilities that try to steal a credential: they send it to another host, or read it from a response that
contains it.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import logging
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.contract.abilities.harness import HOST, OTHER_HOST, PLAIN, AbilityHarness
from tests.egress.recording_server import CannedResponse, RecordedRequest, http_response
from tests.support.stalls import LoopStalls, repeat_on_stall

from hutch.kernel.records import record_fields
from hutch.protocols.abilities.execute import AbilityResponse

pytestmark = pytest.mark.anyio

MIB = 1024 * 1024

SECRET = "tok/0123456789-abcdef+KLMNOP_xyz="
KEYS = [f"{HOST}::Authorization"]


def all_output(abilities: AbilityHarness, response: AbilityResponse) -> str:
    """Returns all visible output of a run: response, command output, record."""
    records = [
        json.dumps(msgspec.to_builtins(record_fields(each)), default=str) for each in abilities.records
    ]
    hops = msgspec.to_builtins(response.request_log)
    return json.dumps(
        [response.body, dict(response.headers), response.logs, hops, records], ensure_ascii=False
    )


def encodings(secret: str = SECRET) -> dict[str, bytes]:
    """Returns the secret in each encoding in which a service might return it."""
    codes = secret.encode()
    return {
        "raw": codes,
        "json": json.dumps({"a": secret}).encode(),
        "json, all escaped": "".join(f"\\u{code:04x}" for code in codes).encode(),
        "json, all escaped, upper case": "".join(f"\\u{code:04X}" for code in codes).encode(),
        "script": "".join(c if c.isalnum() else f"\\x{ord(c):02X}" for c in secret).encode(),
        "html": "".join(c if c.isalnum() else f"&#x{ord(c):x};" for c in secret).encode(),
        "html, decimal": "".join(c if c.isalnum() else f"&#{ord(c)};" for c in secret).encode(),
        "url": "".join(c if c.isalnum() else f"%{ord(c):02X}" for c in secret).encode(),
        "url, all escaped": "".join(f"%{code:02x}" for code in codes).encode(),
        "utf-16": secret.encode("utf-16"),
        "utf-16, big": secret.encode("utf-16-be"),
        "hex": codes.hex().encode(),
        "base64": base64.b64encode(codes),
        "base64 behind one": base64.b64encode(b"x" + codes + b"x"),
        "base64 behind two": base64.urlsafe_b64encode(b"xx" + codes + b"xx"),
        "base64, sent in a url": base64.b64encode(codes).replace(b"+", b"%2B").replace(b"/", b"%2F"),
    }


def chunked(data: bytes, size: int) -> Callable[[RecordedRequest, asyncio.StreamWriter], Any]:
    """Sends the data in chunks of this size, each with its own write."""

    async def handle(requests: RecordedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: x\r\n\r\n")
        for at in range(0, len(data), size):
            part = data[at : at + size]
            writer.write(b"%x\r\n%s\r\n" % (len(part), part))
            await writer.drain()
            await asyncio.sleep(0)
        writer.write(b"0\r\nX: %s\r\n\r\n" % SECRET.encode())
        await writer.drain()

    return handle


async def run_thief(abilities: AbilityHarness, code: str, **params: Any) -> AbilityResponse:
    await abilities.credential("Authorization", SECRET)
    return await abilities.run(
        code,
        {"api": abilities.api.url(""), "other": abilities.api.url("", OTHER_HOST), **params},
        dynamic_header_keys=KEYS,
    )


# Wrapper that returns each byte of the response as a number. Numbers in a result are not redacted, so the
# test sees what the wrapper could read.
READ_BYTES = """
export async function wrapper({ api }) {
  const bytes = await (await fetch(api + "/say")).bytes();
  return Response.json([...bytes].map((each) => each));
}
"""


@pytest.mark.parametrize("encoding", encodings())
async def test_secret_in_a_response_is_redacted_before_the_guest_reads_it(
    abilities: AbilityHarness, encoding: str
) -> None:
    encoded = encodings()[encoding]
    abilities.api.responses["/say"] = http_response(body=b"<" + encoded + b">")
    response = await run_thief(abilities, READ_BYTES)
    assert abilities.api.requests[0].all("authorization") == [SECRET]
    received = bytes(response.body["result"]["body"])
    # In Base64, a character at the end of the secret also encodes bits of a byte outside of the secret. So
    # some characters may remain.
    assert b"[redacted]" in received
    assert len(received) <= len(b"<[redacted]>") + 10


@pytest.mark.parametrize("size", [1, 2, 7])
@pytest.mark.parametrize("compressed", [False, True])
async def test_secret_in_chunks_compression_or_trailers_is_redacted(
    abilities: AbilityHarness, size: int, compressed: bool
) -> None:
    text = f"<{SECRET}><{base64.b64encode(SECRET.encode()).decode()}>".encode() * 2
    reply: CannedResponse = chunked(text, size)
    if compressed:
        reply = http_response("200 OK", "Content-Encoding: gzip", body=gzip.compress(text))
    abilities.api.responses["/say"] = reply
    response = await run_thief(abilities, READ_BYTES)
    assert bytes(response.body["result"]["body"]) == b"<[redacted]><[redacted]>" * 2
    assert SECRET not in all_output(abilities, response)


async def test_secret_that_is_a_prefix_of_another_does_not_reveal_the_rest(abilities: AbilityHarness) -> None:
    """The first chunk of the response ends where the shorter secret ends."""
    longer = "-and-the-rest-of-it"
    await abilities.credential("X-Long", SECRET + longer)
    abilities.api.responses["/say"] = chunked(f"<{SECRET}{longer}>".encode(), 1 + len(SECRET))
    await abilities.credential("Authorization", SECRET)
    response = await abilities.run(
        READ_BYTES, {"api": abilities.api.url("")}, dynamic_header_keys=[*KEYS, f"{HOST}::X-Long"]
    )
    assert bytes(response.body["result"]["body"]) == b"<[redacted]>"


LOCATIONS: dict[str, CannedResponse] = {
    "reason": http_response(f"418 {SECRET}", body=b"x"),
    "header": http_response("200 OK", f"X-Echo: {SECRET}", f"{SECRET.strip('=').replace('/', '')}: 1"),
    "cookies": http_response("200 OK", f"Set-Cookie: a={SECRET}", f"Set-Cookie: b={SECRET}; Path=/"),
    "location": http_response("302 Found", f"Location: https://{'x' * 300}.invalid/{SECRET}"),
    "location of another host": http_response(
        "302 Found", f"Location: http://10.0.0.1/{SECRET}?{SECRET}#{SECRET}"
    ),
    "retry": http_response("429 Slow", f"Retry-After: {SECRET}"),
    "refusal": http_response(
        "401 Unauthorized", f"WWW-Authenticate: Basic realm={SECRET}", body=SECRET.encode()
    ),
    "encoding": http_response("200 OK", f"Content-Encoding: {SECRET}"),
    "broken": f"HTTP/1.1 200 {SECRET}\r\n{SECRET}\r\n\r\n".encode(),
    "json": http_response(
        "200 OK", "Content-Type: application/json", body=json.dumps({SECRET: [SECRET]}).encode()
    ),
    "broken json": http_response("200 OK", "Content-Type: application/json", body=b'{"' + SECRET.encode()),
}
# Each of these wrappers returns or throws everything that it can read of a response.
WRAPPERS = {
    "returned": PLAIN.replace("payload.url, payload.init", "payload.api + '/say'"),
    "thrown": """export async function wrapper({ api }) {
        const r = await fetch(api + '/say');
        console.log(r.url, r.statusText, [...r.headers], r.headers.getSetCookie(), await r.clone().text());
        throw new Error([r.url, r.statusText, JSON.stringify([...r.headers]), await r.text()].join()); }""",
    "manual": """export async function wrapper({ api }) {
        const r = await fetch(api + '/say', { redirect: 'manual' });
        return new Response(await r.text(), { statusText: r.statusText, headers: [...r.headers] }); }""",
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("location", LOCATIONS)
async def test_secret_anywhere_in_a_response_is_not_readable(
    abilities: AbilityHarness, location: str, wrapper: str, caplog: pytest.LogCaptureFixture
) -> None:
    abilities.api.responses["/say"] = LOCATIONS[location]
    with caplog.at_level(logging.DEBUG):
        response = await run_thief(abilities, WRAPPERS[wrapper])
    assert abilities.api.requests[0].all("authorization") == [SECRET]
    assert SECRET not in all_output(abilities, response)
    assert SECRET not in caplog.text


async def test_no_spelling_of_a_host_sends_the_secret_to_another(abilities: AbilityHarness) -> None:
    """The credential is for 127.0.0.1. All these URLs lead to `localhost`, even if they contain 127.0.0.1."""
    port = abilities.api.port
    urls = [
        f"http://{OTHER_HOST}:{port}/",
        f"http://{OTHER_HOST.upper()}.:{port}/",
        f"http://{HOST}@{OTHER_HOST}:{port}/",
        f"http://{HOST}:{port}@{OTHER_HOST}:{port}/",
        f"http://{OTHER_HOST}:{port}#@{HOST}/",
        f"http://{OTHER_HOST}:{port}\\@{HOST}/",
        f"http://{OTHER_HOST}:{port}?@{HOST}",
        f"http://{OTHER_HOST}:{port}/@{HOST}",
        f"http://{HOST}.{OTHER_HOST}:{port}/",
        f"http://{OTHER_HOST}%2e{HOST}:{port}/",
        f"http://{OTHER_HOST}%00.{HOST}:{port}/",
        f"http://{OTHER_HOST}\t:{port}/",
        f"http:{OTHER_HOST}:{port}/",
        f"//{OTHER_HOST}:{port}/",
        f"http://\uff4cocalhost:{port}/",
        f"http://[::ffff:{HOST}]:{port}/",
    ]
    code = """export async function wrapper({ urls }) {
        const all = [];
        for (const url of urls) {
          try { all.push((await fetch(url)).status) } catch (error) { all.push(String(error)) }
        }
        return Response.json(all) }"""
    response = await run_thief(abilities, code, urls=urls)
    assert response.body["success"], response.body
    hosts = {received.all("host")[0] for received in abilities.api.requests if received.all("authorization")}
    assert hosts <= {f"{HOST}:{port}"}
    for received in abilities.api.requests:
        if received.all("host") == [f"{OTHER_HOST}:{port}"]:
            assert SECRET not in str(received.headers) + received.target
    assert any(received.all("host") == [f"{OTHER_HOST}:{port}"] for received in abilities.api.requests)
    assert SECRET not in all_output(abilities, response)


async def test_redirect_does_not_forward_the_secret(abilities: AbilityHarness) -> None:
    other_url = abilities.api.url("/leak", OTHER_HOST)
    for status in ("301 a", "302 a", "303 a", "307 a", "308 a"):
        abilities.api.responses[f"/{status[:3]}"] = http_response(
            status, f"Location: {other_url}", "Set-Cookie: a=b"
        )
    code = """export async function wrapper({ api }) {
        for (const status of [301, 302, 303, 307, 308]) {
          await fetch(`${api}/${status}`, { method: 'POST', body: 'x', headers: { 'X-Own': '1' } });
        }
        return Response.json(1) }"""
    response = await run_thief(abilities, code)
    assert response.body["success"], response.body
    requests = [received for received in abilities.api.requests if received.target == "/leak"]
    assert len(requests) == 5
    assert all(SECRET not in str(received.headers) for received in requests)


async def test_transform_and_header_code_have_neither_secret_nor_network(abilities: AbilityHarness) -> None:
    await abilities.credential("Authorization", SECRET)
    ability_id = await abilities.add(
        PLAIN,
        dynamic_header_keys=KEYS,
        static_headers=[
            {"key": f"{HOST}::X-Seen", "value_code": "async () => typeof fetch + Object.keys(globalThis)"}
        ],
    )
    look = "() => [typeof fetch, typeof Request, typeof upstream, Object.getOwnPropertyNames(globalThis)]"
    response = await abilities.execute(ability_id, {"url": abilities.api.url("/")}, look)
    assert response.body["result"]["body"][:3] == ["undefined"] * 3
    (seen,) = abilities.api.requests[0].all("x-seen")
    assert seen.startswith("undefined")
    assert SECRET not in all_output(abilities, response)


@pytest.mark.parametrize("repeated", [b"\\", b"%", b"\\u00", SECRET.encode()[:20]])
@repeat_on_stall
async def test_hostile_answer_with_a_long_credential_does_not_block_the_event_loop(
    abilities: AbilityHarness, repeated: bytes
) -> None:
    body = gzip.compress(repeated * (MIB // 2 // len(repeated)))
    abilities.api.responses["/x"] = http_response("200 OK", "Content-Encoding: gzip", body=body)
    await abilities.credential("Authorization", SECRET * (16_000 // len(SECRET)))
    async with LoopStalls() as stalls:
        got = await abilities.fetch("/x", dynamic_header_keys=KEYS)
    assert got.status == 200
    stalls.assert_short()
