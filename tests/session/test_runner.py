"""Runner side of a channel, driven by messages written from the specification."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, ClassVar

import anyio
import pytest
from tests.support.messages import MALFORMED, TRANSCRIPT, execute, tool_failure, tool_result
from tests.support.network.memory_channel import MemoryChannel
from tests.support.processes import TIMEOUT_SECONDS

from hutch.errors import Busy, ExecutionError, InvalidExecution, QuotaExceeded, RateLimited, ToolError
from hutch.session import runner
from hutch.session.channels.peer import Peer
from hutch.session.extensions.server_side import NO_EXTENSIONS, ChannelExtensions
from hutch.session.files.model import FileLimits
from hutch.session.host import Session
from hutch.session.limits import Limits
from hutch.session.run import Result
from hutch.session.runner import (
    MAX_LOGGED_DROPS,
    MAX_PROVIDERS,
    MAX_TOOLS,
    ChannelServer,
    ExecutionRequest,
    PendingBytes,
)
from hutch.session.tools.provider import Provider
from hutch.session.tools.tool import ToolContext
from hutch.telemetry.trace_context import TraceContext, current

Run = Callable[[ExecutionRequest], Awaitable[Result]]


@pytest.fixture(autouse=True)
async def stops_servers() -> AsyncIterator[None]:
    """Ends the executions that a test leaves running. Otherwise their tasks would be destroyed, and reported
    as errors, during a later test.
    """
    yield
    while FakeHost.servers:
        await FakeHost.servers.pop().stop()


class FakeHost:
    """The host's end of a channel: sends messages and records the replies."""

    servers: ClassVar[list[ChannelServer]] = []

    def __init__(
        self,
        run: Run,
        *,
        multiplexed: bool = False,
        pending: PendingBytes | None = None,
        owner: str = "a",
        continues_traces: bool = False,
        extensions: ChannelExtensions = NO_EXTENSIONS,
    ) -> None:
        self.channel, far = MemoryChannel.pair()
        self.far = far
        self.lines: list[str] = []
        self._received = anyio.Event()
        self.channel.on_line = self._on_line
        self.server = ChannelServer(
            far,
            run,
            multiplexed=multiplexed,
            pending=pending or PendingBytes(2**30),
            owner=owner,
            continues_traces=continues_traces,
            extensions=extensions,
        )
        self.servers.append(self.server)

    def _on_line(self, line: bytes) -> None:
        self.lines.append(line.decode())
        self._received.set()
        self._received = anyio.Event()

    def send(self, *messages: dict[str, Any] | str) -> None:
        for message in messages:
            self.channel.send((message if isinstance(message, str) else json.dumps(message)).encode() + b"\n")

    async def receive(self, count: int) -> list[dict[str, Any]]:
        """Waits for the first `count` replies and returns them."""
        with anyio.fail_after(TIMEOUT_SECONDS):
            while len(self.lines) < count:
                await self._received.wait()
        assert len(self.lines) == count
        return [json.loads(line) for line in self.lines]


async def call_tool(providers: list[Provider], namespace: str, tool: str, value: Any) -> Any:
    """Calls a tool as the kernel does."""
    [provider] = [candidate for candidate in providers if candidate.name == namespace]
    context = ToolContext(run_id="r", provider=namespace, tool=tool, deadline=0, cancelled=anyio.Event())
    return await provider.dispatch(tool, value, context)


async def echoing(request: ExecutionRequest) -> Result:
    """A guest that calls a tool and returns the tool's result."""
    request.run.report_started()
    answer = await call_tool(list(request.providers), "tools", "echo", {"ok": True})
    return Result(ok=True, duration_ms=3, logs=[], result_json=answer)


async def immediate(request: ExecutionRequest) -> Result:
    request.run.report_started()
    return Result(ok=True, duration_ms=1, logs=["ran"], result_json=json.dumps(request.code).encode())


class WaitingGuest:
    """A guest that runs until it is stopped."""

    def __init__(self) -> None:
        self.running = 0
        self.started = anyio.Event()

    async def __call__(self, request: ExecutionRequest) -> Result:
        stopped = anyio.Event()
        request.run.report_started()
        # The session sends only the cancellation, so any message of the session sets `stopped`.
        request.run.session = Session("r", "", Limits(), [], Peer(send=lambda _: stopped.set()))
        self.running += 1
        self.started.set()
        try:
            await stopped.wait()
        finally:
            self.running -= 1
        return Result(
            ok=False,
            duration_ms=5,
            logs=["so far"],
            error=ExecutionError("timeout", "Execution timed out"),
        )


async def test_runner_follows_the_transcript_of_the_specification() -> None:
    client = FakeHost(echoing)
    client.send(TRANSCRIPT[0])
    await client.receive(2)
    assert [json.loads(line) for line in client.lines] == [json.loads(line) for line in TRANSCRIPT[1:3]]
    client.send(TRANSCRIPT[3])
    await client.receive(3)
    assert json.loads(client.lines[2]) == json.loads(TRANSCRIPT[4])


async def test_request_has_code_options_and_providers() -> None:
    seen: list[ExecutionRequest] = []

    async def run(request: ExecutionRequest) -> Result:
        seen.append(request)
        return await immediate(request)

    client = FakeHost(run)
    client.send(execute("e", "the code", tools=("a", "b"), timeoutMs=123))
    await client.receive(2)
    [request] = seen
    assert (request.code, request.options.timeout_ms, request.options.max_log_lines) == ("the code", 123, 100)
    assert [(each.name, [*each.tools]) for each in request.providers] == [("tools", ["a", "b"])]


async def test_channel_is_reused_for_one_session_after_another() -> None:
    client = FakeHost(immediate)
    for n in range(3):
        client.send(execute(f"e{n}", f"code {n}"))
        answers = await client.receive(2 * (n + 1))
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


async def test_second_execute_on_a_busy_channel_is_refused_and_the_first_continues() -> None:
    client = FakeHost(echoing)
    client.send(execute("first", "x", tools=("echo",)))
    await client.receive(2)
    client.send(execute("second", "x"))
    refused = (await client.receive(3))[2]
    assert (refused["type"], refused["id"], refused["ok"], refused["durationMs"]) == (
        "done",
        "second",
        False,
        0,
    )
    assert refused["error"]["code"] == "internal_error"
    call = json.loads(client.lines[1])
    client.send(tool_result(call, "through"))
    done = (await client.receive(4))[3]
    assert (done["id"], done["ok"], done["result"]) == ("first", True, "through")


async def test_execute_with_the_id_of_a_running_execution_is_dropped() -> None:
    client = FakeHost(echoing)
    client.send(execute("same", "x", tools=("echo",)))
    await client.receive(2)
    client.send(execute("same", "y"))
    client.send(tool_result(json.loads(client.lines[1]), 1))
    assert [each["type"] for each in await client.receive(3)] == ["started", "tool_call", "done"]
    assert client.server.dropped == 1


@pytest.mark.parametrize("line", MALFORMED)
async def test_malformed_message_is_ignored_without_a_reply(line: str) -> None:
    client = FakeHost(immediate)
    client.send(line, execute("after", "fine"))
    answers = await client.receive(2)
    assert [each["type"] for each in answers] == ["started", "done"]
    assert answers[1]["result"] == "fine"


async def test_extra_fields_are_ignored() -> None:
    client = FakeHost(immediate)
    client.send({**execute("e", "fine", extra=1), "more": {"a": [1]}})
    assert (await client.receive(2))[1]["ok"] is True


async def test_tool_error_keeps_its_code_and_message() -> None:
    async def run(request: ExecutionRequest) -> Result:
        request.run.report_started()
        try:
            await call_tool(list(request.providers), "tools", "echo", None)
        except Exception as error:
            text = f"{error.tool_code}: {error.message}"  # type: ignore[attr-defined]
            return Result(ok=True, duration_ms=1, logs=[], result_json=json.dumps(text).encode())
        raise AssertionError("it should have failed")

    client = FakeHost(run)
    client.send(execute("e", "x", tools=("echo",)))
    call = (await client.receive(2))[1]
    assert call["input"] is None
    client.send(tool_failure(call, "validation_error", "Invalid input for tool echo: no"))
    assert (await client.receive(3))[2]["result"] == "validation_error: Invalid input for tool echo: no"


async def test_tool_results_are_matched_by_call_id_and_others_dropped() -> None:
    async def run(request: ExecutionRequest) -> Result:
        request.run.report_started()
        values = await asyncio.gather(
            *(call_tool(list(request.providers), "tools", "echo", n) for n in range(3))
        )
        return Result(ok=True, duration_ms=1, logs=[], result_json=b"[" + b",".join(values) + b"]")

    client = FakeHost(run)
    client.send(execute("e", "x", tools=("echo",)))
    calls = (await client.receive(4))[1:]
    assert [each["input"] for each in calls] == [0, 1, 2]
    assert len({each["callId"] for each in calls}) == 3
    client.send({"type": "tool_result", "callId": "unknown", "ok": True, "result": "no"})
    for call in reversed(calls):
        client.send(tool_result(call, call["input"] * 10), tool_result(call, "twice"))
    assert (await client.receive(5))[4]["result"] == [0, 10, 20]
    assert client.server.dropped == 4


async def test_cancel_stops_a_running_execution_and_keeps_its_logs() -> None:
    guest = WaitingGuest()
    client = FakeHost(guest)
    client.send(execute("e", "x"))
    await guest.started.wait()
    client.send({"type": "cancel", "id": "other"}, {"type": "cancel", "id": "e"})
    done = (await client.receive(2))[1]
    assert done == {
        "type": "done",
        "id": "e",
        "ok": False,
        "durationMs": 5,
        "logs": ["so far"],
        "error": {"code": "timeout", "message": "Execution timed out"},
    }
    assert guest.running == 0


async def test_cancel_of_a_queued_execution_is_a_timeout_without_duration() -> None:
    waiting = anyio.Event()

    async def queued(_: ExecutionRequest) -> Result:
        waiting.set()
        await anyio.sleep_forever()
        raise AssertionError

    client = FakeHost(queued)
    client.send(execute("e", "x"))
    await waiting.wait()
    client.send({"type": "cancel", "id": "e"})
    [done] = await client.receive(1)
    assert (done["ok"], done["durationMs"], done["logs"]) == (False, 0, [])
    assert done["error"] == {"code": "timeout", "message": "Execution timed out"}


async def test_closed_channel_cancels_its_executions() -> None:
    guest = WaitingGuest()
    client = FakeHost(guest, multiplexed=True)
    client.send(*(execute(f"e{n}", "x") for n in range(3)))
    await client.receive(3)
    assert guest.running == 3
    client.channel.close()
    with anyio.fail_after(TIMEOUT_SECONDS):
        await client.server.wait_idle()
    assert guest.running == 0


async def test_calls_of_concurrent_executions_name_their_execution() -> None:
    client = FakeHost(echoing, multiplexed=True)
    client.send(*(execute(f"e{n}", "x", tools=("echo",)) for n in range(3)))
    calls = [each for each in await client.receive(6) if each["type"] == "tool_call"]
    assert {each["id"] for each in calls} == {"e0", "e1", "e2"}
    assert len({each["callId"] for each in calls}) == 3
    for call in calls:
        client.send(tool_result(call, call["id"]))
    done = [each for each in await client.receive(9) if each["type"] == "done"]
    assert {each["id"]: each["result"] for each in done} == {"e0": "e0", "e1": "e1", "e2": "e2"}


ERRORS = {
    "busy": (Busy("No runner."), "internal_error"),
    "share": (RateLimited("Your share is used up."), "internal_error"),
    "quota": (QuotaExceeded("The quota is used up."), "internal_error"),
    "invalid option": (InvalidExecution("timeout_ms", "too long"), "validation_error"),
    "internal error": (RuntimeError("secret detail"), "internal_error"),
}


@pytest.mark.parametrize(("error", "code"), ERRORS.values(), ids=ERRORS.keys())
async def test_execution_that_cannot_start_gets_a_protocol_error_code(error: Exception, code: str) -> None:
    async def run(_: ExecutionRequest) -> Result:
        raise error

    client = FakeHost(run)
    client.send(execute("e", "x"))
    [done] = await client.receive(1)
    assert (done["type"], done["ok"], done["durationMs"], done["logs"]) == ("done", False, 0, [])
    assert done["error"]["code"] == code
    assert "secret" not in done["error"]["message"]
    # An exceeded quota has the same code as a busy server, so this error also gets a name. `hutch.connect`
    # needs the name: it returns a result for an exceeded quota, and raises Busy for a busy server.
    assert done["error"].get("name") == ("QuotaExceeded" if isinstance(error, QuotaExceeded) else None)


async def test_codes_of_hutch_are_mapped_to_protocol_codes() -> None:
    async def run(_: ExecutionRequest) -> Result:
        return Result(ok=False, duration_ms=1, logs=[], error=ExecutionError("result_too_large", "big"))

    client = FakeHost(run)
    client.send(execute("e", "x"))
    assert (await client.receive(1))[0]["error"] == {"code": "serialization_error", "message": "big"}


async def test_namespace_that_is_not_an_identifier_is_a_validation_error() -> None:
    client = FakeHost(immediate)
    client.send(execute("e", "x", tools=("a",), namespace="no good"))
    [done] = await client.receive(1)
    assert done["error"]["code"] == "validation_error"
    assert "Invalid provider namespace: " in done["error"]["message"]


async def test_undefined_result_is_omitted() -> None:
    async def run(_: ExecutionRequest) -> Result:
        return Result(ok=True, duration_ms=1, logs=[])

    client = FakeHost(run)
    client.send(execute("e", "x"))
    assert "result" not in (await client.receive(1))[0]


def tool_entry(name: str) -> dict[str, str]:
    return {"safeName": name, "originalName": name}


def with_providers(id: str, providers: int, tools: int) -> dict[str, Any]:
    """Returns an `execute` message with this many providers. The first provider has this many tools."""
    message = execute(id, "x")
    message["providers"] = [{"name": f"p{n}", "tools": {}, "types": ""} for n in range(providers)]
    message["providers"][0]["tools"] = {f"t{n}": tool_entry(f"t{n}") for n in range(tools)}
    return message


async def test_execute_may_have_as_many_tools_and_providers_as_the_limit() -> None:
    client = FakeHost(immediate)
    client.send(with_providers("e", MAX_PROVIDERS, MAX_TOOLS))
    assert (await client.receive(2))[1]["ok"]


TOO_MANY = {
    "tools": (1, MAX_TOOLS + 1, "providers: has 2001 tools; the limit is 2000"),
    "providers": (MAX_PROVIDERS + 1, 0, "providers: has 501 providers; the limit is 500"),
    "values": (1, 20_000, "execute: providers: has more than 40000 values or nests too deeply"),
}


@pytest.mark.parametrize(("providers", "tools", "reason"), TOO_MANY.values(), ids=TOO_MANY)
async def test_execute_with_too_many_tools_is_refused_with_the_limit(
    providers: int, tools: int, reason: str
) -> None:
    client = FakeHost(immediate)
    client.send(with_providers("e", providers, tools), execute("after", "fine"))
    refused, *_, done = await client.receive(3)
    assert (refused["type"], refused["id"], refused["ok"]) == ("done", "e", False)
    assert refused["error"] == {"code": "validation_error", "message": reason}
    assert done["result"] == "fine"


async def test_bytes_of_pending_executions_are_limited_for_all_channels_of_an_owner() -> None:
    guest, pending = WaitingGuest(), PendingBytes(10_000)
    first, second, other = (
        FakeHost(guest, multiplexed=True, pending=pending, owner=owner) for owner in ("a", "a", "b")
    )
    first.send(execute("e", "x" * 6_000))
    await first.receive(1)
    second.send(execute("f", "x" * 6_000))
    [refused] = await second.receive(1)
    assert (refused["id"], refused["error"]["code"], refused["error"]["retryAfter"]) == (
        "f",
        "internal_error",
        1.0,
    )
    assert "the limit is 10000 (setting max_pending_bytes)" in refused["error"]["message"]
    other.send(execute("e", "x" * 6_000))
    await other.receive(1)
    first.send({"type": "cancel", "id": "e"})
    await first.receive(2)
    second.send(execute("f", "x" * 60_000))
    assert (await second.receive(2))[1] == {"type": "started", "id": "f"}


async def test_results_that_the_peer_does_not_read_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "MAX_UNSENT_BYTES", 100_000)
    read = anyio.Event()
    host = FakeHost(immediate, multiplexed=True)
    monkeypatch.setattr(host.far, "writable", read.wait)
    host.send(*(execute(id, "x" * 40_000) for id in "abc"))
    # The third result would exceed the limit, so that it is dropped at once.
    dropped = (await host.receive(4))[3]
    assert (dropped["id"], dropped["ok"], dropped["error"]["code"]) == ("c", False, "serialization_error")
    assert dropped["error"]["message"].startswith("The result was dropped: 100000 bytes")
    assert "result" not in dropped
    read.set()
    sent = (await host.receive(6))[4:]
    assert [(done["id"], done["result"]) for done in sent] == [("a", "x" * 40_000), ("b", "x" * 40_000)]
    host.send(execute("d", "x" * 90_000))
    assert (await host.receive(8))[7]["ok"]


FILES = ChannelExtensions(files=FileLimits(10, 1_000))


async def test_unfinished_uploads_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "MAX_UPLOAD_PAUSE_SECONDS", 0.01)
    host = FakeHost(immediate, multiplexed=True, extensions=FILES)
    host.send(
        execute("a", "1", files=[{"name": "a", "size": 9}]), {"type": "file", "id": "a", "data": "eA=="}
    )
    (done,) = await host.receive(1)
    assert done["error"] == {
        "code": "validation_error",
        "message": "files: expected the announced files, got no part for 0.01 s",
    }


async def test_number_of_uploads_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "MAX_UPLOADS", 2)
    host = FakeHost(immediate, multiplexed=True, extensions=FILES)
    host.send(*(execute(id, "1", files=[{"name": "a", "size": 1}]) for id in "abc"))
    (refused,) = await host.receive(1)
    assert (refused["id"], refused["error"]["retryAfter"]) == ("c", 1.0)
    host.send(execute("d", "1"), *({"type": "file", "id": id, "data": "eA=="} for id in "ab"))
    ended = {message["id"]: message for message in await host.receive(7) if message["type"] == "done"}
    assert [ended[id]["ok"] for id in "abcd"] == [True, True, False, True]


async def test_result_of_a_tool_with_too_many_values_is_an_error_of_the_call() -> None:
    async def run(request: ExecutionRequest) -> Result:
        with pytest.raises(ToolError, match="more than 250000 values"):
            await call_tool(list(request.providers), "tools", "echo", None)
        return Result(ok=True, duration_ms=1, logs=[])

    client = FakeHost(run)
    client.send(execute("e", "x", tools=("echo",)))
    client.send(tool_result((await client.receive(1))[0], [1000] * 260_000))
    assert (await client.receive(2))[1]["ok"]


async def test_log_of_invalid_messages_is_short_and_has_no_line_breaks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    client = FakeHost(immediate)
    for _ in range(MAX_LOGGED_DROPS + 5):
        client.send({"type": "forged\n\x1b[2J" + "x" * 10_000, "id": "e"})
    assert client.server.dropped == MAX_LOGGED_DROPS + 5
    assert len(caplog.messages) == MAX_LOGGED_DROPS
    assert all(message.isprintable() and len(message) < 300 for message in caplog.messages)
    assert "forged\\n" in caplog.messages[0] or "forged\\u000a" in caplog.messages[0]


async def test_items_of_a_streaming_tool_become_one_result() -> None:
    host = FakeHost(echoing)
    message = execute("e", "", tools=("echo",))
    message["providers"][0]["tools"]["echo"]["streams"] = True
    host.send(message)
    call = (await host.receive(2))[1]
    assert call["stream"] is True
    for item in (1, {"a": [2]}):
        host.send({"type": "tool_item", "callId": call["callId"], "item": item})
    host.send({"type": "tool_item", "callId": "other", "item": 3})
    host.send({"type": "tool_result", "callId": call["callId"], "ok": True, "result": None})
    done = (await host.receive(3))[2]
    assert (done["result"], host.server.dropped) == ([1, {"a": [2]}], 1)


async def test_items_of_a_tool_that_does_not_stream_are_dropped() -> None:
    host = FakeHost(echoing)
    host.send(execute("e", "", tools=("echo",)))
    call = (await host.receive(2))[1]
    assert "stream" not in call
    host.send({"type": "tool_item", "callId": call["callId"], "item": 1})
    host.send({"type": "tool_result", "callId": call["callId"], "ok": True, "result": "plain"})
    done = (await host.receive(3))[2]
    assert (done["result"], host.server.dropped) == ("plain", 1)


@pytest.mark.parametrize("continues_traces", [False, True])
async def test_trace_of_the_peer_is_continued_only_if_runs_are_traced(continues_traces: bool) -> None:
    seen: list[TraceContext | None] = []

    async def run(request: ExecutionRequest) -> Result:
        seen.append(current.get())
        return Result(ok=True)

    host = FakeHost(run, continues_traces=continues_traces)
    host.send(execute("a", "1", traceparent=f"00-{'1' * 32}-{'2' * 16}-01"))
    await host.receive(1)
    assert seen == [TraceContext("1" * 32, "2" * 16) if continues_traces else None]
