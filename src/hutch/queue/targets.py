"""Targets of schedules and triggers: stored flows and saved scripts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from hutch.errors import HutchError, InvalidInput
from hutch.queue.models import QueueCaller, RunOptions, RunRequest, Webhook
from hutch.session.large_json import encode_large_value

if TYPE_CHECKING:
    from hutch.store.store import Store
    from hutch.store.tables.queue.schedules import ScriptEngine, StarterRow, TargetKind

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_ENGINE_SCOPES = {"script": "toolscript", "quickjs": "execbox", "deno": "execbox"}


class Forbidden(HutchError):
    """The key lacks the scope that the target needs."""

    code = "forbidden"


class StartOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Options of the runs that a schedule or a trigger starts."""

    inputs: dict[str, Any] = {}
    attempts: int | None = None
    webhook: Webhook | None = None

    def run_options(self, idempotency_key: str | None) -> RunOptions:
        return RunOptions(attempts=self.attempts, webhook=self.webhook, idempotency_key=idempotency_key)


def check_name(name: object) -> str:
    """Returns a valid name of a script, a schedule or a trigger. Raises InvalidInput."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidInput(
            "name",
            "expected 1 to 100 letters, digits, dots, underscores and hyphens, first a letter or a digit.",
        )
    return name


def caller_of(row: StarterRow) -> QueueCaller:
    """Returns the caller of a run that a schedule or a trigger starts. The caller has the scopes of the key
    that added the schedule or trigger. Revoking that key does not affect such runs.
    """
    scopes = None if row.scopes is None else tuple(msgspec.json.decode(row.scopes))
    return QueueCaller(row.owner, None, scopes)


def check_engine(caller: QueueCaller, engine: ScriptEngine) -> None:
    """Raises Forbidden if the caller lacks the scope for scripts of this engine. Without this check, a caller
    could replace a script, and schedules and triggers that start the script would run the new code with their
    own scopes.
    """
    _check_scope(caller, _ENGINE_SCOPES[engine])


async def target_request(
    store: Store, caller: QueueCaller, kind: TargetKind, target: str, inputs: dict[str, Any]
) -> RunRequest:
    """Returns the request of a run of a target. Raises InvalidInput if there is no such script, and Forbidden
    if the caller lacks the scope for it.
    """
    if kind == "flow":
        _check_scope(caller, "rep")
        body = await encode_large_value({"flow": target, "start": {"inputs": inputs}})
        return RunRequest(kind="flow", protocol="rep", label=target, body=body)
    script = await store.saved_scripts.get(caller.owner, target)
    if script is None:
        raise InvalidInput("target", f"there is no saved script {target!r}.")
    check_engine(caller, script.engine)
    if script.engine == "script":
        arguments = [(await encode_large_value(inputs)).decode()]
        body = await encode_large_value({"code": script.code, "args": arguments, "name": target})
        return RunRequest(kind="script", protocol="toolscript", label=target, body=body)
    code = {"code": script.code, "inputs": inputs, "engine": script.engine, "label": target}
    return RunRequest(kind="code", protocol="execbox", label=target, body=await encode_large_value(code))


async def check_change(store: Store, caller: QueueCaller, row: StarterRow) -> None:
    """Raises Forbidden if the caller may not pause, resume or remove a schedule or a trigger, because the
    caller lacks the scope to run its target. If the target is a saved script that does not exist any more,
    every key of the owner may change the schedule or trigger.
    """
    if row.target_kind == "flow":
        _check_scope(caller, "rep")
    elif (script := await store.saved_scripts.get(row.owner, row.target)) is not None:
        check_engine(caller, script.engine)


def _check_scope(caller: QueueCaller, scope: str) -> None:
    if not caller.may(scope):
        raise Forbidden(f"This key lacks the scope {scope}.")
