"""Rate limits of API keys. With PostgreSQL, all servers share the counters."""

from __future__ import annotations

from pathlib import Path

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from tests.protocols.abilities import harness
from tests.protocols.abilities.harness import UserClient, error_message
from tests.support.databases import PostgresServer as Postgres
from tests.support.processes import TIMEOUT_SECONDS, running_server

from hutch.protocols.abilities.definition import definition_row, parse_definition

LIMIT_PER_MINUTE = 3
LIMIT = {"HUTCH_ABILITY_RATE_LIMIT": str(LIMIT_PER_MINUTE)}
# At least one of this many requests is refused. This holds even if a new minute begins meanwhile, because a
# part of the previous minute's requests still counts.
TRIES = LIMIT_PER_MINUTE + 1


async def refused(client: UserClient, path: str) -> httpx2.Response:
    """Repeats a request until it is refused."""
    for _ in range(TRIES):
        if (response := await client.get(path)).status_code == 429:
            break
    return response


async def test_request_over_the_limit_returns_retry_after(tmp_path: Path) -> None:
    async with harness.start_ability_server(tmp_path, **LIMIT) as ability_server:
        bo, again, ann = (
            await ability_server.user("bo"),
            await ability_server.user("bo"),
            await ability_server.user("ann"),
        )
        for _ in range(LIMIT_PER_MINUTE):
            assert (await bo.get("/my/abilities")).status_code == 200
        for path in ("/my/abilities", "/my/credentials", "/abilities/x"):
            response = await refused(bo, path)
            message = error_message(response, 429, "RATE_LIMITED")
            assert "3 requests a minute" in message
            assert 1 <= int(response.headers["retry-after"]) <= 60
        # Calls of abilities as MCP tools count as well.
        headers = {"Authorization": f"Bearer {bo.secret}"}
        async with httpx2.AsyncClient(headers=headers, timeout=TIMEOUT_SECONDS) as http:
            transport = streamable_http_client(f"{ability_server.server.url}/mcp", http_client=http)
            async with Client(transport) as client:
                await ability_server.store.abilities.put(
                    definition_row(parse_definition(harness.ability()), bo.user.id)
                )
                for _ in range(TRIES):
                    called = await client.call_tool("twitter_get_user_profile", {"username": "elonmusk"})
                    if "requests a minute" in called.model_dump_json():
                        break
        assert called.is_error
        assert "3 requests a minute" in called.model_dump_json()
        # Each valid key has its own counter. An invalid key has no counter.
        assert (await again.get("/my/abilities")).status_code == 200
        assert (await ann.get("/my/abilities")).status_code == 200
        error_message(
            await ability_server.call("GET", "/my/abilities", "hk_" + "x" * 43), 401, "UNAUTHORIZED"
        )


async def test_servers_that_share_a_database_share_the_limit(tmp_path: Path, postgres: Postgres) -> None:
    env = {**LIMIT, "HUTCH_DATABASE_URL": postgres.new_database()}
    async with harness.start_ability_server(tmp_path, **env) as ability_server:
        bo = await ability_server.user("bo")
        with running_server(HUTCH_HOME=str(tmp_path), **env) as second:
            first = ability_server.server
            statuses = []
            for server in (first, second) * LIMIT_PER_MINUTE:
                ability_server.server = server
                statuses.append((await bo.get("/my/abilities")).status_code)
            ability_server.server = first
        # The last request was refused, because requests to the other server count, too. With separate
        # counters, both servers would have allowed all requests.
        assert statuses[:LIMIT_PER_MINUTE] == [200] * LIMIT_PER_MINUTE
        assert statuses[-1] == 429
