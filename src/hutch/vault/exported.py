"""What the public client exports: credentials in its encrypted form, many in one file."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from hutch.errors import InvalidInput
from hutch.vault import credentials, imports
from hutch.vault.credentials import Name


class Exported(msgspec.Struct, frozen=True, rename="camel"):
    """One credential, under the client's own names."""

    domain: str
    credential_key: str
    encrypted_value: str
    credential_type: str = "header"

    def __repr__(self) -> str:
        return f"Exported({self.domain!r})"


class _Wrapped(msgspec.Struct):
    credentials: list[Exported]


def read(text: str) -> list[Exported]:
    """From a list, or from an object that has one as `credentials`. Raises InvalidInput."""
    try:
        if text.lstrip().startswith("["):
            return msgspec.json.decode(text, type=list[Exported])
        return msgspec.json.decode(text, type=_Wrapped).credentials
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        reason = error if isinstance(error, msgspec.ValidationError) else "it is no JSON"
        raise InvalidInput(
            "credentials",
            "expected a list of objects with domain, credentialType, credentialKey and encryptedValue: "
            f"{reason}.",
        ) from None


def open_all(found: Sequence[Exported], key: str) -> list[tuple[Name, str]]:
    """Raises InvalidInput for the first that cannot be kept, by its place in the list."""
    opened = []
    for place, each in enumerate(found):
        try:
            name = credentials.name(each.domain, each.credential_type, each.credential_key)
            value = imports.open_public(each.encrypted_value, key)
            credentials.check_value(name.kind, value)
        except InvalidInput as error:
            raise InvalidInput(f"credentials[{place}]", str(error)) from None
        opened.append((name, value))
    return opened
