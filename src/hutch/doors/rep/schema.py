"""Values checked against a JSON Schema: everything that is wrong, with its path and what was expected."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import msgspec

from hutch.doors.rep.problems import MOST_PROBLEMS, Guesses, Place, Problem, at, kind_of
from hutch.session.schemas import NOTHING, Root, resolve
from hutch.session.weighing import MOST_PATTERN_BYTES, MOST_WORK, Weights, weigh

_NOUNS = {
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "object": "an object",
    "array": "a list",
    "null": "null",
}
_MOST = 2**31 - 1
_MOST_STEPS = 100_000
_MOST_NAMED = 50
_TOO_MUCH = "too much to be checked against its schema; send less, or make that simpler"


class InvalidSchema(ValueError):
    """What should be a JSON Schema is none."""


def check(schema: dict[str, Any], value: Any, place: Place = (), *, foreign: bool = False) -> list[Problem]:
    """What is wrong with a value; `place` is where it stands. Raises InvalidSchema.

    `foreign`: the schema is somebody else's, and may be made to take for ever.

    References lead only into the schema itself: nothing is ever fetched or read for one.
    """
    validator, weights = _compiled(msgspec.json.encode(schema))
    if foreign and weights.work(value) > MOST_WORK:
        return [Problem(at(place), _TOO_MUCH)]
    root = Root.of(schema, "")
    found: dict[Problem, None] = {}
    try:
        for error in validator.iter_errors(value):
            for problem in _told(error, root, place):
                found.setdefault(problem)
            if len(found) >= MOST_PROBLEMS:
                break
    except ValueError as error:  # a string with a lone surrogate, a number beyond all bounds
        found.setdefault(Problem(at(place), f"cannot be checked: {' '.join(str(error).split())[:200]}"))
    return list(found)


@lru_cache(maxsize=256)
def _compiled(schema: bytes) -> tuple[Any, Weights]:
    import jsonschema_rs

    read = msgspec.json.decode(schema)
    # Patterns that go back and forth take as long as they like otherwise.
    bounded = jsonschema_rs.FancyRegexOptions(
        backtrack_limit=_MOST_STEPS, size_limit=MOST_PATTERN_BYTES, dfa_size_limit=2 * MOST_PATTERN_BYTES
    )
    try:
        weights = weigh(read)
        validator = jsonschema_rs.validator_for(
            read, offline=True, validate_formats=True, pattern_options=bounded
        )
        return validator, weights
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        where = at(getattr(error, "instance_path", ()))
        reason = " ".join(str(error).partition("\n")[0].split())[:300]
        raise InvalidSchema(f"{where}: {reason}" if where else reason) from None


def _told(error: Any, root: Root, place: Place) -> Iterable[Problem]:
    where: Place = (*place, *error.instance_path)
    holder = _schema_at(root, error.schema_path[:-1])
    kind = error.kind.name
    if kind == "required":
        name = error.kind.property
        yield Problem(at((*where, name)), _missing(_property(root, holder, name), root))
    elif kind in ("additionalProperties", "unevaluatedProperties"):
        known = sorted(holder.get("properties") or ())
        guesses = Guesses()
        for name in error.kind.unexpected[:MOST_PROBLEMS]:
            yield Problem(at((*where, name)), _unknown(name, known, guesses))
    elif kind in ("falseSchema", "propertyNames") or not isinstance(holder, dict):
        yield Problem(at(where), " ".join(error.message.split())[:300])
    else:
        # The bound that is left out of most words is what this is about.
        unit = _MOST_OF.get(kind)
        expected = f"at most {error.kind.limit}{unit}" if unit is not None else describe(holder, root)
        wrong = f"expected {expected}" if expected else " ".join(error.message.split())[:300]
        yield Problem(at(where), f"{wrong}, got {kind_of(error.instance)}" if expected else wrong)


_MOST_OF = {"maximum": "", "maxItems": " items", "maxLength": " characters"}


def _missing(schema: Any, root: Root) -> str:
    expected = describe(schema, root)
    return f"is missing; expected {expected}" if expected else "is missing"


def _unknown(name: str, known: list[str], guesses: Guesses) -> str:
    close = guesses.near(name, known)
    if close:
        return f"is not known; did you mean {close}?"
    only = ", ".join(known[:_MOST_NAMED])
    return f"is not known; expected only {only}" if known else "is not known; nothing is expected"


def _property(root: Root, holder: Any, name: str) -> Any:
    properties = holder.get("properties") if isinstance(holder, dict) else None
    return properties.get(name) if isinstance(properties, dict) else None


def _schema_at(root: Root, steps: Iterable[str | int]) -> Any:
    """The schema that an error is about: the path passes through references without a word."""
    found = root.schema
    for step in steps:
        if isinstance(found, dict) and step == "$ref":
            found = resolve(found["$ref"], root)
        elif isinstance(found, dict) and step in found:
            found = found[str(step)]
        elif isinstance(found, list) and isinstance(step, int) and step < len(found):
            found = found[step]
        else:
            return {}
    return found


def describe(schema: Any, root: Root) -> str:
    """What a schema wants, in words; an empty text if it says nothing that fits into a few."""
    for _ in range(10):
        if not (isinstance(schema, dict) and isinstance(schema.get("$ref"), str)):
            break
        schema = resolve(schema["$ref"], root)
    if not isinstance(schema, dict) or schema is NOTHING:
        return ""
    if "const" in schema:
        return _json(schema["const"])
    if isinstance(schema.get("enum"), list):
        return _either([_json(each) for each in schema["enum"][:20]])
    choices = schema.get("anyOf", schema.get("oneOf"))
    if isinstance(choices, list):
        words = [describe(each, root) for each in choices]
        return _either(words) if all(words) else ""
    told = schema.get("type")
    types = told if isinstance(told, list) else [told]
    return _either([_typed(each, schema, root) for each in types if each in _NOUNS])


def _typed(kind: str, schema: dict[str, Any], root: Root) -> str:
    noun = _NOUNS[kind]
    if kind in ("integer", "number"):
        return noun + _range(schema)
    if kind == "string":
        return _string(schema)
    if kind == "array":
        items = describe(schema.get("items"), root)
        least = schema.get("minItems")
        length = f" of at least {least}" if least else ""
        most = f" of at most {schema['maxItems']}" if "maxItems" in schema and not least else ""
        return f"{noun}{length}{most}" + (f", each {items}" if items and not length and not most else "")
    return noun


def _range(schema: dict[str, Any]) -> str:
    least, most = schema.get("minimum"), schema.get("maximum")
    if most == _MOST:  # no bound that anybody means
        most = None
    if least is not None and most is not None:
        return f" from {least} to {most}"
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    bounds = [
        f" {sign} {bound}"
        for sign, bound in (("≥", least), (">", above), ("≤", most), ("<", below))
        if bound is not None
    ]
    return " and".join(bounds)


def _string(schema: dict[str, Any]) -> str:
    if schema.get("format") == "date-time":
        return "a time such as 2026-01-31T12:00:00Z (RFC 3339)"
    if isinstance(schema.get("format"), str):
        return f"a string that is a {schema['format']}"
    if isinstance(schema.get("pattern"), str):
        return f"a string that matches {schema['pattern']}"
    if schema.get("minLength") == 1 and "maxLength" not in schema:
        return "a string that is not empty"
    return "a string"


def _either(words: list[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else "".join(words)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
