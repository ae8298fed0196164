"""Command line of `hutch ability`."""

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
    """Manage and run abilities: API wrappers with credentials.

    These commands open the database directly; a server may run at the same time.
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
    help="Read the wrapper code from a file, if the JSON has no wrapper_code.",
)
@click.option("--shared", is_flag=True, help="Let all users run it, each with their own credentials.")
def add_ability(user: str, file: Path, code: Path | None, shared: bool) -> int:
    """Add or update abilities, and print their ids.

    FILE (- for stdin) contains one ability as JSON, {ability_id, service_name, wrapper_code, …}, or a list of
    them. An existing ability gets a new version. If any is invalid, nothing is stored and the exit code is 2.
    """
    from hutch.cli.ability.abilities import add_abilities

    return add_abilities(user, None if str(file) == "-" else file, code=code, shared=shared)


@ability.command(
    "import",
    epilog="""\b
Examples:
  hutch ability import --curl - < command.txt > users.json
  hutch ability import --har recorded.har > abilities.json
  hutch ability import --openapi https://api.example.com/openapi.json --operations listUsers,getUser
""",
)
@click.option("--curl", metavar="COMMAND", help="A curl command; - reads it from stdin.")
@click.option("--id", metavar="ID", help="With --curl: id of the ability.  [default: made from the URL]")
@click.option(
    "--har",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Requests that a browser or a proxy recorded, as HAR 1.2.",
)
@click.option("--openapi", metavar="FILE|URL", help="An OpenAPI 3.0 or 3.1 document, as JSON or YAML.")
@click.option(
    "--operations",
    metavar="A,B",
    help="With --openapi: operation ids, or METHOD /path.  [default: all]",
)
@click.option(
    "--server", metavar="URL", help="With --openapi: base URL of the API instead of the document's."
)
def import_ability(
    curl: str | None,
    id: str | None,
    har: Path | None,
    openapi: str | None,
    operations: str | None,
    server: str | None,
) -> int:
    """Print definitions of abilities made from a curl command, a HAR file or an OpenAPI document.

    Parameters of the path, the query and the body become parameters of the ability. Secrets are left out: the
    command prints which credentials to set instead, and which commands to run next.
    """
    from hutch.cli.ability_import import commands

    if sum(each is not None for each in (curl, har, openapi)) != 1:
        raise click.UsageError("Expected one of --curl, --har and --openapi.")
    if id is not None and curl is None:
        raise click.UsageError("--id needs --curl.")
    if openapi is None and (operations is not None or server is not None):
        raise click.UsageError("--operations and --server need --openapi.")
    if curl is not None:
        return commands.import_curl(curl, id)
    if har is not None:
        return commands.import_har(har)
    assert openapi is not None
    names = [name.strip() for name in (operations or "").split(",") if name.strip()]
    return commands.import_openapi(openapi, names, server)


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
    """List the abilities that a user can run, including shared ones."""
    from hutch.cli.ability.abilities import list_abilities

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
    """Show an ability, without its code.

    Prints its description, its parameters and the credentials that it requires.
    """
    from hutch.cli.ability.abilities import show_ability

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
    help="Parameters as a JSON object; @FILE reads a file, - reads stdin.  [default: {}]",
)
@click.option("--transform", metavar="CODE", help="A JavaScript function to apply to the response body.")
@click.option(
    "--egress-allow",
    multiple=True,
    metavar="HOST:PORT",
    help="Allow an address that is not public, also over http. May be repeated.",
)
@click.option("--trace", is_flag=True, help="Print the wrapper's requests to stderr.")
@click.option("--version", type=int, metavar="N", help="Run an older version of the user's own ability.")
@click.option("--json", is_flag=True, help="Print the full response of the HTTP API on one line.")
def run_ability(
    user: str,
    id: str,
    params: str | None,
    transform: str | None,
    egress_allow: tuple[str, ...],
    trace: bool,
    version: int | None,
    json: bool,
) -> int:
    """Run an ability with a user's credentials.

    Prints logs to stderr and the body of the API's response to stdout as JSON. Exits with 1 if the ability
    failed, with 2 if the arguments are invalid.
    """
    from hutch.cli.ability.abilities import run_ability

    return run_ability(
        user,
        id,
        params=params,
        transform=transform,
        egress_allow=egress_allow,
        as_json=json,
        trace=trace,
        version=version,
    )


@ability.command(
    "versions",
    epilog="""\b
Example:
  hutch ability versions --user bo github_get_user
""",
)
@user_option
@click.argument("id", metavar="ID")
@json_option
def list_versions(user: str, id: str, json: bool) -> int:
    """List all versions of a user's own ability, newest first."""
    from hutch.cli.ability.abilities import list_versions

    return list_versions(user, id, as_json=json)


@ability.command(
    "diff",
    epilog="""\b
Example:
  hutch ability diff --user bo github_get_user 1 2
""",
)
@user_option
@click.argument("id", metavar="ID")
@click.argument("old", metavar="OLD", type=int)
@click.argument("new", metavar="[NEW]", type=int, required=False)
def compare_versions(user: str, id: str, old: int, new: int | None) -> int:
    """Compare two versions of a user's own ability; by default, an old one with the newest.

    Prints the fields that differ. The code is not shown, only how many of its lines differ.
    """
    from hutch.cli.ability.abilities import compare_versions

    return compare_versions(user, id, old, new)


@ability.command(
    "restore",
    epilog="""\b
Example:
  hutch ability restore --user bo github_get_user 1
""",
)
@user_option
@click.argument("id", metavar="ID")
@click.argument("version", metavar="VERSION", type=int)
def restore_version(user: str, id: str, version: int) -> int:
    """Store an old version of a user's own ability again, as the newest version."""
    from hutch.cli.ability.abilities import restore_version

    return restore_version(user, id, version)


_with_user = click.option(
    "--with", "users", multiple=True, metavar="USER", help="Name of a user. May be repeated."
)
_with_group = click.option(
    "--with-group", "groups", multiple=True, metavar="GROUP", help="Name of a group. May be repeated."
)


@ability.command(
    "share",
    epilog="""\b
Examples:
  hutch ability share --user bo github_get_user --with ann --with-group support
  hutch ability share --user bo github_get_user
""",
)
@user_option
@click.argument("id", metavar="ID")
@_with_user
@_with_group
def share_ability(user: str, id: str, users: tuple[str, ...], groups: tuple[str, ...]) -> int:
    """Share a user's own ability with other users and groups, who run it with their own credentials.

    Prints the users and groups that can run it. Without --with and --with-group, changes nothing.
    `hutch ability add --shared` shares an ability with everyone instead.
    """
    from hutch.cli.ability.sharing import share_ability

    return share_ability(user, id, users, groups)


@ability.command(
    "unshare",
    epilog="""\b
Example:
  hutch ability unshare --user bo github_get_user --with ann
""",
)
@user_option
@click.argument("id", metavar="ID")
@_with_user
@_with_group
def unshare_ability(user: str, id: str, users: tuple[str, ...], groups: tuple[str, ...]) -> int:
    """Stop sharing a user's own ability.

    Prints the users and groups that still can run it.
    """
    from hutch.cli.ability.sharing import unshare_ability

    if not users and not groups:
        raise click.UsageError("Expected --with USER or --with-group GROUP.")
    return unshare_ability(user, id, users, groups)


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
    """Delete an ability with all its versions."""
    from hutch.cli.ability.abilities import remove_ability

    return remove_ability(user, id)
