"""Bodies: what a caller gets of one, and how much."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

import msgspec

from hutch.session.jsonvalue import NotJsonSafe, decode_value, encode_value

_BODILESS = (204, 205, 304)


def read(status: int, headers: Sequence[tuple[str, str]], data: bytes | str) -> Any:
    """JSON where that is what it is called and what it is; else the text; None if there is none."""
    if status in _BODILESS:
        return None
    kind = next((value for name, value in headers if name.lower() == "content-type"), "")
    if _is_json(kind):
        text = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
        text = text.removeprefix(codecs.BOM_UTF8).strip()
        try:
            return decode_value(text) if text else None
        except NotJsonSafe:
            pass
    return data if isinstance(data, str) else data.decode("utf-8-sig", "replace")


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return "application/json" in kind or kind.endswith("+json")


class Cut(msgspec.Struct, frozen=True):
    """A body as it is shown."""

    body: Any
    original_length: int | None = None
    """Of its JSON text, if that was too long to be shown."""


def cut(body: Any, most: int) -> Cut:
    """The body itself or, if its JSON text has more characters, the beginning of that, as the specification
    has it."""
    written = json_text(body)
    # In UTF-8 it has at least as many bytes as it has characters in JavaScript.
    if len(written) <= most:
        return Cut(body)
    text = written.decode()
    length = _units(text)
    if length <= most:
        return Cut(body)
    return Cut(
        f"{_first(text, most)}\n\n[... Response truncated. Original length: {length} characters]", length
    )


def json_text(value: Any) -> bytes:
    """JSON as `JSON.stringify` writes it: beyond ASCII as it is. Raises NotJsonSafe."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return encode_value(value)  # lone surrogates, which are escaped there too


def _units(text: str) -> int:
    """Its length in JavaScript."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le")) // 2


def _first(text: str, most: int) -> str:
    if text.isascii():
        return text[:most]
    return text.encode("utf-16-le")[: 2 * most].decode("utf-16-le", "ignore")
