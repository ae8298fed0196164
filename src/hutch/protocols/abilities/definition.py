"""Ability definitions: strict parsing, encoding as JSON, and the database row."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from hutch.errors import InvalidAbility
from hutch.problems import Problem, ProblemList
from hutch.protocols.abilities import params
from hutch.session.json_value import kind_of
from hutch.store import models
from hutch.store.models import Ability
from hutch.text import did_you_mean, is_storable_text
from hutch.vault.credentials import KINDS

MAX_ID_CHARS = 200
MAX_NAME_CHARS = 500
MAX_DESCRIPTION_CHARS = 20_000
MAX_ITEMS = 200
MAX_FIELDS = 200
MAX_VALUE_CHARS = 16_384
MAX_PATH_CHARS = 500
MAX_CODE_BYTES = 4 * 1024 * 1024
# Maximum size of the stored definition, because lists and searches read many definitions.
MAX_DEFINITION_BYTES = 1024 * 1024
# Ids that abilities cannot have, because routes use these names.
RESERVED_IDS = frozenset({"search"})

_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@~-]*\Z")
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+\Z")
_HOST_WITH_PORT = re.compile(
    r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?(:[0-9]{1,5})?\Z|\[[0-9A-Fa-f:.]+\](:[0-9]{1,5})?\Z"
)

_SEGMENT = r"(?:\.[^.\[\]\s]+|\[[0-9]{1,9}\])"
_PATH = re.compile(rf"body{_SEGMENT}*|(?:headers|cookies)\.[^.\[\]\s]+")
# Default kind of a produced credential, by the credential's name in lower case.
_DEFAULT_KINDS = {"authorization": "auth_token", "cookie": "cookie"}


class StaticHeader(msgspec.Struct, frozen=True):
    """A header whose value is computed by JavaScript code."""

    key: str
    value_code: str

    def __repr__(self) -> str:
        return f"StaticHeader({self.key!r})"


class ProducedCredential(msgspec.Struct, frozen=True):
    """A part of the response, such as `body.access_token`, that is stored as the credential `host::Name`."""

    key: str
    path: str
    kind: str


class AbilityDefinition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The stored definition of an ability. `repr` omits the code."""

    ability_id: str
    ability_name: str
    service_name: str
    wrapper_code: str
    description: str = ""
    static_headers: list[StaticHeader] | dict[str, str] = {}
    dynamic_header_keys: list[str] = []
    requires_dynamic_headers: bool = False
    credential_kinds: dict[str, str] = {}
    """Kinds of the credentials in `dynamic_header_keys`. They tell users which kind of credential to store.
    """
    input_schema: dict[str, Any] | None = None
    dependency_order: list[str] = []
    missing_dependencies: list[str] = []
    """Ids of dependencies that the author declared as missing (`dependencies.missing`)."""
    produces: list[ProducedCredential] = []

    def __repr__(self) -> str:
        return f"AbilityDefinition({self.ability_id!r})"

    @property
    def static_header_keys(self) -> list[str]:
        headers = self.static_headers
        return [*headers] if isinstance(headers, dict) else [header.key for header in headers]


def encode_definition(definition: AbilityDefinition) -> str:
    return msgspec.json.encode(definition).decode()


_decoder = msgspec.json.Decoder(AbilityDefinition)


def decode_definition(text: str) -> AbilityDefinition:
    """Decodes a stored definition without validating it again."""
    return _decoder.decode(text)


def parse_definition(
    value: object, *, ability_id: str | None = None, max_code_bytes: int = MAX_CODE_BYTES
) -> AbilityDefinition:
    """Parses an ability definition. Raises InvalidAbility with the problems of the definition.

    `ability_id` is the id from the URL, or None. If the URL has an id, the body may omit the id but must not
    contradict it.
    """
    if not isinstance(value, dict):
        raise InvalidAbility([f"body: expected an object, got {kind_of(value)}"])
    parser = _Parser(value)
    definition = AbilityDefinition(
        ability_id=parser.ability_id(ability_id),
        ability_name=parser.name(),
        service_name=parser.text("service_name", max_length=MAX_NAME_CHARS),
        wrapper_code=parser.code("wrapper_code", max_code_bytes),
        description=parser.text("description", "", max_length=MAX_DESCRIPTION_CHARS, multiline=True),
        static_headers=parser.static_headers(),
        dynamic_header_keys=parser.dynamic_header_keys(),
        requires_dynamic_headers=parser.requires_dynamic_headers(),
        credential_kinds=parser.credential_kinds(),
        input_schema=parser.input_schema(),
        dependency_order=parser.ids("dependency_order"),
        missing_dependencies=parser.missing_dependencies(),
        produces=parser.produces(),
    )
    parser.check_typos()
    if not len(parser.problems) and (size := len(msgspec.json.encode(definition))) > MAX_DEFINITION_BYTES:
        parser.add_problem("body", f"the ability has {size} bytes; the maximum is {MAX_DEFINITION_BYTES}")
    parser.problems.raise_if_any()
    return definition


_KNOWN_FIELDS = (
    *(name for name in AbilityDefinition.__struct_fields__ if name != "missing_dependencies"),
    "dependencies",
)


def _invalid_ability(problems: list[Problem]) -> InvalidAbility:
    return InvalidAbility([str(problem) for problem in problems])


class _Parser:
    """Parses one definition and collects the problems of that definition."""

    def __init__(self, value: dict[str, Any]) -> None:
        self._value = value
        self.problems = ProblemList(_invalid_ability)

    def add_problem(self, where: str, message: str) -> None:
        """Adds a problem. Raises InvalidAbility if there are too many."""
        self.problems.add(where, message)

    # --- texts ---

    def text(
        self, field: str, default: str | None = None, *, max_length: int, multiline: bool = False
    ) -> str:
        """Returns the text of a field. With a default, the field may be missing or null."""
        value = self._value.get(field)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            self.add_problem(field, f"expected a string, got {self._got(field)}")
        elif not value.strip() and default is None:
            self.add_problem(field, "expected a string that is not empty")
        elif len(value) > max_length:
            self.add_problem(field, f"expected at most {max_length} characters, got {len(value)}")
        elif not is_storable_text(value):
            self.add_problem(field, "expected text without NUL and lone surrogates")
        elif not multiline and ("\n" in value or "\r" in value):
            self.add_problem(field, "expected one line")
        else:
            return value
        return ""

    def ability_id(self, known: str | None) -> str:
        if known is not None and self._value.get("ability_id") is None:
            self._value = {**self._value, "ability_id": known}
        before = len(self.problems)
        ability_id = self.text("ability_id", max_length=MAX_ID_CHARS)
        if len(self.problems) > before:
            return ""
        if (error := id_error(ability_id)) is not None:
            self.add_problem("ability_id", error)
        elif known is not None and ability_id != known:
            self.add_problem(
                "ability_id", f"expected {known!r} as in the path, or nothing, got {ability_id[:80]!r}"
            )
        return ability_id

    def name(self) -> str:
        """Returns the ability's name, or its id if there is no name."""
        name = self.text("ability_name", "", max_length=MAX_NAME_CHARS)
        ability_id = self._value.get("ability_id")
        return name or (ability_id if isinstance(ability_id, str) else "")

    def code(self, field: str, max_bytes: int) -> str:
        code = self.text(field, max_length=max_bytes, multiline=True)
        if len(code) * 4 > max_bytes and (size := len(code.encode())) > max_bytes:
            self.add_problem(field, f"has {size} bytes; the maximum is {max_bytes}")
        return code

    # --- headers ---

    def static_headers(self) -> list[StaticHeader] | dict[str, str]:
        value = self._value.get("static_headers")
        match value:
            case None:
                return {}
            case dict() | list() if not self._has_valid_count("static_headers", value):
                return {}
            case dict():
                for key, text in value.items():
                    where = f"static_headers[{_quoted(key)}]"
                    self._header_key(where, key)
                    if not isinstance(text, str):
                        self.add_problem(where, f"expected a string, got {kind_of(text)}")
                    else:
                        self._header_value(where, text)
                return {key: text for key, text in value.items() if isinstance(text, str)}
            case list():
                headers = [
                    self._static_header(f"static_headers[{index}]", item) for index, item in enumerate(value)
                ]
                return [header for header in headers if header is not None]
        self.add_problem("static_headers", f"expected an object or an array, got {kind_of(value)}")
        return {}

    def _static_header(self, where: str, value: object) -> StaticHeader | None:
        if not isinstance(value, dict):
            self.add_problem(where, f"expected {{key, value_code}}, got {kind_of(value)}")
            return None
        key, code = value.get("key"), value.get("value_code")
        if not isinstance(key, str):
            self.add_problem(f"{where}.key", f"expected a string, got {_got(value, 'key')}")
        else:
            self._header_key(f"{where}.key", key)
        if not isinstance(code, str) or not code.strip():
            self.add_problem(
                f"{where}.value_code", f"expected code such as () => 'v', got {_got(value, 'value_code')}"
            )
        elif len(code) > MAX_VALUE_CHARS or not is_storable_text(code):
            self.add_problem(
                f"{where}.value_code", f"expected at most {MAX_VALUE_CHARS} characters, without NUL"
            )
        if isinstance(key, str) and isinstance(code, str):
            return StaticHeader(key, code)
        return None

    def dynamic_header_keys(self) -> list[str]:
        return self._list("dynamic_header_keys", self._header_key)

    def requires_dynamic_headers(self) -> bool:
        value = self._value.get("requires_dynamic_headers")
        if value is None:
            return bool(self._value.get("dynamic_header_keys"))
        if not isinstance(value, bool):
            self.add_problem("requires_dynamic_headers", f"expected true or false, got {kind_of(value)}")
        return value is True

    def credential_kinds(self) -> dict[str, str]:
        value = self._value.get("credential_kinds")
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.add_problem("credential_kinds", f"expected an object, got {kind_of(value)}")
            return {}
        if not self._has_valid_count("credential_kinds", value):
            return {}
        keys = self._value.get("dynamic_header_keys")
        for key, kind in value.items():
            where = f"credential_kinds[{_quoted(key)}]"
            if not isinstance(keys, list) or key not in keys:
                self.add_problem(where, "expected a key of dynamic_header_keys")
            if kind not in KINDS:
                self.add_problem(where, f"expected one of {', '.join(KINDS)}, got {_quoted(str(kind))}")
        return {key: str(kind) for key, kind in value.items()}

    def _header_key(self, where: str, key: str) -> None:
        """Checks a header key: `host::Name`, or a name alone."""
        host, separator, name = key.rpartition("::")
        if not _TOKEN.match(name) or len(name) > MAX_ID_CHARS:
            self.add_problem(where, f"expected `host::Name` or the name of a header, got {_quoted(key)}")
        elif separator and not _HOST_WITH_PORT.match(host):
            self.add_problem(where, f"expected a host before `::`, got {_quoted(host)}")

    def _header_value(self, where: str, text: str) -> None:
        if len(text) > MAX_VALUE_CHARS:
            self.add_problem(where, f"expected at most {MAX_VALUE_CHARS} characters, got {len(text)}")
        elif any(character in text for character in "\r\n\0") or not is_storable_text(text):
            self.add_problem(where, "expected a header value without line breaks and NUL")

    def produces(self) -> list[ProducedCredential]:
        """Parses `{"host::Name": "body.token"}` or `{"host::Name": {"from": "body.token", "kind": …}}`."""
        value = self._value.get("produces")
        if value is None:
            return []
        if not isinstance(value, dict):
            self.add_problem("produces", f"expected an object, got {kind_of(value)}")
            return []
        if not self._has_valid_count("produces", value):
            return []
        return [self._produced(f"produces[{_quoted(key)}]", key, item) for key, item in value.items()]

    def _produced(self, where: str, key: str, value: object) -> ProducedCredential:
        self._header_key(where, key)
        if "::" not in key:
            self.add_problem(where, f"expected `host::Name`, got {_quoted(key)}")
        path, kind = (value.get("from"), value.get("kind")) if isinstance(value, dict) else (value, None)
        if not isinstance(path, str) or len(path) > MAX_PATH_CHARS or not _PATH.fullmatch(path):
            examples = "body.access_token, headers.x-token or cookies.session"
            self.add_problem(where, f"expected a part of the response, such as {examples}")
        if kind is not None and kind not in KINDS:
            self.add_problem(where, f"kind: expected one of {', '.join(KINDS)}, got {_quoted(str(kind))}")
        default_kind = _DEFAULT_KINDS.get(key.rpartition("::")[2].lower(), "header")
        return ProducedCredential(key, str(path), default_kind if kind is None else str(kind))

    # --- schema and dependencies ---

    def input_schema(self) -> dict[str, Any] | None:
        value = self._value.get("input_schema")
        if value is None:
            return None
        if not isinstance(value, dict):
            self.add_problem("input_schema", f"expected a JSON Schema, got {kind_of(value)}")
            return None
        if (error := params.schema_error(value)) is not None:
            self.add_problem("input_schema", error)
        return value

    def ids(self, field: str) -> list[str]:
        def check(where: str, ability_id: str) -> None:
            if (error := id_error(ability_id)) is not None:
                self.add_problem(where, error)

        return self._list(field, check)

    def missing_dependencies(self) -> list[str]:
        """Parses `dependencies.missing`: ids, or objects with `ability_id` or `abilityId`."""
        value = self._value.get("dependencies")
        if value is None:
            return []
        if not isinstance(value, dict):
            self.add_problem("dependencies", f"expected an object, got {kind_of(value)}")
            return []
        missing = value.get("missing")
        if missing is None:
            return []
        if not isinstance(missing, list):
            self.add_problem("dependencies.missing", f"expected an array, got {kind_of(missing)}")
            return []
        if not self._has_valid_count("dependencies.missing", missing):
            return []
        ids = []
        for index, item in enumerate(missing):
            ability_id = item.get("ability_id", item.get("abilityId")) if isinstance(item, dict) else item
            if not isinstance(ability_id, str) or id_error(ability_id) is not None:
                self.add_problem(
                    f"dependencies.missing[{index}]", "expected the id of an ability, or {ability_id}"
                )
            else:
                ids.append(ability_id)
        return ids

    def check_typos(self) -> None:
        """Rejects unknown fields with names similar to known fields. Other unknown fields are ignored."""
        if len(self._value) > MAX_FIELDS:
            self.add_problem("body", f"expected at most {MAX_FIELDS} fields, got {len(self._value)}")
            return
        for name in self._value:
            if name not in _KNOWN_FIELDS and (near := did_you_mean(name, _KNOWN_FIELDS, cutoff=0.85)):
                self.add_problem(name, f"there is no such field. Did you mean {near}?")

    def _list(self, field: str, check: Callable[[str, str], None]) -> list[str]:
        value = self._value.get(field)
        if value is None:
            return []
        if not isinstance(value, list):
            self.add_problem(field, f"expected an array of strings, got {kind_of(value)}")
            return []
        if not self._has_valid_count(field, value):
            return []
        for index, item in enumerate(value):
            where = f"{field}[{index}]"
            if isinstance(item, str):
                check(where, item)
            else:
                self.add_problem(where, f"expected a string, got {kind_of(item)}")
        return [item for item in value if isinstance(item, str)]

    def _has_valid_count(self, field: str, items: dict[str, Any] | list[Any]) -> bool:
        if len(items) > MAX_ITEMS:
            self.add_problem(field, f"expected at most {MAX_ITEMS} items, got {len(items)}")
        return len(items) <= MAX_ITEMS

    def _got(self, field: str) -> str:
        return _got(self._value, field)


def id_error(text: str) -> str | None:
    """Returns the reason why a text cannot be an ability id, or None if it can."""
    if len(text) > MAX_ID_CHARS or not _ID.match(text):
        return f"expected up to {MAX_ID_CHARS} letters, digits and _ - . : @ ~, got {_quoted(text)}"
    return f"{text!r} is reserved for a route" if text in RESERVED_IDS else None


def _got(value: dict[str, Any], field: str) -> str:
    return kind_of(value[field]) if field in value else "nothing"


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}…")


def definition_row(definition: AbilityDefinition, owner_id: str, *, shared: bool = False) -> Ability:
    """Builds the database row."""
    now = models.now()
    return Ability(
        ability_id=definition.ability_id,
        owner_id=owner_id,
        shared=shared,
        name=definition.ability_name,
        service_name=definition.service_name,
        description=definition.description,
        document=encode_definition(definition),
        requires_dynamic_headers=definition.requires_dynamic_headers,
        created_at=now,
        updated_at=now,
    )
