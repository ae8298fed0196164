"""Command line of `hutch trust`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(
    epilog="""\b
Examples:
  hutch trust
  hutch trust ~/project
  hutch trust --list
  hutch trust --revoke ~/project
"""
)
@click.argument("folder", default=".", type=click.Path(path_type=Path))
@click.option(
    "--list", "list_all", is_flag=True, help="List the trusted files and whether they have changed."
)
@click.option("--revoke", is_flag=True, help="Do not trust the folder any more.")
@click.option("--yes", is_flag=True, help="Trust the files without a question.")
@click.option("--json", is_flag=True, help="Print the list as JSON on one line.")
def trust(folder: Path, list_all: bool, revoke: bool, yes: bool, json: bool) -> int:
    """Trust the configuration files of a folder.

    Hutch uses .toolscript.json, hutch.toml and tm/config/runtime.yaml of a project only if you trust them,
    because they name programs to run. Shows what the files in FOLDER, by default the current directory, would
    do, and asks. A file that changes has to be trusted again.
    """
    from hutch.cli.trust import list_trusted, revoke_trust, trust_folder

    if list_all and revoke:
        raise click.UsageError("Choose either --list or --revoke.")
    if list_all:
        return list_trusted(json=json)
    return revoke_trust(folder) if revoke else trust_folder(folder, yes=yes)
