"""Rows for tests, with all that a test does not care about filled in."""

from __future__ import annotations

from typing import Any

from hutch.store.rows import Ability, ApiKey, Credential, FlowRunRow, RunRow, User, new_id, now
from hutch.store.store import Store


def a_user(name: str = "ada", **more: Any) -> User:
    return User(**{"id": new_id(), "name": name, "data_key": "sealed", "created_at": now(), **more})


def a_key(user: User, digest: str = "digest", **more: Any) -> ApiKey:
    values = {"id": new_id(), "name": "laptop", "hint": "abcd", "created_at": now(), **more}
    return ApiKey(user_id=user.id, digest=digest, **values)


def a_credential(user: User, key: str = "Authorization", domain: str = "api.test", **more: Any) -> Credential:
    values = {"id": new_id(), "kind": "header", "sealed": "sealed", "created_at": now(), "updated_at": now()}
    return Credential(user_id=user.id, domain=domain, key=key, **{**values, **more})


def an_ability(owner: User, ability_id: str = "get_user", **more: Any) -> Ability:
    values = {"name": "Get user", "document": "{}", "created_at": now(), "updated_at": now(), **more}
    return Ability(owner_id=owner.id, ability_id=ability_id, **values)


def a_run(owner: str = "ada", **more: Any) -> RunRow:
    values = {"run_id": new_id(), "door": "abilities", "engine": "quickjs", "started_at": now()}
    return RunRow(owner=owner, **{**values, "duration_ms": 1.5, "outcome": "ok", **more})


def a_flow_run(owner: str = "ada", **more: Any) -> FlowRunRow:
    values = {"run_id": new_id(), "flow": "deploy", "origin": "server", "created_at": now()}
    return FlowRunRow(owner=owner, **{**values, "document": "{}", **more})


async def keep_flows(store: Store) -> None:
    """Has the key of flows made: beside users of these tests, whose own keys are none, that cannot be."""
    await store.journal.counts("")


async def kept_user(store: Store, name: str = "ada") -> User:
    user = a_user(name)
    await store.users.add(user)
    return user
