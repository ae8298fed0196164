"""A runner that is hostile itself: it can lose its own session, and nothing else."""

from __future__ import annotations

import asyncio
import sys
import textwrap
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.hostile.notes import Notes

import hutch

RUNNER = textwrap.dedent(
    """
    import json, sys, time

    def say(**message):
        sys.stdout.write(json.dumps(message) + "\\n")
        sys.stdout.flush()

    def hear():
        line = sys.stdin.readline()
        if not line:
            sys.exit(0)
        return json.loads(line)

    def done(id, **more):
        say(**{"type": "done", "id": id, "ok": True, "durationMs": 1, "logs": [], **more})

    def call(_, call_id="c1", tool="note", provider="tools", input=None, **more):
        say(type="tool_call", callId=call_id, providerName=provider, safeToolName=tool, input=input, **more)

    def raw(text):
        sys.stdout.write(text)
        sys.stdout.flush()

    while True:
        message = hear()
        if message["type"] != "execute":
            continue
        id = message["id"]
        BEHAVIOUR
    """
)


@pytest.fixture
async def with_runner(tmp_path: Path) -> AsyncIterator[Callable[..., hutch.Hutch]]:
    """Makes a sandbox whose runner answers `execute` by the Python statements given."""
    opened: list[hutch.Hutch] = []

    def make(behaviour: str, **settings: Any) -> hutch.Hutch:
        script = tmp_path / f"runner{len(opened)}.py"
        body = textwrap.indent(textwrap.dedent(behaviour).strip(), "    ").lstrip()
        script.write_text(RUNNER.replace("BEHAVIOUR", body))
        sandbox = hutch.Hutch(runner=[sys.executable, "-I", str(script)], **settings)
        opened.append(sandbox)
        return sandbox

    yield make
    for sandbox in opened:
        await sandbox.close()


WithRunner = Callable[..., hutch.Hutch]


async def test_an_honest_runner_of_another_make_works_and_is_reused(with_runner: WithRunner) -> None:
    sandbox = with_runner(
        """
        say(type="started", id=id)
        call(id, input={"code": message["code"]})
        answer = hear()
        lent = list(message["providers"][0]["tools"])
        done(id, result=[answer["ok"], answer["result"], message["options"]["timeoutMs"], lent])
        """
    )
    notes = Notes()
    for n in range(3):
        result = await sandbox.run(f"code {n}", tools=[notes.tool()], timeout_ms=4_000)
        assert result.result == [True, "noted", 4000, ["note"]]
    assert notes.taken == [{"code": f"code {n}"} for n in range(3)]


DROPPED = {
    "garbage": "raw('garbage\\n{\\n\\x00\\n[]\\nnull\\n\"text\"\\n')",
    "bytes that are no UTF-8": "sys.stdout.buffer.write(b'\\xff\\xfe\\x00\\n'); sys.stdout.flush()",
    "empty lines": "raw('\\n' * 1000)",
    "a message of no type": "say(id=id, ok=True)",
    "an unknown type": "say(type='surprise', id=id)",
    "a host's own messages": "say(type='cancel', id=id); say(type='execute', id=id)",
    "a done of another": "done('someone-else', result='forged')",
    "a done without what it needs": "say(type='done', id=id, ok=True)",
    "a failure without an error": "done(id, ok=False)",
    "an error that is none": "done(id, ok=False, error={'code': 5, 'message': None})",
    "logs that are none": "done(id, logs=[1, 2])",
    "a call without a name": "say(type='tool_call', callId='c1', input=None)",
    "a call of another execution": "call(id, id='someone-else')",
    "a call without input": "say(type='tool_call', callId='c1', providerName='tools', safeToolName='note')",
    "200 000 levels": "raw('[' * 200000 + '\\n'); raw('{\"type\":\"done\",\"id\":' + '[' * 200000 + '\\n')",
    "200 000 levels of a call": (
        'raw(\'{"type":"tool_call","callId":"c1","providerName":"tools","safeToolName":"note","input":\''
        " + '[' * 200000 + ']' * 200000 + '}\\n')"
    ),
    "numbers out of range": (
        'raw(\'{"type":"done","id":"\' + id + \'","ok":true,"durationMs":1e999,"logs":[]}\\n\')'
    ),
    "several starts": "say(type='started', id=id); say(type='started', id=id)",
}


@pytest.mark.parametrize("behaviour", DROPPED.values(), ids=DROPPED.keys())
async def test_what_is_no_message_is_dropped_and_the_channel_stays(
    with_runner: WithRunner, behaviour: str
) -> None:
    sandbox = with_runner(f'say(type="started", id=id)\n{behaviour}\ndone(id, result="honest")')
    notes = Notes()
    for _ in range(2):
        assert (await sandbox.run("x", tools=[notes.tool()])).result == "honest"
    assert notes.taken == []


async def test_extra_fields_are_ignored(with_runner: WithRunner) -> None:
    sandbox = with_runner(
        """
        say(type="started", id=id, extra={"a": 1})
        call(id, extra=[1], another=None)
        answer = hear()
        done(id, result=answer["result"], extra="x")
        """
    )
    assert (await sandbox.run("x", tools=[Notes().tool()])).result == "noted"


async def test_a_line_beyond_the_limit_loses_the_runner(with_runner: WithRunner) -> None:
    sandbox = with_runner("raw('x' * 3_000_000 + '\\n')\ndone(id)", max_line_bytes=1_000_000)
    result = await sandbox.run("x")
    assert result.error is not None
    assert result.error.code == "internal_error"
    assert "longer than 1000000 bytes" in result.error.message


async def test_a_line_that_never_ends_loses_the_runner(with_runner: WithRunner) -> None:
    sandbox = with_runner("while True: raw('x' * 65536)", max_line_bytes=1_000_000)
    result = await sandbox.run("x")
    assert result.error is not None
    assert result.error.code == "internal_error"


@pytest.mark.parametrize("when", ["", "say(type='started', id=id)"], ids=["before", "after"])
async def test_a_runner_that_leaves_early_is_told_with_the_reason(with_runner: WithRunner, when: str) -> None:
    sandbox = with_runner(f"{when}\nsys.exit(3)" if when else "sys.exit(3)")
    result = await sandbox.run("x")
    assert result.error is not None
    assert result.error.code == "internal_error"
    assert "The runner was lost: " in result.error.message


async def test_a_runner_that_leaves_in_the_middle_is_not_asked_again(
    with_runner: WithRunner, tmp_path: Path
) -> None:
    asked = tmp_path / "asked"
    sandbox = with_runner(
        f"""
        with open({str(asked)!r}, "a") as file:
            file.write("once ")
        say(type="started", id=id)
        sys.exit(3)
        """
    )
    result = await sandbox.run("x")
    assert result.error is not None
    assert result.error.message.startswith("The runner was lost: ")
    assert asked.read_text() == "once "


async def test_a_runner_that_never_starts_is_told_once_and_replaced(
    with_runner: WithRunner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("hutch.sandbox.external.READY_SECONDS", 0.3)
    asked = tmp_path / "asked"
    sandbox = with_runner(
        f"""
        with open({str(asked)!r}, "a") as file:
            file.write(message["code"] + " ")
        if message["code"] == "never":
            while True:
                hear()
        say(type="started", id=id)
        done(id, result=message["code"])
        """
    )
    result = await sandbox.run("never", timeout_ms=100)
    assert result.error is not None
    assert result.error.code == "internal_error"
    assert result.error.message.startswith("The runner did not start the execution within 0.3")
    assert (await sandbox.run("next")).result == "next"
    assert asked.read_text() == "never next "


async def test_a_runner_that_ignores_cancel_is_a_timeout_and_is_replaced(with_runner: WithRunner) -> None:
    sandbox = with_runner(
        """
        say(type="started", id=id)
        if message["code"] == "hang":
            while True:
                hear()
        done(id, result=message["code"])
        """
    )
    result = await sandbox.run("hang", timeout_ms=100)
    assert result.error is not None
    assert (result.error.code, result.error.message) == ("timeout", "Execution timed out")
    assert (await sandbox.run("next")).result == "next"


async def test_a_done_after_the_cancel_is_still_a_timeout(with_runner: WithRunner) -> None:
    sandbox = with_runner(
        """
        say(type="started", id=id)
        while hear()["type"] != "cancel":
            pass
        done(id, result="too late")
        """
    )
    result = await sandbox.run("x", timeout_ms=100)
    assert result.error is not None
    assert result.error.code == "timeout"


async def test_a_runner_cannot_call_it_a_timeout_before_its_time(with_runner: WithRunner) -> None:
    sandbox = with_runner(
        'say(type="started", id=id)\ndone(id, ok=False, error={"code": "timeout", "message": "x"})'
    )
    result = await sandbox.run("x", timeout_ms=60_000)
    assert result.error is not None
    assert result.error.code == "runtime_error"


async def test_a_result_for_a_call_is_sent_once(with_runner: WithRunner) -> None:
    sandbox = with_runner(
        """
        say(type="started", id=id)
        for _ in range(5):
            call(id, "same", input="twice")
        call(id, "other", input="once")
        answers = [hear() for _ in range(2)]
        done(id, result=sorted(each["callId"] for each in answers))
        """
    )
    notes = Notes()
    assert (await sandbox.run("x", tools=[notes.tool()])).result == ["other", "same"]
    assert sorted(notes.taken) == ["once", "twice"]


async def test_too_many_calls_are_refused(with_runner: WithRunner) -> None:
    sandbox = with_runner(
        """
        say(type="started", id=id)
        for n in range(10):
            call(id, f"c{n}", input=n)
            answer = hear()
        done(id, result=[answer["ok"], answer["error"]])
        """,
        max_calls=5,
    )
    notes = Notes()
    ok, error = (await sandbox.run("x", tools=[notes.tool()])).result
    assert ok is False
    assert error == {"code": "tool_error", "message": "More than 5 tool calls in one execution"}
    assert notes.taken == [0, 1, 2, 3, 4]


async def test_too_many_calls_at_once_are_refused(with_runner: WithRunner) -> None:
    sandbox = with_runner(
        """
        say(type="started", id=id)
        for n in range(10):
            call(id, f"c{n}", tool="hang")
        answers = [hear() for _ in range(7)]
        done(id, result=answers)
        """,
        max_outstanding_calls=3,
    )
    started = 0

    async def hang() -> None:
        nonlocal started
        started += 1
        await asyncio.sleep(60)

    answers = (await sandbox.run("x", tools=[hang])).result
    assert {each["error"]["message"] for each in answers} == {"More than 3 tool calls at once"}
    assert started == 3


async def test_an_unknown_tool_is_an_internal_error_with_its_name(with_runner: WithRunner) -> None:
    sandbox = with_runner(
        """
        say(type="started", id=id)
        call(id, "c1", tool="nope")
        call(id, "c2", provider="nope")
        done(id, result=[hear()["error"], hear()["error"]])
        """
    )
    result = (await sandbox.run("x", tools=[Notes().tool()])).result
    assert sorted(each["message"] for each in result) == ["Unknown tool nope.note", "Unknown tool tools.nope"]
    assert {each["code"] for each in result} == {"internal_error"}


async def test_a_runner_that_does_not_read_does_not_fill_the_host(with_runner: WithRunner) -> None:
    sandbox = with_runner(
        """
        say(type="started", id=id)
        for n in range(2000):
            call(id, f"c{n}", tool="big")
        time.sleep(60)
        """,
        max_outstanding_calls=2000,
    )
    made = 0

    async def big() -> str:
        nonlocal made
        made += 1
        return "x" * 1_000_000

    result = await sandbox.run("x", tools=[big], timeout_ms=1_000)
    assert result.error is not None
    assert result.error.code == "timeout"
    assert made < 100


async def test_a_command_that_does_not_exist_is_named(tmp_path: Path) -> None:
    async with hutch.Hutch(runner=[str(tmp_path / "nothing")]) as sandbox:
        with pytest.raises(hutch.HutchError, match="nothing"):
            await sandbox.run("x")
