"""Command line of `hutch group`."""

from __future__ import annotations

import click

from hutch.cli.commands.vault import json_option


@click.group(
    epilog="""\b
Example:
  hutch group add support bo ann
"""
)
def group() -> None:
    """Manage groups of users, with whom abilities can be shared.

    These commands open the database directly; a server may run at the same time.
    """


@group.command(
    "add",
    epilog="""\b
Example:
  hutch group add support bo ann
""",
)
@click.argument("group", metavar="GROUP")
@click.argument("users", metavar="[USER]...", nargs=-1)
def add_group(group: str, users: tuple[str, ...]) -> int:
    """Add users to a group. Creates the group if it does not exist. Prints its members."""
    from hutch.cli.vault.groups import add_group

    return add_group(group, users)


@group.command(
    "list",
    epilog="""\b
Example:
  hutch group list --json
""",
)
@json_option
def list_groups(json: bool) -> int:
    """List all groups with their members."""
    from hutch.cli.vault.groups import list_groups

    return list_groups(as_json=json)


@group.command(
    "remove",
    epilog="""\b
Examples:
  hutch group remove support ann
  hutch group remove support --yes
""",
)
@click.argument("group", metavar="GROUP")
@click.argument("users", metavar="[USER]...", nargs=-1)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def remove_group(group: str, users: tuple[str, ...], yes: bool) -> int:
    """Remove users from a group; without users, remove the group.

    Removed users lose access to the abilities that are shared with the group. Asks for confirmation at a
    terminal before it removes a group.
    """
    from hutch.cli.vault.groups import remove_group

    return remove_group(group, users, yes=yes)
