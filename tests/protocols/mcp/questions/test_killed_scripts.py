"""A real server is killed while a toolscript waits for an approval. The next server continues the script."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client
from mcp.types import CallToolResult, ElicitResult, InputRequiredResult, ToolAnnotations
from tests.protocols.mcp.durable_server import ALLOW, MODERN
from tests.protocols.mcp.harness import text_of
from tests.support.mcp_servers.asgi_server import running_app
from tests.support.mcp_servers.everything import Everything, app, text
from tests.support.processes import TIMEOUT_SECONDS, ServeProcess, running_server, wait_until

SCRIPT = """
    const first = await tools.notes.note({ what: "first" });
    const bought = await tools.notes.buy({ what: "book" });
    return [first, bought, await tools.notes.note({ what: "last" })];
"""
RESULT = '["first","book","last"]\n\n(3 tool calls)'


class Notes:
    """An MCP server that records the calls of its tools and can hold some."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.released = threading.Event()
        tools = Everything()
        tools.add("note", self._call, what={"type": "string"})
        tools.add("buy", self._call, what={"type": "string"})
        tools.add(
            "look", self._call, what={"type": "string"}, annotations=ToolAnnotations(read_only_hint=True)
        )
        self.app = app(tools)

    async def _call(self, arguments: dict[str, Any], _: Any) -> CallToolResult:
        self.calls.append(arguments["what"])
        if arguments["what"].startswith("held"):
            await anyio.to_thread.run_sync(self.released.wait, abandon_on_cancel=True)
        return text(arguments["what"])


class Home:
    """Home of the servers that a test kills and starts."""

    def __init__(self, folder: Path, notes: Notes, url: str) -> None:
        self.folder = folder
        self.notes = notes
        config = folder / "mcp.json"
        config.write_text(json.dumps({"mcpServers": {"notes": {"type": "http", "url": url}}}))
        (folder / "hutch.toml").write_text(f'mcp_config = ["{config}"]\n[approvals]\nnotes__buy = "ask"\n')

    def server(self) -> contextlib.AbstractContextManager[ServeProcess]:
        return running_server(HUTCH_HOME=str(self.folder))

    def is_registered(self, run_id: str) -> bool:
        """Returns True if other servers know which process executes a run."""
        with contextlib.closing(sqlite3.connect(self.folder / "hutch.db")) as database:
            query = "SELECT 1 FROM running_runs WHERE run_id = ?"
            return database.execute(query, (run_id,)).fetchone() is not None

    def expire_holds(self) -> None:
        """Lets another server continue the runs of a killed one at once, instead of after 30 s."""
        with contextlib.closing(sqlite3.connect(self.folder / "hutch.db")) as database, database:
            database.execute("UPDATE checkpoints SET held_until = '2000-01-01T00:00:00.000Z'")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    notes = Notes()
    with running_app(notes.app) as served:
        yield Home(tmp_path, notes, f"{served.url}/mcp")
        notes.released.set()


@contextlib.asynccontextmanager
async def connected(server: ServeProcess, mode: str = "legacy", **options: Any) -> AsyncIterator[Client]:
    async with Client(f"{server.url}/mcp", mode=mode, **options) as client:
        yield client


def waiting_run(answer: CallToolResult) -> str:
    found = re.search(r"continue_run with run_id (\S+) ", text_of(answer))
    assert found is not None, text_of(answer)
    return found[1]


async def start(server: ServeProcess, code: str = SCRIPT) -> str:
    """Runs a script with a client that cannot be asked. Returns the id of the run, which waits."""
    async with connected(server) as client:
        return waiting_run(await client.call_tool("run_code", {"code": code}))


async def resume(server: ServeProcess, run_id: str) -> str:
    async with connected(server) as client:
        return text_of(await client.call_tool("continue_run", {"run_id": run_id}))


def approve(server: ServeProcess, run_id: str) -> None:
    (approval,) = httpx2.get(f"{server.url}/approvals").json()
    assert approval["run"] == run_id
    decided = httpx2.post(f"{server.url}/approvals/{approval['id']}", json={"decision": "allow"})
    assert decided.status_code == 200


def kill(server: ServeProcess) -> None:
    server.process.kill()
    server.process.wait()


async def test_decision_after_a_kill_continues_the_script(home: Home) -> None:
    with home.server() as killed:
        run_id = await start(killed)
        run = httpx2.get(f"{killed.url}/runs/{run_id}").json()
        assert run["protocol"] == "toolscript"
        kill(killed)
    assert home.notes.calls == ["first"]
    with home.server() as server:
        assert httpx2.get(f"{server.url}/runs/{run_id}").json()["outcome"] == "suspended"
        assert "waits until a person has approved" in await resume(server, run_id)
        approve(server, run_id)
        assert await resume(server, run_id) == RESULT
        assert home.notes.calls == ["first", "book", "last"]
        stored = httpx2.get(f"{server.url}/runs/{run_id}/result").json()
        assert (stored["result"], stored["exit_code"]) == (["first", "book", "last"], 0)


async def test_retry_with_request_state_after_a_kill_continues_the_script(home: Home) -> None:
    async def ask(*_: object) -> ElicitResult:
        return ALLOW

    async def call(client: Client, **more: Any) -> CallToolResult | InputRequiredResult:
        return await client.session.call_tool("run_code", {"code": SCRIPT}, allow_input_required=True, **more)

    with home.server() as killed:
        async with connected(killed, MODERN, elicitation_callback=ask) as client:
            asked = await call(client)
            assert isinstance(asked, InputRequiredResult)
        kill(killed)
    with home.server() as server:
        async with connected(server, MODERN, elicitation_callback=ask) as client:
            answers = dict.fromkeys(asked.input_requests or {}, ALLOW)
            ended = await call(client, request_state=asked.request_state, input_responses=answers)
            assert isinstance(ended, CallToolResult)
            assert text_of(ended) == RESULT
            again = await call(client, request_state=asked.request_state, input_responses=answers)
            assert isinstance(again, CallToolResult)
            assert "A decision counts once" in text_of(again)
    assert home.notes.calls == ["first", "book", "last"]


async def test_call_in_flight_at_the_kill_is_made_again_only_if_it_is_idempotent(home: Home) -> None:
    code = """
        const told = (error: Error) => error.message;
        return await Promise.all([
            tools.notes.note({ what: "held" }).catch(told),
            tools.notes.look({ what: "held look" }),
            tools.notes.buy({ what: "book" }),
        ]);
    """
    with home.server() as killed:
        run_id = await start(killed, code)
        wait_until(lambda: len(home.notes.calls) == 2)
        kill(killed)
    home.notes.released.set()
    with home.server() as server:
        await resume(server, run_id)
        approve(server, run_id)
        told = await resume(server, run_id)
    assert "The process died while it called notes__note: the call may have had an effect" in told
    assert '"held look","book"]' in told
    assert sorted(home.notes.calls) == ["book", "held", "held look", "held look"]


async def test_script_that_was_killed_after_its_approval_continues(home: Home) -> None:
    code = """
        const bought = await tools.notes.buy({ what: "book" });
        return [bought, await tools.notes.look({ what: "held look" })];
    """
    with home.server() as killed:
        run_id = await start(killed, code)
        approve(killed, run_id)
        wait_until(lambda: home.notes.calls == ["book", "held look"])
        kill(killed)
    home.notes.released.set()
    home.expire_holds()
    with home.server() as server:
        assert await resume(server, run_id) == '["book","held look"]\n\n(2 tool calls)'
    assert home.notes.calls == ["book", "held look", "held look"]


async def test_script_continues_in_its_process_after_a_decision_at_another_server(home: Home) -> None:
    """If it ran again, it would make other calls."""
    code = """
        const random = `${Math.random()}`;
        await tools.notes.note({ what: random });
        await tools.notes.buy({ what: "book" });
        return (await tools.notes.note({ what: random })) === random;
    """
    with home.server() as server, home.server() as other:
        run_id = await start(server, code)
        wait_until(lambda: home.is_registered(run_id))
        assert "waits until a person has approved" in await resume(other, run_id)
        approve(other, run_id)
        for each in (other, server):
            assert await resume(each, run_id) == "true\n\n(3 tool calls)"
    assert len(home.notes.calls) == 3


async def test_server_stops_while_a_script_waits_and_the_next_one_continues_it(home: Home) -> None:
    with home.server() as stopped:
        run_id = await start(stopped)
        stopped.process.terminate()
        assert stopped.process.wait(TIMEOUT_SECONDS) == 0
    with home.server() as server:
        assert httpx2.get(f"{server.url}/runs/{run_id}").json()["outcome"] == "suspended"
        await resume(server, run_id)
        approve(server, run_id)
        assert await resume(server, run_id) == RESULT
        wait_until(lambda: httpx2.get(f"{server.url}/runs/{run_id}").json().get("outcome") == "ok")
        calls = httpx2.get(f"{server.url}/runs/{run_id}").json()["tool_calls"]
        assert [call["tool"] for call in calls] == ["note", "buy", "note"]
