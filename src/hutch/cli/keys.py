"""`hutch key`: API keys, each shown once."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta

import msgspec

from hutch.cli.opened import user_named, with_store, with_vault
from hutch.cli.output import print_json
from hutch.cli.table import print_facts, print_note, print_table, since
from hutch.errors import InvalidInput
from hutch.store import rows
from hutch.store.rows import ApiKey
from hutch.store.store import Store
from hutch.vault import apikeys
from hutch.vault.vault import Vault

_SPAN = re.compile(r"(\d{1,5})([mhdw])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """What is told of a key: never what would open anything."""

    id: str
    user: str
    name: str
    state: str
    ends_with: str
    scopes: tuple[str, ...]
    created_at: str
    expires_at: str | None
    revoked_at: str | None
    last_used_at: str | None


def add_key(user: str, *, name: str, expires: str | None, scopes: Sequence[str]) -> int:
    """The key alone goes to stdout."""
    expires_at = None if expires is None else _moment(expires)

    async def issue(vault: Vault) -> tuple[ApiKey, str]:
        owner = await user_named(vault.store, user)
        return await vault.issue_key(owner, name, scopes=scopes, expires_at=expires_at)

    key, secret = with_vault(issue)
    print(secret)
    until = f", until {key.expires_at}" if key.expires_at else ""
    print_note(
        f"this is {key.id} of {user}, for {', '.join(key.scopes)}{until}. It is shown this once: keep it. "
        f"`hutch key revoke {key.id}` ends it"
    )
    return 0


def list_keys(user: str | None, *, json: bool) -> int:
    async def listed(store: Store) -> list[Shown]:
        users = await store.users.list() if user is None else [await user_named(store, user)]
        return [_shown(key, each.name) for each in users for key in await store.keys.list(each.id)]

    found = with_store(listed)
    if json:
        print_json(msgspec.json.encode(found))
    elif found:
        heads = ("ID", "USER", "NAME", "STATE", "KEY", "SCOPES", "ADDED", "EXPIRES", "LAST USED")
        print_table(heads, [_row(each) for each in found])
    else:
        print_note(f"there are no keys; `hutch key add {user or 'USER'}` makes one")
    return 0


def show_key(key_id: str, *, json: bool) -> int:
    async def show(store: Store) -> Shown:
        key = await _key(store, key_id)
        owner = await store.users.by_id(key.user_id)
        return _shown(key, owner.name if owner else key.user_id)

    found = with_store(show)
    if json:
        print_json(msgspec.json.encode(found))
        return 0
    facts = [
        ("id", found.id),
        ("user", found.user),
        ("name", found.name),
        ("state", found.state),
        ("key", f"hk_…{found.ends_with}"),
        ("scopes", ", ".join(found.scopes)),
        ("added", found.created_at),
        ("expires", found.expires_at or "never"),
        ("revoked", found.revoked_at or "no"),
        ("last used", found.last_used_at or "never"),
    ]
    print_facts(facts)
    return 0


def revoke_key(key_id: str) -> int:
    """It stays in the list; whoever comes with it is told."""
    return _change(key_id, lambda store: store.keys.revoke(key_id, rows.now()), "revoked")


def remove_key(key_id: str) -> int:
    return _change(key_id, lambda store: store.keys.remove(key_id), "removed")


def _change(key_id: str, change: Callable[[Store], Awaitable[object]], done: str) -> int:
    async def run(store: Store) -> None:
        await _key(store, key_id)
        await change(store)

    with_store(run)
    print(f"{done} {key_id}")
    return 0


async def _key(store: Store, key_id: str) -> ApiKey:
    found = next((each for each in await store.keys.list() if each.id == key_id), None)
    if found is None:
        # Somebody may have given the key itself.
        said = "a key's id, such as key_1a2b3c4d5e6f" if key_id.startswith(apikeys.PREFIX) else repr(key_id)
        message = f"expected {said}." if key_id.startswith(apikeys.PREFIX) else f"there is no {said}."
        raise InvalidInput("KEY", message, remedy="`hutch key list` has them.")
    return found


def _moment(text: str) -> str:
    """From `30d`, or a date, or a date and time."""
    span = _SPAN.fullmatch(text)
    if span is not None and int(span[1]):
        return rows.at(datetime.now(UTC) + timedelta(**{_UNITS[span[2]]: int(span[1])}))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(
            "--expires", f"expected such as 90m, 12h, 30d, 8w or 2031-01-31, got {text!r}."
        ) from None
    return rows.at(moment if moment.tzinfo else moment.replace(tzinfo=UTC))


def _shown(key: ApiKey, user: str) -> Shown:
    return Shown(
        id=key.id,
        user=user,
        name=key.name,
        state=apikeys.state(key),
        ends_with=key.hint,
        scopes=key.scopes,
        created_at=key.created_at,
        expires_at=key.expires_at,
        revoked_at=key.revoked_at,
        last_used_at=key.last_used_at,
    )


def _row(key: Shown) -> tuple[str, ...]:
    return (
        key.id,
        key.user,
        key.name or "-",
        key.state,
        f"…{key.ends_with}",
        ",".join(key.scopes),
        since(key.created_at),
        key.expires_at or "never",
        since(key.last_used_at),
    )
