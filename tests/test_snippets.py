"""Runs the commands and the code of README.md and docs/ as a reader would.

For a command that is not run, this file must contain the reason. All `hutch` commands are at least parsed.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import click
import httpx2
import msgspec
import pytest
import yaml
from tests.npm.registry import Registry, run_registry
from tests.support.forked import forked_hutch
from tests.support.processes import ServeProcess, running_server

import hutch
from hutch.cli.commands import hutch as hutch_command
from hutch.settings import Settings

ROOT = Path(__file__).parent.parent
PROGRAMS = Path(sys.executable).parent
TIMEOUT_SECONDS = 120

# Commands that begin with one of these texts are not run. The value gives the reason.
NOT_RUN = {
    "make ": "builds or tests all of this project; it is how this test was started",
    ". .venv/bin/activate": "the test has `hutch` on its PATH",
    "pip install": "tests/deploy/test_packaging.py and `make wheel-check` install the package",
    "hutch serve": "does not end; the other commands use a server that the test starts",
    "hutch worker": "does not end; tests/cluster/test_scaling_page.py follows the page about it",
    "hutch cluster": "needs a cluster; tests/cluster/test_scaling_page.py has one",
    "nats-server": "does not end",
    "hutch exec -f": "needs MCP servers from npm",
    "hutch tools ": "needs MCP servers from npm",
    "hutch gateway start": "needs MCP servers from npm",
    'eval "$(hutch gateway env)"': "needs the gateway of the line before",
    "hutch trust": "asks a person",
    "hutch credential set --user bo api.example.com::Authorization #": "asks a person",
    "hutch credential import": "needs a file of another program; tests/cli/vault imports one",
    "hutch tool --watch": "does not end",
    "npm pack": "needs Node",
    "apt install": "changes the machine",
    "useradd": "changes the machine",
    "python3 -m venv /opt/hutch": "changes the machine",
    "install ": "changes the machine",
    "python3 -c 'import secrets": "writes to /etc",
    "cp examples/deploy": "changes the machine",
    "systemctl": "changes the machine",
    "docker": "needs Docker",
    "curl https://hutch.example.com": "needs a public host name",
    "hutch check": "a whole suite of tests, which tests/conformance runs",
    "tm ": "another project's program, which tests/interop runs",
    "hutch flow run --manifest": "needs files of another project, which tests/interop has",
}
# An argument in capitals stands for a value that the reader chooses, and brackets for an optional argument.
PLACEHOLDER = re.compile(r"(?<![$\w])[A-Z]{2,}(_[A-Z]+)?(?![\w=])|\[--")
# Commands without effects. Each is run only on the first page that contains it.
ONCE = {"hutch doctor"}

TEMPLATES = """
export const templateRenderTool = {
  description: "Renders a template",
  inputSchema: { type: "object", properties: {} },
  execute: ({ template, data }) => ({
    rendered: template.replace("{{name}}", data.name), variablesUsed: ["name"], unusedVariables: [],
  }),
};"""
MY_TOOL = """
export const greet = {
  description: "Greets a person",
  inputSchema: { type: "object", properties: { name: { type: "string" } } },
  execute: async ({ name }) => ({ text: `Hello ${name}!` }),
};"""
SHOP = {
    "openapi": "3.1.0",
    "info": {"title": "Shop", "version": "1"},
    "servers": [{"url": "https://api.shop.example"}],
    "paths": {"/orders": {"get": {"operationId": "listOrders", "responses": {"200": {"description": "OK"}}}}},
}
# For each page, the files that the page tells the reader to create.
FILES: dict[str, dict[str, str]] = {
    "docs/abilities.md": {
        "examples/abilities/value": "session=0123456789abcdef",
        "examples/abilities/shop.yaml": json.dumps(SHOP),
    },
    "docs/operations.md": {"value": "Bearer 0123456789abcdef"},
    "docs/tpmjs.md": {
        "my-tool/package.json": json.dumps(
            {"name": "my-tool", "version": "1.0.0", "type": "module", "exports": "./index.js"}
        ),
        "my-tool/index.js": MY_TOOL,
    },
}
# Exit codes other than 0 that a page mentions. The key is the beginning of the command.
EXIT_CODES = {"hutch tool ./my-tool  ": 2}
# For each page, commands that create data which the page expects.
BEFORE = {"docs/how-to/rotate-keys.md": "hutch user add bo; hutch key add bo > old"}


class Snippet(NamedTuple):
    page: str
    line: int
    language: str
    text: str


def snippets(*languages: str) -> list[Snippet]:
    found = []
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = path.read_text()
        for block in re.finditer(r"^( *)```(\w*)\n(.*?)^ *```$", text, re.M | re.S):
            code = "".join(line.removeprefix(block[1]) for line in block[3].splitlines(keepends=True))
            line = text[: block.start()].count("\n") + 1
            found.append(Snippet(path.relative_to(ROOT).as_posix(), line, block[2], code))
    return [each for each in found if each.language in languages]


def commands(snippet: Snippet) -> Iterator[str]:
    """Yields the commands of a block. In a block with prompts, only the lines with a prompt are commands."""
    lines = snippet.text.splitlines()
    if any(line.startswith("$ ") for line in lines):
        lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    elif not snippet.language:
        return
    command = ""
    for line in lines:
        command = f"{command}\n{line}" if command else line
        try:
            words = shlex.split(command, comments=True)
        except ValueError:
            continue
        if not command.endswith("\\"):
            if words:
                yield command
            command = ""


# Pages whose commands are parsed but not run. docs/cli.md lists all commands, and other pages have examples
# of them that can be run. tests/cluster/test_scaling_page.py runs docs/scaling.md.
ONLY_PARSED = {"docs/cli.md", "docs/scaling.md"}


def shell_commands() -> dict[str, list[str]]:
    """Returns all commands by page."""
    found: dict[str, list[str]] = {}
    for snippet in snippets("sh", ""):
        found.setdefault(snippet.page, []).extend(commands(snippet))
    return {page: each for page, each in found.items() if each}


def normalised(command: str) -> str:
    """Removes variables before a command, and spaces before a comment."""
    return re.sub(r"\s+#", " #", re.sub(r"^([A-Z_]+=\S+ )+", "", command))


def reason_not_to_run(command: str) -> str | None:
    text = normalised(command)
    for beginning, reason in NOT_RUN.items():
        if text.startswith(beginning):
            return reason
    code = re.sub(r"'[^']*'|\"[^\"]*\"", "", command.partition(" #")[0])
    return "has placeholders" if PLACEHOLDER.search(code) else None


def runnable_commands() -> dict[str, list[str]]:
    seen: set[str] = set()
    found = {}
    for page, listed in shell_commands().items():
        chosen = []
        for command in listed:
            code = command.partition(" #")[0].strip()
            if page in ONLY_PARSED or reason_not_to_run(command) is not None:
                continue
            if not (code in ONCE and code in seen):
                chosen.append(command)
                seen.add(code)
        if chosen:
            found[page] = chosen
    return found


# --- commands ---


def test_every_hutch_command_has_valid_arguments() -> None:
    count = 0
    for page, listed in shell_commands().items():
        for command in listed:
            name, words = arguments(command)
            # Brackets stand for optional arguments.
            if name != "hutch" or "[--" in command:
                continue
            found: click.Command = hutch_command
            try:
                while isinstance(found, click.Group):
                    found = found.commands[words.pop(0)]
                with found.make_context(found.name, words):
                    count += 1
            except (KeyError, click.UsageError) as error:
                pytest.fail(f"{page}: {command}: {error}")
    assert count > 60


def arguments(command: str) -> tuple[str, list[str]]:
    """Returns the first program of a shell command, and the program's arguments."""
    lexer = shlex.shlex(command.replace("\\\n", " "), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words = [*lexer]
    if re.match(r"[A-Z_]+=", words[0]):
        del words[0]
    end = next((i for i, word in enumerate(words) if re.fullmatch(r"[();<>|&]+", word)), len(words))
    return words[0], words[1:end]


def test_every_reason_is_needed() -> None:
    every = [normalised(command) for listed in shell_commands().values() for command in listed]
    unused = [start for start in NOT_RUN if not any(command.startswith(start) for command in every)]
    assert unused == []


class Reader(NamedTuple):
    """The machine of a reader: a server, a registry, and an API that the examples use."""

    server: ServeProcess
    api_port: int
    environ: dict[str, str]


@pytest.fixture(scope="module")
def npm() -> Iterator[Registry]:
    with run_registry() as registry:
        registry.publish("@tpmjs/tools-template-render", "0.1.0", {"index.js": TEMPLATES})
        registry.publish("bash-tool", "1.3.19")
        yield registry


@pytest.fixture(scope="module")
def reader(npm: Registry, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environ = {
        "HUTCH_HOME": str(tmp_path_factory.mktemp("home")),
        "NPM_CONFIG_REGISTRY": npm.url,
        "HUTCH_RECORD": "full",
    }
    with running_server(**environ, HUTCH_EGRESS_ALLOW=f"127.0.0.1:{port}") as server:
        programs = forked_hutch(tmp_path_factory.mktemp("bin"))
        environ["HUTCH_PORT"] = server.url.rpartition(":")[2]
        environ["PATH"] = f"{programs}:{PROGRAMS}:{os.environ['PATH']}"
        yield Reader(server, port, environ)


@pytest.mark.parametrize("page", [*runnable_commands()])
def test_commands_of_the_page_succeed(page: str, reader: Reader, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    for file in (tmp_path / "examples/abilities").iterdir():
        file.write_text(file.read_text().replace("8099", str(reader.api_port)))
    for name, content in FILES.get(page, {}).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    run = httpx2.post(f"{reader.server.url}/run", json={"code": "return 1"}, timeout=TIMEOUT_SECONDS)
    environ = {
        **os.environ,
        **reader.environ,
        "ID": run.json()["run_id"],
    }
    if page == "docs/how-to/step-kinds.md":
        install_step_kind(page, tmp_path)
        # Use the real `hutch`, because a forked process would not find the installed package.
        environ |= {"PYTHONPATH": str(tmp_path / "packages"), "PATH": f"{PROGRAMS}:{os.environ['PATH']}"}
    lines = [
        BEFORE.get(page, ""),
        *(adapt(command, reader, tmp_path) for command in runnable_commands()[page]),
    ]
    script = "set -e -o pipefail\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n" + "\n".join(lines)
    try:
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=tmp_path,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    finally:
        for user in ("bo", "ann"):
            if f"user add {user}" in script:
                subprocess.run(
                    ["hutch", "user", "remove", user], env=environ, capture_output=True, check=True
                )
    assert done.returncode == 0, f"{script}\n\n{done.stdout}\n{done.stderr}"
    for expected in expected_output(page):
        assert re.search(expected, done.stdout), f"{expected}\n\n{done.stdout}"


def adapt(command: str, reader: Reader, folder: Path) -> str:
    """Replaces the address of the server, and other values that each reader has to replace."""
    address = reader.server.url.removeprefix("http://")
    command = re.sub(r"(localhost|127\.0\.0\.1):4111", address, command).replace("8099", str(reader.api_port))
    command = command.replace("curl ", "curl --silent --show-error --fail-with-body --noproxy '*' ")
    command = command.replace("/new/home", str(folder / "new-home"))
    command = command.replace(
        "key_1a2b3c4d5e6f", "$(hutch key list --json | grep -o 'key_[0-9a-f]*' | head -1)"
    )
    for beginning, code in EXIT_CODES.items():
        if command.startswith(beginning):
            command = f"{command.partition(' #')[0]} || [ $? = {code} ]"
    if re.search(r"&(\s*#.*)?$", command):
        listens = f"until (: < /dev/tcp/127.0.0.1/{reader.api_port}) 2>/dev/null; do sleep 0.05; done"
        command = f"{command}\n{listens}"
    return command


def expected_output(page: str) -> list[str]:
    """Returns patterns for the output that the page shows below its commands. In the page, `…` stands for any
    text.
    """
    found = []
    for snippet in snippets("sh"):
        if snippet.page == page and all(reason_not_to_run(command) is None for command in commands(snippet)):
            lines = re.findall(r"^# ([\[{\"].*)$", snippet.text, re.M)
            found += [re.escape(line).replace("…", ".*") for line in lines if line not in "{}"]
    return found


def install_step_kind(page: str, folder: Path) -> None:
    """Installs the package that the page describes, as pip would."""
    [code] = [each.text for each in snippets("python") if each.page == page]
    [project] = [each.text for each in snippets("toml") if each.page == page]
    [flow] = [each.text for each in snippets("yaml") if each.page == page]
    packages = folder / "packages"
    info = packages / "my_kinds-1.0.dist-info"
    info.mkdir(parents=True)
    (packages / "my_kinds.py").write_text(code)
    entries = tomllib.loads(project)["project"]["entry-points"]["hutch.step_kinds"]
    points = "\n".join(f"{name} = {target}" for name, target in entries.items())
    (info / "entry_points.txt").write_text(f"[hutch.step_kinds]\n{points}\n")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-kinds\nVersion: 1.0\n")
    (folder / "sum.yaml").write_text(flow)


# --- code and data ---


class Catalogue:
    async def search(self, query: str, timeout: float, trace: str) -> list[str]:
        assert timeout > 0
        return [query]


@pytest.mark.parametrize(
    "snippet",
    [each for each in snippets("python") if "step-kinds" not in each.page],
    ids=lambda each: f"{each.page}:{each.line}",
)
async def test_python_code_runs(snippet: Snippet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if re.search(r"run_sync|asyncio\.run|execv", snippet.text):
        # The snippet is a whole program, so it is run as a process.
        (tmp_path / "program.py").write_text(snippet.text)
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "program.py"],
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        for shown in re.findall(r"^print\(.*\)  # (.*)$", snippet.text, re.M):
            assert done.stdout == f"{shown}\n"
        return
    (tmp_path / "mcp.json").write_text('{"mcpServers": {}}')
    monkeypatch.chdir(tmp_path)

    def add(a: int, b: int) -> int:
        return a + b

    class Hit(msgspec.Struct):
        title: str

    frameworks: list[Any] = []
    framework = SimpleNamespace(
        function_tool=frameworks.append, Tool=frameworks.append, tool=frameworks.append
    )
    async with hutch.Hutch(quickjs_warm=0, deno_warm=0) as h:
        names: dict[str, Any] = {
            **{"hutch": hutch, "asyncio": asyncio, "add": add, "Hit": Hit, "h": h, "catalogue": Catalogue()},
            **{"agents": framework, "pydantic_ai": framework, "smolagents": framework},
            "langchain_core": SimpleNamespace(tools=framework),
        }
        code = compile(
            snippet.text, snippet.page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True
        )
        running = eval(code, names)  # noqa: S307
        if inspect.isawaitable(running):
            await running
        if "r" in names:
            assert names["r"].result == 3
        if "search" in names and "context" in inspect.signature(names["search"]).parameters:
            found = await h.run("return await tools.search({query: 'lamp'})", tools=[names["search"]])
            assert found.result == ["lamp"]
        elif "search" in names:
            assert "limit?: number" in (h.as_tool([names["search"]]).__doc__ or "")
        if "agents." in snippet.text:
            assert len(frameworks) == 4


@pytest.mark.parametrize("snippet", snippets("json"), ids=lambda each: f"{each.page}:{each.line}")
def test_json_is_valid(snippet: Snippet) -> None:
    try:
        json.loads(snippet.text)
    except json.JSONDecodeError:
        for line in snippet.text.splitlines():
            json.loads(line)


def test_settings_and_yaml_are_valid() -> None:
    for snippet in snippets("toml"):
        data = tomllib.loads(snippet.text)
        if "project" not in data:
            msgspec.convert(data, Settings)
    for snippet in snippets("yaml"):
        assert isinstance(yaml.safe_load(snippet.text), dict), snippet


def test_other_languages_are_output_diagrams_or_examples_that_other_tests_run() -> None:
    known = {
        "sh",
        "python",
        "json",
        "toml",
        "yaml",
        "mermaid",
        "text",
        "",
        "js",
        "ts",
        "ini",
        "nginx",
        "conf",
    }
    found = set()
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        found |= set(re.findall(r"^ *```(\w+)$", path.read_text(), re.M))
    assert found <= known


@pytest.mark.parametrize(("name", "language"), [("Caddyfile", "text"), ("nginx.conf", "nginx")])
def test_deployment_page_shows_the_lines_of_the_sample_files(name: str, language: str) -> None:
    lines = [line.strip() for line in (ROOT / "examples/deploy" / name).read_text().splitlines()]
    [shown] = [each.text for each in snippets(language) if each.page == "docs/how-to/deploy.md"]
    position = -1
    for line in map(str.strip, shown.splitlines()):
        position = lines.index(line, position + 1)
