"""A user's abilities as MCP tools, which only clients with the user's key can see and call."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator

import httpx2
import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from tests.protocols.abilities import harness
from tests.protocols.abilities.harness import (
    MARK,
    PROFILE,
    SCHEMA,
    TOKEN,
    AbilityServer,
    UserClient,
    ability,
)
from tests.protocols.mcp.harness import ERAS, text_of
from tests.support.processes import TIMEOUT_SECONDS

from hutch.protocols.abilities.definition import definition_row, parse_definition
from hutch.protocols.mcp import abilities

ID = "twitter_get_user_profile"


@pytest.fixture(scope="module")
async def ability_server(
    anyio_backend: object, environment: None, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[AbilityServer]:
    async with harness.start_ability_server(
        tmp_path_factory.mktemp("server"), HUTCH_API_KEY="operator"
    ) as made:
        yield made


@pytest.fixture
async def bo(ability_server: AbilityServer, request: pytest.FixtureRequest) -> UserClient:
    """A user for this test, with an ability and its credential."""
    bo = await ability_server.user(f"bo-{abs(hash(request.node.nodeid))}")
    await add_ability(bo)
    await ability_server.vault.put_credential(bo.user, "127.0.0.1", "header", "Authorization", TOKEN)
    return bo


async def add_ability(user: UserClient, *, shared: bool = False, **changes: object) -> None:
    document = parse_definition(ability(user.ability_server.upstream.url, **changes))
    await user.ability_server.store.abilities.put(definition_row(document, user.user.id, shared=shared))


@contextlib.asynccontextmanager
async def connected(ability_server: AbilityServer, key: str, era: str = "auto") -> AsyncIterator[Client]:
    http = httpx2.AsyncClient(headers={"Authorization": f"Bearer {key}"}, timeout=TIMEOUT_SECONDS)
    async with (
        http,
        Client(
            streamable_http_client(f"{ability_server.server.url}/mcp", http_client=http), mode=era
        ) as client,
    ):
        yield client


@pytest.mark.parametrize("era", ERAS)
async def test_abilities_are_tools_with_their_schemas(bo: UserClient, era: str) -> None:
    async with connected(bo.ability_server, bo.secret, era) as client:
        (tool,) = (await client.list_tools()).tools
        assert (tool.name, tool.title, tool.input_schema) == (ID, "Get a user's profile", SCHEMA)
        assert "Finds a user of Twitter by name." in (tool.description or "")
        result = await client.call_tool(ID, {"username": "elonmusk"})
        assert not result.is_error
        # The result is sent as text only. Structured content would be a second copy.
        assert result.structured_content is None
        assert json.loads(text_of(result)) == PROFILE
        assert "ability" in (client.instructions or "")


async def test_invalid_parameters_are_reported_before_anything_runs(bo: UserClient) -> None:
    before = len(bo.ability_server.upstream.seen)
    async with connected(bo.ability_server, bo.secret) as client:
        result = await client.call_tool(ID, {"username": 3})
    assert result.is_error
    assert "params.username: 3 is not of type" in text_of(result)
    assert len(bo.ability_server.upstream.seen) == before


async def test_abilities_are_private(bo: UserClient) -> None:
    ann = await bo.ability_server.user("ann-who-has-none")
    async with connected(bo.ability_server, ann.secret) as client:
        assert (await client.list_tools()).tools == []
        for name in (ID, "nobodys"):
            with pytest.raises(MCPError, match=f"There is no tool '{name}'"):
                await client.call_tool(name, {"username": "elonmusk"})
    async with connected(bo.ability_server, "operator") as client:
        assert [each.name for each in (await client.list_tools()).tools] == [
            "search_tools",
            "describe_tools",
            "run_code",
        ]
        with pytest.raises(MCPError, match="There is no tool"):
            await client.call_tool(ID, {"username": "elonmusk"})


async def test_operators_tools_need_their_own_scope(bo: UserClient) -> None:
    async with connected(bo.ability_server, bo.secret) as client:
        with pytest.raises(MCPError, match="There is no tool"):
            await client.call_tool("run_code", {"code": "return 1", "language": "javascript"})
    both = await bo.ability_server.user(bo.user.name, scopes=("mcp", "toolscript"))
    async with connected(bo.ability_server, both.secret) as client:
        names = [each.name for each in (await client.list_tools()).tools]
        assert names == ["search_tools", "describe_tools", "run_code", ID]
        ran = await client.call_tool("run_code", {"code": "return 1", "language": "javascript"})
        assert text_of(ran) == "1"


async def test_results_contain_no_wrapper_code_or_secrets(bo: UserClient) -> None:
    await add_ability(
        bo, ability_id="throws", wrapper_code=f"/* {MARK} */ function wrapper() {{ nothing.here }}"
    )
    async with connected(bo.ability_server, bo.secret) as client:
        tools = await client.list_tools()
        answers = [
            await client.call_tool("throws", {"username": "x"}),
            await client.call_tool(ID, {"username": "unknown"}),
            await client.call_tool(ID, {}),
        ]
    for each in (tools, *answers):
        text = each.model_dump_json()
        assert MARK not in text
        assert TOKEN not in text
        assert "static-value-of-a-header" not in text
    assert all(each.is_error for each in answers)


async def test_abilities_are_paged_and_all_can_be_called(bo: UserClient) -> None:
    for number in range(abilities.PAGE_SIZE):
        await add_ability(bo, ability_id=f"many_{number:04}")
    async with connected(bo.ability_server, bo.secret) as client:
        first = await client.list_tools()
        assert (len(first.tools), first.next_cursor) == (
            abilities.PAGE_SIZE,
            f"many_{abilities.PAGE_SIZE - 1:04}",
        )
        rest = await client.list_tools(cursor=first.next_cursor)
        assert ([each.name for each in rest.tools], rest.next_cursor) == ([ID], None)
        assert not (await client.call_tool("many_0199", {"username": "elonmusk"})).is_error


async def test_ids_that_are_invalid_tool_names_are_replaced(bo: UserClient) -> None:
    odd = ["api.example.com:get@user", "x" * 150, "run_code"]
    for each in odd:
        await add_ability(bo, ability_id=each)
    both = await bo.ability_server.user(bo.user.name, scopes=("mcp", "toolscript"))
    async with connected(bo.ability_server, both.secret) as client:
        listed = (await client.list_tools()).tools[3:]
        names = [each.name for each in listed]
        assert len(names) == len(set(names)) == 4
        assert all(len(each) <= 64 and each.replace("_", "").isalnum() for each in names)
        for name in names:
            result = await client.call_tool(name, {"username": "elonmusk"})
            assert json.loads(text_of(result)) == PROFILE, name


async def test_shared_abilities_are_listed_after_own_ones(bo: UserClient) -> None:
    name = f"shared_{bo.user.id}"
    await add_ability(bo, shared=True, ability_id=name)
    ann = await bo.ability_server.user(f"ann-of-{bo.user.name}")
    async with connected(bo.ability_server, ann.secret) as client:
        assert name in [each.name for each in (await client.list_tools()).tools]
        await add_ability(ann, ability_id=name, ability_name="Ann's own")
        found = [each.title for each in (await client.list_tools()).tools if each.name == name]
        assert found == ["Ann's own"]
    await bo.ability_server.store.abilities.remove(name, bo.user.id)


async def test_ability_shared_with_a_user_is_a_tool_until_it_is_revoked(bo: UserClient) -> None:
    ann = await bo.ability_server.user(f"ann-with-{bo.user.name}")
    shares = bo.ability_server.store.ability_shares
    await add_ability(bo, ability_id="for_ann")
    async with connected(bo.ability_server, ann.secret) as client:
        await shares.add("for_ann", bo.user.id, [ann.user], [])
        assert [each.name for each in (await client.list_tools()).tools] == ["for_ann"]
        await shares.remove("for_ann", bo.user.id, [ann.user], [])
        with pytest.raises(MCPError, match="There is no tool"):
            await client.call_tool("for_ann", {"username": "elonmusk"})
