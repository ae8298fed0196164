"""The console's routes for users, keys and credentials."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
import pytest
from tests.support.processes import ServeProcess, running_server

KEY = "operators-key"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    home = str(tmp_path_factory.mktemp("home"))
    with running_server(HUTCH_API_KEY=KEY, HUTCH_HOME=home) as running:
        yield running


@pytest.fixture
def operator(server: ServeProcess) -> Iterator[httpx2.Client]:
    headers = {"Authorization": f"Bearer {KEY}"}
    with httpx2.Client(base_url=server.url, headers=headers) as client:
        yield client


def test_key_works_until_it_is_revoked(server: ServeProcess, operator: httpx2.Client) -> None:
    assert operator.post("/console/users", json={"name": "ann"}).status_code == 201
    created = operator.post(
        "/console/users/ann/keys", json={"name": "laptop", "scopes": ["abilities"], "days": 3}
    )
    assert created.status_code == 201
    key = created.json()
    headers = {"Authorization": f"Bearer {key['secret']}"}
    assert httpx2.get(server.url + "/my/abilities", headers=headers).status_code == 200
    shown = operator.get("/console/users/ann").json()["keys"]
    assert [(entry["name"], entry["state"], entry["scopes"]) for entry in shown] == [
        ("laptop", "active", ["abilities"])
    ]
    assert key["secret"] not in operator.get("/console/users/ann").text
    assert operator.delete(f"/console/keys/{key['id']}").status_code == 204
    assert httpx2.get(server.url + "/my/abilities", headers=headers).status_code == 401


def test_credential_cannot_be_read_again(operator: httpx2.Client) -> None:
    operator.post("/console/users", json={"name": "cid"})
    secret = "Bearer tok-0123456789abcdef"
    body = {"domain": "api.example.com", "kind": "header", "key": "Authorization", "value": secret}
    stored = operator.post("/console/users/cid/credentials", json=body)
    assert stored.status_code == 201
    shown = operator.get("/console/users/cid")
    assert shown.json()["credentials"][0]["domain"] == "api.example.com"
    assert "0123456789" not in stored.text + shown.text
    path = f"/console/users/cid/credentials/{stored.json()['id']}"
    assert operator.delete(path).status_code == 204
    assert operator.get("/console/users/cid").json()["credentials"] == []
    assert operator.delete(path).status_code == 404


def test_removed_user_does_not_exist_any_more(operator: httpx2.Client) -> None:
    operator.post("/console/users", json={"name": "dan"})
    assert operator.delete("/console/users/dan").status_code == 204
    assert operator.get("/console/users/dan").status_code == 404
    assert "dan" not in {user["name"] for user in operator.get("/console/users").json()["users"]}


def test_name_can_be_used_once(operator: httpx2.Client) -> None:
    assert operator.post("/console/users", json={"name": "eve"}).status_code == 201
    assert operator.post("/console/users", json={"name": "eve"}).status_code == 409


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/console/users", {}, "name"),
        ("/console/users", {"name": "a b"}, "name"),
        ("/console/users/fay/keys", {"scopes": ["nothing"]}, "scope"),
        ("/console/users/fay/keys", {"scopes": "mcp"}, "scopes"),
        ("/console/users/fay/keys", {"days": True}, "days"),
        ("/console/users/fay/keys", {"days": 100_000}, "days"),
        ("/console/users/fay/credentials", {"domain": "x", "key": "k"}, "value"),
        ("/console/users/fay/credentials", {"domain": "x", "key": "k", "value": "v", "kind": "z"}, "kind"),
    ],
)
def test_invalid_field_is_named(operator: httpx2.Client, path: str, body: dict, field: str) -> None:
    operator.post("/console/users", json={"name": "fay"})
    answer = operator.post(path, json=body)
    assert answer.status_code == 400
    assert field in answer.json()["error"]["message"]


def test_user_may_not_manage_users(server: ServeProcess, operator: httpx2.Client) -> None:
    operator.post("/console/users", json={"name": "gus"})
    secret = operator.post("/console/users/gus/keys", json={}).json()["secret"]
    headers = {"Authorization": f"Bearer {secret}"}
    assert httpx2.get(server.url + "/console/users", headers=headers).status_code == 403
    added = httpx2.post(server.url + "/console/users/gus/keys", json={}, headers=headers)
    assert added.status_code == 403


def test_code_is_checked_as_it_is_typed(operator: httpx2.Client) -> None:
    checked = operator.post("/console/check", json={"code": "const n: number = 'text';\nreturn n;"})
    [problem] = checked.json()["problems"]
    assert problem["line"] == 1
    assert "not assignable" in problem["message"]
    assert operator.post("/console/check", json={"code": "return 1 + 1"}).json()["problems"] == []
    assert operator.post("/console/check", json={"code": 3}).status_code == 400
