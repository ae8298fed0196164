"""Finds and masks credentials in the responses of abilities, such as the token that a login returns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from hutch.egress.redaction import MARK
from hutch.protocols.abilities.definition import ProducedCredential
from hutch.protocols.abilities.wrapper import WrapperResponse

_PART = re.compile(r"[^.\[\]]+")
_SET_COOKIE = "set-cookie"


class ValueNotFound(Exception):
    """A response has no usable value for a credential that the ability declares. The error message contains
    no values.
    """


def find_credential(produced: ProducedCredential, response: WrapperResponse) -> str | None:
    """Returns the credential in a response, or None if there is no text or integer at the declared path."""
    source, *parts = _PART.findall(produced.path)
    match source:
        case "headers":
            found: Any = _header(response, parts[0])
        case "cookies":
            found = _cookie(response, parts[0])
        case _:
            found = _find(response.body, parts)
    if isinstance(found, int) and not isinstance(found, bool):
        found = str(found)
    return found if isinstance(found, str) and found else None


def mask_body(produces: Sequence[ProducedCredential], body: Any) -> Any:
    """Masks the declared credentials in a body. Redaction alone would miss values of fewer than four
    characters.
    """
    for produced in produces:
        source, *parts = _PART.findall(produced.path)
        if source == "body":
            body = _replace(body, parts)
    return body


def _find(value: Any, parts: Sequence[str]) -> Any:
    for part in parts:
        value = value.get(part) if isinstance(value, dict) else _item(value, part)
    return value


def _item(value: Any, part: str) -> Any:
    is_index = isinstance(value, list) and part.isascii() and part.isdigit()
    return value[int(part)] if is_index and int(part) < len(value) else None


def _replace(value: Any, parts: Sequence[str]) -> Any:
    if not parts:
        return MARK
    first, *rest = parts
    if isinstance(value, dict) and first in value:
        return {**value, first: _replace(value[first], rest)}
    if _item(value, first) is not None:
        at = int(first)
        return [*value[:at], _replace(value[at], rest), *value[at + 1 :]]
    return value


def _header(response: WrapperResponse, name: str) -> str | None:
    return next((value for given, value in response.headers if given.lower() == name.lower()), None)


def _cookie(response: WrapperResponse, name: str) -> str | None:
    for given, value in response.headers:
        if given.lower() == _SET_COOKIE:
            cookie_name, _, cookie_value = value.partition(";")[0].partition("=")
            if cookie_name.strip() == name:
                return cookie_value.strip()
    return None
