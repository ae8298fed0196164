"""Suspended runs of `hutch.connect`: the server stores the run, the client has the tools."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.api.remote.suspension import Tools, refusal, suspended
from tests.support.processes import ServeProcess, running_server
from tests.support.processes import hutch as hutch_command

import hutch
from hutch.api.remote import Remote
from hutch.errors import HutchError, InvalidExecution, ResumeError

# --- suspending and continuing ---


async def test_run_continues_over_another_connection(server: ServeProcess, h: Remote, tools: Tools) -> None:
    result = await suspended(h, tools)
    (call,) = result.pending_calls
    assert (call.provider, call.tool, call.input) == ("tools", "ask", {"what": "lunch"})
    assert (call.message, call.token) == ("A person decides about lunch", None)
    assert result.error is not None
    assert result.error.message == "The run waits for tools.ask"

    other = Tools()
    async with hutch.connect(server.execbox) as second:
        run = await second.resume(result.run_id, {call.call_id: "yes"}, tools=other.all)
        assert run.id == result.run_id
        end = await run.result()
    assert end.raise_for_error().result == {"answer": "yes", "two": 2, "seen": ["count", "ask"]}
    assert (end.logs, end.run_id) == (["continued"], result.run_id)
    assert (tools.calls, other.calls) == ([1], [2])
    assert [each.tool for each in end.calls] == ["count", "ask", "count"]


async def test_events_report_the_suspension(h: Remote, tools: Tools) -> None:
    run = await h.start(
        "console.log(1); const x = await tools.ask({what: 'a'}); console.log(2); return x",
        tools=tools.all,
        max_log_lines=3,
    )
    events = [event async for event in run]
    names = [type(event).__name__ for event in events]
    assert names == ["RunQueued", "RunStarted", "RunLog", "ToolCallStarted", "RunSuspended", "RunEnded"]
    (call,) = run.pending_calls
    assert isinstance(events[3], hutch.ToolCallStarted)
    assert isinstance(events[4], hutch.RunSuspended)
    assert events[3].call_id == call.call_id
    assert events[4].calls == [call.call_id]
    run = await h.resume(run.id or "", {call.call_id: "é"})
    # Only the lines after the suspension, although the result has all.
    assert [event.line async for event in run if isinstance(event, hutch.RunLog)] == ["2"]
    result = await run.result()
    assert (result.result, result.logs) == ("é", ["1", "2"])


async def test_run_is_suspended_again_for_its_other_calls(h: Remote, tools: Tools) -> None:
    code = (
        "return await Promise.all([tools.ask({what: 'a'}), tools.ask({what: 'b'}), tools.ask({what: 'c'})])"
    )
    first, second, third = (await suspended(h, tools, code)).pending_calls
    run = await h.resume((await suspended(h, tools, code)).run_id, tools=tools.all)
    # Nothing was delivered, so it waits for the same calls.
    again = await run.result()
    run_id, calls = again.run_id, [call.call_id for call in again.pending_calls]
    run = await h.resume(run_id, {calls[0]: "a"}, errors={calls[1]: "no"}, tools=tools.all)
    result = await run.result()
    assert result.error is not None
    assert (result.error.code, result.error.message) == ("tool_error", "no")
    assert len({first.call_id, second.call_id, third.call_id, *calls}) == 6


async def test_calls_keep_their_id_when_the_run_continues(h: Remote, tools: Tools) -> None:
    """So that a tool that passes on its idempotency key does not repeat the key for another call."""
    result = await suspended(h, tools)
    (call,) = result.pending_calls
    other = Tools()
    await (await h.resume(result.run_id, {call.call_id: "yes"}, tools=other.all)).result()
    (before,), (after,) = tools.keys, other.keys
    assert before != after
    assert {key.partition(":")[0] for key in (before, after)} == {result.run_id}
    assert call.call_id not in (before.partition(":")[2], after.partition(":")[2])


async def test_deferred_call_is_resolved_by_its_token(h: Remote, tools: Tools) -> None:
    result = await suspended(h, tools, "return await tools.later({token: 'secret-1'}) + 1")
    (call,) = result.pending_calls
    assert call.token == "secret-1"
    assert await h.resolve("secret-1", 41) == result.run_id
    for token in ("secret-1", "unknown"):
        with pytest.raises(ResumeError) as refused:
            await h.resolve(token, 1)
        assert refused.value.code == ("already_answered" if token == "secret-1" else "unknown_call")
    run = await h.resume(result.run_id, tools=tools.all)
    assert (await run.result()).result == 42


async def test_token_that_cannot_be_stored_fails_the_call(h: Remote) -> None:
    code = "try { await tools.later({}) } catch (e) { return e.message }"
    for token, message in (
        ("\ud800", "token: expected text without half of a surrogate pair"),
        ("x" * 2_000, "token: expected 1 to 1024 characters, got 2000"),
    ):

        def later(value: str = token) -> hutch.Deferred:
            return hutch.Deferred(value)

        result = await h.run(code, tools=[later])
        assert result.raise_for_error().result == message


# --- refusals ---


async def test_results_are_delivered_once(h: Remote, tools: Tools) -> None:
    result = await suspended(h, tools, "return await tools.later({token: 'secret-2'})")
    (call,) = result.pending_calls
    assert await refusal(h, "no-such-run") == "checkpoint_not_found"
    assert await refusal(h, result.run_id, {"no-such-call": 1}) == "unknown_call"
    with pytest.raises(InvalidExecution, match=f"results.{call.call_id}: expected an integer"):
        await h.resume(result.run_id, {call.call_id: "three"}, tools=tools.all)
    with pytest.raises(InvalidExecution, match=f"results.{call.call_id}: expected a JSON-safe value"):
        await h.resume(result.run_id, {call.call_id: {1, 2}})
    with pytest.raises(InvalidExecution, match=r"results: have \d+ bytes of JSON with the tools"):
        await h.resume(result.run_id, {"a": "x" * 9_000_000, "b": "x" * 9_000_000})
    with pytest.raises(InvalidExecution, match="expected at most 8388608 bytes of JSON"):
        await h.resume(result.run_id, {call.call_id: "x" * 9_000_000})
    outcomes = await asyncio.gather(
        *(h.resume(result.run_id, {call.call_id: n}, tools=tools.all) for n in (1, 2)), return_exceptions=True
    )
    (run,) = [each for each in outcomes if isinstance(each, hutch.Run)]
    (refused,) = [each for each in outcomes if isinstance(each, ResumeError)]
    assert refused.code in ("already_answered", "checkpoint_in_use", "checkpoint_ended", "unknown_call")
    assert (await run.result()).result in (1, 2)
    assert await refusal(h, result.run_id) == "checkpoint_ended"


async def test_run_that_is_running_cannot_be_resumed(h: Remote, tools: Tools) -> None:
    result = await suspended(h, tools, "await tools.ask({what: 'a'}); return await tools.wait()")
    (call,) = result.pending_calls
    run = await h.resume(result.run_id, {call.call_id: "a"}, tools=tools.all)
    await tools.waiting.wait()
    assert await refusal(h, result.run_id) == "checkpoint_in_use"
    run.cancel()
    assert not (await run.result()).ok
    assert await refusal(h, result.run_id) == "checkpoint_ended"


async def test_runs_of_other_users_are_not_found(tmp_path: Path, tools: Tools) -> None:
    env = {"HUTCH_HOME": str(tmp_path)}
    keys = {}
    for name in ("ann", "ben"):
        hutch_command("user", "add", name, env=env)
        added = hutch_command("key", "add", name, "--scope", "execbox", env=env)
        keys[name] = added.stdout.split()[-1].strip()
    with running_server(HUTCH_API_KEY="operator", **env) as server:
        async with (
            hutch.connect(server.execbox, api_key=keys["ann"]) as ann,
            hutch.connect(server.execbox, api_key=keys["ben"]) as ben,
        ):
            result = await suspended(ann, tools, "return await tools.later({token: 'secret-3'})")
            sealed = await ann._seal(result.run_id)
            (call,) = result.pending_calls
            assert await refusal(ben, result.run_id, {call.call_id: 1}) == "checkpoint_not_found"
            assert await refusal(ben, sealed) == "checkpoint_not_found"
            for request in (ben._seal(result.run_id), ben.resolve("secret-3", 1)):
                with pytest.raises(ResumeError) as refused:
                    await request
                assert refused.value.code in ("checkpoint_not_found", "unknown_call")
            run = await ann.resume(result.run_id, {call.call_id: 5}, tools=tools.all)
            assert (await run.result()).result == 5


async def test_disconnecting_ends_a_run_that_is_not_stored(
    server: ServeProcess, h: Remote, tools: Tools
) -> None:
    client = hutch.connect(server.execbox)
    run = await client.start("return await tools.wait()", tools=tools.all, timeout_ms=60_000)
    await tools.waiting.wait()
    await client.close()
    assert not (await run.result()).ok
    assert await refusal(h, run.id) == "checkpoint_not_found"


# --- servers without these extensions ---


async def test_server_without_the_extensions_is_named(tools: Tools) -> None:
    import json

    from websockets.asyncio.server import ServerConnection, serve

    received: list[dict[str, Any]] = []

    async def plain(socket: ServerConnection) -> None:
        """Calls one tool and ends the execution with the answer."""
        async for text in socket:
            received.append(message := json.loads(text))
            if message["type"] == "execute":
                id = message["id"]
                call = {"type": "tool_call", "callId": "1", "providerName": "tools", "safeToolName": "ask"}
                await socket.send(json.dumps({"type": "started", "id": id}))
                await socket.send(json.dumps({**call, "input": {"what": "lunch"}}))
            elif message["type"] == "tool_result":
                done = {"type": "done", "id": id, "ok": True, "durationMs": 1, "logs": []}
                await socket.send(json.dumps({**done, "result": message["error"]["message"]}))

    async with serve(plain, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with hutch.connect(f"ws://127.0.0.1:{port}") as h:
            result = await h.run("", tools=tools.all)
            assert result.result.startswith(
                "A person decides about lunch, but the run cannot be suspended: ws://"
            )
            assert result.result.endswith("/execbox does not support it. Use a Hutch server that does")
            for request in (h.resume("run"), h.resolve("token", 1)):
                with pytest.raises(HutchError, match=r"does not support suspended runs\. Use a Hutch server"):
                    await request
            with pytest.raises(HutchError, match=r"does not support files\. Use a Hutch server"):
                await h.run("1", files={"a": b""})
    assert [message["type"] for message in received] == ["execute", "tool_result"]
    assert received[0]["options"].keys() == {
        "timeoutMs",
        "memoryLimitBytes",
        "maxLogLines",
        "maxLogChars",
        "maxResultBytes",
        "engine",
        "sendRunId",
    }
    assert received[1].keys() == {"type", "callId", "ok", "error"}


@pytest.mark.parametrize("request_of", ["seal", "resume"])
async def test_nonsense_of_a_server_is_an_error_of_hutch(request_of: str) -> None:
    import json

    from websockets.asyncio.server import Request, Response, ServerConnection, serve

    async def agree(socket: ServerConnection, _: Request, response: Response) -> Response:
        response.headers["Hutch-Extensions"] = "durable"
        return response

    async def finish(socket: ServerConnection) -> None:
        """Ends every execution without a file, and without `resumed`."""
        async for text in socket:
            done = {"type": "done", "id": json.loads(text)["id"], "ok": True, "durationMs": 1, "logs": []}
            await socket.send(json.dumps(done))

    async with (
        serve(finish, "127.0.0.1", 0, process_response=agree) as server,
        hutch.connect(f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}") as h,
    ):
        with pytest.raises(hutch.SandboxUnavailable, match=r"did not return the sealed|without continuing"):
            await (h._seal("run") if request_of == "seal" else h.resume("run"))
