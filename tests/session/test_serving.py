"""The runner's side of a channel, driven by messages written by hand from the specification."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from tests.messages import MALFORMED, TRANSCRIPT, execute, tool_failure, tool_result
from tests.processes import PATIENCE

from hutch.errors import Busy, InvalidExecution
from hutch.session.channel import MemoryChannel
from hutch.session.messages import WireError
from hutch.session.providers import Provider
from hutch.session.serving import Answer, Request, Serving
from hutch.session.tools import ToolContext

Run = Callable[[Request], Awaitable[Answer]]


class Client:
    """The host's end: says messages, and hears the answers in their order."""

    def __init__(self, run: Run, *, multiplexed: bool = False) -> None:
        self.channel, far = MemoryChannel.pair()
        self.lines: list[str] = []
        self._heard = anyio.Event()
        self.channel.on_line = self._hear
        self.serving = Serving(far, run, multiplexed=multiplexed)

    def _hear(self, line: bytes) -> None:
        self.lines.append(line.decode())
        self._heard.set()
        self._heard = anyio.Event()

    def say(self, *messages: dict[str, Any] | str) -> None:
        for message in messages:
            self.channel.send((message if isinstance(message, str) else json.dumps(message)).encode() + b"\n")

    async def hear(self, count: int) -> list[dict[str, Any]]:
        """The first so many answers."""
        with anyio.fail_after(PATIENCE):
            while len(self.lines) < count:
                await self._heard.wait()
        assert len(self.lines) == count
        return [json.loads(line) for line in self.lines]


async def call_tool(providers: list[Provider], namespace: str, tool: str, value: Any) -> Any:
    """What a kernel does with a provider that it was lent."""
    [provider] = [each for each in providers if each.name == namespace]
    context = ToolContext(run_id="r", provider=namespace, tool=tool, deadline=0, cancelled=anyio.Event())
    return await provider.dispatch(tool, value, context)


async def echoing(request: Request) -> Answer:
    """A guest that calls a tool and returns what it gives."""
    request.watch.on_started()
    answer = await call_tool(list(request.providers), "tools", "echo", {"ok": True})
    return Answer(ok=True, duration_ms=3, logs=[], result_json=answer)


async def immediate(request: Request) -> Answer:
    request.watch.on_started()
    return Answer(ok=True, duration_ms=1, logs=["ran"], result_json=json.dumps(request.code).encode())


class Waiting:
    """A guest that goes on until it is stopped."""

    def __init__(self) -> None:
        self.running = 0
        self.there = anyio.Event()

    async def __call__(self, request: Request) -> Answer:
        stopped = anyio.Event()
        request.watch.on_started()
        request.watch.on_running(stopped.set)
        self.running += 1
        self.there.set()
        try:
            await stopped.wait()
        finally:
            self.running -= 1
        return Answer(
            ok=False,
            duration_ms=5,
            logs=["so far"],
            error=WireError(code="timeout", message="Execution timed out"),
        )


async def test_the_specification_s_transcript_is_followed_to_the_letter() -> None:
    client = Client(echoing)
    client.say(TRANSCRIPT[0])
    await client.hear(2)
    assert [json.loads(line) for line in client.lines] == [json.loads(line) for line in TRANSCRIPT[1:3]]
    client.say(TRANSCRIPT[3])
    await client.hear(3)
    assert json.loads(client.lines[2]) == json.loads(TRANSCRIPT[4])


async def test_the_request_carries_code_options_and_providers() -> None:
    seen: list[Request] = []

    async def run(request: Request) -> Answer:
        seen.append(request)
        return await immediate(request)

    client = Client(run)
    client.say(execute("e", "the code", tools=("a", "b"), timeoutMs=123))
    await client.hear(2)
    [request] = seen
    assert (request.code, request.options.timeout_ms, request.options.max_log_lines) == ("the code", 123, 100)
    assert [(each.name, [*each.tools]) for each in request.providers] == [("tools", ["a", "b"])]


async def test_the_channel_is_reused_one_session_after_another() -> None:
    client = Client(immediate)
    for n in range(3):
        client.say(execute(f"e{n}", f"code {n}"))
        answers = await client.hear(2 * (n + 1))
        assert answers[-2:] == [
            {"type": "started", "id": f"e{n}"},
            {
                "type": "done",
                "id": f"e{n}",
                "ok": True,
                "durationMs": 1,
                "logs": ["ran"],
                "result": f"code {n}",
            },
        ]


async def test_a_second_execute_on_a_busy_channel_is_told_so_and_the_first_goes_on() -> None:
    client = Client(echoing)
    client.say(execute("first", "x", tools=("echo",)))
    await client.hear(2)
    client.say(execute("second", "x"))
    refused = (await client.hear(3))[2]
    assert (refused["type"], refused["id"], refused["ok"], refused["durationMs"]) == (
        "done",
        "second",
        False,
        0,
    )
    assert refused["error"]["code"] == "internal_error"
    call = json.loads(client.lines[1])
    client.say(tool_result(call, "through"))
    done = (await client.hear(4))[3]
    assert (done["id"], done["ok"], done["result"]) == ("first", True, "through")


async def test_the_same_id_again_while_it_runs_is_dropped() -> None:
    client = Client(echoing)
    client.say(execute("same", "x", tools=("echo",)))
    await client.hear(2)
    client.say(execute("same", "y"))
    client.say(tool_result(json.loads(client.lines[1]), 1))
    assert [each["type"] for each in await client.hear(3)] == ["started", "tool_call", "done"]
    assert client.serving.dropped == 1


@pytest.mark.parametrize("line", MALFORMED)
async def test_a_malformed_message_is_ignored_without_a_reply(line: str) -> None:
    client = Client(immediate)
    client.say(line, execute("after", "fine"))
    answers = await client.hear(2)
    assert [each["type"] for each in answers] == ["started", "done"]
    assert answers[1]["result"] == "fine"


async def test_extra_fields_are_ignored() -> None:
    client = Client(immediate)
    client.say({**execute("e", "fine", extra=1), "more": {"a": [1]}})
    assert (await client.hear(2))[1]["ok"] is True


async def test_a_tool_s_failure_keeps_its_code_and_message() -> None:
    async def run(request: Request) -> Answer:
        request.watch.on_started()
        try:
            await call_tool(list(request.providers), "tools", "echo", None)
        except Exception as error:
            text = f"{error.tool_code}: {error.message}"  # type: ignore[attr-defined]
            return Answer(ok=True, duration_ms=1, logs=[], result_json=json.dumps(text).encode())
        raise AssertionError("it should have failed")

    client = Client(run)
    client.say(execute("e", "x", tools=("echo",)))
    call = (await client.hear(2))[1]
    assert call["input"] is None
    client.say(tool_failure(call, "validation_error", "Invalid input for tool echo: no"))
    assert (await client.hear(3))[2]["result"] == "validation_error: Invalid input for tool echo: no"


async def test_answers_are_matched_by_call_id_and_strangers_dropped() -> None:
    async def run(request: Request) -> Answer:
        request.watch.on_started()
        values = await asyncio.gather(
            *(call_tool(list(request.providers), "tools", "echo", n) for n in range(3))
        )
        return Answer(ok=True, duration_ms=1, logs=[], result_json=b"[" + b",".join(values) + b"]")

    client = Client(run)
    client.say(execute("e", "x", tools=("echo",)))
    calls = (await client.hear(4))[1:]
    assert [each["input"] for each in calls] == [0, 1, 2]
    assert len({each["callId"] for each in calls}) == 3
    client.say({"type": "tool_result", "callId": "stranger", "ok": True, "result": "no"})
    for call in reversed(calls):
        client.say(tool_result(call, call["input"] * 10), tool_result(call, "twice"))
    assert (await client.hear(5))[4]["result"] == [0, 10, 20]
    assert client.serving.dropped == 4


async def test_cancel_stops_what_runs_and_its_logs_are_kept() -> None:
    guest = Waiting()
    client = Client(guest)
    client.say(execute("e", "x"))
    await guest.there.wait()
    client.say({"type": "cancel", "id": "somebody else"}, {"type": "cancel", "id": "e"})
    done = (await client.hear(2))[1]
    assert done == {
        "type": "done",
        "id": "e",
        "ok": False,
        "durationMs": 5,
        "logs": ["so far"],
        "error": {"code": "timeout", "message": "Execution timed out"},
    }
    assert guest.running == 0


async def test_cancel_before_there_is_a_place_is_a_timeout_of_no_duration() -> None:
    waiting = anyio.Event()

    async def queued(_: Request) -> Answer:
        waiting.set()
        await anyio.sleep_forever()
        raise AssertionError

    client = Client(queued)
    client.say(execute("e", "x"))
    await waiting.wait()
    client.say({"type": "cancel", "id": "e"})
    [done] = await client.hear(1)
    assert (done["ok"], done["durationMs"], done["logs"]) == (False, 0, [])
    assert done["error"] == {"code": "timeout", "message": "Execution timed out"}


async def test_a_closed_channel_cancels_its_executions() -> None:
    guest = Waiting()
    client = Client(guest, multiplexed=True)
    client.say(*(execute(f"e{n}", "x") for n in range(3)))
    await client.hear(3)
    assert (client.serving.active, guest.running) == (3, 3)
    client.channel.close()
    with anyio.fail_after(PATIENCE):
        await client.serving.closed()
    assert (client.serving.active, guest.running) == (0, 0)


async def test_several_at_once_have_calls_that_name_their_execution() -> None:
    client = Client(echoing, multiplexed=True)
    client.say(*(execute(f"e{n}", "x", tools=("echo",)) for n in range(3)))
    calls = [each for each in await client.hear(6) if each["type"] == "tool_call"]
    assert {each["id"] for each in calls} == {"e0", "e1", "e2"}
    assert len({each["callId"] for each in calls}) == 3
    for call in calls:
        client.say(tool_result(call, call["id"]))
    done = [each for each in await client.hear(9) if each["type"] == "done"]
    assert {each["id"]: each["result"] for each in done} == {"e0": "e0", "e1": "e1", "e2": "e2"}


ERRORS = {
    "busy": (Busy("No place."), "internal_error"),
    "a bad option": (InvalidExecution("timeout_ms", "too long"), "validation_error"),
    "a fault of ours": (RuntimeError("secret detail"), "internal_error"),
}


@pytest.mark.parametrize(("error", "code"), ERRORS.values(), ids=ERRORS.keys())
async def test_what_cannot_be_begun_is_answered_in_the_protocol_s_words(error: Exception, code: str) -> None:
    async def run(_: Request) -> Answer:
        raise error

    client = Client(run)
    client.say(execute("e", "x"))
    [done] = await client.hear(1)
    assert (done["type"], done["ok"], done["durationMs"], done["logs"]) == ("done", False, 0, [])
    assert done["error"]["code"] == code
    assert "secret" not in done["error"]["message"]


async def test_our_finer_codes_become_the_protocol_s() -> None:
    async def run(_: Request) -> Answer:
        return Answer(
            ok=False, duration_ms=1, logs=[], error=WireError(code="result_too_large", message="big")
        )

    client = Client(run)
    client.say(execute("e", "x"))
    assert (await client.hear(1))[0]["error"] == {"code": "serialization_error", "message": "big"}


async def test_a_namespace_that_is_no_identifier_is_a_validation_error() -> None:
    client = Client(immediate)
    client.say(execute("e", "x", tools=("a",), namespace="no good"))
    [done] = await client.hear(1)
    assert done["error"]["code"] == "validation_error"
    assert "Invalid provider namespace: " in done["error"]["message"]


async def test_an_undefined_result_is_absent() -> None:
    async def run(_: Request) -> Answer:
        return Answer(ok=True, duration_ms=1, logs=[])

    client = Client(run)
    client.say(execute("e", "x"))
    assert "result" not in (await client.hear(1))[0]
