"""Command line of `hutch queue`, `webhooks`, `script`, `schedule` and `trigger`."""

from __future__ import annotations

from typing import Any

import click

from hutch.cli.commands.runs import key_option, url_option

json_option = click.option("--json", is_flag=True, help="Print JSON.")
name_argument = click.argument("name", metavar="NAME")


def _example(command: str) -> str:
    return f"\b\nExample:\n  {command}\n"


def target_options(command: Any) -> Any:
    options = (
        click.option("--flow", metavar="FLOW", help="Stored flow to start."),
        click.option("--script", metavar="SCRIPT", help="Saved script to start."),
        click.option("--inputs", metavar="JSON", help="Inputs, or @FILE."),
        click.option("--attempts", type=click.IntRange(1, 100), help="Starts until it succeeds."),
        click.option("--webhook", metavar="URL", help="Gets a signed message at the end of each run."),
    )
    for option in reversed(options):
        command = option(command)
    return command


# --- runs ---


@click.group(epilog=_example("hutch queue list --dead"))
def queue() -> None:
    """List asynchronous runs of a server, and retry dead letters."""


@queue.command("list", epilog=_example("hutch queue list --dead"))
@click.option("--dead", is_flag=True, help="Only runs whose attempts have all failed.")
@json_option
@url_option
@key_option
def list_queue(dead: bool, json: bool, url: str | None, key_env: str) -> int:
    """List runs that wait, run, or are dead letters."""
    from hutch.cli import queue

    return queue.list_queue(url, key_env, dead=dead, as_json=json)


@queue.command("retry", epilog=_example("hutch queue retry 5f0c6c1c0d6f4b7e9d1c2b3a4f5e6d7c"))
@click.argument("run_ids", metavar="ID...", nargs=-1, required=True)
@url_option
@key_option
def retry(run_ids: tuple[str, ...], url: str | None, key_env: str) -> int:
    """Queue dead letters again, with all their attempts."""
    from hutch.cli import queue

    return queue.retry_runs(run_ids, url, key_env)


@queue.command("remove", epilog=_example("hutch queue remove 5f0c6c1c0d6f4b7e9d1c2b3a4f5e6d7c"))
@click.argument("run_ids", metavar="ID...", nargs=-1, required=True)
@url_option
@key_option
def remove(run_ids: tuple[str, ...], url: str | None, key_env: str) -> int:
    """Remove dead letters from the list. Their records stay."""
    from hutch.cli import queue

    return queue.remove_runs(run_ids, url, key_env)


# --- webhooks ---


@click.group(epilog=_example("hutch webhooks list"))
def webhooks() -> None:
    """List messages about the ends of asynchronous runs, and send them again."""


@webhooks.command("list", epilog=_example("hutch webhooks list --run 5f0c6c1c0d6f4b7e9d1c2b3a4f5e6d7c"))
@click.option("--run", "run_id", metavar="ID", help="Only messages about this run.")
@json_option
@url_option
@key_option
def list_deliveries(run_id: str | None, json: bool, url: str | None, key_env: str) -> int:
    """List messages with the responses of their targets."""
    from hutch.cli import queue

    return queue.list_deliveries(run_id, url, key_env, as_json=json)


@webhooks.command("send", epilog=_example("hutch webhooks send msg_5f0c6c1c0d6f4b7e9d1c2b3a4f5e6d7c_1"))
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@url_option
@key_option
def send_again(ids: tuple[str, ...], url: str | None, key_env: str) -> int:
    """Send messages again."""
    from hutch.cli import queue

    return queue.send_again(ids, url, key_env)


@webhooks.command("secret", epilog=_example("hutch webhooks secret"))
@click.option("--rotate", is_flag=True, help="Replace it by a new one.")
@url_option
@key_option
def secret(rotate: bool, url: str | None, key_env: str) -> int:
    """Print the secret that signs your messages."""
    from hutch.cli import queue

    return queue.show_secret(url, key_env, rotate=rotate)


# --- saved scripts ---


@click.group(epilog=_example("hutch script save report report.ts"))
def script() -> None:
    """Save scripts on a server, for schedules and triggers."""


@script.command("save", epilog=_example("hutch script save report report.ts"))
@name_argument
@click.argument("file", metavar="FILE")
@click.option(
    "--engine",
    type=click.Choice(["script", "quickjs", "deno"]),
    default="script",
    show_default=True,
    help="script for a toolscript, others for code whose inputs are variables.",
)
@url_option
@key_option
def save_script(name: str, file: str, engine: str, url: str | None, key_env: str) -> int:
    """Save a script, or replace it. - reads standard input."""
    from hutch.cli import queue

    return queue.save_script(name, file, engine, url, key_env)


@script.command("list", epilog=_example("hutch script list"))
@json_option
@url_option
@key_option
def list_scripts(json: bool, url: str | None, key_env: str) -> int:
    """List saved scripts."""
    from hutch.cli import queue

    return queue.list_scripts(url, key_env, as_json=json)


@script.command("show", epilog=_example("hutch script show report"))
@name_argument
@url_option
@key_option
def show_script(name: str, url: str | None, key_env: str) -> int:
    """Print the code of a saved script."""
    from hutch.cli import queue

    return queue.show_script(name, url, key_env)


@script.command("remove", epilog=_example("hutch script remove report"))
@name_argument
@url_option
@key_option
def remove_script(name: str, url: str | None, key_env: str) -> int:
    """Remove a saved script."""
    from hutch.cli import queue

    return queue.remove("scripts", name, url, key_env)


# --- schedules ---


@click.group(epilog=_example('hutch schedule add nightly "0 3 * * *" --script report'))
def schedule() -> None:
    """Start flows and saved scripts at certain times."""


@schedule.command(
    "add", epilog=_example('hutch schedule add nightly "0 3 * * *" --script report --timezone Europe/Berlin')
)
@name_argument
@click.argument("cron", metavar="CRON")
@target_options
@click.option("--timezone", metavar="ZONE", default="UTC", show_default=True)
@click.option(
    "--missed",
    type=click.Choice(["skip", "once", "all"]),
    default="skip",
    show_default=True,
    help="What happens with ticks while no server ran.",
)
@url_option
@key_option
def add_schedule(url: str | None, key_env: str, inputs: str | None, **fields: Any) -> int:
    """Add a schedule with a cron expression."""
    from hutch.cli import queue

    fields["inputs"] = queue.parse_object(inputs, "inputs")
    return queue.add_schedule(fields, url, key_env)


@schedule.command("list", epilog=_example("hutch schedule list"))
@json_option
@url_option
@key_option
def list_schedules(json: bool, url: str | None, key_env: str) -> int:
    """List schedules with their next and last runs."""
    from hutch.cli import queue

    return queue.list_schedules(url, key_env, as_json=json)


@schedule.command("pause", epilog=_example("hutch schedule pause nightly"))
@name_argument
@url_option
@key_option
def pause_schedule(name: str, url: str | None, key_env: str) -> int:
    """Pause a schedule."""
    from hutch.cli import queue

    return queue.pause("schedules", name, url, key_env, is_paused=True)


@schedule.command("resume", epilog=_example("hutch schedule resume nightly"))
@name_argument
@url_option
@key_option
def resume_schedule(name: str, url: str | None, key_env: str) -> int:
    """Continue a paused schedule with its next tick."""
    from hutch.cli import queue

    return queue.pause("schedules", name, url, key_env, is_paused=False)


@schedule.command("remove", epilog=_example("hutch schedule remove nightly"))
@name_argument
@url_option
@key_option
def remove_schedule(name: str, url: str | None, key_env: str) -> int:
    """Remove a schedule."""
    from hutch.cli import queue

    return queue.remove("schedules", name, url, key_env)


# --- triggers ---


@click.group(epilog=_example("hutch trigger add push --flow build --signature github"))
def trigger() -> None:
    """Start flows and saved scripts by requests of other services."""


@trigger.command(
    "add",
    epilog=_example(
        'hutch trigger add push --flow build --signature github --map \'{"repo": "body.repository.name"}\''
    ),
)
@name_argument
@target_options
@click.option(
    "--signature",
    type=click.Choice(["none", "github", "stripe", "standard"]),
    default="none",
    show_default=True,
    help="How requests are signed.",
)
@click.option("--secret-env", metavar="VARIABLE", help="Variable with the secret of the signature.")
@click.option("--map", "mapping", metavar="JSON", help="A path of the request for each input, or @FILE.")
@url_option
@key_option
def add_trigger(
    url: str | None,
    key_env: str,
    inputs: str | None,
    mapping: str | None,
    secret_env: str | None,
    **fields: Any,
) -> int:
    """Add a trigger. Prints its URL and its secret."""
    import os

    from hutch.cli import queue

    fields["inputs"] = queue.parse_object(inputs, "inputs")
    fields["map"] = queue.parse_object(mapping, "map")
    fields["secret"] = None if secret_env is None else os.environ.get(secret_env)
    return queue.add_trigger(fields, url, key_env)


@trigger.command("list", epilog=_example("hutch trigger list"))
@json_option
@url_option
@key_option
def list_triggers(json: bool, url: str | None, key_env: str) -> int:
    """List triggers with their last runs."""
    from hutch.cli import queue

    return queue.list_triggers(url, key_env, as_json=json)


@trigger.command("pause", epilog=_example("hutch trigger pause push"))
@name_argument
@url_option
@key_option
def pause_trigger(name: str, url: str | None, key_env: str) -> int:
    """Pause a trigger. Its URL answers 404."""
    from hutch.cli import queue

    return queue.pause("triggers", name, url, key_env, is_paused=True)


@trigger.command("resume", epilog=_example("hutch trigger resume push"))
@name_argument
@url_option
@key_option
def resume_trigger(name: str, url: str | None, key_env: str) -> int:
    """Continue a paused trigger."""
    from hutch.cli import queue

    return queue.pause("triggers", name, url, key_env, is_paused=False)


@trigger.command("remove", epilog=_example("hutch trigger remove push"))
@name_argument
@url_option
@key_option
def remove_trigger(name: str, url: str | None, key_env: str) -> int:
    """Remove a trigger. Its URL does not exist any more."""
    from hutch.cli import queue

    return queue.remove("triggers", name, url, key_env)
