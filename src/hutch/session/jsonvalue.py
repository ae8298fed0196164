"""JSON-safe values: what may cross between host and guest, as Python values and as JSON text.

JSON-safe are None, booleans, finite numbers, strings, lists, tuples and dicts, without cycles and at most
MAX_DEPTH levels deep. Keys are strings; integers, floats, booleans and None are written as JSON writes them.
Dataclasses, msgspec Structs, pydantic models, enums, dates, times, UUIDs and Decimals become what their JSON
Schema says. Anything else (sets, bytes, NaN, objects) is refused.
"""

from __future__ import annotations

import dataclasses
import json
import math
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from itertools import accumulate
from typing import Any
from uuid import UUID

import msgspec

from hutch.session.names import is_identifier

MAX_DEPTH = 128
MAX_VALUES = 1_000_000


class NotJsonSafe(ValueError):
    """A value that cannot cross; the text says where it is and what it is."""


def encode_value(value: object) -> bytes:
    """The JSON text of a JSON-safe value, in ASCII: lone surrogates are escaped like all the rest.

    Raises NotJsonSafe with the path of what is not.
    """
    try:
        raw = _encoder.encode(value).encode()
    except Exception as error:  # a model's own serializer may raise anything
        raise NotJsonSafe(_diagnose(value) or f"$ cannot be written as JSON: {_one_line(error)}") from None
    if too_deep(raw):
        raise NotJsonSafe(_diagnose(value) or f"$ is nested deeper than {MAX_DEPTH} levels")
    if len(raw) > _LONGEST_INTEGER and _LONG_INTEGER in raw.translate(_ONE_DIGIT):
        fault = _diagnose(value)
        if fault:
            raise NotJsonSafe(fault)
    return raw


def decode_value(raw: bytes | memoryview) -> Any:
    """The value of a JSON text. Raises NotJsonSafe if it is malformed, not finite or too deep."""
    line = raw if isinstance(raw, bytes) else bytes(raw)
    if too_deep(line):
        raise NotJsonSafe(f"$ is nested deeper than {MAX_DEPTH} levels")
    if too_many(line):
        raise NotJsonSafe(f"$ has more than {MAX_VALUES} values")
    try:
        return msgspec.json.decode(line)
    except (ValueError, RecursionError) as error:
        # Lone surrogates are the one thing that is JSON and that msgspec refuses.
        if b"\\u" not in line:
            raise NotJsonSafe(f"malformed JSON: {_one_line(error)}") from None
    try:
        return json.loads(line.decode(), parse_constant=_refuse_constant, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise NotJsonSafe(f"malformed JSON: {_one_line(error)}") from None


def is_broken(raw: bytes) -> bool:
    """Whether a JSON text has line breaks between its parts and so is no part of a line."""
    return b"\n" in raw or b"\r" in raw


def well_formed(text: str) -> str:
    """`text` with U+FFFD for every lone surrogate, as UTF-8 needs it."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


_KEPT = b'"[]{}'
_DROPPED = bytes(byte for byte in range(256) if byte not in _KEPT)
_NO_MARK = bytes(byte for byte in range(256) if byte not in b'",[{')
_ONE_KIND = bytes.maketrans(b"{}", b"[]")
_STEP = [{ord("["): 1, ord("]"): -1}.get(byte, 0) for byte in range(256)]
_CHUNK = 64


def kind_of(value: object) -> str:
    """What a value of JSON is called, for an error that says what came instead of what was expected."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list() | tuple():
            return "an array"
        case _:
            return "an object"


def too_deep(line: bytes, limit: int = MAX_DEPTH) -> bool:
    """Whether a JSON text nests arrays and objects more than `limit` levels, without parsing it.

    Linear in the length of the text. Of malformed text all that comes before the fault is counted.
    """
    if line.count(b"[") + line.count(b"{") <= limit:
        return False
    depth = 0
    brackets = _brackets(line)
    for start in range(0, len(brackets), _CHUNK):
        chunk = brackets[start : start + _CHUNK]
        opened = chunk.count(b"[")
        # Few chunks come near the limit, and only those are looked at byte by byte.
        if depth + opened > limit and depth + max(accumulate(map(_STEP.__getitem__, chunk))) > limit:
            return True
        depth += 2 * opened - len(chunk)
    return False


def too_many(line: bytes, limit: int = MAX_VALUES) -> bool:
    """Whether a JSON text has so many values that everybody would have to wait while they are made."""
    if len(line) <= limit or line.count(b",") + line.count(b"[") + line.count(b"{") <= limit:
        return False
    if b"\\" in line:
        line = line.replace(b"\\\\", b"").replace(b'\\"', b"")
    marks = line.translate(None, _NO_MARK)
    return sum(len(part) for part in marks.split(b'"')[::2]) > limit


def _brackets(line: bytes) -> bytes:
    """The brackets of a JSON text outside its strings, with `{}` written as `[]`."""
    if b"\\" in line:
        line = line.replace(b"\\\\", b"").replace(b'\\"', b"")
    # Now every quote opens or closes a string, so what counts is on the even sides of quotes.
    marks = line.translate(_ONE_KIND, _DROPPED)
    return b"".join(marks.replace(b'""', b"").split(b'"')[::2])


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is out of range")
    return number


_SCALARS = (date, time, timedelta, UUID, Decimal)


def _convert(value: Any) -> Any:
    """What the encoder does not know, as something that it does."""
    if hasattr(type(value), "__pydantic_serializer__"):
        return value.__pydantic_serializer__.to_python(value, mode="json", by_alias=True, warnings=False)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (msgspec.Struct, *_SCALARS)) or _is_dataclass(value):
        return msgspec.to_builtins(value, str_keys=True, enc_hook=_convert)
    raise TypeError(type(value).__name__)


_encoder = json.JSONEncoder(allow_nan=False, separators=(",", ":"), default=_convert)

# JavaScript reads an integer of more digits as Infinity. Rare enough to look closer when there may be one.
_LONGEST_INTEGER = 308
_ONE_DIGIT = bytes.maketrans(b"123456789", b"000000000")
_LONG_INTEGER = b"0" * (_LONGEST_INTEGER + 1)


def _diagnose(value: object) -> str | None:
    """What keeps `value` from being JSON and where, or None."""
    try:
        return _fault(value, "$", ())
    except RecursionError:
        return f"$ is nested deeper than {MAX_DEPTH} levels"
    except Exception as error:
        return f"$ cannot be written as JSON: {_one_line(error)}"


def _fault(value: object, path: str, above: tuple[int, ...]) -> str | None:
    if value is None or isinstance(value, (bool, str, *_SCALARS)):
        return None
    if isinstance(value, (int, float)):
        return _number_fault(value, path)
    if isinstance(value, Enum):
        return _fault(value.value, path, above)
    if id(value) in above:
        return f"{_shorten(path)} refers back to what it is in"
    container = _container(value)
    if container is None:
        return f"{_shorten(path)} is {_a(type(value).__name__)}"
    if len(above) >= MAX_DEPTH:
        return f"{_shorten(path)} is nested deeper than {MAX_DEPTH} levels"
    by_name = isinstance(container, dict)
    for key, item in container.items() if isinstance(container, dict) else enumerate(container):
        if not (key is None or isinstance(key, (str, int, float))):
            return f"{_shorten(path)} has {_a(type(key).__name__)} as a key"
        step = _property(str(key)) if by_name else f"[{key}]"
        fault = _fault(item, path + step, (*above, id(value)))
        if fault:
            return fault
    return None


def _number_fault(number: int | float, path: str) -> str | None:
    try:
        if math.isfinite(number):
            return None
    except OverflowError:
        return f"{_shorten(path)} is an integer beyond the numbers of JavaScript"
    return f"{_shorten(path)} is {'NaN' if number != number else 'Infinity' if number > 0 else '-Infinity'}"


def _container(value: Any) -> dict[Any, Any] | list[Any] | tuple[Any, ...] | None:
    if isinstance(value, (dict, list, tuple)):
        return value
    try:
        converted = _convert(value)
    except Exception:
        return _fields(value)
    return converted if isinstance(converted, (dict, list)) else None


def _fields(value: Any) -> dict[str, Any] | None:
    """What is in a model that does not convert as a whole."""
    if isinstance(value, msgspec.Struct):
        return {name: getattr(value, name) for name in value.__struct_fields__}
    if _is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return dict(value) if hasattr(type(value), "__pydantic_serializer__") else None


def _is_dataclass(value: object) -> bool:
    return hasattr(type(value), "__dataclass_fields__")


def _property(key: str) -> str:
    return f".{key}" if is_identifier(key) else f"[{json.dumps(key[:40])}]"


def _shorten(path: str) -> str:
    return path if len(path) <= 120 else f"{path[:80]}…{path[-30:]}"


def _a(noun: str) -> str:
    return f"an {noun}" if noun[:1].lower() in "aeiou" else f"a {noun}"


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()).removeprefix("JSON is malformed: ")
    return text[:200] or type(error).__name__
