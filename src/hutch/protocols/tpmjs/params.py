"""Checks the parameters of a call against the JSON Schema of a tool, and applies the defaults of the schema.

The schema comes from the guest, so the cost of a check is bounded.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from hutch.problems import Problem, first_problems
from hutch.session.schema.defaults import apply_defaults
from hutch.session.schema.problems import check_against_schema, describe_fault
from hutch.session.schema.validate import InvalidSchema, compile_untrusted

# Compiling a larger schema would block the event loop noticeably.
MAX_SCHEMA_BYTES = 16 * 1024
# Maximum cost of one check, about 5 ms.
MAX_PARAMS_COST = 100_000
NO_SCHEMA = "params: not checked, because the tool does not describe its parameters"
_PATH = ("params",)


class Unchecked(Exception):
    """The parameters cannot be checked. The message says why."""


def problems_of(schema: str, params: dict[str, Any]) -> list[str]:
    """Returns the problems of parameters. Raises Unchecked."""
    text = schema.encode(errors="replace")
    if len(text) > MAX_SCHEMA_BYTES:
        raise Unchecked(f"the tool's schema has more than {MAX_SCHEMA_BYTES} bytes")
    try:
        validator, cost = compile_untrusted(text, formats=True)
        if cost.cost_of(params) > MAX_PARAMS_COST:
            raise Unchecked("they are too large, or the tool's schema is too complex")
        if _is_valid(validator, params):
            return []
        return listed(check_against_schema(msgspec.json.decode(text), params, _PATH, untrusted=True))
    except InvalidSchema as error:
        raise Unchecked(f"the tool's schema is not valid: {describe_fault(error)}") from None
    except (msgspec.DecodeError, RecursionError):
        raise Unchecked("the tool's schema is not JSON") from None


def _is_valid(validator: Any, params: dict[str, Any]) -> bool:
    try:
        return bool(validator.is_valid(params))
    except ValueError:  # raised for a lone surrogate, or a number out of range
        return False


def warnings_of(schema: str, params: dict[str, Any]) -> list[str]:
    """Returns the problems of parameters, or the reason why the parameters cannot be checked."""
    try:
        return problems_of(schema, params)
    except Unchecked as error:
        return [f"params: not checked, because {error}"]


def parse_params(schema: str, params: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """Returns the problems of parameters, and the parameters with the defaults of the schema."""
    try:
        # Do this first, because it also checks the schema, which `apply_defaults` relies on.
        problems = problems_of(schema, params)
        complete = apply_defaults(msgspec.json.decode(schema), params)
        if problems and complete != params:
            # Check again, because a missing required parameter may have a default.
            problems = problems_of(schema, complete)
    except Unchecked as error:
        return [f"params: cannot be checked, because {error}"], params
    return problems, complete


def listed(problems: Iterable[Problem]) -> list[str]:
    return [str(problem) for problem in first_problems(problems)]


def guest_problems(value: object) -> list[str]:
    """Returns the problems that the guest lists, bounded like all problems."""
    texts = value if isinstance(value, list) else []
    return listed(Problem("", text) for text in texts if isinstance(text, str) and text)
