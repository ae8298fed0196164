"""Multiplexer: message routing, dropped messages, and the end of a channel."""

from __future__ import annotations

import json
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from tests.support.messages import TRANSCRIPT
from tests.support.network.memory_channel import MemoryChannel
from tests.support.processes import TIMEOUT_SECONDS

from hutch import tool
from hutch.session.channels.peer import GUEST_CODES
from hutch.session.limits import Limits
from hutch.session.multiplexer import BYTES_PER_DROP, MALFORMED_COST, MAX_LATE_SESSIONS, Multiplexer
from hutch.session.tools.provider import Provider


class FakeRunner:
    """The runner's end of a channel, scripted by the test."""

    def __init__(self, **options: Any) -> None:
        near, self.channel = MemoryChannel.pair()
        self.received: list[dict[str, Any]] = []
        self.channel.on_line = lambda line: self.received.append(json.loads(line))
        self.multiplexer = Multiplexer(near, **options)

    def send(self, *messages: dict[str, Any] | str | bytes) -> None:
        for message in messages:
            if isinstance(message, dict):
                message = json.dumps(message)
            self.channel.send((message.encode() if isinstance(message, str) else message) + b"\n")


def done(id: str, **more: Any) -> dict[str, Any]:
    return {"type": "done", "id": id, "ok": True, "durationMs": 0, "logs": [], **more}


async def echo(value: Any, /) -> Any:
    return value


async def test_host_follows_the_transcript_of_the_specification() -> None:
    runner = FakeRunner(full_manifests=True)
    provider = Provider(
        "tools", {"echo": tool(echo, description="Echo input")}, "declare namespace tools { ... }"
    )
    code = 'await tools.echo({"ok":true})'
    session = runner.multiplexer.open("exec-1", code, Limits(timeout_ms=1000), [provider])
    request = runner.received[0]
    # Ignore the options that Hutch adds to the options of the specification.
    options = {name: request["options"][name] for name in json.loads(TRANSCRIPT[0])["options"]}
    assert {**request, "options": options} == json.loads(TRANSCRIPT[0])
    runner.send(TRANSCRIPT[1], TRANSCRIPT[2])
    with anyio.fail_after(TIMEOUT_SECONDS):
        while len(runner.received) < 2:
            await anyio.lowlevel.checkpoint()
    assert runner.received[1] == json.loads(TRANSCRIPT[3])
    runner.send(TRANSCRIPT[4])
    result = await session.wait()
    assert (result.ok, result.result, result.logs) == (True, {"ok": True}, [])


async def test_own_runners_get_names_without_types() -> None:
    runner = FakeRunner()
    runner.multiplexer.open("e", "1", Limits(), [Provider.of(echo)])
    assert runner.received[0]["providers"] == [
        {"name": "tools", "tools": {"echo": {"safeName": "echo", "originalName": "echo"}}, "types": ""}
    ]


async def test_each_session_gets_only_its_own_messages() -> None:
    runner = FakeRunner()
    sessions = [runner.multiplexer.open(f"e{n}", "1", Limits(), []) for n in range(3)]
    runner.send(done("e2", result="two"), done("e0", result="zero"), done("unknown", result="lost"))
    assert [session.result and session.result.result for session in sessions] == ["zero", None, "two"]
    assert runner.multiplexer.dropped == 1
    runner.send(done("e1", result="one"))
    assert (await sessions[1].wait()).result == "one"


@pytest.mark.parametrize(
    "line",
    [
        b"garbage",
        b"\xff\xfe",
        b"{}",
        b"[]",
        b"null",
        b'{"type":"execute"}',
        b"[" * 100_000,
        b'{"type":"done","id":"e"}',
    ],
)
async def test_malformed_lines_are_counted_and_dropped(line: bytes) -> None:
    runner = FakeRunner()
    session = runner.multiplexer.open("e", "1", Limits(), [])
    runner.send(line)
    assert runner.multiplexer.dropped == MALFORMED_COST + len(line) // BYTES_PER_DROP
    runner.send(done("e", result="fine"))
    assert (await session.wait()).result == "fine"


async def test_late_done_of_a_forgotten_session_is_reported() -> None:
    runner = FakeRunner()
    late: list[str] = []
    runner.multiplexer.on_late_done = late.append
    session = runner.multiplexer.open("e", "1", Limits(), [])
    runner.multiplexer.forget(session)
    runner.send(done("e"))
    assert late == ["e"]


async def test_closed_channel_ends_all_its_sessions() -> None:
    runner = FakeRunner()
    sessions = [runner.multiplexer.open(f"e{n}", "1", Limits(), []) for n in range(3)]
    runner.channel.close()
    for session in sessions:
        result = await session.wait()
        assert session.lost
        assert result.error is not None
        assert (result.error.code, result.error.message) == (
            "internal_error",
            "The runner was lost: the connection closed",
        )
    assert runner.multiplexer.close_reason == "the connection closed"


async def test_session_on_a_closed_channel_is_lost_immediately() -> None:
    runner = FakeRunner()
    runner.multiplexer.close()
    session = runner.multiplexer.open("e", "1", Limits(), [])
    await session.wait()
    assert session.lost
    assert runner.received == []


@pytest.mark.parametrize("code", ["memory_limit", "internal_error"])
async def test_runner_codes_are_not_accepted_from_a_guest_that_could_forge_them(
    code: str,
) -> None:
    for codes, expected in ((None, code), (GUEST_CODES, "runtime_error")):
        runner = FakeRunner(**({} if codes is None else {"codes": codes}))
        session = runner.multiplexer.open("e", "1", Limits(), [])
        runner.send(done("e", ok=False, error={"code": code, "message": "claimed"}))
        result = await session.wait()
        assert result.error is not None
        assert (result.error.code, result.error.message) == (expected, "claimed")


async def test_trusted_host_is_believed() -> None:
    runner = FakeRunner(trusted=True)
    session = runner.multiplexer.open("e", "1", Limits(), [])
    runner.send(done("e", ok=False, error={"code": "timeout", "message": "Execution timed out"}))
    result = await session.wait()
    assert result.error is not None
    assert result.error.code == "timeout"


async def test_logs_and_error_messages_are_truncated() -> None:
    runner = FakeRunner()
    session = runner.multiplexer.open("e", "1", Limits(max_log_lines=3, max_log_chars=10), [])
    error = {"code": "runtime_error", "message": "m" * 100_000, "name": "N" * 100_000}
    runner.send(done("e", ok=False, logs=["abcd", "efgh", "ijkl", "mnop"], error=error))
    result = await session.wait()
    assert (result.logs, result.logs_truncated) == (["abcd", "efgh", "ij"], True)
    assert result.error is not None
    assert len(result.error.message) < 10_000
    assert len(result.error.name or "") < 10_000


async def test_late_messages_of_an_abandoned_session_are_not_counted_until_there_are_too_many() -> None:
    runner = FakeRunner()
    abandoned, over = (runner.multiplexer.open(id, "1", Limits(), []) for id in ("abandoned", "over"))
    runner.send(done("over"))
    for session in (abandoned, over):
        runner.multiplexer.forget(session)
    runner.send({"type": "started", "id": "abandoned"}, done("abandoned"), done("abandoned"))
    assert runner.multiplexer.dropped == 0
    runner.send(done("abandoned"), done("over"))
    assert runner.multiplexer.dropped == 2


async def test_number_of_sessions_with_late_messages_is_bounded() -> None:
    runner = FakeRunner()
    for number in range(MAX_LATE_SESSIONS + 1):
        runner.multiplexer.forget(runner.multiplexer.open(f"{number}", "1", Limits(), []))
    runner.send(done("0"), done("1"))
    assert runner.multiplexer.dropped == 1


CALL = {"type": "tool_call", "callId": "c1", "providerName": "tools", "safeToolName": "echo"}
LONG = "x" * 1_000_000
EXPENSIVE = {
    "invalid message": json.dumps({"type": "done", "logs": 1, "id": LONG}),
    "unknown session": done("another", result=LONG),
    "repeated call": {**CALL, "input": LONG},
    "second start": {"type": "started", "id": "e", "more": LONG},
    "ignored field": {**CALL, "callId": "c{number}", "input": 1, "more": LONG},
    "unknown tool": {**CALL, "callId": "c{number}", "safeToolName": "nothing", "input": LONG},
}


@pytest.mark.parametrize("line", EXPENSIVE.values(), ids=EXPENSIVE)
async def test_runner_that_sends_megabytes_of_useless_messages_is_disconnected(
    line: dict[str, Any] | str,
) -> None:
    runner = FakeRunner()
    session = runner.multiplexer.open("e", "code", Limits(), [Provider.of(echo)])
    runner.send({"type": "started", "id": "e"}, {**CALL, "input": 1})

    def send(number: int) -> None:
        text = line if isinstance(line, str) else json.dumps(line)
        runner.send(text.replace("{number}", f"-{number}"))

    for number in range(10):
        send(number)
    assert runner.multiplexer.close_reason is None
    for number in range(10, 25):
        send(number)
    assert runner.multiplexer.close_reason == "it sent too many invalid messages"
    assert session.result is not None


async def test_calls_after_a_cancel_are_ignored_and_not_counted() -> None:
    runner = FakeRunner()
    runner.multiplexer.open("e", "code", Limits(), [Provider.of(echo)]).cancel()
    for number in range(20_000):
        runner.send({**CALL, "callId": f"c{number}", "input": number})
    assert (runner.multiplexer.close_reason, runner.multiplexer.dropped) == (None, 0)
