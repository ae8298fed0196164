"""`hutch gateway` and `hutch tools`, as a shell sees them."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.mcp_servers import everything
from tests.processes import Traces, descendants, hutch, serving, until
from tests.toolscripts import Gateway, configure, gateway, stdio

from hutch.vault.tokens import Tokens


def servers() -> dict[str, Any]:
    return {"github": stdio("tracker"), "every": stdio("everything")}


@pytest.fixture(scope="module")
def running(environment: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with gateway("--config", configure(tmp_path_factory.mktemp("gateway"), servers())) as started:
        until(lambda: httpx2.get(f"{started.url}/ready").status_code == 200)
        yield started


@pytest.fixture
def env(running: Gateway, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    monkeypatch.setenv("TOOLSCRIPT_GATEWAY_URL", running.url)
    monkeypatch.chdir(tmp_path)
    return running.url


def test_it_says_where_it_is_and_what_to_try(running: Gateway) -> None:
    assert running.announced == (
        f"Hutch's gateway serves 2 MCP servers at {running.url}\n  Try:      curl {running.url}/status\n"
    )


def test_status_tells_of_every_server(env: str) -> None:
    done = hutch("gateway", "status")
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    assert lines[0].split(", ")[0].endswith("tools of 2 servers")
    assert [line.split()[:4] for line in lines if line.startswith("  github")] == [
        ["github", "connected", "2", "tools"]
    ]
    assert any("get_user" in line and "get-user" in line for line in lines)
    told = json.loads(hutch("gateway", "status", "--json").stdout)
    assert [each["name"] for each in told["servers"]] == ["github", "every"]


@pytest.mark.parametrize("command", [["gateway", "status"], ["tools", "list"]], ids=str)
@pytest.mark.parametrize("url", ["nonsense", "ftp://127.0.0.1", "http://"])
def test_what_is_no_address_of_a_gateway_is_told_as_such(
    command: list[str], url: str, tmp_path: Path
) -> None:
    done = hutch(*command, "-g", url, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    expected = f"{url!r} is no URL of a gateway: one looks like http://localhost:4111"
    assert done.stderr == f"hutch: --gateway-url: {expected}\n"


@pytest.mark.parametrize(
    ("variables", "url"),
    [
        ({}, "http://127.0.0.1:4111"),
        ({"HUTCH_PORT": "5000", "HUTCH_HOST": "0.0.0.0"}, "http://127.0.0.1:5000"),
        ({"HUTCH_HOST": "::1"}, "'http://[::1]:4111'"),
    ],
)
def test_env_is_for_a_shell(variables: dict[str, str], url: str, tmp_path: Path) -> None:
    done = hutch("gateway", "env", env=variables, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"export TOOLSCRIPT_GATEWAY_URL={url}\n")


def test_tools_are_listed_found_and_described(env: str) -> None:
    listed = hutch("tools", "list", "--filter", "github").stdout.splitlines()
    assert [line.split()[0] for line in listed] == ["github__create_issue", "github__get_issue"]
    assert listed[0].endswith("Creates an issue.")
    [found, *_] = hutch("tools", "search", "creat isue").stdout.splitlines()
    assert found.split()[1] == "github__create_issue"
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


def test_tools_as_json_are_what_the_gateway_has(env: str) -> None:
    listed = json.loads(hutch("tools", "list", "--json").stdout)
    assert listed == httpx2.get(f"{env}/tools").json()
    found = json.loads(hutch("tools", "search", "--json", "--limit", "1", "issue").stdout)
    assert [set(each) for each in found] == [{"tool", "score", "scoreBreakdown", "reason"}]


def test_tools_need_no_running_gateway(tmp_path: Path) -> None:
    config = configure(tmp_path, {"github": stdio("tracker")})
    done = hutch("tools", "list", env={"HUTCH_MCP_CONFIG": config}, cwd=tmp_path)
    assert [line.split()[0] for line in done.stdout.splitlines()] == [
        "github__create_issue",
        "github__get_issue",
    ]


def test_a_list_without_tools_says_why(env: str, tmp_path: Path) -> None:
    nobody = hutch("tools", "list", env={"TOOLSCRIPT_GATEWAY_URL": ""}, cwd=tmp_path)
    assert (nobody.returncode, nobody.stdout) == (0, "")
    assert nobody.stderr.startswith(
        "hutch: there are no MCP servers, and so no tools; write .toolscript.json"
    )
    other = hutch("tools", "list", "--json", "--filter", "gitlab", cwd=tmp_path)
    assert (other.returncode, other.stdout) == (0, "[]\n")
    assert other.stderr == "hutch: no tool is named by --filter gitlab; the servers are github, every\n"


def test_a_search_without_tools_says_why_and_advises_no_other_words(tmp_path: Path) -> None:
    nobody = hutch("tools", "search", "issue", cwd=tmp_path)
    assert (nobody.returncode, nobody.stdout) == (1, "")
    assert nobody.stderr == hutch("tools", "list", cwd=tmp_path).stderr
    config = configure(tmp_path, {"gone": {"command": str(tmp_path / "gone")}})
    broken = hutch("tools", "search", "issue", env={"HUTCH_MCP_CONFIG": config}, cwd=tmp_path)
    assert (broken.returncode, broken.stdout) == (1, "")
    assert "none of the servers has any tools: gone; a gateway's `hutch gateway status`" in broken.stderr
    assert "other words" not in broken.stderr


def test_a_second_gateway_on_a_port_is_refused_and_the_first_unharmed(env: str) -> None:
    port = env.rpartition(":")[2]
    done = hutch("gateway", "start", "--port", port)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"127.0.0.1:{port} cannot be listened on: Address already in use" in done.stderr
    assert "--port" in done.stderr
    assert httpx2.get(f"{env}/health").json()["status"] == "ok"


def test_a_broken_configuration_keeps_it_from_starting(tmp_path: Path) -> None:
    (tmp_path / "servers.json").write_text('{"mcpServers": {"a": {"command": 5}}}')
    done = hutch("gateway", "start", "--port", "0", "--config", "servers.json", cwd=tmp_path)
    assert (done.returncode in (1, 2), done.stdout) == (True, "")
    assert "servers.json" in done.stderr
    assert "mcpServers.a.command" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", [[], ["login"], ["logout"]], ids=str)
def test_login_to_an_unknown_server_names_those_that_there_are(command: list[str], tmp_path: Path) -> None:
    config = configure(tmp_path, {"github": stdio("tracker")})
    done = hutch("auth", *command, "gitlab", env={"HUTCH_MCP_CONFIG": config}, cwd=tmp_path)
    assert done.returncode == 2
    assert "there is no server 'gitlab' in the configuration; it has github" in done.stderr


def test_logout_forgets_what_a_login_gave_and_nothing_else(tmp_path: Path) -> None:
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


def test_no_server_outlives_one_that_is_killed(tmp_path: Path) -> None:
    server = {"command": sys.executable, "args": [everything.__file__]}
    with gateway("--config", configure(tmp_path, {"every": server})) as started:
        until(lambda: httpx2.get(f"{started.url}/ready").status_code == 200)
        assert httpx2.post(f"{started.url}/tools/every__spawn").status_code == 200
        assert len(descendants(started.process.pid)) >= 4
        with Traces(started.process.pid) as traces:
            os.kill(started.process.pid, signal.SIGKILL)
            started.process.wait(60)
            assert [each for each in traces.remaining() if each.isdecimal()] == []


def test_serve_has_the_gateway_and_a_health_that_is_both(tmp_path: Path) -> None:
    config = configure(tmp_path, {"github": stdio("tracker")})
    with serving(HUTCH_MCP_CONFIG=config) as server:
        assert "Gateway:" in server.announced
        until(lambda: httpx2.get(f"{server.url}/ready").status_code == 200)
        health = httpx2.get(f"{server.url}/health").json()
        assert {"status", "search", "isolation", "protocolVersion"} <= set(health)
        called = httpx2.post(f"{server.url}/tools/github__create_issue", json={"title": "x"})
        assert called.json() == {"number": 1, "title": "x"}
