"""Every row of the notes' table: what the specification leaves open, and the rule that closes it."""

from __future__ import annotations

import base64
import json
from urllib.parse import quote

import pytest
from tests.contract.abilities.workshop import HERE, PLAIN, THERE, THROWING, TOKEN, Workshop, workshop
from tests.egress.upstreams import answer, redirect

import hutch
from hutch.settings import Settings

pytestmark = pytest.mark.anyio

JSON = "Content-Type: application/json"
AUTHORIZATION = [f"{HERE}::Authorization"]
# Ways out that work in `node:vm`.
OUT = (
    "(() => { const F = console.log.constructor; const get = (s) => { try { return typeof F(s)() } catch {"
    " return 'undefined' } }; return ['return Deno', 'return require', 'return process.exit',"
    " 'return this.constructor.constructor(\"return process\")().binding', 'return process.mainModule']"
    ".map(get) })()"
)
NOWHERE = ["undefined"] * 5


# --- `node:vm` is no sandbox ---


async def test_a_wrapper_finds_no_way_out(shop: Workshop) -> None:
    assert await shop.inside(f"return {OUT}") == NOWHERE


async def test_a_transform_finds_no_way_out(shop: Workshop) -> None:
    got = await shop.fetched(transform=f"() => {OUT}")
    assert got.body["result"]["body"] == NOWHERE


async def test_the_code_of_a_header_runs_where_guests_do(shop: Workshop) -> None:
    code = f"() => JSON.stringify({OUT}) + typeof fetch + typeof payload"
    await shop.fetched(static_headers=[{"key": "X-Out", "value_code": code}])
    assert shop.api.asked[0].all("x-out") == [
        f"{json.dumps(NOWHERE, separators=(',', ':'))}undefinedundefined"
    ]


async def test_each_has_limits_of_its_own(shop: Workshop) -> None:
    loop = "() => { while (true); }"
    got = await shop.fetched(static_headers=[{"key": "X-Slow", "value_code": loop}], transform=loop)
    assert got.body["result"]["body"]["_transform_error"] == "The transform did not finish within 1.5 s"
    assert shop.api.asked[0].all("x-slow") == []


# --- credentials are attached to any URL ---


async def test_a_credential_goes_to_its_own_host_alone(shop: Workshop) -> None:
    await shop.credential("Authorization", TOKEN)
    code = (
        "export const wrapper = async ({ here, there }) => { await fetch(here); return await fetch(there) }"
    )
    params = {"here": shop.api.url("/here"), "there": shop.api.url("/there", THERE)}
    await shop.run(code, params, dynamic_header_keys=AUTHORIZATION)
    assert [each.all("authorization") for each in shop.api.asked] == [[TOKEN], []]


async def test_nothing_that_a_wrapper_can_reach_has_the_secret(shop: Workshop) -> None:
    await shop.credential("Authorization", TOKEN)
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
    params = {"url": shop.api.url("/"), "backwards": TOKEN[11::-1]}
    got = await shop.run(code, params, dynamic_header_keys=AUTHORIZATION)
    assert shop.api.asked[0].all("authorization") == [TOKEN]
    assert got.body["result"]["body"] == {"keys": [], "found": False}


async def test_without_permission_plain_http_is_not_spoken(runners: hutch.Hutch, tmp_path: object) -> None:
    settings = Settings(home=f"{tmp_path}/home")
    async with workshop(runners, settings, egress_allow=()) as shop:
        await shop.credential("Authorization", TOKEN)
        got = await shop.run(PLAIN, {"url": "http://93.184.215.14/"}, dynamic_header_keys=AUTHORIZATION)
        assert (got.status, got.body["errorCode"]) == (500, "EGRESS_REFUSED")
        assert "https only" in got.body["error"]


# --- cross-origin redirects keep custom headers ---


async def test_every_hop_is_decided_anew(shop: Workshop) -> None:
    await shop.credential("apikey", TOKEN)
    shop.api.answers["/start"] = redirect(shop.api.url("/middle", THERE))
    shop.api.answers["/middle"] = redirect(shop.api.url("/end"))
    await shop.fetched(
        "/start", dynamic_header_keys=[f"{HERE}::apikey"], static_headers={f"{THERE}::x-s": "1"}
    )
    assert [each.all("apikey") for each in shop.api.asked] == [[TOKEN], [], [TOKEN]]
    assert [each.all("x-s") for each in shop.api.asked] == [[], ["1"], []]


# --- header merge is case-sensitive ---


async def test_one_value_for_each_name_and_the_wrapper_has_the_last_word(shop: Workshop) -> None:
    await shop.credential("AUTHORIZATION", TOKEN)
    await shop.credential("x-b", "of the credential")
    await shop.fetched(
        static_headers={"authorization": "static", "X-A": "static", "x-C": "static", "x-B": "static"},
        dynamic_header_keys=[*AUTHORIZATION, f"{HERE}::X-B"],
        init={"headers": {"X-a": "wrapper"}},
    )
    (asked,) = shop.api.asked
    assert asked.all("authorization") == [TOKEN]
    assert (asked.all("x-a"), asked.all("x-b"), asked.all("x-c")) == (
        ["wrapper"],
        ["of the credential"],
        ["static"],
    )


async def test_cookies_are_joined_in_order(shop: Workshop) -> None:
    await shop.credential("cookie", "b=2", kind="cookie")
    await shop.fetched(
        static_headers={"COOKIE": "a=1"},
        dynamic_header_keys=[f"{HERE}::Cookie"],
        init={"headers": {"Cookie": "c=3"}},
    )
    assert shop.api.asked[0].all("cookie") == ["a=1; b=2; c=3"]


async def test_forbidden_headers_are_left_out(shop: Workshop) -> None:
    static = {"Content-Length": "99", "Host": "evil.example", "Connection": "close", "Keep-Alive": "1"}
    await shop.fetched(static_headers=static, init={"headers": {"Transfer-Encoding": "x", "Upgrade": "y"}})
    (asked,) = shop.api.asked
    assert asked.all("host") == [f"{HERE}:{shop.api.port}"]
    for name in ("content-length", "keep-alive", "transfer-encoding", "upgrade"):
        assert asked.all(name) == []


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
async def test_a_401_decides_whatever_the_wrapper_does(shop: Workshop, code: str) -> None:
    credential = await shop.credential("Authorization", TOKEN)
    shop.api.answers["/x"] = answer("401 Unauthorized", JSON, body=b'{"error": "expired"}')
    got = await shop.fetched("/x", code=code, dynamic_header_keys=AUTHORIZATION)
    assert (got.status, got.body["credentialsExpired"]) == (401, True)
    assert got.body["result"]["statusCode"] == 401
    assert (await shop.state(credential)).state == "expired"


@pytest.mark.parametrize("status", ["404 Not Found", "429 Too Many Requests", "400 Bad Request", "500 Oh"])
async def test_other_failures_expire_nothing(shop: Workshop, status: str) -> None:
    credential = await shop.credential("Authorization", TOKEN)
    shop.api.answers["/x"] = answer(status)
    got = await shop.fetched("/x", code=THROWING, dynamic_header_keys=AUTHORIZATION)
    assert got.status == int(status[:3])
    assert "credentialsExpired" not in got.body
    assert (await shop.state(credential)).state == "active"


async def test_an_expired_credential_is_kept_and_used_and_a_success_clears_it(shop: Workshop) -> None:
    credential = await shop.credential("Authorization", TOKEN)
    shop.api.answers["/x"] = answer("403 Forbidden")
    await shop.fetched("/x", dynamic_header_keys=AUTHORIZATION)
    assert (await shop.state(credential)).state == "expired"
    del shop.api.answers["/x"]
    assert (await shop.fetched("/x", dynamic_header_keys=AUTHORIZATION)).status == 200
    assert shop.api.asked[1].all("authorization") == [TOKEN]
    now = await shop.state(credential)
    assert (now.state, now.expired_at, now.cause) == ("active", None, None)


async def test_only_what_was_sent_with_the_rejected_request_is_marked(shop: Workshop) -> None:
    here = await shop.credential("Authorization", TOKEN)
    there = await shop.credential("Authorization", f"{TOKEN}-there", host=THERE)
    overridden = await shop.credential("X-Own", "of-the-credential")
    unused = await shop.credential("X-Unused", "of-the-credential")
    shop.api.answers["/x"] = answer("401 Unauthorized")
    code = (
        "export const wrapper = async ({ here, there }) => { await fetch(there);"
        " return await fetch(here, { headers: { 'x-own': '1' } }) }"
    )
    params = {"here": shop.api.url("/x"), "there": shop.api.url("/y", THERE)}
    keys = [f"{HERE}::Authorization", f"{THERE}::Authorization", f"{HERE}::X-Own"]
    await shop.run(code, params, dynamic_header_keys=keys)
    states = [(await shop.state(each)).state for each in (here, there, overridden, unused)]
    assert states == ["expired", "active", "active", "active"]


async def test_a_credential_that_is_let_in_after_all_was_not_refused(shop: Workshop) -> None:
    credential = await shop.credential("Authorization", TOKEN)
    shop.api.answers["/x"] = answer("401 Unauthorized")
    code = "export const wrapper = async ({ url }) => { await fetch(url); return await fetch(url + 'y') }"
    got = await shop.fetched("/x", code=code, dynamic_header_keys=AUTHORIZATION)
    assert got.status == 200
    assert (await shop.state(credential)).state == "active"


async def test_which_statuses_expire_is_a_setting(runners: hutch.Hutch, tmp_path: object) -> None:
    settings = Settings(home=f"{tmp_path}/home", ability_expire_on="401-499")
    async with workshop(runners, settings) as shop:
        credential = await shop.credential("Authorization", TOKEN)
        shop.api.answers["/x"] = answer("404 Not Found")
        got = await shop.fetched("/x", dynamic_header_keys=AUTHORIZATION)
        assert (got.status, got.body["credentialsExpired"]) == (404, True)
        assert (await shop.state(credential)).state == "expired"


# --- bodies ---


@pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified"])
async def test_no_body_is_null_whatever_its_type(shop: Workshop, status: str) -> None:
    shop.api.answers["/x"] = f"HTTP/1.1 {status}\r\n{JSON}\r\n\r\n".encode()
    got = await shop.fetched("/x")
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
async def test_a_body_is_json_where_it_is_called_and_is_so(
    shop: Workshop, kind: str, body: bytes, expected: object
) -> None:
    shop.api.answers["/x"] = answer("200 OK", f"Content-Type: {kind}", body=body)
    result = (await shop.fetched("/x")).body["result"]
    assert (result["statusCode"], result["body"]) == (200, expected)
    read = (
        "export const wrapper = async ({ url }) =>"
        " { const r = await fetch(url); return new Response(await r.text(), r) }"
    )
    again = (await shop.fetched("/x", code=read)).body["result"]
    assert again["body"] == expected


async def test_several_cookies_are_listed(shop: Workshop) -> None:
    shop.api.answers["/x"] = answer("200 OK", "Set-Cookie: a=1; Path=/", "Set-Cookie: b=2")
    result = (await shop.fetched("/x")).body["result"]
    assert result["setCookie"] == ["a=1; Path=/", "b=2"]
    assert result["headers"]["set-cookie"] == "a=1; Path=/, b=2"
    assert all(isinstance(each, str) for each in result["headers"].values())


# --- transforms ---


@pytest.mark.parametrize("body", [b"null", b"false", b"0", b'""', b"[]"])
async def test_a_transform_runs_on_any_successful_body(shop: Workshop, body: bytes) -> None:
    shop.api.answers["/x"] = answer("200 OK", JSON, body=body)
    got = await shop.fetched("/x", transform="(data) => ({ was: JSON.stringify(data) })")
    assert got.body["result"]["body"] == {"was": body.decode()}


async def test_a_transform_is_awaited(shop: Workshop) -> None:
    got = await shop.fetched(transform="async (data) => { await null; return typeof data }")
    assert got.body["result"]["body"] == "string"


async def test_a_transform_is_not_run_on_a_failure(shop: Workshop) -> None:
    shop.api.answers["/x"] = answer("500 Oh", JSON, body=b'{"a": 1}')
    got = await shop.fetched("/x", transform="() => 'transformed'")
    assert got.body["result"]["body"] == {"a": 1}


async def test_what_a_transform_made_is_cut_too(shop: Workshop) -> None:
    result = (await shop.fetched(transform="() => 'x'.repeat(40000)")).body["result"]
    assert (result["truncated"], result["originalLength"]) == (True, 40_002)


# --- what a failure says ---


async def test_every_failure_has_error_code_and_time(shop: Workshop) -> None:
    shop.api.answers["/x"] = answer("500 Oh")
    answers = [
        await shop.execute("nothing"),
        await shop.fetched("/x"),
        await shop.fetched("/x", code=THROWING),
        await shop.run("const a = 1"),
        await shop.run("export const wrapper = () => 1"),
        await shop.run(PLAIN, dependency_order=["nothing"]),
        await shop.run(PLAIN, dynamic_header_keys=["a.example::b"]),
    ]
    for got in answers:
        assert got.status >= 400
        assert got.body["success"] is False
        assert all(isinstance(got.body[name], str) for name in ("error", "errorCode", "executedAt"))


# --- what is visible, and what can be reached ---


async def test_the_environment_is_empty(shop: Workshop) -> None:
    assert await shop.inside("return [Object.keys(process.env), process.env.PATH ?? null]") == [[], None]


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
async def test_addresses_that_are_nobodys_business_are_refused(shop: Workshop, url: str) -> None:
    got = await shop.run(PLAIN, {"url": url})
    assert (got.status, got.body["errorCode"]) == (500, "EGRESS_REFUSED")
    assert got.body["error"]
    assert not shop.api.asked


async def test_a_redirect_to_such_an_address_is_refused(shop: Workshop) -> None:
    shop.api.answers["/x"] = redirect("https://169.254.169.254/latest/meta-data/")
    got = await shop.fetched("/x")
    assert (got.status, got.body["errorCode"]) == (500, "EGRESS_REFUSED")


# --- secrets echoed by upstream ---


@pytest.mark.parametrize(
    "inner", ["", "const text = await response.text(); return new Response(text, response);"]
)
async def test_secrets_that_come_back_are_scrubbed(shop: Workshop, inner: str) -> None:
    await shop.credential("Authorization", f"Bearer {TOKEN}")
    forms = {
        "raw": TOKEN,
        "whole": f"Bearer {TOKEN}",
        "url": quote(TOKEN, safe=""),
        "base64": base64.b64encode(TOKEN.encode()).decode(),
        "hex": TOKEN.encode().hex(),
    }
    shop.api.answers["/x"] = answer(
        f"200 {TOKEN}", JSON, f"X-Echo: {TOKEN}", f"Set-Cookie: t={TOKEN}", body=json.dumps(forms).encode()
    )
    code = (
        "export const wrapper = async ({ url }) =>"
        f" {{ const response = await fetch(url); {inner} return response }}"
    )
    got = await shop.fetched("/x", code=code, dynamic_header_keys=AUTHORIZATION)
    assert shop.api.asked[0].all("authorization") == [f"Bearer {TOKEN}"]
    said = json.dumps(got.body)
    for form in forms.values():
        assert form not in said
    assert got.body["result"]["headers"]["x-echo"] == "[redacted]"


async def test_what_a_wrapper_puts_together_is_scrubbed_too(shop: Workshop) -> None:
    await shop.credential("Authorization", TOKEN)
    half = len(TOKEN) // 2
    shop.api.answers["/1"] = answer(body=TOKEN[:half].encode())
    shop.api.answers["/2"] = answer(body=TOKEN[half:].encode())
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
        ability = await shop.add(code, dynamic_header_keys=AUTHORIZATION)
        got = await shop.execute(ability, {"api": shop.api.url(""), "fail": fail}, "(data) => data")
        assert got.body["success"] is not fail
        assert TOKEN not in f"{got.body} {got.logs} {shop.records}"


# --- another user's ability ---


async def test_anothers_ability_is_as_unknown_as_none(shop: Workshop) -> None:
    other = await shop.new_user()
    theirs = await shop.add(PLAIN, other)
    got = await shop.execute(theirs)
    assert (got.status, got.body["error"], got.body["errorCode"]) == (
        404,
        f"Ability not found: {theirs}",
        "NOT_FOUND",
    )
    shared = await shop.add(PLAIN, other, shared=True)
    assert (await shop.execute(shared, {"url": shop.api.url("/")})).status == 200


async def test_a_shared_ability_runs_with_the_callers_credentials(shop: Workshop) -> None:
    mine, other = shop.user, await shop.new_user()
    shared = await shop.add(PLAIN, other, shared=True, dynamic_header_keys=AUTHORIZATION)
    shop.user = other
    await shop.credential("Authorization", "of-the-other-user")
    shop.user = mine
    assert (await shop.execute(shared, {"url": shop.api.url("/")})).body["errorCode"] == "MISSING_CREDENTIALS"
    await shop.credential("Authorization", TOKEN)
    assert (await shop.execute(shared, {"url": shop.api.url("/")})).status == 200
    assert shop.api.asked[-1].all("authorization") == [TOKEN]
