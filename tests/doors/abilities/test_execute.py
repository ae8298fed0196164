"""An ability executed over HTTP, from its being added to the specification's own examples."""

from __future__ import annotations

import shlex

import httpx2
import pytest
from tests.doors.abilities.towns import MARK, PROFILE, TOKEN, Citizen, failed, shared

# As the specification prints them.
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


async def curl(command: str, citizen: Citizen) -> httpx2.Response:
    """What curl does when it is typed like this, at the server of the test and with the key of its user."""
    words = iter(shlex.split(command.replace("\\\n", " ").replace("YOUR_API_KEY", citizen.secret)))
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
    port = httpx2.URL(citizen.town.server.url).port
    url = url.replace(":4111/", f":{port}/")
    return await citizen.town.client.request(method, url, headers=headers, content=body.encode())


@pytest.fixture
async def ready(bo: Citizen) -> Citizen:
    """With an ability and the credential that it needs."""
    assert (await bo.add()).status_code == 201
    body = {"domain": "127.0.0.1", "credentialKey": "Authorization", "value": TOKEN}
    assert (await bo.call("POST", "/my/credentials", json=body)).status_code == 201
    return bo


async def test_the_specifications_first_example_works_as_printed(ready: Citizen) -> None:
    response = await curl(PLAIN, ready)
    assert response.status_code == 200, response.text
    body = response.json()
    assert body["success"] is True
    result = body["result"]
    assert (result["statusCode"], result["body"]) == (200, PROFILE)
    assert result["headers"]["content-type"] == "application/json"
    assert result["executedAt"].endswith("Z")
    seen = ready.town.upstream.seen[-1]
    assert (seen["authorization"], seen["x-client"]) == (TOKEN, "static-value-of-a-header")


async def test_the_specifications_second_example_works_as_printed(ready: Citizen) -> None:
    response = await curl(TRANSFORMED, ready)
    assert response.status_code == 200, response.text
    assert response.json()["result"]["body"] == {"name": "Elon Musk", "followers": 211}


async def test_the_public_clients_path_does_the_same(ready: Citizen) -> None:
    response = await ready.call(
        "POST", f"/my/abilities/{ID}/execute", json={"params": {"username": "elonmusk"}}
    )
    assert response.json()["result"]["body"] == PROFILE


@pytest.mark.parametrize("body", [{}, {"params": None}, {"params": {"username": 3}}])
async def test_parameters_are_held_against_the_schema_before_anything_runs(
    ready: Citizen, body: dict[str, object]
) -> None:
    before = len(ready.town.upstream.seen)
    response = await ready.call("POST", f"/abilities/{ID}/execute", json=body)
    message = failed(response, 400, "INVALID_REQUEST")
    assert message.startswith("params")
    assert "username" in message
    assert len(ready.town.upstream.seen) == before


async def test_missing_credentials_are_named(bo: Citizen) -> None:
    await bo.add()
    response = await curl(PLAIN, bo)
    message = failed(response, 400, "MISSING_CREDENTIALS")
    assert "127.0.0.1::Authorization" in message


async def test_what_the_api_refuses_keeps_its_status_and_shows_no_code(ready: Citizen) -> None:
    response = await ready.call("POST", f"/abilities/{ID}/execute", json={"params": {"username": "nobody"}})
    body = response.json()
    assert body["success"] is False
    assert body["error"]
    assert body["errorCode"]
    assert MARK not in response.text
    assert TOKEN not in response.text


async def test_a_shared_ability_runs_with_the_callers_own_credentials(ready: Citizen, ann: Citizen) -> None:
    asked = {"params": {"username": "elonmusk"}}
    path = "/abilities/everybodys/execute"
    async with shared(ready, "everybodys"):
        failed(await ann.call("POST", path, json=asked), 400, "MISSING_CREDENTIALS")
        token = "Bearer anns-own-token-0123456789"
        body = {"domain": "127.0.0.1", "credentialKey": "Authorization", "value": token}
        assert (await ann.call("POST", "/my/credentials", json=body)).status_code == 201
        assert (await ann.call("POST", path, json=asked)).status_code == 200
    assert ann.town.upstream.seen[-1]["authorization"] == token


async def test_runs_are_listed_for_the_user_alone(ready: Citizen, ann: Citizen) -> None:
    await curl(PLAIN, ready)
    while not (runs := (await ready.get("/my/runs")).json()["runs"]):
        pass
    assert {each["door"] for each in runs} == {"abilities"}
    assert (await ann.get("/my/runs")).json()["runs"] == []
