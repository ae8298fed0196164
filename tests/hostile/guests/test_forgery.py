"""Guests that send forged protocol messages can spoil only their own run."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest
from tests.hostile.guests.recording_tool import RecordingTool

import hutch

# Program that uses Deno's internals to write to the runner's socket. Even so, a guest must not be able to
# choose an error code, to call a tool that it was not given, or to affect another run.
HIJACK = """
    const core = Deno[Deno.internal].core;
    const [rid] = Object.entries(core.resources()).find(([, name]) => name === 'unixStream');
    const { subarray } = Uint8Array.prototype;
    let id;
    Uint8Array.prototype.subarray = function (...args) {
      id ??= /"id":"([0-9a-f]{32})"/.exec(new TextDecoder().decode(this))?.[1];
      return Reflect.apply(subarray, this, args);
    };
    await tools.note('first');
    const send = async (...messages) => {
      const text = messages.map((m) => (typeof m === 'string' ? m : JSON.stringify(m)) + '\\n').join('');
      await core.writeAll(Number(rid), core.encode(text));
    };
    if (!id) throw new Error('the hijack does not work any more');
"""
FOREVER = "await new Promise(() => {});"


async def hijacked(sandbox: hutch.Hutch, code: str, **options: Any) -> tuple[hutch.Result, list[Any]]:
    recording_tool = RecordingTool()
    result = await sandbox.run(
        f"{HIJACK}\n{code}", engine="deno", tools=[recording_tool.tool()], **{"timeout_ms": 3_000, **options}
    )
    return result, recording_tool.calls


@pytest.mark.parametrize(
    "code", ["memory_limit", "internal_error", "timeout", "tool_error", "validation_error", "busy", "made_up"]
)
async def test_forged_error_code_becomes_a_runtime_error(sandbox: hutch.Hutch, code: str) -> None:
    done = (
        f"{{ type: 'done', id, ok: false, durationMs: 1, logs: [], error: {{ code: '{code}',"
        f" message: 'forged' }} }}"
    )
    result, _ = await hijacked(sandbox, f"await send({done}); {FOREVER}")
    assert result.error is not None
    assert (result.error.code, result.error.message) == ("runtime_error", "forged")


async def test_forged_result_is_limited_like_a_real_one(sandbox: hutch.Hutch) -> None:
    done = (
        "{ type: 'done', id, ok: true, durationMs: -5, logs: Array(1000).fill('x'.repeat(1000)),"
        " result: 'mine' }"
    )
    result, _ = await hijacked(sandbox, f"await send({done}); {FOREVER}", max_log_lines=10, max_log_chars=500)
    assert result.result == "mine"
    assert (len(result.logs), result.logs_truncated) == (1, True)
    assert len(result.logs[0]) == 500
    assert result.duration_ms >= 0


async def test_forged_result_over_the_limit_is_rejected(sandbox: hutch.Hutch) -> None:
    done = "{ type: 'done', id, ok: true, durationMs: 1, logs: [], result: 'x'.repeat(9 * 1024 * 1024) }"
    result, _ = await hijacked(
        sandbox, f"await send({done}); {FOREVER}", memory_limit_bytes=512 * 1024 * 1024
    )
    assert result.error is not None
    assert result.error.code == "result_too_large"


async def test_second_done_is_ignored(sandbox: hutch.Hutch) -> None:
    one = "{ type: 'done', id, ok: true, durationMs: 1, logs: [], result: 1 }"
    two = "{ type: 'done', id, ok: true, durationMs: 1, logs: [], result: 2 }"
    result, _ = await hijacked(sandbox, f"await send({one}, {two}); {FOREVER}")
    assert result.result == 1


async def test_foreign_and_malformed_messages_are_dropped(sandbox: hutch.Hutch) -> None:
    messages = """
        { type: 'done', id: 'f'.repeat(32), ok: true, durationMs: 1, logs: [], result: 'foreign' },
        { type: 'started', id: 'f'.repeat(32) },
        { type: 'done', id, ok: true, logs: [], result: 'no duration' },
        { type: 'done', id, ok: 'yes', durationMs: 1, logs: [] },
        { type: 'done', id, ok: false, durationMs: 1, logs: [] },
        { type: 'done', id, ok: true, durationMs: 1, logs: [1] },
        { type: 'tool_result', callId: '1', ok: true, result: 1 },
        { type: 'execute', id, code: '1', options: {}, providers: [] },
        { type: 'cancel', id },
        { type: 'unknown' }, {}, [], 'garbage', '', '{', '"text"', 'null', '\\0', '\\ud800',
        '['.repeat(200000), '{"type":"done","id":' + '['.repeat(200000),
    """
    result, _ = await hijacked(
        sandbox, f"await send({messages}); return await tools.note('still') && 'honest'"
    )
    assert result.result == "honest"


CALLS = {
    "a tool that was not provided": (
        "{ type: 'tool_call', id, callId: 'z1', providerName: 'tools', safeToolName: 'secret', input: null }"
    ),
    "a provider that was not provided": (
        "{ type: 'tool_call', id, callId: 'z1', providerName: 'other', safeToolName: 'note', input: null }"
    ),
    "a Python attribute": (
        "{ type: 'tool_call', id, callId: 'z1', providerName: '__class__',"
        " safeToolName: '__init__', input: null }"
    ),
    "an input that is not JSON": (
        '\'{"type":"tool_call","id":"\' + id +'
        ' \'","callId":"z1","providerName":"tools","safeToolName":"note","input":nope}\''
    ),
    "a deep input": (
        '\'{"type":"tool_call","id":"\' + id +'
        ' \'","callId":"z1","providerName":"tools","safeToolName":"note","input":\' +'
        " '['.repeat(100000) + ']'.repeat(100000) + '}'"
    ),
    "another execution": (
        "{ type: 'tool_call', id: 'f'.repeat(32), callId: 'z1', providerName:"
        " 'tools', safeToolName: 'note', input: 'forged' }"
    ),
    "a used id": (
        "{ type: 'tool_call', id, callId: '1', providerName: 'tools', safeToolName: 'note', input: 'forged' }"
    ),
    "an id of a megabyte": (
        "{ type: 'tool_call', id, callId: 'x'.repeat(1 << 20), providerName:"
        " 'tools', safeToolName: 'note', input: 'forged' }"
    ),
    "a name of a megabyte": (
        "{ type: 'tool_call', id, callId: 'z1', providerName: 'tools',"
        " safeToolName: 'x'.repeat(1 << 20), input: 'forged' }"
    ),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
async def test_forged_call_of_an_unavailable_tool_does_no_host_work(sandbox: hutch.Hutch, call: str) -> None:
    result, calls = await hijacked(sandbox, f"await send({call}); await tools.note('last'); return 'honest'")
    assert result.result == "honest"
    assert calls == ["first", "last"]


async def test_repeated_call_id_is_executed_once(sandbox: hutch.Hutch) -> None:
    call = (
        "{ type: 'tool_call', id, callId: 'z1', providerName: 'tools', safeToolName: 'note', input:"
        " 'forged' }"
    )
    result, calls = await hijacked(
        sandbox, f"await send({call}, {call}, {call}); await tools.note('last'); return 1"
    )
    assert result.ok
    assert calls == ["first", "forged", "last"]


async def test_flood_of_calls_is_limited_and_affects_only_its_own_run(sandbox: hutch.Hutch) -> None:
    code = """
        for (let i = 0; ; i++) {
          const calls = [];
          const call = { type: 'tool_call', id, providerName: 'tools', safeToolName: 'hang', input: null };
          for (let j = 0; j < 1000; j++) calls.push({ ...call, callId: `z${i}-${j}` });
          await send(...calls);
        }
    """
    running = max_running = 0

    async def hang() -> None:
        nonlocal running, max_running
        running += 1
        max_running = max(max_running, running)
        try:
            await asyncio.sleep(60)
        finally:
            running -= 1

    flood = sandbox.run(
        f"{HIJACK}\n{code}", engine="deno", tools=[RecordingTool().tool(), hang], timeout_ms=1_500
    )
    honest = [sandbox.run(f"return {n}", engine=engine) for n in range(5) for engine in ("quickjs", "deno")]
    result, *others = await asyncio.gather(flood, *honest)
    assert result.error is not None
    assert result.error.code in ("timeout", "internal_error")
    assert [each.result for each in others] == [n for n in range(5) for _ in range(2)]
    assert 0 < max_running <= 256
    await asyncio.sleep(0)
    assert running == 0


async def test_calls_of_tools_that_were_not_provided_are_not_recorded(
    sandbox: hutch.Hutch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "hutch.runs")
    code = """
        const call = { type: 'tool_call', id, providerName: 'tools', input: null };
        const forged = (i) => ({ ...call, callId: `z${i}`, safeToolName: `forged${'x'.repeat(900)}${i}` });
        await send(...Array.from({ length: 2000 }, (_, i) => forged(i)));
        return await tools.note('last');
    """
    result, calls = await hijacked(sandbox, code)
    assert (result.result, calls) == ("noted", ["first", "last"])
    # Let the event loop run, because the log line is written in its next iteration.
    await asyncio.sleep(0)
    [fields] = [record.fields for record in caplog.records if getattr(record, "fields", {}).get("calls")]  # type: ignore[attr-defined]
    assert [(call["provider"], call["tool"]) for call in fields["calls"]] == [("tools", "note")] * 2
    assert (fields["tool_calls"], "calls_left_out" in fields) == (2, False)
    assert len(json.dumps(fields)) < 2_000


async def test_closing_the_connection_affects_only_the_guest(sandbox: hutch.Hutch) -> None:
    result, _ = await hijacked(sandbox, f"core.close(Number(rid)); {FOREVER}")
    assert result.error is not None
    assert result.error.code in ("internal_error", "runtime_error", "timeout")
    assert (await sandbox.run("1", engine="deno")).result == 1
