"""What an ability is called with, against the schema that its author gave."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from hutch.session.jsonvalue import well_formed
from hutch.session.names import is_identifier
from hutch.session.schemas import plain
from hutch.session.weighing import MOST_PATTERN_BYTES, MOST_WORK, Weights, weigh

if TYPE_CHECKING:
    from jsonschema_rs import ValidationError, Validator

    from hutch.doors.abilities.documents import Document

# Told of one call.
_MOST_FAULTS = 5
# All that is wrong with a value is found before any of it is told: where that may be much, only the first is.
_MUCH_WORK = 20_000
# Steps of a pattern that goes back and forth. Those who write it run it on our time.
_MOST_STEPS = 100_000
_TOO_MUCH = "params: too much to be checked against the input_schema; send less, or make that simpler"
_MOST_MESSAGE = 200


def problem(document: Document, params: Mapping[str, Any]) -> str | None:
    """What is wrong with these parameters and where, or None."""
    if document.input_schema is None:
        return None
    validator, weights = _compiled(msgspec.json.encode(document.input_schema))
    work = weights.work(params)
    if work > MOST_WORK:
        return _TOO_MUCH
    try:
        if validator.is_valid(params):
            return None
        faults = _faults(validator, params, work)
    except (ValueError, UnicodeError):
        # Rust has no strings with lone surrogates; to a schema they are characters like any other.
        sound = _well_formed(params)
        if validator.is_valid(sound):
            return None
        faults = _faults(validator, sound, work)
    return "; ".join(faults)


def schema_fault(schema: dict[str, Any]) -> str | None:
    """Why this cannot be the schema of an ability's parameters, or None."""
    if plain(schema) != schema:
        return "it is too large, or too deep"
    named = schema.get("type", "object")
    if named != "object" and not (isinstance(named, list) and "object" in named):
        return f'expected "type": "object", as parameters are, got {str(named)[:60]!r}'
    try:
        _compiled(msgspec.json.encode(schema))
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        where = _path(getattr(error, "instance_path", ()), "input_schema").removeprefix("input_schema")
        reason = _line(getattr(error, "message", str(error).partition("\n")[0]))
        return (
            f"is no JSON Schema at {where.removeprefix('.')}: {reason}"
            if where
            else f"is no JSON Schema: {reason}"
        )
    return None


@lru_cache(maxsize=256)
def _compiled(schema: bytes) -> tuple[Validator, Weights]:
    """References lead only into the schema itself: nothing is ever fetched or read for one."""
    import jsonschema_rs

    bounded = jsonschema_rs.FancyRegexOptions(
        backtrack_limit=_MOST_STEPS, size_limit=MOST_PATTERN_BYTES, dfa_size_limit=2 * MOST_PATTERN_BYTES
    )
    read = msgspec.json.decode(schema)
    # First: what is too heavy to be tried may be too heavy to be made, too.
    weights = weigh(read)
    return jsonschema_rs.validator_for(read, offline=True, pattern_options=bounded), weights


def _faults(validator: Validator, params: Mapping[str, Any], work: int) -> list[str]:
    from jsonschema_rs import ValidationError

    if work <= _MUCH_WORK:
        return [_told(error) for error in islice(validator.iter_errors(params), _MOST_FAULTS)]
    try:
        validator.validate(params)
    except ValidationError as error:
        return [_told(error)]
    return []


def _told(error: ValidationError) -> str:
    return f"{_path(error.instance_path, 'params')}: {_line(error.message)}"


def _path(steps: Iterable[str | int], root: str) -> str:
    parts = [
        f"[{step}]" if isinstance(step, int) else f".{step}" if is_identifier(step) else f"[{step!r}]"
        for step in steps
    ]
    path = root + "".join(parts)
    return path if len(path) <= 200 else f"{path[:120]}…{path[-60:]}"


def _line(message: str) -> str:
    line = " ".join(well_formed(message).split())
    half = _MOST_MESSAGE // 2
    return line if len(line) <= _MOST_MESSAGE else f"{line[:half]} … {line[-half:]}"


def _well_formed(value: Any) -> Any:
    if isinstance(value, str):
        return well_formed(value)
    if isinstance(value, dict):
        return {well_formed(key): _well_formed(item) for key, item in value.items()}
    return [_well_formed(item) for item in value] if isinstance(value, list) else value
