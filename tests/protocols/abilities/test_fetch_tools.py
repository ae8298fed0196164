"""The host tools behind `fetch`, called as a compromised guest might call them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.egress.recording_server import (
    RecordedRequest,
    http_response,
    open_session,
    run_http_client,
    run_recording_server,
)

from hutch.egress.client.models import FetchError
from hutch.errors import ToolError
from hutch.protocols.abilities.fetch_tools import FetchTools
from hutch.session.tools.tool import ToolContext

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


async def call(tools: FetchTools, name: str, input: Any) -> Any:
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
async def test_invalid_request_is_refused(input: Any) -> None:
    async with run_http_client() as http_client:
        with pytest.raises(ToolError) as refused:
            await call(FetchTools(open_session(http_client)), "send", input)
        assert refused.value.tool_code == "validation_error"


async def test_unknown_ids_are_refused() -> None:
    async with run_recording_server() as api, run_http_client() as http_client:
        tools = FetchTools(open_session(http_client))
        for number in (1, -1, 2**60):
            with pytest.raises(ToolError):
                await call(tools, "read", {"id": number})
            assert await call(tools, "drop", {"id": number}) is None
            with pytest.raises(FetchError):
                await tools.body(number)
        await call(tools, "send", request(api.url()))
        with pytest.raises(ToolError, match="already"):
            await call(tools, "send", request(api.url()))


async def test_body_is_read_once_by_host_or_guest() -> None:
    async with run_recording_server() as api, run_http_client() as http_client:
        tools = FetchTools(open_session(http_client))
        api.responses["/"] = http_response(body=b"x" * 600_000)
        head = await call(tools, "send", request(api.url()))
        assert (len(head["text"]), head["last"]) == (256 * 1024, False)
        assert len(await tools.body(1)) == 600_000
        again = await call(tools, "send", request(api.url(), id=2))
        rest = b""
        while not again["last"]:
            again = await call(tools, "read", {"id": 2})
            rest += again.get("text", "").encode()
        assert len(rest) == 600_000 - 256 * 1024


async def test_drop_cancels_the_request() -> None:
    async with run_recording_server() as api, run_http_client() as http_client:
        session = open_session(http_client)
        tools = FetchTools(session)
        requested = asyncio.Event()

        async def listen(requests: RecordedRequest, writer: asyncio.StreamWriter) -> None:
            requested.set()
            await writer.wait_closed()

        api.responses["/"] = listen
        waiting = asyncio.create_task(call(tools, "send", request(api.url())))
        await requested.wait()
        await call(tools, "drop", {"id": 1})
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert [hop.status for hop in session.request_log] == [None]


async def test_binary_body_is_sent_as_base64() -> None:
    async with run_recording_server() as api, run_http_client() as http_client:
        api.responses["/"] = http_response(body=b"\xff\x00")
        head = await call(FetchTools(open_session(http_client)), "send", request(api.url()))
        assert (head["base64"], head["last"]) == ("/wA=", True)
