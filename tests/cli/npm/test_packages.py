"""Tests of `hutch packages` as a process."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from tests.npm.registry import Registry
from tests.support.processes import hutch

Packages = Callable[..., "CompletedProcess[str]"]


@pytest.fixture
def packages(npm: Registry, tmp_path: Path) -> Packages:
    """Runs `hutch packages` with an empty home."""

    def run(*arguments: str, **env: str) -> CompletedProcess[str]:
        return hutch("packages", *arguments, env={"HUTCH_HOME": str(tmp_path / "home"), **env})

    return run


def installed(packages: Packages) -> list[str]:
    return [
        f"{package['name']}@{package['version']}" for package in json.loads(packages("list", "--json").stdout)
    ]


def test_empty_list_explains_how_to_install_a_package(packages: Packages) -> None:
    done = packages("list")
    assert (done.returncode, done.stdout) == (0, "")
    assert "hutch packages add NAME" in done.stderr
    assert packages("list", "--json").stdout == "[]\n"


def test_installed_packages_are_listed(packages: Packages, npm: Registry) -> None:
    npm.publish("pkg-one", "1.0.0")
    npm.publish("pkg-one", "1.1.0")
    npm.publish("@pkg/two", "2.0.0")
    done = packages("add", "pkg-one@1.0.0", "pkg-one", "@pkg/two@^2")
    assert done.returncode == 0
    added = [line.split()[0] for line in done.stdout.splitlines()]
    assert added == ["pkg-one@1.0.0", "pkg-one@1.1.0", "@pkg/two@2.0.0"]
    assert installed(packages) == ["@pkg/two@2.0.0", "pkg-one@1.0.0", "pkg-one@1.1.0"]
    table = packages("list").stdout.splitlines()
    assert table[0].split()[:2] == ["PACKAGE", "VERSION"]
    assert [line.split()[:2] for line in table[1:]] == [
        ["@pkg/two", "2.0.0"],
        ["pkg-one", "1.0.0"],
        ["pkg-one", "1.1.0"],
    ]
    assert table[1].endswith("^2")


def test_package_that_cannot_be_installed_does_not_stop_the_others(packages: Packages, npm: Registry) -> None:
    npm.publish("pkg-there")
    done = packages("add", "pkg-nowhere", "pkg-there")
    assert done.returncode == 1
    assert "hutch: There is no package pkg-nowhere in the registry.\n" in done.stderr
    assert installed(packages) == ["pkg-there@1.0.0"]


def test_one_version_or_all_versions_are_removed(packages: Packages, npm: Registry) -> None:
    for version in ("1.0.0", "1.1.0", "2.0.0"):
        npm.publish("pkg-many", version)
    packages("add", "pkg-many@1.0.0", "pkg-many@1.1.0", "pkg-many@2.0.0")
    assert packages("remove", "pkg-many@1.0.0").stdout == "removed pkg-many@1.0.0\n"
    assert installed(packages) == ["pkg-many@1.1.0", "pkg-many@2.0.0"]
    assert packages("remove", "pkg-many").returncode == 0
    assert installed(packages) == []
    again = packages("remove", "pkg-many")
    assert (again.returncode, again.stderr) == (1, "hutch: pkg-many is not installed\n")


def test_unused_packages_are_pruned(packages: Packages, npm: Registry, tmp_path: Path) -> None:
    npm.publish("pkg-old")
    npm.publish("pkg-new")
    packages("add", "pkg-old", "pkg-new")
    long_ago = time.time() - 40 * 86_400
    for record in (tmp_path / "home/npm/packages/pkg-old").iterdir():
        os.utime(record, (long_ago, long_ago))
    done = packages("prune")
    assert done.returncode == 0
    assert "removed pkg-old@1.0.0, last used 40 days ago\n" in done.stdout
    assert installed(packages) == ["pkg-new@1.0.0"]
    packages("prune", "--days", "0")
    assert installed(packages) == []


def test_only_installed_packages_run_offline(npm: Registry) -> None:
    npm.publish("pkg-installed")
    hutch("packages", "add", "pkg-installed")
    asked = npm.count("pkg-installed")
    offline = {"HUTCH_OFFLINE": "true", "HUTCH_LATEST_SECONDS": "0"}
    done = hutch("tool", "pkg-installed", "tool", "--params", '{"a": 1}', env=offline)
    assert (done.returncode, done.stdout, done.stderr) == (0, '{"a":1}\n', "")
    other = hutch("tool", "pkg-other", "tool", env=offline)
    assert other.returncode == 1
    assert "is not installed on this server, and the server is offline" in other.stderr
    assert (npm.count("pkg-installed"), npm.count("pkg-other")) == (asked, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["add"], "Missing argument 'PACKAGE[@VERSION]...'.\n"),
        (["add", "pkg-a", "git+ssh://b"], "hutch: packageName: is a path, a URL or a repository"),
        (["remove", "a@npm:b"], "hutch: version: has ':'"),
        (["prune", "--days", "-1"], "hutch: --days: expected a number of at least 0, got -1.\n"),
        (["prune", "--days", "nan"], "hutch: --days: expected a number of at least 0, got nan.\n"),
        (["describe"], "Missing argument 'PACKAGE[@VERSION]|PATH'.\n"),
        (
            ["describe", "/etc/passwd"],
            "hutch: /etc/passwd: expected a folder with package.json, or an archive",
        ),
        (["describe", "a", "b", "--env", "CLI_UNSET"], "hutch: --env: CLI_UNSET is not set in this shell"),
        (["install", "a"], "No such command 'install'.\n"),
    ],
)
def test_invalid_input_is_rejected_before_anything_is_done(
    packages: Packages, npm: Registry, arguments: list[str], message: str
) -> None:
    done = packages(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert npm.count("pkg-a") == 0


# --- describe ---

MODULE = """
const inputSchema = {
  type: "object",
  properties: {
    city: { type: "string", description: "Where,\\n  in   words" },
    unit: { enum: ["c", "f"], default: "c" },
    days: { type: ["integer", "null"] },
    more: {},
  },
  required: ["city"],
};
const execute = () => 1;
const description = "The weather.\\nOf tomorrow.";
export const weather = { description, inputSchema: { jsonSchema: inputSchema }, execute };
export const other = { inputSchema: { jsonSchema: { type: "object" } }, execute };
export const keyed = ({ CLI_KEY }) => {
  if (!CLI_KEY) throw new Error("CLI_KEY is required");
  return { description: "keyed", inputSchema: { jsonSchema: { type: "object" } }, execute };
};
export default other;
"""


def publish(npm: Registry, name: str, **manifest: Any) -> None:
    npm.publish(name, "1.0.0", {"index.js": MODULE}, **manifest)


def test_tools_listed_in_package_json_are_described(npm: Registry) -> None:
    tools = [{"name": "weather"}, {"name": "other"}, {"name": "weather"}, {"name": 1}, "other"]
    publish(npm, "pkg-listed", tpmjs={"tools": tools})
    done = hutch("packages", "describe", "pkg-listed")
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "pkg-listed@1.0.0",
        "",
        "weather",
        "  The weather.",
        "  Of tomorrow.",
        "    city  string          required     Where, in words",
        '    unit  "c" | "f"       default "c"',
        "    days  integer | null",
        "    more  any",
        "",
        "other",
    ]


@pytest.mark.parametrize("tpmjs", [None, {}, {"tools": []}, {"tools": "weather"}, [1], "x"])
def test_exported_tools_are_described_if_none_is_listed(npm: Registry, tpmjs: Any) -> None:
    name = f"pkg-unlisted-{len(json.dumps(tpmjs))}"
    publish(npm, name, tpmjs=tpmjs)
    done = hutch("packages", "describe", name)
    # The default export is not listed, because it is the same tool as one of the named exports.
    assert (done.returncode, done.stdout.splitlines()[:6]) == (
        0,
        [f"{name}@1.0.0", "", "other", "", "weather", "  The weather."],
    )


def test_package_without_tools_is_reported_with_its_functions(npm: Registry) -> None:
    npm.publish("pkg-plain", files={"index.js": "export function helper() {}"})
    done = hutch("packages", "describe", "pkg-plain")
    assert (done.returncode, done.stdout) == (1, "")
    message = "pkg-plain has no exports with an execute() method, and no tools, but the functions helper"
    assert f"TOOL_NOT_FOUND: {message}\n" in done.stderr


def test_one_tool_is_described_as_json_on_one_line(npm: Registry) -> None:
    publish(npm, "pkg-json", tpmjs={"tools": [{"name": "weather"}]})
    done = hutch("packages", "describe", "pkg-json@1", "other", "--json")
    assert (done.returncode, done.stdout.count("\n")) == (0, 1)
    tool = {"name": "other", "description": "", "inputSchema": {"type": "object"}}
    assert json.loads(done.stdout) == {"name": "pkg-json", "version": "1.0.0", "tools": [tool]}


def test_tool_that_cannot_be_described_is_reported_and_exits_1(npm: Registry) -> None:
    publish(npm, "pkg-lying", tpmjs={"tools": [{"name": "gone"}, {"name": "other"}, {"name": "keyed"}]})
    done = hutch("packages", "describe", "pkg-lying")
    assert (done.returncode, done.stdout.splitlines()[2:]) == (1, ["other"])
    assert 'hutch: TOOL_NOT_FOUND: pkg-lying has no export "gone"' in done.stderr
    assert "hutch: TOOL_INVALID: CLI_KEY is required" in done.stderr
    assert "the export is a function, which was called to get the tool: --env passes" in done.stderr
    keyed = hutch("packages", "describe", "pkg-lying", "keyed", "--env", "CLI_KEY", env={"CLI_KEY": "k"})
    assert (keyed.returncode, keyed.stdout.splitlines()[2:]) == (0, ["keyed", "  keyed"])


def test_unknown_package_cannot_be_described(npm: Registry) -> None:
    done = hutch("packages", "describe", "pkg-unknown")
    assert (done.returncode, done.stdout) == (1, "")
    assert "hutch: There is no package pkg-unknown in the registry.\n" in done.stderr
