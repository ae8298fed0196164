"""How often a key may come; on PostgreSQL all servers count together."""

from __future__ import annotations

from pathlib import Path

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from tests.databases import Server as Postgres
from tests.doors.abilities import towns
from tests.doors.abilities.towns import Citizen, failed
from tests.processes import PATIENCE, serving

from hutch.doors.abilities import documents

MOST = 3
LIMIT = {"HUTCH_ABILITY_RATE_LIMIT": str(MOST)}
# A new minute may begin in the middle of a test: then the last one counts a little less.
TRIES = MOST + 1


async def refused(citizen: Citizen, path: str) -> httpx2.Response:
    """The answer to one request too many."""
    for _ in range(TRIES):
        if (response := await citizen.get(path)).status_code == 429:
            break
    return response


async def test_a_key_that_comes_too_often_is_told_when_to_come_back(tmp_path: Path) -> None:
    async with towns.town(tmp_path, **LIMIT) as town:
        bo, again, ann = await town.user("bo"), await town.user("bo"), await town.user("ann")
        for _ in range(MOST):
            assert (await bo.get("/my/abilities")).status_code == 200
        for path in ("/my/abilities", "/my/credentials", "/abilities/x"):
            response = await refused(bo, path)
            message = failed(response, 429, "RATE_LIMITED")
            assert "3 requests a minute" in message
            assert 1 <= int(response.headers["retry-after"]) <= 60
        # As a tool, an ability counts too.
        headers = {"Authorization": f"Bearer {bo.secret}"}
        async with httpx2.AsyncClient(headers=headers, timeout=PATIENCE) as http:
            transport = streamable_http_client(f"{town.server.url}/mcp", http_client=http)
            async with Client(transport) as client:
                await town.store.abilities.put(documents.as_row(documents.read(towns.ability()), bo.user.id))
                for _ in range(TRIES):
                    called = await client.call_tool("twitter_get_user_profile", {"username": "elonmusk"})
                    if "requests a minute" in called.model_dump_json():
                        break
        assert called.is_error
        assert "3 requests a minute" in called.model_dump_json()
        # Each key has its own count, and a wrong one has none.
        assert (await again.get("/my/abilities")).status_code == 200
        assert (await ann.get("/my/abilities")).status_code == 200
        failed(await town.call("GET", "/my/abilities", "hk_" + "x" * 43), 401, "UNAUTHORIZED")


async def test_servers_that_share_a_database_count_together(tmp_path: Path, postgres: Postgres) -> None:
    env = {**LIMIT, "HUTCH_DATABASE_URL": postgres.new_database()}
    async with towns.town(tmp_path, **env) as town:
        bo = await town.user("bo")
        with serving(HUTCH_HOME=str(tmp_path), **env) as second:
            first = town.server
            seen = []
            for server in (first, second) * MOST:
                town.server = server
                seen.append((await bo.get("/my/abilities")).status_code)
            town.server = first
        # Each for itself, both would have let all of theirs in.
        assert seen[:MOST] == [200] * MOST
        assert seen[-1] == 429
