"""Login abilities, which obtain credentials, and calls that are repeated after a login."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.contract.abilities.harness import HOST, PLAIN, TOKEN, AbilityHarness
from tests.egress.recording_server import RecordedRequest, http_response

from hutch.protocols.abilities.execute import AbilityResponse

pytestmark = pytest.mark.anyio

JSON = "Content-Type: application/json"
KEY = f"{HOST}::Authorization"
NEW = "new-0123456789-token"


def login_code(harness: AbilityHarness) -> str:
    return f"export const wrapper = async () => {{ const r = await fetch('{harness.api.url('/login')}');\
 const t = await r.clone().text(); console.log(t); return r }}"


async def stored(harness: AbilityHarness) -> dict[str, tuple[str, str]]:
    secrets = await harness.vault.secrets(harness.user, [HOST])
    return {secret.credential.key: (secret.credential.kind, secret.value) for secret in secrets}


def answer_login(harness: AbilityHarness, body: bytes = b'{"access_token": "%s"}' % NEW.encode()) -> None:
    headers = (JSON, "X-Token: header-token-1", "Set-Cookie: a=1", "Set-Cookie: sid=cookie-value; Path=/")
    harness.api.responses["/login"] = http_response("200 OK", *headers, body=body)


def accept_only_new(harness: AbilityHarness) -> None:
    async def answer(request: RecordedRequest, writer: asyncio.StreamWriter) -> None:
        is_new = request.all("authorization") == [f"Bearer {NEW}"]
        writer.write(
            http_response("200 OK" if is_new else "401 Unauthorized", body=b"data" if is_new else b"")
        )

    harness.api.responses["/data"] = answer


async def call_dependent(harness: AbilityHarness, login: str) -> AbilityResponse:
    return await harness.fetch("/data", dynamic_header_keys=[KEY], dependency_order=[login])


def targets(harness: AbilityHarness) -> list[str]:
    return [request.target for request in harness.api.requests]


async def test_declared_parts_are_stored_and_redacted(harness: AbilityHarness) -> None:
    answer_login(harness, b'{"list": [{"t": "%s"}], "pin": 7}' % NEW.encode())
    produces = {
        KEY: "body.list[0].t",
        f"{HOST}::pin": {"from": "body.pin", "kind": "query"},
        f"{HOST}::X-Token": "headers.x-token",
        f"{HOST}::sid": {"from": "cookies.sid", "kind": "cookie"},
    }
    ability = await harness.add(login_code(harness), produces=produces)
    got = await harness.execute(ability, {}, "(data) => [...data.list[0].t].join('-') + data.pin")
    assert got.status == 200, got.body
    assert await stored(harness) == {
        "Authorization": ("auth_token", NEW),
        "pin": ("query", "7"),
        "X-Token": ("header", "header-token-1"),
        "sid": ("cookie", "cookie-value"),
    }
    result = got.body["result"]
    assert result["body"] == "[-r-e-d-a-c-t-e-d-][redacted]"
    assert result["storedCredentials"] == list(produces)
    assert got.logs
    for value in (NEW, "header-token-1", "cookie-value"):
        assert value not in str(got)


async def test_missing_part_fails_and_stores_nothing(harness: AbilityHarness) -> None:
    answer_login(harness)
    produces = {KEY: "body.access_token", f"{HOST}::X-Other": "body.other"}
    got = await harness.run(login_code(harness), produces=produces)
    assert (got.status, got.body["errorCode"]) == (500, "WRAPPER_ERROR")
    assert "no text at body.other" in got.body["error"]
    assert NEW not in str(got)
    assert await stored(harness) == {}


@pytest.mark.parametrize("old", [None, f"Bearer {TOKEN}"])
async def test_dependent_call_is_tried_again_after_its_login(
    harness: AbilityHarness, old: str | None
) -> None:
    answer_login(harness)
    accept_only_new(harness)
    if old is not None:
        await harness.credential("Authorization", old)
    login = await harness.add(login_code(harness), produces={KEY: "body.access_token"})
    got = await call_dependent(harness, login)
    assert (got.status, got.body["result"]["body"]) == (200, "data"), got.body
    assert targets(harness) == ["/login", "/data"] if old is None else ["/data", "/login", "/data"]


async def test_call_is_tried_again_once_only(harness: AbilityHarness) -> None:
    answer_login(harness)
    harness.api.responses["/data"] = http_response("401 Unauthorized")
    login = await harness.add(login_code(harness), produces={KEY: "body.access_token"})
    got = await call_dependent(harness, login)
    assert (got.status, got.body["credentialsExpired"]) == (401, True)
    assert targets(harness) == ["/login", "/data"]


@pytest.mark.parametrize(
    "fields",
    [
        {"produces": {}},
        {"produces": {f"{HOST}::X-Other": "body.access_token"}},
        {"produces": {KEY: "body.access_token"}, "input_schema": {"type": "object", "required": ["otp"]}},
    ],
)
async def test_other_dependencies_are_not_run(harness: AbilityHarness, fields: dict[str, Any]) -> None:
    answer_login(harness)
    login = await harness.add(login_code(harness), **fields)
    got = await call_dependent(harness, login)
    assert (got.status, got.body["errorCode"]) == (400, "MISSING_CREDENTIALS")
    assert targets(harness) == []


async def test_failed_login_gives_the_error_of_the_call_and_its_reason(harness: AbilityHarness) -> None:
    harness.api.responses["/login"] = http_response("500 Internal Server Error")
    login = await harness.add(login_code(harness), produces={KEY: "body.access_token"})
    got = await call_dependent(harness, login)
    assert (got.status, got.body["errorCode"]) == (400, "MISSING_CREDENTIALS")
    assert f"The login {login}, which obtains these credentials, failed: " in got.body["error"]
    assert got.body["missingCredentials"] == [KEY]
    await harness.credential("Authorization", f"Bearer {TOKEN}")
    harness.api.responses["/data"] = http_response("401 Unauthorized")
    rejected = await call_dependent(harness, login)
    assert (rejected.status, rejected.body["errorCode"]) == (401, "UPSTREAM_ERROR")
    assert f"The login {login}, which obtains these credentials, failed: " in rejected.body["error"]


async def test_credentials_that_the_login_lacks_are_those_to_store(harness: AbilityHarness) -> None:
    key = f"{HOST}::password"
    login = await harness.add(
        login_code(harness),
        produces={KEY: "body.access_token"},
        dynamic_header_keys=[key],
        credential_kinds={key: "body"},
    )
    got = await call_dependent(harness, login)
    assert got.body["errorCode"] == "MISSING_CREDENTIALS"
    assert (got.body["missingCredentials"], got.body["credentialKinds"]) == ([key], {key: "body"})


async def test_simultaneous_calls_share_one_login(harness: AbilityHarness) -> None:
    answer_login(harness)
    accept_only_new(harness)
    login = await harness.add(login_code(harness), produces={KEY: "body.access_token"})
    ability = await harness.add(PLAIN, dynamic_header_keys=[KEY], dependency_order=[login])
    params = {"url": harness.api.url("/data")}
    answers = await asyncio.gather(*(harness.execute(ability, params) for _ in range(4)))
    assert [got.status for got in answers] == [200] * 4
    assert targets(harness).count("/login") == 1
