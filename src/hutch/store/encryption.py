"""Encrypts columns of tables. The keys are loaded when they are first needed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Protocol, TypeVar

from hutch.errors import VaultError
from hutch.store.backends.base import check_storable

T = TypeVar("T")

logger = logging.getLogger("hutch.store")

LARGE_TEXT_CHARS = 128 * 1024
"""Length above which a text is encrypted in a thread. A megabyte takes about 10 ms."""
RELOAD_SECONDS = 60.0
"""Time after which keys are loaded again. It is much shorter than the time for which replaced keys are kept.
"""


class Cipher(Protocol):
    """Encrypts with the current key and decrypts with any key. `context` is authenticated, and decryption
    needs the same context as encryption.
    """

    def encrypt(self, text: str, *context: str) -> str: ...

    def decrypt(self, text: str, *context: str) -> str:
        """Decrypts a text. Raises VaultError if the key is missing, the context differs or the text was
        altered.
        """

    def encrypt_bytes(self, data: bytes, *context: str) -> str: ...

    def decrypt_bytes(self, text: str, *context: str) -> bytes:
        """Decrypts a text to bytes. Raises like `decrypt`."""


class ColumnEncryption:
    """Encrypts and decrypts with a cipher that is loaded on first use, and again when keys may have been
    replaced.
    """

    def __init__(self, load: Callable[[], Awaitable[Cipher]]) -> None:
        self._load = load
        self._cipher: Cipher | None = None
        self._loaded_at = 0.0
        self._loading = asyncio.Lock()

    async def encrypt(self, text: str, *context: str) -> str:
        """Encrypts a text. Raises InvalidText if the context contains characters that cannot be stored."""
        check_storable({"id": "".join(context)})
        cipher = await self.ready()
        if len(text) <= LARGE_TEXT_CHARS:
            return cipher.encrypt(text, *context)
        return await asyncio.to_thread(cipher.encrypt, text, *context)

    async def decrypt(self, text: str, *context: str) -> str:
        """Decrypts a text. Raises VaultError and StoreError."""
        return await self._decrypt_with(lambda cipher: cipher.decrypt, text, context)

    async def encrypt_bytes(self, data: bytes, *context: str) -> str:
        """Encrypts bytes. Raises like `encrypt`."""
        check_storable({"id": list(context)})
        cipher = await self.ready()
        if len(data) <= LARGE_TEXT_CHARS:
            return cipher.encrypt_bytes(data, *context)
        return await asyncio.to_thread(cipher.encrypt_bytes, data, *context)

    async def decrypt_bytes(self, text: str, *context: str) -> bytes:
        """Decrypts a text to bytes. Raises like `decrypt`."""
        return await self._decrypt_with(lambda cipher: cipher.decrypt_bytes, text, context)

    async def _decrypt_with(
        self, method: Callable[[Cipher], Callable[..., T]], text: str, context: tuple[str, ...]
    ) -> T:
        cipher = await self.ready()
        try:
            return await _decrypt(method(cipher), text, context)
        except VaultError:
            # Try again with reloaded keys, because the text may be encrypted with a key that was added
            # meanwhile.
            return await _decrypt(method(await self._reload(cipher)), text, context)

    async def ready(self) -> Cipher:
        """Returns the cipher. Call this before reading rows: rows of older versions may be plaintext, and
        loading the cipher encrypts those rows in the database.
        """
        cipher = self._cipher
        if cipher is None:
            return await self._reload(None)
        if monotonic() - self._loaded_at < RELOAD_SECONDS:
            return cipher
        try:
            return await self._reload(cipher)
        except VaultError as error:
            # Continue with the keys that are loaded. They are still valid, because replaced keys are kept for
            # a while.
            logger.warning("the keys of flows could not be reloaded: %s", error)
            self._loaded_at = monotonic()
            return cipher

    async def _reload(self, known: Cipher | None) -> Cipher:
        """Loads a new cipher, unless another task has already replaced `known`."""
        async with self._loading:
            if self._cipher is None or self._cipher is known:
                self._cipher = await self._load()
                self._loaded_at = monotonic()
            return self._cipher


async def _decrypt(decrypt: Callable[..., T], text: str, context: tuple[str, ...]) -> T:
    if len(text) <= LARGE_TEXT_CHARS:
        return decrypt(text, *context)
    return await asyncio.to_thread(decrypt, text, *context)
