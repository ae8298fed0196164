"""Commands, options and help texts of the command line."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterator
from importlib import import_module

import click

from hutch._version import __version__

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


# Words that users may try as a command, with the commands that they probably look for.
_OTHER_WORDS = {
    "run": (
        "hutch eval -f FILE         JavaScript or TypeScript in the sandbox",
        "hutch exec -f FILE         TypeScript that calls the tools of MCP servers",
        "hutch flow run FILE        a flow",
        "hutch tool PACKAGE NAME    a tool of an npm package or folder",
    ),
    "start": ("hutch serve                the server", "hutch flow run FILE        a flow"),
    "install": ("hutch packages add PACKAGE",),
}


# Module and function of each command, by section of the help. A module is imported when one of its commands
# is used, because creating all commands takes a tenth of the start-up time.
SECTIONS = {
    "Run code, tools and flows": {
        "eval": "code:evaluate",
        "exec": "scripts:execute",
        "tool": "npm:tool",
        "flow": "flows:flow",
        "runs": "runs:runs",
    },
    "Asynchronous runs": {
        "queue": "queue:queue",
        "webhooks": "queue:webhooks",
        "script": "queue:script",
        "schedule": "queue:schedule",
        "trigger": "queue:trigger",
    },
    "MCP servers and npm packages": {
        "mcp": "scripts:mcp",
        "tools": "scripts:tools",
        "gateway": "scripts:gateway",
        "auth": "scripts:auth",
        "packages": "npm:packages",
    },
    "Abilities, users and secrets": {
        "ability": "abilities:ability",
        "credential": "vault:credential",
        "user": "vault:user",
        "group": "groups:group",
        "key": "vault:key",
        "vault": "vault:vault",
    },
    "Server": {
        "serve": "server:serve",
        "console": "server:console",
        "worker": "cluster:worker",
        "cluster": "cluster:cluster",
        "backup": "vault:backup",
        "restore": "vault:restore",
    },
    "This machine and project": {
        "doctor": "server:doctor",
        "config": "server:config",
        "trust": "trust:trust",
        "init": "flows:init",
    },
    "For other programs": {
        "runner": "code:runner",
        "runtime": "runtime:runtime",
        "check": "server:check",
    },
}
_COMMANDS = {name: target for commands in SECTIONS.values() for name, target in commands.items()}


class LazyCommands(UserDict[str, click.Command]):
    """Commands by name, which are imported when they are read."""

    def __contains__(self, name: object) -> bool:
        return name in _COMMANDS

    def __iter__(self) -> Iterator[str]:
        return iter(_COMMANDS)

    def __len__(self) -> int:
        return len(_COMMANDS)

    def __getitem__(self, name: str) -> click.Command:
        module, _, function = _COMMANDS[name].partition(":")
        command: click.Command = getattr(import_module(f"{__name__}.{module}"), function)
        return command


class RootGroup(click.Group):
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the commands by section, those that most people need first."""
        limit = formatter.width - 6 - max(map(len, _COMMANDS))
        widest = max(map(len, _COMMANDS))
        for title, names in SECTIONS.items():
            with formatter.section(title):
                rows = [(name.ljust(widest), self.commands[name].get_short_help_str(limit)) for name in names]
                formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if commands := _OTHER_WORDS.get(args[0]):
            listed = "".join(f"\n  {command}" for command in commands)
            raise click.UsageError(f"There is no command '{args[0]}'. Did you mean:{listed}", ctx)
        return super().resolve_command(ctx, args)


@click.group(
    cls=RootGroup,
    commands=LazyCommands(),
    context_settings=SETTINGS,
    epilog="""\b
Example:
  hutch eval '[1, 2, 3].map((n) => n * n)'
""",
)
@click.version_option(__version__, message="hutch %(version)s")
def hutch() -> None:
    """Run untrusted code for AI agents in a sandbox.

    Settings come from HUTCH_* variables and from hutch.toml in HUTCH_HOME. Files of a project are used only
    if you trust them: see `hutch trust`.
    """
