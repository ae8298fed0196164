"""Maps the request that starts a trigger to the inputs of the run.

A mapping has a path for each input: `body.repository.full_name`, `body.commits[0].id`,
`headers.x-github-event`, `query.page` or `body`. A path to a value that does not exist gives null.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from hutch.errors import InvalidInput

MAX_PATH_CHARS = 500
MAX_INPUTS = 100
_PART = re.compile(r"\.([^.\[\]]+)|\[(\d{1,6})\]")
_SOURCES = ("body", "headers", "query")


def check_mapping(mapping: Mapping[str, Any]) -> None:
    """Raises InvalidInput if a path is not valid."""
    if len(mapping) > MAX_INPUTS:
        raise InvalidInput("map", f"expected at most {MAX_INPUTS} inputs.")
    for name, path in mapping.items():
        if not isinstance(path, str) or len(path) > MAX_PATH_CHARS or _parts(path) is None:
            raise InvalidInput(
                f"map.{name[:60]}",
                "expected a path such as body.repository.name, headers.x-event or query.id.",
            )


def map_inputs(
    mapping: Mapping[str, str], body: Any, headers: Mapping[str, str], query: Mapping[str, str]
) -> dict[str, Any]:
    """Returns the inputs. Without a mapping, they are the fields of the body."""
    if not mapping:
        return body if isinstance(body, dict) else {"body": body}
    sources = {"body": body, "headers": dict(headers), "query": dict(query)}
    return {name: _find(sources, path) for name, path in mapping.items()}


def _find(sources: Mapping[str, Any], path: str) -> Any:
    source, *parts = _parts(path) or ["body"]
    value = sources[str(source)]
    for part in parts:
        if isinstance(part, int):
            value = value[part] if isinstance(value, list) and part < len(value) else None
        else:
            value = value.get(part) if isinstance(value, dict) else None
    return value


def _parts(path: str) -> list[str | int] | None:
    source = re.match(r"[a-z]+", path)
    if source is None or source[0] not in _SOURCES:
        return None
    parts: list[str | int] = [source[0]]
    position = source.end()
    while position < len(path):
        match = _PART.match(path, position)
        if match is None:
            return None
        name = match[1]
        parts.append(int(match[2]) if name is None else name.lower() if source[0] == "headers" else name)
        position = match.end()
    return parts
