"""`hutch vault`: the keys that everything secret is sealed with."""

from __future__ import annotations

import os
from collections import Counter

import msgspec

from hutch import settings as settings_module
from hutch.cli.opened import with_store, with_vault
from hutch.cli.output import print_json
from hutch.cli.table import print_facts, print_note, print_table
from hutch.errors import VaultError
from hutch.store.store import Store
from hutch.vault import canary, datakeys, keys, rotation
from hutch.vault.tokens import Tokens
from hutch.vault.vault import Vault


class Master(msgspec.Struct, frozen=True, kw_only=True):
    """A master key, and what still needs it."""

    id: str
    state: str
    """`current`, `older`, or `missing`."""
    users: int
    tokens: int
    flows: bool
    """Whether the data keys of flows and their runs are sealed with it."""

    @property
    def is_needed(self) -> bool:
        return bool(self.users or self.tokens or self.flows)


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the keys without opening anything."""

    source: str
    masters: list[Master]
    users: int
    problem: str | None


def status(*, json: bool) -> int:
    """1 if something that is sealed could not be opened."""
    found = with_store(_status)
    if json:
        print_json(msgspec.json.encode(found))
        return 1 if found.problem else 0
    print_facts([("master keys from", found.source), ("users", str(found.users))])
    if found.masters:
        print()
        rows = [
            (each.id, each.state, str(each.users), str(each.tokens), "yes" if each.flows else "no")
            for each in found.masters
        ]
        print_table(("MASTER KEY", "STATE", "USERS", "TOKENS", "FLOWS"), rows)
    unused = [each.id for each in found.masters if each.state == "older" and not each.is_needed]
    if unused:
        print_note(f"nothing here needs {', '.join(unused)} any more; backups from before still do")
    if found.problem:
        print_note(found.problem)
    return 1 if found.problem else 0


def rotate(*, master: bool) -> int:
    """New data keys for everybody; with `master`, a new master key before that."""

    async def run(vault: Vault) -> rotation.Rotated:
        if master:
            home = settings_module.load().home_path
            vault.master = keys.add(home, os.environ)
            print_note(f"{home / keys.FILE} has a new master key in front; make a backup of it")
        return await rotation.rotate(vault, print_note)

    done = with_vault(run)
    print(f"{done.users} users have new data keys, {done.credentials} credentials were sealed anew")
    for each in done.unreadable:
        print_note(f"{each} does not open, and was left as it is; set it again or remove it")
    return 1 if done.unreadable else 0


async def _status(store: Store) -> Status:
    home = settings_module.load().home_path
    problem, ids, source = None, [], _source()
    try:
        master = keys.load(home, os.environ, make=False)
        ids = master.ids
        if await canary.sealed(store):
            await canary.check(store, master)
    except VaultError as error:
        problem = str(error)
    users = await store.users.list()
    needed = Counter(each for user in users for each in set(datakeys.master_ids(user.data_key)))
    tokens = Counter(Tokens.at(home, os.environ).master_ids())
    text = await store.meta.get(datakeys.JOURNAL_KEY)
    flows = set() if text is None else set(datakeys.master_ids(text))
    missing = sorted((needed.keys() | tokens.keys() | flows) - set(ids))
    if missing and problem is None:
        problem = (
            f"What is sealed with {', '.join(missing)} cannot be opened: add that key after the current one."
        )
    if not users and not await canary.sealed(store) and not tokens:
        # Nothing is sealed yet: the first user makes a key, if there is none.
        problem = None
    states = ["current", *["older"] * len(ids)]
    named = [*zip(ids, states, strict=False), *((each, "missing") for each in missing)]
    return Status(
        source=source,
        masters=[
            Master(id=each, state=state, users=needed[each], tokens=tokens[each], flows=each in flows)
            for each, state in named
        ],
        users=len(users),
        problem=problem,
    )


def _source() -> str:
    if os.environ.get(keys.VARIABLE, "").strip():
        return keys.VARIABLE
    return str(settings_module.load().home_path / keys.FILE)
