"""Suspended runs and files of `hutch.connect`: the server stores the run, the client has the tools."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.processes import ServeProcess, running_server
from tests.support.processes import hutch as hutch_command

import hutch
from hutch.api.remote import Remote
from hutch.errors import HutchError, InvalidExecution, ResumeError

MASTER_KEY = "A" * 43 + "="
CODE = """
    const seen = [];
    const note = async (name, call) => { seen.push(name); return await call };
    const [one, answer] = await Promise.all([
        note("count", tools.count({n: 1})),
        note("ask", tools.ask({what: "lunch"})),
    ]);
    const two = await tools.count({n: one + 1});
    console.log("continued");
    return {answer, two, seen};
"""


class Tools:
    """Tools of one client."""

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.keys: list[str] = []
        self.waiting, self.go_on = asyncio.Event(), asyncio.Event()

    def ask(self, what: str) -> str:
        raise hutch.Suspend(f"A person decides about {what}")

    def later(self, token: str) -> int | hutch.Deferred:
        return hutch.Deferred(token)

    async def count(self, n: int, context: hutch.ToolContext) -> int:
        self.calls.append(n)
        self.keys.append(context.idempotency_key)
        return n

    async def wait(self) -> str:
        self.calls.append(0)
        self.waiting.set()
        await self.go_on.wait()
        return "waited"

    @property
    def all(self) -> list[Any]:
        return [self.ask, self.later, self.count, self.wait]


@pytest.fixture
def tools() -> Tools:
    return Tools()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    home = {"HUTCH_HOME": str(tmp_path_factory.mktemp("home")), "HUTCH_MASTER_KEY": MASTER_KEY}
    with running_server(HUTCH_MAX_FILE_BYTES="4000000", **home) as running:
        yield running


@pytest.fixture
async def h(server: ServeProcess) -> AsyncIterator[Remote]:
    async with hutch.connect(server.execbox) as client:
        yield client


async def suspended(h: Remote, tools: Tools, code: str = CODE, **options: Any) -> hutch.Result:
    result = await h.run(code, tools=tools.all, **options)
    assert result.error is not None, result
    assert result.error.code == "suspended", result.error
    return result


async def refusal(h: Remote, *arguments: Any, **options: Any) -> str:
    with pytest.raises(ResumeError) as refused:
        await h.resume(*arguments, **options)
    return refused.value.code


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


async def test_run_survives_the_death_of_its_server(tmp_path: Path, tools: Tools) -> None:
    home = {"HUTCH_HOME": str(tmp_path)}
    with running_server(**home) as first:
        async with hutch.connect(first.execbox) as h:
            files = {"a.txt": "input"}
            code = f"await files.write('b.txt', await files.text('a.txt')); {CODE}"
            result = await suspended(h, tools, code, files=files)
            first.process.kill()
            first.wait()
            (call,) = result.pending_calls
    with running_server(**home) as second:
        async with hutch.connect(second.execbox) as h:
            # The server has no tools of this run, so it leaves the run to the client.
            other = Tools()
            run = await h.resume(result.run_id, {call.call_id: "yes"}, tools=other.all)
            end = await run.result()
    assert end.raise_for_error().result["answer"] == "yes"
    assert [(file.name, file.data) for file in end.files] == [("b.txt", b"input")]
    assert (tools.calls, other.calls) == ([1], [2])


# --- slow tools ---


CLIENT = """
import asyncio, sys
import hutch

async def wait() -> str:
    await asyncio.Event().wait()

@hutch.tool(idempotent=True)
async def lookup() -> str:
    await asyncio.Event().wait()

async def main():
    code = '''
        const settle = (promise) => promise.catch((error) => error.message);
        return await Promise.all([settle(tools.wait()), settle(tools.lookup())]);'''
    async with hutch.connect(sys.argv[1]) as h:
        run = await h.start(code, tools=[wait, lookup], timeout_ms=60_000)
        async for event in run:
            if isinstance(event, hutch.RunSuspended):
                assert len(event.calls) == 2
                print(run.id, flush=True)

asyncio.run(main())
"""


async def test_waiting_run_survives_the_death_of_its_client(tmp_path: Path, tools: Tools) -> None:
    @hutch.tool(idempotent=True)
    async def lookup() -> str:
        return "found"

    with running_server(HUTCH_HOME=str(tmp_path), HUTCH_CHECKPOINT_AFTER_MS="1") as server:
        command = [sys.executable, "-c", CLIENT, server.execbox]
        client = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert client.stdout is not None
        run_id = (await client.stdout.readline()).decode().strip()
        client.kill()
        await client.wait()
        async with hutch.connect(server.execbox) as h:
            again = await resume_when_released(h, run_id, [*tools.all, lookup])
            waited, found = (await again.result()).raise_for_error().result
    assert found == "found"
    assert "the call may have had an effect" in waited
    assert tools.calls == []


async def resume_when_released(h: Remote, run_id: str, tools: Any) -> hutch.Run:
    """Resumes a run as soon as its server has noticed that the client is lost."""
    while True:
        try:
            return await h.resume(run_id, tools=tools)
        except ResumeError as error:
            assert error.code == "checkpoint_in_use"  # noqa: PT017 - the loop ends with another code


def pass_hold_time(home: Path) -> None:
    """Makes other servers believe that the time has passed after which a process counts as dead."""
    with sqlite3.connect(next(home.glob("*.db"))) as database:
        database.execute("UPDATE checkpoints SET held_until = '2020-01-01T00:00:00.000Z'")


async def test_waiting_run_survives_the_death_of_its_server(tmp_path: Path, tools: Tools) -> None:
    home = {"HUTCH_HOME": str(tmp_path), "HUTCH_CHECKPOINT_AFTER_MS": "1"}
    with running_server(**home) as first:
        async with hutch.connect(first.execbox) as h:
            code = "return await Promise.all([tools.wait(), 1]).catch((error) => error.message)"
            run = await h.start(code, tools=tools.all, timeout_ms=60_000)
            async for event in run:
                if isinstance(event, hutch.RunSuspended):
                    break
            first.process.kill()
            first.wait()
            lost = await run.result()
            assert lost.error is not None
            assert (lost.error.code, lost.run_id) == ("internal_error", run.id)
    pass_hold_time(tmp_path)
    with running_server(**home) as second:
        async with hutch.connect(second.execbox) as h:
            again = await h.resume(lost.run_id, tools=tools.all)
            assert "the call may have had an effect" in (await again.result()).result
    assert tools.calls == [0]


async def test_stored_run_stays_suspended_when_its_server_stops(tmp_path: Path, tools: Tools) -> None:
    home = {"HUTCH_HOME": str(tmp_path), "HUTCH_CHECKPOINT_AFTER_MS": "1", "HUTCH_DRAIN_SECONDS": "0.1"}
    with running_server(**home) as first:
        async with hutch.connect(first.execbox) as h:
            code = "return await tools.wait().catch((error) => error.message)"
            run = await h.start(code, tools=tools.all, timeout_ms=60_000)
            async for event in run:
                if isinstance(event, hutch.RunSuspended):
                    first.process.terminate()
            result = await run.result()
            assert result.error is not None
            assert result.error.code == "suspended"
            assert result.error.message == "The server stopped, and has stored the run. Continue it by its id"
        first.wait()
    with running_server(**home) as second:
        async with hutch.connect(second.execbox) as h:
            again = await h.resume(result.run_id, tools=tools.all)
            assert "the call may have had an effect" in (await again.result()).result


# --- checkpoints ---


async def test_checkpoint_continues_on_another_server(
    tmp_path: Path, server: ServeProcess, h: Remote, tools: Tools
) -> None:
    run = await h.start(
        "const x = await tools.wait(); await files.write('x', x); return [x, await tools.count({n: 2})]",
        tools=tools.all,
        timeout_ms=60_000,
    )
    await tools.waiting.wait()
    sealing = asyncio.create_task(run.checkpoint())
    await asyncio.sleep(0)
    tools.go_on.set()
    sealed = await sealing
    result = await run.result()
    assert result.error is not None
    assert result.error.code == "suspended"
    other = Tools()
    with running_server(HUTCH_HOME=str(tmp_path), HUTCH_MASTER_KEY=MASTER_KEY) as second:
        async with hutch.connect(second.execbox) as client:
            assert await refusal(client, result.run_id) == "checkpoint_not_found"
            again = await client.resume(sealed, tools=other.all)
            assert again.id == run.id
            end = await again.result()
            assert await refusal(client, sealed) == "checkpoint_ended"
    assert end.raise_for_error().result == ["waited", 2]
    assert [file.data for file in end.files] == [b"waited"]
    assert (tools.calls, other.calls) == ([0], [2])
    # The server of the run has it, too.
    assert (await (await h.resume(result.run_id, tools=tools.all)).result()).result == ["waited", 2]


async def test_sealed_run_of_a_program_is_not_added_to_the_server(
    tmp_path: Path, h: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUTCH_MASTER_KEY", MASTER_KEY)
    async with hutch.Hutch(home=str(tmp_path)) as local:
        code = "await new Promise((resolve) => setTimeout(resolve, 60_000))"
        sealed = await (await local.start(code, timeout_ms=60_000, owner="local")).checkpoint()
    assert await refusal(h, sealed) == "tools_elsewhere"


async def test_invalid_sealed_bytes_are_refused(h: Remote, tools: Tools) -> None:
    run = await h.start("await tools.ask({what: 'a'})", tools=tools.all)
    await run.result()
    sealed = await h._seal(run.id or "")
    assert await refusal(h, sealed[:-1] + bytes([sealed[-1] ^ 1])) == "checkpoint_invalid"
    assert await refusal(h, b"") == "checkpoint_invalid"
    with pytest.raises(InvalidExecution, match=r"files: expected at most \d+ bytes .*max_checkpoint_bytes"):
        await h.resume(b"x" * 80_000_000)


@pytest.mark.parametrize("engine", ["quickjs", "deno"])
async def test_checkpoint_of_a_run_that_cannot_be_suspended(h: Remote, engine: Any) -> None:
    code = "return 1" if engine == "quickjs" else "await new Promise(() => {})"
    run = await h.start(code, engine=engine, timeout_ms=60_000)
    with pytest.raises(ResumeError) as refused:
        await run.checkpoint()
    assert refused.value.code == ("checkpoint_ended" if engine == "quickjs" else "checkpoint_invalid")
    run.cancel()
    await run.result()


async def test_too_large_run_refuses_a_checkpoint_and_continues(tmp_path: Path) -> None:
    with running_server(HUTCH_HOME=str(tmp_path), HUTCH_MAX_CHECKPOINT_BYTES="100000") as server:
        async with hutch.connect(server.execbox) as h:
            code = "const a = 'x'.repeat(1e6) + Math.random(); await tools.go(); return a.length > 1e6"
            go = asyncio.Event()

            async def wait() -> None:
                await go.wait()

            run = await h.start(code, tools={"tools": [hutch.tool(wait, name="go")]}, timeout_ms=60_000)
            with pytest.raises(ResumeError, match="max_checkpoint_bytes"):
                await run.checkpoint()
            go.set()
            assert (await run.result()).result is True


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


# --- files ---


async def test_files_in_both_directions(h: Remote) -> None:
    large = bytes(range(256)) * 8_000
    code = """
        const data = await files.read("large.bin");
        await files.write("copy.bin", data);
        await files.write("empty.txt", "");
        display({names: files.list().map((file) => [file.name, file.size, file.type])});
        return data.length;"""
    result = await h.run(code, files={"large.bin": large, "é.csv": "a,b", "none": b""})
    assert result.raise_for_error().result == len(large)
    copy, empty, shown = result.files
    assert (copy.name, copy.data, empty.data, empty.mime_type) == ("copy.bin", large, b"", "text/plain")
    assert shown.text is not None
    assert '["é.csv",3,"text/csv"]' in shown.text.replace(" ", "").replace("\n", "")


async def test_run_without_input_files_can_write_files(h: Remote) -> None:
    run = await h.start("await files.write('a', 'b'); throw new Error('no')")
    result = await run.result()
    assert not result.ok
    assert [(file.name, file.data) for file in result.files] == [("a", b"b")]
    assert (await h.run("files.list().length")).result == 0
    assert (await h.session("files").run("typeof files")).result == "undefined"


async def test_limits_of_files_are_those_of_the_server(h: Remote) -> None:
    for files, message in (
        (
            {"a": b"x" * 4_000_001},
            "files: expected at most 4000000 bytes in all files (setting max_file_bytes), got 4000001",
        ),
        ({f"{n}": b"" for n in range(101)}, "files: expected at most 100 files (setting max_files), got 101"),
    ):
        result = await h.run("1", files=files)
        assert result.error is not None
        assert (result.error.code, result.error.message) == ("validation_error", message)
    with pytest.raises(InvalidExecution, match="files: expected a plain file name"):
        await h.run("1", files={"../a": b""})
    result = await h.run("await files.write('a', new Uint8Array(4000001))")
    assert result.error is not None
    assert "max_file_bytes" in result.error.message


async def test_cancelling_during_the_upload_leaves_the_connection_usable(h: Remote) -> None:
    task = asyncio.create_task(h.run("1", files={"a": b"x" * 3_900_000}))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert (await h.run("2")).result == 2


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
