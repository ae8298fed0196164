"""Seals for what the tables of flows keep. Which keys that takes is asked when it matters."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Protocol

from hutch.errors import VaultError

logger = logging.getLogger("hutch.store")

FRESH_SECONDS = 60.0
"""For so long keys are believed to be the current ones: far shorter than replaced ones are kept."""


class Cipher(Protocol):
    """Seals with the current key, and opens with all. `about` has to be said again to open."""

    def seal(self, text: str, *about: str) -> str: ...

    def unseal(self, text: str, *about: str) -> str:
        """Raises VaultError: no such key, about something else, or not as it was sealed."""


class Seals:
    """The keys as they are now: had at the first use, and again when others may have replaced them."""

    def __init__(self, load: Callable[[], Awaitable[Cipher]]) -> None:
        self._load = load
        self._cipher: Cipher | None = None
        self._loaded_at = 0.0
        self._loading = asyncio.Lock()

    async def seal(self, text: str, *about: str) -> str:
        """Raises VaultError and StoreError."""
        return (await self.ready()).seal(text, *about)

    async def unseal(self, text: str, *about: str) -> str:
        """Raises VaultError and StoreError."""
        cipher = await self.ready()
        try:
            return cipher.unseal(text, *about)
        except VaultError:
            # It may be sealed with a key that was made since.
            return (await self._loaded(cipher)).unseal(text, *about)

    async def ready(self) -> Cipher:
        """To be waited for before anything is read: then what is older than seals is sealed too."""
        cipher = self._cipher
        if cipher is None:
            return await self._loaded(None)
        if monotonic() - self._loaded_at < FRESH_SECONDS:
            return cipher
        try:
            return await self._loaded(cipher)
        except VaultError as error:
            # What we have still opens for everybody who has the keys.
            logger.warning("the keys of flows could not be read again: %s", error)
            self._loaded_at = monotonic()
            return cipher

    async def _loaded(self, known: Cipher | None) -> Cipher:
        """Another one than `known`; of those who come at once one has it loaded for all."""
        async with self._loading:
            if self._cipher is None or self._cipher is known:
                self._cipher = await self._load()
                self._loaded_at = monotonic()
            return self._cipher
