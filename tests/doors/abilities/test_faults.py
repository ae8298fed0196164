"""What is told when the server itself is not well, or about to end."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from tests.doors.abilities.towns import failed

from hutch.doors.abilities.http import routes
from hutch.doors.gate import Gate
from hutch.errors import HutchError, StoreError, VaultError
from hutch.settings import Settings
from hutch.store.rows import ApiKey, User, now
from hutch.vault.apikeys import Caller

USER = User(id="user_1", name="bo", data_key="", created_at=now())
KEY = ApiKey(
    id="key_1", user_id="user_1", name="", digest="", hint="", scopes=("abilities",), created_at=now()
)
WHERE = "/home/operator/hutch.db"


class Broken:
    """Rooms of which none can be opened."""

    def __init__(self, error: Exception, *, keys_too: bool = False) -> None:
        self.settings = Settings()
        self._error = error
        self._keys_too = keys_too

    async def store(self) -> Any:
        raise self._error

    vault = abilities = store

    async def authenticate(self, _: str) -> Caller:
        if self._keys_too:
            raise self._error
        return Caller(user=USER, key=KEY)


async def ask(rooms: Broken, *, draining: bool = False) -> httpx2.Response:
    gate = Gate(rooms.settings, rooms)
    gate.draining = draining
    web = httpx2.ASGITransport(app=Starlette(routes=routes(rooms, gate)))
    async with httpx2.AsyncClient(transport=web, base_url="http://localhost") as client:
        return await client.get("/my/abilities", headers={"Authorization": f"Bearer hk_{'x' * 43}"})


async def test_a_server_that_is_about_to_end_takes_nothing_new() -> None:
    response = await ask(Broken(StoreError()), draining=True)
    assert "shutting down" in failed(response, 503, "BUSY")
    assert response.headers["retry-after"] == "1"


@pytest.mark.parametrize("keys_too", [False, True])
async def test_a_store_that_is_gone_is_told_without_where_it_was(
    keys_too: bool, caplog: pytest.LogCaptureFixture
) -> None:
    response = await ask(Broken(StoreError(f"{WHERE}: cannot be opened."), keys_too=keys_too))
    assert WHERE not in failed(response, 503, "UNAVAILABLE")
    assert response.headers["retry-after"] == "1"
    assert WHERE in caplog.text


@pytest.mark.parametrize("error", [VaultError(WHERE), HutchError(WHERE), RuntimeError(WHERE)])
async def test_other_faults_are_ours_and_their_reason_is_in_the_log(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    assert WHERE not in failed(await ask(Broken(error)), 500, "INTERNAL_ERROR")
    assert WHERE in caplog.text
