"""Tests of `hutch gateway`, `hutch tools` and `hutch auth` as processes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.support.mcp_servers import everything
from tests.support.processes import TIMEOUT_SECONDS, Traces, descendants, hutch, running_server, wait_until
from tests.support.toolscripts import GatewayProcess, configure, gateway, stdio

from hutch.vault.tokens import Tokens


def servers() -> dict[str, Any]:
    return {"github": stdio("tracker"), "every": stdio("everything")}


@pytest.fixture(scope="module")
def running(environment: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with gateway("--config", configure(tmp_path_factory.mktemp("gateway"), servers())) as started:
        wait_until(lambda: httpx2.get(f"{started.url}/ready").status_code == 200)
        yield started


@pytest.fixture
def env(running: GatewayProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    monkeypatch.setenv("TOOLSCRIPT_GATEWAY_URL", running.url)
    monkeypatch.chdir(tmp_path)
    return running.url


def test_gateway_announces_its_address_and_an_example(running: GatewayProcess) -> None:
    assert running.announced == (
        f"Hutch gateway: 2 MCP servers at {running.url}\n  Try:      curl {running.url}/status\n"
    )


def test_health_says_that_search_is_ready_without_a_search(tmp_path: Path) -> None:
    with gateway("--config", configure(tmp_path, {"github": stdio("tracker")})) as started:
        wait_until(lambda: httpx2.get(f"{started.url}/health").json()["search"]["ready"])


def test_status_shows_every_server(env: str) -> None:
    done = hutch("gateway", "status")
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    assert lines[0].split(", ")[0].endswith("tools of 2 servers")
    assert [line.split()[:4] for line in lines if line.startswith("  github")] == [
        ["github", "connected", "2", "tools"]
    ]
    assert any("get_user" in line and "get-user" in line for line in lines)
    status = json.loads(hutch("gateway", "status", "--json").stdout)
    assert [each["name"] for each in status["servers"]] == ["github", "every"]


def test_texts_of_servers_cannot_control_the_terminal(tmp_path: Path) -> None:
    """Also checks error messages, because a gateway may have sent their text."""
    hostile = "\x1b]0;owned\x07 \u202etxt \x9b2J"
    shown = "\\u001b]0;owned\\u0007 \\u202etxt \\u009b2J"
    server = {"name": "a", "state": "failed", "tools": 0, "error": hostile}
    tool = {"qualifiedName": "a__b", "description": hostile}
    bodies: dict[str, Any] = {
        "/tools": [tool],
        "/servers": [],
        "/search": [{"score": 1, "tool": tool, "reason": hostile}],
        "/status": {"tools": 1, "servers": [server], "collisions": [], "revision": hostile},
    }

    class Gateway(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = bodies.get(self.path.partition("?")[0])
            self.send_response(500 if body is None else 200)
            self.end_headers()
            self.wfile.write(hostile.encode() if body is None else json.dumps(body).encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Gateway) as fake:
        threading.Thread(target=fake.serve_forever, daemon=True).start()
        for command in (
            ["tools", "list"],
            ["tools", "search", "x"],
            ["gateway", "status"],
            ["tools", "types"],
        ):
            done = hutch(*command, "-g", f"http://127.0.0.1:{fake.server_port}", cwd=tmp_path)
            assert shown in done.stdout + done.stderr, command
            assert "\x1b" not in done.stdout + done.stderr
        fake.shutdown()


@contextlib.contextmanager
def foreign_gateway(bodies: dict[str, bytes]) -> Iterator[str]:
    """A gateway that answers the paths in `bodies`, and all other paths with 404, as the public
    implementation does.
    """

    class Gateway(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = bodies.get(self.path) or bodies.get(self.path.partition("?")[0])
            self.send_response(404 if body is None else 200)
            self.end_headers()
            self.wfile.write(body or b"404 Not Found")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Gateway) as fake:
        threading.Thread(target=fake.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{fake.server_port}"
        fake.shutdown()


def test_gateway_of_the_public_implementation_is_understood(tmp_path: Path) -> None:
    named = {"serverName": "github", "toolName": "create_issue", "description": "Creates an issue."}
    scores = {"semantic": 0, "fuzzy": 0.9, "combined": 0.9}
    found = [{"tool": {**named, "toolId": "github__create_issue"}, "score": 0.9, "scoreBreakdown": scores}]
    types = b"export const tools = {} as const;"
    bodies = {
        "/tools": json.dumps([{**named, "qualifiedName": "github__create_issue"}]).encode(),
        "/servers": b'[{"name": "github"}]',
        "/search": json.dumps(found).encode(),
        "/runtime/tools.ts?filter=github&compact=true": types,
        "/runtime/tools.ts": b"not these",
    }
    with foreign_gateway(bodies) as url:
        done = hutch("tools", "search", "issue", "-g", url, cwd=tmp_path)
        assert done.returncode == 0
        assert done.stdout.split(maxsplit=1) == ["github__create_issue", "Creates an issue.\n"]
        done = hutch("tools", "search", "issue", "-g", url, "--json", cwd=tmp_path)
        assert json.loads(done.stdout) == found
        done = hutch("tools", "types", "--filter", "github", "-g", url, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (0, f"{types.decode()}\n")
        done = hutch("tools", "list", "-g", url, cwd=tmp_path)
        assert done.stdout.split(maxsplit=1) == ["github__create_issue", "Creates an issue.\n"]


@pytest.mark.parametrize(
    "command", [["tools", "list"], ["tools", "search", "x"], ["gateway", "status"]], ids=str
)
def test_unexpected_answer_is_reported(command: list[str], tmp_path: Path) -> None:
    other = dict.fromkeys(("/tools", "/search", "/status"), b'{"tools": "many"}')
    with foreign_gateway(other) as url:
        done = hutch(*command, "-g", url, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.match(r"hutch: The gateway's answer to /\w+ is not a valid answer of a gateway: ", done.stderr)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", [["gateway", "status"], ["tools", "list"]], ids=str)
@pytest.mark.parametrize("url", ["not-a-url", "ftp://127.0.0.1", "http://"])
def test_invalid_gateway_url_is_rejected(command: list[str], url: str, tmp_path: Path) -> None:
    done = hutch(*command, "-g", url, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    expected = f"{url!r} is not a gateway URL; expected something like http://localhost:4111"
    assert done.stderr == f"hutch: --gateway-url: {expected}\n"


@pytest.mark.parametrize(
    ("variables", "url"),
    [
        ({}, "http://127.0.0.1:4111"),
        ({"HUTCH_PORT": "5000", "HUTCH_HOST": "0.0.0.0"}, "http://127.0.0.1:5000"),
        ({"HUTCH_HOST": "::1"}, "'http://[::1]:4111'"),
    ],
)
def test_env_prints_an_export_for_a_shell(variables: dict[str, str], url: str, tmp_path: Path) -> None:
    done = hutch("gateway", "env", env=variables, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"export TOOLSCRIPT_GATEWAY_URL={url}\n")


def test_tools_are_listed_found_and_described(env: str) -> None:
    listed = hutch("tools", "list", "--filter", "github").stdout.splitlines()
    assert [line.split()[0] for line in listed] == ["tools.github.createIssue", "tools.github.getIssue"]
    assert listed[0].endswith("Creates an issue.")
    assert hutch("tools", "list", "--filter", "tools.github.getIssue").stdout.splitlines() == listed[1:]
    [found, *_] = hutch("tools", "search", "creat isue").stdout.splitlines()
    assert found == listed[0]
    scored, reason, *_ = hutch("tools", "search", "--scores", "creat isue").stdout.splitlines()
    assert float(scored.split()[0]) > 0
    assert "in its name" in reason
    nothing = hutch("tools", "search", "qqqqqqqq")
    assert (nothing.returncode, nothing.stdout) == (1, "")
    assert nothing.stderr == "hutch: nothing found; try other words\n"
    full = hutch("tools", "types", "--filter", "github__get_issue").stdout
    assert "getIssue(" in full
    assert "/** Reads an issue." in full
    assert "createIssue" not in full
    compact = hutch("tools", "types", "--compact").stdout
    [line] = [line for line in compact.splitlines() if "getIssue(" in line]
    assert line.strip().endswith("// Reads an issue.")


def test_json_of_tools_is_the_gateways_json(env: str) -> None:
    listed = json.loads(hutch("tools", "list", "--json").stdout)
    assert listed == httpx2.get(f"{env}/tools").json()
    found = json.loads(hutch("tools", "search", "--json", "--limit", "1", "issue").stdout)
    assert [set(each) for each in found] == [{"tool", "score", "scoreBreakdown", "reason"}]


def test_tools_need_no_running_gateway(tmp_path: Path) -> None:
    config = configure(tmp_path, {"github": stdio("tracker")})
    done = hutch("tools", "list", env={"HUTCH_MCP_CONFIG": config}, cwd=tmp_path)
    assert [line.split()[0] for line in done.stdout.splitlines()] == [
        "tools.github.createIssue",
        "tools.github.getIssue",
    ]


def test_empty_list_is_explained(env: str, tmp_path: Path) -> None:
    unconfigured = hutch("tools", "list", env={"TOOLSCRIPT_GATEWAY_URL": ""}, cwd=tmp_path)
    assert (unconfigured.returncode, unconfigured.stdout) == (0, "")
    assert unconfigured.stderr.startswith("hutch: no MCP servers are configured; write .toolscript.json")
    other = hutch("tools", "list", "--json", "--filter", "gitlab", cwd=tmp_path)
    assert (other.returncode, other.stdout) == (0, "[]\n")
    assert other.stderr == "hutch: --filter gitlab matches no tool; the servers are github, every\n"


def test_search_without_tools_is_explained(tmp_path: Path) -> None:
    unconfigured = hutch("tools", "search", "issue", cwd=tmp_path)
    assert (unconfigured.returncode, unconfigured.stdout) == (1, "")
    assert unconfigured.stderr == hutch("tools", "list", cwd=tmp_path).stderr
    config = configure(tmp_path, {"gone": {"command": str(tmp_path / "gone")}})
    broken = hutch("tools", "search", "issue", env={"HUTCH_MCP_CONFIG": config}, cwd=tmp_path)
    assert (broken.returncode, broken.stdout) == (1, "")
    # Without a running gateway, the command starts the MCP servers. The message does not refer to a gateway,
    # and an earlier line contains the reason of the failure.
    assert broken.stderr.endswith("that can be run\nhutch: none of the servers has any tools: gone\n")
    assert "other words" not in broken.stderr


def test_second_gateway_on_a_port_is_rejected_and_the_first_keeps_running(env: str) -> None:
    port = env.rpartition(":")[2]
    done = hutch("gateway", "start", "--port", port)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"Cannot listen on 127.0.0.1:{port}: Address already in use" in done.stderr
    assert "--port" in done.stderr
    assert httpx2.get(f"{env}/health").json()["status"] == "ok"


def test_invalid_configuration_prevents_the_start(tmp_path: Path) -> None:
    (tmp_path / "servers.json").write_text('{"mcpServers": {"a": {"command": 5}}}')
    done = hutch("gateway", "start", "--port", "0", "--config", "servers.json", cwd=tmp_path)
    assert (done.returncode in (1, 2), done.stdout) == (True, "")
    assert "servers.json" in done.stderr
    assert "mcpServers.a.command" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", [[], ["login"], ["logout"]], ids=str)
def test_login_to_an_unknown_server_lists_the_known_ones(command: list[str], tmp_path: Path) -> None:
    config = configure(tmp_path, {"github": stdio("tracker")})
    done = hutch("auth", *command, "gitlab", env={"HUTCH_MCP_CONFIG": config}, cwd=tmp_path)
    assert done.returncode == 2
    assert "there is no server 'gitlab' in the configuration; it lists github" in done.stderr


def test_logout_removes_only_the_tokens_of_that_server(tmp_path: Path) -> None:
    urls = {name: f"http://127.0.0.1:9/{name}" for name in ("one", "two")}
    config = configure(tmp_path, {name: {"url": url} for name, url in urls.items()})
    env = {"HUTCH_MCP_CONFIG": config, "HUTCH_HOME": str(tmp_path)}
    tokens = Tokens.at(tmp_path, {})
    for name, url in urls.items():
        tokens.put(b"{}", "oauth", name, url)
    done = hutch("auth", "logout", "one", env=env, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "hutch: logged out of one\n")
    assert [tokens.get("oauth", name, url) for name, url in urls.items()] == [None, b"{}"]
    done = hutch("auth", "logout", "one", env=env, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "hutch: there was no login to one\n")


def test_killed_gateway_leaves_no_server(tmp_path: Path) -> None:
    server = {"command": sys.executable, "args": [everything.__file__]}
    with gateway("--config", configure(tmp_path, {"every": server})) as started:
        wait_until(lambda: httpx2.get(f"{started.url}/ready").status_code == 200)
        called = httpx2.post(f"{started.url}/tools/every__spawn", timeout=TIMEOUT_SECONDS)
        assert called.status_code == 200
        assert len(descendants(started.process.pid)) >= 4
        with Traces(started.process.pid) as traces:
            os.kill(started.process.pid, signal.SIGKILL)
            started.process.wait(60)
            assert [each for each in traces.remaining() if each.isdecimal()] == []


def test_serve_includes_the_gateway_and_a_combined_health(tmp_path: Path) -> None:
    config = configure(tmp_path, {"github": stdio("tracker")})
    with running_server(HUTCH_MCP_CONFIG=config) as server:
        assert "Gateway:" in server.announced
        wait_until(lambda: httpx2.get(f"{server.url}/ready").status_code == 200)
        health = httpx2.get(f"{server.url}/health").json()
        assert {"status", "search", "isolation", "protocolVersion"} <= set(health)
        called = httpx2.post(f"{server.url}/tools/github__create_issue", json={"title": "x"})
        assert called.json() == {"number": 1, "title": "x"}
