"""Converts JSON-safe values to and from JSON text. Only JSON-safe values pass between host and guest.

JSON-safe values are None, booleans, finite numbers, strings, lists, tuples and dicts, without cycles and
nested at most MAX_DEPTH levels. Keys may be strings, integers, floats, booleans and None. Dataclasses,
msgspec Structs, pydantic models, enums, dates, times, UUIDs and Decimals are converted according to their
JSON Schema. Anything else (sets, bytes, NaN, objects) is refused.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from itertools import islice
from json.encoder import c_make_encoder, encode_basestring_ascii  # type: ignore[attr-defined]
from typing import Any
from uuid import UUID

import msgspec

from hutch.session.tools.names import is_identifier
from hutch.strict_json import MAX_VALUES, find_excess, finite_float, is_too_deep

MAX_DEPTH = 128
SHORT_TEXT_BYTES = 1024 * 1024
# Maximum size of a text with lone surrogates, which only Python's own parser accepts. That parser takes 12 ms
# for a MiB.
MAX_SURROGATE_BYTES = 4 * 1024 * 1024


class NotJsonSafe(ValueError):
    """A value is not JSON-safe. The message has the path and the type of the value."""


class ExcessiveJson(NotJsonSafe):
    """A value has too many parts, or is nested too deeply."""


def encode_value(value: object) -> bytes:
    """Returns the JSON text of a value. The text is ASCII: other characters, including lone surrogates, are
    escaped.

    Raises NotJsonSafe with the path of the invalid part.
    """
    try:
        raw = "".join(_encode_parts(value, 0)).encode()
    except Exception as error:  # a model's serializer may raise anything
        raise NotJsonSafe(_diagnose(value) or f"$ cannot be written as JSON: {_one_line(error)}") from None
    if len(raw) > MAX_DEPTH and is_too_deep(raw, MAX_DEPTH):
        raise NotJsonSafe(_diagnose(value) or f"$ is nested deeper than {MAX_DEPTH} levels")
    if len(raw) > _MAX_INTEGER_DIGITS and _TOO_MANY_DIGITS in raw.translate(_DIGITS_TO_ZERO):
        fault = _diagnose(value)
        if fault:
            raise NotJsonSafe(fault)
    return raw


def encode_decoded_value(value: object) -> bytes:
    """Like `encode_value`, but faster, and does not escape non-ASCII characters. Only for values that were
    decoded from JSON. Takes 1 to 11 ms of CPU time per MB; `encode_value` takes 7 to 125 ms.
    """
    try:
        return msgspec.json.encode(value)
    except (ValueError, OverflowError):  # the value has lone surrogates or an integer of more than 64 bits
        return encode_value(value)


def encode_text(text: str) -> bytes:
    """Returns the JSON text of a string. Only lone surrogates and control characters are escaped."""
    try:
        return msgspec.json.encode(text)
    except UnicodeEncodeError:  # the text has lone surrogates
        quoted: str = encode_basestring_ascii(text)
        return quoted.encode()


def decode_value(raw: bytes | memoryview, max_values: int = MAX_VALUES) -> Any:
    """Parses JSON text. `max_values` limits the values of texts longer than SHORT_TEXT_BYTES.

    Raises NotJsonSafe if the text is malformed, nested too deeply or too large, or if a number is not finite.
    """
    line = raw if isinstance(raw, bytes) else bytes(raw)
    # A shorter text needs no check, because each level and each value takes at least one byte.
    if len(line) > MAX_DEPTH:
        check_bounds(line, max_values)
    return decode_bounded(line)


def decode_bounded(line: bytes) -> Any:
    """Parses a JSON text whose depth and number of values were checked. Raises NotJsonSafe."""
    is_long = len(line) > _EXPONENT_BYTES * _MANY_EXPONENTS
    decoder = _exponent_decoder if is_long and _has_many_exponents(line) else _decoder
    try:
        return decoder.decode(line)
    except (ValueError, RecursionError):
        if (
            len(line) > MAX_SURROGATE_BYTES
            or line.count(b"\\u") > MAX_VALUES
            or find_excess(line, MAX_DEPTH, MAX_VALUES) is not None
        ):
            limits = f"{MAX_VALUES} values or escapes or {MAX_SURROGATE_BYTES} bytes"
            message = f"$ has lone surrogates and more than {limits}, or is malformed JSON"
            raise NotJsonSafe(message) from None
    try:
        # msgspec refuses no valid JSON except lone surrogates. So the text is valid if msgspec accepts it
        # after the surrogates are masked.
        decoder.decode(mask_surrogates(line))
        return json.loads(line.decode())
    except (ValueError, RecursionError) as error:
        raise NotJsonSafe(f"malformed JSON: {_one_line(error)}") from None


_decoder = msgspec.json.Decoder()
# msgspec 0.22 takes 7 to 13 us for a number like 1e300 or 5e-324, Python's `float` 0.6 us. For other numbers
# msgspec is faster: 0.05 us.
_exponent_decoder = msgspec.json.Decoder(float_hook=finite_float)
_EXPONENT = re.compile(rb"(?<=[0-9])[eE][+-]?[0-9]{2}")
_MANY_EXPONENTS = 200
_EXPONENT_BYTES = 5
"""Minimum length of a number with an exponent and the comma after it."""


def _has_many_exponents(text: bytes) -> bool:
    return (
        text.count(b"e") + text.count(b"E") > _MANY_EXPONENTS
        and sum(1 for _ in islice(_EXPONENT.finditer(text), _MANY_EXPONENTS + 1)) > _MANY_EXPONENTS
    )


def check_bounds(text: bytes, max_values: int = MAX_VALUES) -> None:
    """Raises NotJsonSafe if a JSON text is nested too deeply or has too many values. Does not parse it."""
    # A short text may have any number of values, because msgspec decodes it quickly even if every second byte
    # is a value.
    max_values = max_values if len(text) > SHORT_TEXT_BYTES else SHORT_TEXT_BYTES
    excess = find_excess(text, MAX_DEPTH, max_values)
    if excess == "depth":
        raise ExcessiveJson(f"$ is nested deeper than {MAX_DEPTH} levels")
    if excess == "values":
        raise ExcessiveJson(f"$ has more than {max_values} values")


_LETTER_D = bytes.maketrans(b"dD", b"00")


def mask_surrogates(text: bytes) -> bytes:
    r"""Replaces each letter d by a zero, so that `\ud800` becomes `\u0800`. The result is JSON of the same
    length and structure, and has no surrogates.
    """
    return text.translate(_LETTER_D)


def has_line_breaks(raw: bytes) -> bool:
    """Returns True if a JSON text contains line breaks, so that it cannot be part of a message line."""
    return b"\n" in raw or b"\r" in raw


def well_formed(text: str) -> str:
    """Replaces each lone surrogate by U+FFFD, so that the text can be encoded as UTF-8."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def kind_of(value: object) -> str:
    """Returns the JSON type of a value for an error message."""
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


_SCALARS = (date, time, timedelta, UUID, Decimal)


def _convert(value: Any) -> Any:
    """Converts a value that the encoder does not support to a value that it supports."""
    if hasattr(type(value), "__pydantic_serializer__"):
        return value.__pydantic_serializer__.to_python(value, mode="json", by_alias=True, warnings=False)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (msgspec.Struct, *_SCALARS)) or _is_dataclass(value):
        return msgspec.to_builtins(value, str_keys=True, enc_hook=_convert)
    raise TypeError(type(value).__name__)


# The encoder is created only once, because creating one takes 2 to 4 µs, which `json.JSONEncoder.encode` does
# for every value. This encoder does not look for cycles, so a cycle raises RecursionError.
_encode_parts: Callable[[object, int], tuple[str, ...]] = c_make_encoder(
    None, _convert, encode_basestring_ascii, None, ":", ",", False, False, False
)

# JavaScript reads integers with more digits as Infinity. Such integers are rare, so only text with that many
# digits in a row is checked again.
_MAX_INTEGER_DIGITS = 308
_DIGITS_TO_ZERO = bytes.maketrans(b"123456789", b"000000000")
_TOO_MANY_DIGITS = b"0" * (_MAX_INTEGER_DIGITS + 1)


def _diagnose(value: object) -> str | None:
    """Returns the path of the first value that is not JSON-safe and the reason, or None."""
    try:
        return _find_fault(value, "$", ())
    except RecursionError:
        return f"$ is nested deeper than {MAX_DEPTH} levels"
    except Exception as error:
        return f"$ cannot be written as JSON: {_one_line(error)}"


def _find_fault(value: object, path: str, ancestors: tuple[int, ...]) -> str | None:
    if value is None or isinstance(value, (bool, str, *_SCALARS)):
        return None
    if isinstance(value, (int, float)):
        return _number_fault(value, path)
    if isinstance(value, Enum):
        return _find_fault(value.value, path, ancestors)
    if id(value) in ancestors:
        return f"{_shorten(path)} contains itself"
    container = _container(value)
    if container is None:
        return f"{_shorten(path)} is {_with_article(type(value).__name__)}"
    if len(ancestors) >= MAX_DEPTH:
        return f"{_shorten(path)} is nested deeper than {MAX_DEPTH} levels"
    by_name = isinstance(container, dict)
    for key, item in container.items() if isinstance(container, dict) else enumerate(container):
        if not (key is None or isinstance(key, (str, int, float))):
            return f"{_shorten(path)} has {_with_article(type(key).__name__)} as a key"
        step = _property(str(key)) if by_name else f"[{key}]"
        fault = _find_fault(item, path + step, (*ancestors, id(value)))
        if fault:
            return fault
    return None


def _number_fault(number: int | float, path: str) -> str | None:
    try:
        if math.isfinite(number):
            return None
    except OverflowError:
        return f"{_shorten(path)} is an integer too large for JavaScript"
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
    """Returns the fields of a model whose conversion failed, so that the invalid field can be found. Returns
    None if the value is not a model.
    """
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


def _with_article(noun: str) -> str:
    return f"an {noun}" if noun[:1].lower() in "aeiou" else f"a {noun}"


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()).removeprefix("JSON is malformed: ")
    return text[:200] or type(error).__name__
