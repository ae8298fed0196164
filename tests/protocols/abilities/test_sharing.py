"""Routes for sharing: other users run an ability with their own credentials until the ability's owner revokes
the share.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.protocols.abilities.harness import (
    PROFILE,
    TOKEN,
    AbilityServer,
    UserClient,
    error_message,
)

ID = "twitter_get_user_profile"
SHARES = f"/my/abilities/{ID}/shares"
RUN: dict[str, Any] = {"json": {"params": {"username": "elonmusk"}}}


@pytest.fixture
async def eve(ability_server: AbilityServer, request: pytest.FixtureRequest) -> UserClient:
    return await ability_server.user(f"eve-{abs(hash(request.node.nodeid))}")


async def test_user_runs_a_shared_ability_with_own_credentials_until_it_is_revoked(
    ann: UserClient, bo: UserClient, eve: UserClient
) -> None:
    await ann.add()
    vault, upstream = ann.ability_server.vault, ann.ability_server.upstream
    await vault.put_credential(ann.user, "127.0.0.1", "header", "Authorization", "Bearer of-the-owner-0123")
    shared = await ann.call("POST", SHARES, json={"users": [bo.user.name]})
    assert (shared.status_code, [each["user"] for each in shared.json()["shares"]]) == (200, [bo.user.name])

    missing = await bo.call("POST", f"/abilities/{ID}/execute", **RUN)
    error_message(missing, 400, "MISSING_CREDENTIALS")
    await vault.put_credential(bo.user, "127.0.0.1", "header", "Authorization", TOKEN)
    done = await bo.call("POST", f"/abilities/{ID}/execute", **RUN)
    assert (done.status_code, done.json()["result"]["body"]) == (200, PROFILE)
    assert upstream.seen[-1]["authorization"] == TOKEN

    shown = (await bo.get(f"/abilities/{ID}")).json()["ability"]
    assert (shown["shared_by"], shown["shared"], shown["own"]) == (ann.user.name, False, False)
    found = (await bo.get("/abilities/search?q=profile")).json()["abilities"]
    assert [each["sharedBy"] for each in found] == [ann.user.name]
    assert (await bo.get("/my/abilities")).json()["count"] == 0

    # Users without access get the same answer as for an unknown ability. A user with access may not change
    # the shares of the ability.
    for path in (f"/abilities/{ID}/execute", f"/my/abilities/{ID}/execute"):
        error_message(await eve.call("POST", path, **RUN), 404, "NOT_FOUND")
    stranger = error_message(await eve.get(f"/abilities/{ID}"), 404, "NOT_FOUND")
    unknown = error_message(await eve.get("/abilities/unknown"), 404, "NOT_FOUND")
    assert stranger.replace(ID, "unknown") == unknown
    for client in (bo, eve):
        for method, body in (("GET", None), ("POST", {"users": [eve.user.name]}), ("DELETE", None)):
            error_message(await client.call(method, SHARES, json=body), 404, "NOT_FOUND")
        error_message(await client.call("DELETE", f"/my/abilities/{ID}"), 404, "NOT_FOUND")

    revoked = await ann.call("DELETE", f"{SHARES}?user={bo.user.name}")
    assert revoked.json() == {"success": True, "count": 0, "shares": []}
    error_message(await bo.call("POST", f"/abilities/{ID}/execute", **RUN), 404, "NOT_FOUND")
    error_message(await ann.call("DELETE", f"{SHARES}?user={bo.user.name}"), 404, "NOT_FOUND")


async def test_ability_is_shared_with_an_own_group(ann: UserClient, bo: UserClient, eve: UserClient) -> None:
    store = ann.ability_server.store
    group = await store.groups.add(f"team-{ann.user.id}")
    await store.groups.add_members(group.id, [ann.user.id, bo.user.id])
    await ann.add()
    await eve.add()
    assert (await bo.get("/my/groups")).json()["groups"] == [{"name": group.name}]
    shared = await ann.call("POST", SHARES, json={"groups": [group.name]})
    assert [each["group"] for each in shared.json()["shares"]] == [group.name]
    assert (await bo.get(f"/abilities/{ID}")).status_code == 200
    # A user who is not in the group can neither see the group nor share an ability with the group.
    refused = await eve.call("POST", SHARES, json={"groups": [group.name]})
    unknown = await eve.call("POST", SHARES, json={"groups": ["unknown"]})
    message = error_message(refused, 400, "INVALID_REQUEST")
    assert message.replace(group.name, "unknown") == error_message(unknown, 400, "INVALID_REQUEST")
    assert (await ann.call("DELETE", f"{SHARES}?group={group.name}")).json()["count"] == 0
    error_message(await bo.get(f"/abilities/{ID}"), 404, "NOT_FOUND")


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (lambda ann: {}, "users: expected the name of at least one user or group"),
        (lambda ann: {"users": "bo"}, "users: expected a list"),
        (lambda ann: {"users": [None]}, "users: expected names, got null"),
        (lambda ann: {"groups": ["x"] * 201}, "groups: expected a list of at most 200"),
        (lambda ann: {"users": ["nobody"]}, "users: there is no user 'nobody'"),
        (lambda ann: {"users": [ann.user.name]}, "users: expected other users"),
    ],
)
async def test_invalid_share_is_refused(
    ann: UserClient, body: Callable[[UserClient], dict[str, Any]], problem: str
) -> None:
    await ann.add()
    refused = await ann.call("POST", SHARES, json=body(ann))
    assert problem in error_message(refused, 400, "INVALID_REQUEST")
    assert (await ann.get(SHARES)).json()["count"] == 0
    error_message(await ann.call("DELETE", SHARES), 400, "INVALID_REQUEST")


async def test_login_of_another_user_does_not_run_by_itself(ann: UserClient, bo: UserClient) -> None:
    """Otherwise, another user could share a login ability, and this user's ability would run the code of the
    other user.
    """
    login = {
        "ability_id": "acme_login",
        "dynamic_header_keys": [],
        "requires_dynamic_headers": False,
        "input_schema": None,
        "produces": {"127.0.0.1::Authorization": "body.token"},
        "wrapper_code": "export const wrapper = () => ({ token: 'planted-0123456789' })",
    }
    await ann.add(**login)
    shared = await ann.call("POST", "/my/abilities/acme_login/shares", json={"users": [bo.user.name]})
    assert shared.status_code == 200
    await bo.add(dependency_order=["acme_login"])
    refused = await bo.call("POST", f"/abilities/{ID}/execute", **RUN)
    error_message(refused, 400, "MISSING_CREDENTIALS")
    assert (await bo.get("/my/credentials")).json()["count"] == 0
    # The shared ability uses a login ability of the same owner.
    await bo.call("DELETE", f"/my/abilities/{ID}")
    await ann.add(dependency_order=["acme_login"])
    await ann.call("POST", SHARES, json={"users": [bo.user.name]})
    assert (await bo.call("POST", f"/abilities/{ID}/execute", **RUN)).status_code == 200
    assert (await bo.get("/my/credentials")).json()["count"] == 1
    assert (await ann.get("/my/credentials")).json()["count"] == 0
