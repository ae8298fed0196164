"""Where the policy wants somebody asked: the client's user, a server's operator, or nobody."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from mcp import Client
from mcp.types import ElicitResult
from tests.doors.mcp.houses import IMPORT, House, listening, ran, text_of
from tests.processes import PATIENCE

from hutch.app import App
from hutch.doors.mcp.server import Door
from hutch.doors.toolscript.approvals import Answer

CODE = {
    "toolscript": f"{IMPORT}return await tools.github.createIssue({{ title: 'x' }});",
    "javascript": "return await github.createIssue({ title: 'x' })",
}


@pytest.fixture
def house(app: App) -> House:
    return House(app, {"github__create_issue": "ask"})


def user(action: str, **content: Any) -> Any:
    asked: list[Any] = []

    async def answer(_: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        return ElicitResult(action=action, content=content or None)

    answer.asked = asked  # type: ignore[attr-defined]
    return answer


@pytest.mark.parametrize("language", [*CODE])
async def test_the_clients_user_is_asked_and_may_allow_it(door: Door, language: str) -> None:
    person = user("accept")
    async with Client(door.server, mode="legacy", elicitation_callback=person) as client:
        assert (await ran(client, CODE[language], language))["result"] == {"number": 7}
    assert person.asked == ['May create_issue of github be called?\n{"title":"x"}']


async def test_the_clients_user_may_deny_it(house: House, door: Door) -> None:
    async with Client(door.server, mode="legacy", elicitation_callback=user("decline")) as client:
        found = await ran(client, CODE["toolscript"])
    assert "was denied: the user said no" in found["error"]["message"]
    assert house.upstream.calls == []


async def test_a_user_may_allow_a_tool_for_the_whole_run(door: Door) -> None:
    person = user("accept", remember=True)
    twice = "await github.createIssue({ title: 'x' }); return await github.createIssue({ title: 'y' })"
    async with Client(door.server, mode="legacy", elicitation_callback=person) as client:
        assert (await ran(client, twice, "javascript"))["result"] == {"number": 7}
        assert len(person.asked) == 1
        await ran(client, CODE["javascript"], "javascript")
        assert len(person.asked) == 2


async def test_the_user_is_asked_for_tools_that_are_passed_through(house: House) -> None:
    door = Door(house, pass_through=True)
    person = user("accept")
    async with Client(door.server, mode="legacy", elicitation_callback=person) as client:
        answer = await client.call_tool("github__create_issue", {"title": "x"})
    door.close()
    assert text_of(answer) == '{"number":7}'
    assert len(person.asked) == 1


async def test_where_nobody_can_be_asked_the_answer_is_no_at_once_and_says_why(client: Client) -> None:
    found = await ran(client, CODE["toolscript"])
    assert "this client cannot ask one" in found["error"]["message"]
    assert "hutch.toml" in found["error"]["message"]


async def test_a_server_has_others_who_can_answer(house: House) -> None:
    async with listening(house) as (url, _, _), Client(url) as client:
        with house.gateway.approvals.listen() as events:
            running = asyncio.create_task(ran(client, CODE["toolscript"]))
            async with asyncio.timeout(PATIENCE):
                event = await events.get()
            assert event is not None
            assert house.gateway.approvals.decide(event.approval.id, Answer("allow"))
        assert (await running)["result"] == {"number": 7}


async def test_over_http_the_clients_user_is_asked_too(house: House) -> None:
    person = user("accept")
    async with (
        listening(house) as (url, _, _),
        Client(url, mode="legacy", elicitation_callback=person) as client,
    ):
        assert (await ran(client, CODE["javascript"], "javascript"))["result"] == {"number": 7}
    assert len(person.asked) == 1
