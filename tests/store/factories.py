"""Factories for table rows with default values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hutch.store.models import Ability, ApiKey, Credential, FlowRunRow, NewRun, RunRow, User, new_id, now
from hutch.store.store import Store


def make_user(name: str = "ada", **more: Any) -> User:
    return User(**{"id": new_id(), "name": name, "data_key": "sealed", "created_at": now(), **more})


def make_key(user: User, digest: str = "digest", **more: Any) -> ApiKey:
    values = {"id": new_id(), "name": "laptop", "hint": "abcd", "created_at": now(), **more}
    return ApiKey(user_id=user.id, digest=digest, **values)


def make_credential(
    user: User, key: str = "Authorization", domain: str = "api.test", **more: Any
) -> Credential:
    values = {"id": new_id(), "kind": "header", "sealed": "sealed", "created_at": now(), "updated_at": now()}
    return Credential(user_id=user.id, domain=domain, key=key, **{**values, **more})


def make_ability(owner: User, ability_id: str = "get_user", **more: Any) -> Ability:
    values = {"name": "Get user", "document": "{}", "created_at": now(), "updated_at": now(), **more}
    return Ability(owner_id=owner.id, ability_id=ability_id, **values)


def make_run(owner: str = "ada", **more: Any) -> RunRow:
    values = {"run_id": new_id(), "protocol": "abilities", "engine": "quickjs", "created_at": now()}
    return RunRow(owner=owner, **{**values, "duration_ms": 1.5, "outcome": "ok", **more})


def make_flow_run(owner: str = "ada", **more: Any) -> FlowRunRow:
    values = {"run_id": new_id(), "flow": "deploy", "origin": "server", "created_at": now()}
    return FlowRunRow(owner=owner, **{**values, "document": "{}", **more})


async def create_flow_key(store: Store) -> None:
    """Creates the data key of flows. A test that adds users with invalid data keys must call this function
    before, because the key cannot be created afterwards.
    """
    await store.journal.step_counts("")


async def add_user(store: Store, name: str = "ada") -> User:
    user = make_user(name)
    await store.users.add(user)
    return user


async def add_runs(store: Store, rows: Sequence[RunRow]) -> None:
    """Inserts run records without content."""
    await store.runs.add_new([NewRun(row) for row in rows])
