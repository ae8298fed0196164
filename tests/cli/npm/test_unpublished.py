"""Tests of `hutch tool` and `hutch packages describe` with packages that are not published."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.npm.registry import Registry, pack
from tests.support.processes import HUTCH, TIMEOUT_SECONDS, hutch

MODULE = """
import { greeting } from "local-dependency";
export const greet = {
  description: "Greets",
  inputSchema: { type: "object", properties: { name: { type: "string" } }, required: ["name"] },
  execute: ({ name }) => `${greeting} ${name}`,
};
export const fail = { execute() { throw new RangeError("too far"); } };
export const leave = { execute() { process.exit(3); } };
"""
ENDLESS = "export const greet = { execute() { console.log('endless'); return new Promise(() => {}); } };"
MANIFEST: dict[str, Any] = {
    "name": "cli-unpublished",
    "version": "0.3.0",
    "type": "module",
    "exports": "./index.js",
    "dependencies": {"local-dependency": "^1"},
    "scripts": {"postinstall": "touch /tmp/hutch-postinstall"},
}


@pytest.fixture(scope="module")
def registry(npm: Registry) -> Registry:
    npm.publish("local-dependency", "1.0.0", {"index.js": "export const greeting = 'Hello';"})
    return npm


@pytest.fixture
def folder(registry: Registry, tmp_path: Path) -> Path:
    """A folder that contains the package `my-tool`."""
    write_package(tmp_path / "my-tool", MANIFEST, {"index.js": MODULE})
    return tmp_path


def write_package(folder: Path, manifest: dict[str, Any], files: dict[str, str]) -> None:
    for name, text in {"package.json": json.dumps(manifest), **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def test_folder_runs_with_its_dependencies_which_are_installed_once(registry: Registry, folder: Path) -> None:
    done = hutch("tool", "./my-tool", "greet", "--params", '{"name": "Bo"}', cwd=folder)
    assert (done.returncode, done.stdout) == (0, '"Hello Bo"\n'), done.stderr
    requests = len(registry.requests)
    done = hutch("tool", ".", "greet", "--params", '{"nam": 1}', cwd=folder / "my-tool")
    assert (done.returncode, done.stdout) == (0, '"Hello undefined"\n')
    assert done.stderr == "hutch: warning: params.name: is missing; expected a string\n"
    assert len(registry.requests) == requests
    assert "cli-unpublished" not in hutch("packages", "list").stdout
    assert not Path("/tmp/hutch-postinstall").exists()
    assert [*Path(os.environ["HUTCH_HOME"], "npm", "staging").iterdir()] == []


def test_refresh_asks_the_registry_again_for_the_dependencies(registry: Registry, folder: Path) -> None:
    assert hutch("tool", "./my-tool", "greet", cwd=folder).stdout == '"Hello undefined"\n'
    registry.publish("local-dependency", "1.1.0", {"index.js": "export const greeting = 'Hi';"})
    assert hutch("tool", "./my-tool", "greet", cwd=folder).stdout == '"Hello undefined"\n'
    assert hutch("tool", "--refresh", "./my-tool", "greet", cwd=folder).stdout == '"Hi undefined"\n'


def test_archive_runs_and_is_described(folder: Path) -> None:
    (folder / "my-tool-0.3.0.tgz").write_bytes(
        pack({"package.json": json.dumps(MANIFEST), "index.js": MODULE})
    )
    done = hutch("tool", "./my-tool-0.3.0.tgz", "greet", "--json", cwd=folder)
    answer = json.loads(done.stdout)
    assert (answer["success"], answer["resolvedVersion"]) == (True, "0.3.0")
    done = hutch("packages", "describe", "my-tool-0.3.0.tgz", "greet", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "cli-unpublished@0.3.0\n\ngreet\n  Greets\n    name  string  required\n"


def test_typescript_source_runs_without_a_build(folder: Path) -> None:
    source = """
import { double } from "./util.js";
interface Params { n: number }
export const twice = {
  execute({ n }: Params): number {
    if (n < 0) throw new RangeError("negative");
    return double(n);
  },
};
"""
    files = {"src/index.ts": source, "src/util.ts": "export const double = (n: number): number => n * 2;"}
    write_package(folder / "ts", {"name": "@me/ts", "main": "dist/index.js"}, files)
    note = "`main` in package.json names dist/index.js, which does not exist, so its source src/index.ts runs"
    done = hutch("tool", "./ts", "twice", "--params", '{"n": 4}', cwd=folder)
    assert (done.returncode, done.stdout, done.stderr) == (0, "8\n", f"hutch: {note}\n")
    done = hutch("tool", "./ts", "twice", "--params", '{"n": -4}', cwd=folder)
    assert done.stderr.endswith("hutch: TOOL_EXECUTION_ERROR: negative (at src/index.ts:6:22)\n")


def test_health_check_is_described(folder: Path) -> None:
    declared = {"testParams": {"name": "x"}, "cleanup": [{"tool": "fail"}]}
    tools: list[dict[str, Any]] = [{"name": "greet", "healthCheck": declared}]
    write_package(folder / "my-tool", {**MANIFEST, "tpmjs": {"tools": tools}}, {})
    done = hutch("packages", "describe", "./my-tool", "--json", cwd=folder)
    assert json.loads(done.stdout)["tools"][0]["healthCheck"] == declared
    tools[0]["healthCheck"] = {"cleanup": 1}
    write_package(folder / "my-tool", {**MANIFEST, "tpmjs": {"tools": tools}}, {})
    done = hutch("packages", "describe", "./my-tool", cwd=folder)
    problem = "package.json: healthCheck of greet: Expected `array`, got `int` - at `$.cleanup`"
    assert (done.returncode, done.stderr) == (0, f"hutch: warning: {problem}\n")


ADVICE = (
    "imports zod, which is not installed. "
    "Add zod to `dependencies` in package.json; `devDependencies` are not installed."
)
MODULE_ADVICE = 'package.json says "type": "module": use import and export, or name the file .cjs.'
BROKEN = {
    "syntax": ({"index.js": "export const t = ;"}, "Unexpected token ';' at index.js:1:18"),
    "dependency": (
        {"index.js": "import 'zod';"},
        f"ERR_MODULE_NOT_FOUND: index.js {ADVICE}",
    ),
    "typescript dependency": (
        {"src/index.ts": "import 'zod/v4';"},
        f"ERR_MODULE_NOT_FOUND: src/index.ts:1:8 {ADVICE}",
    ),
    "file": (
        {"index.js": "import './x.js';"},
        "[ERR_MODULE_NOT_FOUND] Cannot find module 'x.js' imported from 'index.js'",
    ),
    "commonjs": (
        {"index.js": "const fs = require('fs');"},
        f"require is not defined. {MODULE_ADVICE} (at index.js:1:12)",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_package_is_reported_with_what_to_do(folder: Path, case: str) -> None:
    files, message = BROKEN[case]
    manifest = {"name": "broken", "type": "module", "devDependencies": {"zod": "4"}}
    write_package(folder / "broken", manifest, files)
    done = hutch("tool", "./broken", "t", cwd=folder)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith(f"hutch: TOOL_EXECUTION_ERROR: broken cannot be imported: {message}\n")


def test_missing_package_with_the_name_of_a_folder_suggests_the_path(folder: Path) -> None:
    done = hutch("tool", "my-tool", "greet", cwd=folder)
    assert done.returncode == 1
    assert done.stderr.endswith("To run the folder my-tool, write ./my-tool.\n")


def test_dependency_that_is_not_in_the_registry_is_named(folder: Path) -> None:
    write_package(folder / "my-tool", {**MANIFEST, "dependencies": {"local-nowhere": "1"}}, {})
    done = hutch("tool", "./my-tool", "greet", cwd=folder)
    expected = "cli-unpublished@0.3.0 needs local-nowhere, which is not in the registry."
    assert done.stderr.endswith(f"hutch: PACKAGE_NOT_FOUND: {expected}\n")


def lines_until(process: subprocess.Popen[str], text: str) -> str:
    """Returns the next lines of a process up to one that contains `text`."""
    assert process.stdout is not None
    found = ""
    for line in process.stdout:
        found += line
        if text in line:
            return found
    raise AssertionError(found)


def test_watch_runs_again_after_each_change_and_ends_with_ctrl_c(folder: Path) -> None:
    index, manifest = folder / "my-tool" / "index.js", folder / "my-tool" / "package.json"
    arguments = ["tool", "--watch", "./my-tool", "greet", "--params", '{"name": "Bo"}']
    with subprocess.Popen(
        [*HUTCH, *arguments], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            status = "watching ./my-tool for changes, Ctrl-C ends"
            first = lines_until(process, status)
            assert ' Bo"\n' in first
            assert "hutch: ok at " in first
            index.write_text(ENDLESS)
            lines_until(process, "endless")
            # The run in progress would never end by itself. A change of the file ends it.
            index.write_text(MODULE.replace("${name}", "<${name}>"))
            assert ' <Bo>"\n' in lines_until(process, status)
            manifest.write_text("{")
            assert "hutch: ./my-tool/package.json: is not valid JSON" in lines_until(process, status)
            process.send_signal(signal.SIGINT)
            assert process.wait(TIMEOUT_SECONDS) == 130
        finally:
            process.kill()


def test_watch_needs_a_path(registry: Registry) -> None:
    done = hutch("tool", "--watch", "local-dependency", "greet")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "hutch: --watch: expected a folder or archive, got the package local-dependency\n"


def test_tools_are_listed_if_no_name_is_given(folder: Path) -> None:
    done = hutch("tool", "./my-tool", cwd=folder)
    assert (done.returncode, "greet\n  Greets\n    name  string  required" in done.stdout) == (2, True)
    hint = done.stderr.splitlines()[-1]
    assert "does not describe its parameters" not in done.stderr
    assert hint.startswith("hutch: NAME: expected one of fail, greet, leave; for example ")
    example = shlex.split(hint.partition("for example ")[2])
    assert hutch(*example[1:], cwd=folder).stdout.endswith(' test"\n')
