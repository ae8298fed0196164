"""`hutch user`, `hutch key`, `hutch credential` and `hutch vault`: who may come in, and their secrets."""

from __future__ import annotations

from pathlib import Path

import click

json_option = click.option("--json", is_flag=True, help="Print it as JSON on one line.")
user_option = click.option("--user", required=True, metavar="NAME", help="Whose it is.")
KINDS = ("header", "cookie", "auth_token", "query", "body")


@click.group(
    epilog="""\b
Example:
  hutch user add bo
"""
)
def user() -> None:
    """Look after users.

    These commands work on the database itself; a server may use it meanwhile.
    """


@user.command(
    "add",
    epilog="""\b
Example:
  hutch user add bo
""",
)
@click.argument("name")
def add_user(name: str) -> int:
    """Add a user, and print the id."""
    from hutch.cli.users import add_user

    return add_user(name)


@user.command(
    "list",
    epilog="""\b
Example:
  hutch user list --json
""",
)
@json_option
def list_users(json: bool) -> int:
    """List all users."""
    from hutch.cli.users import list_users

    return list_users(json=json)


@user.command(
    "show",
    epilog="""\b
Example:
  hutch user show bo
""",
)
@click.argument("name")
@json_option
def show_user(name: str, json: bool) -> int:
    """Say what a user has."""
    from hutch.cli.users import show_user

    return show_user(name, json=json)


@user.command(
    "remove",
    epilog="""\b
Example:
  hutch user remove bo --yes
""",
)
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask first.")
def remove_user(name: str, yes: bool) -> int:
    """Remove a user with all keys, credentials and abilities.

    At a terminal it asks first.
    """
    from hutch.cli.users import remove_user

    return remove_user(name, yes=yes)


@click.group(
    epilog="""\b
Example:
  hutch key add bo --name laptop --expires 30d
"""
)
def key() -> None:
    """Look after API keys.

    A key is shown once, when it is made; what is kept cannot be turned back into it.
    """


@key.command(
    "add",
    epilog="""\b
Examples:
  hutch key add bo
  hutch key add bo --name laptop --expires 30d --scope abilities --scope execbox > key
""",
)
@click.argument("user")
@click.option("--name", default="", metavar="TEXT", help="What it is for.")
@click.option(
    "--expires", metavar="WHEN", help="After such as 12h, 30d or 8w, or on a date.  [default: never]"
)
@click.option(
    "--scope",
    multiple=True,
    metavar="DOOR",
    help="Where it counts: abilities, execbox, mcp, rep, toolscript, tpmjs. May be repeated.  "
    "[default: abilities, mcp]",
)
def add_key(user: str, name: str, expires: str | None, scope: tuple[str, ...]) -> int:
    """Make an API key of a user. It alone goes to stdout."""
    from hutch.cli.keys import add_key

    return add_key(user, name=name, expires=expires, scopes=scope)


@key.command(
    "list",
    epilog="""\b
Examples:
  hutch key list
  hutch key list bo --json
""",
)
@click.argument("user", required=False)
@json_option
def list_keys(user: str | None, json: bool) -> int:
    """List the API keys of a user, or of all."""
    from hutch.cli.keys import list_keys

    return list_keys(user, json=json)


@key.command(
    "show",
    epilog="""\b
Example:
  hutch key show key_1a2b3c4d5e6f
""",
)
@click.argument("key")
@json_option
def show_key(key: str, json: bool) -> int:
    """Say what is known of an API key. KEY is its id."""
    from hutch.cli.keys import show_key

    return show_key(key, json=json)


@key.command(
    "revoke",
    epilog="""\b
Example:
  hutch key revoke key_1a2b3c4d5e6f
""",
)
@click.argument("key")
def revoke_key(key: str) -> int:
    """End an API key at once; it stays in the list. KEY is its id."""
    from hutch.cli.keys import revoke_key

    return revoke_key(key)


@key.command(
    "remove",
    epilog="""\b
Example:
  hutch key remove key_1a2b3c4d5e6f
""",
)
@click.argument("key")
def remove_key(key: str) -> int:
    """End an API key at once and forget it. KEY is its id."""
    from hutch.cli.keys import remove_key

    return remove_key(key)


@click.group(
    epilog="""\b
Example:
  hutch credential set --user bo api.example.com::Authorization < token
"""
)
def credential() -> None:
    """Look after users' secrets at other services.

    A value goes in and never comes out: lists show at most its last four characters.
    """


@credential.command(
    "set",
    epilog="""\b
Examples:
  hutch credential set --user bo api.example.com::Authorization < header
  hutch credential set --user bo shop.example.com::session --kind cookie
  HUTCH_CREDENTIAL_KEY=… hutch credential set --user bo api.example.com::apikey --encrypted < value.json
""",
)
@user_option
@click.argument("about", metavar="DOMAIN::NAME")
@click.argument("value", nargs=-1, required=False, metavar="")
@click.option(
    "--kind", type=click.Choice(KINDS), default="header", help="What it becomes part of.  [default: header]"
)
@click.option(
    "--encrypted",
    is_flag=True,
    help="The value is as the public client encrypts it, with the key in HUTCH_CREDENTIAL_KEY.",
)
def set_credential(user: str, about: str, value: tuple[str, ...], kind: str, encrypted: bool) -> int:
    """Keep a value for a host, in the place of the one before.

    The value is read from stdin, without a line break at its end, or asked for at a terminal. It is sent to
    DOMAIN and its subdomains alone.
    """
    from hutch.cli import hidden
    from hutch.cli.credentials import set_credential

    hidden.refuse_arguments(value)
    return set_credential(user, about, kind=kind, encrypted=encrypted)


@credential.command(
    "list",
    epilog="""\b
Example:
  hutch credential list --user bo
""",
)
@user_option
@json_option
def list_credentials(user: str, json: bool) -> int:
    """List what is kept for a user: never the values."""
    from hutch.cli.credentials import list_credentials

    return list_credentials(user, json=json)


@credential.command(
    "show",
    epilog="""\b
Examples:
  hutch credential show --user bo api.example.com
  hutch credential show --user bo api.example.com::Authorization --json
""",
)
@user_option
@click.argument("about", metavar="DOMAIN[::NAME]")
@json_option
def show_credential(user: str, about: str, json: bool) -> int:
    """Say what is kept for a host: never the value."""
    from hutch.cli.credentials import show_credential

    return show_credential(user, about, json=json)


@credential.command(
    "remove",
    epilog="""\b
Examples:
  hutch credential remove --user bo api.example.com::Authorization
  hutch credential remove --user bo api.example.com
""",
)
@user_option
@click.argument("about", metavar="DOMAIN[::NAME]")
@click.option("--kind", type=click.Choice(KINDS), help="Only of this kind.")
def remove_credential(user: str, about: str, kind: str | None) -> int:
    """Forget what is kept for a host, all of it or one name's."""
    from hutch.cli.credentials import remove_credentials

    return remove_credentials(user, about, kind=kind)


@credential.command(
    "import",
    epilog="""\b
Example:
  HUTCH_CREDENTIAL_KEY=… hutch credential import --user bo exported.json
""",
)
@user_option
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path, allow_dash=True))
def import_credentials(user: str, file: Path) -> int:
    """Keep all that the public client has exported.

    FILE, or - for stdin, has a list of {domain, credentialType, credentialKey, encryptedValue}. The key that
    they are encrypted with is in HUTCH_CREDENTIAL_KEY, or asked for. Keeps nothing if any cannot be read.
    """
    from hutch.cli.credentials import import_credentials

    return import_credentials(user, None if str(file) == "-" else file)


@click.group(
    epilog="""\b
Example:
  hutch vault status
"""
)
def vault() -> None:
    """Look after the keys that all secrets are sealed with."""


@vault.command(
    epilog="""\b
Example:
  hutch vault status --json
"""
)
@json_option
def status(json: bool) -> int:
    """Say which master keys there are, and what still needs each.

    Exits with 1 if something is sealed with a key that is not there.
    """
    from hutch.cli.vault import status

    return status(json=json)


@vault.command(
    epilog="""\b
Examples:
  hutch vault rotate
  hutch vault rotate --master
"""
)
@click.option("--master", is_flag=True, help="Make a new master key in HUTCH_HOME/master.key first.")
def rotate(master: bool) -> int:
    """Give every user, and flows, a new data key, sealed with the current master key.

    Servers may run meanwhile. Older master keys stay where they are: `hutch vault status` tells when nothing
    needs them any more.
    """
    from hutch.cli.vault import rotate

    return rotate(master=master)
