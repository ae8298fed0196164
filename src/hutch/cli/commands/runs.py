"""Command line of `hutch runs`."""

from __future__ import annotations

from typing import Any

import click

url_option = click.option(
    "--url", envvar="HUTCH_URL", metavar="URL", help="Server to ask, such as http://127.0.0.1:4111."
)
key_option = click.option(
    "--key-env",
    metavar="NAME",
    default="HUTCH_API_KEY",
    show_default=True,
    help="Variable with the API key for --url.",
)
_FILTERS = (
    ("--status", "pending, running, completed, failed or suspended."),
    ("--protocol", "Such as execbox or mcp."),
    ("--owner", "A user's name."),
    ("--code", "Error code, such as timeout."),
    ("--engine", "Such as quickjs."),
    ("--label", "Label; * at the end for every continuation."),
    ("--tool", "A tool that was called: provider.tool."),
    ("--host", "A host that was reached."),
    ("--text", "Text in id, label, code, tools or hosts."),
)


def _example(command: str) -> str:
    return f"\b\nExample:\n  {command}\n"


def filter_options(command: Any) -> Any:
    for name, text in reversed(_FILTERS):
        command = click.option(name, multiple=True, metavar="VALUE", help=f"{text} -VALUE excludes.")(command)
    for name in ("--since", "--until"):
        command = click.option(name, metavar="TIME", help="A time, or how long ago: 15m, 1h, 7d.")(command)
    return click.option("--failed", is_flag=True, help="Only failed runs.")(command)


@click.group(epilog=_example("hutch runs list --failed --since 1h"))
def runs() -> None:
    """List, show, follow, cancel, replay and export runs.

    Without --url, records are read from this machine's store.
    """


@runs.command("list", epilog=_example("hutch runs list --failed --since 1h"))
@filter_options
@click.option("--sort", type=click.Choice(["created", "duration"]), default="created", show_default=True)
@click.option("--limit", type=click.IntRange(1, 1_000), default=30, show_default=True)
@click.option("--json", is_flag=True, help="Print the response of GET /runs.")
@url_option
@key_option
def list_command(url: str | None, key_env: str, json: bool, **filters: Any) -> int:
    """List runs, newest first, with the error of each failed run."""
    from hutch.cli.runs import list_runs

    return list_runs(filters, url, key_env, as_json=json)


@runs.command(epilog=_example("hutch runs show 5f0c6c1c0d6f4b7e9d1c2b3a4f5e6d7c"))
@click.argument("run_id", metavar="ID")
@click.option("--json", is_flag=True, help="Print the response of GET /runs/ID.")
@url_option
@key_option
def show(run_id: str, url: str | None, key_env: str, json: bool) -> int:
    """Show a run with its calls, logs and error."""
    from hutch.cli.runs import show_run

    return show_run(run_id, url, key_env, as_json=json)


@runs.command(epilog=_example("hutch runs tail 5f0c6c1c0d6f4b7e9d1c2b3a4f5e6d7c --url http://127.0.0.1:4111"))
@click.argument("run_id", metavar="ID")
@url_option
@key_option
def tail(run_id: str, url: str | None, key_env: str) -> int:
    """Follow the events of a run on a server until it ends."""
    from hutch.cli.runs import tail_run

    return tail_run(run_id, url, key_env)


@runs.command(
    epilog=_example("hutch runs cancel 5f0c6c1c0d6f4b7e9d1c2b3a4f5e6d7c --url http://127.0.0.1:4111")
)
@click.argument("run_ids", metavar="ID...", nargs=-1, required=True)
@url_option
@key_option
def cancel(run_ids: tuple[str, ...], url: str | None, key_env: str) -> int:
    """Cancel runs on a server."""
    from hutch.cli.runs import cancel_runs

    return cancel_runs(run_ids, url, key_env)


@runs.command(
    epilog=_example(
        "hutch runs replay 5f0c6c1c0d6f4b7e9d1c2b3a4f5e6d7c --code @fixed.ts --url http://127.0.0.1:4111"
    )
)
@click.argument("run_id", metavar="ID")
@click.option("--mode", type=click.Choice(["recorded", "same"]), default="recorded", show_default=True)
@click.option("--code", metavar="CODE", help="Other code, or @FILE.")
@click.option("--inputs", metavar="JSON", help="Other inputs.")
@url_option
@key_option
def replay(
    run_id: str, mode: str, code: str | None, inputs: str | None, url: str | None, key_env: str
) -> int:
    """Run recorded code again on a server.

    With the mode `recorded`, tool calls are answered from the record, and nothing outside is touched.
    """
    from hutch.cli.runs import replay_run

    return replay_run(run_id, mode, code, inputs, url, key_env)


@runs.command(epilog=_example("hutch runs export --since 7d > runs.jsonl"))
@filter_options
@click.option("--details", is_flag=True, help="Everything that is recorded of each run.")
@url_option
@key_option
def export(details: bool, url: str | None, key_env: str, **filters: Any) -> int:
    """Print all matching runs as JSON lines."""
    from hutch.cli.runs import export_runs

    return export_runs(filters, url, key_env, details=details)
