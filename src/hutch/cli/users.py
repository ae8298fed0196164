"""`hutch user`: who has keys and credentials here."""

from __future__ import annotations

import os
import sys

import click
import msgspec

from hutch import settings as settings_module
from hutch.cli.opened import user_named, with_store, with_vault
from hutch.cli.output import print_json
from hutch.cli.table import print_facts, print_note, print_table, since
from hutch.store.rows import User
from hutch.store.store import Store
from hutch.vault import keys
from hutch.vault.vault import Vault


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """What is told of a user."""

    id: str
    name: str
    created_at: str


class Details(Shown, frozen=True, kw_only=True):
    """With what the user has."""

    keys: int
    credentials: int
    abilities: int


def add_user(name: str) -> int:
    async def add(vault: Vault) -> User:
        return await vault.add_user(name)

    file = settings_module.load().home_path / keys.FILE
    # A path's own raises where it may not look: then the store says what is wrong.
    there = os.access(file, os.F_OK)
    user = with_vault(add)
    print(user.id)
    if not there and file.exists():
        print_note(
            f"{file} is new: credentials are sealed with it, and without it they are lost; keep a copy"
        )
    print_note(f"{name} is there; `hutch key add {name}` makes a key")
    return 0


def list_users(*, json: bool) -> int:
    async def listed(store: Store) -> list[User]:
        return await store.users.list()

    found = with_store(listed)
    if json:
        print_json(msgspec.json.encode([_shown(each) for each in found]))
    elif found:
        print_table(("NAME", "ID", "ADDED"), [(each.name, each.id, since(each.created_at)) for each in found])
    else:
        print_note("there are no users; `hutch user add NAME` makes one")
    return 0


def show_user(name: str, *, json: bool) -> int:
    async def details(store: Store) -> Details:
        return await _details(store, await user_named(store, name))

    found = with_store(details)
    if json:
        print_json(msgspec.json.encode(found))
        return 0
    print_facts(
        [
            ("name", found.name),
            ("id", found.id),
            ("added", found.created_at),
            ("keys", str(found.keys)),
            ("credentials", str(found.credentials)),
            ("abilities", str(found.abilities)),
        ]
    )
    return 0


def remove_user(name: str, *, yes: bool) -> int:
    """With all that the user has."""

    async def details(store: Store) -> Details:
        return await _details(store, await user_named(store, name))

    async def remove(store: Store) -> bool:
        return await store.users.remove(found.id)

    found = with_store(details)
    having = f"{found.keys} keys, {found.credentials} credentials and {found.abilities} abilities"
    if not yes and sys.stdin.isatty():
        click.confirm(f"Remove {name} with {having}? It cannot be undone", abort=True, err=True)
    if with_store(remove):
        print(f"removed {name} with {having}")
        return 0
    print_note(f"{name} has been removed by somebody else")
    return 1


async def _details(store: Store, user: User) -> Details:
    return Details(
        id=user.id,
        name=user.name,
        created_at=user.created_at,
        keys=len(await store.keys.list(user.id)),
        credentials=len(await store.credentials.list(user.id)),
        abilities=len([each for each in await store.abilities.list(user.id) if each.owner_id == user.id]),
    )


def _shown(user: User) -> Shown:
    return Shown(id=user.id, name=user.name, created_at=user.created_at)
