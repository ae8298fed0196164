"""What an operator's log has of every run, and what it never has."""

from __future__ import annotations

import asyncio
import json

from tests.doors.clients import host
from tests.messages import execute, tool_failure, tool_result
from tests.processes import Server, serving

SECRET = "correct-horse-battery"


async def test_record_has_who_what_when_and_how_it_ended(server: Server) -> None:
    async with host(server.execbox) as h:
        await h.say(
            execute("a", "console.log('x');\nthrow await tools.ask({})", tools=("ask",), timeoutMs=7_000)
        )
        await h.started("a")
        await h.say(tool_result(await h.call("a"), 1))
        done = await h.end("a")
    record = json.loads(await asyncio.to_thread(server.logged, '"outcome": "runtime_error"'))
    assert record["event"] == "run"
    assert (record["door"], record["owner"], record["engine"]) == ("execbox", "local", "quickjs")
    assert (record["duration_ms"], record["tool_calls"], record["log_lines"]) == (done["durationMs"], 1, 1)
    [call] = record["calls"]
    assert (call["provider"], call["tool"], call["ok"]) == ("tools", "ask", True)
    # This server's patience with what is cancelled is not the usual one either.
    assert record["limits"] == {"timeout_ms": 7_000, "cancel_grace_ms": 10_000}
    assert len(record["run_id"]) == 32
    assert record["started_at"] < record["timestamp"].replace("Z", "+00:00")


async def test_log_never_has_code_inputs_results_or_keys() -> None:
    """Not even at its most talkative, nor when a run fails with them in its message."""
    env = {"HUTCH_LOG_LEVEL": "debug", "HUTCH_LOG_JSON": "true", "HUTCH_API_KEY": SECRET}
    with serving(**env) as server:
        async with host(server.execbox, Authorization=f"Bearer {SECRET}") as h:
            await h.say(execute("result", f"console.log('{SECRET}'); '{SECRET}'"))
            assert (await h.done("result"))["result"] == SECRET
            await h.say(execute("thrown", f"throw new Error('{SECRET}')"))
            assert (await h.done("thrown"))["error"]["message"] == SECRET
            await h.say(execute("syntax", f"let {SECRET} = ;"))
            assert not (await h.done("syntax"))["ok"]
            await h.say(execute("input", f"await tools.ask('{SECRET}')", tools=("ask",)))
            await h.started("input")
            await h.say(tool_failure(await h.call("input"), "validation_error", f"not {SECRET}"))
            assert SECRET in (await h.end("input"))["error"]["message"]
        server.process.terminate()
        assert server.wait() == 0
        records = [line for line in server.seen if '"event": "run"' in line]
        assert [json.loads(line)["owner"] for line in records] == ["key"] * 4
        assert not [line for line in server.seen if SECRET in line]


async def test_runs_are_recorded_unless_only_errors_are_wanted() -> None:
    for level, count in (("warning", 1), ("error", 0)):
        with serving(HUTCH_LOG_LEVEL=level) as server:
            async with host(server.execbox) as h:
                await h.say(execute("a", "1"))
                assert (await h.done("a"))["ok"]
            server.process.terminate()
            assert await asyncio.to_thread(server.wait) == 0
            assert len([line for line in server.seen if "run_id=" in line]) == count


def test_log_is_for_people_unless_asked_otherwise() -> None:
    with serving() as server:
        line = server.logged("serving")
        assert "isolation=" in line
        assert "\x1b" not in line
