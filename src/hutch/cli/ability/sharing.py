"""`hutch ability share` and `unshare`: share abilities with named users and groups."""

from __future__ import annotations

from collections.abc import Sequence

from hutch.cli.ability.abilities import find_own_ability
from hutch.cli.support.console import print_line, print_note
from hutch.cli.support.store import find_group, find_user, with_store
from hutch.errors import InvalidInput
from hutch.store.models import AbilityShare, Group, User
from hutch.store.store import Store


def share_ability(owner: str, ability_id: str, users: Sequence[str], groups: Sequence[str]) -> int:
    """Shares an ability with these users and groups. Prints all users and groups that can run it."""

    async def share(store: Store) -> list[AbilityShare]:
        ability = await find_own_ability(store, owner, ability_id)
        if owner in users:
            raise InvalidInput("--with", f"expected other users, got {owner!r}, who owns the ability.")
        found = await _find(store, users, groups)
        await store.ability_shares.add(ability_id, ability.owner_id, *found)
        return await store.ability_shares.list(ability_id, ability.owner_id)

    _print_shares(ability_id, with_store(share))
    return 0


def unshare_ability(owner: str, ability_id: str, users: Sequence[str], groups: Sequence[str]) -> int:
    """Stops sharing an ability with these users and groups. Prints the users and groups that still can run
    it.
    """

    async def unshare(store: Store) -> tuple[int, list[AbilityShare]]:
        ability = await find_own_ability(store, owner, ability_id)
        found = await _find(store, users, groups)
        removed = await store.ability_shares.remove(ability_id, ability.owner_id, *found)
        return removed, await store.ability_shares.list(ability_id, ability.owner_id)

    removed, shares = with_store(unshare)
    _print_shares(ability_id, shares)
    if not removed:
        print_note("nothing changed: the ability was not shared with them")
    return 0 if removed else 1


async def _find(store: Store, users: Sequence[str], groups: Sequence[str]) -> tuple[list[User], list[Group]]:
    """Returns the users and groups with these names. Raises InvalidInput."""
    return [await find_user(store, name) for name in users], [
        await find_group(store, name) for name in groups
    ]


def _print_shares(ability_id: str, shares: Sequence[AbilityShare]) -> None:
    for share in shares:
        print_line(f"user {share.user}" if share.user is not None else f"group {share.group}")
    if not shares:
        print_note(f"{ability_id} is shared with no user and no group")
