"""`hutch credential`: what is kept for a user. Values go in and never come out."""

from __future__ import annotations

from pathlib import Path

import msgspec

from hutch.cli import hidden
from hutch.cli.arguments import text_of
from hutch.cli.opened import user_named, with_store, with_vault
from hutch.cli.output import print_json
from hutch.cli.table import print_note, print_table, since
from hutch.errors import InvalidInput
from hutch.store.rows import Credential
from hutch.store.store import Store
from hutch.vault import credentials, exported, imports
from hutch.vault.vault import Vault

VARIABLE = "HUTCH_CREDENTIAL_KEY"
_WHAT = "the key that the public client encrypted with"


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """What is told of a credential."""

    id: str
    domain: str
    key: str
    kind: str
    state: str
    ends_with: str
    """Its last four characters, or nothing where these would tell too much."""
    created_at: str
    updated_at: str
    expired_at: str | None
    cause: str | None


def set_credential(user: str, about: str, *, kind: str, encrypted: bool) -> int:
    name = credentials.parse_name(about, kind)
    # Whoever has no such user, or the wrong master key, is told before a secret is asked for.
    with_vault(lambda vault: user_named(vault.store, user))
    key = hidden.variable(VARIABLE, _WHAT) if encrypted else ""
    value = hidden.read(f"Value of {name}")
    value = imports.open_public(value, key) if encrypted else value

    async def put(vault: Vault) -> None:
        owner = await user_named(vault.store, user)
        await vault.put_credential(owner, name.domain, kind, name.key, value)

    with_vault(put)
    print_note(f"{name} is kept for {user}")
    if kind == "header" and name.key.lower() == "authorization" and " " not in value:
        print_note("it is sent as it is; if `Bearer` belongs in front, set it again with that")
    return 0


def import_credentials(user: str, file: Path | None) -> int:
    """All of them, or none if any cannot be read."""
    found = exported.read(text_of(file))
    key = hidden.variable(VARIABLE, _WHAT)
    opened = exported.open_all(found, key)

    async def put(vault: Vault) -> None:
        owner = await user_named(vault.store, user)
        for name, value in opened:
            await vault.put_credential(owner, name.domain, name.kind, name.key, value)

    with_vault(put)
    for name, _ in opened:
        print(f"{name} ({name.kind})")
    print_note(f"{_count(len(opened))} kept for {user}")
    return 0


def list_credentials(user: str, *, domain: str | None = None, json: bool) -> int:
    host = None if domain is None else credentials.read_domain(domain)
    found = _listed(user, host)
    if json:
        print_json(msgspec.json.encode([_shown(each) for each in found]))
    elif found:
        _print(found)
    else:
        print_note(f"{user} has no credentials; `hutch credential set --user {user} DOMAIN::NAME` keeps one")
    return 0


def show_credential(user: str, about: str, *, json: bool) -> int:
    """Of a domain all, or those of one name."""
    domain, key = _domain_and_key(about)
    found = [each for each in _listed(user, domain) if key is None or each.key.lower() == key.lower()]
    if not found:
        raise InvalidInput("DOMAIN", f"{user} has no credential for it.", remedy=_LIST.format(user=user))
    if json:
        print_json(msgspec.json.encode([_shown(each) for each in found]))
    else:
        _print(found)
    return 0


def remove_credentials(user: str, about: str, *, kind: str | None) -> int:
    """Of a domain all, or those of one name."""
    domain, key = _domain_and_key(about)

    async def remove(store: Store) -> int:
        owner = await user_named(store, user)
        return await store.credentials.remove(owner.id, domain, key=key, kind=kind)

    count = with_store(remove)
    if not count:
        raise InvalidInput("DOMAIN", f"{user} has no such credential.", remedy=_LIST.format(user=user))
    print(f"removed {count} of {about}")
    return 0


def _count(number: int) -> str:
    return "1 credential is" if number == 1 else f"{number} credentials are"


_LIST = "`hutch credential list --user {user}` has all."


def _domain_and_key(about: str) -> tuple[str, str | None]:
    domain, separator, key = about.rpartition("::")
    return credentials.read_domain(domain if separator else about), key if separator else None


def _listed(user: str, domain: str | None) -> list[Credential]:
    async def listed(store: Store) -> list[Credential]:
        owner = await user_named(store, user)
        found = await store.credentials.list(owner.id)
        return [each for each in found if domain in (None, each.domain)]

    return with_store(listed)


def _print(found: list[Credential]) -> None:
    heads = ("DOMAIN", "NAME", "KIND", "STATE", "VALUE", "SET", "CAUSE")
    print_table(
        heads,
        [
            (
                each.domain,
                each.key,
                each.kind,
                each.state,
                f"…{each.hint}" if each.hint else "…",
                since(each.updated_at),
                f"{each.cause}, {since(each.expired_at)}" if each.cause else "",
            )
            for each in found
        ],
    )


def _shown(credential: Credential) -> Shown:
    return Shown(
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
