"""Validates the parameters of an ability against its input schema."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from hutch.problems import MAX_PATH_CHARS, Problem, first_problems
from hutch.session.json_value import well_formed
from hutch.session.schema.cost import MAX_COST
from hutch.session.schema.validate import InvalidSchema, compile_untrusted, json_path, well_formed_value
from hutch.session.schema.walk import plain_copy
from hutch.text import cut_middle

if TYPE_CHECKING:
    from jsonschema_rs import ValidationError, Validator

# Maximum number of problems reported per call.
_MAX_PROBLEMS = 5
# Cost above which only one error is requested, because jsonschema-rs collects all errors before it returns
# the first.
_MAX_WORK_ALL_PROBLEMS = 20_000
_TOO_EXPENSIVE = "params: too expensive to validate against input_schema; send less, or simplify the schema"
_MAX_MESSAGE_CHARS = 200
_MISSING = re.compile(r'(".*") is a required property', re.S)


def params_error(schema: dict[str, Any] | None, params: Mapping[str, Any]) -> str | None:
    """Returns the problems of the parameters with their paths, or None if there are none."""
    if schema is None:
        return None
    validator, weights = compile_untrusted(msgspec.json.encode(schema))
    work = weights.cost_of(params)
    if work > MAX_COST:
        return _TOO_EXPENSIVE
    try:
        if validator.is_valid(params):
            return None
        problems = _problems(validator, params, work)
    except (ValueError, UnicodeError):
        replaced = well_formed_value(params)
        if validator.is_valid(replaced):
            return None
        problems = _problems(validator, replaced, work)
    return "; ".join(problems)


def schema_error(schema: dict[str, Any]) -> str | None:
    """Returns the reason why a value cannot be the input schema of an ability, or None if it can."""
    if plain_copy(schema) != schema:
        return "it is too large, or too deep"
    types = schema.get("type", "object")
    if types != "object" and not (isinstance(types, list) and "object" in types):
        return f'expected "type": "object", as parameters are, got {str(types)[:60]!r}'
    try:
        compile_untrusted(msgspec.json.encode(schema))
    except InvalidSchema as error:
        where = _path(error.path, "")
        reason = _one_line(error.reason)
        return (
            f"is not a JSON Schema at {where.removeprefix('.')}: {reason}"
            if where
            else f"is not a JSON Schema: {reason}"
        )
    return None


def _problems(validator: Validator, params: Mapping[str, Any], cost_of: int) -> list[str]:
    from jsonschema_rs import ValidationError

    if cost_of <= _MAX_WORK_ALL_PROBLEMS:
        errors = validator.iter_errors(params)
        return [str(problem) for problem in first_problems(map(_describe, errors), _MAX_PROBLEMS)]
    try:
        validator.validate(params)
    except ValidationError as error:
        return [str(_describe(error))]
    return []


def _describe(error: ValidationError) -> Problem:
    missing = _MISSING.fullmatch(error.message)
    if missing is not None:
        try:
            name = msgspec.json.decode(missing[1], type=str)
        except (msgspec.MsgspecError, UnicodeError):
            name = missing[1]
        return Problem(_path((*error.instance_path, name), "params"), "is required")
    return Problem(_path(error.instance_path, "params"), _one_line(error.message))


def _path(steps: Iterable[str | int], root: str) -> str:
    return cut_middle(json_path(steps, root), MAX_PATH_CHARS)


def _one_line(message: str) -> str:
    return cut_middle(" ".join(well_formed(message).split()), _MAX_MESSAGE_CHARS)
