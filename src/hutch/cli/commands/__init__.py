"""Commands, options and help texts of the command line."""

from __future__ import annotations

import click

from hutch._version import __version__
from hutch.cli.commands.abilities import ability
from hutch.cli.commands.code import evaluate, runner
from hutch.cli.commands.flows import flow, init
from hutch.cli.commands.groups import group
from hutch.cli.commands.npm import packages, tool
from hutch.cli.commands.runs import runs
from hutch.cli.commands.runtime import runtime
from hutch.cli.commands.scripts import auth, execute, gateway, mcp, tools
from hutch.cli.commands.server import check, config, console, doctor, serve
from hutch.cli.commands.trust import trust
from hutch.cli.commands.vault import backup, credential, key, restore, user, vault

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


# Commands that users look for under another name.
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


class RootGroup(click.Group):
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if commands := _OTHER_WORDS.get(args[0]):
            listed = "".join(f"\n  {command}" for command in commands)
            raise click.UsageError(f"There is no command '{args[0]}'. Did you mean:{listed}", ctx)
        return super().resolve_command(ctx, args)


@click.group(
    cls=RootGroup,
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


for _command in (
    evaluate,
    runner,
    tool,
    packages,
    execute,
    gateway,
    tools,
    auth,
    mcp,
    serve,
    console,
    check,
    doctor,
    config,
    trust,
):
    hutch.add_command(_command)
for _command in (user, group, key, credential, ability, vault, backup, restore):
    hutch.add_command(_command)
for _command in (flow, init, runtime, runs):
    hutch.add_command(_command)
