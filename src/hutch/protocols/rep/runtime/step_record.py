"""Bounded and redacted copies of a step's input and output, for people who look at a run."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from hutch.egress.redaction import MARK, Redactor, cached_redactor
from hutch.protocols.rep.ir.references import CODE_PARAMETERS, OPAQUE_PARAMETERS
from hutch.text import cut

MAX_RECORD_CHARS = 4_096
"""Approximate limit of the JSON text of an input or an output."""
MAX_TEXT_CHARS = 1_000
MAX_DEPTH = 12
MAX_SECRETS = 16
MAX_SEARCHED = 2_000
"""Number of values of an input that are searched for secrets."""
# Number of characters of a text that are searched for secrets. A text is cut to MAX_TEXT_CHARS only after the
# search, because cutting first could leave half of a secret, which would not be recognised.
_REDACTED_CHARS = MAX_TEXT_CHARS + 4_096
_SECRET_NAME = re.compile(
    r"(?:authorization|cookie|passw(?:or)?d|passphrase|secret|token|api[-_]?key|access[-_]?key"
    r"|private[-_]?key|credential)s?\Z",
    re.I,
)
_SECRET_IN_URL = re.compile(
    r"(?P<name>[?&][\w.-]*(?:token|secret|passw(?:or)?d|api[-_]?key|signature)=)[^&#\s]+"
    r"|(?P<scheme>\b[a-z][a-z0-9+.-]{0,20}://)[^\s/@:]*:[^\s/@]+@",
    re.I,
)
_SECRET_PARAMETERS = {"tool.execute": ("env",)}
"""Parameters whose values are all secret, by step kind."""


def step_values(kind: str, parameters: Mapping[str, Any] | None, output: Any) -> dict[str, Any]:
    """Returns `input` and `output` for the record of a step.

    Parameters that are code are left out, because they are in the flow. Values with names like `password` are
    redacted, and so are copies of them in the output.
    """
    shown = {
        key: value
        for key, value in (parameters or {}).items()
        if key not in CODE_PARAMETERS.get(kind, ()) and key not in OPAQUE_PARAMETERS.get(kind, ())
    }
    all_secret = _SECRET_PARAMETERS.get(kind, ())
    secrets = dict.fromkeys(_secrets(shown, all_secret))
    copier = _Copier(cached_redactor(tuple(secrets)[:MAX_SECRETS]), all_secret)
    return {"input": copier.copy(shown), "output": copier.copy(output)}


def _secrets(parameters: dict[str, Any], names: tuple[str, ...]) -> Iterator[str]:
    """Searches the first `MAX_SEARCHED` values. Yields strings whose key is the name of a secret, and strings
    inside of a value with such a key.
    """
    pending: deque[tuple[Any, bool]] = deque(
        (value, _is_secret(key, names)) for key, value in islice(parameters.items(), MAX_SEARCHED)
    )
    left = MAX_SEARCHED
    while pending and left:
        left -= 1
        value, is_secret = pending.popleft()
        if isinstance(value, str):
            if is_secret and value:
                yield value[:MAX_TEXT_CHARS]
        elif isinstance(value, dict):
            items = islice(value.items(), left)
            pending.extend((item, is_secret or _is_secret(key, ())) for key, item in items)
        elif isinstance(value, list):
            pending.extend((item, is_secret) for item in islice(value, left))
        if len(pending) > left:
            pending = deque(islice(pending, left))


def _is_secret(key: str, names: tuple[str, ...]) -> bool:
    return key in names or _SECRET_NAME.search(key[-100:]) is not None


class _Copier:
    """Copies values until `MAX_RECORD_CHARS` are used. A note replaces the values that are left out."""

    def __init__(self, redactor: Redactor, names: tuple[str, ...]) -> None:
        self._redactor = redactor
        self._names = names
        self._left = 0

    def copy(self, value: Any) -> Any:
        self._left = MAX_RECORD_CHARS
        return self._copy(value, self._names, 0)

    def _copy(self, value: Any, names: tuple[str, ...], depth: int) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, Mapping):
            return self._object(value, names, depth)
        if isinstance(value, (list, tuple)):
            return self._list(value, depth)
        self._left -= 8
        return value

    def _text(self, text: str) -> str:
        redacted = self._redactor.text(text[:_REDACTED_CHARS])
        redacted = _SECRET_IN_URL.sub(_without_secret, redacted)
        shown = cut(redacted, min(MAX_TEXT_CHARS, max(self._left, 1)))
        self._left -= len(shown) + 2
        return shown

    def _object(self, value: Mapping[str, Any], names: tuple[str, ...], depth: int) -> Any:
        copied: dict[str, Any] = {}
        self._left -= 4
        for number, (key, item) in enumerate(value.items()):
            if self._left <= 0 or depth >= MAX_DEPTH:
                copied["…"] = f"{len(value) - number} more"
                break
            shown_key = self._text(key)
            is_secret = _is_secret(key, names) and not isinstance(item, (int, float, type(None)))
            copied[shown_key] = MARK if is_secret else self._copy(item, (), depth + 1)
        return copied

    def _list(self, value: list[Any] | tuple[Any, ...], depth: int) -> list[Any]:
        copied: list[Any] = []
        self._left -= 4
        for number, item in enumerate(value):
            if self._left <= 0 or depth >= MAX_DEPTH:
                copied.append(f"… {len(value) - number} more")
                break
            copied.append(self._copy(item, (), depth + 1))
        return copied


def _without_secret(match: re.Match[str]) -> str:
    if match["name"] is not None:
        return f"{match['name']}{MARK}"
    return f"{match['scheme']}{MARK}@"
