"""`hutch flow list`, `runs`, `logs`, `resume`, `retry`, `cancel`, `approve` and `deny`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hutch.cli.flow.view import items_text, one_line
from hutch.cli.support.console import format_age_of, print_json, print_line, print_note, print_table
from hutch.cli.support.store import find_user, with_store
from hutch.errors import InvalidInput
from hutch.protocols.rep.runtime import lease
from hutch.protocols.rep.runtime.context import ApprovalDecision
from hutch.protocols.rep.runtime.journal import OPERATOR_OWNERS
from hutch.protocols.rep.server.events import iter_events
from hutch.store.models import now
from hutch.store.tables.journal import RECORD_KIND

if TYPE_CHECKING:
    from hutch.protocols.rep.ir.flow import Flow
    from hutch.protocols.rep.orchestrator.options import RunOptions
    from hutch.store.models import FlowHead, FlowRunHead, FlowRunRow
    from hutch.store.store import Store

_JSON_FIELDS = (
    "run_id",
    "flow",
    "version",
    "origin",
    "owner",
    "outcome",
    "created_at",
    "started_at",
    "ended_at",
)


def list_runs(user: str | None, limit: int, *, as_json: bool) -> int:
    """Lists runs, newest first."""

    async def load(store: Store) -> tuple[list[FlowRunHead], dict[str, list[str]], dict[str, str]]:
        owners = [] if user is None else [(await find_user(store, user)).id]
        names = {row.id: row.name for row in await store.users.list()}
        runs = await store.journal.list(*owners, limit=limit)
        waiting = await store.journal.waiting_steps([run.run_id for run in runs if not run.is_over])
        return runs, waiting, names

    runs, waiting, names = with_store(load)
    if as_json:
        print_json(json.dumps([_run_json(run, waiting.get(run.run_id, [])) for run in runs]).encode())
    elif runs:
        headers = ("RUN", "FLOW", "STATE", "STARTED", "TOOK", "USER")
        rows = [_run_row(run, waiting.get(run.run_id, []), names) for run in runs]
        print_table(headers, rows, states="STATE")
        for run in runs:
            for step in waiting.get(run.run_id, []):
                print_note(_approval_hint(run, step))
    else:
        print_note("there are no runs; `hutch flow run FILE` starts one")
    return 0


def _run_json(run: FlowRunHead, waiting_for: list[str]) -> dict[str, Any]:
    state = lease.run_state(run, waiting_for)
    fields = {name: getattr(run, name) for name in _JSON_FIELDS}
    return {**fields, "state": state, "waiting_for": waiting_for}


def _approval_hint(run: FlowRunHead, step: str) -> str:
    """Says how to answer a step that waits for an approval."""
    waits = f"{one_line(step)} of {one_line(run.run_id)} waits for an approval"
    if lease.is_held(run):
        return f"{waits}: `hutch flow approve {one_line(run.run_id)} {one_line(step)}`, or `deny`"
    if run.origin == lease.SERVER_ORIGIN:
        return f"{waits}: answer at its server, in the web console or at POST /runs/ID/approvals/STEP"
    return f"{waits}, but its process is gone: `hutch flow resume {one_line(run.run_id)}` asks again"


def _run_row(run: FlowRunHead, waiting_for: list[str], names: dict[str, str]) -> tuple[str, ...]:
    state = lease.run_state(run, waiting_for)
    if run.outcome not in (None, "ok", "cancelled"):
        state = f"{state} ({run.outcome})"
    elif state == "waiting":
        state = f"waiting for approval of {one_line(', '.join(waiting_for))}"
    duration = ""
    if run.started_at is not None and run.ended_at is not None:
        delta = datetime.fromisoformat(run.ended_at) - datetime.fromisoformat(run.started_at)
        duration = f"{delta.total_seconds():.2f} s"
    started = "not yet" if run.started_at is None else format_age_of(run.started_at)
    return one_line(run.run_id), run.flow, state, started, duration, names.get(run.owner, "")


def list_flows(user: str | None, *, as_json: bool) -> int:
    """Lists by name the flows that are stored for servers."""

    async def load(store: Store) -> list[FlowHead]:
        owners = sorted(OPERATOR_OWNERS) if user is None else [(await find_user(store, user)).id]
        flows: list[FlowHead] = []
        for owner in owners:
            last = ""
            while page := await store.flows.list(owner, after=last):
                flows += page
                last = page[-1].name
        return sorted(flows, key=lambda row: row.name)

    flows = with_store(load)
    if as_json:
        fields = ("name", "version", "created_at", "updated_at")
        print_json(json.dumps([{name: getattr(row, name) for name in fields} for row in flows]).encode())
    elif flows:
        rows = [(row.name, str(row.version), format_age_of(row.updated_at)) for row in flows]
        print_table(("FLOW", "VERSION", "CHANGED"), rows)
    else:
        print_note("there are no stored flows; `POST /flows` at a `hutch serve` stores one")
    return 0


def cancel(run_id: str) -> int:
    """Asks the process that executes a run to cancel it."""

    async def request(store: Store) -> None:
        run = await _find_held_run(store, run_id)
        await store.journal.add_request(run.run_id, json.dumps({"type": "cancel"}), now())

    with_store(request)
    print_note(f"{run_id} will be cancelled; `hutch flow logs {run_id} --follow` shows its end")
    return 0


def decide(run_id: str, step_id: str, *, approved: bool, reason: str | None) -> int:
    """Answers a step that waits for an approval."""

    async def request(store: Store) -> None:
        run = await _find_held_run(store, run_id)
        if not await store.journal.open_approvals(run.run_id, step=step_id, limit=1):
            waiting = ", ".join(sorted(await store.journal.steps_awaiting_approval(run.run_id))) or "none"
            raise InvalidInput("step", f"{step_id!r} is not waiting for an approval; waiting: {waiting}.")
        decision = ApprovalDecision(approved, "the operator at the command line", reason)
        body = json.dumps({"type": "approve", "step_id": step_id, **decision._asdict()})
        await store.journal.add_request(run.run_id, body, now())

    with_store(request)
    print_note(f"{step_id} of {run_id} is {'approved' if approved else 'denied'}")
    return 0


def show_logs(run_id: str, *, follow: bool, values: bool, as_json: bool) -> int:
    """Prints the events of a run. With `follow`, continues until the run has ended or its process is gone.

    With `values`, also prints the inputs and outputs of finished steps.
    """

    async def show(store: Store) -> tuple[FlowRunHead, list[str]]:
        run = await _find_run(store, run_id)
        events = iter_events(store.journal, run.run_id, follow=follow, with_records=values)
        async for number, event in events:
            if as_json:
                print_json(json.dumps({"number": number, **event}).encode())
                continue
            for line in _event_lines(event):
                print_line(line)
        run = await _find_run(store, run_id)
        waiting = {} if run.is_over else await store.journal.waiting_steps([run_id])
        return run, waiting.get(run_id, [])

    run, waiting_for = with_store(show)
    state = lease.run_state(run, waiting_for)
    if not as_json:
        hint = f"; `hutch flow resume {run_id}` resumes it" if state == "interrupted" else ""
        verb = "failed" if state == "failed" else f"is {state}"
        print_note(f"{run_id} {verb}{hint}")
        for step in waiting_for:
            print_note(_approval_hint(run, step))
    return 0


def _event_lines(event: dict[str, Any]) -> Iterator[str]:
    time = str(event.get("timestamp", ""))[11:23]
    texts = _record_texts(event) if event.get("type") == RECORD_KIND else [_event_text(event)]
    for text in texts:
        yield one_line(f"{time}  {event.get('step_id') or '':<16}  {text}").rstrip()


def _record_texts(record: dict[str, Any]) -> Iterator[str]:
    """Yields a line for the input and a line for the output. Leaves out an empty input."""
    for name in ("input", "output"):
        if name in record and not (name == "input" and record[name] == {}):
            yield f"{name:<6}  {json.dumps(record[name], ensure_ascii=False)}"


def _event_text(event: dict[str, Any]) -> str:
    match event.get("type"):
        case "log":
            level = event.get("level")
            return f"{'' if level == 'info' else f'{level}: '}{event.get('message')}"
        case "step":
            text = str(event.get("state"))
            if event.get("restored"):
                text += " earlier"
            elif isinstance(milliseconds := event.get("duration_ms"), int | float):
                text += f" in {milliseconds / 1000:.2f} s"
            error = event.get("error")
            return (
                f"{text}: {error['message']}" if isinstance(error, dict) else f"{text} ({event.get('kind')})"
            )
        case "items":
            return items_text(event)
        case "approval":
            return f"waits for approval: {event.get('message')}"
        case "approved":
            decision = "approved" if event.get("approved") else "refused"
            return f"{decision} by {event['by']}" if event.get("by") else decision
        case other:
            return str(other)


def resume(run_id: str, timeout: float, *, as_json: bool) -> int:
    """Resumes a run after its last finished step. Returns an exit code like `hutch flow run`."""
    from hutch.protocols.rep.server.supervisor import restore_run

    async def find(store: Store) -> FlowRunRow:
        return await _find_run(store, run_id)

    restored = restore_run(with_store(find), timeout=timeout or None, log_json=as_json)
    return _continue_run(*restored, as_json=as_json)


def retry(run_id: str, from_step: str, timeout: float, *, as_json: bool) -> int:
    """Runs a flow run again from one of its steps. Returns an exit code like `hutch flow run`."""
    from hutch.protocols.rep.server.run_retry import RetryPlan, RunInProgress, restart_run
    from hutch.protocols.rep.server.supervisor import restore_run

    async def restart(store: Store) -> tuple[tuple[Flow, dict[str, Any], RunOptions], RetryPlan]:
        run = await _find_run(store, run_id)
        restored = restore_run(run, timeout=timeout or None, log_json=as_json)
        try:
            return restored, await restart_run(store.journal, run, restored[0], from_step, origin="cli")
        except RunInProgress:
            message = f"{run_id!r} is {lease.run_state(run)}."
            raise InvalidInput("run", message, remedy=f"`hutch flow cancel {run_id}` ends it.") from None

    restored, plan = with_store(restart)
    if not as_json:
        print_note(one_line(plan.text))
    return _continue_run(*restored, as_json=as_json)


def _continue_run(flow: Flow, inputs: dict[str, Any], options: RunOptions, *, as_json: bool) -> int:
    from hutch.cli.flow.live import run_live
    from hutch.protocols.rep.orchestrator.process import launch
    from hutch.protocols.rep.orchestrator.runtime_choice import builtin_runtime

    choice = builtin_runtime(Path.cwd())
    return run_live(flow, inputs, choice, options, launch(choice, options), as_json=as_json)


async def _find_run(store: Store, run_id: str) -> FlowRunRow:
    run = await store.journal.get(run_id)
    if run is None:
        raise InvalidInput("run", f"there is no {run_id!r}.", remedy="`hutch flow runs` lists them.")
    return run


async def _find_held_run(store: Store, run_id: str) -> FlowRunHead:
    """Returns a run. Raises InvalidInput if no process executes it, because no process would then read a
    request to it.
    """
    run = await _find_run(store, run_id)
    if run.is_over:
        raise InvalidInput("run", f"{run_id!r} has ended: it is {lease.run_state(run)}.")
    if not lease.is_held(run):
        message = f"no process executes {run_id!r}: it is {lease.run_state(run)}."
        raise InvalidInput("run", message, remedy="If a server waits to resume it, ask that server.")
    return run
