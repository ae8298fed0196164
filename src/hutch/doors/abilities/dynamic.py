"""Dynamic headers: which credentials an ability needs, and which of a user's are those."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from hutch.doors.abilities import keys
from hutch.doors.abilities.documents import Document
from hutch.doors.abilities.injecting import Header
from hutch.doors.abilities.keys import Key
from hutch.vault.credentials import IN_HEADERS, Secret

_COOKIE = "cookie"
_AUTHORIZATION = "authorization"


class Resolved(msgspec.Struct, kw_only=True):
    """What was found of what is needed."""

    headers: list[Header] = []
    secrets: list[Secret] = []
    """Those that are in the headers."""
    missing: list[Key] = []
    unusable: list[tuple[Key, str]] = []
    """What is there, but of a kind that no header can carry."""


def needed(document: Document) -> list[Key]:
    if not document.requires_dynamic_headers:
        return []
    return [keys.read(text, document.service_name) for text in document.dynamic_header_keys]


def domains(wanted: Iterable[Key]) -> list[str]:
    return list(dict.fromkeys(key.host for key in wanted if key.host is not None))


def resolve(wanted: Iterable[Key], secrets: Sequence[Secret]) -> Resolved:
    """The user's secrets for what is wanted."""
    resolved = Resolved()
    for key in wanted:
        there = [each for each in secrets if each.credential.domain == key.host]
        called_so = [each for each in there if each.credential.key.lower() == key.name.lower()]
        usable = [each for each in called_so if each.credential.kind in IN_HEADERS]
        # Of two kinds under one name, what was set last is what its user wants.
        usable.sort(key=lambda each: each.credential.updated_at, reverse=True)
        chosen = usable[:1] or [each for each in there if _provides(each) == key.name.lower()]
        if chosen:
            for each in chosen:
                name, value = _header(each)
                resolved.headers.append(Header(key, name, value, each.credential.id))
                resolved.secrets.append(each)
        elif called_so:
            resolved.unusable.append((key, called_so[0].credential.kind))
        else:
            resolved.missing.append(key)
    return resolved


def _provides(secret: Secret) -> str:
    match secret.credential.kind:
        case "cookie":
            return _COOKIE
        case "auth_token":
            return _AUTHORIZATION
    return ""


def _header(secret: Secret) -> tuple[str, str]:
    """Name and value of the header that carries it."""
    key, value = secret.credential.key, secret.value
    match secret.credential.kind:
        case "cookie":
            whole = key.lower() == _COOKIE or value.startswith(f"{key}=")
            return "Cookie", value if whole else f"{key}={value}"
        case "auth_token":
            return "Authorization", value if value[:7].lower() == "bearer " else f"Bearer {value}"
    return key, value
