"""A hostile runner can affect only its own session."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.hostile.guests.recording_tool import RecordingTool
from tests.hostile.scripted_runner import WithRunner
from tests.support.stalls import LoopStalls, repeat_on_stall

import hutch


async def test_honest_external_runner_works_and_is_reused(with_runner: WithRunner) -> None:
    sandbox = with_runner(
        """
        send(type="started", id=id)
        call(id, input={"code": message["code"]})
        answer = receive()
        names = list(message["providers"][0]["tools"])
        done(id, result=[answer["ok"], answer["result"], message["options"]["timeoutMs"], names])
        """
    )
    recording_tool = RecordingTool()
    for n in range(3):
        result = await sandbox.run(f"code {n}", tools=[recording_tool.tool()], timeout_ms=4_000)
        assert result.result == [True, "noted", 4000, ["note"]]
    assert recording_tool.calls == [{"code": f"code {n}"} for n in range(3)]


DROPPED = {
    "garbage": "raw('garbage\\n{\\n\\x00\\n[]\\nnull\\n\"text\"\\n')",
    "invalid UTF-8": "sys.stdout.buffer.write(b'\\xff\\xfe\\x00\\n'); sys.stdout.flush()",
    "empty lines": "raw('\\n' * 1000)",
    "a message without a type": "send(id=id, ok=True)",
    "an unknown type": "send(type='surprise', id=id)",
    "messages that only a host sends": "send(type='cancel', id=id); send(type='execute', id=id)",
    "done of another execution": "done('another', result='forged')",
    "done with missing fields": "send(type='done', id=id, ok=True)",
    "a failure without an error": "done(id, ok=False)",
    "an invalid error": "done(id, ok=False, error={'code': 5, 'message': None})",
    "invalid logs": "done(id, logs=[1, 2])",
    "a call without a name": "send(type='tool_call', callId='c1', input=None)",
    "a call of another execution": "call(id, id='another')",
    "200 000 levels": "raw('[' * 200000 + '\\n'); raw('{\"type\":\"done\",\"id\":' + '[' * 200000 + '\\n')",
    "200 000 levels of a call": (
        'raw(\'{"type":"tool_call","callId":"c1","providerName":"tools","safeToolName":"note","input":\''
        " + '[' * 200000 + ']' * 200000 + '}\\n')"
    ),
    "numbers out of range": (
        'raw(\'{"type":"done","id":"\' + id + \'","ok":true,"durationMs":1e999,"logs":[]}\\n\')'
    ),
    "NaN": 'raw(\'{"type":"done","id":"\' + id + \'","ok":true,"durationMs":NaN,"logs":[]}\\n\')',
    "NaN as the result": (
        'raw(\'{"type":"done","id":"\' + id + \'","ok":true,"durationMs":1,"logs":[],"result":NaN}\\n\')'
    ),
    "a negative number of a wrong type": "done(id, ok=-1); done(-1, result='forged'); done(id, logs=-1)",
    "the result of another execution in a repeated key": (
        'raw(\'{"type":"done","id":"\' + id + \'","ok":true,"durationMs":1,"logs":[],"id":"another"}\\n\')'
    ),
    "invalid UTF-8 in a log": (
        'sys.stdout.buffer.write(b\'{"type":"done","id":"\' + id.encode()'
        ' + b\'","ok":true,"durationMs":1,"logs":["\\xff"]}\\n\'); sys.stdout.flush()'
    ),
    "a result of a call that it did not make": "send(type='tool_result', callId='c1', ok=True, result=1)",
    "several starts": "send(type='started', id=id); send(type='started', id=id)",
}


@pytest.mark.parametrize("behaviour", DROPPED.values(), ids=DROPPED.keys())
async def test_invalid_message_is_dropped_and_the_channel_stays_open(
    with_runner: WithRunner, behaviour: str
) -> None:
    sandbox = with_runner(f'send(type="started", id=id)\n{behaviour}\ndone(id, result="honest")')
    recording_tool = RecordingTool()
    for _ in range(2):
        assert (await sandbox.run("x", tools=[recording_tool.tool()])).result == "honest"
    assert recording_tool.calls == []


async def test_call_without_input_gets_null(with_runner: WithRunner) -> None:
    """If the guest passes no argument, the public runner sends no `input`."""
    sandbox = with_runner(
        """
        send(type="started", id=id)
        send(type="tool_call", callId="c1", providerName="tools", safeToolName="note")
        done(id, result=receive()["result"])
        """
    )
    recording_tool = RecordingTool()
    result = await sandbox.run("x", tools=[recording_tool.tool()], timeout_ms=5_000)
    assert (result.result, recording_tool.calls) == ("noted", [None])


async def test_last_of_repeated_keys_counts(with_runner: WithRunner) -> None:
    sandbox = with_runner(
        """
        send(type="started", id=id)
        raw('{"type":"done","id":"a","id":"' + id + '","ok":false,"ok":true,"durationMs":-5,'
            '"logs":[],"result":1,"result":{"a":1,"a":2}}\\n')
        """
    )
    result = await sandbox.run("x")
    assert result.result == {"a": 2}
    assert result.duration_ms >= 0


async def test_message_may_arrive_in_pieces(with_runner: WithRunner) -> None:
    sandbox = with_runner(
        """
        for part in json.dumps({"type": "started", "id": id}) + "\\n":
            raw(part)
        text = json.dumps({"type": "done", "id": id, "ok": True, "durationMs": 1, "logs": [], "result": "é"})
        for byte in (text + "\\n").encode():
            sys.stdout.buffer.write(bytes([byte]))
            sys.stdout.buffer.flush()
        """
    )
    assert (await sandbox.run("x")).result == "é"


async def test_half_a_message_before_the_end_loses_the_runner(with_runner: WithRunner) -> None:
    sandbox = with_runner(
        """
        raw('{"type":"done","id":"' + id + '","ok":true,"durationMs":1,"logs":[],"result":1}')
        sys.exit(0)
        """
    )
    result = await sandbox.run("x")
    assert result.error is not None
    assert (result.error.code, result.error.message[:20]) == ("internal_error", "The runner was lost:")


FLOODS = {
    "garbage": "while True: raw('garbage\\n' * 1000)",
    "ends of other executions": "while True: [done(f'other {n}') for n in range(1000)]",
    "unknown tools": "n = 0\nwhile True: n += 1; call(id, f'c{n}', tool=f'forged {n}')",
    "long ignored fields": "n = 0\nwhile True: n += 1; call(id, f'c{n}', more='x' * 1_000_000)",
    "long inputs of unknown tools": "while True: call(id, tool='forged', input='x' * 1_000_000)",
}


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
@repeat_on_stall
async def test_flood_of_useless_messages_loses_the_runner(with_runner: WithRunner, flood: str) -> None:
    """The flood is endless. A limit on useless messages must end it long before the time limit of 60 s."""
    sandbox = with_runner(f'send(type="started", id=id)\n{flood}', max_calls=20_000)
    async with LoopStalls() as stalls:
        result = await sandbox.run("x", tools=[RecordingTool().tool()], timeout_ms=60_000)
    assert result.error is not None
    assert result.error.code == "internal_error"
    assert result.error.message.startswith("The runner was lost: it ")
    stalls.assert_short()


LONG_LINES = {
    "values": "b'[' + b'{},' * 700_000 + b'1]'",
    "strings": "b'[' + b'\"\",' * 700_000 + b'1]'",
    "surrogates": "b'\"' + b'\\\\ud800' * 400_000 + b'\"'",
}


@pytest.mark.parametrize("payload", LONG_LINES.values(), ids=LONG_LINES)
@pytest.mark.parametrize("field", ["ignored", "input", "logs"])
@repeat_on_stall
async def test_long_line_with_a_lone_surrogate_does_not_block_the_host(
    with_runner: WithRunner, payload: str, field: str
) -> None:
    """Only Python's JSON parser accepts lone surrogates. Decoding such a line with this parser in one step
    takes a fifth of a second.
    """
    sandbox = with_runner(
        f"""
        payload = {payload}
        send(type="started", id=id)
        for n in range(2):
            head = '{{"type":"tool_call","callId":"c%d","providerName":"tools","safeToolName":"note",' % n
            text = head.encode() + b'"lone":"\\\\ud800","{field}":' + payload + b'}}\\n'
            sys.stdout.buffer.write(text)
            sys.stdout.buffer.flush()
        done(id, result="honest")
        """
    )
    async with LoopStalls() as stalls:
        result = await sandbox.run("x", tools=[RecordingTool().tool()], timeout_ms=60_000)
    assert result.result == "honest" or result.error is not None
    stalls.assert_short()


@pytest.mark.parametrize("field", ["message", "logs"])
@repeat_on_stall
async def test_long_error_or_log_does_not_block_the_host(with_runner: WithRunner, field: str) -> None:
    """Decoding such a field in one step takes 0.15 s."""
    sandbox = with_runner(
        """
        send(type="started", id=id)
        text = "\\\\" * 4_000_000
        done(id, ok=False, logs=[text if FIELD == "logs" else ""], durationMs=1,
             error={"code": "runtime_error", "message": text if FIELD == "message" else "short"})
        done(id, ok=False, error={"code": "runtime_error", "message": "short"})
        """.replace("FIELD", repr(field))
    )
    async with LoopStalls() as stalls:
        result = await sandbox.run("x", timeout_ms=60_000)
    assert result.error is not None
    expected = "short" if field == "logs" else "The error has 8000040 bytes of JSON"
    assert (result.error.code, result.error.message) == ("runtime_error", expected)
    stalls.assert_short()


async def test_extra_fields_are_ignored(with_runner: WithRunner) -> None:
    sandbox = with_runner(
        """
        send(type="started", id=id, extra={"a": 1})
        call(id, extra=[1], another=None)
        answer = receive()
        done(id, result=answer["result"], extra="x")
        """
    )
    assert (await sandbox.run("x", tools=[RecordingTool().tool()])).result == "noted"


async def test_runner_cannot_choose_the_ids_of_calls_in_events(with_runner: WithRunner) -> None:
    """`runCallId` is a field of servers, for a connection with the extension `durable`."""
    sandbox = with_runner(
        """
        send(type="started", id=id)
        for number in range(2):
            call(id, f"c{number}", input=number, runCallId="same")
            receive()
        done(id, calls=[{"provider": "tools", "tool": "forged", "ok": True, "duration_ms": 1}])
        """
    )
    seen: list[str] = []

    async def note(value: int, context: hutch.ToolContext) -> None:
        seen.append(context.call_id)

    tool = hutch.tool(note, input_schema={"type": "integer"})
    run = await sandbox.start("x", tools=[tool])
    events = [event.call_id async for event in run if isinstance(event, hutch.ToolCallStarted)]
    assert seen == events == ["c0", "c1"]
    assert [call.tool for call in (await run.result()).calls] == ["note", "note"]


async def test_line_over_the_limit_loses_the_runner(with_runner: WithRunner) -> None:
    sandbox = with_runner("raw('x' * 3_000_000 + '\\n')\ndone(id)", max_line_bytes=1_000_000)
    result = await sandbox.run("x")
    assert result.error is not None
    assert result.error.code == "internal_error"
    assert "longer than 1000000 bytes" in result.error.message


async def test_endless_line_loses_the_runner(with_runner: WithRunner) -> None:
    sandbox = with_runner("while True: raw('x' * 65536)", max_line_bytes=1_000_000)
    result = await sandbox.run("x")
    assert result.error is not None
    assert result.error.code == "internal_error"


@pytest.mark.parametrize("when", ["", "send(type='started', id=id)"], ids=["before", "after"])
async def test_early_exit_of_a_runner_is_reported_with_the_reason(with_runner: WithRunner, when: str) -> None:
    sandbox = with_runner(f"{when}\nsys.exit(3)" if when else "sys.exit(3)")
    result = await sandbox.run("x")
    assert result.error is not None
    assert result.error.code == "internal_error"
    assert "The runner was lost: " in result.error.message


async def test_execution_is_not_retried_after_its_runner_exits(
    with_runner: WithRunner, tmp_path: Path
) -> None:
    asked = tmp_path / "asked"
    sandbox = with_runner(
        f"""
        with open({str(asked)!r}, "a") as file:
            file.write("once ")
        send(type="started", id=id)
        sys.exit(3)
        """
    )
    result = await sandbox.run("x")
    assert result.error is not None
    assert result.error.message.startswith("The runner was lost: ")
    assert asked.read_text() == "once "


async def test_runner_that_never_starts_the_execution_is_replaced(
    with_runner: WithRunner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("hutch.sandbox.runner.external.READY_SECONDS", 0.3)
    asked = tmp_path / "asked"
    sandbox = with_runner(
        f"""
        with open({str(asked)!r}, "a") as file:
            file.write(message["code"] + " ")
        if message["code"] == "never":
            while True:
                receive()
        send(type="started", id=id)
        done(id, result=message["code"])
        """
    )
    result = await sandbox.run("never", timeout_ms=100)
    assert result.error is not None
    assert result.error.code == "internal_error"
    assert result.error.message.startswith("The runner did not start the execution within 0.3")
    assert (await sandbox.run("next")).result == "next"
    assert asked.read_text() == "never next "


async def test_runner_that_ignores_cancel_times_out_and_is_replaced(with_runner: WithRunner) -> None:
    sandbox = with_runner(
        """
        send(type="started", id=id)
        if message["code"] == "hang":
            while True:
                receive()
        done(id, result=message["code"])
        """
    )
    result = await sandbox.run("hang", timeout_ms=100)
    assert result.error is not None
    assert (result.error.code, result.error.message) == ("timeout", "Execution timed out after 100 ms")
    assert (await sandbox.run("next")).result == "next"


async def test_done_after_cancel_is_still_a_timeout(with_runner: WithRunner) -> None:
    sandbox = with_runner(
        """
        send(type="started", id=id)
        while receive()["type"] != "cancel":
            pass
        done(id, result="too late")
        """
    )
    result = await sandbox.run("x", timeout_ms=100)
    assert result.error is not None
    assert result.error.code == "timeout"


async def test_runner_cannot_report_a_timeout_early(with_runner: WithRunner) -> None:
    sandbox = with_runner(
        'send(type="started", id=id)\ndone(id, ok=False, error={"code": "timeout", "message": "x"})'
    )
    result = await sandbox.run("x", timeout_ms=60_000)
    assert result.error is not None
    assert result.error.code == "runtime_error"


async def test_result_of_a_repeated_call_is_sent_once(with_runner: WithRunner) -> None:
    sandbox = with_runner(
        """
        send(type="started", id=id)
        for _ in range(5):
            call(id, "same", input="twice")
        call(id, "other", input="once")
        answers = [receive() for _ in range(2)]
        done(id, result=sorted(each["callId"] for each in answers))
        """
    )
    recording_tool = RecordingTool()
    assert (await sandbox.run("x", tools=[recording_tool.tool()])).result == ["other", "same"]
    assert sorted(recording_tool.calls) == ["once", "twice"]


async def test_too_many_calls_are_refused(with_runner: WithRunner) -> None:
    sandbox = with_runner(
        """
        send(type="started", id=id)
        for n in range(10):
            call(id, f"c{n}", input=n)
            answer = receive()
        done(id, result=[answer["ok"], answer["error"]])
        """,
        max_calls=5,
    )
    recording_tool = RecordingTool()
    ok, error = (await sandbox.run("x", tools=[recording_tool.tool()])).result
    assert ok is False
    assert error == {"code": "tool_error", "message": "More than 5 tool calls in one execution"}
    assert recording_tool.calls == [0, 1, 2, 3, 4]


async def test_too_many_concurrent_calls_are_refused(with_runner: WithRunner) -> None:
    sandbox = with_runner(
        """
        send(type="started", id=id)
        for n in range(10):
            call(id, f"c{n}", tool="hang")
        answers = [receive() for _ in range(7)]
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


async def test_unknown_tool_is_an_internal_error_with_its_name(with_runner: WithRunner) -> None:
    sandbox = with_runner(
        """
        send(type="started", id=id)
        call(id, "c1", tool="nope")
        call(id, "c2", provider="nope")
        done(id, result=[receive()["error"], receive()["error"]])
        """
    )
    result = (await sandbox.run("x", tools=[RecordingTool().tool()])).result
    assert sorted(each["message"] for each in result) == ["Unknown tool nope.note", "Unknown tool tools.nope"]
    assert {each["code"] for each in result} == {"internal_error"}


async def test_runner_that_does_not_read_does_not_fill_the_hosts_memory(with_runner: WithRunner) -> None:
    sandbox = with_runner(
        """
        send(type="started", id=id)
        for n in range(2000):
            call(id, f"c{n}", tool="big")
        time.sleep(60)
        """,
        max_outstanding_calls=2000,
    )
    results = 0

    async def big() -> str:
        nonlocal results
        results += 1
        return "x" * 1_000_000

    result = await sandbox.run("x", tools=[big], timeout_ms=1_000)
    assert result.error is not None
    assert result.error.code == "timeout"
    assert results < 100


async def test_missing_command_is_named(tmp_path: Path) -> None:
    async with hutch.Hutch(runner=[str(tmp_path / "nothing")]) as sandbox:
        with pytest.raises(hutch.HutchError, match="nothing"):
            await sandbox.run("x")
