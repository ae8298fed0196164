"""Decodes the body of a request that starts a trigger, and limits the size of the inputs that are made from
the body.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

from hutch.errors import InvalidInput
from hutch.session.json_value import NotJsonSafe
from hutch.session.large_json import decode_large_value, encode_large_value

MAX_FORM_BYTES = 1024 * 1024
MAX_FORM_FIELDS = 1_000
MAX_INPUT_BYTES = 16 * 1024 * 1024
"""Maximum size of the inputs as JSON. Without it, a mapping could multiply a large value by naming it many
times.
"""


async def decode_payload(body: bytes, headers: Mapping[str, str]) -> Any:
    """Decodes JSON or a form. Other tasks run while it decodes a long body. Raises InvalidInput."""
    if not body.strip():
        return {}
    kind = headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    try:
        if kind != "application/x-www-form-urlencoded":
            return await decode_large_value(body)
        fields = _form_fields(body)
        # GitHub can send its JSON in the form field `payload`.
        return await decode_large_value(fields["payload"].encode()) if "payload" in fields else fields
    except (NotJsonSafe, UnicodeEncodeError) as error:
        raise InvalidInput("body", f"expected JSON or a form: {error}") from None


def _form_fields(body: bytes) -> dict[str, str]:
    if len(body) > MAX_FORM_BYTES:
        raise InvalidInput("body", f"expected a form of at most {MAX_FORM_BYTES} bytes.")
    try:
        return dict(parse_qsl(body.decode("utf-8", "replace"), max_num_fields=MAX_FORM_FIELDS))
    except ValueError:
        raise InvalidInput("body", f"expected a form of at most {MAX_FORM_FIELDS} fields.") from None


async def check_inputs(inputs: Mapping[str, Any], body_bytes: int) -> None:
    """Raises InvalidInput if inputs from a body of this size are too large."""
    if body_bytes * len(inputs) <= MAX_INPUT_BYTES:
        return
    size = 0
    for value in inputs.values():
        size += len(await encode_large_value(value))
        if size > MAX_INPUT_BYTES:
            raise InvalidInput("map", f"the inputs would have more than {MAX_INPUT_BYTES} bytes.")
