"""OpenAPI's words for what the doors' documents have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

Json = dict[str, Any]

# What is to be tried again later says when.
_LATER = (429, 503)


def operation(
    summary: str,
    gives: Json,
    codes: Iterable[str],
    *,
    statuses: Mapping[str, int],
    failure: Callable[[list[str]], Json],
    takes: Json | None = None,
    parameters: Sequence[Json] = (),
    status: int = 200,
) -> Json:
    """What a request gives, and what it fails with: codes, their statuses, and the shape of a failure."""
    responses: Json = {str(status): response(HTTPStatus(status).phrase, gives)}
    by_status: dict[int, list[str]] = {}
    for code in codes:
        by_status.setdefault(statuses[code], []).append(code)
    for number, those in sorted(by_status.items()):
        responses[str(number)] = response(HTTPStatus(number).phrase, failure(those))
        if number in _LATER:
            responses[str(number)]["headers"] = {"Retry-After": {"schema": {"type": "integer", "minimum": 0}}}
    described: Json = {"summary": summary, "parameters": [*parameters], "responses": responses}
    if takes is not None:
        described["requestBody"] = {"required": True, "content": {"application/json": {"schema": takes}}}
    return described


def response(description: str, schema: Json) -> Json:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def query(name: str, schema: Json, *, required: bool = False) -> Json:
    return {"name": name, "in": "query", "required": required, "schema": schema}
