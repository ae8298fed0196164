"""Executing abilities over HTTP, including the examples of the specification."""

from __future__ import annotations

import shlex

import httpx2
import pytest
from tests.protocols.abilities.harness import (
    MARK,
    PROFILE,
    TOKEN,
    UserClient,
    error_message,
    shared_ability,
)

# An example that is copied from the specification.
PLAIN = """\
curl -X POST http://localhost:4111/abilities/twitter_get_user_profile/execute \\
  -H "Authorization: Bearer YOUR_API_KEY" \\
  -H "Content-Type: application/json" \\
  -d '{
    "params": {
      "username": "elonmusk"
    }
  }'
"""
TRANSFORMED = """\
curl -X POST http://localhost:4111/abilities/twitter_get_user_profile/execute \\
  -H "Authorization: Bearer YOUR_API_KEY" \\
  -H "Content-Type: application/json" \\
  -d '{
    "params": {
      "username": "elonmusk"
    },
    "transformCode": "(data) => ({ name: data.name, followers: data.followers_count })"
  }'
"""
ID = "twitter_get_user_profile"


async def curl(command: str, client: UserClient) -> httpx2.Response:
    """Runs a curl command against the test's server, with the key of this user."""
    words = iter(shlex.split(command.replace("\\\n", " ").replace("YOUR_API_KEY", client.secret)))
    assert next(words) == "curl"
    method, url, body, headers = "", "", "", {}
    for word in words:
        match word:
            case "-X":
                method = next(words)
            case "-H":
                name, _, value = next(words).partition(": ")
                headers[name] = value
            case "-d":
                body = next(words)
            case _:
                url = word
    port = httpx2.URL(client.ability_server.server.url).port
    url = url.replace(":4111/", f":{port}/")
    return await client.ability_server.client.request(method, url, headers=headers, content=body.encode())


@pytest.fixture
async def ready(bo: UserClient) -> UserClient:
    """A user with an ability and its credential."""
    assert (await bo.add()).status_code == 201
    body = {"domain": "127.0.0.1", "credentialKey": "Authorization", "value": TOKEN}
    assert (await bo.call("POST", "/my/credentials", json=body)).status_code == 201
    return bo


async def test_first_example_of_the_specification_works_verbatim(ready: UserClient) -> None:
    response = await curl(PLAIN, ready)
    assert response.status_code == 200, response.text
    body = response.json()
    assert body["success"] is True
    result = body["result"]
    assert (result["statusCode"], result["body"]) == (200, PROFILE)
    assert result["headers"]["content-type"] == "application/json"
    assert result["executedAt"].endswith("Z")
    seen = ready.ability_server.upstream.seen[-1]
    assert (seen["authorization"], seen["x-client"]) == (TOKEN, "static-value-of-a-header")


async def test_second_example_of_the_specification_works_verbatim(ready: UserClient) -> None:
    response = await curl(TRANSFORMED, ready)
    assert response.status_code == 200, response.text
    assert response.json()["result"]["body"] == {"name": "Elon Musk", "followers": 211}


async def test_path_of_the_public_client_works_too(ready: UserClient) -> None:
    response = await ready.call(
        "POST", f"/my/abilities/{ID}/execute", json={"params": {"username": "elonmusk"}}
    )
    assert response.json()["result"]["body"] == PROFILE


@pytest.mark.parametrize("body", [{}, {"params": None}, {"params": {"username": 3}}])
async def test_parameters_are_validated_before_anything_runs(
    ready: UserClient, body: dict[str, object]
) -> None:
    before = len(ready.ability_server.upstream.seen)
    response = await ready.call("POST", f"/abilities/{ID}/execute", json=body)
    message = error_message(response, 400, "INVALID_REQUEST")
    assert message.startswith("params")
    assert "username" in message
    assert len(ready.ability_server.upstream.seen) == before


async def test_missing_credentials_are_named(bo: UserClient) -> None:
    await bo.add()
    response = await curl(PLAIN, bo)
    message = error_message(response, 400, "MISSING_CREDENTIALS")
    assert "127.0.0.1::Authorization" in message


async def test_api_error_shows_neither_code_nor_secrets(ready: UserClient) -> None:
    response = await ready.call("POST", f"/abilities/{ID}/execute", json={"params": {"username": "unknown"}})
    body = response.json()
    assert body["success"] is False
    assert body["error"]
    assert body["errorCode"]
    assert MARK not in response.text
    assert TOKEN not in response.text


async def test_shared_ability_uses_the_callers_credentials(ready: UserClient, ann: UserClient) -> None:
    request = {"params": {"username": "elonmusk"}}
    path = "/abilities/shared_profile/execute"
    async with shared_ability(ready, "shared_profile"):
        error_message(await ann.call("POST", path, json=request), 400, "MISSING_CREDENTIALS")
        token = "Bearer anns-own-token-0123456789"
        body = {"domain": "127.0.0.1", "credentialKey": "Authorization", "value": token}
        assert (await ann.call("POST", "/my/credentials", json=body)).status_code == 201
        assert (await ann.call("POST", path, json=request)).status_code == 200
    assert ann.ability_server.upstream.seen[-1]["authorization"] == token


async def test_runs_are_listed_for_their_user_only(ready: UserClient, ann: UserClient) -> None:
    await curl(PLAIN, ready)
    while not (runs := (await ready.get("/my/runs")).json()["runs"]):
        pass
    assert {each["door"] for each in runs} == {"abilities"}
    assert (await ann.get("/my/runs")).json()["runs"] == []
