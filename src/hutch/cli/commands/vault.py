"""Command line of `hutch user`, `key`, `credential`, `vault`, `backup` and `restore`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

json_option = click.option("--json", is_flag=True, help="Print JSON on one line.")
user_option = click.option("--user", required=True, metavar="NAME", help="Name of the user.")
CREDENTIAL_KINDS = ("header", "cookie", "auth_token", "query", "body")


@click.group(
    epilog="""\b
Example:
  hutch user add bo
"""
)
def user() -> None:
    """Manage users.

    These commands open the database directly; a server may run at the same time.
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
    """Add a user and print its id."""
    from hutch.cli.vault.accounts import add_user

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
    from hutch.cli.vault.accounts import list_users

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
    """Show a user and how many keys, credentials and abilities it has."""
    from hutch.cli.vault.accounts import show_user

    return show_user(name, json=json)


@user.command(
    "remove",
    epilog="""\b
Example:
  hutch user remove bo --yes
""",
)
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def remove_user(name: str, yes: bool) -> int:
    """Remove a user with all keys, credentials and abilities.

    Asks for confirmation at a terminal.
    """
    from hutch.cli.vault.accounts import remove_user

    return remove_user(name, yes=yes)


def quota_options(command: Callable[..., int]) -> Callable[..., int]:
    """Adds one option for each limit."""
    number = click.IntRange(min=0, max=2**53)
    options = [
        ("--max-concurrent-executions", number, "Executions that wait or run."),
        ("--max-executions-per-minute", number, "Executions started per minute."),
        ("--max-executions-per-day", number, "Executions started per day (UTC)."),
        ("--max-cpu-seconds-per-day", number, "CPU seconds per day (UTC)."),
    ]
    for name, kind, text in reversed(options):
        command = click.option(name, type=kind, metavar="N", help=f"{text} 0 means no limit.")(command)
    return click.option("--clear", is_flag=True, help="Remove all limits that were set here.")(command)


@user.command(
    "quota",
    epilog="""\b
Examples:
  hutch user quota bo
  hutch user quota bo --max-executions-per-day 1000 --weight 2
""",
)
@click.argument("name")
@quota_options
@click.option(
    "--weight", type=click.IntRange(1, 100), metavar="N", help="Turns in the queue for runners.  [default: 1]"
)
@json_option
def user_quota(name: str, clear: bool, json: bool, **limits: int | None) -> int:
    """Show or change the limits of a user, and show today's usage.

    Limits that are not set here come from the settings. A running server applies changes within seconds.
    """
    from hutch.cli.vault.accounts import user_quota

    return user_quota(name, limits, clear=clear, json=json)


@click.group(
    epilog="""\b
Example:
  hutch key add bo --name laptop --expires 30d
"""
)
def key() -> None:
    """Manage API keys.

    A key is shown only when it is created; Hutch stores a hash of it.
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
@click.option("--name", default="", metavar="TEXT", help="A note on what the key is for.")
@click.option(
    "--expires", metavar="WHEN", help="A duration such as 12h, 30d or 8w, or a date.  [default: never]"
)
@click.option(
    "--scope",
    multiple=True,
    metavar="PROTOCOL",
    help="A protocol that it is valid for: abilities, execbox, mcp, rep, toolscript or tpmjs. May be "
    "repeated.  [default: abilities, mcp]",
)
def add_key(user: str, name: str, expires: str | None, scope: tuple[str, ...]) -> int:
    """Create an API key for a user. Prints only the key to stdout."""
    from hutch.cli.vault.accounts import add_key

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
    """List the API keys of a user, or of all users."""
    from hutch.cli.vault.accounts import list_keys

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
    """Show an API key's state, scopes and dates. KEY is its id."""
    from hutch.cli.vault.accounts import show_key

    return show_key(key, json=json)


@key.command(
    "quota",
    epilog="""\b
Examples:
  hutch key quota key_1a2b3c4d5e6f
  hutch key quota key_1a2b3c4d5e6f --max-executions-per-minute 30
""",
)
@click.argument("key")
@quota_options
@json_option
def key_quota(key: str, clear: bool, json: bool, **limits: int | None) -> int:
    """Show or change the limits of an API key, which override the limits of its user. KEY is its id."""
    from hutch.cli.vault.accounts import key_quota

    return key_quota(key, limits, clear=clear, json=json)


@key.command(
    "revoke",
    epilog="""\b
Example:
  hutch key revoke key_1a2b3c4d5e6f
""",
)
@click.argument("key")
def revoke_key(key: str) -> int:
    """Revoke an API key; it stays in the list. KEY is its id."""
    from hutch.cli.vault.accounts import revoke_key

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
    """Revoke and delete an API key. KEY is its id."""
    from hutch.cli.vault.accounts import remove_key

    return remove_key(key)


@click.group(
    epilog="""\b
Example:
  hutch credential set --user bo api.example.com::Authorization < token
"""
)
def credential() -> None:
    """Manage users' credentials for other services.

    Values are write-only: lists show at most the last four characters.
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
    "--kind", type=click.Choice(CREDENTIAL_KINDS), default="header", help="How it is sent.  [default: header]"
)
@click.option(
    "--encrypted",
    is_flag=True,
    help="The value is encrypted by the public client with the key in HUTCH_CREDENTIAL_KEY.",
)
def set_credential(user: str, about: str, value: tuple[str, ...], kind: str, encrypted: bool) -> int:
    """Store a credential for a host, replacing an earlier one.

    The value is read from stdin, without the line break at its end, or prompted for at a terminal. It is sent
    only to DOMAIN and its subdomains.
    """
    from hutch.cli.support import prompts
    from hutch.cli.vault.credentials import set_credential

    prompts.reject_secret_arguments(value)
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
    """List a user's credentials, without their values."""
    from hutch.cli.vault.credentials import list_credentials

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
    """Show the credentials for a host, without their values."""
    from hutch.cli.vault.credentials import show_credential

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
@click.option("--kind", type=click.Choice(CREDENTIAL_KINDS), help="Only credentials of this kind.")
def remove_credential(user: str, about: str, kind: str | None) -> int:
    """Delete all credentials for a host, or those with one name."""
    from hutch.cli.vault.credentials import remove_credentials

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
    """Import credentials that the public client exported.

    FILE (- for stdin) contains a list of {domain, credentialType, credentialKey, encryptedValue}. The key
    that they are encrypted with is read from HUTCH_CREDENTIAL_KEY, or prompted for. If any cannot be
    decrypted, nothing is stored.
    """
    from hutch.cli.vault.credentials import import_credentials

    return import_credentials(user, None if str(file) == "-" else file)


@click.group(
    epilog="""\b
Example:
  hutch vault status
"""
)
def vault() -> None:
    """Manage the keys that encrypt all secrets."""


@vault.command(
    epilog="""\b
Example:
  hutch vault status --json
"""
)
@json_option
def status(json: bool) -> int:
    """Show the master keys and how much each still encrypts.

    Exits with 1 if data is encrypted with a missing key.
    """
    from hutch.cli.vault.credentials import show_vault_status

    return show_vault_status(json=json)


@vault.command(
    epilog="""\b
Examples:
  hutch vault rotate
  hutch vault rotate --master
"""
)
@click.option("--master", is_flag=True, help="Create a new master key in HUTCH_HOME/master.key first.")
def rotate(master: bool) -> int:
    """Create new data keys for all users and flows.

    The current master key encrypts them. Servers may run at the same time. Older master keys are kept: `hutch
    vault status` shows when they are no longer needed.
    """
    from hutch.cli.vault.credentials import rotate_keys

    return rotate_keys(master=master)


@click.command(
    epilog="""\b
Examples:
  hutch backup hutch-2031-02-03.backup
  hutch backup /mnt/backup/hutch.backup --master-key /mnt/safe/master.key
""",
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--master-key",
    type=click.Path(path_type=Path),
    metavar="KEYFILE",
    help="Also write the master key, which the backup does not contain, to this new file.",
)
def backup(file: Path, master_key: Path | None) -> int:
    """Write all data of the database to a new FILE.

    Servers may run meanwhile: the backup is one consistent state. Secrets stay encrypted in it, so it is
    useless without the master key. Installed packages and logins to MCP servers are not part of it.
    """
    from hutch.cli.vault.backup import back_up

    return back_up(file, master_key)


@click.command(
    epilog="""\b
Examples:
  HUTCH_HOME=/var/lib/hutch hutch restore hutch.backup --master-key master.key
  HUTCH_DATABASE_URL=postgresql://db/hutch hutch restore hutch.backup
""",
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--master-key",
    type=click.Path(path_type=Path),
    metavar="KEYFILE",
    help="Copy of the master key, which is put into HUTCH_HOME.",
)
def restore(file: Path, master_key: Path | None) -> int:
    """Restore a backup into an empty database.

    The file is checked first. If anything fails, nothing is restored. The backup may come from an older
    version of Hutch, and from SQLite or PostgreSQL. Exits with 1 if the master key does not match.
    """
    from hutch.cli.vault.backup import restore

    return restore(file, master_key)
