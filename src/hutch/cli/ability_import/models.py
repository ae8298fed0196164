"""Imported abilities, and the credentials that they need."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import SplitResult

import msgspec

from hutch.errors import InvalidInput
from hutch.protocols.abilities.definition import id_error
from hutch.session.json_value import NotJsonSafe, decode_value
from hutch.session.schema.validate import well_formed_value

MAX_ABILITIES = 500
"""Maximum number of abilities that one import makes."""
_MAX_ID_CHARS = 100
_MAX_VALUES = 2_000_000
_SURROGATE = re.compile(r"\\[uU]0*[dD][89a-fA-F]")


class NeededCredential(msgspec.Struct, frozen=True):
    """A credential that the ability needs. The import never keeps its value."""

    key: str
    kind: str
    hint: str = ""
    """Tells the user what to enter. Empty if the name of the credential says it."""


def credential_kinds(credentials: Iterable[NeededCredential]) -> dict[str, dict[str, str]]:
    """Returns the field `credential_kinds` of a definition, or nothing if all credentials are headers."""
    kinds = {each.key: each.kind for each in credentials}
    return {"credential_kinds": kinds} if set(kinds.values()) - {"header"} else {}


class ImportedAbility(msgspec.Struct, frozen=True):
    definition: dict[str, Any]
    credentials: list[NeededCredential]
    http_address: str | None = None
    """Host and port that have to be allowed, because the API is reached over http. None for https."""

    @property
    def ability_id(self) -> str:
        return str(self.definition["ability_id"])


class ImportResult(msgspec.Struct, frozen=True):
    abilities: list[ImportedAbility]
    notes: list[str] = []
    """Parts that were left out, with the reasons."""


def http_address(parts: SplitResult) -> str | None:
    """Returns host and port of a URL if its scheme is http."""
    return f"{parts.hostname}:{parts.port or 80}" if parts.scheme == "http" else None


def make_id(candidates: Iterable[str], taken: Iterable[str] = ()) -> str:
    """Returns an ability id made from the first candidate that gives a valid id. Adds a number if that id is
    taken.
    """
    ids = (re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_")[:_MAX_ID_CHARS] for text in candidates)
    ability_id = next((each for each in ids if each and id_error(each) is None), "ability")
    used, number, unique = set(taken), 1, ability_id
    while unique in used:
        number += 1
        unique = f"{ability_id}_{number}"
    return unique


def js(value: Any) -> str:
    """Returns a JSON value as JavaScript. The result is ASCII, so no text can end the literal."""
    return json.dumps(value)


def decode_json(option: str, text: str) -> Any:
    """Decodes a document. Raises InvalidInput."""
    try:
        # Allow more values than in a request, because documents of large APIs have more.
        return without_surrogates(decode_value(text.encode(), _MAX_VALUES), text)
    except (NotJsonSafe, UnicodeEncodeError) as error:
        raise InvalidInput(option, f"expected JSON: {error}.") from None


def without_surrogates(value: Any, text: str) -> Any:
    """Replaces lone surrogates, which cannot be encoded in UTF-8. `text` is the document as text, in which
    lone surrogates can only be written as escapes.
    """
    return well_formed_value(value) if _SURROGATE.search(text) else value


_EXAMPLES: dict[str, Any] = {
    "string": "…",
    "integer": 1,
    "number": 1,
    "boolean": True,
    "array": [],
    "object": {},
}


def example_params(definition: dict[str, Any]) -> dict[str, Any]:
    """Returns parameters for a first run: for each required parameter its default, its first enum value, or
    an example of its type.
    """
    schema = definition["input_schema"]
    examples: dict[str, Any] = {}
    for name in schema.get("required", ()):
        property_schema = schema["properties"].get(name)
        property_schema = property_schema if isinstance(property_schema, dict) else {}
        kind = property_schema.get("type", "object" if "$ref" in property_schema else "string")
        kind = kind[0] if isinstance(kind, list) and kind else kind
        values = property_schema.get("enum") or [_EXAMPLES.get(str(kind), "…")]
        examples[name] = property_schema.get("default", values[0])
    return examples
