"""Routes for abilities and credentials: they store them, show them without secrets, and keep them private to
their user.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.protocols.abilities.harness import (
    MARK,
    TOKEN,
    AbilityServer,
    UserClient,
    ability,
    error_message,
    same_response,
    shared_ability,
)
from tests.support.openapi import OpenApiChecker

from hutch.protocols.abilities import openapi

ID = "twitter_get_user_profile"
OWN = f"/my/abilities/{ID}"


async def test_ability_is_added_shown_replaced_and_removed(bo: UserClient) -> None:
    added = await bo.add()
    assert added.status_code == 201
    stored = added.json()["ability"]
    assert (stored["version"], stored["own"], stored["shared"]) == (1, True, False)
    assert (await bo.get(OWN)).json() == {"success": True, "ability": stored}
    assert (await bo.get(f"/abilities/{ID}")).json() == {"success": True, "ability": stored}
    assert (await bo.get("/my/abilities")).json() == {"success": True, "count": 1, "abilities": [stored]}

    replaced = await bo.call("PUT", OWN, json=ability(description="Newer."))
    assert replaced.status_code == 200
    newer = replaced.json()["ability"]
    assert (newer["version"], newer["description"], newer["created_at"]) == (
        2,
        "Newer.",
        stored["created_at"],
    )

    assert (await bo.call("DELETE", OWN)).json() == {
        "success": True,
        "ability_id": ID,
        "abilityId": ID,
    }
    error_message(await bo.call("DELETE", OWN), 404, "NOT_FOUND")
    assert (await bo.get("/my/abilities")).json()["abilities"] == []


async def test_add_refuses_an_existing_id_and_put_creates_a_missing_one(bo: UserClient) -> None:
    assert (await bo.call("PUT", OWN, json=ability())).status_code == 201
    message = error_message(await bo.add(), 409, "CONFLICT")
    assert f"PUT {OWN}" in message


async def test_another_users_ability_looks_like_a_missing_one(bo: UserClient, ann: UserClient) -> None:
    await bo.add()
    for method, path in (
        ("GET", f"/abilities/{ID}"),
        ("GET", OWN),
        ("DELETE", OWN),
        ("POST", f"/abilities/{ID}/execute"),
        ("POST", f"{OWN}/execute"),
    ):
        body = {"json": {"params": {"username": "x"}}} if method == "POST" else {}
        foreign = await ann.call(method, path, **body)
        assert error_message(foreign, 404, "NOT_FOUND") == f"Ability not found: {ID}"
        unknown = await ann.call(method, path.replace(ID, "missing"), **body)
        assert unknown.content.replace(b"missing", ID.encode())[:60] == foreign.content[:60]
        await bo.call("DELETE", OWN)
        gone = await ann.call(method, path, **body)
        assert same_response(gone, foreign)
        await bo.add()
    assert (await ann.get("/my/abilities")).json()["abilities"] == []
    assert (await ann.get("/abilities/search?q=twitter")).json()["abilities"] == []
    # Another user can have an ability with the same id.
    assert (await ann.add()).status_code == 201
    assert (await bo.call("DELETE", OWN)).status_code == 200
    assert (await ann.get(OWN)).status_code == 200


async def test_responses_contain_neither_code_nor_header_values(bo: UserClient) -> None:
    coded = [{"key": "127.0.0.1::x-key", "value_code": "() => 'static-value-of-a-header'"}]
    answers = [
        await bo.add(),
        await bo.add(),
        await bo.add(ability_id="coded", static_headers=coded),
        await bo.add(ability_id="broken", input_schema=3),
        await bo.call("PUT", OWN, json=ability()),
        await bo.get("/my/abilities"),
        await bo.get(OWN),
        await bo.get(f"/abilities/{ID}"),
        await bo.get("/abilities/search?q=twitter+profile"),
        await bo.call("POST", f"/abilities/{ID}/execute", json={"params": {}}),
        await bo.get("/abilities/openapi.json"),
        await bo.call("DELETE", OWN),
    ]
    for answer in answers:
        assert MARK not in answer.text
        assert "static-value-of-a-header" not in answer.text
    assert (await bo.get("/my/abilities/coded")).json()["ability"]["static_header_keys"] == [
        "127.0.0.1::x-key"
    ]


async def test_invalid_ability_is_refused_with_every_problem_and_not_stored(bo: UserClient) -> None:
    wrong = {"ability_id": "x", "dynamic_header_keys": [3], "input_schema": {"type": 3}}
    for method, path in (("POST", "/my/abilities"), ("PUT", "/my/abilities/x")):
        response = await bo.call(method, path, json=wrong)
        message = error_message(response, 400, "INVALID_REQUEST")
        problems = response.json()["error"]["problems"]
        fields = [each.partition(":")[0] for each in problems]
        assert fields == ["service_name", "wrapper_code", "dynamic_header_keys[0]", "input_schema"]
        assert all(each in message for each in problems)
    assert (await bo.get("/my/abilities")).json()["count"] == 0


async def test_only_the_operator_can_share(bo: UserClient) -> None:
    assert "hutch ability add --shared" in error_message(await bo.add(shared=True), 403, "FORBIDDEN")


async def test_shared_ability_is_visible_to_all_and_changed_by_its_owner_only(
    bo: UserClient, ann: UserClient
) -> None:
    async with shared_ability(bo, "shared_one"):
        seen = (await ann.get("/abilities/shared_one")).json()["ability"]
        assert (seen["own"], seen["shared"]) == (False, True)
        error_message(await ann.get("/my/abilities/shared_one"), 404, "NOT_FOUND")
        error_message(await ann.call("DELETE", "/my/abilities/shared_one"), 404, "NOT_FOUND")
        changed = ability(ability_id="shared_one", description="Newer.")
        assert (await bo.call("PUT", "/my/abilities/shared_one", json=changed)).json()["ability"]["shared"]
        assert (await ann.get("/abilities/shared_one")).json()["ability"]["description"] == "Newer."


async def test_abilities_are_found_by_description(bo: UserClient) -> None:
    await bo.add(
        ability_id="login", ability_name="Log in", description="Gets a session.", service_name="shop"
    )
    await bo.add(
        ability_id="logout", ability_name="Log out", description="Ends a session.", service_name="shop"
    )
    found = (await bo.get("/abilities/search", params={"q": "login shop", "top_k": "1"})).json()
    assert (found["count"], found["query"]) == (1, "login shop")
    assert found["abilities"][0]["ability_id"] == "login"
    error_message(await bo.get("/abilities/search"), 400, "INVALID_REQUEST")
    error_message(await bo.get("/abilities/search?q=%20"), 400, "INVALID_REQUEST")
    for wrong in ("0", "-1", "x", "101", "1e1", "9" * 50):
        message = error_message(await bo.get(f"/abilities/search?q=x&top_k={wrong}"), 400, "INVALID_REQUEST")
        assert message.startswith("top_k: expected a number from 1 to 100")


async def test_lists_come_in_pages(bo: UserClient) -> None:
    for name in ("a", "b", "c"):
        await bo.add(ability_id=name)
    first = (await bo.get("/my/abilities?limit=2")).json()
    assert [each["ability_id"] for each in first["abilities"]] == ["a", "b"]
    rest = (await bo.get("/my/abilities", params={"limit": 2, "after": first["next"]})).json()
    assert [each["ability_id"] for each in rest["abilities"]] == ["c"]
    assert "next" not in rest


@pytest.mark.parametrize("name", ["a%00b", "a%0Ab", "%ED%A0%80", "a" * 300, "..%2f..", "a b", "%F0%9F%8C%8D"])
async def test_impossible_ids_return_404(bo: UserClient, name: str) -> None:
    for method, path in (("GET", f"/abilities/{name}"), ("POST", f"/abilities/{name}/execute")):
        response = await bo.call(method, path, json={"params": {}})
        assert response.status_code == 404


# --- credentials ---


async def test_credential_value_is_never_returned(bo: UserClient, ann: UserClient) -> None:
    body = {"domain": "API.Example.com", "credentialKey": "Authorization", "value": TOKEN}
    added = await bo.call("POST", "/my/credentials", json=body)
    assert added.status_code == 201, added.text
    stored = added.json()["credential"]
    assert (stored["domain"], stored["credentialType"], stored["credentialKey"]) == (
        "api.example.com",
        "header",
        "Authorization",
    )
    assert (stored["state"], stored["hint"]) == ("active", TOKEN[-4:])
    listed = await bo.get("/my/credentials")
    assert (listed.json()["count"], listed.json()["credentials"][0]["credentialKey"]) == (1, "Authorization")
    grouped = await bo.get("/my/credentials?grouped=true")
    assert [*grouped.json()["credentials"]] == ["api.example.com"]
    of_domain = await bo.get("/my/credentials/API.example.com")
    assert (of_domain.json()["domain"], of_domain.json()["count"]) == ("api.example.com", 1)
    for answer in (added, listed, grouped, of_domain):
        assert TOKEN not in answer.text
        assert TOKEN.removeprefix("Bearer ") not in answer.text
        assert "sealed" not in answer.text
    assert (await ann.get("/my/credentials/api.example.com")).json()["count"] == 0
    assert (await ann.call("DELETE", "/my/credentials/api.example.com")).json()["deletedCount"] == 0
    removed = await bo.call("DELETE", "/my/credentials/api.example.com")
    assert removed.json() == {"success": True, "domain": "api.example.com", "deletedCount": 1}
    assert (await bo.get("/my/credentials")).json()["credentials"] == []


async def test_single_credential_of_a_domain_can_be_removed(bo: UserClient) -> None:
    for key in ("Authorization", "Cookie"):
        body = {"domain": "api.example.com", "credentialKey": f"api.example.com::{key}", "value": TOKEN}
        assert (await bo.call("POST", "/my/credentials", json=body)).status_code == 201
    await bo.call("DELETE", "/my/credentials/api.example.com?key=cookie")
    left = (await bo.get("/my/credentials")).json()["credentials"]
    assert [each["credentialKey"] for each in left] == ["Authorization"]


async def test_value_encrypted_by_the_public_client_is_accepted(bo: UserClient) -> None:
    sealed = '{"ciphertext":"iQdNE3ruUSfEK/7bugGb+HhaJUBcFMIdNpApDrRYqpM=","iv":"AAECAwQFBgcICQoL"}'
    body = {"domain": "x.com", "credentialType": "header", "credentialKey": "a", "encryptedValue": sealed}
    wrong = await bo.call("POST", "/my/credentials", json=body, headers={"X-Credential-Key": "other"})
    error_message(wrong, 400, "INVALID_REQUEST")
    right = await bo.call("POST", "/my/credentials", json=body, headers={"X-Credential-Key": "meowmeow"})
    assert right.status_code == 201
    (secret,) = await bo.ability_server.vault.secrets(bo.user, ["x.com"])
    assert secret.value == "Bearer sk-abc123"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"domain": None}, "domain"),
        ({"domain": "https://x.com/"}, "domain"),
        ({"credentialKey": 3}, "credentialKey"),
        ({"credentialKey": "a b"}, "credentialKey"),
        ({"credentialKey": "y.com::a"}, "credentialKey"),
        ({"credentialType": "token"}, "credentialType"),
        ({"value": None}, "value"),
        ({"value": ""}, "value"),
        ({"value": f"{TOKEN}\r\nX-Evil: 1"}, "value"),
        ({"encryptedValue": "x"}, "value"),
    ],
)
async def test_invalid_credential_is_refused_without_quoting_its_value(
    bo: UserClient, change: dict[str, Any], field: str
) -> None:
    body = {"domain": "x.com", "credentialKey": "a", "value": TOKEN, **change}
    response = await bo.call("POST", "/my/credentials", json=body)
    assert error_message(response, 400, "INVALID_REQUEST").startswith(f"{field}: ")
    assert TOKEN not in response.text
    assert (await bo.get("/my/credentials")).json()["count"] == 0


# --- requests ---


async def test_body_must_be_a_json_object_within_the_limit(bo: UserClient) -> None:
    path = f"/abilities/{ID}/execute"
    json = {"Content-Type": "application/json"}
    for body in (b"", b"  ", b"{", b"[]", b"3", b'{"a": NaN}', b"[" * 300 + b"]" * 300, b"\xff"):
        response = await bo.call("POST", path, content=body, headers=json)
        assert error_message(response, 400, "INVALID_REQUEST").startswith("body: ")
    large = await bo.call("POST", path, content=b" " * (10 * 2**20 + 1), headers=json)
    error_message(large, 413, "PAYLOAD_TOO_LARGE")
    plain = await bo.call("POST", path, content=b"{}", headers={"Content-Type": "text/plain"})
    error_message(plain, 415, "UNSUPPORTED_MEDIA_TYPE")
    packed = await bo.call("POST", path, content=b"{}", headers={**json, "Content-Encoding": "gzip"})
    error_message(packed, 415, "UNSUPPORTED_MEDIA_TYPE")


async def test_execute_body_is_type_checked(bo: UserClient) -> None:
    response = await bo.call("POST", f"/abilities/{ID}/execute", json={"username": "elonmusk"})
    assert response.status_code == 400
    assert response.json()["problems"] == [
        "params: expected an object, got nothing; 'username' belongs inside it"
    ]
    response = await bo.call("POST", f"/abilities/{ID}/execute", json={"params": [], "transformCode": 3})
    error_message(response, 400, "INVALID_REQUEST")
    assert response.json()["problems"] == [
        "params: expected an object, got an array",
        "transformCode: expected a string, got a number",
    ]


async def test_wrong_method_returns_the_allowed_ones(bo: UserClient) -> None:
    for path, allowed in (("/my/abilities/x", "DELETE, GET, PUT"), ("/abilities/x/execute", "POST")):
        response = await bo.call("PATCH", path)
        error_message(response, 405, "METHOD_NOT_ALLOWED")
        assert response.headers["allow"] == allowed


async def test_paths_are_also_found_below_api_and_with_repeated_slashes(bo: UserClient) -> None:
    for path in ("/api/my/abilities", "//my//abilities", "/api//my/abilities"):
        assert (await bo.get(f"{bo.ability_server.server.url}{path}")).status_code == 200


# --- OpenAPI ---


async def test_responses_match_the_openapi_document(bo: UserClient) -> None:
    api = OpenApiChecker.of(openapi.describe())
    await bo.call("POST", "/my/credentials", json={"domain": "x.com", "credentialKey": "a", "value": TOKEN})
    calls = [
        ("POST", "/my/abilities", "/my/abilities", {"json": ability()}),
        ("POST", "/my/abilities", "/my/abilities", {"json": ability()}),
        ("POST", "/my/abilities", "/my/abilities", {"json": {}}),
        ("GET", "/my/abilities", "/my/abilities?limit=1", {}),
        ("GET", "/abilities/search", "/abilities/search?q=twitter", {}),
        ("GET", "/abilities/search", "/abilities/search", {}),
        ("GET", "/abilities/{id}", f"/abilities/{ID}", {}),
        ("GET", "/abilities/{id}", "/abilities/missing", {}),
        ("PUT", "/my/abilities/{id}", OWN, {"json": ability()}),
        ("POST", "/abilities/{id}/execute", "/abilities/missing/execute", {"json": {}}),
        ("POST", "/abilities/{id}/execute", f"/abilities/{ID}/execute", {"content": b"{"}),
        (
            "POST",
            "/abilities/{id}/execute",
            f"/abilities/{ID}/execute",
            {"content": b"<a/>", "headers": {"Content-Type": "text/xml"}},
        ),
        ("GET", "/my/credentials", "/my/credentials", {}),
        ("GET", "/my/credentials", "/my/credentials?grouped=1", {}),
        ("GET", "/my/credentials/{domain}", "/my/credentials/x.com", {}),
        ("DELETE", "/my/credentials/{domain}", "/my/credentials/x.com", {}),
        ("GET", "/my/runs", "/my/runs", {}),
        ("DELETE", "/my/abilities/{id}", OWN, {}),
    ]
    seen = set()
    for method, template, path, more in calls:
        answer = await bo.call(method, path, **more)
        api.check_response(method, template, answer)
        seen.add(answer.status_code)
    assert seen == {200, 201, 400, 404, 409, 415}


async def test_all_routes_but_execute_have_the_same_error(ability_server: AbilityServer) -> None:
    shapes = {}
    for path, methods in openapi.describe().paths.items():
        for method in methods:
            response = await ability_server.call(method, path.replace("{", "").replace("}", ""))
            assert response.status_code == 401
            shapes[f"{method} {path}"] = response.json()
    for path in ("/my/unknown", "/abilities/a/b"):
        shapes[path] = (await ability_server.call("GET", path)).json()
    executions = ["post /abilities/{id}/execute", "post /my/abilities/{id}/execute"]
    for path in executions:
        fields = shapes.pop(path)
        assert fields.keys() == {"success", "error", "errorCode", "executedAt"}
        assert isinstance(fields["error"], str)
    assert len(shapes) > 15
    for fields in shapes.values():
        assert (fields.keys(), fields["error"].keys()) == ({"success", "error"}, {"code", "message"})
