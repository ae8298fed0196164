"""`hutch flow runs`, `logs` and `resume`: runs of flows that are kept, and going on with them."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

from hutch.cli.flow_view import plain
from hutch.cli.opened import user_named, with_store
from hutch.cli.output import print_json
from hutch.cli.table import print_note, print_table, since
from hutch.doors.rep import holders
from hutch.doors.rep.tail import tail
from hutch.errors import InvalidInput

if TYPE_CHECKING:
    from hutch.store.rows import FlowRunHead, FlowRunRow
    from hutch.store.store import Store

_SHOWN = ("run_id", "flow", "version", "origin", "owner", "outcome", "created_at", "started_at", "ended_at")


def list_runs(user: str | None, limit: int, *, as_json: bool) -> int:
    """The newest first."""

    async def listed(store: Store) -> tuple[list[FlowRunHead], dict[str, str]]:
        owners = [] if user is None else [(await user_named(store, user)).id]
        names = {each.id: each.name for each in await store.users.list()}
        return await store.journal.list(*owners, limit=limit), names

    found, names = with_store(listed)
    if as_json:
        print_json(json.dumps([_facts(each) for each in found]).encode())
    elif found:
        heads = ("RUN", "FLOW", "STATE", "STARTED", "TOOK", "USER")
        print_table(heads, [_row(each, names) for each in found])
    else:
        print_note("no run of a flow is kept; `hutch flow run FILE` makes one")
    return 0


def _facts(run: FlowRunHead) -> dict[str, Any]:
    return {**{name: getattr(run, name) for name in _SHOWN}, "state": holders.state(run)}


def _row(run: FlowRunHead, names: dict[str, str]) -> tuple[str, ...]:
    state = holders.state(run)
    if run.outcome not in (None, "ok", "cancelled"):
        state = f"{state} ({run.outcome})"
    took = ""
    if run.started_at is not None and run.ended_at is not None:
        seconds = datetime.fromisoformat(run.ended_at) - datetime.fromisoformat(run.started_at)
        took = f"{seconds.total_seconds():.2f} s"
    began = "not yet" if run.started_at is None else since(run.started_at)
    return plain(run.run_id), run.flow, state, began, took, names.get(run.owner, "")


def show_logs(run_id: str, *, follow: bool, as_json: bool) -> int:
    """What the run did, step by step; with `follow`, until it is over or nobody runs it any more."""

    async def show(store: Store) -> FlowRunHead:
        run = await _run(store, run_id)
        async for number, event in tail(store.journal, run.run_id, follow=follow):
            if as_json:
                print_json(json.dumps({"number": number, **event}).encode())
            else:
                print(_line(event), flush=True)
        return await _run(store, run_id)

    state = holders.state(with_store(show))
    if not as_json:
        advice = f"; `hutch flow resume {run_id}` goes on with it" if state == "interrupted" else ""
        print_note(f"{run_id} is {state}{advice}")
    return 0


def _line(event: dict[str, Any]) -> str:
    moment = str(event.get("timestamp", ""))[11:23]
    return plain(f"{moment}  {event.get('step_id') or '':<16}  {_told(event)}").rstrip()


def _told(event: dict[str, Any]) -> str:
    match event.get("type"):
        case "log":
            level = event.get("level")
            return f"{'' if level == 'info' else f'{level}: '}{event.get('message')}"
        case "step":
            told = str(event.get("state"))
            if event.get("restored"):
                told += ", before"
            elif isinstance(milliseconds := event.get("duration_ms"), int | float):
                told += f" in {milliseconds / 1000:.2f} s"
            error = event.get("error")
            return (
                f"{told}: {error['message']}" if isinstance(error, dict) else f"{told} ({event.get('kind')})"
            )
        case "approval":
            return f"waits for an approval: {event.get('message')}"
        case "approved":
            said = "approved" if event.get("approved") else "refused"
            return f"{said} by {event['by']}" if event.get("by") else said
        case other:
            return str(other)


def resume(run_id: str, timeout: float, *, as_json: bool) -> int:
    """Goes on after the last step that is over. Exits as `hutch flow run` does."""
    from hutch.cli.flow_drive import drive
    from hutch.doors.rep.choice import own
    from hutch.doors.rep.continuing import given
    from hutch.doors.rep.launch import launch

    async def find(store: Store) -> FlowRunRow:
        return await _run(store, run_id)

    flow, inputs, options = given(with_store(find), timeout=timeout or None, log_json=as_json)
    choice = own()
    return drive(flow, inputs, choice, options, launch(choice, options), as_json=as_json)


async def _run(store: Store, run_id: str) -> FlowRunRow:
    found = await store.journal.get(run_id)
    if found is None:
        raise InvalidInput("run", f"there is no {run_id!r}.", remedy="`hutch flow runs` lists them.")
    return found
