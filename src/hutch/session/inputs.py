"""Inputs of an execution: values that the guest gets as global variables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from hutch.errors import InvalidExecution
from hutch.session.json_value import NotJsonSafe, decode_value, encode_decoded_value, encode_value
from hutch.session.large_json import LARGE_TEXT_BYTES, decode_large_value
from hutch.session.tools.names import is_bindable
from hutch.session.tools.provider import Provider

MAX_INPUTS = 10_000


def encode_inputs(inputs: object, providers: Iterable[Provider] = ()) -> bytes | None:
    """Returns the JSON text of inputs; None if there are none.

    Raises InvalidExecution if a name is not an identifier or is the name of a provider, or if a value is not
    JSON-safe.
    """
    if inputs is None:
        return None
    named = _check_names(inputs, providers)
    try:
        return _with_plain_letters(encode_value(dict(named))) if named else None
    except NotJsonSafe as error:
        raise InvalidExecution("inputs", f"expected JSON-safe values: {error}") from None


def encode_decoded_inputs(inputs: Mapping[str, object], providers: Iterable[Provider]) -> bytes | None:
    """Like `encode_inputs`, but faster. Only for values that were decoded from JSON."""
    named = _check_names(inputs, providers)
    try:
        return encode_decoded_value(named) if named else None
    except NotJsonSafe as error:
        raise InvalidExecution("inputs", f"expected JSON-safe values: {error}") from None


async def decode_inputs(text: bytes, providers: Iterable[Provider]) -> bytes | None:
    """Checks inputs that a client sent as JSON text. Returns the text without line breaks. Raises
    InvalidExecution.
    """
    try:
        inputs = await decode_large_value(text)
    except NotJsonSafe as error:
        raise InvalidExecution("inputs", str(error)) from None
    if len(text) <= LARGE_TEXT_BYTES:
        return encode_inputs(inputs, providers)
    # A large text is not encoded again, because that would stall the event loop. Only its line breaks are
    # replaced: valid JSON has them only between values.
    _check_names(inputs, providers)
    return text.replace(b"\n", b" ").replace(b"\r", b" ")


def _check_names(inputs: object, providers: Iterable[Provider]) -> Mapping[str, object]:
    if not isinstance(inputs, Mapping):
        raise InvalidExecution("inputs", f"expected names with values, got {type(inputs).__name__}")
    if len(inputs) > MAX_INPUTS:
        raise InvalidExecution("inputs", f"expected at most {MAX_INPUTS} names, got {len(inputs)}")
    namespaces = {provider.name.partition(".")[0] for provider in providers}
    for name in inputs:
        if not is_bindable(name):
            raise InvalidExecution(
                "inputs", f"expected names that are JavaScript identifiers, got {_shown(name)}"
            )
        if name in namespaces:
            raise InvalidExecution("inputs", f"{_shown(name)} is the name of a provider; rename one of them")
    return inputs


def _with_plain_letters(text: bytes) -> bytes:
    """Replaces the escapes of non-ASCII letters by UTF-8 characters, because escapes are up to three times as
    long.
    """
    if b"\\u" not in text:
        return text
    try:
        return msgspec.json.encode(decode_value(text))
    except UnicodeEncodeError:  # the text has lone surrogates
        return text


def _shown(name: object) -> str:
    return repr(name)[:100]
