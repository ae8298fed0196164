"""What this door needs of Hutch; `hutch.keeping.Keeping` has it all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from hutch.settings import Settings

if TYPE_CHECKING:
    from hutch.doors.abilities.execute import Abilities
    from hutch.store.store import Store
    from hutch.vault.vault import Vault


class Rooms(Protocol):
    """What is kept, the secrets in it, and what runs abilities. Each is opened when it is first needed.

    Opening raises StoreError and VaultError.
    """

    @property
    def settings(self) -> Settings: ...
    async def store(self) -> Store: ...
    async def vault(self) -> Vault: ...
    async def abilities(self) -> Abilities: ...
