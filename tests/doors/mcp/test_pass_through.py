"""Every upstream tool as a tool of ours: names, results, failures, progress, and changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from mcp import Client, MCPError
from mcp.types import ToolListChangedNotification
from tests.doors.mcp.houses import ERAS, TOOLS, House, listening, text_of
from tests.doors.toolscript.scripted import Given, gives
from tests.processes import PATIENCE

from hutch.app import App
from hutch.doors.mcp.answers import MOST_CHARS
from hutch.doors.mcp.passing import MOST_NAME
from hutch.doors.mcp.server import Door

PIXEL = {"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png"}
LONG = "a_name_that_" + "goes_on_" * 20
ODD = (
    *TOOLS,
    Given("odd", "a b.c/d", "Odd.", {"type": "string"}, {"type": "array"}),
    Given("odd", "日本語", "\ud800", {"type": "object", "properties": []}),
    Given("odd", "中文", None, {"type": "object", "properties": {"x": True}, "required": "x"}),
    Given("odd", LONG),
    Given("odd", LONG + "2"),
)


@pytest.fixture
async def passing(app: App) -> AsyncIterator[tuple[House, Door]]:
    house = House(app, tools=ODD)
    door = Door(house, pass_through=True)
    yield house, door
    door.close()


async def test_without_being_wanted_no_tool_is_passed_through(client: Client) -> None:
    with pytest.raises(MCPError, match="There is no tool 'github__list_issues'"):
        await client.call_tool("github__list_issues", {})


@pytest.mark.parametrize("era", ERAS)
async def test_all_tools_are_listed_under_names_that_clients_take(
    passing: tuple[House, Door], era: str
) -> None:
    _, door = passing
    async with Client(door.server, mode=era) as client:
        listed = {each.name: each for each in (await client.list_tools()).tools}
        assert len(listed) == 3 + len(ODD)
        assert all(len(name) <= MOST_NAME and name.replace("-", "_").isidentifier() for name in listed)
        made = listed["github__create_issue"]
        assert made.description == "Creates an issue in a repository."
        assert made.input_schema["required"] == ["title"]
        assert made.output_schema is not None
        for name in listed:
            if name.startswith("odd"):
                assert not (await client.call_tool(name, {})).is_error


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    ("value", "content"),
    [
        ("plain", [{"type": "text", "text": "plain"}]),
        ({"a": ["ü"]}, [{"type": "text", "text": '{"a":["ü"]}'}]),
        ([1, 2], [{"type": "text", "text": "[1,2]"}]),
        (None, []),
        ([{"type": "text", "text": "see"}, PIXEL], [{"type": "text", "text": "see"}, PIXEL]),
        ([{"type": "image"}], [{"type": "text", "text": '[{"type":"image"}]'}]),
        ("\ud800", [{"type": "text", "text": "\ufffd"}]),
    ],
)
async def test_a_result_is_passed_on_as_what_it_is(
    passing: tuple[House, Door], era: str, value: Any, content: list[Any]
) -> None:
    house, door = passing
    house.upstream.does["list_issues"] = gives(value)
    async with Client(door.server, mode=era) as client:
        answer = await client.call_tool("github__list_issues", {"state": "open"})
    assert house.upstream.calls == [("github", "list_issues", {"state": "open"})]
    assert [each.model_dump(by_alias=True, exclude_none=True) for each in answer.content] == content
    assert not answer.is_error


async def test_structured_results_stay_structured_and_failures_failures(passing: tuple[House, Door]) -> None:
    _, door = passing
    async with Client(door.server) as client:
        await client.list_tools()
        answer = await client.call_tool("github__create_issue", {"title": "x"})
        assert answer.structured_content == {"number": 7}
        assert text_of(answer) == '{"number":7}'
        failed = await client.call_tool("github__fail", {})
        assert failed.is_error
        assert text_of(failed) == "no such repository"


async def test_a_long_result_is_truncated_where_one_sees_it(passing: tuple[House, Door]) -> None:
    house, door = passing
    house.upstream.does["list_issues"] = gives("x" * 50_000)
    async with Client(door.server) as client:
        text = text_of(await client.call_tool("github__list_issues", {}))
    assert text == "x" * MOST_CHARS + f"… truncated, {50_000 - MOST_CHARS} more characters"


async def test_progress_is_passed_on(passing: tuple[House, Door], era: str) -> None:
    house, door = passing
    heard: list[Any] = []

    async def call(*_: Any, on_progress: Any = None, **__: Any) -> str:
        await on_progress(1, 3, "a third")
        return "done"

    async def hear(*progress: Any) -> None:
        heard.append(progress)

    house.upstream.call = call  # type: ignore[method-assign]
    async with Client(door.server, mode=era) as client:
        answer = await client.call_tool("github__list_issues", {}, progress_callback=hear)
    assert text_of(answer) == "done"
    assert heard == [(1.0, 3.0, "a third")]


async def test_a_call_that_is_cancelled_is_cancelled_upstream(passing: tuple[House, Door], era: str) -> None:
    house, door = passing
    async with Client(door.server, mode=era) as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.call_tool, "github__wait", {})
            await house.upstream.called.wait()
            tasks.cancel_scope.cancel()
        async with asyncio.timeout(PATIENCE):
            await house.upstream.cancelled.wait()


async def test_calls_that_are_passed_through_are_bound_by_the_policy(app: App) -> None:
    house = House(app, {"github": "deny"})
    door = Door(house, pass_through=True)
    async with Client(door.server) as client:
        answer = await client.call_tool("github__list_issues", {})
    door.close()
    assert answer.is_error
    assert "The policy denies" in text_of(answer)
    assert house.upstream.calls == []


class Changed:
    def __init__(self) -> None:
        self.event = asyncio.Event()

    async def __call__(self, message: object) -> None:
        if isinstance(message, ToolListChangedNotification):
            self.event.set()

    async def wait(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await self.event.wait()
        self.event.clear()


async def _names(client: Client) -> list[str]:
    return [each.name for each in (await client.list_tools(cache_mode="bypass")).tools]


async def test_clients_are_told_when_the_tools_change(passing: tuple[House, Door]) -> None:
    house, door = passing
    changed = Changed()
    async with Client(door.server, mode="legacy", message_handler=changed) as client:
        assert client.server_capabilities.tools.list_changed
        await _names(client)
        for number in range(2):
            house.upstream.change(Given("github", f"new_{number}"))
            await changed.wait()
            assert (await _names(client))[3:] == [f"github__new_{number}"]


async def test_over_http_clients_of_both_eras_are_told_when_the_tools_change(app: App) -> None:
    house = House(app)
    changed = Changed()
    async with (
        listening(house, pass_through=True) as (url, _, _),
        Client(url, mode="legacy", message_handler=changed) as old,
        Client(url) as new,
        new.listen(tools_list_changed=True) as events,
    ):
        assert new.server_capabilities.tools.list_changed
        await _names(old)
        # The stream on which the old one hears is opened behind its back.
        await _told(house, changed)
        async with asyncio.timeout(PATIENCE):
            await anext(aiter(events))
        assert "github__changed" in await _names(new)
        assert "github__changed" in await _names(old)


async def _told(house: House, changed: Changed) -> None:
    async with asyncio.timeout(PATIENCE):
        while not changed.event.is_set():
            house.upstream.change(Given("github", "changed"))
            await asyncio.sleep(0.02)


async def test_a_client_whose_tools_never_change_is_not_told_that_they_might(client: Client) -> None:
    assert not client.server_capabilities.tools.list_changed
