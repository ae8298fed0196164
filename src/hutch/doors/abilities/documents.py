"""An ability as its author wrote it: read strictly, kept as JSON, and shown without its code."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from hutch.doors.abilities import params
from hutch.errors import InvalidAbility
from hutch.session.jsonvalue import kind_of
from hutch.store import rows
from hutch.store.rows import Ability

MOST_ID = 200
MOST_NAME = 500
MOST_DESCRIPTION = 20_000
MOST_KEYS = 200
MOST_VALUE = 16_384
MOST_CODE = 4 * 1024 * 1024
# Of all that is kept of one: lists and searches read many.
MOST_DOCUMENT = 1024 * 1024
# Paths of the door that an ability's id would hide behind, or stand in front of.
TAKEN = frozenset({"search", "openapi.json"})

_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@~-]*\Z")
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+\Z")
_HOST = re.compile(
    r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?(:[0-9]{1,5})?\Z|\[[0-9A-Fa-f:.]+\](:[0-9]{1,5})?\Z"
)


class StaticHeader(msgspec.Struct, frozen=True):
    """A header whose value is what a piece of code returns."""

    key: str
    value_code: str

    def __repr__(self) -> str:
        return f"StaticHeader({self.key!r})"


class Document(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is kept of an ability. Its code is shown to nobody: not even here, by `repr`."""

    ability_id: str
    ability_name: str
    service_name: str
    wrapper_code: str
    description: str = ""
    static_headers: list[StaticHeader] | dict[str, str] = {}
    dynamic_header_keys: list[str] = []
    requires_dynamic_headers: bool = False
    input_schema: dict[str, Any] | None = None
    dependency_order: list[str] = []
    missing_dependencies: list[str] = []
    """Those that its author knew to be missing (`dependencies.missing`)."""

    def __repr__(self) -> str:
        return f"Document({self.ability_id!r})"

    @property
    def static_header_keys(self) -> list[str]:
        headers = self.static_headers
        return [*headers] if isinstance(headers, dict) else [each.key for each in headers]


def encode(document: Document) -> str:
    return msgspec.json.encode(document).decode()


_decoder = msgspec.json.Decoder(Document)


def decode(text: str) -> Document:
    """What `encode` made: it was checked then."""
    return _decoder.decode(text)


def read(value: object, *, ability_id: str | None = None, most_code: int = MOST_CODE) -> Document:
    """The ability that somebody describes. Raises InvalidAbility with everything that is wrong.

    `ability_id` is what it is called elsewhere already, in a path for example: then it need not say it again,
    and must not say otherwise.
    """
    if not isinstance(value, dict):
        raise InvalidAbility([f"body: expected an object, got {kind_of(value)}"])
    reading = _Reading(value)
    found = Document(
        ability_id=reading.ability_id(ability_id),
        ability_name=reading.name(),
        service_name=reading.text("service_name", most=MOST_NAME),
        wrapper_code=reading.code("wrapper_code", most_code),
        description=reading.text("description", "", most=MOST_DESCRIPTION, lines=True),
        static_headers=reading.static_headers(),
        dynamic_header_keys=reading.dynamic_header_keys(),
        requires_dynamic_headers=reading.requires_dynamic_headers(),
        input_schema=reading.input_schema(),
        dependency_order=reading.ids("dependency_order"),
        missing_dependencies=reading.missing(),
    )
    reading.look_for_typos()
    if not reading.problems and (size := len(msgspec.json.encode(found))) > MOST_DOCUMENT:
        reading.wrong("body", f"the ability has {size} bytes; the most is {MOST_DOCUMENT}")
    if reading.problems:
        raise InvalidAbility(reading.problems)
    return found


_KNOWN = (*(name for name in Document.__struct_fields__ if name != "missing_dependencies"), "dependencies")


class _Reading:
    """One description, and what is wrong with it."""

    def __init__(self, value: dict[str, Any]) -> None:
        self._value = value
        self.problems: list[str] = []

    def wrong(self, where: str, what: str) -> None:
        self.problems.append(f"{where[:120]}: {what}")

    # --- texts ---

    def text(self, field: str, default: str | None = None, *, most: int, lines: bool = False) -> str:
        """A text; it may be left out, or be null, where there is a default."""
        value = self._value.get(field)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            self.wrong(field, f"expected a string, got {self._got(field)}")
        elif not value.strip() and default is None:
            self.wrong(field, "expected a string that is not empty")
        elif len(value) > most:
            self.wrong(field, f"expected at most {most} characters, got {len(value)}")
        elif not _is_text(value):
            self.wrong(field, "expected text without NUL and lone surrogates")
        elif not lines and ("\n" in value or "\r" in value):
            self.wrong(field, "expected one line")
        else:
            return value
        return ""

    def ability_id(self, known: str | None) -> str:
        if known is not None and self._value.get("ability_id") is None:
            self._value = {**self._value, "ability_id": known}
        before = len(self.problems)
        found = self.text("ability_id", most=MOST_ID)
        if len(self.problems) > before:
            return ""
        if (fault := id_fault(found)) is not None:
            self.wrong("ability_id", fault)
        elif known is not None and found != known:
            self.wrong("ability_id", f"expected {known!r} as in the path, or nothing, got {found[:80]!r}")
        return found

    def name(self) -> str:
        """Without one, it is called what its id is."""
        found = self.text("ability_name", "", most=MOST_NAME)
        own = self._value.get("ability_id")
        return found or (own if isinstance(own, str) else "")

    def code(self, field: str, most: int) -> str:
        found = self.text(field, most=most, lines=True)
        if len(found) * 4 > most and (size := len(found.encode())) > most:
            self.wrong(field, f"has {size} bytes; the most is {most}")
        return found

    # --- headers ---

    def static_headers(self) -> list[StaticHeader] | dict[str, str]:
        value = self._value.get("static_headers")
        match value:
            case None:
                return {}
            case dict():
                self._count("static_headers", value)
                for key, text in value.items():
                    where = f"static_headers[{_quoted(key)}]"
                    self._header_key(where, key)
                    if not isinstance(text, str):
                        self.wrong(where, f"expected a string, got {kind_of(text)}")
                    else:
                        self._header_value(where, text)
                return {key: text for key, text in value.items() if isinstance(text, str)}
            case list():
                self._count("static_headers", value)
                found = [self._static_header(f"static_headers[{at}]", each) for at, each in enumerate(value)]
                return [each for each in found if each is not None]
        self.wrong("static_headers", f"expected an object or an array, got {kind_of(value)}")
        return {}

    def _static_header(self, where: str, value: object) -> StaticHeader | None:
        if not isinstance(value, dict):
            self.wrong(where, f"expected {{key, value_code}}, got {kind_of(value)}")
            return None
        key, code = value.get("key"), value.get("value_code")
        if not isinstance(key, str):
            self.wrong(f"{where}.key", f"expected a string, got {_got(value, 'key')}")
        else:
            self._header_key(f"{where}.key", key)
        if not isinstance(code, str) or not code.strip():
            self.wrong(
                f"{where}.value_code", f"expected code such as () => 'v', got {_got(value, 'value_code')}"
            )
        elif len(code) > MOST_VALUE or not _is_text(code):
            self.wrong(f"{where}.value_code", f"expected at most {MOST_VALUE} characters, without NUL")
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
            self.wrong("requires_dynamic_headers", f"expected true or false, got {kind_of(value)}")
        return value is True

    def _header_key(self, where: str, key: str) -> None:
        """`host::Name`, or the name alone."""
        host, separator, name = key.rpartition("::")
        if not _TOKEN.match(name) or len(name) > MOST_ID:
            self.wrong(where, f"expected `host::Name` or the name of a header, got {_quoted(key)}")
        elif separator and not _HOST.match(host):
            self.wrong(where, f"expected a host before `::`, got {_quoted(host)}")

    def _header_value(self, where: str, text: str) -> None:
        if len(text) > MOST_VALUE:
            self.wrong(where, f"expected at most {MOST_VALUE} characters, got {len(text)}")
        elif any(character in text for character in "\r\n\0") or not _is_text(text):
            self.wrong(where, "expected a header's value: no line breaks, no NUL")

    # --- the rest ---

    def input_schema(self) -> dict[str, Any] | None:
        value = self._value.get("input_schema")
        if value is None:
            return None
        if not isinstance(value, dict):
            self.wrong("input_schema", f"expected a JSON Schema, got {kind_of(value)}")
            return None
        if (fault := params.schema_fault(value)) is not None:
            self.wrong("input_schema", fault)
        return value

    def ids(self, field: str) -> list[str]:
        def check(where: str, each: str) -> None:
            if (fault := id_fault(each)) is not None:
                self.wrong(where, fault)

        return self._list(field, check)

    def missing(self) -> list[str]:
        """`dependencies.missing`: ids, or objects that have one by either of its names."""
        value = self._value.get("dependencies")
        if value is None:
            return []
        if not isinstance(value, dict):
            self.wrong("dependencies", f"expected an object, got {kind_of(value)}")
            return []
        missing = value.get("missing")
        if missing is None:
            return []
        if not isinstance(missing, list):
            self.wrong("dependencies.missing", f"expected an array, got {kind_of(missing)}")
            return []
        self._count("dependencies.missing", missing)
        found = []
        for at, each in enumerate(missing):
            named = each.get("ability_id", each.get("abilityId")) if isinstance(each, dict) else each
            if not isinstance(named, str) or id_fault(named) is not None:
                self.wrong(f"dependencies.missing[{at}]", "expected the id of an ability, or {ability_id}")
            else:
                found.append(named)
        return found

    def look_for_typos(self) -> None:
        """What else is there is its author's business; what was meant to be one of ours is not."""
        from difflib import get_close_matches

        for name in self._value:
            if name not in _KNOWN and (near := get_close_matches(name, _KNOWN, 1, 0.85)):
                self.wrong(name, f"there is no such field. Did you mean {near[0]}?")

    def _list(self, field: str, check: Callable[[str, str], None]) -> list[str]:
        value = self._value.get(field)
        if value is None:
            return []
        if not isinstance(value, list):
            self.wrong(field, f"expected an array of strings, got {kind_of(value)}")
            return []
        self._count(field, value)
        for at, each in enumerate(value):
            where = f"{field}[{at}]"
            if isinstance(each, str):
                check(where, each)
            else:
                self.wrong(where, f"expected a string, got {kind_of(each)}")
        return [each for each in value if isinstance(each, str)]

    def _count(self, field: str, items: dict[str, Any] | list[Any]) -> None:
        if len(items) > MOST_KEYS:
            self.wrong(field, f"expected at most {MOST_KEYS} items, got {len(items)}")

    def _got(self, field: str) -> str:
        return _got(self._value, field)


def id_fault(text: str) -> str | None:
    """Why this is no ability's id, or None."""
    if len(text) > MOST_ID or not _ID.match(text):
        return f"expected up to {MOST_ID} letters, digits and _ - . : @ ~, got {_quoted(text)}"
    return f"{text!r} is taken: it is an address of this door" if text in TAKEN else None


def _got(value: dict[str, Any], field: str) -> str:
    return kind_of(value[field]) if field in value else "nothing"


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}…")


def _is_text(text: str) -> bool:
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


def as_row(document: Document, owner_id: str, *, shared: bool = False) -> Ability:
    """As the store has it."""
    now = rows.now()
    return Ability(
        ability_id=document.ability_id,
        owner_id=owner_id,
        shared=shared,
        name=document.ability_name,
        service_name=document.service_name,
        description=document.description,
        document=encode(document),
        requires_dynamic_headers=document.requires_dynamic_headers,
        created_at=now,
        updated_at=now,
    )
