"""Stores large results of code. Later calls of the same owner can use a stored result by its name instead of
sending it again.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from hutch.errors import InvalidExecution
from hutch.session.inputs import encode_inputs
from hutch.session.json_value import decode_value
from hutch.store.models import now
from hutch.text import cut, printable

if TYPE_CHECKING:
    from hutch.settings import Settings
    from hutch.store.store import Store

VARIABLE = "values"
"""Name of the guest's variable that contains the values."""
_MAX_LISTED_NAMES = 10


class StoredValues:
    def __init__(self, settings: Settings, open_store: Callable[[], Awaitable[Store]]) -> None:
        self._settings = settings
        self._open_store = open_store

    async def add(self, owner: str, json: bytes) -> str:
        """Stores the JSON text of a value. Returns its name. Raises HutchError."""
        name = f"v_{secrets.token_hex(6)}"
        store, settings = await self._open_store(), self._settings
        expires_at = now(plus_seconds=settings.value_hours * 3600)
        await store.stored_values.add(owner, name, json, expires_at, settings.max_value_bytes_per_owner)
        return name

    async def inputs(self, owner: str, names: Sequence[str]) -> bytes | None:
        """Returns the inputs of code that uses values. Raises InvalidExecution for unknown names."""
        if not names:
            return None
        store = await self._open_store()
        found = {}
        for name in names:
            data = await store.stored_values.get(owner, name)
            if data is None:
                known = (await store.stored_values.names(owner))[:_MAX_LISTED_NAMES]
                raise InvalidExecution(
                    "values",
                    f"there is no value {printable(cut(name, 100))!r}, or it has expired;"
                    f" known values: {', '.join(known) or 'none'}",
                )
            found[name] = data
        # Decode in a thread, because a value may have megabytes.
        return await asyncio.to_thread(_encode, found)


def _encode(values: dict[str, bytes]) -> bytes | None:
    return encode_inputs({VARIABLE: {name: decode_value(data) for name, data in values.items()}})
