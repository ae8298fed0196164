"""`hutch queue`, `webhooks`, `script`, `schedule` and `trigger`: the queue of a server."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ParamSpec
from urllib.parse import quote

from hutch.cli.runs import RemoteRuns, with_server
from hutch.cli.support.console import format_age_of, print_json_value, print_line, print_note, print_table
from hutch.errors import InvalidInput

P = ParamSpec("P")
Row = Callable[[dict[str, Any]], Sequence[str]]


def call(url: str | None, key_env: str, method: str, path: str, **options: Any) -> Any:
    """Sends one request to the server. If the server returns an error, raises InvalidInput with its
    message.
    """

    async def send(server: RemoteRuns) -> Any:
        return await server.call(method, path, **options)

    return with_server(url, key_env, send)


def expects_answer(command: Callable[P, int]) -> Callable[P, int]:
    """Makes a command raise InvalidInput if the server's response has an unknown format."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> int:
        try:
            return command(*args, **kwargs)
        except (KeyError, TypeError, AttributeError, IndexError):
            message = "its answer has an unknown format."
            raise InvalidInput("server", message, remedy="Is it a Hutch server of this version?") from None

    return run


def path_of(*parts: str) -> str:
    return "/" + "/".join(quote(part, safe="") for part in parts)


def parse_object(text: str | None, option: str) -> dict[str, Any]:
    """Parses a JSON object, or @FILE with one. Raises InvalidInput."""
    if text is None:
        return {}
    try:
        source = Path(text[1:]).read_text() if text.startswith("@") else text
        value = json.loads(source)
    except (OSError, ValueError) as error:
        raise InvalidInput(option, f"expected a JSON object, or @FILE: {error}.") from None
    if not isinstance(value, dict):
        raise InvalidInput(option, "expected a JSON object.")
    return value


def _print_list(
    items: list[dict[str, Any]], headers: Sequence[str], row: Row, *, empty: str, as_json: bool
) -> int:
    if as_json:
        print_json_value(items)
    elif items:
        print_table(headers, [row(item) for item in items])
    else:
        print_note(empty)
    return 0


# --- runs ---


@expects_answer
def list_queue(url: str | None, key_env: str, *, dead: bool, as_json: bool) -> int:
    body = call(url, key_env, "GET", "/queue")
    runs = [run for run in body["runs"] if not dead or run["state"] == "dead"]
    if body["counts"] and not as_json:
        print_line(", ".join(f"{count} {state}" for state, count in sorted(body["counts"].items())))
    return _print_list(
        runs,
        ("RUN", "KIND", "LABEL", "STATE", "ATTEMPTS", "ADDED", "OUTCOME"),
        lambda run: (
            run["run_id"],
            run["kind"],
            run["label"] or "",
            run["state"],
            str(run["attempts"]),
            format_age_of(run["created_at"]),
            run["outcome"] or "",
        ),
        empty="there are no dead letters" if dead else "no runs are waiting; `POST /runs` adds some",
        as_json=as_json,
    )


@expects_answer
def retry_runs(run_ids: Sequence[str], url: str | None, key_env: str) -> int:
    for run_id in run_ids:
        call(url, key_env, "POST", path_of("queue", run_id, "retry"))
        print_line(f"{run_id} is queued again")
    return 0


@expects_answer
def remove_runs(run_ids: Sequence[str], url: str | None, key_env: str) -> int:
    for run_id in run_ids:
        call(url, key_env, "DELETE", path_of("queue", run_id))
        print_line(f"{run_id} is not a dead letter any more")
    return 0


# --- webhooks ---


@expects_answer
def list_deliveries(run_id: str | None, url: str | None, key_env: str, *, as_json: bool) -> int:
    params = {} if run_id is None else {"run_id": run_id}
    body = call(url, key_env, "GET", "/webhooks", params=params)
    return _print_list(
        body["deliveries"],
        ("ID", "EVENT", "STATE", "ATTEMPTS", "LAST ANSWER", "ADDED"),
        lambda row: (
            row["id"],
            row["event"],
            row["state"],
            str(row["attempt_count"]),
            _last_answer(row),
            format_age_of(row["created_at"]),
        ),
        empty="there are no messages; runs that are added with a webhook send them",
        as_json=as_json,
    )


def _last_answer(delivery: dict[str, Any]) -> str:
    if not delivery["attempts"]:
        return ""
    last = delivery["attempts"][-1]
    return str(last["status"] or last["error"])


@expects_answer
def send_again(ids: Sequence[str], url: str | None, key_env: str) -> int:
    for id in ids:
        call(url, key_env, "POST", path_of("webhooks", id, "send"))
        print_line(f"{id} is sent again")
    return 0


@expects_answer
def show_secret(url: str | None, key_env: str, *, rotate: bool) -> int:
    print_line(call(url, key_env, "POST" if rotate else "GET", "/webhooks/secret")["secret"])
    return 0


# --- saved scripts ---


@expects_answer
def save_script(name: str, file: str, engine: str, url: str | None, key_env: str) -> int:
    try:
        code = sys.stdin.read() if file == "-" else Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput("file", f"{file!r} cannot be read: {error}.") from None
    call(url, key_env, "PUT", path_of("scripts", name), json={"code": code, "engine": engine})
    print_line(f"{name} is saved")
    return 0


@expects_answer
def list_scripts(url: str | None, key_env: str, *, as_json: bool) -> int:
    body = call(url, key_env, "GET", "/scripts")
    return _print_list(
        body["scripts"],
        ("NAME", "ENGINE", "SAVED"),
        lambda row: (row["name"], row["engine"], format_age_of(row["updated_at"])),
        empty="there are no scripts; `hutch script save NAME FILE` saves one",
        as_json=as_json,
    )


@expects_answer
def show_script(name: str, url: str | None, key_env: str) -> int:
    print_line(call(url, key_env, "GET", path_of("scripts", name))["code"])
    return 0


# --- schedules and triggers ---


@expects_answer
def add_schedule(fields: dict[str, Any], url: str | None, key_env: str) -> int:
    added = call(url, key_env, "POST", "/schedules", json=_without_none(fields))
    print_line(f"{added['name']} starts next at {added['next_at']}")
    return 0


@expects_answer
def list_schedules(url: str | None, key_env: str, *, as_json: bool) -> int:
    body = call(url, key_env, "GET", "/schedules")
    return _print_list(
        body["schedules"],
        ("NAME", "STARTS", "CRON", "TIME ZONE", "NEXT", "LAST RUN"),
        lambda row: (
            row["name"],
            _target(row),
            row["cron"],
            row["timezone"],
            row["next_at"] or "paused",
            row["last_run_id"] or "",
        ),
        empty="there are no schedules; `hutch schedule add` adds one",
        as_json=as_json,
    )


@expects_answer
def add_trigger(fields: dict[str, Any], url: str | None, key_env: str) -> int:
    added = call(url, key_env, "POST", "/triggers", json=_without_none(fields))
    print_line(f"URL:     {added['url']}")
    if added["secret"]:
        print_line(f"Secret:  {added['secret']}")
    print_line("Only this output shows them. Send requests with POST to this path of the server.")
    return 0


@expects_answer
def list_triggers(url: str | None, key_env: str, *, as_json: bool) -> int:
    body = call(url, key_env, "GET", "/triggers")
    return _print_list(
        body["triggers"],
        ("NAME", "STARTS", "SIGNATURE", "STATE", "LAST", "LAST RUN"),
        lambda row: (
            row["name"],
            _target(row),
            row["signature"],
            "paused" if row["paused"] else "active",
            format_age_of(row["last_at"]) if row["last_at"] else "",
            row["last_run_id"] or "",
        ),
        empty="there are no triggers; `hutch trigger add` adds one",
        as_json=as_json,
    )


@expects_answer
def pause(kind: str, name: str, url: str | None, key_env: str, *, is_paused: bool) -> int:
    call(url, key_env, "PATCH", path_of(kind, name), json={"paused": is_paused})
    print_line(f"{name} is {'paused' if is_paused else 'active'}")
    return 0


@expects_answer
def remove(kind: str, name: str, url: str | None, key_env: str) -> int:
    call(url, key_env, "DELETE", path_of(kind, name))
    print_line(f"{name} is removed")
    return 0


def _target(row: dict[str, Any]) -> str:
    return f"flow {row['flow']}" if "flow" in row else f"script {row['script']}"


def _without_none(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
