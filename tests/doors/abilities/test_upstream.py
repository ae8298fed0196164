"""The tools behind `fetch`, called as a guest that took over its runner would."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.egress.upstreams import Asked, answer, brokered, opened, upstream

from hutch.doors.abilities.upstream import Upstream
from hutch.egress.fetch import FetchError
from hutch.errors import ToolError
from hutch.session.tools import ToolContext

pytestmark = pytest.mark.anyio

CONTEXT: Any = None


def request(url: str, **changes: Any) -> dict[str, Any]:
    return {
        "id": 1,
        "method": "GET",
        "url": url,
        "headers": [],
        "redirect": "follow",
        "body": None,
        **changes,
    }


async def call(tools: Upstream, name: str, input: Any) -> Any:
    context: ToolContext = CONTEXT
    return json.loads(await tools.provider().tools[name].call(input, context))


@pytest.mark.parametrize(
    "input",
    [
        None,
        [],
        {},
        {"id": "1"},
        request("x", id=True),
        request("x", headers={"a": "b"}),
        request("x", headers=[["a"]]),
        request("x", headers=[["a", 1]]),
        request("x", redirect="always"),
        request("x", method=None),
        request("x", body="text"),
        request("x", body={"base64": "!"}),
    ],
)
async def test_what_is_no_request_is_refused(input: Any) -> None:
    async with brokered() as broker:
        with pytest.raises(ToolError) as refused:
            await call(Upstream(opened(broker)), "send", input)
        assert refused.value.tool_code == "validation_error"


async def test_numbers_of_others_lead_nowhere() -> None:
    async with upstream() as api, brokered() as broker:
        tools = Upstream(opened(broker))
        for number in (1, -1, 2**60):
            with pytest.raises(ToolError):
                await call(tools, "read", {"id": number})
            assert await call(tools, "drop", {"id": number}) is None
            with pytest.raises(FetchError):
                await tools.body(number)
        await call(tools, "send", request(api.url()))
        with pytest.raises(ToolError, match="already"):
            await call(tools, "send", request(api.url()))


async def test_a_body_is_read_once_whether_here_or_there() -> None:
    async with upstream() as api, brokered() as broker:
        tools = Upstream(opened(broker))
        api.answers["/"] = answer(body=b"x" * 600_000)
        head = await call(tools, "send", request(api.url()))
        assert (len(head["text"]), head["last"]) == (256 * 1024, False)
        assert len(await tools.body(1)) == 600_000
        again = await call(tools, "send", request(api.url(), id=2))
        rest = b""
        while not again["last"]:
            again = await call(tools, "read", {"id": 2})
            rest += again.get("text", "").encode()
        assert len(rest) == 600_000 - 256 * 1024


async def test_what_is_dropped_is_cut_off() -> None:
    async with upstream() as api, brokered() as broker:
        fetching = opened(broker)
        tools = Upstream(fetching)
        heard = asyncio.Event()

        async def listen(asked: Asked, writer: asyncio.StreamWriter) -> None:
            heard.set()
            await writer.wait_closed()

        api.answers["/"] = listen
        waiting = asyncio.create_task(call(tools, "send", request(api.url())))
        await heard.wait()
        await call(tools, "drop", {"id": 1})
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert [hop.status for hop in fetching.hops] == [None]


async def test_bytes_that_are_no_text_come_in_base64() -> None:
    async with upstream() as api, brokered() as broker:
        api.answers["/"] = answer(body=b"\xff\x00")
        head = await call(Upstream(opened(broker)), "send", request(api.url()))
        assert (head["base64"], head["last"]) == ("/wA=", True)
