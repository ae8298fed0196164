"""`hutch credential` and `hutch vault`: manages users' secrets and the keys that encrypt them."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import msgspec

from hutch.cli.support import prompts
from hutch.cli.support.arguments import read_text
from hutch.cli.support.console import (
    format_age_of,
    print_facts,
    print_json,
    print_line,
    print_note,
    print_table,
)
from hutch.cli.support.store import find_user, with_store, with_vault
from hutch.errors import InvalidInput, VaultError
from hutch.settings import load_settings
from hutch.store.models import Credential
from hutch.store.store import Store
from hutch.vault import client_import, credentials, crypto, data_keys, master_key_check, rotation
from hutch.vault.tokens import Tokens
from hutch.vault.vault import Vault

KEY_VARIABLE = "HUTCH_CREDENTIAL_KEY"
_KEY_LABEL = "the key that the public client encrypted with"

_LIST_HINT = "`hutch credential list --user {user}` lists all."


# --- credentials ---


class CredentialSummary(msgspec.Struct, frozen=True, kw_only=True):
    """JSON output of `hutch credential list` and `show`, without the value."""

    id: str
    domain: str
    key: str
    kind: str
    state: str
    ends_with: str
    """Last four characters of the value, or empty if the value is too short to show them."""
    created_at: str
    updated_at: str
    expired_at: str | None
    cause: str | None


def set_credential(user: str, about: str, *, kind: str, encrypted: bool) -> int:
    name = credentials.parse_name(about, kind)
    # Report an unknown user or a wrong master key before asking for the secret.
    with_vault(lambda vault: find_user(vault.store, user))
    key = prompts.secret_from_env(KEY_VARIABLE, _KEY_LABEL) if encrypted else ""
    value = prompts.read_secret(f"Value of {name}")
    value = client_import.decrypt_value(value, key) if encrypted else value

    async def put(vault: Vault) -> None:
        owner = await find_user(vault.store, user)
        await vault.put_credential(owner, name.domain, kind, name.key, value)

    with_vault(put)
    print_note(f"stored {name} for {user}")
    if kind == "header" and name.key.lower() == "authorization" and " " not in value:
        print_note(
            "the value is sent unchanged; if the API expects `Bearer` in front, set it again with that"
        )
    return 0


def import_credentials(user: str, file: Path | None) -> int:
    """Imports all credentials of an export, or none if any cannot be decrypted."""
    entries = client_import.parse_export(read_text(file))
    key = prompts.secret_from_env(KEY_VARIABLE, _KEY_LABEL)
    decrypted = client_import.decrypt_export(entries, key)

    async def put(vault: Vault) -> None:
        owner = await find_user(vault.store, user)
        for name, value in decrypted:
            await vault.put_credential(owner, name.domain, name.kind, name.key, value)

    with_vault(put)
    for name, _ in decrypted:
        print_line(f"{name} ({name.kind})")
    print_note(f"stored {len(decrypted)} credential{'' if len(decrypted) == 1 else 's'} for {user}")
    return 0


def list_credentials(user: str, *, domain: str | None = None, json: bool) -> int:
    host = None if domain is None else credentials.normalize_domain(domain)
    rows = _load_credentials(user, host)
    if json:
        print_json(msgspec.json.encode([_credential_summary(row) for row in rows]))
    elif rows:
        _print_credentials(rows)
    else:
        print_note(f"{user} has no credentials; `hutch credential set --user {user} DOMAIN::NAME` stores one")
    return 0


def show_credential(user: str, about: str, *, json: bool) -> int:
    """Shows all credentials of a domain, or those with one name."""
    domain, key = _domain_and_key(about)
    rows = [row for row in _load_credentials(user, domain) if key is None or row.key.lower() == key.lower()]
    if not rows:
        raise InvalidInput(
            "DOMAIN", f"{user} has no credential for this domain.", remedy=_LIST_HINT.format(user=user)
        )
    if json:
        print_json(msgspec.json.encode([_credential_summary(row) for row in rows]))
    else:
        _print_credentials(rows)
    return 0


def remove_credentials(user: str, about: str, *, kind: str | None) -> int:
    """Removes all credentials of a domain, or those with one name."""
    domain, key = _domain_and_key(about)

    async def remove(store: Store) -> int:
        owner = await find_user(store, user)
        return await store.credentials.remove(owner.id, domain, key=key, kind=kind)

    count = with_store(remove)
    if not count:
        raise InvalidInput("DOMAIN", f"{user} has no such credential.", remedy=_LIST_HINT.format(user=user))
    print_line(f"removed {count} of {about}")
    return 0


def _domain_and_key(about: str) -> tuple[str, str | None]:
    domain, separator, key = about.rpartition("::")
    return credentials.normalize_domain(domain if separator else about), key if separator else None


def _load_credentials(user: str, domain: str | None) -> list[Credential]:
    async def load(store: Store) -> list[Credential]:
        owner = await find_user(store, user)
        return [row for row in await store.credentials.list(owner.id) if domain in (None, row.domain)]

    return with_store(load)


def _print_credentials(rows: list[Credential]) -> None:
    headers = ("DOMAIN", "NAME", "KIND", "STATE", "VALUE", "SET", "CAUSE")
    print_table(
        headers,
        [
            (
                row.domain,
                row.key,
                row.kind,
                row.state,
                f"…{row.hint}" if row.hint else "…",
                format_age_of(row.updated_at),
                f"{row.cause}, {format_age_of(row.expired_at)}" if row.cause else "",
            )
            for row in rows
        ],
    )


def _credential_summary(credential: Credential) -> CredentialSummary:
    return CredentialSummary(
        id=credential.id,
        domain=credential.domain,
        key=credential.key,
        kind=credential.kind,
        state=credential.state,
        ends_with=credential.hint,
        created_at=credential.created_at,
        updated_at=credential.updated_at,
        expired_at=credential.expired_at,
        cause=credential.cause,
    )


# --- encryption keys ---


class MasterKeyStatus(msgspec.Struct, frozen=True, kw_only=True):
    """State of a master key, with the numbers of users and tokens that are still encrypted with it."""

    id: str
    state: str
    """`current`, `older`, or `missing`."""
    users: int
    tokens: int
    flows: bool
    """True if the data keys of flows are encrypted with this master key."""

    @property
    def is_needed(self) -> bool:
        return bool(self.users or self.tokens or self.flows)


class VaultStatus(msgspec.Struct, frozen=True, kw_only=True):
    """JSON output of `hutch vault status`. Collecting it decrypts nothing."""

    source: str
    masters: list[MasterKeyStatus]
    users: int
    problem: str | None


def show_vault_status(*, json: bool) -> int:
    """Prints the status. Returns 1 if any data cannot be decrypted."""
    status = with_store(_load_vault_status)
    if json:
        print_json(msgspec.json.encode(status))
        return 1 if status.problem else 0
    print_facts([("master keys from", status.source), ("users", str(status.users))])
    if status.masters:
        print_line("")
        rows = [
            (key.id, key.state, str(key.users), str(key.tokens), "yes" if key.flows else "no")
            for key in status.masters
        ]
        print_table(("MASTER KEY", "STATE", "USERS", "TOKENS", "FLOWS"), rows)
    unused = [key.id for key in status.masters if key.state == "older" and not key.is_needed]
    if unused:
        print_note(f"{', '.join(unused)} is not needed here any more, but older backups need it")
    if status.problem:
        print_note(status.problem)
    return 1 if status.problem else 0


def rotate_keys(*, master: bool) -> int:
    """Creates new data keys for all users and flows. With `master`, creates a new master key first."""

    async def run(vault: Vault) -> rotation.RotationResult:
        if master:
            home = load_settings().home_path
            vault.master = crypto.add_master_key(home, os.environ)
            print_note(f"added a new master key to {home / crypto.MASTER_KEY_FILE}; back the file up")
        return await rotation.rotate(vault, print_note)

    result = with_vault(run)
    print_line(f"{result.users} users have new data keys, {result.credentials} credentials were re-encrypted")
    for name in result.unreadable:
        print_note(f"{name} cannot be decrypted and was not changed; set it again or remove it")
    return 1 if result.unreadable else 0


async def _load_vault_status(store: Store) -> VaultStatus:
    home = load_settings().home_path
    problem, ids, source = None, [], crypto.master_key_source(home, os.environ)
    try:
        master = crypto.load_master_keys(home, os.environ, create=False)
        ids = master.ids
        if await master_key_check.has_encrypted_data(store):
            await master_key_check.check(store, master)
    except VaultError as error:
        problem = str(error)
    users = await store.users.list()
    by_users = Counter(key_id for user in users for key_id in set(data_keys.master_key_ids(user.data_key)))
    tokens = Counter(Tokens.at(home, os.environ).master_key_ids())
    text = await store.meta.get(data_keys.FLOWS_META_KEY)
    flows = set() if text is None else set(data_keys.master_key_ids(text))
    missing = sorted((by_users.keys() | tokens.keys() | flows) - set(ids))
    if missing and problem is None:
        problem = (
            f"Data encrypted with {', '.join(missing)} cannot be read: add that key after the current one."
        )
    if not users and not await master_key_check.has_encrypted_data(store) and not tokens:
        # A missing key is no problem if nothing is encrypted yet, because adding the first user creates one.
        problem = None
    states = ["current", *["older"] * len(ids)]
    ids_and_states = [*zip(ids, states, strict=False), *((key_id, "missing") for key_id in missing)]
    return VaultStatus(
        source=source,
        masters=[
            MasterKeyStatus(
                id=key_id,
                state=state,
                users=by_users[key_id],
                tokens=tokens[key_id],
                flows=key_id in flows,
            )
            for key_id, state in ids_and_states
        ],
        users=len(users),
        problem=problem,
    )
