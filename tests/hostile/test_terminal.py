"""Hostile text from a guest, package, server, file or another user does not control the terminal of
`hutch`.
"""

from __future__ import annotations

import ast
import json
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import click
import pytest
from tests.npm import registry
from tests.support.flows import flow, node
from tests.support.processes import hutch
from tests.support.terminals import HOSTILE, at_terminal, interpreted_characters

from hutch.cli.commands import hutch as root

CLI = Path(__file__).parents[2] / "src/hutch/cli"
SERVER = f"import sys; sys.stderr.write({HOSTILE!r} * 2); sys.exit(3)"
TOOL = f"""
const text = {json.dumps(HOSTILE)};
export const tool = {{
  description: text,
  inputSchema: {{ type: "object", properties: {{ [text]: {{ description: text, enum: [text] }} }} }},
  execute: async () => {{ throw new Error(text); }},
}};
"""
LOG = f"console.log({json.dumps(HOSTILE)});"
THROW = f"throw new Error({json.dumps(HOSTILE)})"
WRAPPER = f"export async function wrapper() {{ {LOG} {THROW} }}"


def leaf_commands(group: click.Group = root, path: tuple[str, ...] = ()) -> Iterator[str]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from leaf_commands(command, (*path, name))
        else:
            yield " ".join((*path, name))


# For each command, the arguments that make the command show hostile text. The tests replace GATEWAY by a URL
# and FOLDER by a path.
ARGUMENTS: dict[str, list[str]] = {
    "eval": [THROW],
    "runner": ["--engine", HOSTILE],
    "tool": ["hostile-package", "tool"],
    "packages list": [],
    "packages add": [HOSTILE],
    "packages remove": ["hostile-package@7.0.0"],
    "packages prune": ["--days", "1000"],
    "packages describe": ["hostile-package"],
    "exec": ["-f", f"{HOSTILE}.ts"],
    "gateway start": ["--host", HOSTILE],
    "runs list": ["--status", HOSTILE],
    "runs show": [HOSTILE],
    "runs tail": [HOSTILE, "--url", "GATEWAY"],
    "runs cancel": [HOSTILE, "--url", "GATEWAY"],
    "runs replay": [HOSTILE, "--url", "GATEWAY"],
    "runs export": ["--since", HOSTILE],
    "queue list": ["--url", "GATEWAY"],
    "queue retry": [HOSTILE, "--url", "GATEWAY"],
    "queue remove": [HOSTILE, "--url", "GATEWAY"],
    "webhooks list": ["--run", HOSTILE, "--url", "GATEWAY"],
    "webhooks send": [HOSTILE, "--url", "GATEWAY"],
    "webhooks secret": ["--url", "GATEWAY"],
    "script save": [HOSTILE, HOSTILE, "--url", "GATEWAY"],
    "script list": ["--url", "GATEWAY"],
    "script show": [HOSTILE, "--url", "GATEWAY"],
    "script remove": [HOSTILE, "--url", "GATEWAY"],
    "schedule add": [HOSTILE, HOSTILE, "--script", HOSTILE, "--url", "GATEWAY"],
    "schedule list": ["--url", "GATEWAY"],
    "schedule pause": [HOSTILE, "--url", "GATEWAY"],
    "schedule resume": [HOSTILE, "--url", "GATEWAY"],
    "schedule remove": [HOSTILE, "--url", "GATEWAY"],
    "trigger add": [HOSTILE, "--script", HOSTILE, "--url", "GATEWAY"],
    "trigger list": ["--url", "GATEWAY"],
    "trigger pause": [HOSTILE, "--url", "GATEWAY"],
    "trigger resume": [HOSTILE, "--url", "GATEWAY"],
    "trigger remove": [HOSTILE, "--url", "GATEWAY"],
    "gateway status": ["-g", "GATEWAY"],
    "gateway env": [],
    "tools list": ["-g", "GATEWAY"],
    "tools search": ["-g", "GATEWAY", HOSTILE],
    "tools types": ["-g", "GATEWAY"],
    "auth login": [HOSTILE],
    "auth logout": [HOSTILE],
    "mcp": ["--config", HOSTILE],
    "serve": ["--host", HOSTILE],
    "worker": ["--cluster", HOSTILE],
    "cluster status": ["--cluster", HOSTILE],
    "check": ["GATEWAY"],
    "doctor": [],
    "config": [],
    "console": [f"http://{HOSTILE}"],
    "trust": ["--yes"],
    "user add": [HOSTILE],
    "user list": [],
    "user show": [HOSTILE],
    "user quota": [HOSTILE],
    "user remove": [HOSTILE],
    "key add": ["bo", "--name", HOSTILE],
    "key list": [],
    "key show": [HOSTILE],
    "key quota": [HOSTILE],
    "key revoke": [HOSTILE],
    "key remove": [HOSTILE],
    "credential set": ["--user", "bo", HOSTILE],
    "credential list": ["--user", HOSTILE],
    "credential show": ["--user", "bo", HOSTILE],
    "credential remove": ["--user", "bo", HOSTILE],
    "credential import": ["--user", "bo", HOSTILE],
    "vault status": [],
    "vault rotate": [],
    "backup": [f"no/{HOSTILE}"],
    "restore": [f"no/{HOSTILE}"],
    "ability add": ["--user", "bo", "ability.json"],
    "ability list": ["--user", "bo"],
    "ability show": ["--user", "bo", "hostile_ability"],
    "ability run": ["--user", "bo", "hostile_ability"],
    "ability remove": ["--user", "bo", HOSTILE],
    "ability import": ["--curl", f"curl https://api.test/ -A {shlex.quote(HOSTILE)}"],
    "ability versions": ["--user", "bo", "hostile_ability"],
    "ability diff": ["--user", "bo", "hostile_ability", "1", "1"],
    "ability restore": ["--user", "bo", "hostile_ability", "1"],
    "ability share": ["--user", "bo", "hostile_ability", "--with", HOSTILE],
    "ability unshare": ["--user", "bo", "hostile_ability", "--with-group", HOSTILE],
    "group add": [HOSTILE],
    "group list": [],
    "group remove": [HOSTILE, "--yes"],
    "flow validate": ["invalid.json"],
    "flow show": ["flow.json"],
    "flow run": ["flow.json", "--run-id", "hostile-run"],
    "flow runs": [],
    "flow logs": ["hostile-run"],
    "flow resume": [HOSTILE],
    "flow retry": ["hostile-run", "--from", HOSTILE],
    "flow cancel": [HOSTILE],
    "flow approve": [HOSTILE, HOSTILE],
    "flow deny": [HOSTILE, HOSTILE],
    "flow list": [],
    "init": ["--runtime", HOSTILE],
    "runtime serve": [],
    "runtime check": [sys.executable, "-c", SERVER],
    "runtime cache clear": ["--engine", HOSTILE],
}


_TOOL = {"qualifiedName": f"a__{HOSTILE}", "toolId": HOSTILE, "description": HOSTILE}
_SERVER = {"name": HOSTILE, "state": HOSTILE, "tools": 0, "error": HOSTILE}
_COLLISION = {"became": {HOSTILE: HOSTILE}, "name": HOSTILE}
RESPONSES: dict[str, Any] = {
    "/tools": [_TOOL],
    "/servers": [_SERVER],
    "/search": [{"score": 1, "tool": _TOOL, "reason": HOSTILE}],
    "/status": {"tools": 1, "servers": [_SERVER], "collisions": [_COLLISION], "revision": HOSTILE},
}


class HostileGateway(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = RESPONSES.get(self.path.partition("?")[0])
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; charset=utf-8" if body is None else "application/json")
        self.end_headers()
        self.wfile.write(HOSTILE.encode() if body is None else json.dumps(body).encode())

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def gateway() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), HostileGateway) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Environment whose home has a user, an ability and a package with hostile texts."""
    home = tmp_path_factory.mktemp("home")
    with registry.run_registry() as npm:
        npm.publish(
            "hostile-package",
            files={"index.js": TOOL},
            type="module",
            main="index.js",
            description=HOSTILE,
            tpmjs={"tools": [{"name": "tool"}, {"name": HOSTILE}]},
        )
        env = {"HUTCH_HOME": str(home), "HOME": str(home), "NPM_CONFIG_REGISTRY": npm.url}
        assert hutch("user", "add", "bo", env=env).returncode == 0
        yield env


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout whose name and files contain hostile text."""
    folder = tmp_path_factory.mktemp("checkout") / HOSTILE
    folder.mkdir()
    servers = {"one": {"command": HOSTILE, "args": [HOSTILE], "env": {HOSTILE: HOSTILE}, HOSTILE: 1}}
    (folder / ".toolscript.json").write_text(json.dumps({"mcpServers": servers}))
    (folder / "hutch.toml").write_text("timeout_ms = 5000\n")
    ability = {
        "ability_id": "hostile_ability",
        "ability_name": "\x1b]0;owned\x07",
        "service_name": "api.example.com",
        "description": HOSTILE,
        "wrapper_code": WRAPPER,
    }
    (folder / "ability.json").write_text(json.dumps(ability))
    (folder / "invalid.json").write_text(json.dumps({**flow([node("a", HOSTILE)]), "version": HOSTILE}))
    (folder / "flow.json").write_text(json.dumps(flow([node(f"a{HOSTILE}", "code.run", code=LOG + THROW)])))
    return folder


def test_every_command_is_tested_here() -> None:
    assert set(ARGUMENTS) == set(leaf_commands())


@pytest.mark.parametrize("command", ARGUMENTS)
def test_command_prints_nothing_that_a_terminal_interprets(
    command: str, environ: dict[str, str], folder: Path, gateway: str
) -> None:
    arguments = [gateway if argument == "GATEWAY" else argument for argument in ARGUMENTS[command]]
    done = hutch(*command.split(), *arguments, env=environ, cwd=folder)
    shown = done.stdout + done.stderr
    assert interpreted_characters(shown) == [], shown
    assert "Traceback" not in shown
    if HOSTILE in "".join(arguments):
        assert done.returncode != 0 or "owned" in shown


@pytest.mark.parametrize(
    "command", ["tools list", "tools types", "gateway status", "ability show", "packages describe"]
)
def test_hostile_text_is_shown_with_its_control_characters_escaped(
    command: str, environ: dict[str, str], folder: Path, gateway: str
) -> None:
    hutch("ability", "add", "--user", "bo", "ability.json", env=environ, cwd=folder)
    arguments = [gateway if argument == "GATEWAY" else argument for argument in ARGUMENTS[command]]
    done = hutch(*command.split(), *arguments, env=environ, cwd=folder)
    assert "\\u001b]0;owned\\u0007\\u001b[2Ja\\u202eb\\u2066c\\u009b31md\\u2028e" in done.stdout


def test_stderr_of_an_mcp_server_cannot_control_the_terminal(environ: dict[str, str], tmp_path: Path) -> None:
    servers = tmp_path / "servers.json"
    servers.write_text(
        json.dumps({"mcpServers": {"one": {"command": sys.executable, "args": ["-c", SERVER]}}})
    )
    env = {**environ, "HUTCH_MCP_CONFIG": str(servers)}
    code = "import { tools } from 'toolscript'; return await (tools as any).one.x()"
    for command in (["tools", "list"], ["exec", "--no-check", code], ["auth", "login", "one"]):
        done = hutch(*command, env=env, cwd=tmp_path)
        assert interpreted_characters(done.stdout + done.stderr) == []


def test_script_cannot_overwrite_the_terminal(environ: dict[str, str], tmp_path: Path) -> None:
    code = f"console.log({json.dumps(HOSTILE)}); console.error('\\x1b[1A' + 'é'.repeat(5))"
    _, shown = at_terminal("exec", "--no-check", code, cwd=tmp_path, **environ)
    assert "\\u001b]0;owned" in shown
    assert "\\u001b[1Aééééé\n" in shown
    assert interpreted_characters(shown) == []
    piped = hutch("exec", "--no-check", code, env=environ, cwd=tmp_path)
    assert piped.stdout == f"{HOSTILE}\n", "without a terminal, output is passed on byte for byte"


def test_text_of_clients_cannot_forge_log_lines() -> None:
    forged = f"bad {HOSTILE}\n2031-01-01 [error] forged"
    code = f"""
import logging
from hutch import logs
from hutch.settings import Settings

logs.configure(Settings())
logger = logging.getLogger("hutch")
logger.warning("dropped: %s", {forged!r}, extra={{"fields": {{"a": {forged!r}}}}})
try:
    raise ValueError({HOSTILE!r})
except ValueError:
    logger.exception("failed")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert interpreted_characters(done.stderr) == []
    assert not any(line.startswith("2031-01-01") for line in done.stderr.splitlines())


# --- all output of the command line goes through few functions ---

# The modules that may write to the terminal, because they escape control characters.
WRITERS = {"support/console.py", "support/prompts.py", "flow/view.py"}
# Attributes of sys.stdout and sys.stderr that print nothing.
HARMLESS = {"flush", "isatty", "encoding", "fileno"}
FORBIDDEN = {
    "print",
    "sys.stdout",
    "sys.stderr",
    "os.write",
    "click.echo",
    "click.secho",
    "click.confirm",
    "click.prompt",
}


def output_of(path: Path) -> list[str]:
    """Returns the expressions in a module that could write to the terminal."""
    tree = ast.parse(path.read_text())
    harmless = {
        id(parent.value)
        for parent in ast.walk(tree)
        if isinstance(parent, ast.Attribute) and parent.attr in HARMLESS
    }
    return [
        ast.unparse(item)
        for item in ast.walk(tree)
        if isinstance(item, ast.Attribute | ast.Name)
        and id(item) not in harmless
        and ast.unparse(item) in FORBIDDEN
    ]


def test_only_few_modules_of_the_command_line_write_to_the_terminal() -> None:
    modules = {str(path.relative_to(CLI)): path for path in CLI.rglob("*.py")}
    assert modules.keys() >= WRITERS
    found = {name: output for name, path in modules.items() if (output := output_of(path))}
    # Three other modules use a stream, but safely: flow/live.py passes it to the view of a flow, the log
    # handler in main_loop.py writes with PrintableFormatter, and serve.py writes a constant.
    passed_on = {
        "flow/live.py": ["sys.stderr"] * 3,
        "runtime/main_loop.py": ["sys.stderr"],
        "runtime/serve.py": ["os.write"],
    }
    assert {name: output for name, output in found.items() if name not in WRITERS} == passed_on


def test_forbidden_output_is_found(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        "import sys\nprint(1)\nclick.echo(2)\nsys.stdout.write('3')\nf(sys.stderr)\nsys.stdout.flush()\n"
    )
    assert sorted(output_of(module)) == ["click.echo", "print", "sys.stderr", "sys.stdout"]
