"""What can be typed after `hutch`, and its help."""

from __future__ import annotations

import click

from hutch._version import __version__
from hutch.cli.commands.abilities import ability
from hutch.cli.commands.code import evaluate, runner
from hutch.cli.commands.flows import flow, init
from hutch.cli.commands.npm import packages, tool
from hutch.cli.commands.runtime import runtime
from hutch.cli.commands.scripts import auth, execute, gateway, mcp, tools
from hutch.cli.commands.server import check, doctor, serve
from hutch.cli.commands.vault import credential, key, user, vault

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(
    context_settings=SETTINGS,
    epilog="""\b
Example:
  hutch eval '[1, 2, 3].map((n) => n * n)'
""",
)
@click.version_option(__version__, message="hutch %(version)s")
def hutch() -> None:
    """Runs other people's code for AI agents, safely and at once.

    Settings come from HUTCH_* variables and from hutch.toml, in the current directory or in HUTCH_HOME.
    """


for _command in (evaluate, runner, tool, packages, execute, gateway, tools, auth, mcp, serve, check, doctor):
    hutch.add_command(_command)
for _command in (user, key, credential, ability, vault):
    hutch.add_command(_command)
for _command in (flow, init, runtime):
    hutch.add_command(_command)
