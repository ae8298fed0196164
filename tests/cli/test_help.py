"""Tests of help texts."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner
from tests.support.processes import hutch

import hutch as package
from hutch.cli.commands import SECTIONS
from hutch.cli.commands import hutch as root

COMMANDS = [
    "ability",
    "auth",
    "backup",
    "check",
    "cluster",
    "config",
    "console",
    "credential",
    "doctor",
    "eval",
    "exec",
    "flow",
    "gateway",
    "group",
    "init",
    "key",
    "mcp",
    "packages",
    "queue",
    "restore",
    "runner",
    "runs",
    "runtime",
    "schedule",
    "script",
    "serve",
    "tool",
    "tools",
    "trigger",
    "trust",
    "user",
    "vault",
    "webhooks",
    "worker",
]
GROUPS = {
    "runs": ["cancel", "export", "list", "replay", "show", "tail"],
    "ability": [
        "add",
        "diff",
        "import",
        "list",
        "remove",
        "restore",
        "run",
        "share",
        "show",
        "unshare",
        "versions",
    ],
    "auth": ["login", "logout"],
    "flow": [
        "approve",
        "cancel",
        "deny",
        "list",
        "logs",
        "resume",
        "retry",
        "run",
        "runs",
        "show",
        "validate",
    ],
    "runtime": ["cache", "check", "serve"],
    "packages": ["add", "describe", "list", "prune", "remove"],
    "gateway": ["env", "start", "status"],
    "tools": ["list", "search", "types"],
    "user": ["add", "list", "quota", "remove", "show"],
    "group": ["add", "list", "remove"],
    "key": ["add", "list", "quota", "remove", "revoke", "show"],
    "credential": ["import", "list", "remove", "set", "show"],
    "vault": ["rotate", "status"],
    "cluster": ["status"],
    "queue": ["list", "remove", "retry"],
    "webhooks": ["list", "secret", "send"],
    "script": ["list", "remove", "save", "show"],
    "schedule": ["add", "list", "pause", "remove", "resume"],
    "trigger": ["add", "list", "pause", "remove", "resume"],
}


def test_help_names_every_command_and_gives_an_example() -> None:
    done = hutch("--help")
    assert done.returncode == 0
    first = "Run code, tools and flows:\n  eval "
    assert first in done.stdout
    commands = {line.split()[0] for line in done.stdout.splitlines() if re.match(r"  \w+ +[A-Z]", line)}
    assert commands >= set(COMMANDS)
    assert sorted(name for names in SECTIONS.values() for name in names) == COMMANDS
    assert "Example:\n    hutch eval " in done.stdout


@pytest.mark.parametrize("group", GROUPS)
def test_groups_list_their_commands(group: str) -> None:
    assert listed(help_of(group)) == GROUPS[group]


def help_of(*command: str) -> str:
    """Returns a help text and checks that nothing else is printed."""
    done = CliRunner().invoke(root, [*command, "--help"], prog_name="hutch")
    assert (done.exit_code, done.stderr) == (0, "")
    return done.stdout


def listed(text: str) -> list[str]:
    table = text.partition("Commands:\n")[2].partition("\n\n")[0]
    return [line.split()[0] for line in table.splitlines()]


@pytest.mark.parametrize(
    "command", [*COMMANDS, *(f"{group} {each}" for group in GROUPS for each in GROUPS[group])]
)
def test_every_command_has_help_with_an_example(command: str) -> None:
    text = help_of(*command.split())
    assert text.startswith(f"Usage: hutch {command} ")
    assert "Example" in text


def test_help_has_a_short_form() -> None:
    assert hutch("eval", "-h").stdout == hutch("eval", "--help").stdout


def test_version() -> None:
    assert hutch("--version").stdout == f"hutch {package.__version__}\n"


def test_unknown_command_is_refused() -> None:
    done = hutch("evaluate")
    assert done.returncode == 2
    assert "No such command 'evaluate'" in done.stderr


@pytest.mark.parametrize("arguments", [[], *([group] for group in GROUPS)])
def test_no_command_shows_the_help_and_fails(arguments: list[str]) -> None:
    done = hutch(*arguments)
    assert done.returncode == 2
    assert ("Commands:" if arguments else "Run code, tools and flows:") in done.stderr


def test_word_for_several_commands_is_explained() -> None:
    done = hutch("run", "report.ts")
    assert (done.returncode, done.stdout) == (2, "")
    for command in ("hutch eval -f", "hutch exec -f", "hutch flow run", "hutch tool "):
        assert command in done.stderr
