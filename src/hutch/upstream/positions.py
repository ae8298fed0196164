"""Where in a JSON text something stands, for errors that name the line."""

from __future__ import annotations

import json
import re

Path = tuple[str | int, ...]

_SPACE = re.compile(r"[ \t\r\n]*")
_decoder = json.JSONDecoder()


def line_of(text: str, path: Path) -> int | None:
    """The line of what `path` leads to, or of the last step on the way that there is. `text` is JSON."""
    at = _skip(text, 0)
    place = at
    for step in path:
        found = _member(text, at, step)
        if found is None:
            break
        place, at = found
    return text.count("\n", 0, place) + 1


def dotted(path: Path) -> str:
    """A path as people write it."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")


def _member(text: str, at: int, step: str | int) -> tuple[int, int] | None:
    """Where a member begins, with its key, and where its value does. Of equal keys the last counts."""
    if text[at : at + 1] != ("[" if isinstance(step, int) else "{"):
        return None
    found = None
    number = 0
    at = _skip(text, at + 1)
    while text[at] not in "]}":
        start, name = at, number
        if isinstance(step, str):
            name, at = _decoder.raw_decode(text, at)
            at = _skip(text, _skip(text, at) + 1)
        if name == step:
            found = (start, at)
        at = _skip(text, _decoder.raw_decode(text, at)[1])
        if text[at] == ",":
            at = _skip(text, at + 1)
        number += 1
    return found


def _skip(text: str, at: int) -> int:
    matched = _SPACE.match(text, at)
    return matched.end() if matched else at
