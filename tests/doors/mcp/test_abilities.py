"""A user's abilities as tools, for that user's key alone."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import httpx2
import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from tests.doors.abilities import towns
from tests.doors.abilities.towns import MARK, PROFILE, SCHEMA, TOKEN, Citizen, Town, ability
from tests.doors.mcp.houses import ERAS, text_of
from tests.processes import PATIENCE

from hutch.doors.abilities import documents
from hutch.doors.mcp import abilities

ID = "twitter_get_user_profile"


@pytest.fixture(scope="module")
async def town(
    anyio_backend: object, environment: None, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Town]:
    async with towns.town(tmp_path_factory.mktemp("town"), HUTCH_API_KEY="operator") as made:
        yield made


@pytest.fixture
async def bo(town: Town, request: pytest.FixtureRequest) -> Citizen:
    """A user of this test's own, with an ability and its credential."""
    bo = await town.user(f"bo-{abs(hash(request.node.nodeid))}")
    await keep(bo)
    await town.vault.put_credential(bo.user, "127.0.0.1", "header", "Authorization", TOKEN)
    return bo


async def keep(citizen: Citizen, *, shared: bool = False, **changes: object) -> None:
    document = documents.read(ability(citizen.town.upstream.url, **changes))
    await citizen.town.store.abilities.put(documents.as_row(document, citizen.user.id, shared=shared))


@contextlib.asynccontextmanager
async def connected(town: Town, key: str, era: str = "auto") -> AsyncIterator[Client]:
    http = httpx2.AsyncClient(headers={"Authorization": f"Bearer {key}"}, timeout=PATIENCE)
    async with (
        http,
        Client(streamable_http_client(f"{town.server.url}/mcp", http_client=http), mode=era) as client,
    ):
        yield client


@pytest.mark.parametrize("era", ERAS)
async def test_abilities_are_tools_with_their_schemas(bo: Citizen, era: str) -> None:
    async with connected(bo.town, bo.secret, era) as client:
        (tool,) = (await client.list_tools()).tools
        assert (tool.name, tool.title, tool.input_schema) == (ID, "Get a user's profile", SCHEMA)
        assert "Finds a user of Twitter by name." in (tool.description or "")
        result = await client.call_tool(ID, {"username": "elonmusk"})
        assert not result.is_error
        assert result.structured_content is not None
        assert result.structured_content["result"]["body"] == PROFILE
        assert "Elon Musk" in text_of(result)
        assert "ability" in (client.instructions or "")


async def test_parameters_that_do_not_fit_are_told_before_anything_runs(bo: Citizen) -> None:
    before = len(bo.town.upstream.seen)
    async with connected(bo.town, bo.secret) as client:
        result = await client.call_tool(ID, {"username": 3})
    assert result.is_error
    assert "params.username: 3 is not of type" in text_of(result)
    assert len(bo.town.upstream.seen) == before


async def test_nobody_else_has_them(bo: Citizen) -> None:
    ann = await bo.town.user("ann-who-has-none")
    async with connected(bo.town, ann.secret) as client:
        assert (await client.list_tools()).tools == []
        for name in (ID, "nobodys"):
            with pytest.raises(MCPError, match=f"There is no tool '{name}'"):
                await client.call_tool(name, {"username": "elonmusk"})
    async with connected(bo.town, "operator") as client:
        assert [each.name for each in (await client.list_tools()).tools] == [
            "search_tools",
            "describe_tools",
            "run_code",
        ]
        with pytest.raises(MCPError, match="There is no tool"):
            await client.call_tool(ID, {"username": "elonmusk"})


async def test_what_is_the_operators_needs_a_scope_of_its_own(bo: Citizen) -> None:
    async with connected(bo.town, bo.secret) as client:
        with pytest.raises(MCPError, match="There is no tool"):
            await client.call_tool("run_code", {"code": "return 1", "language": "javascript"})
    both = await bo.town.user(bo.user.name, scopes=("mcp", "toolscript"))
    async with connected(bo.town, both.secret) as client:
        names = [each.name for each in (await client.list_tools()).tools]
        assert names == ["search_tools", "describe_tools", "run_code", ID]
        ran = await client.call_tool("run_code", {"code": "return 1", "language": "javascript"})
        assert ran.structured_content is not None
        assert ran.structured_content["result"] == 1


async def test_code_of_wrappers_and_secrets_are_in_no_answer(bo: Citizen) -> None:
    await keep(bo, ability_id="throws", wrapper_code=f"/* {MARK} */ function wrapper() {{ nothing.here }}")
    async with connected(bo.town, bo.secret) as client:
        tools = await client.list_tools()
        answers = [
            await client.call_tool("throws", {"username": "x"}),
            await client.call_tool(ID, {"username": "nobody"}),
            await client.call_tool(ID, {}),
        ]
    for each in (tools, *answers):
        text = each.model_dump_json()
        assert MARK not in text
        assert TOKEN not in text
        assert "static-value-of-a-header" not in text
    assert all(each.is_error for each in answers)


async def test_many_come_in_pages_and_all_can_be_called(bo: Citizen) -> None:
    for number in range(abilities.PAGE):
        await keep(bo, ability_id=f"many_{number:04}")
    async with connected(bo.town, bo.secret) as client:
        first = await client.list_tools()
        assert (len(first.tools), first.next_cursor) == (abilities.PAGE, f"many_{abilities.PAGE - 1:04}")
        rest = await client.list_tools(cursor=first.next_cursor)
        assert ([each.name for each in rest.tools], rest.next_cursor) == ([ID], None)
        assert not (await client.call_tool("many_0199", {"username": "elonmusk"})).is_error


async def test_ids_that_are_no_names_of_tools_get_one(bo: Citizen) -> None:
    odd = ["api.example.com:get@user", "x" * 150, "run_code"]
    for each in odd:
        await keep(bo, ability_id=each)
    both = await bo.town.user(bo.user.name, scopes=("mcp", "toolscript"))
    async with connected(bo.town, both.secret) as client:
        listed = (await client.list_tools()).tools[3:]
        names = [each.name for each in listed]
        assert len(names) == len(set(names)) == 4
        assert all(len(each) <= 64 and each.replace("_", "").isalnum() for each in names)
        for name in names:
            result = await client.call_tool(name, {"username": "elonmusk"})
            assert result.structured_content is not None
            assert result.structured_content["success"] is True, name


async def test_shared_abilities_are_everybodys_and_ones_own_come_first(bo: Citizen) -> None:
    name = f"shared_{bo.user.id}"
    await keep(bo, shared=True, ability_id=name)
    ann = await bo.town.user(f"ann-of-{bo.user.name}")
    async with connected(bo.town, ann.secret) as client:
        assert name in [each.name for each in (await client.list_tools()).tools]
        await keep(ann, ability_id=name, ability_name="Ann's own")
        found = [each.title for each in (await client.list_tools()).tools if each.name == name]
        assert found == ["Ann's own"]
    await bo.town.store.abilities.remove(name, bo.user.id)
