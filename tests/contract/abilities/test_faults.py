"""Failures of wrappers, transforms and services: every response has the specified format."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.contract.abilities.harness import HOST, PLAIN, THROWING, TOKEN, AbilityHarness, ability_harness
from tests.egress.recording_server import (
    RecordedRequest,
    http_response,
    redirect,
    send_and_close,
    send_and_hang,
)

import hutch
from hutch.errors import Busy
from hutch.protocols.abilities.execute import AbilityResponse
from hutch.settings import Settings

pytestmark = pytest.mark.anyio

JSON = "Content-Type: application/json"


def check_error(got: AbilityResponse, status: int, code: str, text: str) -> None:
    """Checks that the response is an error in the format of the specification, with these values."""
    assert got.status == status, got.body
    assert got.body["success"] is False
    assert got.body["errorCode"] == code, got.body
    assert text in got.body["error"], got.body
    assert got.body["executedAt"]


# --- wrappers ---

WRAPPERS = {
    "missing": ("export const other = 1", "Wrapper function not found in wrapper code"),
    "empty": (";", "Wrapper function not found in wrapper code"),
    "not a function": ("export const wrapper = { a: 1 }", "Wrapper function not found in wrapper code"),
    "nothing": (
        "export const wrapper = () => {}",
        "must return a Response or plain data; it returned undefined",
    ),
    "a function": ("export const wrapper = () => fetch", "it returned a function"),
    "a bigint": ("export const wrapper = () => 1n", "it returned a bigint"),
    "a map": ("export const wrapper = () => new Map()", "it returned an instance of Map"),
    "a cycle": ("export const wrapper = () => { const a = {}; a.a = a; return a }", "circular"),
    "an invalid status": (
        "export const wrapper = () => ({ status: 2.5, headers: new Map(), text: () => '' })",
        "must return a Response",
    ),
    "a body that was read": (
        "export const wrapper = async () => { const r = new Response('x'); await r.text(); return r }",
        "read already",
    ),
    "a syntax error": ("export const wrapper = ;", "Unexpected token"),
    "text that is not code": ("<html>", "Unexpected end of the code"),
    "an unknown name": ("export const wrapper = () => nothing.here", "nothing is not defined"),
    "throws at once": ("throw new RangeError('at once')", "at once"),
    "throws a string": ("export const wrapper = () => { throw 'just text' }", "just text"),
    "throws null": ("export const wrapper = () => { throw null }", "null"),
    "throws undefined": ("export const wrapper = () => { throw undefined }", "undefined"),
    "throws an object": ("export const wrapper = () => { throw { code: 7 } }", '{"code":7}'),
    "throws an unprintable value": (
        "export const wrapper = () => { const a = {}; a.a = a; throw a }",
        "[object Object]",
    ),
    "throws an error without a message": ("export const wrapper = () => { throw new Error() }", "failed"),
    "imports": ("import x from 'npm:evil'; export const wrapper = () => x", ""),
    "fetches nothing": ("export const wrapper = () => fetch('')", "Invalid URL"),
    "a header with a line break": (
        "export const wrapper = () => fetch('https://a.example', { headers: { a: 'x\\r\\nHost: y' } })",
        "line break",
    ),
}


@pytest.mark.parametrize("name", WRAPPERS)
async def test_wrong_wrapper_is_a_wrapper_error(harness: AbilityHarness, name: str) -> None:
    code, text = WRAPPERS[name]
    check_error(await harness.run(code), 500, "WRAPPER_ERROR", text)


async def test_too_large_result_is_refused(runners: hutch.Hutch, tmp_path: Path) -> None:
    # On a busy machine, the wrapper may need more time to create such a body than the time limit of other
    # tests allows.
    settings = Settings(home=str(tmp_path), ability_timeout_ms=60_000, transform_timeout_ms=60_000)
    async with ability_harness(runners, settings) as harness:
        wrapper = "export const wrapper = () => new Response('x'.repeat(9e6))"
        check_error(await harness.run(wrapper), 500, "WRAPPER_ERROR", "too large")
        got = await harness.run("export const wrapper = () => 1", transform="() => 'x'.repeat(9e6)")
        body = got.body["result"]["body"]
        assert body["_original_data"] == 1
        assert "too large" in body["_transform_error"]


async def test_endless_wrapper_is_a_timeout(harness: AbilityHarness) -> None:
    codes = (
        "export const wrapper = () => { while (true); }",
        "while (true);",
        "export const wrapper = () => new Promise(() => {})",
        "await new Promise(() => {}); export const wrapper = () => 1",
    )
    for got in await asyncio.gather(*map(harness.run, codes)):
        check_error(got, 500, "TIMEOUT", "did not finish within")


async def test_wrapper_that_allocates_too_much_hits_the_memory_limit(harness: AbilityHarness) -> None:
    code = "export const wrapper = () => { const a = []; for (;;) a.push(new Uint8Array(1e6)) }"
    check_error(await harness.run(code), 500, "MEMORY_LIMIT", "64 MiB")


async def test_number_of_requests_is_limited(harness: AbilityHarness) -> None:
    code = "export const wrapper = async ({ url }) => { for (;;) await fetch(url) }"
    check_error(await harness.fetch(code=code), 500, "UPSTREAM_ERROR", "50 requests")


async def test_error_has_the_line_of_the_wrapper(harness: AbilityHarness) -> None:
    code = "// one\n// two\nexport const wrapper = () => {\n  return missing;\n}"
    assert (await harness.run(code)).body["errorLine"] == 4
    assert (await harness.run("\n\nexport const wrapper = (")).body["errorLine"] == 3


LITERAL = "a-literal of the 'author'"
QUOTING = {
    "a property": "return payload.missing[LITERAL]",
    "a property to set": "payload.missing[LITERAL] = 1",
    "a property to read from null": "const { [LITERAL]: x } = null",
    "a read-only property": "'use strict'; Object.freeze(payload)[LITERAL] = 1",
    "a regular expression": "return /(LITERAL/",
    "a module": "await import(LITERAL)",
    "evaluated code": "eval('1 ' + LITERAL)",
    "evaluated text": 'eval(`1 "${LITERAL}"`)',
    "a function's source": "new Function('return ' + LITERAL + ' x')",
    "JSON": "JSON.parse(LITERAL)",
    "a URL": "new URL(LITERAL)",
    "a fetched URL": "await fetch(LITERAL)",
    "a scheme": "await fetch('literal-of-the:' + LITERAL)",
    "a method": "await fetch('https://a.example', { method: LITERAL })",
    "a header's name": "new Headers({ [LITERAL]: 'x' })",
    "a header's value": "new Headers({ a: LITERAL + '\\n' })",
    "an encoding": "new TextDecoder(LITERAL)",
    "an encoding of a buffer": "Buffer.from('x', LITERAL)",
    "a date": "new Date(LITERAL).toISOString()",
    "a number": "BigInt(LITERAL)",
    "Base64": "atob(LITERAL)",
    "a URI": "decodeURIComponent('%' + LITERAL)",
    "a symbol": "Symbol(LITERAL) + ''",
    "a normalization form": "'x'.normalize(LITERAL)",
    "an instance": "({}) instanceof LITERAL",
    "a member": "'x' in LITERAL",
    "a call": "LITERAL()",
    "a clone": "structuredClone(() => LITERAL)",
    "a redirect": "Response.redirect(LITERAL)",
}


@pytest.mark.parametrize("name", QUOTING)
async def test_error_does_not_quote_literals_of_the_wrapper(harness: AbilityHarness, name: str) -> None:
    written = QUOTING[name]
    if "/(LITERAL" in written:
        body = written.replace("LITERAL", LITERAL)
    else:
        body = f"const LITERAL = {json.dumps(LITERAL)}; {written}"
    wrapped = f"try {{ {body} }} catch (error) {{ throw new Error(`Failed: ${{error.message}}`) }}"
    for code in (body, wrapped):
        got = await harness.run(f"export async function wrapper(payload) {{ {code} }}")
        assert got.status == 500
        assert "iteral of" not in json.dumps(got.body), got.body["error"]


async def test_error_has_names_of_properties_and_the_authors_words(harness: AbilityHarness) -> None:
    for code, message in {
        "return payload.user.name": "cannot read property 'name' of undefined",
        "throw new TypeError(`the 'mode' is wrong`)": "the 'mode' is wrong",
        "return payload.user['a b']": "cannot read property '…' of undefined",
    }.items():
        got = await harness.run(f"export async function wrapper(payload) {{ {code} }}")
        assert got.body["error"] == message


# --- static headers ---


async def test_headers_without_a_value_are_left_out_and_logged(
    harness: AbilityHarness, caplog: pytest.LogCaptureFixture
) -> None:
    codes = {
        "X-Fine": "() => `fi${'ne'}`",
        "X-Throws": "() => { throw new Error('a-secret-of-the-author') }",
        "X-Not": "not a function at all",
        "X-Nothing": "() => undefined",
        "X-Break": "() => 'a\\r\\nb'",
        "X-Number": "() => 7",
        "X-Late": "async () => 'late'",
    }
    headers = [{"key": key, "value_code": code} for key, code in codes.items()]
    got = await harness.fetch(static_headers=headers)
    assert got.status == 200
    (received,) = harness.api.requests
    sent = {key: received.all(key.lower()) for key in codes}
    assert sent == {
        "X-Fine": ["fine"],
        "X-Throws": [],
        "X-Not": [],
        "X-Nothing": [],
        "X-Break": [],
        "X-Number": ["7"],
        "X-Late": ["late"],
    }
    for key in ("X-Throws", "X-Not", "X-Nothing", "X-Break"):
        assert f"the static header {key} was left out" in caplog.text
    assert "a-secret-of-the-author" not in caplog.text


async def test_literal_values_are_never_run_as_code(harness: AbilityHarness) -> None:
    value = "' + (() => { throw 1 })() + '"
    await harness.fetch(static_headers={"X-A": value, "X-B": "() => 'b'"})
    (received,) = harness.api.requests
    assert (received.all("x-a"), received.all("x-b")) == ([value], ["() => 'b'"])


# --- credentials ---


async def test_credential_in_a_query_is_sent_redacted_and_marked(harness: AbilityHarness) -> None:
    credential = await harness.credential("api_key", f"{TOKEN}/+", kind="query")

    async def reject(request: RecordedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(http_response("401 Unauthorized", body=request.target.encode()))

    harness.api.responses["/a"] = reject
    got = await harness.fetch("/a?page=2", dynamic_header_keys=[f"{HOST}::api_key"])
    (received,) = harness.api.requests
    assert received.target == f"/a?page=2&api_key={TOKEN}%2F%2B"
    assert got.body["result"]["body"] == "/a?page=2&api_key=[redacted]"
    assert TOKEN not in str(got)
    assert [(entry.path, entry.credentials) for entry in got.request_log] == [("/a", (credential.id,))]
    assert (await harness.state(credential)).state == "expired"


@pytest.mark.parametrize(
    ("content_type", "body", "sent"),
    [
        ("application/json", '{"a": [1]}', f'{{"a":[1],"api_key":"{TOKEN}"}}'),
        ("application/x-www-form-urlencoded", "a=1", f"a=1&api_key={TOKEN}"),
    ],
)
async def test_credential_in_a_body_is_sent(
    harness: AbilityHarness, content_type: str, body: str, sent: str
) -> None:
    await harness.credential("api_key", TOKEN, kind="body")
    init = {"method": "POST", "body": body, "headers": {"content-type": content_type}}
    got = await harness.fetch("/", init=init, dynamic_header_keys=[f"{HOST}::api_key"])
    assert got.status == 200, got.body
    (received,) = harness.api.requests
    assert received.body.decode() == sent


async def test_credential_for_a_body_of_another_type_is_an_error(harness: AbilityHarness) -> None:
    await harness.credential("api_key", TOKEN, kind="body")
    init = {"method": "POST", "body": "text"}
    got = await harness.fetch("/", init=init, dynamic_header_keys=[f"{HOST}::api_key"])
    check_error(got, 500, "UPSTREAM_ERROR", "The credential api_key can be added only to a body that is")
    assert not harness.api.requests


@pytest.mark.parametrize(
    ("kind", "key", "value", "wanted", "sent"),
    [
        ("header", "X-Key", "v-1234", "x-key", ("x-key", "v-1234")),
        ("auth_token", "token", "v-1234", "Authorization", ("authorization", "Bearer v-1234")),
        ("auth_token", "Authorization", "Bearer v-1234", "authorization", ("authorization", "Bearer v-1234")),
        ("cookie", "Cookie", "a=1; b=2", "cookie", ("cookie", "a=1; b=2")),
        ("cookie", "sid", "v-1234", "sid", ("cookie", "sid=v-1234")),
        ("cookie", "sid", "v-1234", "Cookie", ("cookie", "sid=v-1234")),
    ],
)
async def test_each_credential_type_is_sent_correctly(
    harness: AbilityHarness, kind: str, key: str, value: str, wanted: str, sent: tuple[str, str]
) -> None:
    await harness.credential(key, value, kind=kind)
    got = await harness.fetch(dynamic_header_keys=[f"{HOST}::{wanted}"])
    assert got.status == 200, got.body
    assert harness.api.requests[0].all(sent[0]) == [sent[1]]


async def test_key_without_a_host_uses_the_service_name_if_that_is_a_host(harness: AbilityHarness) -> None:
    await harness.credential("Authorization", TOKEN)
    got = await harness.fetch(service_name=HOST, dynamic_header_keys=["Authorization"])
    assert got.status == 200
    assert harness.api.requests[0].all("authorization") == [TOKEN]
    got = await harness.fetch(service_name="acme", dynamic_header_keys=["Authorization"])
    check_error(
        got,
        400,
        "MISSING_CREDENTIALS",
        "Authorization. Neither these headers nor service_name contain a host",
    )


# --- transforms ---

TRANSFORMS = {
    "not a function": ("5", "Transform code must be a function"),
    "not JavaScript": ("(data) => {", "Unexpected end of the code"),
    "throws": ("() => { throw new Error('no luck') }", "no luck"),
    "throws null": ("() => { throw null }", "null"),
    "rejects": ("async () => { throw new Error('later') }", "later"),
    "an unknown name": ("(data) => nothing(data)", "nothing is not defined"),
    "a cycle": ("() => { const a = {}; a.a = a; return a }", "circular"),
    "a bigint": ("() => 1n", "BigInt"),
    "fetches": ("() => fetch('https://a.example')", "fetch is not defined"),
    "loops": ("() => { while (true); }", "did not finish within 1.5 s"),
    "waits": ("() => new Promise(() => {})", "did not finish within 1.5 s"),
    "allocates": ("() => { const a = []; for (;;) a.push(new Uint8Array(1e6)) }", "memory limit"),
}


@pytest.mark.parametrize("name", TRANSFORMS)
async def test_wrong_transform_returns_the_original_data(harness: AbilityHarness, name: str) -> None:
    code, text = TRANSFORMS[name]
    harness.api.responses["/x"] = http_response("200 OK", JSON, body=b'{"a": 1}')
    got = await harness.fetch("/x", transform=code)
    assert (got.status, got.body["success"]) == (200, True)
    body = got.body["result"]["body"]
    assert body["_original_data"] == {"a": 1}
    assert text in body["_transform_error"]


async def test_transform_that_returns_undefined_gives_null(harness: AbilityHarness) -> None:
    assert (await harness.fetch(transform="() => undefined")).body["result"]["body"] is None


# --- services ---


async def flood(requests: RecordedRequest, writer: asyncio.StreamWriter) -> None:
    """Sends a gigabyte, or less if the client stops reading."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n")
    for _ in range(1024):
        writer.write(b"x" * 1024 * 1024)
        await writer.drain()


SERVICES: dict[str, tuple[Any, str, str]] = {
    "silent": (send_and_hang(), "TIMEOUT", "within 1 s"),
    "stalls in its body": (
        send_and_hang(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab"),
        "TIMEOUT",
        "within 1 s",
    ),
    "closing": (send_and_close(b""), "UPSTREAM_ERROR", "without an answer"),
    "wrong content length": (
        send_and_close(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nab"),
        "UPSTREAM_ERROR",
        "in the middle",
    ),
    "not HTTP": (
        send_and_close(b"SSH-2.0-OpenSSH\r\n\r\n"),
        "UPSTREAM_ERROR",
        "not HTTP",
    ),
    "endless": (flood, "UPSTREAM_ERROR", "larger than 1000000 bytes"),
    "invalid encoding": (
        http_response("200 OK", "Content-Encoding: gzip", body=b"no gzip"),
        "UPSTREAM_ERROR",
        "the compressed data is invalid",
    ),
}


@pytest.mark.parametrize("name", SERVICES)
async def test_broken_service_is_reported(harness: AbilityHarness, name: str) -> None:
    given, code, text = SERVICES[name]
    harness.api.responses["/x"] = given
    reading = "export const wrapper = async ({ url }) => Response.json(await (await fetch(url)).text())"
    for got in await asyncio.gather(harness.fetch("/x"), harness.fetch("/x", code=reading)):
        check_error(got, 500, code, text)


async def test_unreachable_service_is_an_upstream_error(harness: AbilityHarness) -> None:
    check_error(await harness.run(PLAIN, {"url": f"http://{HOST}:1/"}), 500, "UPSTREAM_ERROR", "")


async def test_circular_redirects_are_limited(harness: AbilityHarness) -> None:
    harness.api.responses["/x"] = redirect(harness.api.url("/x"))
    check_error(await harness.fetch("/x"), 500, "UPSTREAM_ERROR", "20 redirects")


@pytest.mark.parametrize("status", [400, 404, 409, 422, 429, 500, 502, 503, 599])
@pytest.mark.parametrize("code", [PLAIN, THROWING])
async def test_error_status_of_the_service_is_returned(
    harness: AbilityHarness, status: int, code: str
) -> None:
    harness.api.responses["/x"] = http_response(f"{status} Oh", JSON, body=b'{"why": 1}')
    got = await harness.fetch("/x", code=code)
    check_error(got, status, "UPSTREAM_ERROR", f"{status}")
    assert got.body["result"]["statusCode"] == status


async def test_wrapper_may_catch_a_failed_fetch(harness: AbilityHarness) -> None:
    harness.api.responses["/x"] = send_and_close(b"")
    code = (
        "export const wrapper = async ({ url }) => { try { await fetch(url) } catch (e)"
        " { return Response.json([e.name, e instanceof TypeError]) } }"
    )
    assert (await harness.fetch("/x", code=code)).body["result"]["body"] == ["TypeError", True]


async def test_wrapper_error_after_a_handled_failure_is_a_wrapper_error(harness: AbilityHarness) -> None:
    harness.api.responses["/x"] = http_response("404 Not Found")
    code = (
        "export const wrapper = async ({ url }) => { await fetch(url); await fetch(url + 'y');"
        " throw new Error('mine') }"
    )
    check_error(await harness.fetch("/x", code=code), 500, "WRAPPER_ERROR", "mine")


# --- the server ---


async def test_closed_storage_is_reported_in_the_specified_format(
    runners: hutch.Hutch, tmp_path: object, caplog: pytest.LogCaptureFixture
) -> None:
    async with ability_harness(runners, Settings(home=f"{tmp_path}/home")) as harness:
        ability = await harness.add(PLAIN)
        await harness.store.close()
        got = await harness.execute(ability, {"url": harness.api.url("/")})
        assert got.status in (500, 503)
        assert got.body["errorCode"] in ("UNAVAILABLE", "INTERNAL_ERROR")
        assert got.body["error"].endswith("the server's log says why")
        assert got.body["executedAt"]
        assert f"{tmp_path}" not in json.dumps(got.body)


async def test_busy_kernel_returns_retry_after(
    harness: AbilityHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: object) -> None:
        raise Busy(retry_after=3)

    monkeypatch.setattr(harness.kernel, "run", full)
    got = await harness.fetch()
    check_error(got, 503, "BUSY", "3 s")
    assert got.headers == {"Retry-After": "3"}


async def test_unexpected_error_is_hidden_and_logged(
    harness: AbilityHarness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("internal details")

    monkeypatch.setattr(harness.kernel, "run", broken)
    got = await harness.fetch()
    check_error(got, 500, "INTERNAL_ERROR", "its log says why")
    assert "internal details" not in str(got.body)
    assert "internal details" in caplog.text


async def test_cancelled_caller_cancels_the_run(harness: AbilityHarness) -> None:
    received = asyncio.Event()

    async def wait(_: RecordedRequest, writer: asyncio.StreamWriter) -> None:
        received.set()
        await writer.wait_closed()

    harness.api.responses["/x"] = wait
    running = asyncio.create_task(harness.fetch("/x"))
    await received.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    (record,) = harness.records
    assert record.outcome == "cancelled"
    (hop,) = record.requests
    assert (hop.get("status"), hop["error"]) == (None, "closed")
