"""Validates values against a JSON Schema and lists every problem with its path and the expected value."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from hutch.problems import (
    MAX_PROBLEMS,
    JsonPath,
    NameSuggester,
    Problem,
    describe_value,
    first_problems,
    format_path,
)
from hutch.session.schema.cost import MAX_COST
from hutch.session.schema.validate import InvalidSchema, compile_untrusted
from hutch.session.schema.walk import UNRESOLVED, SchemaRoot, resolve
from hutch.text import cut

if TYPE_CHECKING:
    from jsonschema_rs import ValidationError, Validator

_NOUNS = {
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "object": "an object",
    "array": "a list",
    "null": "null",
}
MAX_SCHEMA_BYTES = 64 * 1024
"""Maximum size of a JSON Schema. Compiling a larger one takes too long."""
MAX_INPUT_PROBLEMS = 10
"""Maximum number of problems in the message about a tool's input."""
_INT32_MAX = 2**31 - 1
_MAX_LISTED = 50
_MAX_LISTED_CHOICES = 20
_MAX_DESCRIBED_LEVELS = 3
_MAX_VALUE_CHARS = 80
# Cost above which only one error is requested, because the validator collects all errors before it returns
# the first.
_MAX_COST_ALL_PROBLEMS = 20_000
_TOO_COSTLY = "takes too long to check against its schema; send less, or simplify the schema"


def check_against_schema(
    schema: dict[str, Any],
    value: Any,
    path: JsonPath = (),
    *,
    untrusted: bool = False,
    formats: bool | None = True,
) -> list[Problem]:
    """Returns the problems of a value. `path` is the path of the value itself. Raises InvalidSchema.

    If there are more than MAX_PROBLEMS problems, returns at least MAX_PROBLEMS + 1, so that the caller can
    tell that some may be missing. `formats`: see `compile_untrusted`.

    With `untrusted`, the schema may be malicious, so checks that would take too long are refused. References
    resolve only within the schema, so nothing is fetched or read for them.
    """
    text = msgspec.json.encode(schema)
    if len(text) > MAX_SCHEMA_BYTES:
        raise InvalidSchema(ValueError(f"expected at most {MAX_SCHEMA_BYTES} bytes, got {len(text)}"))
    validator, cost = compile_untrusted(text, formats=formats)
    cost_of_value = cost.cost_of(value) if untrusted else 0
    if cost_of_value > MAX_COST:
        return [Problem(format_path(path), _TOO_COSTLY)]
    root = SchemaRoot.of(schema, "")
    problems: dict[Problem, None] = {}
    try:
        for error in _errors(validator, value, cost_of_value):
            for problem in _problems_of(error, root, path):
                problems.setdefault(problem)
            if len(problems) > MAX_PROBLEMS:
                break
    except ValueError as error:  # the value has a lone surrogate or a number out of range
        problems.setdefault(
            Problem(format_path(path), f"cannot be checked: {' '.join(str(error).split())[:200]}")
        )
    return list(problems)


def _errors(validator: Validator, value: Any, cost: int) -> Iterable[ValidationError]:
    if cost <= _MAX_COST_ALL_PROBLEMS:
        return validator.iter_errors(value)
    from jsonschema_rs import ValidationError

    try:
        validator.validate(value)
    except ValidationError as error:
        return [error]
    return []


def describe_mismatch(schema: dict[str, Any], value: Any, reason: str, *, formats: bool | None) -> str:
    """Describes up to MAX_INPUT_PROBLEMS problems of a tool's input. Returns `reason` if the input matches
    the schema, because the tool's function may have refused it for a reason that the schema does not express.
    """
    try:
        problems = check_against_schema(schema, value, untrusted=True, formats=formats)
    except InvalidSchema:
        return reason
    if not problems or any(problem.message == _TOO_COSTLY for problem in problems):
        return reason
    return "; ".join(map(str, first_problems(problems, MAX_INPUT_PROBLEMS)))


def describe_fault(error: InvalidSchema) -> str:
    """Describes the first problem of a schema with its path."""
    where = format_path(error.path)
    return f"{where}: {error.reason[:300]}" if where else error.reason[:300]


def _problems_of(error: Any, root: SchemaRoot, path: JsonPath) -> Iterable[Problem]:
    where: JsonPath = (*path, *error.instance_path)
    holder = _schema_at(root, error.schema_path[:-1])
    kind = error.kind.name
    if kind == "required":
        name = error.kind.property
        yield Problem(format_path((*where, name)), _missing_message(_property(root, holder, name), root))
    elif kind in ("additionalProperties", "unevaluatedProperties"):
        known = sorted(holder.get("properties") or ())
        suggester = NameSuggester()
        for name in error.kind.unexpected[: MAX_PROBLEMS + 1]:
            yield Problem(format_path((*where, name)), _unknown_message(name, known, suggester))
    elif branch := _intended_branch(error):
        for each in branch:
            yield from _problems_of(each, root, path)
    elif kind in ("falseSchema", "propertyNames") or not isinstance(holder, dict):
        yield Problem(format_path(where), " ".join(error.message.split())[:300])
    else:
        # State the limit in max* errors, because `describe_schema` omits it.
        unit = _MAX_UNITS.get(kind)
        expected = f"at most {error.kind.limit}{unit}" if unit is not None else describe_schema(holder, root)
        wrong = f"expected {expected}" if expected else " ".join(error.message.split())[:300]
        yield Problem(
            format_path(where), f"{wrong}, got {describe_value(error.instance)}" if expected else wrong
        )


def _intended_branch(error: Any) -> Sequence[Any]:
    """Returns the errors of the branch of an `anyOf` or `oneOf` that an object or a list was probably meant
    to match: the only branch that accepts the value's type and its properties with fixed values, such as
    `kind`. Returns nothing if there is no such branch, or if there are several.
    """
    if not isinstance(error.instance, (dict, list)):
        return ()
    branches = [
        branch
        for branch in getattr(error.kind, "context", ())
        if not any(_excludes(each, error.instance_path) for each in branch)
    ]
    return branches[0] if len(branches) == 1 else ()


def _excludes(error: Any, path: Sequence[str | int]) -> bool:
    """Returns True if an error shows that the value at `path` was not meant for a branch."""
    kind = error.kind
    if kind.name == "type":
        return bool(error.instance_path == path)
    return kind.name == "const" or (kind.name == "enum" and len(kind.options) == 1)


_MAX_UNITS = {"maximum": "", "maxItems": " items", "maxLength": " characters"}


def _missing_message(schema: Any, root: SchemaRoot) -> str:
    expected = describe_schema(schema, root)
    return f"is missing; expected {expected}" if expected else "is missing"


def _unknown_message(name: str, known: list[str], suggester: NameSuggester) -> str:
    close = suggester.closest(name, known)
    if close:
        return f"is not known; did you mean {close}?"
    only = ", ".join(known[:_MAX_LISTED])
    return f"is not known; expected only {only}" if known else "is not known; nothing is expected"


def _property(root: SchemaRoot, holder: Any, name: str) -> Any:
    properties = holder.get("properties") if isinstance(holder, dict) else None
    return properties.get(name) if isinstance(properties, dict) else None


def _schema_at(root: SchemaRoot, steps: Iterable[str | int]) -> Any:
    """Returns the schema that caused an error. Follows references, because the error's path does not contain
    them.
    """
    schema = root.schema
    for step in steps:
        if isinstance(schema, dict) and step == "$ref":
            schema = resolve(schema["$ref"], root)
        elif isinstance(schema, dict) and step in schema:
            schema = schema[str(step)]
        elif isinstance(schema, list) and isinstance(step, int) and step < len(schema):
            schema = schema[step]
        else:
            return {}
    return schema


def describe_schema(schema: Any, root: SchemaRoot, levels: int = _MAX_DESCRIBED_LEVELS) -> str:
    """Describes the expected value of a schema in a few words. Returns an empty string if that is not
    possible.
    """
    if not levels:
        return ""
    for _ in range(10):
        if not (isinstance(schema, dict) and isinstance(schema.get("$ref"), str)):
            break
        schema = resolve(schema["$ref"], root)
    if not isinstance(schema, dict) or schema is UNRESOLVED:
        return ""
    if "const" in schema:
        return _json(schema["const"])
    if isinstance(schema.get("enum"), list):
        return _join_choices([_json(value) for value in schema["enum"][:_MAX_LISTED_CHOICES]])
    choices = schema.get("anyOf", schema.get("oneOf"))
    if isinstance(choices, list):
        words = [describe_schema(choice, root, levels - 1) for choice in choices[:_MAX_LISTED_CHOICES]]
        return _join_choices(words) if all(words) else ""
    declared = schema.get("type")
    types = declared if isinstance(declared, list) else [declared]
    return _join_choices([_describe_type(name, schema, root, levels) for name in types if name in _NOUNS])


def _describe_type(kind: str, schema: dict[str, Any], root: SchemaRoot, levels: int) -> str:
    noun = _NOUNS[kind]
    if kind in ("integer", "number"):
        return noun + _describe_range(schema)
    if kind == "string":
        return _describe_string(schema)
    if kind == "array":
        items = describe_schema(schema.get("items"), root, levels - 1)
        minimum = schema.get("minItems")
        length = f" of at least {minimum}" if minimum else ""
        maximum = f" of at most {schema['maxItems']}" if "maxItems" in schema and not minimum else ""
        return f"{noun}{length}{maximum}" + (
            f", each {items}" if items and not length and not maximum else ""
        )
    return noun


def _describe_range(schema: dict[str, Any]) -> str:
    minimum, maximum = schema.get("minimum"), schema.get("maximum")
    if maximum == _INT32_MAX:  # leave out this maximum, because Flow IR has it for every integer
        maximum = None
    if minimum is not None and maximum is not None:
        return f" from {minimum} to {maximum}"
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    bounds = [
        f" {sign} {bound}"
        for sign, bound in (("≥", minimum), (">", above), ("≤", maximum), ("<", below))
        if bound is not None
    ]
    return " and".join(bounds)


def _describe_string(schema: dict[str, Any]) -> str:
    if schema.get("format") == "date-time":
        return "a time such as 2026-01-31T12:00:00Z (RFC 3339)"
    if isinstance(schema.get("format"), str):
        return f"a string that is a {schema['format']}"
    if isinstance(schema.get("pattern"), str):
        return f"a string that matches {schema['pattern']}"
    if schema.get("minLength") == 1 and "maxLength" not in schema:
        return "a string that is not empty"
    return "a string"


def _join_choices(words: list[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else "".join(words)


def _json(value: object) -> str:
    return cut(msgspec.json.encode(value).decode(), _MAX_VALUE_CHARS)
