"""`hutch ability`: API wrappers, and runs of them."""

from __future__ import annotations

from pathlib import Path

import click

from hutch.cli.commands.vault import json_option, user_option


@click.group(
    epilog="""\b
Example:
  hutch ability run --user bo github_get_user --params '{"username": "octocat"}'
"""
)
def ability() -> None:
    """Look after abilities, and run them: API wrappers with secrets.

    These commands work on the database itself; a server may use it meanwhile.
    """


@ability.command(
    "add",
    epilog="""\b
Examples:
  hutch ability add --user bo github_get_user.json
  hutch ability add --user bo github_get_user.json --code github_get_user.js
  hutch ability add --user bo --shared - < abilities.json
""",
)
@user_option
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path, allow_dash=True))
@click.option(
    "--code",
    metavar="FILE.js",
    type=click.Path(path_type=Path),
    help="Has the wrapper, for an ability whose JSON has no wrapper_code.",
)
@click.option("--shared", is_flag=True, help="Let all users run it, each with their own credentials.")
def add_ability(user: str, file: Path, code: Path | None, shared: bool) -> int:
    """Keep abilities, and print their ids.

    FILE, or - for stdin, has an ability as JSON, {ability_id, service_name, wrapper_code, …}, or a list of
    them. One that is there already gets a new version. Exits with 2, and keeps nothing, if anything is wrong
    with any of them.
    """
    from hutch.cli.ability import add_abilities

    return add_abilities(user, None if str(file) == "-" else file, code=code, shared=shared)


@ability.command(
    "list",
    epilog="""\b
Example:
  hutch ability list --user bo
""",
)
@user_option
@json_option
def list_abilities(user: str, json: bool) -> int:
    """List what a user can run: the user's own, and those that are shared."""
    from hutch.cli.ability import list_abilities

    return list_abilities(user, as_json=json)


@ability.command(
    "show",
    epilog="""\b
Example:
  hutch ability show --user bo github_get_user
""",
)
@user_option
@click.argument("id", metavar="ID")
@json_option
def show_ability(user: str, id: str, json: bool) -> int:
    """Say what an ability does and needs: never its code."""
    from hutch.cli.ability import show_ability

    return show_ability(user, id, as_json=json)


@ability.command(
    "run",
    epilog="""\b
Examples:
  hutch ability run --user bo github_get_user --params '{"username": "octocat"}'
  hutch ability run --user bo github_get_user --params @user.json --transform '(data) => data.name'
""",
)
@user_option
@click.argument("id", metavar="ID")
@click.option(
    "--params",
    metavar="JSON",
    help="An object; @FILE reads it from a file, - from stdin.  [default: {}]",
)
@click.option("--transform", metavar="CODE", help="A JavaScript function of the answer's body.")
@click.option(
    "--egress-allow",
    multiple=True,
    metavar="HOST:PORT",
    help="What it may reach although it is not public, also over http. May be repeated.",
)
@click.option("--json", is_flag=True, help="Print the whole answer of the door on one line.")
def run_ability(
    user: str, id: str, params: str | None, transform: str | None, egress_allow: tuple[str, ...], json: bool
) -> int:
    """Run an ability with a user's credentials.

    What it prints goes to stderr, the body of the API's answer, as JSON, to stdout. Exits with 1 if it
    failed, with 2 if it could not begin because of what was given.
    """
    from hutch.cli.ability import run_ability

    return run_ability(user, id, params=params, transform=transform, egress_allow=egress_allow, as_json=json)


@ability.command(
    "remove",
    epilog="""\b
Example:
  hutch ability remove --user bo github_get_user
""",
)
@user_option
@click.argument("id", metavar="ID")
def remove_ability(user: str, id: str) -> int:
    """Forget an ability with all its versions."""
    from hutch.cli.ability import remove_ability

    return remove_ability(user, id)
