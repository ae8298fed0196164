"""Parses and validates the contents of request bodies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from hutch.http.errors import ApiError
from hutch.problems import NameSuggester, Problem, ProblemList, first_problems
from hutch.protocols.rep.ir.problems import format_problems, list_problems
from hutch.protocols.rep.orchestrator.options import MAX_ID_CHARS, is_run_id

MAX_PAGE_SIZE = 1_000
MAX_STEP_CHARS = 2_000
"""Maximum length of a step id. Ids of inner steps contain the ids of all their outer steps."""


class StartRunBody(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `POST /flows/{name}/runs`."""

    inputs: dict[str, Any] = {}
    run_id: str | None = None
    version: int | None = None
    """Version of the flow. None means the newest version."""
    concurrency: int | None = None
    timeout: float | None = None
    """Time limit for the whole run in seconds. None means no limit."""


class ApprovalBody(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `POST /runs/{id}/approvals/{step_id}`."""

    approved: bool
    by: str | None = None
    reason: str | None = None


class RetryBody(msgspec.Struct, frozen=True, kw_only=True, rename={"from_": "from"}):
    """Body of `POST /runs/{id}/retry`."""

    from_: str


def parse_start_run(body: dict[str, Any]) -> StartRunBody:
    """Parses the body of a start request. Raises ApiError with the problems."""
    expect = _FieldChecker(body, StartRunBody)
    expect("inputs", "an object", lambda value: isinstance(value, dict))
    expect("run_id", f"1 to {MAX_ID_CHARS} printable ASCII characters, without /", _is_ascii_run_id)
    expect("version", "an integer of at least 1", _is_count)
    expect("concurrency", "an integer of at least 1", _is_count)
    expect("timeout", "a number of seconds above 0, up to 2147483647", _is_seconds)
    expect.problems.raise_if_any()
    fields = {name: value for name, value in body.items() if value is not None}
    return StartRunBody(**fields)


def parse_approval(body: dict[str, Any]) -> ApprovalBody:
    """Parses the body of an approval. Raises ApiError with the problems."""
    expect = _FieldChecker(body, ApprovalBody)
    if not isinstance(body.get("approved"), bool):
        expect.problems.add("approved", "expected true or false")
    expect("by", f"a text of 1 to {MAX_ID_CHARS} characters", _is_text(MAX_ID_CHARS))
    expect("reason", f"a text of 1 to {MAX_ID_CHARS} characters", _is_text(MAX_ID_CHARS))
    expect.problems.raise_if_any()
    return ApprovalBody(**body)


def parse_retry(body: dict[str, Any]) -> str:
    """Returns `from` of `POST /runs/{id}/retry`. Raises ApiError with the problems."""
    expect = _FieldChecker(body, RetryBody)
    if not _is_text(MAX_STEP_CHARS)(body.get("from")):
        expect.problems.add("from", "expected the id of a step")
    expect.problems.raise_if_any()
    return str(body["from"])


class _FieldChecker:
    """Callable that records a problem if a field has a wrong value. Null counts as absent."""

    def __init__(self, body: dict[str, Any], known: type[msgspec.Struct]) -> None:
        """Raises ApiError if there are too many unknown fields."""
        self._body = body
        self.problems = ProblemList(invalid_request)
        names = ", ".join(known.__struct_encode_fields__)
        suggester = NameSuggester()
        for name in body:
            if name not in known.__struct_encode_fields__:
                similar = suggester.closest(name, known.__struct_encode_fields__)
                hint = f"expected one of {names}" if similar is None else f"did you mean {similar}?"
                self.problems.add(name, f"unknown field; {hint}")

    def __call__(self, name: str, expected: str, is_valid: Any) -> None:
        value = self._body.get(name)
        if value is not None and not is_valid(value):
            self.problems.add(name, f"expected {expected}")


def invalid_request(problems: Iterable[Problem]) -> ApiError:
    listed = first_problems(problems)
    return ApiError("invalid_request", format_problems(listed), problems=list_problems(listed))


def _is_ascii_run_id(value: Any) -> bool:
    # Allow only ASCII, because the id becomes part of the header `Location`.
    return is_run_id(value) and value.isascii()


def _is_text(max_chars: int) -> Any:
    return lambda value: isinstance(value, str) and 0 < len(value) <= max_chars


def _is_seconds(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 2**31


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 2**31
