"""Gaps in the specification of abilities, and the rules by which Hutch closes them."""

from __future__ import annotations

import base64
import json
from urllib.parse import quote

import pytest
from tests.contract.abilities.harness import (
    HOST,
    OTHER_HOST,
    PLAIN,
    THROWING,
    TOKEN,
    AbilityHarness,
    ability_harness,
)
from tests.egress.recording_server import http_response, redirect

import hutch
from hutch.settings import Settings

pytestmark = pytest.mark.anyio

JSON = "Content-Type: application/json"
AUTHORIZATION = [f"{HOST}::Authorization"]
# Attempts to escape that succeed in `node:vm`.
ESCAPES = (
    "(() => { const F = console.log.constructor; const get = (s) => { try { return typeof F(s)() } catch {"
    " return 'undefined' } }; return ['return Deno', 'return require', 'return process.exit',"
    " 'return this.constructor.constructor(\"return process\")().binding', 'return process.mainModule']"
    ".map(get) })()"
)
NOT_FOUND = ["undefined"] * 5


# --- `node:vm` is not a sandbox ---


async def test_wrapper_cannot_escape(harness: AbilityHarness) -> None:
    assert await harness.run_in_wrapper(f"return {ESCAPES}") == NOT_FOUND


async def test_transform_cannot_escape(harness: AbilityHarness) -> None:
    got = await harness.fetch(transform=f"() => {ESCAPES}")
    assert got.body["result"]["body"] == NOT_FOUND


async def test_header_code_runs_in_the_sandbox(harness: AbilityHarness) -> None:
    code = f"() => JSON.stringify({ESCAPES}) + typeof fetch + typeof payload"
    await harness.fetch(static_headers=[{"key": "X-Out", "value_code": code}])
    assert harness.api.requests[0].all("x-out") == [
        f"{json.dumps(NOT_FOUND, separators=(',', ':'))}undefinedundefined"
    ]


async def test_header_code_and_transform_have_separate_limits(harness: AbilityHarness) -> None:
    loop = "() => { while (true); }"
    got = await harness.fetch(static_headers=[{"key": "X-Slow", "value_code": loop}], transform=loop)
    assert got.body["result"]["body"]["_transform_error"] == "The transform did not finish within 1.5 s"
    assert harness.api.requests[0].all("x-slow") == []


# --- credentials are attached to any URL ---


async def test_credential_is_sent_to_its_host_only(harness: AbilityHarness) -> None:
    await harness.credential("Authorization", TOKEN)
    code = (
        "export const wrapper = async ({ here, there }) => { await fetch(here); return await fetch(there) }"
    )
    params = {"here": harness.api.url("/here"), "there": harness.api.url("/there", OTHER_HOST)}
    await harness.run(code, params, dynamic_header_keys=AUTHORIZATION)
    assert [each.all("authorization") for each in harness.api.requests] == [[TOKEN], []]


async def test_secret_is_not_reachable_from_a_wrapper(harness: AbilityHarness) -> None:
    await harness.credential("Authorization", TOKEN)
    code = """
        const seen = new Set(), found = [];
        function walk(value) {
          if (typeof value === "string") return found.push(value);
          if (value === null || !["object", "function"].includes(typeof value) || seen.has(value)) return;
          seen.add(value);
          for (const key of Reflect.ownKeys(value)) {
            found.push(String(key));
            try { walk(value[key]) } catch {}
          }
          walk(Object.getPrototypeOf(value));
        }
        export async function wrapper({ url, backwards }, options) {
          const request = new Request(url), response = await fetch(request);
          [globalThis, options, request, response, [...request.headers], [...response.headers],
            await response.clone().text(), new Error().stack].forEach(walk);
          const part = backwards.split("").reverse().join("");
          const keys = Object.keys(options.dynamicHeaders);
          return Response.json({ keys, found: found.join(" ").includes(part) });
        }
    """
    params = {"url": harness.api.url("/"), "backwards": TOKEN[11::-1]}
    got = await harness.run(code, params, dynamic_header_keys=AUTHORIZATION)
    assert harness.api.requests[0].all("authorization") == [TOKEN]
    assert got.body["result"]["body"] == {"keys": [], "found": False}


async def test_plain_http_needs_permission(runners: hutch.Hutch, tmp_path: object) -> None:
    settings = Settings(home=f"{tmp_path}/home")
    async with ability_harness(runners, settings, egress_allow=()) as harness:
        await harness.credential("Authorization", TOKEN)
        got = await harness.run(PLAIN, {"url": "http://93.184.215.14/"}, dynamic_header_keys=AUTHORIZATION)
        assert (got.status, got.body["errorCode"]) == (500, "EGRESS_REFUSED")
        assert "https only" in got.body["error"]


# --- cross-origin redirects keep custom headers ---


async def test_headers_are_chosen_anew_for_every_redirect(harness: AbilityHarness) -> None:
    await harness.credential("apikey", TOKEN)
    harness.api.responses["/start"] = redirect(harness.api.url("/middle", OTHER_HOST))
    harness.api.responses["/middle"] = redirect(harness.api.url("/end"))
    await harness.fetch(
        "/start", dynamic_header_keys=[f"{HOST}::apikey"], static_headers={f"{OTHER_HOST}::x-s": "1"}
    )
    assert [each.all("apikey") for each in harness.api.requests] == [[TOKEN], [], [TOKEN]]
    assert [each.all("x-s") for each in harness.api.requests] == [[], ["1"], []]


# --- header merge is case-sensitive ---


async def test_each_header_has_one_value_and_the_wrapper_takes_precedence(harness: AbilityHarness) -> None:
    await harness.credential("AUTHORIZATION", TOKEN)
    await harness.credential("x-b", "of the credential")
    await harness.fetch(
        static_headers={"authorization": "static", "X-A": "static", "x-C": "static", "x-B": "static"},
        dynamic_header_keys=[*AUTHORIZATION, f"{HOST}::X-B"],
        init={"headers": {"X-a": "wrapper"}},
    )
    (received,) = harness.api.requests
    assert received.all("authorization") == [TOKEN]
    assert (received.all("x-a"), received.all("x-b"), received.all("x-c")) == (
        ["wrapper"],
        ["of the credential"],
        ["static"],
    )


async def test_cookies_are_joined_in_order(harness: AbilityHarness) -> None:
    await harness.credential("cookie", "b=2", kind="cookie")
    await harness.fetch(
        static_headers={"COOKIE": "a=1"},
        dynamic_header_keys=[f"{HOST}::Cookie"],
        init={"headers": {"Cookie": "c=3"}},
    )
    assert harness.api.requests[0].all("cookie") == ["a=1; b=2; c=3"]


async def test_forbidden_headers_are_left_out(harness: AbilityHarness) -> None:
    static = {"Content-Length": "99", "Host": "evil.example", "Connection": "close", "Keep-Alive": "1"}
    await harness.fetch(static_headers=static, init={"headers": {"Transfer-Encoding": "x", "Upgrade": "y"}})
    (received,) = harness.api.requests
    assert received.all("host") == [f"{HOST}:{harness.api.port}"]
    for name in ("content-length", "keep-alive", "transfer-encoding", "upgrade"):
        assert received.all(name) == []


# --- wrappers that throw on 401; any 401 to 499 expires credentials ---


@pytest.mark.parametrize(
    "code",
    [
        THROWING,
        PLAIN,
        "export const wrapper = async ({ url }) => { await fetch(url); return Response.json(1) }",
        "export const wrapper = async ({ url }) => { await fetch(url); throw null }",
    ],
)
async def test_401_expires_credentials_whatever_the_wrapper_does(harness: AbilityHarness, code: str) -> None:
    credential = await harness.credential("Authorization", TOKEN)
    harness.api.responses["/x"] = http_response("401 Unauthorized", JSON, body=b'{"error": "expired"}')
    got = await harness.fetch("/x", code=code, dynamic_header_keys=AUTHORIZATION)
    assert (got.status, got.body["credentialsExpired"]) == (401, True)
    assert got.body["result"]["statusCode"] == 401
    assert (await harness.state(credential)).state == "expired"


@pytest.mark.parametrize("status", ["404 Not Found", "429 Too Many Requests", "400 Bad Request", "500 Oh"])
async def test_other_failures_do_not_expire_credentials(harness: AbilityHarness, status: str) -> None:
    credential = await harness.credential("Authorization", TOKEN)
    harness.api.responses["/x"] = http_response(status)
    got = await harness.fetch("/x", code=THROWING, dynamic_header_keys=AUTHORIZATION)
    assert got.status == int(status[:3])
    assert "credentialsExpired" not in got.body
    assert (await harness.state(credential)).state == "active"


async def test_expired_credential_is_still_used_and_a_success_clears_the_mark(
    harness: AbilityHarness,
) -> None:
    credential = await harness.credential("Authorization", TOKEN)
    harness.api.responses["/x"] = http_response("403 Forbidden")
    await harness.fetch("/x", dynamic_header_keys=AUTHORIZATION)
    assert (await harness.state(credential)).state == "expired"
    del harness.api.responses["/x"]
    assert (await harness.fetch("/x", dynamic_header_keys=AUTHORIZATION)).status == 200
    assert harness.api.requests[1].all("authorization") == [TOKEN]
    now = await harness.state(credential)
    assert (now.state, now.expired_at, now.cause) == ("active", None, None)


async def test_only_credentials_of_the_rejected_request_are_marked(harness: AbilityHarness) -> None:
    rejected = await harness.credential("Authorization", TOKEN)
    accepted = await harness.credential("Authorization", f"{TOKEN}-there", host=OTHER_HOST)
    overridden = await harness.credential("X-Own", "of-the-credential")
    unused = await harness.credential("X-Unused", "of-the-credential")
    harness.api.responses["/x"] = http_response("401 Unauthorized")
    code = (
        "export const wrapper = async ({ here, there }) => { await fetch(there);"
        " return await fetch(here, { headers: { 'x-own': '1' } }) }"
    )
    params = {"here": harness.api.url("/x"), "there": harness.api.url("/y", OTHER_HOST)}
    keys = [f"{HOST}::Authorization", f"{OTHER_HOST}::Authorization", f"{HOST}::X-Own"]
    await harness.run(code, params, dynamic_header_keys=keys)
    states = [(await harness.state(each)).state for each in (rejected, accepted, overridden, unused)]
    assert states == ["expired", "active", "active", "active"]


async def test_credential_accepted_later_is_not_marked(harness: AbilityHarness) -> None:
    credential = await harness.credential("Authorization", TOKEN)
    harness.api.responses["/x"] = http_response("401 Unauthorized")
    code = "export const wrapper = async ({ url }) => { await fetch(url); return await fetch(url + 'y') }"
    got = await harness.fetch("/x", code=code, dynamic_header_keys=AUTHORIZATION)
    assert got.status == 200
    assert (await harness.state(credential)).state == "active"


async def test_expiring_statuses_are_a_setting(runners: hutch.Hutch, tmp_path: object) -> None:
    settings = Settings(home=f"{tmp_path}/home", ability_expire_on="401-499")
    async with ability_harness(runners, settings) as harness:
        credential = await harness.credential("Authorization", TOKEN)
        harness.api.responses["/x"] = http_response("404 Not Found")
        got = await harness.fetch("/x", dynamic_header_keys=AUTHORIZATION)
        assert (got.status, got.body["credentialsExpired"]) == (404, True)
        assert (await harness.state(credential)).state == "expired"


# --- bodies ---


@pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified"])
async def test_missing_body_is_null_with_any_type(harness: AbilityHarness, status: str) -> None:
    harness.api.responses["/x"] = f"HTTP/1.1 {status}\r\n{JSON}\r\n\r\n".encode()
    got = await harness.fetch("/x")
    assert (got.body["result"]["statusCode"], got.body["result"]["body"]) == (int(status[:3]), None)
    assert got.status == (200 if status[0] == "2" else 500)


@pytest.mark.parametrize(
    ("kind", "body", "expected"),
    [
        ("application/json", b'{"a": ', '{"a": '),
        ("application/json", b"", None),
        ("application/json; charset=utf-8", b"[1]", [1]),
        ("application/problem+json", b'{"title": "no"}', {"title": "no"}),
        ("application/vnd.api+json;v=1", b"[]", []),
        ("text/plain", b"[1]", "[1]"),
        ("text/html", "<p>é".encode(), "<p>é"),
        ("application/octet-stream", b"\xff\x00", "�\0"),
        ("application/json", b"\xef\xbb\xbf[1]", [1]),
        ("application/json", b'"\\ud800"', "\ud800"),
        ("application/json", b"[" * 300 + b"]" * 300, "[" * 300 + "]" * 300),
    ],
)
async def test_body_is_json_if_declared_and_valid(
    harness: AbilityHarness, kind: str, body: bytes, expected: object
) -> None:
    harness.api.responses["/x"] = http_response("200 OK", f"Content-Type: {kind}", body=body)
    result = (await harness.fetch("/x")).body["result"]
    assert (result["statusCode"], result["body"]) == (200, expected)
    read = (
        "export const wrapper = async ({ url }) =>"
        " { const r = await fetch(url); return new Response(await r.text(), r) }"
    )
    again = (await harness.fetch("/x", code=read)).body["result"]
    assert again["body"] == expected


async def test_several_cookies_are_listed(harness: AbilityHarness) -> None:
    harness.api.responses["/x"] = http_response("200 OK", "Set-Cookie: a=1; Path=/", "Set-Cookie: b=2")
    result = (await harness.fetch("/x")).body["result"]
    assert result["setCookie"] == ["a=1; Path=/", "b=2"]
    assert result["headers"]["set-cookie"] == "a=1; Path=/, b=2"
    assert all(isinstance(each, str) for each in result["headers"].values())


# --- transforms ---


@pytest.mark.parametrize("body", [b"null", b"false", b"0", b'""', b"[]"])
async def test_transform_runs_on_any_successful_body(harness: AbilityHarness, body: bytes) -> None:
    harness.api.responses["/x"] = http_response("200 OK", JSON, body=body)
    got = await harness.fetch("/x", transform="(data) => ({ was: JSON.stringify(data) })")
    assert got.body["result"]["body"] == {"was": body.decode()}


async def test_transform_is_awaited(harness: AbilityHarness) -> None:
    got = await harness.fetch(transform="async (data) => { await null; return typeof data }")
    assert got.body["result"]["body"] == "string"


async def test_transform_is_not_run_on_a_failure(harness: AbilityHarness) -> None:
    harness.api.responses["/x"] = http_response("500 Oh", JSON, body=b'{"a": 1}')
    got = await harness.fetch("/x", transform="() => 'transformed'")
    assert got.body["result"]["body"] == {"a": 1}


async def test_transformed_body_is_truncated_too(harness: AbilityHarness) -> None:
    result = (await harness.fetch(transform="() => 'x'.repeat(40000)")).body["result"]
    assert (result["truncated"], result["originalLength"]) == (True, 40_002)


# --- errors ---


async def test_every_failure_has_error_code_and_time(harness: AbilityHarness) -> None:
    harness.api.responses["/x"] = http_response("500 Oh")
    answers = [
        await harness.execute("nothing"),
        await harness.fetch("/x"),
        await harness.fetch("/x", code=THROWING),
        await harness.run("const a = 1"),
        await harness.run("export const wrapper = () => {}"),
        await harness.run(PLAIN, dependency_order=["nothing"]),
        await harness.run(PLAIN, dynamic_header_keys=["a.example::b"]),
    ]
    for got in answers:
        assert got.status >= 400
        assert got.body["success"] is False
        assert all(isinstance(got.body[name], str) for name in ("error", "errorCode", "executedAt"))


# --- environment and network ---


async def test_environment_is_empty(harness: AbilityHarness) -> None:
    assert await harness.run_in_wrapper("return [Object.keys(process.env), process.env.PATH ?? null]") == [
        [],
        None,
    ]


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest/meta-data/",
        "https://169.254.169.254/",
        "https://10.0.0.1/",
        "https://0.0.0.0/",
        "https://[::1]/",
        "https://[::ffff:169.254.169.254]/",
        "https://[fd00:ec2::254]/",
        "https://2852039166/",
        "https://0xa9fea9fe/",
        "https://100.100.100.200/",
        "https://192.168.0.1/",
    ],
)
async def test_internal_addresses_are_refused(harness: AbilityHarness, url: str) -> None:
    got = await harness.run(PLAIN, {"url": url})
    assert (got.status, got.body["errorCode"]) == (500, "EGRESS_REFUSED")
    assert got.body["error"]
    assert not harness.api.requests


async def test_redirect_to_an_internal_address_is_refused(harness: AbilityHarness) -> None:
    harness.api.responses["/x"] = redirect("https://169.254.169.254/latest/meta-data/")
    got = await harness.fetch("/x")
    assert (got.status, got.body["errorCode"]) == (500, "EGRESS_REFUSED")


# --- secrets echoed by upstream ---


@pytest.mark.parametrize(
    "inner", ["", "const text = await response.text(); return new Response(text, response);"]
)
async def test_returned_secrets_are_redacted(harness: AbilityHarness, inner: str) -> None:
    await harness.credential("Authorization", f"Bearer {TOKEN}")
    forms = {
        "raw": TOKEN,
        "whole": f"Bearer {TOKEN}",
        "url": quote(TOKEN, safe=""),
        "base64": base64.b64encode(TOKEN.encode()).decode(),
        "hex": TOKEN.encode().hex(),
    }
    harness.api.responses["/x"] = http_response(
        f"200 {TOKEN}", JSON, f"X-Echo: {TOKEN}", f"Set-Cookie: t={TOKEN}", body=json.dumps(forms).encode()
    )
    code = (
        "export const wrapper = async ({ url }) =>"
        f" {{ const response = await fetch(url); {inner} return response }}"
    )
    got = await harness.fetch("/x", code=code, dynamic_header_keys=AUTHORIZATION)
    assert harness.api.requests[0].all("authorization") == [f"Bearer {TOKEN}"]
    text = json.dumps(got.body)
    for form in forms.values():
        assert form not in text
    assert got.body["result"]["headers"]["x-echo"] == "[redacted]"


async def test_secret_joined_by_a_wrapper_is_redacted(harness: AbilityHarness) -> None:
    await harness.credential("Authorization", TOKEN)
    half = len(TOKEN) // 2
    harness.api.responses["/1"] = http_response(body=TOKEN[:half].encode())
    harness.api.responses["/2"] = http_response(body=TOKEN[half:].encode())
    code = """
        export async function wrapper({ api, fail }) {
          const get = async (path) => (await fetch(api + path)).text();
          const [one, two] = await Promise.all(["/1", "/2"].map(get));
          console.log(one + two);
          if (fail) throw new Error(one + two);
          return Response.json({ both: [one + two] }, { headers: { "X-Both": one + two } });
        }
    """
    for fail in (False, True):
        ability = await harness.add(code, dynamic_header_keys=AUTHORIZATION)
        got = await harness.execute(ability, {"api": harness.api.url(""), "fail": fail}, "(data) => data")
        assert got.body["success"] is not fail
        assert TOKEN not in f"{got.body} {got.logs} {harness.records}"


# --- another user's ability ---


async def test_another_users_ability_looks_like_a_missing_one(harness: AbilityHarness) -> None:
    other = await harness.new_user()
    foreign = await harness.add(PLAIN, other)
    got = await harness.execute(foreign)
    assert (got.status, got.body["error"], got.body["errorCode"]) == (
        404,
        f"Ability not found: {foreign}",
        "NOT_FOUND",
    )
    shared = await harness.add(PLAIN, other, shared=True)
    assert (await harness.execute(shared, {"url": harness.api.url("/")})).status == 200


async def test_shared_ability_uses_the_callers_credentials(harness: AbilityHarness) -> None:
    caller, other = harness.user, await harness.new_user()
    shared = await harness.add(PLAIN, other, shared=True, dynamic_header_keys=AUTHORIZATION)
    harness.user = other
    await harness.credential("Authorization", "of-the-other-user")
    harness.user = caller
    assert (await harness.execute(shared, {"url": harness.api.url("/")})).body[
        "errorCode"
    ] == "MISSING_CREDENTIALS"
    await harness.credential("Authorization", TOKEN)
    assert (await harness.execute(shared, {"url": harness.api.url("/")})).status == 200
    assert harness.api.requests[-1].all("authorization") == [TOKEN]
