"""`hutch packages`, as a shell sees it."""

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
from tests.processes import hutch

Packages = Callable[..., "CompletedProcess[str]"]


@pytest.fixture
def packages(npm: Registry, tmp_path: Path) -> Packages:
    """The command, with a shelf of this test's own."""

    def run(*arguments: str, **env: str) -> CompletedProcess[str]:
        return hutch("packages", *arguments, env={"HUTCH_HOME": str(tmp_path / "home"), **env})

    return run


def on_shelf(packages: Packages) -> list[str]:
    return [f"{each['name']}@{each['version']}" for each in json.loads(packages("list", "--json").stdout)]


def test_empty_shelf_is_told_with_the_way_to_fill_it(packages: Packages) -> None:
    done = packages("list")
    assert (done.returncode, done.stdout) == (0, "")
    assert "hutch packages add NAME" in done.stderr
    assert packages("list", "--json").stdout == "[]\n"


def test_what_was_added_is_listed(packages: Packages, npm: Registry) -> None:
    npm.publish("shelf-one", "1.0.0")
    npm.publish("shelf-one", "1.1.0")
    npm.publish("@shelf/two", "2.0.0")
    done = packages("add", "shelf-one@1.0.0", "shelf-one", "@shelf/two@^2")
    assert done.returncode == 0
    added = [line.split()[0] for line in done.stdout.splitlines()]
    assert added == ["shelf-one@1.0.0", "shelf-one@1.1.0", "@shelf/two@2.0.0"]
    assert on_shelf(packages) == ["@shelf/two@2.0.0", "shelf-one@1.0.0", "shelf-one@1.1.0"]
    table = packages("list").stdout.splitlines()
    assert table[0].split()[:2] == ["PACKAGE", "VERSION"]
    assert [line.split()[:2] for line in table[1:]] == [
        ["@shelf/two", "2.0.0"],
        ["shelf-one", "1.0.0"],
        ["shelf-one", "1.1.0"],
    ]
    assert table[1].endswith("^2")


def test_package_that_cannot_be_had_does_not_keep_the_others_out(packages: Packages, npm: Registry) -> None:
    npm.publish("shelf-there")
    done = packages("add", "shelf-nowhere", "shelf-there")
    assert done.returncode == 1
    assert "hutch: There is no package shelf-nowhere in the registry.\n" in done.stderr
    assert on_shelf(packages) == ["shelf-there@1.0.0"]


def test_versions_or_all_of_a_package_are_removed(packages: Packages, npm: Registry) -> None:
    for version in ("1.0.0", "1.1.0", "2.0.0"):
        npm.publish("shelf-many", version)
    packages("add", "shelf-many@1.0.0", "shelf-many@1.1.0", "shelf-many@2.0.0")
    assert packages("remove", "shelf-many@1.0.0").stdout == "removed shelf-many@1.0.0\n"
    assert on_shelf(packages) == ["shelf-many@1.1.0", "shelf-many@2.0.0"]
    assert packages("remove", "shelf-many").returncode == 0
    assert on_shelf(packages) == []
    again = packages("remove", "shelf-many")
    assert (again.returncode, again.stderr) == (1, "hutch: shelf-many is not on the shelf\n")


def test_what_went_unused_is_pruned(packages: Packages, npm: Registry, tmp_path: Path) -> None:
    npm.publish("shelf-old")
    npm.publish("shelf-new")
    packages("add", "shelf-old", "shelf-new")
    long_ago = time.time() - 40 * 86_400
    for record in (tmp_path / "home/npm/packages/shelf-old").iterdir():
        os.utime(record, (long_ago, long_ago))
    done = packages("prune")
    assert done.returncode == 0
    assert "removed shelf-old@1.0.0, last used 40 days ago\n" in done.stdout
    assert on_shelf(packages) == ["shelf-new@1.0.0"]
    packages("prune", "--days", "0")
    assert on_shelf(packages) == []


def test_offline_runs_what_was_added_and_nothing_else(npm: Registry) -> None:
    npm.publish("shelf-kept")
    hutch("packages", "add", "shelf-kept")
    asked = npm.count("shelf-kept")
    offline = {"HUTCH_OFFLINE": "true", "HUTCH_LATEST_SECONDS": "0"}
    done = hutch("tool", "shelf-kept", "tool", "--params", '{"a": 1}', env=offline)
    assert (done.returncode, done.stdout, done.stderr) == (0, '{"a":1}\n', "")
    other = hutch("tool", "shelf-other", "tool", env=offline)
    assert other.returncode == 1
    assert "is not on this server's shelf, and the server is set to be offline" in other.stderr
    assert (npm.count("shelf-kept"), npm.count("shelf-other")) == (asked, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["add"], "Missing argument 'PACKAGE[@VERSION]...'.\n"),
        (["add", "shelf-a", "git+ssh://b"], "hutch: packageName: is a path, a URL or a repository"),
        (["remove", "a@npm:b"], "hutch: version: has ':'"),
        (["prune", "--days", "-1"], "hutch: --days: expected a number of at least 0, got -1.\n"),
        (["prune", "--days", "nan"], "hutch: --days: expected a number of at least 0, got nan.\n"),
        (["describe"], "Missing argument 'PACKAGE[@VERSION]'.\n"),
        (["describe", "/etc/passwd"], "hutch: packageName: is a path, a URL or a repository"),
        (["describe", "a", "b", "--env", "CLI_UNSET"], "hutch: --env: CLI_UNSET is not set in this shell"),
        (["install", "a"], "No such command 'install'.\n"),
    ],
)
def test_bad_input_is_refused_before_anything_is_done(
    packages: Packages, npm: Registry, arguments: list[str], message: str
) -> None:
    done = packages(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert npm.count("shelf-a") == 0


# --- describing ---

MODULE = """
const inputSchema = {
  type: "object",
  properties: {
    city: { type: "string", description: "Where,\\n  in   words" },
    unit: { enum: ["c", "f"] },
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
  if (!CLI_KEY) throw new Error("CLI_KEY is wanted");
  return { description: "keyed", inputSchema: { jsonSchema: { type: "object" } }, execute };
};
export default other;
"""


def publish(npm: Registry, name: str, **manifest: Any) -> None:
    npm.publish(name, "1.0.0", {"index.js": MODULE}, **manifest)


def test_tools_that_a_package_lists_are_described(npm: Registry) -> None:
    tools = [{"name": "weather"}, {"name": "other"}, {"name": "weather"}, {"name": 1}, "other"]
    publish(npm, "shelf-listed", tpmjs={"tools": tools})
    done = hutch("packages", "describe", "shelf-listed")
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "shelf-listed@1.0.0",
        "",
        "weather",
        "  The weather.",
        "  Of tomorrow.",
        "    city  string          required  Where, in words",
        '    unit  "c" | "f"',
        "    days  integer | null",
        "    more  any",
        "",
        "other",
    ]


@pytest.mark.parametrize("tpmjs", [None, {}, {"tools": []}, {"tools": "weather"}, [1], "x"])
def test_default_export_is_described_where_none_is_listed(npm: Registry, tpmjs: Any) -> None:
    name = f"shelf-unlisted-{len(json.dumps(tpmjs))}"
    publish(npm, name, tpmjs=tpmjs)
    done = hutch("packages", "describe", name)
    assert (done.returncode, done.stdout.splitlines()) == (0, [f"{name}@1.0.0", "", "default"])


def test_package_without_a_list_and_a_default_is_told_with_its_tools(npm: Registry) -> None:
    npm.publish("shelf-plain")
    done = hutch("packages", "describe", "shelf-plain")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith('TOOL_NOT_FOUND: shelf-plain has no export "default"; its tools are tool\n')


def test_one_tool_is_described_as_json_on_one_line(npm: Registry) -> None:
    publish(npm, "shelf-json", tpmjs={"tools": [{"name": "weather"}]})
    done = hutch("packages", "describe", "shelf-json@1", "other", "--json")
    assert (done.returncode, done.stdout.count("\n")) == (0, 1)
    tool = {"name": "other", "description": "", "inputSchema": {"type": "object"}}
    assert json.loads(done.stdout) == {"name": "shelf-json", "version": "1.0.0", "tools": [tool]}


def test_tool_that_cannot_be_described_is_told_and_exits_1(npm: Registry) -> None:
    publish(npm, "shelf-lying", tpmjs={"tools": [{"name": "gone"}, {"name": "other"}, {"name": "keyed"}]})
    done = hutch("packages", "describe", "shelf-lying")
    assert (done.returncode, done.stdout.splitlines()[2:]) == (1, ["other"])
    assert 'hutch: TOOL_NOT_FOUND: shelf-lying has no export "gone"' in done.stderr
    assert "hutch: TOOL_EXECUTION_ERROR: " in done.stderr
    assert "CLI_KEY is wanted" in done.stderr
    keyed = hutch("packages", "describe", "shelf-lying", "keyed", "--env", "CLI_KEY", env={"CLI_KEY": "k"})
    assert (keyed.returncode, keyed.stdout.splitlines()[2:]) == (0, ["keyed", "  keyed"])


def test_package_that_there_is_not_cannot_be_described(npm: Registry) -> None:
    done = hutch("packages", "describe", "shelf-nobody")
    assert (done.returncode, done.stdout) == (1, "")
    assert "hutch: There is no package shelf-nobody in the registry.\n" in done.stderr
