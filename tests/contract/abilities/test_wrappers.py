"""Published wrappers: their forms, their arguments, and the APIs that they can use."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest
from tests.contract.abilities.harness import HOST, TOKEN, AbilityHarness
from tests.egress.recording_server import RecordedRequest, http_response

pytestmark = pytest.mark.anyio

JSON = "Content-Type: application/json"
# A wrapper in the form that recorders of API traffic generate.
RECORDED_WRAPPER = """
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


async def test_recorded_wrapper_works_unchanged(harness: AbilityHarness) -> None:
    await harness.credential("authorization", f"Bearer {TOKEN}")
    await harness.credential("cookie", "sid=s-0123456789", kind="cookie")
    path = "/v1/accounts/a%2Fb/orders"
    harness.api.responses[path] = http_response("200 OK", JSON, body=b'{"orders": [1, 2]}')
    got = await harness.run(
        RECORDED_WRAPPER,
        {"api": harness.api.url(""), "account": "a/b", "page": 3, "filter": "é"},
        "(data) => data.orders.length",
        static_headers=[
            {"key": f"{HOST}::user-agent", "value_code": '() => "Mozilla/5.0 (X11; Linux)"'},
            {"key": "elsewhere.example::x-other", "value_code": '() => "not for us"'},
        ],
        dynamic_header_keys=[f"{HOST}::authorization", f"{HOST}::cookie"],
        requires_dynamic_headers=True,
    )
    assert (got.status, got.body["result"]["body"]) == (200, 2)
    (received,) = harness.api.requests
    assert (received.method, received.target) == ("POST", f"{path}?page=3")
    assert json.loads(received.body) == {"filter": "é"}
    assert received.all("authorization") == [f"Bearer {TOKEN}"]
    assert received.all("cookie") == ["sid=s-0123456789"]
    assert received.all("user-agent") == ["Mozilla/5.0 (X11; Linux)"]
    assert received.all("accept") == ["application/json"]
    assert received.all("content-type") == ["application/json"]
    assert received.all("x-other") == []


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
async def test_every_form_of_export_works(harness: AbilityHarness, code: str) -> None:
    got = await harness.run(code, {"a": 1})
    assert got.body["result"]["body"] == {"a": 1}, got.body


async def test_wrapper_may_build_a_response(harness: AbilityHarness) -> None:
    code = "export const wrapper = () => new Response('made', { status: 201, headers: { 'X-A': 'b' } })"
    result = (await harness.run(code)).body["result"]
    assert (result["statusCode"], result["body"], result["headers"]["x-a"]) == (201, "made", "b")


@pytest.mark.parametrize(
    ("returned", "body"),
    [
        ("({ status: 404, names: ['é'] })", {"status": 404, "names": ["é"]}),
        ("[1, null]", [1, None]),
        ("'text'", "text"),
        ("''", ""),
        ("0", 0),
        ("false", False),
        ("null", None),
        ("Object.create(null)", {}),
        ("({ at: new Date(0) })", {"at": "1970-01-01T00:00:00.000Z"}),
    ],
)
async def test_plain_data_is_the_body(harness: AbilityHarness, returned: str, body: object) -> None:
    got = await harness.run(f"export const wrapper = async () => {returned}")
    assert got.status == 200, got.body
    result = got.body["result"]
    assert (result["statusCode"], result["body"], result["headers"]) == (200, body, {})


async def test_plain_data_is_redacted_and_transformed(harness: AbilityHarness) -> None:
    await harness.credential("X-Key", TOKEN)
    harness.api.responses["/"] = http_response("200 OK", JSON, body=b'{"half": "%s"}' % TOKEN[:16].encode())
    code = (
        "export const wrapper = async ({ url, rest }) =>"
        " ({ key: (await (await fetch(url)).json()).half + rest })"
    )
    ability = await harness.add(code, dynamic_header_keys=[f"{HOST}::X-Key"])
    params = {"url": harness.api.url("/"), "rest": TOKEN[16:]}
    got = await harness.execute(ability, params, "(data) => [data.key]")
    assert got.body["result"]["body"] == ["[redacted]"]


async def test_plain_data_does_not_hide_a_rejected_credential(harness: AbilityHarness) -> None:
    await harness.credential("X-Key", TOKEN)
    harness.api.responses["/"] = http_response("401 Unauthorized")
    code = "export const wrapper = async ({ url }) => ({ ok: (await fetch(url)).ok })"
    got = await harness.fetch(code=code, dynamic_header_keys=[f"{HOST}::X-Key"])
    assert (got.status, got.body["credentialsExpired"]) == (401, True)


async def test_object_that_acts_like_a_response_is_accepted(harness: AbilityHarness) -> None:
    code = (
        "export const wrapper = () => ({ status: 200, ok: true, text: async () => '[1]',"
        " headers: new Map([['content-type', 'application/json']]) })"
    )
    assert (await harness.run(code)).body["result"]["body"] == [1]


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
    "binary body": (
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
    "body read twice": (
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
    "manual redirect": (
        """
        const r = await fetch(api + "/moved", { redirect: "manual" });
        return [r.status, r.headers.get("location")];
        """,
        [302, "/json"],
    ),
    "followed redirect": (
        "const r = await fetch(api + '/moved'); return [r.status, r.redirected, r.url.endsWith('/json')]",
        [200, True, True],
    ),
    "refused redirect": (
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
    "concurrent requests": (
        "return (await Promise.all([1, 2, 3].map(() => fetch(api + '/json')))).map((r) => r.status)",
        [200, 200, 200],
    ),
    "aborted request": (
        """
        const c = new AbortController();
        setTimeout(() => c.abort(), 20);
        try { await fetch(api + "/silent", { signal: c.signal }) } catch (e) { return e.name }
        """,
        "AbortError",
    ),
    "request timeout": (
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
    "other platform APIs": (
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
async def test_api_inside_a_wrapper(harness: AbilityHarness, name: str) -> None:
    async def in_hex(requests: RecordedRequest, writer: Any) -> None:
        writer.write(http_response(body=requests.body.hex().encode()))
        await writer.drain()

    async def silent(requests: RecordedRequest, writer: Any) -> None:
        await writer.wait_closed()

    harness.api.responses |= {
        "/json": http_response("200 OK", JSON, body='{"a": "é"}'.encode()),
        "/bytes": http_response(body=b"\xff\x00\xfe"),
        "/large": http_response(body=b"x" * 900_000),
        "/moved": http_response("302 Found", "Location: /json"),
        "/hex": in_hex,
        "/silent": silent,
    }
    code, expected = INSIDE[name]
    assert await harness.run_in_wrapper(code) == expected


async def test_last_of_many_responses_is_returned_completely(harness: AbilityHarness) -> None:
    harness.api.responses["/x"] = http_response(body=b"x" * 900_000)
    code = (
        "export const wrapper = async ({ url }) => { let last;"
        " for (let i = 0; i < 20; i++) last = await fetch(url); return last }"
    )
    assert (await harness.fetch("/x", code=code)).body["result"]["originalLength"] == 900_002


async def test_stream_is_read_as_it_arrives(harness: AbilityHarness) -> None:
    """The fake API sends the second event only after the wrapper has read the first one."""
    read = asyncio.Event()

    async def events(requests: RecordedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n")
        await writer.drain()
        await read.wait()
        writer.write(b"data: 2\n\n")
        await writer.drain()

    async def more(requests: RecordedRequest, writer: asyncio.StreamWriter) -> None:
        read.set()
        writer.write(http_response(body=b"ok"))
        await writer.drain()

    harness.api.responses |= {"/events": events, "/more": more}
    code = """
        const seen = [], decoder = new TextDecoder();
        for await (const part of (await fetch(api + "/events")).body) {
          if (seen.length === 0) await fetch(api + "/more");
          seen.push(decoder.decode(part));
        }
        return seen;
    """
    assert await harness.run_in_wrapper(code) == ["data: 1\n\n", "data: 2\n\n"]


# --- the code stays secret ---

MARK = "a_mark_in_the_code"
REVEALING_BODIES = (
    "/* MARK */ throw new Error(String(wrapper) + wrapper.toString())",
    "/* MARK */ return new Response(`${wrapper}${Function.prototype.toString.call(wrapper)}`)",
    "/* MARK */ console.log(wrapper, `${wrapper}`, { wrapper }); return new Response(arguments.callee + '')",
    "/* MARK */ return new Response(new Error('x').stack)",
    "/* MARK */ const Copy = class { a = 1 }; return new Response(Copy + [wrapper].join() + Object(wrapper))",
    "'MARK'; return missing.there",
    "'MARK' oops",
    "}; const other = 'MARK'; wrapper = 1; {",
)


@pytest.mark.parametrize("body", REVEALING_BODIES)
async def test_code_of_a_wrapper_is_never_returned_or_logged(
    harness: AbilityHarness, caplog: pytest.LogCaptureFixture, body: str
) -> None:
    caplog.set_level(logging.DEBUG)
    code = f"export function wrapper() {{ {body.replace('MARK', MARK)} }}"
    got = await harness.run(code, transform="(data) => data")
    assert MARK not in f"{got.body} {got.logs} {caplog.text} {harness.records}"
