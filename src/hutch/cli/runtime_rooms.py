"""The rest of Hutch for the steps of flows, each part made when a step first needs it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from hutch import settings as settings_module
from hutch.cli.alone import ALONE
from hutch.settings import Settings

if TYPE_CHECKING:
    from hutch.app import App
    from hutch.egress.broker import Broker


class OwnRooms:
    """Those of a runtime process. They belong to the event loop that makes them."""

    def __init__(self) -> None:
        self._apps: dict[tuple[str, ...], asyncio.Task[App]] = {}
        self._broker: Broker | None = None

    @cached_property
    def settings(self) -> Settings:
        """Raises SettingError."""
        return settings_module.load(ALONE)

    def broker(self) -> Broker:
        if self._broker is None:
            from hutch.egress.broker import Broker

            self._broker = Broker(self.settings)
        return self._broker

    async def app(self, egress_allow: tuple[str, ...]) -> App:
        """One for all that may reach the same. One that could not be made is tried again."""
        making = self._apps.get(egress_allow)
        if making is None or (making.done() and (making.cancelled() or making.exception())):
            making = self._apps[egress_allow] = asyncio.create_task(self._make(egress_allow))
        # Others may wait for it too.
        return await asyncio.shield(making)

    async def _make(self, egress_allow: tuple[str, ...]) -> App:
        from hutch.app import App

        settings = self.settings
        if egress_allow:
            wider = (*settings.egress_allow, *egress_allow)
            settings = msgspec.structs.replace(settings, egress_allow=wider)
        return await App.create(settings)

    async def close(self) -> None:
        async with AsyncExitStack() as all_of_them:
            if self._broker is not None:
                all_of_them.push_async_callback(self._broker.close)
            for making in self._apps.values():
                making.cancel()
                await asyncio.wait((making,))
                if not making.cancelled() and making.exception() is None:
                    all_of_them.push_async_callback(making.result().close)
