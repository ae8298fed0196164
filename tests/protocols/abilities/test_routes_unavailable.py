"""Errors of the server itself: broken storage and shutdown."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from tests.protocols.abilities.harness import error_message

from hutch.errors import HutchError, StoreError, VaultError
from hutch.http.auth import AccessControl
from hutch.protocols.abilities.routes import routes
from hutch.settings import Settings
from hutch.store.models import ApiKey, User, now
from hutch.vault.api_keys import Identity

USER = User(id="user_1", name="bo", data_key="", created_at=now())
KEY = ApiKey(
    id="key_1", user_id="user_1", name="", digest="", hint="", scopes=("abilities",), created_at=now()
)
PATH = "/home/operator/hutch.db"


class BrokenServices:
    """Services of a server that cannot open its store."""

    def __init__(self, error: Exception, *, keys_fail: bool = False) -> None:
        self.settings = Settings()
        self._error = error
        self._keys_fail = keys_fail

    async def store(self) -> Any:
        raise self._error

    vault = abilities = store

    async def authenticate(self, _: str) -> Identity:
        if self._keys_fail:
            raise self._error
        return Identity(user=USER, key=KEY)


async def get_abilities(services: BrokenServices, *, draining: bool = False) -> httpx2.Response:
    access = AccessControl(services.settings, services)
    access.is_draining = draining
    web = httpx2.ASGITransport(app=Starlette(routes=routes(services, access)))
    async with httpx2.AsyncClient(transport=web, base_url="http://localhost") as client:
        return await client.get("/my/abilities", headers={"Authorization": f"Bearer hk_{'x' * 43}"})


async def test_draining_server_refuses_requests() -> None:
    response = await get_abilities(BrokenServices(StoreError()), draining=True)
    assert "shutting down" in error_message(response, 503, "BUSY")
    assert response.headers["retry-after"] == "1"


@pytest.mark.parametrize("keys_fail", [False, True])
async def test_storage_error_hides_the_path(keys_fail: bool, caplog: pytest.LogCaptureFixture) -> None:
    response = await get_abilities(
        BrokenServices(StoreError(f"{PATH}: cannot be opened."), keys_fail=keys_fail)
    )
    assert PATH not in error_message(response, 503, "UNAVAILABLE")
    assert response.headers["retry-after"] == "1"
    assert PATH in caplog.text


@pytest.mark.parametrize("error", [VaultError(PATH), HutchError(PATH), RuntimeError(PATH)])
async def test_internal_error_is_logged_and_hidden_from_the_caller(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    assert PATH not in error_message(await get_abilities(BrokenServices(error)), 500, "INTERNAL_ERROR")
    assert PATH in caplog.text
