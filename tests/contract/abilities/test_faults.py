"""Wrappers, transforms and services that go wrong in every way: each answer has the specified shape."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.contract.abilities.workshop import HERE, PLAIN, THROWING, TOKEN, Workshop, workshop
from tests.egress.upstreams import Asked, answer, cut, redirect, silent

import hutch
from hutch.doors.abilities.execute import Answer
from hutch.errors import Busy
from hutch.settings import Settings

pytestmark = pytest.mark.anyio

JSON = "Content-Type: application/json"


def failed(got: Answer, status: int, code: str, text: str) -> None:
    """In the specified shape, with all that a failure has."""
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
    "a string": ("export const wrapper = () => 'x'", "must return a Response; it returned a string"),
    "nothing": ("export const wrapper = () => {}", "it returned undefined"),
    "null": ("export const wrapper = () => null", "it returned null"),
    "a plain object": ("export const wrapper = () => ({ status: 200 })", "it returned a plain object"),
    "a status that is none": (
        "export const wrapper = () => ({ status: 2.5, headers: new Map(), text: () => '' })",
        "must return a Response",
    ),
    "a body that was read": (
        "export const wrapper = async () => { const r = new Response('x'); await r.text(); return r }",
        "read already",
    ),
    "no JavaScript": ("export const wrapper = ;", "Unexpected token"),
    "no JavaScript at all": ("<html>", "Unexpected token"),
    "an unknown name": ("export const wrapper = () => nothing.here", "nothing is not defined"),
    "throws at once": ("throw new RangeError('at once')", "at once"),
    "throws a string": ("export const wrapper = () => { throw 'just text' }", "just text"),
    "throws null": ("export const wrapper = () => { throw null }", "null"),
    "throws nothing": ("export const wrapper = () => { throw undefined }", "undefined"),
    "throws an object": ("export const wrapper = () => { throw { code: 7 } }", '{"code":7}'),
    "throws what cannot be written": (
        "export const wrapper = () => { const a = {}; a.a = a; throw a }",
        "[object Object]",
    ),
    "throws an error without a text": ("export const wrapper = () => { throw new Error() }", "failed"),
    "imports": ("import x from 'npm:evil'; export const wrapper = () => x", ""),
    "fetches nothing": ("export const wrapper = () => fetch('')", "Invalid URL"),
    "a header with a line break": (
        "export const wrapper = () => fetch('https://a.example', { headers: { a: 'x\\r\\nHost: y' } })",
        "line break",
    ),
    "a body that is too large": (
        "export const wrapper = () => new Response('x'.repeat(9e6))",
        "too large",
    ),
}


@pytest.mark.parametrize("name", WRAPPERS)
async def test_a_wrapper_that_is_wrong(shop: Workshop, name: str) -> None:
    code, text = WRAPPERS[name]
    failed(await shop.run(code), 500, "WRAPPER_ERROR", text)


async def test_wrappers_that_do_not_end(shop: Workshop) -> None:
    codes = (
        "export const wrapper = () => { while (true); }",
        "while (true);",
        "export const wrapper = () => new Promise(() => {})",
        "await new Promise(() => {}); export const wrapper = () => 1",
    )
    for got in await asyncio.gather(*map(shop.run, codes)):
        failed(got, 500, "TIMEOUT", "did not finish within")


async def test_a_wrapper_that_allocates(shop: Workshop) -> None:
    code = "export const wrapper = () => { const a = []; for (;;) a.push(new Uint8Array(1e6)) }"
    failed(await shop.run(code), 500, "MEMORY_LIMIT", "64 MiB")


async def test_a_wrapper_that_asks_too_often(shop: Workshop) -> None:
    code = "export const wrapper = async ({ url }) => { for (;;) await fetch(url) }"
    failed(await shop.fetched(code=code), 500, "UPSTREAM_ERROR", "50 requests")


async def test_where_a_wrapper_failed_is_told_by_its_line(shop: Workshop) -> None:
    code = "// one\n// two\nexport const wrapper = () => {\n  return missing;\n}"
    assert (await shop.run(code)).body["errorLine"] == 4
    assert (await shop.run("\n\nexport const wrapper = (")).body["errorLine"] == 3


# --- static headers ---


async def test_codes_that_give_no_value_are_left_out_and_logged(
    shop: Workshop, caplog: pytest.LogCaptureFixture
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
    got = await shop.fetched(static_headers=headers)
    assert got.status == 200
    (asked,) = shop.api.asked
    sent = {key: asked.all(key.lower()) for key in codes}
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


async def test_plain_values_never_become_code(shop: Workshop) -> None:
    value = "' + (() => { throw 1 })() + '"
    await shop.fetched(static_headers={"X-A": value, "X-B": "() => 'b'"})
    (asked,) = shop.api.asked
    assert (asked.all("x-a"), asked.all("x-b")) == ([value], ["() => 'b'"])


# --- credentials ---


async def test_kinds_that_no_header_can_carry_are_named(shop: Workshop) -> None:
    await shop.credential("api_key", TOKEN, kind="query")
    got = await shop.fetched(dynamic_header_keys=[f"{HERE}::api_key"])
    failed(got, 400, "MISSING_CREDENTIALS", f"The credential {HERE}::api_key is of the kind query")
    assert not shop.api.asked


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
async def test_each_kind_of_credential_is_sent_as_it_is_meant(
    shop: Workshop, kind: str, key: str, value: str, wanted: str, sent: tuple[str, str]
) -> None:
    await shop.credential(key, value, kind=kind)
    got = await shop.fetched(dynamic_header_keys=[f"{HERE}::{wanted}"])
    assert got.status == 200, got.body
    assert shop.api.asked[0].all(sent[0]) == [sent[1]]


async def test_a_bare_key_is_about_the_service_if_that_is_a_host(shop: Workshop) -> None:
    await shop.credential("Authorization", TOKEN)
    got = await shop.fetched(service_name=HERE, dynamic_header_keys=["Authorization"])
    assert got.status == 200
    assert shop.api.asked[0].all("authorization") == [TOKEN]
    got = await shop.fetched(service_name="acme", dynamic_header_keys=["Authorization"])
    failed(got, 400, "MISSING_CREDENTIALS", "headers: Authorization. They name no host")


# --- transforms ---

TRANSFORMS = {
    "not a function": ("5", "Transform code must be a function"),
    "not JavaScript": ("(data) => {", "Unexpected token"),
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
    "is too large": ("() => 'x'.repeat(9e6)", "too large"),
}


@pytest.mark.parametrize("name", TRANSFORMS)
async def test_a_transform_that_is_wrong_leaves_the_data(shop: Workshop, name: str) -> None:
    code, text = TRANSFORMS[name]
    shop.api.answers["/x"] = answer("200 OK", JSON, body=b'{"a": 1}')
    got = await shop.fetched("/x", transform=code)
    assert (got.status, got.body["success"]) == (200, True)
    body = got.body["result"]["body"]
    assert body["_original_data"] == {"a": 1}
    assert text in body["_transform_error"]


async def test_a_transform_that_gives_nothing_gives_null(shop: Workshop) -> None:
    assert (await shop.fetched(transform="() => undefined")).body["result"]["body"] is None


# --- services ---


async def flood(asked: Asked, writer: asyncio.StreamWriter) -> None:
    """A gigabyte, or as much of it as is taken."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n")
    for _ in range(1024):
        writer.write(b"x" * 1024 * 1024)
        await writer.drain()


SERVICES: dict[str, tuple[Any, str, str]] = {
    "silent": (silent(), "TIMEOUT", "within 1 s"),
    "slow in the middle": (
        silent(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab"),
        "TIMEOUT",
        "within 1 s",
    ),
    "closing": (cut(b""), "UPSTREAM_ERROR", "without an answer"),
    "lying about its length": (
        cut(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nab"),
        "UPSTREAM_ERROR",
        "in the middle",
    ),
    "not speaking HTTP": (cut(b"SSH-2.0-OpenSSH\r\n\r\n"), "UPSTREAM_ERROR", "not HTTP"),
    "endless": (flood, "UPSTREAM_ERROR", "larger than 1000000 bytes"),
    "with a broken encoding": (
        answer("200 OK", "Content-Encoding: gzip", body=b"no gzip"),
        "UPSTREAM_ERROR",
        "not compressed as it says",
    ),
}


@pytest.mark.parametrize("name", SERVICES)
async def test_a_service_that_is_wrong(shop: Workshop, name: str) -> None:
    given, code, text = SERVICES[name]
    shop.api.answers["/x"] = given
    reading = "export const wrapper = async ({ url }) => Response.json(await (await fetch(url)).text())"
    for got in await asyncio.gather(shop.fetched("/x"), shop.fetched("/x", code=reading)):
        failed(got, 500, code, text)


async def test_a_service_that_is_not_there(shop: Workshop) -> None:
    failed(await shop.run(PLAIN, {"url": f"http://{HERE}:1/"}), 500, "UPSTREAM_ERROR", "")


async def test_redirects_in_a_circle(shop: Workshop) -> None:
    shop.api.answers["/x"] = redirect(shop.api.url("/x"))
    failed(await shop.fetched("/x"), 500, "UPSTREAM_ERROR", "20 redirects")


@pytest.mark.parametrize("status", [400, 404, 409, 422, 429, 500, 502, 503, 599])
@pytest.mark.parametrize("code", [PLAIN, THROWING])
async def test_a_service_that_fails(shop: Workshop, status: int, code: str) -> None:
    shop.api.answers["/x"] = answer(f"{status} Oh", JSON, body=b'{"why": 1}')
    got = await shop.fetched("/x", code=code)
    failed(got, status, "UPSTREAM_ERROR", f"{status}")
    assert got.body["result"]["statusCode"] == status


async def test_a_wrapper_may_catch_what_went_wrong(shop: Workshop) -> None:
    shop.api.answers["/x"] = cut(b"")
    code = (
        "export const wrapper = async ({ url }) => { try { await fetch(url) } catch (e)"
        " { return Response.json([e.name, e instanceof TypeError]) } }"
    )
    assert (await shop.fetched("/x", code=code)).body["result"]["body"] == ["TypeError", True]


async def test_a_wrappers_own_mistake_after_a_failure_it_caught(shop: Workshop) -> None:
    shop.api.answers["/x"] = answer("404 Not Found")
    code = (
        "export const wrapper = async ({ url }) => { await fetch(url); await fetch(url + 'y');"
        " throw new Error('mine') }"
    )
    failed(await shop.fetched("/x", code=code), 500, "WRAPPER_ERROR", "mine")


# --- ours ---


async def test_a_store_that_is_gone_is_told_in_the_same_shape(
    runners: hutch.Hutch, tmp_path: object, caplog: pytest.LogCaptureFixture
) -> None:
    async with workshop(runners, Settings(home=f"{tmp_path}/home")) as shop:
        ability = await shop.add(PLAIN)
        await shop.store.close()
        got = await shop.execute(ability, {"url": shop.api.url("/")})
        assert got.status in (500, 503)
        assert got.body["errorCode"] in ("UNAVAILABLE", "INTERNAL_ERROR")
        assert got.body["error"].endswith("the server's log says why")
        assert got.body["executedAt"]
        assert f"{tmp_path}" not in json.dumps(got.body)


async def test_when_every_place_is_taken_the_caller_is_told_when_to_come_back(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: object) -> None:
        raise Busy(retry_after=3)

    monkeypatch.setattr(shop.kernel, "run", full)
    got = await shop.fetched()
    failed(got, 503, "BUSY", "3 s")
    assert got.headers == {"Retry-After": "3"}


async def test_what_nobody_foresaw_is_told_in_the_same_shape(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("details of ours")

    monkeypatch.setattr(shop.kernel, "run", broken)
    got = await shop.fetched()
    failed(got, 500, "INTERNAL_ERROR", "its log says why")
    assert "details of ours" not in str(got.body)
    assert "details of ours" in caplog.text


async def test_a_caller_who_leaves_takes_the_run_along(shop: Workshop) -> None:
    asked = asyncio.Event()

    async def wait(_: Asked, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await writer.wait_closed()

    shop.api.answers["/x"] = wait
    running = asyncio.create_task(shop.fetched("/x"))
    await asked.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    (record,) = shop.records
    assert record.outcome == "timeout"
    (hop,) = record.requests
    assert (hop.status, hop.error) == (None, "closed")
