"""Killed servers, killed runtimes, and runs of other processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.hostile.processes import wait_for_exit
from tests.protocols.rep.flow_server import FlowClient, FlowServer, open_flow_server, runtime_pids
from tests.protocols.rep.server.helpers import wait_for_approvals
from tests.store.factories import make_flow_run
from tests.support.flows import chain, flow, node
from tests.support.forked import REAL_RUNTIMES
from tests.support.processes import TIMEOUT_SECONDS, Traces, hutch, start_hutch, wait_until

from hutch.protocols.rep.runtime import lease
from hutch.settings import Settings
from hutch.store.store import Store
from hutch.vault import crypto


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[FlowServer]:
    async with open_flow_server(Settings(home=str(tmp_path / "home")), **REAL_RUNTIMES) as server:
        yield server


async def until_asked(server: FlowServer, path: str, times: int = 1) -> None:
    await asyncio.to_thread(server.upstream.wait_for_request, path, times)


# --- the master key ---


async def test_server_with_the_wrong_master_key_does_not_start(
    store: Store, store_settings: Settings
) -> None:
    await store.journal.add(make_flow_run())
    env = {"HUTCH_HOME": store_settings.home, "HUTCH_MASTER_KEY": crypto.generate_master_key()}
    env["HUTCH_DATABASE_URL"] = store_settings.database_url or ""
    done = await asyncio.to_thread(hutch, "serve", "--port", "0", env=env)
    assert (done.returncode, done.stdout) == (1, "")
    assert "The master key is not the one that this database is encrypted with" in done.stderr


# --- killed ---


async def test_killed_server_leaves_no_process_and_the_next_resumes_without_repeating_steps(
    store_settings: Settings,
) -> None:
    async with open_flow_server(store_settings, **REAL_RUNTIMES) as server:
        server.upstream.hold("/held")
        async with server.running_server() as operator:
            ann = await server.user(operator, "ann")
            await ann.start_run(server.steps("a", "b", "held", "d"), "r")
            await until_asked(server, "/held")
            with Traces(operator.server.process.pid) as traces:
                operator.server.process.kill()
                operator.server.process.wait(TIMEOUT_SECONDS)
                assert [each for each in traces.remaining() if each.isdigit()] == []
        server.upstream.release("/held")
        async with server.running_server() as operator:
            ann = await server.user(operator, "ann")
            ended = await ann.wait_for_end("r")
        assert ended["state"] == "completed"
        assert ended["summary"]["completed_steps"] == 4
        assert server.upstream.request_counts == {"/a": 1, "/b": 1, "/held": 2, "/d": 1}


async def test_killed_runtime_is_replaced_without_repeating_steps(
    server: FlowServer,
) -> None:
    server.upstream.hold("/held")
    async with server.running_server() as operator:
        await operator.start_run(server.steps("a", "held", "d"), "r")
        await until_asked(server, "/held")
        [pid] = runtime_pids(operator.server.process.pid)
        os.kill(pid, signal.SIGKILL)
        await until_asked(server, "/held", 2)
        server.upstream.release("/held")
        assert (await operator.wait_for_end("r"))["state"] == "completed"
        assert "was lost" in operator.server.logged("was lost")
    assert server.upstream.request_counts == {"/a": 1, "/held": 2, "/d": 1}


async def test_queued_run_is_started_by_the_next_server(server: FlowServer) -> None:
    server.upstream.hold("/first")
    async with server.running_server(HUTCH_MAX_FLOWS="1") as operator:
        await operator.start_run(server.steps("first", name="one"), "r1")
        await until_asked(server, "/first")
        await operator.start_run(server.steps("second", name="two"), "r2")
        await operator.start_run(server.steps("third", name="three"), "r3")
        assert (await operator.post("/runs/r3/cancel")).json()["ok"] is True
        assert (await operator.get_json("/runs/r3"))["state"] == "cancelled"
        assert (await operator.get_json("/runs/r2"))["state"] == "pending"
        assert server.upstream.request_counts["/second"] == 0
        [runtime] = runtime_pids(operator.server.process.pid)
        operator.server.process.kill()
        operator.server.process.wait(TIMEOUT_SECONDS)
        # Wait until the runtime has ended, so that it cannot receive the response to its request.
        await wait_for_exit(runtime)
    server.upstream.release("/first")
    async with server.running_server(HUTCH_MAX_FLOWS="1") as operator:
        assert (
            (await operator.wait_for_end("r1"))["state"]
            == (await operator.wait_for_end("r2"))["state"]
            == "completed"
        )
        assert (await operator.get_json("/runs/r3"))["state"] == "cancelled"
    assert server.upstream.request_counts == {"/first": 2, "/second": 1}


async def test_draining_server_lets_runs_finish(server: FlowServer) -> None:
    server.upstream.hold("/held")
    async with server.running_server() as operator:
        await operator.start_run(server.steps("held", "after"), "r")
        await operator.start_run(flow([node("ask", "approve", message="?")], name="asks"), "waiting")
        await wait_for_approvals(operator, "waiting")
        await until_asked(server, "/held")
        operator.server.process.terminate()
        operator.server.logged("draining")
        server.upstream.release("/held")
        assert await asyncio.to_thread(operator.server.wait) == 0
    assert server.upstream.request_counts == {"/held": 1, "/after": 1}
    found = await server.store.journal.head("r")
    assert found is not None
    assert found.status == "completed"
    left = await server.store.journal.head("waiting")
    assert left is not None
    # `claims` is the count of lost runtimes. It is 0, because the server released the run in order.
    assert (lease.run_state(left), left.holder, left.claims) == ("interrupted", "", 0)


async def test_server_without_drain_time_leaves_its_runs_to_the_next(server: FlowServer) -> None:
    server.upstream.hold("/held")
    async with server.running_server(HUTCH_DRAIN_SECONDS="0") as operator:
        await operator.start_run(server.steps("a", "held", "d"), "r")
        await until_asked(server, "/held")
        with Traces(operator.server.process.pid) as traces:
            operator.server.process.terminate()
            assert await asyncio.to_thread(operator.server.wait) == 0
            assert [each for each in traces.remaining() if each.isdigit()] == []
    server.upstream.release("/held")
    async with server.running_server() as operator:
        assert (await operator.wait_for_end("r"))["state"] == "completed"
    assert server.upstream.request_counts == {"/a": 1, "/held": 2, "/d": 1}


async def test_second_server_on_the_same_database_takes_over(postgres: Any, tmp_path: Path) -> None:
    settings = Settings(home=str(tmp_path / "one"), database_url=postgres.new_database())
    async with open_flow_server(settings, **REAL_RUNTIMES) as server:
        server.upstream.hold("/held")
        async with server.running_server() as other, server.running_server() as one:
            await one.start_run(server.steps("a", "held", "d"), "r")
            await until_asked(server, "/held")
            # A server that does not execute the run also shows the run's state.
            assert (await other.get_json("/runs/r"))["state"] == "running"
            one.server.process.kill()
            one.server.process.wait(TIMEOUT_SECONDS)
            await until_asked(server, "/held", 2)
            server.upstream.release("/held")
            assert (await other.wait_for_end("r"))["state"] == "completed"
        assert server.upstream.request_counts == {"/a": 1, "/held": 2, "/d": 1}


# --- runs of other processes ---


async def test_cli_run_is_visible_approved_and_cancelled_through_the_server(
    server: FlowServer, tmp_path: Path
) -> None:
    nodes = [node("ask", "approve", message="Really?"), node("w", "wait", seconds=600)]
    file = tmp_path / "flow.json"
    file.write_text(json.dumps(flow(nodes, chain("ask", "w"))))
    command = ["flow", "run", str(file), "--run-id", "byhand", "--timeout", "0"]
    env = {"HUTCH_HOME": str(server.home), **REAL_RUNTIMES}
    async with server.running_server() as operator:
        with start_hutch(command, env=env, stdin=subprocess.DEVNULL) as process:
            await asyncio.to_thread(wait_until, lambda: "byhand" in _list_runs(server))
            [question] = await wait_for_approvals(operator, "byhand")
            assert question["message"] == "Really?"
            assert (await operator.post("/runs/byhand/approvals/ask", {"approved": True})).status_code == 200
            await _until_event(operator, "byhand", '"step_id": "w"')
            assert (await operator.post("/runs/byhand/cancel")).json()["ok"] is True
            assert (await operator.wait_for_end("byhand"))["state"] == "cancelled"
            assert process.wait(TIMEOUT_SECONDS) == 130


def _list_runs(server: FlowServer) -> str:
    done = hutch("flow", "runs", "--json", env={"HUTCH_HOME": str(server.home)})
    assert done.returncode == 0, done.stderr
    return done.stdout


async def _until_event(operator: FlowClient, run_id: str, part: str) -> None:
    url = f"{operator.server.url}/runs/{run_id}/events"
    seen = ""
    async with asyncio.timeout(TIMEOUT_SECONDS), operator.client.stream("GET", url) as stream:
        async for text in stream.aiter_text():
            seen += text
            if part in seen:
                return
