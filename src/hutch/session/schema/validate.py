"""Compiles JSON Schemas with jsonschema-rs. The library is imported when the first schema is compiled.

References are resolved within a schema only. Nothing is fetched or read.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from hutch.session.json_value import MAX_DEPTH, well_formed
from hutch.session.schema.cost import MAX_PATTERN_BYTES, SchemaCost, schema_cost
from hutch.session.tools.names import is_identifier

if TYPE_CHECKING:
    from jsonschema_rs import Validator

# Maximum backtracking steps of a pattern in an untrusted schema.
_MAX_BACKTRACKS = 100_000
# Exceptions that jsonschema-rs raises for schemas that it cannot compile.
_COMPILE_ERRORS = (ValueError, TypeError, OverflowError, RecursionError)


class InvalidSchema(ValueError):
    """The schema is not valid. `path` is the position of the error in the schema, `reason` is one line."""

    def __init__(self, error: Exception) -> None:
        self.path: tuple[str | int, ...] = tuple(getattr(error, "instance_path", ()))
        message = getattr(error, "message", str(error).partition("\n")[0])
        self.reason = " ".join(well_formed(message).split())
        super().__init__(self.reason)


def compile_schema(schema: Any) -> Validator:
    """Compiles a schema that the host trusts. The draft is 2020-12 unless `$schema` names another. Raises
    InvalidSchema.
    """
    import jsonschema_rs

    try:
        return jsonschema_rs.validator_for(schema, offline=True)
    except _COMPILE_ERRORS as error:
        raise InvalidSchema(error) from None


@lru_cache(maxsize=256)
def compile_untrusted(schema: bytes, *, formats: bool | None = None) -> tuple[Validator, SchemaCost]:
    """Compiles the JSON text of a schema that may be malicious. Raises InvalidSchema.

    The cost of patterns is bounded. The caller must compare the cost of each value with MAX_COST before
    validating the value. `formats` enables or disables the check of `format`; by default, this depends on the
    schema's draft.
    """
    import jsonschema_rs

    pattern_options = jsonschema_rs.FancyRegexOptions(
        backtrack_limit=_MAX_BACKTRACKS, size_limit=MAX_PATTERN_BYTES, dfa_size_limit=2 * MAX_PATTERN_BYTES
    )
    decoded = msgspec.json.decode(schema)
    try:
        # The cost is checked first, because a schema that is too expensive to validate may be too expensive
        # to compile, too.
        cost = schema_cost(decoded)
        validator = jsonschema_rs.validator_for(
            decoded, offline=True, validate_formats=formats, pattern_options=pattern_options
        )
    except _COMPILE_ERRORS as error:
        raise InvalidSchema(error) from None
    return validator, cost


def well_formed_value(value: Any) -> Any:
    """Replaces lone surrogates in a JSON value by U+FFFD.

    Rust strings cannot contain lone surrogates. A schema treats both as ordinary characters, so the result of
    a validation rarely changes.
    """
    if isinstance(value, str):
        return well_formed(value)
    if isinstance(value, dict):
        return {well_formed(key): well_formed_value(item) for key, item in value.items()}
    return [well_formed_value(item) for item in value] if isinstance(value, list) else value


def json_path(steps: Iterable[str | int], root: str = "$") -> str:
    """Formats a path: `$.items[2]['odd key']`."""
    parts = [
        f"[{step}]" if isinstance(step, int) else f".{step}" if is_identifier(step) else f"[{step!r}]"
        for step in steps
    ]
    return root + "".join(parts[:MAX_DEPTH])
