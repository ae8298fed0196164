"""Responses of the specification: formats, messages and statuses."""

from __future__ import annotations

import re

import pytest
from tests.contract.abilities.harness import HOST, PLAIN, THROWING, TOKEN, AbilityHarness
from tests.egress.recording_server import http_response

pytestmark = pytest.mark.anyio

TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
JSON = "Content-Type: application/json"


async def test_success_has_status_body_headers_and_duration(harness: AbilityHarness) -> None:
    harness.api.responses["/x"] = http_response("200 OK", JSON, "X-A: 1", body=b'{"a": [1, "\xc3\xa9"]}')
    got = await harness.fetch("/x")
    result = got.body["result"]
    assert got.status == 200
    assert got.body.keys() == {"success", "result"}
    assert got.body["success"] is True
    assert result.keys() == {
        *("statusCode", "body", "headers", "abilityName", "domain", "executedAt", "executionTimeMs")
    }
    assert (result["abilityName"], result["domain"]) == ("A name", None)
    assert (result["statusCode"], result["body"]) == (200, {"a": [1, "é"]})
    assert result["headers"]["content-type"] == "application/json"
    assert result["headers"]["x-a"] == "1"
    assert TIMESTAMP.fullmatch(result["executedAt"])
    assert result["executionTimeMs"] > 0


async def test_unknown_ability_is_not_found(harness: AbilityHarness) -> None:
    got = await harness.execute("no_such_ability")
    assert got.status == 404
    assert got.body.pop("executedAt")
    assert got.body == {
        "success": False,
        "error": "Ability not found: no_such_ability",
        "errorCode": "NOT_FOUND",
    }


async def test_missing_dependencies_are_all_named_in_order(harness: AbilityHarness) -> None:
    existing = await harness.add(PLAIN)
    got = await harness.run(
        PLAIN,
        dependency_order=[existing, "first", "second"],
        dependencies={"missing": [{"abilityId": "third"}, {"ability_id": existing}]},
    )
    assert got.status == 400
    assert got.body["error"] == "Missing dependencies: third, first, second"
    assert got.body["errorCode"] == "MISSING_DEPENDENCIES"
    assert got.body["executedAt"]
    assert not harness.api.requests
    assert not harness.records


async def test_missing_credentials_are_all_named_with_their_domains(harness: AbilityHarness) -> None:
    await harness.credential("Authorization", TOKEN)
    keys = [f"{HOST}::Authorization", f"{HOST}::Cookie", "api.example.com::apikey", "api.example.com::x"]
    got = await harness.run(PLAIN, dynamic_header_keys=keys)
    assert got.status == 400
    assert got.body["error"] == (
        f"Missing credentials for headers: {HOST}::Cookie, api.example.com::apikey, api.example.com::x."
        f" Store credentials for: {HOST}, api.example.com"
    )
    assert got.body["errorCode"] == "MISSING_CREDENTIALS"
    assert got.body["executedAt"]
    assert not harness.api.requests
    assert not harness.records


async def test_parameters_are_checked_before_anything_runs(harness: AbilityHarness) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    got = await harness.run(PLAIN, {"n": "x"}, input_schema=schema, dynamic_header_keys=["a.example::b"])
    assert (got.status, got.body["errorCode"]) == (400, "INVALID_REQUEST")
    assert "params.n" in got.body["error"]
    assert not harness.records


async def test_upstream_error_is_returned_with_its_status(harness: AbilityHarness) -> None:
    harness.api.responses["/x"] = http_response("404 Not Found", JSON, body=b'{"message": "no such user"}')
    got = await harness.fetch("/x")
    assert got.status == 404
    assert got.body["success"] is False
    assert got.body["errorCode"] == "UPSTREAM_ERROR"
    assert got.body["error"] == "The API returned 404 Not Found"
    assert got.body["result"]["statusCode"] == 404
    assert got.body["result"]["body"] == {"message": "no such user"}
    assert TIMESTAMP.fullmatch(got.body["executedAt"])
    assert "credentialsExpired" not in got.body
    assert "loginAbilities" not in got.body


async def test_error_thrown_by_a_wrapper_is_returned(harness: AbilityHarness) -> None:
    got = await harness.run("export async function wrapper() {\n  throw new Error('no luck')\n}")
    assert got.status == 500
    assert (got.body["error"], got.body["errorCode"]) == ("no luck", "WRAPPER_ERROR")
    assert got.body["errorLine"] == 2
    assert got.body["executedAt"] == got.body["result"]["executedAt"]


async def test_rejected_credential_is_marked_and_login_abilities_are_listed(harness: AbilityHarness) -> None:
    credential = await harness.credential("Authorization", TOKEN)
    login = await harness.add(
        PLAIN, service_name="acme", ability_name="Login to acme", description="Logs in."
    )
    await harness.add(PLAIN, service_name="acme", ability_name="List things of acme")
    await harness.add(PLAIN, service_name="acme", ability_name="Login again", requires_dynamic_headers=True)
    await harness.add(PLAIN, service_name="other", ability_name="Login to other")
    harness.api.responses["/x"] = http_response("401 Unauthorized", JSON, body=b"{}")
    got = await harness.fetch("/x", service_name="acme", dynamic_header_keys=[f"{HOST}::Authorization"])
    assert got.status == 401
    assert got.body["success"] is False
    assert got.body["credentialsExpired"] is True
    assert got.body["result"]["statusCode"] == 401
    assert got.body["error"] == (
        "Authentication failed (401). Credentials marked as expired."
        f" Please authenticate using one of these login abilities: {login}"
    )
    assert got.body["loginAbilities"] == [{"id": login, "name": "Login to acme", "description": "Logs in."}]
    assert got.body["errorCode"] == "UPSTREAM_ERROR"
    assert got.body["executedAt"]
    now = await harness.state(credential)
    assert (now.state, now.cause) == ("expired", f"{HOST}:{harness.api.port} answered 401")
    assert now.expired_at is not None


async def test_no_login_ability_gives_an_empty_list(harness: AbilityHarness) -> None:
    await harness.credential("Authorization", TOKEN)
    harness.api.responses["/x"] = http_response("403 Forbidden")
    got = await harness.fetch("/x", dynamic_header_keys=[f"{HOST}::Authorization"])
    assert got.status == 403
    assert got.body["error"] == "Authentication failed (403). Credentials marked as expired."
    assert got.body["loginAbilities"] == []


async def test_401_without_credentials_marks_nothing(harness: AbilityHarness) -> None:
    credential = await harness.credential("Authorization", TOKEN)
    harness.api.responses["/x"] = http_response("401 Unauthorized")
    got = await harness.fetch("/x")
    assert (got.status, got.body["error"]) == (401, "Authentication failed (401).")
    assert "credentialsExpired" not in got.body
    assert (await harness.state(credential)).state == "active"


async def test_long_body_is_truncated_and_marked(harness: AbilityHarness) -> None:
    text = '["' + "é" * 40_000 + '"]'
    harness.api.responses["/x"] = http_response("200 OK", JSON, body=text.encode())
    result = (await harness.fetch("/x")).body["result"]
    mark = "\n\n[... Response truncated. Original length: 40004 characters]"
    assert result["body"] == text[:30_000] + mark
    assert (result["truncated"], result["originalLength"]) == (True, 40_004)


async def test_body_at_the_limit_is_complete(harness: AbilityHarness) -> None:
    harness.api.responses["/x"] = http_response("200 OK", body=b"x" * 29_998)
    result = (await harness.fetch("/x")).body["result"]
    assert result["body"] == "x" * 29_998
    assert "truncated" not in result
    harness.api.responses["/x"] = http_response("200 OK", body=b"x" * 29_999)
    assert (await harness.fetch("/x")).body["result"]["originalLength"] == 30_001


async def test_run_record_has_requests_and_no_secrets(harness: AbilityHarness) -> None:
    await harness.credential("Authorization", TOKEN)
    code = "export const wrapper = ({ url }) => fetch(url + '?q=private')"
    params = {"url": harness.api.url(f"/x/{TOKEN}")}
    got = await harness.run(code, params, dynamic_header_keys=[f"{HOST}::Authorization"])
    (record,) = harness.records
    assert (record.protocol, record.owner, record.outcome) == ("abilities", harness.user.id, "ok")
    (hop,) = record.requests
    place = f"{HOST}:{harness.api.port}", "/x/[redacted]"
    assert (hop["method"], hop["host"], hop["path"], hop["status"]) == ("GET", *place, 200)
    assert hop["received_bytes"] > 0
    assert hop["ms"] > 0
    assert hop["start_ms"] > 0
    [entry] = got.request_log
    assert (entry.host, entry.path) == place
    assert got.run_id == record.run_id
    assert TOKEN not in str(record)
    assert "private" not in str(record)


@pytest.mark.parametrize("code", [PLAIN, THROWING])
async def test_retry_after_is_passed_on(harness: AbilityHarness, code: str) -> None:
    harness.api.responses["/x"] = http_response("429 Too Many Requests", "Retry-After: 17")
    got = await harness.fetch("/x", code=code)
    assert (got.status, got.headers) == (429, {"Retry-After": "17"})
    assert got.body["result"]["headers"]["retry-after"] == "17"
    assert got.body["errorCode"] == "UPSTREAM_ERROR"
