"""Wrappers as they are in the wild: their forms, what they are given and what they find."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest
from tests.contract.abilities.workshop import HERE, TOKEN, Workshop
from tests.egress.upstreams import Asked, answer

pytestmark = pytest.mark.anyio

JSON = "Content-Type: application/json"
# In the shape that recorders of API traffic write.
CAPTURED = """
/**
 * Lists the orders of an account. export const NOT_THIS = 1;
 */
export const DYNAMIC_HEADER_KEYS = ["127.0.0.1::authorization", "127.0.0.1::cookie"];
export const STATIC_HEADERS = { accept: "application/json" };

export async function wrapper(payload, options = {}) {
  const { account, page = 1, ...rest } = payload;
  const baseUrl = options.baseUrl || payload.api;
  const url = new URL(`/v1/accounts/${encodeURIComponent(account)}/orders`, baseUrl);
  url.searchParams.set("page", String(page));
  const headers = new Headers({ ...STATIC_HEADERS, ...(options.dynamicHeaders || {}) });
  headers.set("content-type", "application/json");
  const response = await fetch(url.toString(), {
    method: "POST",
    headers,
    body: JSON.stringify({ filter: rest.filter ?? null }),
  });
  if (!response.ok) {
    const text = await response.text();
    throw new Error(`Request failed with ${response.status}: ${text}`);
  }
  return response;
}

if (typeof module !== "undefined" && module.exports) {
  module.exports = { wrapper, DYNAMIC_HEADER_KEYS };
}
"""


async def test_a_captured_wrapper_works_as_it_is(shop: Workshop) -> None:
    await shop.credential("authorization", f"Bearer {TOKEN}")
    await shop.credential("cookie", "sid=s-0123456789", kind="cookie")
    path = "/v1/accounts/a%2Fb/orders"
    shop.api.answers[path] = answer("200 OK", JSON, body=b'{"orders": [1, 2]}')
    got = await shop.run(
        CAPTURED,
        {"api": shop.api.url(""), "account": "a/b", "page": 3, "filter": "é"},
        "(data) => data.orders.length",
        static_headers=[
            {"key": f"{HERE}::user-agent", "value_code": '() => "Mozilla/5.0 (X11; Linux)"'},
            {"key": "elsewhere.example::x-other", "value_code": '() => "not for us"'},
        ],
        dynamic_header_keys=[f"{HERE}::authorization", f"{HERE}::cookie"],
        requires_dynamic_headers=True,
    )
    assert (got.status, got.body["result"]["body"]) == (200, 2)
    (asked,) = shop.api.asked
    assert (asked.method, asked.target) == ("POST", f"{path}?page=3")
    assert json.loads(asked.body) == {"filter": "é"}
    assert asked.all("authorization") == [f"Bearer {TOKEN}"]
    assert asked.all("cookie") == ["sid=s-0123456789"]
    assert asked.all("user-agent") == ["Mozilla/5.0 (X11; Linux)"]
    assert asked.all("accept") == ["application/json"]
    assert asked.all("content-type") == ["application/json"]
    assert asked.all("x-other") == []


@pytest.mark.parametrize(
    "code",
    [
        "export async function wrapper(p) { return Response.json(p) }",
        "export const wrapper = async (p) => Response.json(p);",
        "export default async function (p) { return Response.json(p) }",
        "export default (p) => Response.json(p)",
        "async function wrapper(p) { return Response.json(p) }\nexport { wrapper };",
        "function run(p) { return Response.json(p) }\nexport { run as wrapper, run as default };",
        "function wrapper(p) { return Response.json(p) }",
        "var wrapper = function (p) { return Response.json(p) }",
        "module.exports = { wrapper: (p) => Response.json(p) }",
        "export async function wrapper(p: { a: number }): Promise<Response> { return Response.json(p!) }",
    ],
)
async def test_every_form_of_export_works(shop: Workshop, code: str) -> None:
    got = await shop.run(code, {"a": 1})
    assert got.body["result"]["body"] == {"a": 1}, got.body


async def test_a_response_of_the_wrappers_own(shop: Workshop) -> None:
    code = "export const wrapper = () => new Response('made', { status: 201, headers: { 'X-A': 'b' } })"
    result = (await shop.run(code)).body["result"]
    assert (result["statusCode"], result["body"], result["headers"]["x-a"]) == (201, "made", "b")


async def test_something_that_only_acts_like_a_response(shop: Workshop) -> None:
    code = (
        "export const wrapper = () => ({ status: 200, ok: true, text: async () => '[1]',"
        " headers: new Map([['content-type', 'application/json']]) })"
    )
    assert (await shop.run(code)).body["result"]["body"] == [1]


INSIDE: dict[str, tuple[str, Any]] = {
    "status, ok and headers": (
        """
        const r = await fetch(api + "/json");
        return [r.status, r.ok, r.statusText, r.headers.get("Content-Type"),
          r.url === api + "/json", r.redirected, r.type];
        """,
        [200, True, "OK", "application/json", True, False, "basic"],
    ),
    "json": ("return (await fetch(api + '/json')).json()", {"a": "é"}),
    "text": ("return (await fetch(api + '/json')).text()", '{"a": "é"}'),
    "arrayBuffer": ("return (await (await fetch(api + '/json')).arrayBuffer()).byteLength", 11),
    "bytes that are no text": (
        "return Buffer.from(await (await fetch(api + '/bytes')).arrayBuffer()).toString('hex')",
        "ff00fe",
    ),
    "clone": (
        """
        const r = await fetch(api + "/json"), c = r.clone();
        return [(await r.json()).a, (await c.json()).a];
        """,
        ["é", "é"],
    ),
    "a body twice": (
        """
        const r = await fetch(api + "/json");
        await r.text();
        try { await r.text() } catch (e) { return [e.name, r.bodyUsed] }
        """,
        ["TypeError", True],
    ),
    "a large body": ("return (await (await fetch(api + '/large')).text()).length", 900_000),
    "a large body as a stream": (
        """
        let n = 0, parts = 0;
        for await (const part of (await fetch(api + "/large")).body) { n += part.length; parts++ }
        return [n, parts > 1];
        """,
        [900_000, True],
    ),
    "the beginning of a large body": (
        """
        const reader = (await fetch(api + "/large")).body.getReader();
        const { value } = await reader.read();
        await reader.cancel();
        return value.length > 0 && value.length < 900000;
        """,
        True,
    ),
    "a request": (
        """
        const body = new URLSearchParams({ a: "b c" });
        const r = await fetch(new Request(api + "/echo", { method: "PUT", body }));
        return (await r.text()).split("\\n").filter((line) => /^PUT|content-type|a=b/.test(line));
        """,
        ["PUT", "content-type: application/x-www-form-urlencoded;charset=UTF-8", "a=b+c"],
    ),
    "bytes as a body": (
        """
        const r = await fetch(api + "/hex", { method: "POST", body: new Uint8Array([0, 255, 1]) });
        return await r.text();
        """,
        "00ff01",
    ),
    "a redirect by hand": (
        """
        const r = await fetch(api + "/moved", { redirect: "manual" });
        return [r.status, r.headers.get("location")];
        """,
        [302, "/json"],
    ),
    "a redirect followed": (
        "const r = await fetch(api + '/moved'); return [r.status, r.redirected, r.url.endsWith('/json')]",
        [200, True, True],
    ),
    "a redirect refused": (
        "try { await fetch(api + '/moved', { redirect: 'error' }) } catch (e) { return e.name }",
        "TypeError",
    ),
    "many large bodies": (
        """
        const all = [];
        for (let i = 0; i < 20; i++) all.push(await fetch(api + "/large"));
        return [(await all[0].text()).length, (await all[19].text()).length];
        """,
        [900_000, 900_000],
    ),
    "several at once": (
        "return (await Promise.all([1, 2, 3].map(() => fetch(api + '/json')))).map((r) => r.status)",
        [200, 200, 200],
    ),
    "a request given up": (
        """
        const c = new AbortController();
        setTimeout(() => c.abort(), 20);
        try { await fetch(api + "/silent", { signal: c.signal }) } catch (e) { return e.name }
        """,
        "AbortError",
    ),
    "a request that takes too long": (
        """
        const signal = AbortSignal.timeout(20);
        try { await fetch(api + "/silent", { signal }) } catch (e) { return e.name }
        """,
        "TimeoutError",
    ),
    "digests": (
        """
        const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode("abc"));
        return Buffer.from(digest).toString("hex");
        """,
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
    ),
    "the rest of the platform": (
        """
        const { getRandomValues, randomUUID } = crypto;
        return [URL, URLSearchParams, TextEncoder, TextDecoder, AbortController, setTimeout, clearTimeout,
          atob, btoa, getRandomValues, randomUUID, structuredClone, console.log, queueMicrotask]
          .every((each) => typeof each === "function");
        """,
        True,
    ),
}


@pytest.mark.parametrize("name", INSIDE)
async def test_what_a_wrapper_finds(shop: Workshop, name: str) -> None:
    async def in_hex(asked: Asked, writer: Any) -> None:
        writer.write(answer(body=asked.body.hex().encode()))
        await writer.drain()

    async def silent(asked: Asked, writer: Any) -> None:
        await writer.wait_closed()

    shop.api.answers |= {
        "/json": answer("200 OK", JSON, body='{"a": "é"}'.encode()),
        "/bytes": answer(body=b"\xff\x00\xfe"),
        "/large": answer(body=b"x" * 900_000),
        "/moved": answer("302 Found", "Location: /json"),
        "/hex": in_hex,
        "/silent": silent,
    }
    code, expected = INSIDE[name]
    assert await shop.inside(code) == expected


async def test_the_last_of_many_responses_is_returned_whole(shop: Workshop) -> None:
    shop.api.answers["/x"] = answer(body=b"x" * 900_000)
    code = (
        "export const wrapper = async ({ url }) => { let last;"
        " for (let i = 0; i < 20; i++) last = await fetch(url); return last }"
    )
    assert (await shop.fetched("/x", code=code)).body["result"]["originalLength"] == 900_002


async def test_a_stream_is_read_as_it_comes(shop: Workshop) -> None:
    """The service says more only once the beginning was read."""
    read = asyncio.Event()

    async def events(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n")
        await writer.drain()
        await read.wait()
        writer.write(b"data: 2\n\n")
        await writer.drain()

    async def more(asked: Asked, writer: asyncio.StreamWriter) -> None:
        read.set()
        writer.write(answer(body=b"ok"))
        await writer.drain()

    shop.api.answers |= {"/events": events, "/more": more}
    code = """
        const seen = [], decoder = new TextDecoder();
        for await (const part of (await fetch(api + "/events")).body) {
          if (seen.length === 0) await fetch(api + "/more");
          seen.push(decoder.decode(part));
        }
        return seen;
    """
    assert await shop.inside(code) == ["data: 1\n\n", "data: 2\n\n"]


# --- its code is nobody's to see ---

MARK = "a_mark_in_the_code"
TELLTALES = (
    "/* MARK */ throw new Error(String(wrapper) + wrapper.toString())",
    "/* MARK */ return new Response(`${wrapper}${Function.prototype.toString.call(wrapper)}`)",
    "/* MARK */ console.log(wrapper, `${wrapper}`, { wrapper }); return new Response(arguments.callee + '')",
    "/* MARK */ return new Response(new Error('x').stack)",
    "/* MARK */ const Copy = class { a = 1 }; return new Response(Copy + [wrapper].join() + Object(wrapper))",
    "'MARK'; return missing.there",
    "'MARK' oops",
    "}; const other = 'MARK'; wrapper = 1; {",
)


@pytest.mark.parametrize("body", TELLTALES)
async def test_the_code_of_a_wrapper_is_in_nothing_that_is_told(
    shop: Workshop, caplog: pytest.LogCaptureFixture, body: str
) -> None:
    caplog.set_level(logging.DEBUG)
    code = f"export function wrapper() {{ {body.replace('MARK', MARK)} }}"
    got = await shop.run(code, transform="(data) => data")
    assert MARK not in f"{got.body} {got.logs} {caplog.text} {shop.records}"
