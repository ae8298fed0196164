"""One channel and the sessions on it: each message goes to the one it is for, and the end goes to all."""

from __future__ import annotations

import json
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from tests.messages import TRANSCRIPT
from tests.processes import PATIENCE

from hutch import tool
from hutch.session.channel import MemoryChannel
from hutch.session.host import GUEST_CODES, Limits
from hutch.session.link import BYTES_A_DROP, MAX_LATE, Link
from hutch.session.providers import Provider


class Runner:
    """The runner's end of a link, played by hand."""

    def __init__(self, **options: Any) -> None:
        near, self.channel = MemoryChannel.pair()
        self.heard: list[dict[str, Any]] = []
        self.channel.on_line = lambda line: self.heard.append(json.loads(line))
        self.link = Link(near, **options)

    def say(self, *messages: dict[str, Any] | str | bytes) -> None:
        for message in messages:
            if isinstance(message, dict):
                message = json.dumps(message)
            self.channel.send((message.encode() if isinstance(message, str) else message) + b"\n")


def done(id: str, **more: Any) -> dict[str, Any]:
    return {"type": "done", "id": id, "ok": True, "durationMs": 0, "logs": [], **more}


async def echo(value: Any, /) -> Any:
    return value


async def test_the_specification_s_transcript_is_spoken_to_the_letter() -> None:
    runner = Runner(full_manifests=True)
    provider = Provider(
        "tools", {"echo": tool(echo, description="Echo input")}, "declare namespace tools { ... }"
    )
    code = 'await tools.echo({"ok":true})'
    session = runner.link.open("exec-1", code, Limits(timeout_ms=1000), [provider])
    said = runner.heard[0]
    # Our own options beside the four are extra fields to others.
    options = {name: said["options"][name] for name in json.loads(TRANSCRIPT[0])["options"]}
    assert {**said, "options": options} == json.loads(TRANSCRIPT[0])
    runner.say(TRANSCRIPT[1], TRANSCRIPT[2])
    with anyio.fail_after(PATIENCE):
        while len(runner.heard) < 2:
            await anyio.lowlevel.checkpoint()
    assert runner.heard[1] == json.loads(TRANSCRIPT[3])
    runner.say(TRANSCRIPT[4])
    outcome = await session.wait()
    assert (outcome.ok, outcome.result, outcome.logs) == (True, {"ok": True}, [])


async def test_our_own_runners_get_names_without_types() -> None:
    runner = Runner()
    runner.link.open("e", "1", Limits(), [Provider.of(echo)])
    assert runner.heard[0]["providers"] == [
        {"name": "tools", "tools": {"echo": {"safeName": "echo", "originalName": "echo"}}, "types": ""}
    ]


async def test_every_session_hears_only_what_is_for_it() -> None:
    runner = Runner()
    sessions = [runner.link.open(f"e{n}", "1", Limits(), []) for n in range(3)]
    runner.say(done("e2", result="two"), done("e0", result="zero"), done("nobody", result="lost"))
    assert [each.outcome and each.outcome.result for each in sessions] == ["zero", None, "two"]
    assert runner.link.dropped == 1
    runner.say(done("e1", result="one"))
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
    runner = Runner()
    session = runner.link.open("e", "1", Limits(), [])
    runner.say(line)
    assert runner.link.dropped == 1 + len(line) // BYTES_A_DROP
    runner.say(done("e", result="fine"))
    assert (await session.wait()).result == "fine"


async def test_a_done_that_comes_after_its_session_was_forgotten_is_told() -> None:
    runner = Runner()
    late: list[str] = []
    runner.link.on_late = late.append
    session = runner.link.open("e", "1", Limits(), [])
    runner.link.forget(session)
    runner.say(done("e"))
    assert late == ["e"]


async def test_the_end_of_the_channel_is_the_end_of_all_its_sessions() -> None:
    runner = Runner()
    sessions = [runner.link.open(f"e{n}", "1", Limits(), []) for n in range(3)]
    runner.channel.close()
    for session in sessions:
        outcome = await session.wait()
        assert outcome.lost
        assert outcome.error is not None
        assert (outcome.error.code, outcome.error.message) == (
            "internal_error",
            "The runner was lost: the connection closed",
        )
    assert runner.link.closed == "the connection closed"


async def test_a_session_on_a_closed_link_is_lost_at_once_and_nothing_is_said() -> None:
    runner = Runner()
    runner.link.close()
    session = runner.link.open("e", "1", Limits(), [])
    assert (await session.wait()).lost
    assert runner.heard == []


@pytest.mark.parametrize("code", ["memory_limit", "internal_error"])
async def test_what_only_a_runner_can_know_is_not_believed_where_the_guest_could_speak_for_it(
    code: str,
) -> None:
    for codes, expected in ((None, code), (GUEST_CODES, "runtime_error")):
        runner = Runner(**({} if codes is None else {"codes": codes}))
        session = runner.link.open("e", "1", Limits(), [])
        runner.say(done("e", ok=False, error={"code": code, "message": "so it says"}))
        outcome = await session.wait()
        assert outcome.error is not None
        assert (outcome.error.code, outcome.error.message) == (expected, "so it says")


async def test_another_host_is_believed_what_it_has_judged() -> None:
    runner = Runner(trusted=True)
    session = runner.link.open("e", "1", Limits(), [])
    runner.say(done("e", ok=False, error={"code": "timeout", "message": "Execution timed out"}))
    outcome = await session.wait()
    assert outcome.error is not None
    assert outcome.error.code == "timeout"


async def test_logs_and_messages_are_bounded_here_too() -> None:
    runner = Runner()
    session = runner.link.open("e", "1", Limits(max_log_lines=3, max_log_chars=10), [])
    error = {"code": "runtime_error", "message": "m" * 100_000, "name": "N" * 100_000}
    runner.say(done("e", ok=False, logs=["abcd", "efgh", "ijkl", "mnop"], error=error))
    outcome = await session.wait()
    assert (outcome.logs, outcome.logs_truncated) == (["abcd", "efgh", "ij"], True)
    assert outcome.error is not None
    assert len(outcome.error.message) < 10_000
    assert len(outcome.error.name or "") < 10_000


async def test_last_words_that_nobody_waited_for_are_no_nonsense_but_more_of_them_is() -> None:
    runner = Runner()
    abandoned, over = (runner.link.open(id, "1", Limits(), []) for id in ("abandoned", "over"))
    runner.say(done("over"))
    for session in (abandoned, over):
        runner.link.forget(session)
    runner.say({"type": "started", "id": "abandoned"}, done("abandoned"), done("abandoned"))
    assert runner.link.dropped == 0
    runner.say(done("abandoned"), done("over"))
    assert runner.link.dropped == 2


async def test_only_so_many_of_whom_a_word_may_come_are_remembered() -> None:
    runner = Runner()
    for number in range(MAX_LATE + 1):
        runner.link.forget(runner.link.open(f"{number}", "1", Limits(), []))
    runner.say(done("0"), done("1"))
    assert runner.link.dropped == 1


CALL = {"type": "tool_call", "callId": "c1", "providerName": "tools", "safeToolName": "echo"}
LONG = "x" * 1_000_000
EXPENSIVE = {
    "what is no message": json.dumps({"type": "done", "logs": 1, "id": LONG}),
    "what is for nobody": done("another", result=LONG),
    "a call that was made before": {**CALL, "input": LONG},
    "a second start": {"type": "started", "id": "e", "more": LONG},
}


@pytest.mark.parametrize("line", EXPENSIVE.values(), ids=EXPENSIVE)
async def test_who_says_much_that_is_of_no_use_is_cut_off_after_some_megabytes(
    line: dict[str, Any] | str,
) -> None:
    runner = Runner()
    session = runner.link.open("e", "code", Limits(), [Provider.of(echo)])
    runner.say({"type": "started", "id": "e"}, {**CALL, "input": 1})
    for _ in range(10):
        runner.say(line)
    assert runner.link.closed is None
    for _ in range(15):
        runner.say(line)
    assert runner.link.closed == "it says too much that is not of the protocol"
    assert session.outcome is not None


async def test_calls_that_come_a_moment_too_late_are_nothing_to_anybody() -> None:
    runner = Runner()
    runner.link.open("e", "code", Limits(), [Provider.of(echo)]).cancel()
    for number in range(20_000):
        runner.say({**CALL, "callId": f"c{number}", "input": number})
    assert (runner.link.closed, runner.link.dropped) == (None, 0)
