"""Messages of the negotiated extensions `files` and `durable`, handwritten, over a real WebSocket."""

from __future__ import annotations

import asyncio
import base64
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.http.execbox_client import ExecboxClient, connect_execbox
from tests.support.messages import execute, tool_failure, tool_result
from tests.support.processes import ServeProcess, hutch, running_server
from websockets.asyncio.client import connect

ASK = "return [await tools.ask('x'), await tools.ask('y')]"


def part(id: str, data: bytes) -> dict[str, Any]:
    return {"type": "file", "id": id, "data": base64.b64encode(data).decode()}


def later(call: dict[str, Any], **suspend: Any) -> dict[str, Any]:
    return {**tool_failure(call, "tool_error", "it comes later"), "suspend": suspend}


async def suspend(client: ExecboxClient, id: str, **token: str) -> tuple[str, str]:
    """Runs code that waits for a call. Returns the id of the run, and the id of the call."""
    await client.send(execute(id, ASK, tools=("ask",), sendRunId=True))
    run_id = (await client.receive())["runId"]
    await client.send(later(await client.call(id), **token))
    waiting, done = await client.receive(), await client.end(id)
    assert done["error"] == {"code": "suspended", "message": "The run waits for tools.ask"}
    return run_id, waiting["callId"]


@pytest.mark.parametrize(
    ("requested", "granted"),
    [
        ("files", "files"),
        ("durable,files , sessions", "sessions, files, durable"),
        ("streams, durable", "durable"),
        ("FILES", None),
        ("", None),
    ],
)
async def test_server_grants_the_extensions_that_it_knows(
    server: ServeProcess, requested: str, granted: str | None
) -> None:
    async with connect_execbox(server.execbox, Hutch_Extensions=requested) as client:
        assert client.response_headers.get("Hutch-Extensions") == granted


async def test_plain_client_sees_no_messages_of_the_extensions(server: ServeProcess) -> None:
    """Without negotiation, their fields are unknown fields, and their messages are dropped."""
    async with connect_execbox(server.execbox) as client:
        plain = execute(
            "a", "try { await tools.ask(1) } catch (e) { return e.message }", tools=("ask",), streamLogs=True
        )
        await client.send(plain)
        await client.started("a")
        call = await client.call("a")
        assert call.keys() == {"type", "id", "callId", "providerName", "safeToolName", "input"}
        await client.send({"type": "suspend", "id": "a"}, part("a", b"x"), later(call, token="t"))
        assert (await client.end("a"))["result"] == "it comes later"
        for options in (
            {"files": [{"name": "a", "size": 1}], "resume": {"run": "r"}},
            {"files": 7, "resume": 7},
        ):
            await client.send(execute("b", "typeof files + typeof display", **options))
            done = await client.done("b")
            assert done.pop("durationMs") > 0
            assert done == {"type": "done", "id": "b", "ok": True, "logs": [], "result": "undefinedundefined"}


async def test_messages_of_a_suspended_and_continued_run(server: ServeProcess) -> None:
    async with connect_execbox(server.execbox, Hutch_Extensions="durable") as client:
        await client.send(execute("a", ASK, tools=("ask",), sendRunId=True, streamLogs=True))
        run_id = (await client.receive())["runId"]
        call = await client.call("a")
        await client.send(later(call, token="wire-token"))
        stored, waiting, done = [await client.receive() for _ in range(3)]
        assert stored == {"type": "stored", "id": "a", "calls": [call["runCallId"]]}
        assert waiting.pop("startedAt") > 1e9
        assert waiting.pop("startMs") > 0
        assert waiting == {
            "type": "pending_call",
            "id": "a",
            "callId": call["runCallId"],
            "providerName": "tools",
            "safeToolName": "ask",
            "message": "it comes later",
            "token": "wire-token",
            "line": 1,
            "input": "x",
        }
        assert (done["ok"], done["error"]["code"]) == (False, "suspended")
        resume = execute("b", "", tools=("ask",), resume={"run": run_id})
        await client.send({**resume, "inputs": {"results": {call["runCallId"]: 1}}})
        resumed = await client.receive()
        assert 0 < resumed.pop("timeoutMs") < 20_000
        assert resumed == {
            "type": "resumed",
            "id": "b",
            "runId": run_id,
            "maxLogLines": 100,
            "maxLogChars": 64_000,
            "logLines": 0,
        }
        await client.started("b")
        second = await client.call("b")
        assert (second["input"], second["runCallId"] != call["runCallId"]) == ("y", True)
        await client.send(tool_result(second, 2))
        done = await client.end("b")
        assert done["result"] == [1, 2]
        assert [(each["tool"], each["ok"]) for each in done["calls"]] == [("ask", True), ("ask", True)]


async def test_server_leaves_a_run_with_the_tools_of_a_client_to_the_client(server: ServeProcess) -> None:
    async with connect_execbox(server.execbox, Hutch_Extensions="durable") as client:
        run_id, call_id = await suspend(client, "a", token="over-http")
        async with httpx2.AsyncClient(base_url=server.url) as http:
            shown = (await http.get(f"/runs/{run_id}")).json()
            assert (shown["tools_elsewhere"], shown["pending_calls"][0]["message"]) == (
                True,
                "it comes later",
            )
            printed = (await asyncio.to_thread(hutch, "runs", "show", run_id, "--url", server.url)).stdout
            assert f"tools.ask waits, call id {call_id}\nit comes later" in printed
            refused = await http.post(f"/runs/{run_id}/resume", json={"results": {call_id: 1}})
            assert (refused.status_code, refused.json()["error"]["reason"]) == (409, "tools_elsewhere")
            # Anyone with the token delivers the result, but only the client continues the run.
            assert (await http.post("/calls/over-http", json={"result": 1})).status_code == 200
            record = (await http.get(f"/runs/{run_id}")).json()
            assert (record["protocol"], record["outcome"]) == ("execbox", "suspended")
        await client.send(execute("b", "", tools=("ask",), resume={"run": run_id}))
        assert (await client.receive())["type"] == "resumed"
        await client.started("b")
        await client.send(tool_result(await client.call("b"), 2))
        assert (await client.end("b"))["result"] == [1, 2]


@pytest.mark.parametrize(
    ("resume", "inputs", "message"),
    [
        (7, None, "options.resume: Expected `object`"),
        ({"run": "x", "burn": 1}, None, "options.resume: Object contains unknown field `burn`"),
        ({"run": "x", "action": "burn"}, None, "options.resume: Invalid enum value 'burn'"),
        ({"run": "x" * 200}, None, "options.resume: Expected `str` of length <= 128"),
        (
            {"token": "x" * 2_000, "action": "resolve"},
            None,
            "options.resume: Expected `str` of length <=",
        ),
        ({"run": "x"}, [1], "inputs: expected names with values, got list"),
        ({"run": "x"}, {"rows": 1}, "inputs: Object contains unknown field `rows`"),
        ({"run": "x"}, {"results": 1}, "inputs: Expected `object`, got `int`"),
        (
            {"run": "x"},
            {"results": {str(n): 1 for n in range(6_000)}, "errors": {f"e{n}": "" for n in range(6_000)}},
            "inputs: expected at most 10000 results and errors, got 12000",
        ),
        (
            {"run": "x"},
            {"results": {"c": 1}, "errors": {"c": "no"}},
            "errors.c: expected a result or an",
        ),
        ({"token": "t", "action": "resolve"}, {}, "inputs: expected a result or an error of `call`"),
    ],
)
async def test_invalid_requests_are_refused(
    server: ServeProcess, resume: Any, inputs: Any, message: str
) -> None:
    async with connect_execbox(server.execbox, Hutch_Extensions="durable") as client:
        request = execute("a", "", resume=resume)
        await client.send(request if inputs is None else {**request, "inputs": inputs})
        error = (await client.end("a"))["error"]
        assert (error["code"], error["message"][: len(message)]) == ("validation_error", message)
        await client.send(execute("b", "1 + 1"))
        assert (await client.done("b"))["result"] == 2


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"type": 7}, "type: 7 is not valid"),
        ({"$ref": "#"}, "it refers to itself"),
        ({"$ref": "file:///etc/hostname"}, "$ref: "),
    ],
)
async def test_invalid_schema_of_a_tool_is_refused(server: ServeProcess, schema: Any, problem: str) -> None:
    async with connect_execbox(server.execbox, Hutch_Extensions="durable") as client:
        run_id, call_id = await suspend(client, "a")
        resume = execute("b", "", tools=("ask",), resume={"run": run_id})
        resume["providers"][0]["tools"]["ask"]["outputSchema"] = schema
        await client.send({**resume, "inputs": {"results": {call_id: 1}}})
        error = (await client.end("b"))["error"]
        expected = f"providers: the outputSchema of tools.ask is invalid: {problem}"
        assert (error["code"], error["message"][: len(expected)]) == ("validation_error", expected)


async def test_run_stays_suspended_if_its_resume_is_cancelled(server: ServeProcess) -> None:
    async with connect_execbox(server.execbox, Hutch_Extensions="durable") as client:
        # The cancellation may arrive at different moments.
        for cancels in (1, 1, 2, 3, 1, 2):
            run_id, _ = await suspend(client, "a")
            resume = execute("b", "", tools=("ask",), resume={"run": run_id})
            cancel = {"type": "cancel", "id": "b"}
            await client.send(resume, *[cancel] * cancels)
            while (message := await client.receive())["type"] != "done":
                pass
            assert message["error"]["code"] == "timeout"
            began = time.monotonic()
            ended = "checkpoint_in_use"
            while ended == "checkpoint_in_use":
                # A hold without a process ends after 30 s.
                assert time.monotonic() - began < 20
                await client.send(resume)
                message = await client.receive()
                ended = message.get("error", {}).get("name")
            if message["type"] == "resumed":
                await client.send(cancel)
                while (message := await client.receive())["type"] != "done":
                    pass


async def test_sealing_waits_for_memory(tmp_path: Path) -> None:
    """A client that does not read may not make the server hold many sealed runs."""
    limits = {"HUTCH_MAX_STATE_BYTES": "20000000", "HUTCH_QUEUE_SECONDS": "0.5"}
    code = """
        const data = new Uint32Array(2_000_000);
        for (let n = 0, x = 1; n < data.length; n++) data[n] = x = (x * 1664525 + 1013904223) ^ (x << 13);
        return await tools.ask(1) + data.length;
    """
    with running_server(HUTCH_HOME=str(tmp_path), **limits) as server:
        async with (
            connect(
                server.execbox,
                additional_headers={"Hutch-Extensions": "durable"},
                proxy=None,
                compression=None,
                max_queue=1,
            ) as socket,
            connect_execbox(server.execbox, Hutch_Extensions="durable") as other,
        ):
            slow = ExecboxClient(socket)
            await slow.send(execute("a", code, tools=("ask",), sendRunId=True))
            run_id = (await slow.receive())["runId"]
            await slow.send(later(await slow.call("a")))
            await slow.receive()
            assert (await slow.end("a"))["error"]["code"] == "suspended"
            seal = execute("b", "", resume={"run": run_id, "action": "seal"})
            await slow.send(seal)
            assert (await slow.receive())["type"] == "file"
            await other.send(seal)
            assert (await other.end("b"))["error"]["retryAfter"] == 1.0
            while (await slow.receive())["type"] == "file":
                pass
            await other.send(seal)
            while (message := await other.receive())["type"] == "file":
                pass
            assert message["ok"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (7, "The peer sent an invalid `suspend`: Expected `object`, got `int`"),
        ({"token": 7}, "The peer sent an invalid `suspend`: Expected `str | null`, got `int` - at `$.token`"),
        ({"token": ""}, "token: expected 1 to 1024 characters, got 0"),
        ({"token": "x" * 2_000}, "token: expected 1 to 1024 characters, got 2000"),
    ],
)
async def test_invalid_suspension_fails_the_call(server: ServeProcess, value: Any, message: str) -> None:
    async with connect_execbox(server.execbox, Hutch_Extensions="durable") as client:
        code = "try { await tools.ask(1) } catch (e) { return e.message }"
        await client.send(execute("a", code, tools=("ask",)))
        await client.started("a")
        call = await client.call("a")
        await client.send({**later(call), "suspend": value})
        assert (await client.end("a"))["result"] == message


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (7, "options.files: Expected `array`, got `int`"),
        ([{"name": "a"}], "options.files: Object missing required field `size`"),
        ([{"name": "a", "size": -1}], "options.files: Expected `int` >= 0"),
        ([{"name": "../a", "size": 1}], "files: expected a plain file name"),
        ([{"name": "a", "size": 1}] * 2, "files: expected different names, got 'a' twice"),
        ([{"name": "a", "size": 2**40}], "files: expected at most 33554432 bytes in all files"),
        ([{"name": f"{n}", "size": 0} for n in range(101)], "files: expected at most 100 files"),
    ],
)
async def test_invalid_files_are_refused(server: ServeProcess, files: Any, message: str) -> None:
    async with connect_execbox(server.execbox, Hutch_Extensions="files") as client:
        await client.send(execute("a", "1", files=files))
        error = (await client.end("a"))["error"]
        assert (error["code"], error["message"][: len(message)]) == ("validation_error", message)


async def test_parts_of_files_arrive_in_the_announced_order(server: ServeProcess) -> None:
    async with connect_execbox(server.execbox, Hutch_Extensions="files") as client:
        files = [{"name": name, "size": size} for name, size in (("none", 0), ("a", 3), ("b", 2))]
        code = "return [await files.text('a'), await files.text('b'), await files.text('none')]"
        await client.send(execute("a", code, files=files))
        await client.send(part("unknown", b"x"), part("a", b"12"), part("a", b"3"), part("a", b"45"))
        await client.send(part("a", b"6"))
        assert (await client.done("a"))["result"] == ["123", "45", ""]
        for parts in ((b"1234",), (b"",), (b"123", b"456")):
            await client.send(execute("b", code, files=files), *(part("b", data) for data in parts))
            error = (await client.end("b"))["error"]
            assert error["message"].startswith("files: expected parts of ")
        await client.send(execute("c", "1", files=files), {"type": "file", "id": "c", "data": "no base64!"})
        await client.send({"type": "cancel", "id": "c"})
        assert (await client.end("c"))["error"]["code"] == "timeout"


async def test_turn_of_a_session_refuses_files(server: ServeProcess) -> None:
    async with connect_execbox(server.execbox, Hutch_Extensions="files, sessions") as client:
        turn = execute("a", "typeof files", session={"id": "s"}, files=[{"name": "a", "size": 1}])
        await client.send(turn, part("a", b"x"))
        error = (await client.end("a"))["error"]
        assert (error["code"], error["message"]) == (
            "validation_error",
            "options.files: expected no files, because a turn of a session has none",
        )


async def test_output_files_arrive_in_parts_before_the_end(server: ServeProcess) -> None:
    async with connect_execbox(server.execbox, Hutch_Extensions="files") as client:
        await client.send(execute("a", "await files.write('a.bin', new Uint8Array(200_000).fill(7))"))
        await client.started("a")
        first, second = await client.receive(), await client.receive()
        assert (first["name"], first["mimeType"], first["size"]) == (
            "a.bin",
            "application/octet-stream",
            200_000,
        )
        assert second.keys() == {"type", "id", "data"}
        data = b"".join(base64.b64decode(each["data"]) for each in (first, second))
        assert data == b"\x07" * 200_000
        assert (await client.end("a"))["ok"]


async def test_suspend_request_for_an_unknown_run_is_ignored(server: ServeProcess) -> None:
    async with connect_execbox(server.execbox, Hutch_Extensions="durable") as client:
        await client.send({"type": "suspend", "id": "unknown"}, {"type": "suspend"})
        await client.send(execute("a", "await new Promise(() => {})", engine="deno", sendRunId=True))
        await client.receive()
        await client.send({"type": "suspend", "id": "a"})
        refused = await client.receive()
        assert (refused["type"], refused["id"]) == ("suspend_refused", "a")
        assert refused["reason"] == "only code in Hutch's own quickjs engine can be suspended"
        await client.send({"type": "cancel", "id": "a"})
        await client.end("a")


async def test_continued_run_without_its_client_is_interrupted_after_a_call(server: ServeProcess) -> None:
    async with connect_execbox(server.execbox, Hutch_Extensions="durable") as client:
        run_id, call_id = await suspend(client, "a")
        resume = execute("b", "", tools=("ask",), resume={"run": run_id})
        await client.send({**resume, "inputs": {"results": {call_id: 1}}})
        assert (await client.receive())["type"] == "resumed"
        await client.started("b")
        await client.call("b")
    async with connect_execbox(server.execbox, Hutch_Extensions="durable") as client:
        # The server may notice only later that the first connection is closed.
        error = {"name": "checkpoint_in_use"}
        while error["name"] == "checkpoint_in_use":
            await client.send(resume)
            error = (await client.end("b"))["error"]
    assert error["name"] == "checkpoint_ended"
    async with httpx2.AsyncClient(base_url=server.url) as http:
        result = (await http.get(f"/runs/{run_id}/result")).json()
        assert result["error"]["message"].startswith("The client of the run disconnected")
        assert (await http.get(f"/runs/{run_id}")).json()["outcome"] == "interrupted"
