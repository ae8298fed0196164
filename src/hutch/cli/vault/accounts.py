"""`hutch user` and `hutch key`: manages users and their API keys."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import click
import msgspec

from hutch.cli.support import prompts
from hutch.cli.support.console import (
    format_age_of,
    print_facts,
    print_json,
    print_line,
    print_note,
    print_table,
)
from hutch.cli.support.store import find_user, with_store, with_vault
from hutch.errors import InvalidInput
from hutch.kernel.fair_use import today
from hutch.settings import load_settings
from hutch.store import models
from hutch.store.models import ApiKey, Quota, User
from hutch.store.store import Store
from hutch.text import format_rfc3339
from hutch.vault import api_keys, crypto
from hutch.vault.vault import Vault

_DURATION = re.compile(r"(\d{1,5})([mhdw])")
_DURATION_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


# --- users ---


class UserSummary(msgspec.Struct, frozen=True, kw_only=True):
    """User in the JSON output of `hutch user list`."""

    id: str
    name: str
    created_at: str


class UserDetails(UserSummary, frozen=True, kw_only=True):
    """JSON output of `hutch user show`, with the numbers of keys, credentials and abilities."""

    keys: int
    credentials: int
    abilities: int


def add_user(name: str) -> int:
    async def add(vault: Vault) -> User:
        return await vault.add_user(name)

    key_file = load_settings().home_path / crypto.MASTER_KEY_FILE
    # Do not use Path.exists, because it raises an error if the folder is not accessible. The vault reports
    # that with a better message.
    had_key_file = os.access(key_file, os.F_OK)
    user = with_vault(add)
    print_line(user.id)
    if not had_key_file and key_file.exists():
        print_note(f"{key_file} is new. It encrypts all credentials: keep a copy, they are lost without it")
    print_note(f"added {name}; `hutch key add {name}` creates an API key")
    return 0


def list_users(*, json: bool) -> int:
    async def load(store: Store) -> list[User]:
        return await store.users.list()

    users = with_store(load)
    if json:
        print_json(msgspec.json.encode([_user_summary(user) for user in users]))
    elif users:
        print_table(
            ("NAME", "ID", "ADDED"), [(user.name, user.id, format_age_of(user.created_at)) for user in users]
        )
    else:
        print_note("there are no users; `hutch user add NAME` adds one")
    return 0


def show_user(name: str, *, json: bool) -> int:
    details = with_store(lambda store: _user_details(store, name))
    if json:
        print_json(msgspec.json.encode(details))
        return 0
    print_facts(
        [
            ("name", details.name),
            ("id", details.id),
            ("added", details.created_at),
            ("keys", str(details.keys)),
            ("credentials", str(details.credentials)),
            ("abilities", str(details.abilities)),
        ]
    )
    return 0


def remove_user(name: str, *, yes: bool) -> int:
    """Removes a user with all keys, credentials and abilities."""

    async def remove(store: Store) -> bool:
        return await store.users.remove(details.id)

    details = with_store(lambda store: _user_details(store, name))
    owned = f"{details.keys} keys, {details.credentials} credentials and {details.abilities} abilities"
    if not yes and sys.stdin.isatty():
        question = f"Remove {name} with {owned}? This cannot be undone"
        if not prompts.confirm(question):
            raise click.Abort
    if with_store(remove):
        print_line(f"removed {name} with {owned}")
        return 0
    print_note(f"{name} was removed by another process")
    return 1


async def _user_details(store: Store, name: str) -> UserDetails:
    """Collects the details of a user. Raises InvalidInput if the user does not exist."""
    user = await find_user(store, name)
    return UserDetails(
        id=user.id,
        name=user.name,
        created_at=user.created_at,
        keys=len(await store.api_keys.list(user.id)),
        credentials=len(await store.credentials.list(user.id)),
        abilities=len([row for row in await store.abilities.list(user.id) if row.owner_id == user.id]),
    )


def _user_summary(user: User) -> UserSummary:
    return UserSummary(id=user.id, name=user.name, created_at=user.created_at)


# --- quotas ---


class QuotaSummary(msgspec.Struct, frozen=True, kw_only=True):
    """JSON output of `hutch user quota` and `hutch key quota`."""

    subject: str
    quota: Quota
    executions_today: int
    cpu_seconds_today: float


def user_quota(name: str, changes: Mapping[str, int | None], *, clear: bool, json: bool) -> int:
    async def load(store: Store) -> QuotaSummary:
        return await _change_quota(store, (await find_user(store, name)).id, changes, clear=clear)

    settings = load_settings()
    defaults = {limit: getattr(settings, limit, 1) for limit in Quota.__struct_fields__}
    return _print_quota(with_store(load), defaults, "setting", json=json)


def key_quota(key_id: str, changes: Mapping[str, int | None], *, clear: bool, json: bool) -> int:
    async def load(store: Store) -> QuotaSummary:
        return await _change_quota(store, (await _find_key(store, key_id)).id, changes, clear=clear)

    return _print_quota(with_store(load), {}, "its user's", json=json)


async def _change_quota(
    store: Store, subject: str, changes: Mapping[str, int | None], *, clear: bool
) -> QuotaSummary:
    quota = (await store.quotas.get([subject])).get(subject, Quota())
    given = {name: value for name, value in changes.items() if value is not None}
    if clear or given:
        quota = msgspec.structs.replace(Quota() if clear else quota, **given)
        await store.quotas.set(subject, quota)
    used = (await store.quotas.usage([subject], today()))[subject]
    return QuotaSummary(
        subject=subject,
        quota=quota,
        executions_today=used.executions,
        cpu_seconds_today=round(used.cpu_seconds, 3),
    )


def _print_quota(summary: QuotaSummary, defaults: Mapping[str, int], source: str, *, json: bool) -> int:
    if json:
        print_json(msgspec.json.encode(summary))
        return 0
    facts = []
    for name in Quota.__struct_fields__:
        value = getattr(summary.quota, name)
        if value is not None:
            facts.append((name, _quota_text(name, value)))
        elif name in defaults:
            origin = "default" if name == "weight" else source
            facts.append((name, f"{_quota_text(name, defaults[name])} ({origin})"))
        elif name != "weight":
            facts.append((name, source))
    facts.append(
        ("used today", f"{summary.executions_today} executions, {summary.cpu_seconds_today:g} CPU s")
    )
    print_facts(facts)
    return 0


def _quota_text(name: str, value: int) -> str:
    return "no limit" if value == 0 and name != "weight" else str(value)


# --- API keys ---


class KeySummary(msgspec.Struct, frozen=True, kw_only=True):
    """Key in the JSON output of `hutch key list` and `show`. Contains nothing that could be used to
    authenticate.
    """

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
    """Creates a key. Prints only the key to stdout, and notes to stderr."""
    expires_at = None if expires is None else _parse_expiry(expires)

    async def issue(vault: Vault) -> tuple[ApiKey, str]:
        owner = await find_user(vault.store, user)
        return await vault.issue_key(owner, name, scopes=scopes, expires_at=expires_at)

    key, secret = with_vault(issue)
    print_line(secret)
    until = f", until {key.expires_at}" if key.expires_at else ""
    print_note(
        f"created {key.id} for {user}, valid for {', '.join(key.scopes)}{until}. Store it now: it is not "
        f"shown again. `hutch key revoke {key.id}` revokes it"
    )
    return 0


def list_keys(user: str | None, *, json: bool) -> int:
    async def load(store: Store) -> list[KeySummary]:
        owners = await store.users.list() if user is None else [await find_user(store, user)]
        return [
            _key_summary(key, owner.name) for owner in owners for key in await store.api_keys.list(owner.id)
        ]

    keys = with_store(load)
    if json:
        print_json(msgspec.json.encode(keys))
    elif keys:
        headers = ("ID", "USER", "NAME", "STATE", "KEY", "SCOPES", "ADDED", "EXPIRES", "LAST USED")
        print_table(headers, [_key_row(key) for key in keys], states="STATE")
    else:
        print_note(f"there are no keys; `hutch key add {user or 'USER'}` creates one")
    return 0


def show_key(key_id: str, *, json: bool) -> int:
    async def load(store: Store) -> KeySummary:
        key = await _find_key(store, key_id)
        owner = await store.users.by_id(key.user_id)
        return _key_summary(key, owner.name if owner else key.user_id)

    summary = with_store(load)
    if json:
        print_json(msgspec.json.encode(summary))
        return 0
    facts = [
        ("id", summary.id),
        ("user", summary.user),
        ("name", summary.name),
        ("state", summary.state),
        ("key", f"hk_…{summary.ends_with}"),
        ("scopes", ", ".join(summary.scopes)),
        ("added", summary.created_at),
        ("expires", summary.expires_at or "never"),
        ("revoked", summary.revoked_at or "no"),
        ("last used", summary.last_used_at or "never"),
    ]
    print_facts(facts)
    return 0


def revoke_key(key_id: str) -> int:
    """Revokes a key. Keeps its row, so that requests with the key get a clear error."""
    return _change_key(key_id, lambda store: store.api_keys.revoke(key_id, models.now()), "revoked")


def remove_key(key_id: str) -> int:
    return _change_key(key_id, lambda store: store.api_keys.remove(key_id), "removed")


def _change_key(key_id: str, change: Callable[[Store], Awaitable[object]], done: str) -> int:
    async def run(store: Store) -> None:
        await _find_key(store, key_id)
        await change(store)

    with_store(run)
    print_line(f"{done} {key_id}")
    return 0


async def _find_key(store: Store, key_id: str) -> ApiKey:
    key = next((key for key in await store.api_keys.list() if key.id == key_id), None)
    if key is None:
        # The argument may be the secret key itself, so the message does not repeat it.
        is_secret = key_id.startswith(api_keys.SECRET_PREFIX)
        problem = (
            "expected a key's id, such as key_1a2b3c4d5e6f." if is_secret else f"there is no {key_id!r}."
        )
        raise InvalidInput("KEY", problem, remedy="`hutch key list` shows the ids.")
    return key


def _parse_expiry(text: str) -> str:
    """Parses an expiry: `30d`, a date, or a date and time."""
    duration = _DURATION.fullmatch(text)
    if duration is not None and int(duration[1]):
        delta = timedelta(**{_DURATION_UNITS[duration[2]]: int(duration[1])})
        return format_rfc3339(datetime.now(UTC) + delta)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(
            "--expires", f"expected a duration such as 90m, 12h, 30d or 8w, or a date, got {text!r}."
        ) from None
    return format_rfc3339(moment if moment.tzinfo else moment.replace(tzinfo=UTC))


def _key_summary(key: ApiKey, user: str) -> KeySummary:
    return KeySummary(
        id=key.id,
        user=user,
        name=key.name,
        state=api_keys.state(key),
        ends_with=key.hint,
        scopes=key.scopes,
        created_at=key.created_at,
        expires_at=key.expires_at,
        revoked_at=key.revoked_at,
        last_used_at=key.last_used_at,
    )


def _key_row(key: KeySummary) -> tuple[str, ...]:
    return (
        key.id,
        key.user,
        key.name or "-",
        key.state,
        f"…{key.ends_with}",
        ",".join(key.scopes),
        format_age_of(key.created_at),
        key.expires_at or "never",
        format_age_of(key.last_used_at),
    )
