"""Tests of how `hutch serve` starts and stops."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest
from tests.http.execbox_client import connect_execbox
from tests.npm.registry import Registry
from tests.support.messages import execute, tool_result
from tests.support.processes import (
    HUTCH,
    NO_WARM_RUNNERS,
    TIMEOUT_SECONDS,
    ServeProcess,
    Traces,
    hutch,
    running_server,
    stop_process,
    temporary_files,
    wait_until,
)
from websockets.exceptions import ConnectionClosed, InvalidStatus

from hutch.settings import Settings

TEMPLATES = """export const templateRenderTool = {
    execute: ({template, data}) => template.replace("{{name}}", data.name),
};"""


@pytest.mark.parametrize("key", [{}, {"HUTCH_API_KEY": "secret one"}, {"EXECUTOR_API_KEY": "secret"}])
def test_announced_curl_line_runs_a_tool(npm: Registry, key: dict[str, str]) -> None:
    npm.publish("@tpmjs/tools-template-render", "0.1.0", {"index.js": TEMPLATES})
    with running_server(**key) as server:
        assert "secret" not in server.announced
        response = json.loads(shell(announced(server), **key))
        assert (response["success"], response["output"]) == (True, "Hello Bo!")


def test_announced_curl_line_works_offline() -> None:
    with running_server(HUTCH_OFFLINE="true") as server:
        assert json.loads(shell(announced(server)))["status"] == "ok"


def test_default_number_of_warm_runners_is_started() -> None:
    warm = Settings()
    with running_server(
        HUTCH_QUICKJS_WARM=f"{warm.quickjs_warm}", HUTCH_DENO_WARM=f"{warm.deno_warm}"
    ) as server:
        for engine, count in (("quickjs", warm.quickjs_warm), ("deno", warm.deno_warm)):
            line = f'hutch_processes_warm{{engine="{engine}"}} {count}.0'
            wait_until(lambda line=line: line in httpx2.get(f"{server.url}/metrics").text)


def announced(server: ServeProcess) -> str:
    line = server.announced.splitlines()[-1]
    assert line.startswith("  Try:")
    return line.partition("Try:")[2].strip()


def shell(line: str, **env: str) -> bytes:
    done = subprocess.run(
        ["sh", "-c", f"{line} --silent --noproxy '*'"],
        capture_output=True,
        timeout=TIMEOUT_SECONDS,
        check=True,
        env={**os.environ, **env},
    )
    return done.stdout


def test_wildcard_address_is_announced_as_a_reachable_one() -> None:
    with running_server("--host", "0.0.0.0", HUTCH_API_KEY="secret") as server:
        assert server.url.startswith("http://127.0.0.1:")


def test_public_address_without_a_key_causes_a_warning() -> None:
    with running_server("--host", "0.0.0.0") as server:
        assert "everyone who can reach this address can run code here; set HUTCH_API_KEY" in server.logged(
            "hutch:"
        )


def test_ipv6_address_is_announced_in_brackets() -> None:
    with running_server("--host", "::1") as server:
        assert server.url.startswith("http://[::1]:")


async def test_sigterm_lets_executions_finish_and_rejects_new_ones() -> None:
    with running_server() as server:
        async with connect_execbox(server.execbox) as h, connect_execbox(server.execbox) as idle:
            await h.send(execute("runs", "await tools.ask()", tools=("ask",)))
            await h.started("runs")
            call = await h.call("runs")
            with Traces(server.process.pid) as traces:
                assert traces.processes > 0
                server.process.terminate()
                await asyncio.to_thread(server.logged, "draining")
                await idle.send(execute("new", "1"))
                refused = await idle.end("new")
                assert refused["error"]["code"] == "internal_error"
                assert "The server is shutting down" in refused["error"]["message"]
                with pytest.raises(InvalidStatus) as late:
                    async with connect_execbox(server.execbox):
                        pass
                assert late.value.response.status_code == 503
                await h.send(tool_result(call, "finished"))
                assert (await h.end("runs"))["result"] == "finished"
                with pytest.raises(ConnectionClosed) as closed:
                    await h.receive()
                assert closed.value.rcvd is not None
                assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (
                    1001,
                    "The server is shutting down",
                )
                assert await asyncio.to_thread(server.wait) == 0
                assert traces.remaining() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_second_signal_stops_at_once_and_leaves_nothing(number: int) -> None:
    with running_server() as server:
        async with connect_execbox(server.execbox) as h:
            await h.send(execute("runs", "for (;;);", timeoutMs=200_000))
            await h.started("runs")
            with Traces(server.process.pid) as traces:
                server.process.send_signal(number)
                await asyncio.to_thread(server.logged, "draining")
                server.process.send_signal(number)
                assert await asyncio.to_thread(server.wait) == 1
                assert traces.remaining() == []


@pytest.mark.parametrize("command", ['exec "$@"', 'trap : HUP; "$@"; exit'], ids=["server", "make"])
def test_closed_terminal_ends_the_server_gracefully(command: str) -> None:
    # Only the session leader of the terminal gets SIGHUP. The session leader is either the server, or a
    # program such as make that does not pass the signal on to the server.
    terminal, end = os.openpty()
    with subprocess.Popen(
        ["setsid", "--ctty", "sh", "-c", command, "sh", *HUTCH, "serve", "--port", "0"],
        stdin=end,
        stdout=subprocess.PIPE,
        stderr=end,
        text=True,
        env={**os.environ, **NO_WARM_RUNNERS},
        # If the tests were started with nohup, the server would inherit that SIGHUP is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    ) as process:
        os.close(end)
        assert process.stdout is not None
        while "Try:" not in (line := process.stdout.readline()):
            assert line
        with Traces(process.pid) as traces:
            os.close(terminal)
            assert process.wait(TIMEOUT_SECONDS) == 0
            assert traces.remaining() == []


def test_nohup_server_ignores_sighup() -> None:
    command = ["nohup", *HUTCH, "serve", "--port", "0"]
    env = {**os.environ, **NO_WARM_RUNNERS}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    ) as process:
        server = ServeProcess(process)
        process.send_signal(signal.SIGHUP)
        assert httpx2.get(f"{server.url}/health").status_code == 200
        process.terminate()
        assert server.wait() == 0


async def test_drain_has_a_time_limit() -> None:
    with running_server(HUTCH_DRAIN_SECONDS="0.5", HUTCH_CANCEL_GRACE_MS="800") as server:
        async with connect_execbox(server.execbox) as h:
            await h.send(execute("runs", "console.log('x'); for (;;);", timeoutMs=200_000))
            await h.started("runs")
            server.process.terminate()
            done = await h.end("runs")
            assert (done["error"]["code"], done["logs"]) == ("timeout", ["x"])
            assert await asyncio.to_thread(server.wait) == 1
            assert "hutch: stopped before everything had finished\n" in server.seen


async def test_killed_server_leaves_no_process_and_the_next_one_removes_its_files() -> None:
    with running_server() as server:
        async with connect_execbox(server.execbox) as h:
            await h.send(execute("runs", "for (;;);", timeoutMs=200_000))
            await h.started("runs")
            with Traces(server.process.pid) as traces:
                server.process.kill()
                assert await asyncio.to_thread(server.wait) == -signal.SIGKILL
                files = {str(path) for path in temporary_files(server.process.pid)}
                assert set(traces.remaining()) <= files
        with running_server():
            assert temporary_files(server.process.pid) == []


def test_port_in_use_is_reported_and_nothing_is_started(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = hutch("serve", "--port", str(port), env={"HUTCH_HOME": str(tmp_path / "home")})
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"hutch: Cannot listen on 127.0.0.1:{port}: Address already in use."
        " Choose another address with --host, or port with --port; --port 0 takes a free one.\n"
    )
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--port", "70000"], 2, "hutch: port: expected an integer from 0 to 65535, got 70000.\n"),
        (["--port", "http"], 2, "Invalid value for '--port': 'http' is not a valid integer.\n"),
        (
            ["--host", "no.such.host.invalid", "--port", "0"],
            1,
            "Cannot listen on no.such.host.invalid:0",
        ),
        (["--host", "203.0.113.7", "--port", "0"], 1, "Cannot listen on 203.0.113.7:0: Cannot assign"),
        (["--egress", "all"], 2, "hutch: egress: expected one of allowlist, none, public, got 'all'.\n"),
        (["--egress-allow", "a b"], 2, "hutch: egress_allow: 'a b': "),
        (["--egress-allow", "a:1", "--egress-allow", "a:0"], 2, "egress_allow: 'a:0': expected a port from"),
    ],
)
def test_invalid_option_is_rejected_with_what_was_expected(
    arguments: list[str], code: int, message: str
) -> None:
    done = hutch("serve", *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert message in done.stderr


REACH_MODULE = """export const reach = {
    execute: ({url}) => fetch(url).then((response) => response.text(), (error) => error.cause.message),
};"""


def test_tools_reach_only_what_the_flags_allow(npm: Registry) -> None:
    npm.publish("serve-reach", files={"index.js": REACH_MODULE})
    flags = (
        "--egress",
        "allowlist",
        "--egress-allow",
        f"127.0.0.1:{npm.port}",
        "--egress-allow",
        "a.invalid",
    )
    with running_server(*flags) as server:
        reached = [
            httpx2.post(
                f"{server.url}/execute-tool",
                json={"packageName": "serve-reach", "name": "reach", "params": {"url": url}},
                timeout=TIMEOUT_SECONDS,
            ).json()["output"]
            for url in (f"{npm.url}serve-reach", server.url)
        ]
    assert '"dist-tags"' in reached[0]
    assert "is not in the list of permitted hosts" in reached[1]


def test_missing_deno_is_reported_and_nothing_is_served() -> None:
    done = hutch("serve", "--port", "0", env={"HUTCH_DENO": "/no/deno"})
    assert (done.returncode, done.stdout) == (1, "")
    assert "HUTCH_DENO" in done.stderr


async def test_client_that_does_not_read_does_not_delay_the_drain() -> None:
    code = (
        "const big = 'x'.repeat(800_000); await Promise.all(Array.from({length: 64}, () => tools.ask(big)))"
    )
    with running_server(HUTCH_DRAIN_SECONDS="0.2") as server:
        async with connect_execbox(server.execbox) as h:
            await h.send(
                execute("runs", code, tools=("ask",), timeoutMs=200_000, memoryLimitBytes=500_000_000)
            )
            await h.started("runs")
            await h.call("runs")
            h.socket.transport.pause_reading()
            server.process.terminate()
            await asyncio.to_thread(server.logged, "draining")
            async with asyncio.timeout(5):
                assert await asyncio.to_thread(server.wait) == 1
            h.socket.transport.abort()


def test_unwritable_home_is_reported_and_the_server_still_runs(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with running_server(HUTCH_HOME=str(tmp_path / "file" / "home")) as server:
        assert "HUTCH_HOME" in server.logged("cannot be written")
        os.kill(server.process.pid, signal.SIGTERM)
        assert server.wait() == 0


def test_idle_connections_do_not_use_up_the_file_descriptors() -> None:
    """The server raises its soft limit to the hard limit, and uses half of the hard limit for connections."""
    command = ["bash", "-c", 'ulimit -Sn 64; ulimit -Hn 256; exec "$@"', "-", *HUTCH, "serve", "--port", "0"]
    env = {**os.environ, **NO_WARM_RUNNERS}
    pipe = subprocess.PIPE
    with (
        subprocess.Popen(command, env=env, stdout=pipe, stderr=pipe, text=True) as process,
        contextlib.ExitStack() as stack,
    ):
        stack.callback(stop_process, process)
        server = ServeProcess(process)
        limits = Path(f"/proc/{process.pid}/limits").read_text()
        assert re.search(r"Max open files +256 +256", limits)
        address = urlsplit(server.url)
        for _ in range(300):
            stack.enter_context(socket.create_connection((address.hostname, address.port), TIMEOUT_SECONDS))
        assert httpx2.get(f"{server.url}/health", timeout=5).status_code == 200
        assert len(list(Path(f"/proc/{process.pid}/fd").iterdir())) < 200
        process.terminate()
        server.wait()
    logged = [line for line in server.seen if "limit on connections" in line]
    assert len(logged) == 1
    assert "max_connections=128" in logged[0]
