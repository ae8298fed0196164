"""The specification's answers: their shapes, their words and their statuses."""

from __future__ import annotations

import re

import pytest
from tests.contract.abilities.workshop import HERE, PLAIN, THROWING, TOKEN, Workshop
from tests.egress.upstreams import answer

pytestmark = pytest.mark.anyio

MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
JSON = "Content-Type: application/json"


async def test_a_success_has_status_body_headers_and_time(shop: Workshop) -> None:
    shop.api.answers["/x"] = answer("200 OK", JSON, "X-A: 1", body=b'{"a": [1, "\xc3\xa9"]}')
    got = await shop.fetched("/x")
    result = got.body["result"]
    assert got.status == 200
    assert got.body.keys() == {"success", "result"}
    assert got.body["success"] is True
    assert result.keys() == {"statusCode", "body", "headers", "executedAt", "executionTimeMs"}
    assert (result["statusCode"], result["body"]) == (200, {"a": [1, "é"]})
    assert result["headers"]["content-type"] == "application/json"
    assert result["headers"]["x-a"] == "1"
    assert MOMENT.fullmatch(result["executedAt"])
    assert result["executionTimeMs"] > 0


async def test_an_unknown_ability_is_not_found(shop: Workshop) -> None:
    got = await shop.execute("no_such_ability")
    assert got.status == 404
    assert got.body.pop("executedAt")
    assert got.body == {
        "success": False,
        "error": "Ability not found: no_such_ability",
        "errorCode": "NOT_FOUND",
    }


async def test_missing_dependencies_are_all_named_in_order(shop: Workshop) -> None:
    there = await shop.add(PLAIN)
    got = await shop.run(
        PLAIN,
        dependency_order=[there, "first", "second"],
        dependencies={"missing": [{"abilityId": "third"}, {"ability_id": there}]},
    )
    assert got.status == 400
    assert got.body["error"] == "Missing dependencies: third, first, second"
    assert got.body["errorCode"] == "MISSING_DEPENDENCIES"
    assert got.body["executedAt"]
    assert not shop.api.asked
    assert not shop.records


async def test_missing_credentials_are_all_named_with_their_domains(shop: Workshop) -> None:
    await shop.credential("Authorization", TOKEN)
    keys = [f"{HERE}::Authorization", f"{HERE}::Cookie", "api.example.com::apikey", "api.example.com::x"]
    got = await shop.run(PLAIN, dynamic_header_keys=keys)
    assert got.status == 400
    assert got.body["error"] == (
        f"Missing credentials for headers: {HERE}::Cookie, api.example.com::apikey, api.example.com::x."
        f" Store credentials for: {HERE}, api.example.com"
    )
    assert got.body["errorCode"] == "MISSING_CREDENTIALS"
    assert got.body["executedAt"]
    assert not shop.api.asked
    assert not shop.records


async def test_parameters_are_checked_before_anything_runs(shop: Workshop) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    got = await shop.run(PLAIN, {"n": "x"}, input_schema=schema, dynamic_header_keys=["a.example::b"])
    assert (got.status, got.body["errorCode"]) == (400, "INVALID_REQUEST")
    assert "params.n" in got.body["error"]
    assert not shop.records


async def test_what_upstream_answers_is_passed_on_with_its_status(shop: Workshop) -> None:
    shop.api.answers["/x"] = answer("404 Not Found", JSON, body=b'{"message": "no such user"}')
    got = await shop.fetched("/x")
    assert got.status == 404
    assert got.body["success"] is False
    assert got.body["errorCode"] == "UPSTREAM_ERROR"
    assert got.body["error"] == "The API answered 404 Not Found"
    assert got.body["result"]["statusCode"] == 404
    assert got.body["result"]["body"] == {"message": "no such user"}
    assert MOMENT.fullmatch(got.body["executedAt"])
    assert "credentialsExpired" not in got.body
    assert "loginAbilities" not in got.body


async def test_what_a_wrapper_throws_is_its_error(shop: Workshop) -> None:
    got = await shop.run("export async function wrapper() {\n  throw new Error('no luck')\n}")
    assert got.status == 500
    assert (got.body["error"], got.body["errorCode"]) == ("no luck", "WRAPPER_ERROR")
    assert got.body["errorLine"] == 2
    assert got.body["executedAt"] == got.body["result"]["executedAt"]


async def test_a_refused_credential_is_marked_and_the_logins_are_offered(shop: Workshop) -> None:
    credential = await shop.credential("Authorization", TOKEN)
    login = await shop.add(PLAIN, service_name="acme", ability_name="Login to acme", description="Logs in.")
    await shop.add(PLAIN, service_name="acme", ability_name="List things of acme")
    await shop.add(PLAIN, service_name="acme", ability_name="Login again", requires_dynamic_headers=True)
    await shop.add(PLAIN, service_name="other", ability_name="Login to other")
    shop.api.answers["/x"] = answer("401 Unauthorized", JSON, body=b"{}")
    got = await shop.fetched("/x", service_name="acme", dynamic_header_keys=[f"{HERE}::Authorization"])
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
    now = await shop.state(credential)
    assert (now.state, now.cause) == ("expired", f"{HERE}:{shop.api.port} answered 401")
    assert now.expired_at is not None


async def test_without_a_login_ability_none_is_offered(shop: Workshop) -> None:
    await shop.credential("Authorization", TOKEN)
    shop.api.answers["/x"] = answer("403 Forbidden")
    got = await shop.fetched("/x", dynamic_header_keys=[f"{HERE}::Authorization"])
    assert got.status == 403
    assert got.body["error"] == "Authentication failed (403). Credentials marked as expired."
    assert got.body["loginAbilities"] == []


async def test_a_401_for_nobody_marks_nothing(shop: Workshop) -> None:
    credential = await shop.credential("Authorization", TOKEN)
    shop.api.answers["/x"] = answer("401 Unauthorized")
    got = await shop.fetched("/x")
    assert (got.status, got.body["error"]) == (401, "Authentication failed (401).")
    assert "credentialsExpired" not in got.body
    assert (await shop.state(credential)).state == "active"


async def test_a_body_that_is_too_long_is_cut_and_says_so(shop: Workshop) -> None:
    text = '["' + "é" * 40_000 + '"]'
    shop.api.answers["/x"] = answer("200 OK", JSON, body=text.encode())
    result = (await shop.fetched("/x")).body["result"]
    mark = "\n\n[... Response truncated. Original length: 40004 characters]"
    assert result["body"] == text[:30_000] + mark
    assert (result["truncated"], result["originalLength"]) == (True, 40_004)


async def test_a_body_of_just_the_limit_is_whole(shop: Workshop) -> None:
    shop.api.answers["/x"] = answer("200 OK", body=b"x" * 29_998)
    result = (await shop.fetched("/x")).body["result"]
    assert result["body"] == "x" * 29_998
    assert "truncated" not in result
    shop.api.answers["/x"] = answer("200 OK", body=b"x" * 29_999)
    assert (await shop.fetched("/x")).body["result"]["originalLength"] == 30_001


async def test_a_run_is_recorded_with_its_requests_and_without_its_secrets(shop: Workshop) -> None:
    await shop.credential("Authorization", TOKEN)
    code = "export const wrapper = ({ url }) => fetch(url + '?q=private')"
    params = {"url": shop.api.url(f"/x/{TOKEN}")}
    got = await shop.run(code, params, dynamic_header_keys=[f"{HERE}::Authorization"])
    (record,) = shop.records
    assert (record.door, record.owner, record.outcome) == ("abilities", shop.user.id, "ok")
    (hop,) = record.requests
    assert (hop.method, hop.host, hop.path, hop.status) == (
        "GET",
        f"{HERE}:{shop.api.port}",
        "/x/[redacted]",
        200,
    )
    assert hop.received_bytes > 0
    assert hop.ms > 0
    assert got.hops == [hop]
    assert got.run_id == record.run_id
    assert TOKEN not in str(record)
    assert "private" not in str(record)


@pytest.mark.parametrize("code", [PLAIN, THROWING])
async def test_when_to_come_back_is_passed_on(shop: Workshop, code: str) -> None:
    shop.api.answers["/x"] = answer("429 Too Many Requests", "Retry-After: 17")
    got = await shop.fetched("/x", code=code)
    assert (got.status, got.headers) == (429, {"Retry-After": "17"})
    assert got.body["result"]["headers"]["retry-after"] == "17"
    assert got.body["errorCode"] == "UPSTREAM_ERROR"
