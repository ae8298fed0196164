"""`hutch group`: manages groups of users."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from hutch.cli.support import prompts
from hutch.cli.support.console import (
    format_age_of,
    print_json_value,
    print_line,
    print_note,
    print_table,
)
from hutch.cli.support.store import find_group, find_user, with_store
from hutch.store.models import Group
from hutch.store.store import Store
from hutch.vault.vault import check_name


def add_group(name: str, users: Sequence[str]) -> int:
    """Adds users to a group, which is created if it does not exist."""
    check_name(name)

    async def add(store: Store) -> list[str]:
        members = [await find_user(store, user) for user in users]
        group = await store.groups.by_name(name) or await store.groups.add(name)
        await store.groups.add_members(group.id, [user.id for user in members])
        return await store.groups.members(group.id)

    _print_members(name, with_store(add))
    return 0


def list_groups(*, as_json: bool) -> int:
    async def load(store: Store) -> list[tuple[Group, list[str]]]:
        return [(group, await store.groups.members(group.id)) for group, _ in await store.groups.list()]

    groups = with_store(load)
    if as_json:
        fields = [
            {"name": group.name, "members": members, "created_at": group.created_at}
            for group, members in groups
        ]
        print_json_value(fields)
    elif groups:
        rows = [
            (group.name, ", ".join(members), format_age_of(group.created_at)) for group, members in groups
        ]
        print_table(("NAME", "MEMBERS", "ADDED"), rows)
    else:
        print_note("there are no groups; `hutch group add NAME USER …` adds one")
    return 0


def remove_group(name: str, users: Sequence[str], *, yes: bool) -> int:
    """Removes users from a group; without users, removes the group."""
    if users:

        async def remove_members(store: Store) -> tuple[int, list[str]]:
            group = await find_group(store, name)
            ids = [(await find_user(store, user)).id for user in users]
            return await store.groups.remove_members(group.id, ids), await store.groups.members(group.id)

        removed, members = with_store(remove_members)
        _print_members(name, members)
        if not removed:
            print_note("nothing changed: these users were not in the group")
        return 0 if removed else 1

    async def remove(store: Store) -> bool:
        return await store.groups.remove((await find_group(store, name)).id)

    if not yes and sys.stdin.isatty():
        question = f"Remove the group {name}? Its members lose the abilities that are shared with it"
        if not prompts.confirm(question):
            raise click.Abort
    removed_group = with_store(remove)
    print_line(f"removed {name}")
    return 0 if removed_group else 1


def _print_members(name: str, members: Sequence[str]) -> None:
    print_line(f"{name}: {', '.join(members) or 'no members'}")
