"""`hutch runs list`, `show`, `tail`, `cancel`, `replay` and `export`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

from hutch.cli.support import event_loop
from hutch.cli.support.console import (
    format_age_of,
    print_json_value,
    print_line,
    print_note,
    print_table,
    print_text,
)
from hutch.errors import InvalidInput
from hutch.protocols.rep.runtime import lease
from hutch.protocols.runs.catalog import RunCatalog, Visibility
from hutch.protocols.runs.filters import parse_list_query
from hutch.protocols.runs.replay import replay_modes
from hutch.settings import load_settings
from hutch.text import cut
from hutch.vault import flow_keys

T = TypeVar("T")
MAX_SHOWN_CHARS = 100
_MIN_ID_CHARS = 6
# Ids that are longer than this are cut on a terminal, because they do not fit into a line.
_MAX_SHOWN_ID_CHARS = 14
EXPORT_PAGE = 500
MAX_SEARCHES = 20
"""Number of partial searches that a list continues before it says that there may be more."""


class RunSource(Protocol):
    """Source of run records: a server, or this machine's store."""

    async def list(self, parameters: Sequence[tuple[str, str]]) -> dict[str, Any]: ...

    async def show(self, run_id: str) -> dict[str, Any]: ...


class LocalRuns:
    def __init__(self, catalog: RunCatalog) -> None:
        self._catalog = catalog

    async def list(self, parameters: Sequence[tuple[str, str]]) -> dict[str, Any]:
        return await self._catalog.list(parse_list_query(parameters), Visibility())

    async def show(self, run_id: str) -> dict[str, Any]:
        found = await self._catalog.find(run_id, Visibility())
        if found is None:
            remedy = "`hutch runs list` lists the runs of this machine, and with --url those of a server."
            raise InvalidInput("run", f"there is no {cut(run_id, 100)!r}.", remedy=remedy)
        if found.flow is not None:
            return await self._catalog.flow_fields(found.flow)
        detail = await self._catalog.detail(found)
        if found.row is None:
            return detail
        return {**detail, "replay": replay_modes(found.row, await self._catalog.content(found.row))}


class RemoteRuns:
    """Runs of a server. Errors of the server become InvalidInput."""

    def __init__(self, client: Any, key_env: str) -> None:
        self._client = client
        self._key_env = key_env

    def _failure(self, body: Any, status: int) -> InvalidInput:
        remedy = f"Set {self._key_env} to a valid API key of the server." if status == 401 else None
        message = _error_message(body, status)
        return InvalidInput("server", message if remedy is None else _sentence(message), remedy=remedy)

    async def call(self, method: str, path: str, **options: Any) -> Any:
        response = await self._client.request(method, path, **options)
        try:
            body = response.json()
        except ValueError:
            body = {"error": {"message": f"status {response.status_code}, and no JSON"}}
        if response.status_code >= 400:
            raise self._failure(body, response.status_code)
        return body

    async def list(self, parameters: Sequence[tuple[str, str]]) -> dict[str, Any]:
        found: Any = await self.call("GET", "/runs", params=list(parameters))
        if not isinstance(found, dict) or not isinstance(found.get("runs"), list):
            raise InvalidInput("server", "the response is not a list of runs; is it a server of Hutch?")
        found["runs"] = [_checked_run(run) for run in found["runs"]]
        return found

    async def show(self, run_id: str) -> dict[str, Any]:
        return _checked_run(await self.call("GET", f"/runs/{quote(run_id, safe='')}"))

    async def events(self, run_id: str) -> AsyncIterator[dict[str, Any]]:
        path = f"/runs/{quote(run_id, safe='')}/events"
        async with self._client.stream("GET", path, timeout=None) as response:
            if response.status_code >= 400:
                raise self._failure(json.loads(await response.aread()), response.status_code)
            async for line in response.aiter_lines():
                if line.startswith("data:"):
                    yield json.loads(line[5:])


def _checked_run(run: Any) -> dict[str, Any]:
    if not isinstance(run, dict) or not isinstance(run.get("run_id"), str):
        raise InvalidInput("server", "the response is not a run; is it a server of Hutch?")
    return run


def _error_message(body: Any, status: int) -> str:
    error = body.get("error") if isinstance(body, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return message if isinstance(message, str) else f"status {status}"


def _sentence(message: str) -> str:
    return message if message.endswith((".", "!", "?")) else f"{message}."


def with_server(url: str | None, key_env: str, action: Callable[[RemoteRuns], Awaitable[T]]) -> T:
    """Runs `action` with the given server or, without `url`, with the server of this machine's settings."""
    import httpx2

    settings = load_settings()
    base = (url or f"http://{settings.host}:{settings.port}").rstrip("/")
    key = os.environ.get(key_env) or settings.api_key
    headers = {"Authorization": f"Bearer {key}"} if key else {}

    async def run() -> T:
        try:
            async with httpx2.AsyncClient(base_url=base, headers=headers, timeout=60.0) as client:
                return await action(RemoteRuns(client, key_env))
        except httpx2.HTTPError as error:
            remedy = "Is `hutch serve` running? HUTCH_URL or --url names a server at another address."
            raise InvalidInput("url", f"{base}: {error}.", remedy=remedy) from None

    return event_loop.run_async(run())


def _with_runs(url: str | None, key_env: str, action: Callable[[RunSource], Awaitable[T]]) -> T:
    """Runs `action` with the runs of the server `url`, or with those of this machine's store."""
    if url is not None:
        return with_server(url, key_env, action)

    async def run() -> T:
        store = await flow_keys.open_store(load_settings())

        async def opened() -> Any:
            return store

        try:
            return await action(LocalRuns(RunCatalog(opened, flow_state=lease.run_state)))
        finally:
            await store.close()

    return event_loop.run_async(run())


def _parameters(filters: Mapping[str, Any]) -> list[tuple[str, str]]:
    parameters: list[tuple[str, str]] = []
    for name, value in filters.items():
        if name == "failed":
            parameters += [("status", "failed")] if value else []
        elif isinstance(value, tuple):
            parameters += [(name, item) for item in value]
        elif value is not None:
            parameters.append((name, str(value)))
    return parameters


# --- list and show ---


def list_runs(filters: Mapping[str, Any], url: str | None, key_env: str, *, as_json: bool) -> int:
    parameters = _parameters(filters)

    async def load(source: RunSource) -> dict[str, Any]:
        page = await source.list(parameters)
        for _ in range(MAX_SEARCHES):
            if not page["is_partial"] or len(page["runs"]) >= filters["limit"]:
                break
            more = await source.list([*parameters, ("cursor", page["next"])])
            page = {**page, **more, "runs": (page["runs"] + more["runs"])[: filters["limit"]]}
        return page

    page = _with_runs(url, key_env, load)
    if as_json:
        print_json_value(page)
        return 0
    if not page["runs"]:
        print_note(
            "there are no such runs; servers, sessions, `hutch flow run` and `hutch ability run` record runs"
        )
    else:
        headers = ("RUN", "WHEN", "TOOK", "WHAT", "OWNER", "OUTCOME", "WHY")
        rows = [_row(run) for run in page["runs"]]
        if sys.stdout.isatty() and max(len(run_id) for run_id, *_ in rows) > _MAX_SHOWN_ID_CHARS:
            # The ids can be cut, because `show` and the other commands accept the beginning of an id.
            rows = [(cut(run_id, _MAX_SHOWN_ID_CHARS), *others) for run_id, *others in rows]
        print_table(headers, rows, states="OUTCOME")
        if sys.stdout.isatty():
            print_note("`hutch runs show RUN` shows one of them; the beginning of its id is enough")
    if page.get("next"):
        print_note("there are more; see --limit and --since")
    return 0


def _row(run: Mapping[str, Any]) -> tuple[str, ...]:
    error = run["error"] or {}
    line = f"line {error['line']}" if error.get("line") else ""
    # There may be no message, because records of the level `metadata` have none.
    why = ": ".join(part for part in (line, error.get("message")) if part)
    what = run["protocol"] if run["label"] is None else f"{run['protocol']} {run['label']}"
    return (
        run["run_id"],
        format_age_of(run["created_at"]),
        "" if run["duration_ms"] is None else _milliseconds(run["duration_ms"]),
        cut(what, 40),
        run["owner_name"] or run["owner"],
        run["outcome"] or run.get("state") or run["status"],
        cut(" ".join(f"{why}{_waits_for(run)}".split()), MAX_SHOWN_CHARS),
    )


def _waits_for(run: Mapping[str, Any]) -> str:
    """Lists the steps of a flow run that wait for an approval."""
    steps = run.get("waiting_for")
    return f"for approval of {', '.join(steps)}" if steps and run.get("state") == "waiting" else ""


def _milliseconds(value: float) -> str:
    return f"{value / 1000:.2f} s" if value >= 1_000 else f"{value:.3g} ms"


def show_run(run_id: str, url: str | None, key_env: str, *, as_json: bool) -> int:
    run = _with_runs(url, key_env, lambda source: _find_run(source, run_id))
    if as_json:
        print_json_value(run)
        return 0
    for name in ("run_id", "state", "outcome", "protocol", "label", "engine", "created_at", "parent_run_id"):
        if run.get(name) is not None:
            print_line(f"{name:14} {run[name]}")
    if waits := _waits_for(run):
        print_line(f"{'waits':14} {waits}")
    print_line(f"{'owner':14} {run['owner_name'] or run['owner']}")
    if run["duration_ms"] is not None:
        waited = f", waited {_milliseconds(run['queue_ms'])} for a runner" if run["queue_ms"] >= 1 else ""
        print_line(f"{'took':14} {_milliseconds(run['duration_ms'])}{waited}")
    _show_error(run)
    for call in run.get("pending_calls", ()):
        _show_pending(call)
    if run["kind"] == "flow":
        print_note(f"`hutch flow logs {run['run_id']} --values` shows its steps")
    if isinstance(run["tool_calls"], list) and run["tool_calls"]:
        print_line("")
        print_table(
            ("START", "TOOK", "CALL", "LINE", "RESULT"),
            [_call_row(call) for call in run["tool_calls"]],
            states="RESULT",
        )
    for log in run.get("logs", ()):
        print_line(f"  | {log['line']}")
    if isinstance(run.get("code"), str):
        print_line("")
        marked = (run["error"] or {}).get("line")
        for number, line in enumerate(run["code"].splitlines(), 1):
            print_line(f"{'>' if number == marked else ' '} {number:4} {line}")
    return 0


async def _full_id(server: RemoteRuns, run_id: str) -> str:
    """Returns the id of the only run whose id begins with `run_id`. Raises InvalidInput."""
    return str((await _find_run(server, run_id))["run_id"])


async def _find_run(source: RunSource, run_id: str) -> dict[str, Any]:
    """Returns the run with this id, or the only run whose id begins with it, because logs shorten ids. Raises
    InvalidInput.
    """
    begin = run_id.rstrip("….")
    try:
        return await source.show(run_id)
    except InvalidInput:
        if len(begin) < _MIN_ID_CHARS:
            raise
        page = await source.list([("text", begin), ("limit", "10"), ("counts", "false")])
        ids = [run["run_id"] for run in page["runs"] if run["run_id"].startswith(begin)]
        if not ids:
            raise
        if len(ids) > 1:
            raise InvalidInput("run", f"several begin with {begin!r}: {', '.join(ids)}.") from None
        return await source.show(ids[0])


def _show_error(run: Mapping[str, Any]) -> None:
    error = run["error"]
    if error is None:
        return
    line = f" (line {error['line']})" if error.get("line") else ""
    print_line(f"{'error':14} {error.get('code', '')}{line}")
    print_text(error.get("message") or 'no message is recorded; see the setting "record"')


def _show_pending(call: Mapping[str, Any]) -> None:
    name = ".".join(part for part in (call["provider"], call["tool"]) if part)
    wait = (
        "has its result" if call["has_answer"] else "waits for approval" if call["is_question"] else "waits"
    )
    print_line(f"{'call':14} {name or '?'} {wait}, call id {call['call_id']}")
    if call.get("message"):
        print_text(call["message"])


def _call_row(call: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        "" if call["start_ms"] is None else _milliseconds(call["start_ms"]),
        "" if call["duration_ms"] is None else _milliseconds(call["duration_ms"]),
        f"{call['provider']}.{call['label']}",
        str(call["line"] or ""),
        "ok" if call["ok"] else (call["code"] or "not ended"),
    )


# --- on a server ---


def tail_run(run_id: str, url: str | None, key_env: str) -> int:
    async def follow(server: RemoteRuns) -> str:
        outcome = ""
        async for event in server.events(await _full_id(server, run_id)):
            fields = {name: value for name, value in event.items() if name not in ("type", "run_id", "at")}
            at = str(event.get("at") or "")[11:23]
            shown = event["line"] if event.get("type") == "log" else json.dumps(fields, ensure_ascii=False)
            print_line(f"{at}  {event.get('type', ''):18} {cut(shown, 500)}")
            outcome = event.get("outcome") or outcome
        return outcome

    return 0 if with_server(url, key_env, follow) == "ok" else 1


def cancel_runs(run_ids: Sequence[str], url: str | None, key_env: str) -> int:
    async def cancel(server: RemoteRuns) -> None:
        for run_id in run_ids:
            found = await _full_id(server, run_id)
            await server.call("POST", f"/runs/{quote(found, safe='')}/cancel")
            print_line(f"cancelled {found}")

    with_server(url, key_env, cancel)
    return 0


def replay_run(
    run_id: str, mode: str, code: str | None, inputs: str | None, url: str | None, key_env: str
) -> int:
    body: dict[str, Any] = {"mode": mode}
    if code is not None:
        body["code"] = Path(code[1:]).read_text() if code.startswith("@") else code
    if inputs is not None:
        try:
            body["inputs"] = json.loads(inputs)
        except ValueError as error:
            raise InvalidInput("inputs", f"expected a JSON object: {error}.") from None

    async def call(server: RemoteRuns) -> Any:
        path = f"/runs/{quote(await _full_id(server, run_id), safe='')}/replay"
        return await server.call("POST", path, params={"wait": "true"}, json=body, timeout=600.0)

    run = with_server(url, key_env, call)
    for log in run.get("logs", ()):
        print_note(log["line"])
    if run.get("error") is not None:
        _show_error(run)
        return 1
    print_json_value(run.get("output"))
    return 0


def export_runs(filters: Mapping[str, Any], url: str | None, key_env: str, *, details: bool) -> int:
    async def export(source: RunSource) -> None:
        base = [*_parameters(filters), ("limit", str(EXPORT_PAGE)), ("counts", "false")]
        parameters = base
        while True:
            page = await source.list(parameters)
            for run in page["runs"]:
                print_json_value(await source.show(run["run_id"]) if details else run)
            if not page.get("next"):
                return
            parameters = [*base, ("cursor", page["next"])]

    _with_runs(url, key_env, export)
    return 0
