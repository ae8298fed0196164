"""Data keys of flows and their runs, stored in the meta table and encrypted with the master key.

They have the same format as the data keys of a user (see `data_keys`). The first key is created when it is
needed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hutch.errors import VaultError
from hutch.store.store import Store
from hutch.vault import crypto, master_key_check
from hutch.vault.data_keys import (
    FLOWS_META_KEY,
    FLOWS_OWNER,
    add_data_key,
    create_data_key,
    decrypt_data_keys,
    drop_expired_keys,
    entries_with_ids,
    parse_entries,
)

if TYPE_CHECKING:
    from hutch.settings import Settings
    from hutch.vault.crypto import MasterKeys
    from hutch.vault.data_keys import DataKeys

ATTEMPTS = 20
"""Maximum number of attempts while concurrent rotations change the key."""
PIECE_BYTES = 512 * 1024
"""Longer data is encrypted in pieces. Base64 and the cipher hold Python's lock, so that 8 MiB at once would
stall the event loop for 30 to 90 ms, also from a thread.
"""
_SEPARATOR = "\n"
# Encode lone surrogates too, because the results of steps may contain them.
_SURROGATES = "surrogatepass"


class FlowCipher:
    """Encrypts and decrypts columns of tables."""

    def __init__(self, data_keys: DataKeys) -> None:
        self._keys = data_keys

    def encrypt(self, text: str, *context: str) -> str:
        return self.encrypt_bytes(text.encode("utf-8", _SURROGATES), *context)

    def decrypt(self, text: str, *context: str) -> str:
        return self.decrypt_bytes(text, *context).decode("utf-8", _SURROGATES)

    def encrypt_bytes(self, data: bytes, *context: str) -> str:
        if len(data) <= PIECE_BYTES:
            return crypto.encrypt(self._keys, data, *context)
        pieces = [data[start : start + PIECE_BYTES] for start in range(0, len(data), PIECE_BYTES)]
        return _SEPARATOR.join(
            crypto.encrypt(self._keys, piece, *context, _place(number, len(pieces)))
            for number, piece in enumerate(pieces)
        )

    def decrypt_bytes(self, text: str, *context: str) -> bytes:
        texts = text.split(_SEPARATOR)
        if len(texts) == 1:
            return crypto.decrypt(self._keys, text, *context)
        return b"".join(
            crypto.decrypt(self._keys, piece, *context, _place(number, len(texts)))
            for number, piece in enumerate(texts)
        )


def _place(number: int, count: int) -> str:
    """Returns the part of the context that describes the position of a piece. With it, decryption fails if
    pieces are missing or in another order.
    """
    return f"piece {number} of {count}"


async def open_store(settings: Settings) -> Store:
    """Opens the store. The data keys of flows are loaded when they are first needed. Raises StoreError."""
    home = settings.home_path
    return await Store.open(settings, lambda store: load(store, home, os.environ))


async def load(store: Store, home: Path, environ: Mapping[str, str]) -> FlowCipher:
    """Loads the data keys of flows, and creates the first one if there is none. Raises VaultError.

    Creates a master key only if nothing is encrypted yet. A wrong master key is detected before anything is
    written.
    """
    text = await store.meta.get(FLOWS_META_KEY)
    is_new = text is None and not await master_key_check.has_encrypted_data(store)
    master = crypto.load_master_keys(home, environ, create=is_new)
    await master_key_check.check(store, master)
    if text is None:
        # Two processes may get here at the same time. The first one stores its key, and both use that key.
        text = await store.meta.put_first(FLOWS_META_KEY, create_data_key(master, FLOWS_OWNER))
    return FlowCipher(decrypt_data_keys(master, text, FLOWS_OWNER))


async def rotate(store: Store, master: MasterKeys) -> int | None:
    """Adds a new data key for future rows. Returns how many older keys remain, or None if there is no key
    yet.

    Existing rows are not encrypted again, because there may be many. Older keys are dropped when no row needs
    them any more. All data keys are encrypted again with the current master key. Raises VaultError.
    """
    for _ in range(ATTEMPTS):
        text = await store.meta.get(FLOWS_META_KEY)
        if text is None:
            return None
        added = add_data_key(master, text, FLOWS_OWNER)
        needed = entries_with_ids(master, added, FLOWS_OWNER, await store.data_key_ids())
        renewed = drop_expired_keys(added, needed)
        if await store.meta.swap(FLOWS_META_KEY, text, renewed):
            return len(parse_entries(renewed)) - 1
    raise VaultError("Other processes keep rotating the data key of flows.", remedy="Try again later.")
