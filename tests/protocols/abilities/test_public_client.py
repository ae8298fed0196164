"""Requests and responses in the format of the public ability client (unbrowse-mcp 1.2.1)."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any
from urllib.parse import quote, urlencode

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from tests.protocols.abilities.harness import PROFILE, TOKEN, UserClient, error_message, shared_ability

ID = "twitter_get_user_profile"
KEY = "a passphrase with ü"


class PublicClient:
    """Sends the same requests as the public client, and reads the same fields of the responses."""

    def __init__(self, user: UserClient) -> None:
        self._user = user

    async def list_abilities(self) -> list[dict[str, Any]]:
        body = await self._get("/my/abilities?favorites=false")
        return [self._ability(each) for each in body["abilities"]]

    async def search(self, text: str, *domains: str) -> list[dict[str, Any]]:
        query = {"q": text, "top_k": "12"} | ({"domains": ",".join(domains)} if domains else {})
        body = await self._get(f"/abilities/search?{urlencode(query)}")
        assert body["count"] == len(body["results"])
        return [self._ability(each) for each in body["results"]]

    async def search_public(self, text: str) -> list[dict[str, Any]]:
        body = await self._get(f"/public/abilities?{urlencode({'q': text, 'limit': '30'})}")
        assert body["query"] == text
        return [self._ability(each) for each in body["abilities"]]

    async def get(self, ability_id: str) -> dict[str, Any]:
        return self._ability((await self._get(f"/abilities/{quote(ability_id)}"))["ability"])

    async def store_credentials(self, domain: str, *credentials: dict[str, str]) -> dict[str, Any]:
        response = await self._user.call(
            "POST", "/my/credentials/stream", json={"domain": domain, "credentials": list(credentials)}
        )
        assert response.is_success, response.text
        body: dict[str, Any] = response.json()
        return body

    async def execute(self, ability_id: str, params: dict[str, Any], key: str | None = None) -> Any:
        return await self._user.call(
            "POST",
            f"/my/abilities/{quote(ability_id)}/execute",
            # The client omits `transformCode` if there is none.
            json={"params": params},
            headers={} if key is None else {"X-Credential-Key": key.encode()},
        )

    async def _get(self, path: str) -> dict[str, Any]:
        response = await self._user.get(path)
        assert response.is_success, response.text
        body: dict[str, Any] = response.json()
        assert body["success"] is True
        return body

    def _ability(self, sent: dict[str, Any]) -> dict[str, Any]:
        assert "wrapperCode" not in sent
        assert "staticHeaders" not in sent
        return {
            "id": sent["abilityId"],
            "name": sent["abilityName"],
            "service": sent["serviceName"],
            "domain": sent["domain"],
            "description": sent["description"],
            "input": sent["inputSchema"],
            "needs_credentials": sent["dynamicHeadersRequired"],
            "keys": sent["dynamicHeaderKeys"],
            "dependencies": sent["dependencyOrder"],
            "created": sent["createdAt"],
        }


def encrypted(value: str, key: str = KEY) -> str:
    """Encrypts a credential in the same way as the public client."""
    nonce = bytes(range(12))
    data = AESGCM(hashlib.sha256(key.encode()).digest()).encrypt(nonce, value.encode(), None)
    return json.dumps({"ciphertext": base64.b64encode(data).decode(), "iv": base64.b64encode(nonce).decode()})


async def test_client_reads_own_abilities(bo: UserClient) -> None:
    client = PublicClient(bo)
    await bo.add()
    (listed,) = await client.list_abilities()
    assert (listed["id"], listed["name"]) == (ID, "Get a user's profile")
    assert (listed["service"], listed["domain"]) == ("127.0.0.1", "127.0.0.1")
    assert (listed["needs_credentials"], listed["keys"]) == (True, ["127.0.0.1::Authorization"])
    assert listed["input"]["required"] == ["username"]
    assert await client.search("twitter profile") == [listed]
    assert await client.get(ID) == listed


async def test_search_is_restricted_to_domains(bo: UserClient) -> None:
    client = PublicClient(bo)
    for name in ("api.example.com", "example.org", "An API"):
        keys = ["www.example.net::Authorization"] if name == "An API" else []
        await bo.add(
            ability_id=name.replace(" ", "_"), service_name=name, dynamic_header_keys=keys, static_headers={}
        )
    found = await client.search("twitter", "example.com", "www.example.net")
    assert {each["domain"] for each in found} == {"api.example.com", "www.example.net"}
    assert len(await client.search("twitter")) == 3


async def test_public_abilities_are_those_that_are_shared(bo: UserClient, ann: UserClient) -> None:
    await bo.add(ability_id="private_one", ability_name="Zebra")
    async with shared_ability(ann, "shared_zebra"):
        assert "shared_zebra" in [each["id"] for each in await PublicClient(bo).search_public("zebra")]
        assert "private_one" not in [each["id"] for each in await PublicClient(bo).search_public("zebra")]


async def test_credential_that_the_client_encrypted_is_used_with_its_key(bo: UserClient) -> None:
    client = PublicClient(bo)
    await bo.add()
    stored = await client.store_credentials(
        "127.0.0.1", {"type": "header", "key": "Authorization", "encryptedValue": encrypted(TOKEN)}
    )
    assert (stored["count"], stored["credentials"][0]["credentialKey"]) == (1, "Authorization")
    assert stored["credentials"][0]["hint"] == ""

    response = await client.execute(ID, {"username": "elonmusk"}, KEY)
    assert response.status_code == 200, response.text
    result = response.json()["result"]
    assert (result["statusCode"], result["body"]) == (200, PROFILE)
    assert (result["abilityName"], result["domain"]) == ("Get a user's profile", "127.0.0.1")
    assert bo.ability_server.upstream.seen[-1]["authorization"] == TOKEN

    for key in (None, "another key"):
        refused = await client.execute(ID, {"username": "elonmusk"}, key)
        message = error_message(refused, 400, "MISSING_CREDENTIALS")
        assert "A client has encrypted 127.0.0.1::Authorization" in message
        assert "x-credential-key" in message


async def test_streamed_credentials_are_checked(bo: UserClient) -> None:
    credential = {"type": "header", "key": "Authorization"}
    for credentials, problem in (
        (None, "credentials: expected a list"),
        ([], "credentials: expected a list"),
        ([3], "credentials[0]: expected an object"),
        ([credential], "credentials[0].value: expected either value or encryptedValue"),
        ([{**credential, "encryptedValue": "secret-text"}], "value"),
    ):
        body = {"domain": "127.0.0.1", "credentials": credentials}
        response = await bo.call("POST", "/my/credentials/stream", json=body)
        assert problem in error_message(response, 400, "INVALID_REQUEST")
        assert "secret-text" not in response.text
    # A value that is not encrypted is also accepted, and stored in the same way.
    plain = {"domain": "127.0.0.1", "credentials": [{**credential, "value": TOKEN}]}
    stored = (await bo.call("POST", "/my/credentials/stream", json=plain)).json()
    assert stored["credentials"][0]["hint"] == TOKEN[-4:]
