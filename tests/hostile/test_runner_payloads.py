"""Long payloads of a hostile runner do not block the host."""

from __future__ import annotations

import pytest
from tests.hostile.guests.recording_tool import RecordingTool
from tests.hostile.scripted_runner import WithRunner
from tests.support.stalls import LoopStalls, repeat_on_stall


@repeat_on_stall
async def test_large_result_of_slow_numbers_does_not_block_the_host(with_runner: WithRunner) -> None:
    """Decoding one of these numbers takes 10 us, so decoding all numbers in one step would take a second. The
    runner exits before the result is decoded, and the host must still return the result.
    """
    sandbox = with_runner(
        """
        send(type="started", id=id)
        done(id, result=[1e300] * 100_000)
        sys.exit(0)
        """
    )
    async with LoopStalls() as stalls:
        result = await sandbox.run("x", timeout_ms=60_000)
    assert result.result == [1e300] * 100_000
    stalls.assert_short()


LONG_PAYLOADS = {
    # For each name: the payload, and the part of the message that follows it.
    "quotes": ("b'\"' + b'\\\\\"' * 7_500_000 + b'\"'", ""),
    "control characters": ("b'\"' + b'\\\\u0001' * 2_500_000 + b'\"'", ""),
    "not JSON": ("b'[' * 8_000_000", ""),
    "another field": ("b'\"' + b'x' * 6_000_000 + b'\"'", ',"logs":[]'),
}


@pytest.mark.parametrize(("payload", "end"), LONG_PAYLOADS.values(), ids=LONG_PAYLOADS)
@pytest.mark.parametrize("kind", ["done", "tool_call"])
@repeat_on_stall
async def test_long_payload_does_not_block_the_host(
    with_runner: WithRunner, payload: str, end: str, kind: str
) -> None:
    """If the host parsed the payload with the rest of the message, skipping the payload would take up to 70
    ms.
    """
    heads = {
        "done": '{"type":"done","id":"%s","ok":true,"durationMs":1,"logs":[],"result":',
        "tool_call": '{"type":"tool_call","callId":"c1","providerName":"tools","safeToolName":"note",'
        '"id":"%s","input":',
    }
    sandbox = with_runner(
        f"""
        send(type="started", id=id)
        text = {heads[kind]!r} % id
        sys.stdout.buffer.write(text.encode() + {payload} + b'{end}' + b'}}\\n')
        sys.stdout.buffer.flush()
        done(id, result="honest")
        """
    )
    tool = RecordingTool()
    async with LoopStalls() as stalls:
        result = await sandbox.run("x", tools=[tool.tool()], timeout_ms=60_000)
    if kind == "tool_call" or end:
        assert result.result == "honest"
    else:
        assert result.error is not None
        assert result.error.code in ("result_too_large", "serialization_error")
    assert tool.calls == []
    stalls.assert_short()
