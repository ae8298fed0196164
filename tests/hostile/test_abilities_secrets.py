"""Abilities that want a credential: by sending it elsewhere, or by having it sent back in some form."""

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
from tests.contract.abilities.workshop import HERE, PLAIN, THERE, Workshop
from tests.egress.upstreams import Answer, Asked, answer

from hutch.doors.abilities.execute import Answer as Given
from hutch.runs import fields_of

pytestmark = pytest.mark.anyio

SECRET = "tok/0123456789-abcdef+KLMNOP_xyz="
KEYS = [f"{HERE}::Authorization"]


def everything(shop: Workshop, given: Given) -> str:
    """All that anybody could read of a run: the answer, what the command prints, the record."""
    records = [json.dumps(msgspec.to_builtins(fields_of(each)), default=str) for each in shop.records]
    hops = msgspec.to_builtins(given.hops)
    return json.dumps([given.body, dict(given.headers), given.logs, hops, records], ensure_ascii=False)


def forms(secret: str = SECRET) -> dict[str, bytes]:
    """How the service might say it."""
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


def chunked(data: bytes, size: int) -> Callable[[Asked, asyncio.StreamWriter], Any]:
    """In chunks of so many bytes, each by itself on the wire."""

    async def handle(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: x\r\n\r\n")
        for at in range(0, len(data), size):
            part = data[at : at + size]
            writer.write(b"%x\r\n%s\r\n" % (len(part), part))
            await writer.drain()
            await asyncio.sleep(0)
        writer.write(b"0\r\nX: %s\r\n\r\n" % SECRET.encode())
        await writer.drain()

    return handle


async def stolen(shop: Workshop, code: str, **params: Any) -> Given:
    await shop.credential("Authorization", SECRET)
    return await shop.run(
        code,
        {"api": shop.api.url(""), "other": shop.api.url("", THERE), **params},
        dynamic_header_keys=KEYS,
    )


# Reads in every way there is, and has the letters told one by one, which nobody could scrub.
SPELLED = """
export async function wrapper({ api }) {
  const bytes = await (await fetch(api + "/say")).bytes();
  return Response.json([...bytes].map((each) => each));
}
"""


@pytest.mark.parametrize("form", forms())
async def test_what_the_service_says_never_has_the_secret_in_it_when_a_guest_reads_it(
    shop: Workshop, form: str
) -> None:
    said = forms()[form]
    shop.api.answers["/say"] = answer(body=b"<" + said + b">")
    given = await stolen(shop, SPELLED)
    assert shop.api.asked[0].all("authorization") == [SECRET]
    heard = bytes(given.body["result"]["body"])
    # All of it, but for what of a letter is in the characters around it in Base64.
    assert b"[redacted]" in heard
    assert len(heard) <= len(b"<[redacted]>") + 10


@pytest.mark.parametrize("size", [1, 2, 7])
@pytest.mark.parametrize("packed", [False, True])
async def test_nor_in_pieces_nor_compressed_nor_in_trailers(shop: Workshop, size: int, packed: bool) -> None:
    text = f"<{SECRET}><{base64.b64encode(SECRET.encode()).decode()}>".encode() * 2
    reply: Answer = chunked(text, size)
    if packed:
        reply = answer("200 OK", "Content-Encoding: gzip", body=gzip.compress(text))
    shop.api.answers["/say"] = reply
    given = await stolen(shop, SPELLED)
    assert bytes(given.body["result"]["body"]) == b"<[redacted]><[redacted]>" * 2
    assert SECRET not in everything(shop, given)


async def test_one_secret_at_the_beginning_of_another_does_not_uncover_its_rest(shop: Workshop) -> None:
    """Cut off where the shorter one ends."""
    longer = "-and-the-rest-of-it"
    await shop.credential("X-Long", SECRET + longer)
    shop.api.answers["/say"] = chunked(f"<{SECRET}{longer}>".encode(), 1 + len(SECRET))
    await shop.credential("Authorization", SECRET)
    given = await shop.run(SPELLED, {"api": shop.api.url("")}, dynamic_header_keys=[*KEYS, f"{HERE}::X-Long"])
    assert bytes(given.body["result"]["body"]) == b"<[redacted]>"


PLACES: dict[str, Answer] = {
    "reason": answer(f"418 {SECRET}", body=b"x"),
    "header": answer("200 OK", f"X-Echo: {SECRET}", f"{SECRET.strip('=').replace('/', '')}: 1"),
    "cookies": answer("200 OK", f"Set-Cookie: a={SECRET}", f"Set-Cookie: b={SECRET}; Path=/"),
    "location": answer("302 Found", f"Location: https://{'x' * 300}.invalid/{SECRET}"),
    "location, elsewhere": answer("302 Found", f"Location: http://10.0.0.1/{SECRET}?{SECRET}#{SECRET}"),
    "retry": answer("429 Slow", f"Retry-After: {SECRET}"),
    "refusal": answer("401 Unauthorized", f"WWW-Authenticate: Basic realm={SECRET}", body=SECRET.encode()),
    "encoding": answer("200 OK", f"Content-Encoding: {SECRET}"),
    "broken": f"HTTP/1.1 200 {SECRET}\r\n{SECRET}\r\n\r\n".encode(),
    "json": answer("200 OK", "Content-Type: application/json", body=json.dumps({SECRET: [SECRET]}).encode()),
    "broken json": answer("200 OK", "Content-Type: application/json", body=b'{"' + SECRET.encode()),
}
# What a wrapper makes of an answer.
WAYS = {
    "returned": PLAIN.replace("payload.url, payload.init", "payload.api + '/say'"),
    "thrown": """export async function wrapper({ api }) {
        const r = await fetch(api + '/say');
        console.log(r.url, r.statusText, [...r.headers], r.headers.getSetCookie(), await r.clone().text());
        throw new Error([r.url, r.statusText, JSON.stringify([...r.headers]), await r.text()].join()); }""",
    "manual": """export async function wrapper({ api }) {
        const r = await fetch(api + '/say', { redirect: 'manual' });
        return new Response(await r.text(), { statusText: r.statusText, headers: [...r.headers] }); }""",
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("place", PLACES)
async def test_wherever_the_service_says_it_nobody_reads_it(
    shop: Workshop, place: str, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    shop.api.answers["/say"] = PLACES[place]
    with caplog.at_level(logging.DEBUG):
        given = await stolen(shop, WAYS[way])
    assert shop.api.asked[0].all("authorization") == [SECRET]
    assert SECRET not in everything(shop, given)
    assert SECRET not in caplog.text


async def test_no_way_of_writing_a_host_brings_the_secret_to_another(shop: Workshop) -> None:
    """`localhost` is the other's: nothing that mentions the right host in a wrong place is it."""
    port = shop.api.port
    urls = [
        f"http://{THERE}:{port}/",
        f"http://{THERE.upper()}.:{port}/",
        f"http://{HERE}@{THERE}:{port}/",
        f"http://{HERE}:{port}@{THERE}:{port}/",
        f"http://{THERE}:{port}#@{HERE}/",
        f"http://{THERE}:{port}\\@{HERE}/",
        f"http://{THERE}:{port}?@{HERE}",
        f"http://{THERE}:{port}/@{HERE}",
        f"http://{HERE}.{THERE}:{port}/",
        f"http://{THERE}%2e{HERE}:{port}/",
        f"http://{THERE}%00.{HERE}:{port}/",
        f"http://{THERE}\t:{port}/",
        f"http:{THERE}:{port}/",
        f"//{THERE}:{port}/",
        f"http://\uff4cocalhost:{port}/",
        f"http://[::ffff:{HERE}]:{port}/",
    ]
    code = """export async function wrapper({ urls }) {
        const all = [];
        for (const url of urls) {
          try { all.push((await fetch(url)).status) } catch (error) { all.push(String(error)) }
        }
        return Response.json(all) }"""
    given = await stolen(shop, code, urls=urls)
    assert given.body["success"], given.body
    hosts = {asked.all("host")[0] for asked in shop.api.asked if asked.all("authorization")}
    assert hosts <= {f"{HERE}:{port}"}
    for asked in shop.api.asked:
        if asked.all("host") == [f"{THERE}:{port}"]:
            assert SECRET not in str(asked.headers) + asked.target
    assert any(asked.all("host") == [f"{THERE}:{port}"] for asked in shop.api.asked)
    assert SECRET not in everything(shop, given)


async def test_a_redirect_through_the_service_carries_nothing_out(shop: Workshop) -> None:
    there = shop.api.url("/loot", THERE)
    for status in ("301 a", "302 a", "303 a", "307 a", "308 a"):
        shop.api.answers[f"/{status[:3]}"] = answer(status, f"Location: {there}", "Set-Cookie: a=b")
    code = """export async function wrapper({ api }) {
        for (const status of [301, 302, 303, 307, 308]) {
          await fetch(`${api}/${status}`, { method: 'POST', body: 'x', headers: { 'X-Own': '1' } });
        }
        return Response.json(1) }"""
    given = await stolen(shop, code)
    assert given.body["success"], given.body
    loot = [asked for asked in shop.api.asked if asked.target == "/loot"]
    assert len(loot) == 5
    assert all(SECRET not in str(asked.headers) for asked in loot)


async def test_a_transform_and_the_code_of_a_header_have_neither_secret_nor_network(shop: Workshop) -> None:
    await shop.credential("Authorization", SECRET)
    ability_id = await shop.add(
        PLAIN,
        dynamic_header_keys=KEYS,
        static_headers=[
            {"key": f"{HERE}::X-Seen", "value_code": "async () => typeof fetch + Object.keys(globalThis)"}
        ],
    )
    look = "() => [typeof fetch, typeof Request, typeof upstream, Object.getOwnPropertyNames(globalThis)]"
    given = await shop.execute(ability_id, {"url": shop.api.url("/")}, look)
    assert given.body["result"]["body"][:3] == ["undefined"] * 3
    (seen,) = shop.api.asked[0].all("x-seen")
    assert seen.startswith("undefined")
    assert SECRET not in everything(shop, given)
