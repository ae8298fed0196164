"""Runs recorded code again, with its tools or with the recorded results of its tools."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any, Literal

import msgspec

from hutch.errors import HutchError, ToolError
from hutch.kernel.execution import Execution
from hutch.kernel.kernel import Kernel
from hutch.sandbox.runner.profile import profile_for
from hutch.session.inputs import encode_decoded_inputs
from hutch.session.json_value import encode_value
from hutch.session.run import Result, RunHandle
from hutch.session.tools.provider import Provider
from hutch.session.tools.tool import Tool, ToolContext
from hutch.store.models import RunRow
from hutch.text import cut

Mode = Literal["same", "recorded"]
CODE_ENGINES = ("quickjs", "deno")
GATEWAY_PROTOCOL = "mcp"
"""Protocol whose tools always come from the gateway."""
GATEWAY_SCOPE = "toolscript"
"""Scope that users need for the tools of the gateway."""
DIVERGED = "replay_diverged"
MAX_SHOWN_CHARS = 300

_LIMITS = ("timeout_ms", "memory_limit_bytes", "max_log_lines", "max_log_chars")


class NotReplayable(HutchError):
    """The run cannot be replayed."""

    code = "conflict"


class ReplayRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of `POST /runs/{id}/replay`."""

    mode: Mode = "recorded"
    code: str | None = None
    inputs: dict[str, Any] | None = None


def replay_modes(row: RunRow, content: Mapping[str, Any]) -> dict[str, Any]:
    """Returns for each replay mode whether it is possible, and the reason if a mode is not possible."""
    reasons = {mode: _obstacle(row, content, mode) for mode in ("same", "recorded")}
    return {
        **{mode: reason is None for mode, reason in reasons.items()},
        "reason": reasons["recorded"] or reasons["same"],
    }


def _obstacle(row: RunRow, content: Mapping[str, Any], mode: str) -> str | None:
    if row.outcome == "suspended":
        return "This run has not ended: it waits for a result. Continue or cancel it."
    if row.engine not in CODE_ENGINES or (content and not content.get("is_code")):
        is_flow = row.protocol == "rep" and row.engine == "hutch"
        kind = "a flow" if is_flow else f"{row.protocol} ({row.engine})"
        return f"Only runs of code can be replayed, and this is a run of {kind}."
    if msgspec.json.decode(row.details).get("turn") is not None:
        return "This run was a turn of a session, and the variables that the session had are not recorded."
    if row.recorded != "full" or not isinstance(content.get("code"), str):
        return (
            f"This run was recorded with `record = {row.recorded!r}`, so its contents are missing."
            ' Set `record = "full"` and run it again.'
        )
    if isinstance(content.get("inputs"), dict) and "$cut" in content["inputs"]:
        return "The inputs of this run were too long to be recorded. See the setting max_record_bytes."
    if mode == "recorded":
        calls = content.get("calls", [])
        if len(calls) < msgspec.json.decode(row.details).get("tool_calls", 0) - content.get(
            "calls_left_out", 0
        ):
            return "Some tool calls were made before the run was suspended, and are not in its record."
        if content.get("calls_left_out") or any(_is_cut(call) for call in calls):
            return "Some tool calls were too long to be recorded. See the setting max_record_bytes."
    elif content.get("providers") and not uses_server_tools(row, content):
        return 'The tools of this run belong to its client. Use the mode "recorded".'
    return None


def uses_server_tools(row: RunRow, content: Mapping[str, Any]) -> bool:
    """Returns True if the run used tools of the server. A replay can call only these tools again."""
    return row.protocol == GATEWAY_PROTOCOL or bool(content.get("server_tools"))


def _is_cut(call: Mapping[str, Any]) -> bool:
    values = [call.get("input"), call.get("output")]
    return any(isinstance(value, dict) and value.keys() == {"$cut"} for value in values)


class ReplayRun(RunHandle):
    """Handle of a replay. Its outcome is DIVERGED if the code made other tool calls than the recorded run."""

    divergence: str | None = None

    def outcome_of(self, result: Result) -> str:
        return super().outcome_of(result) if self.divergence is None else DIVERGED

    @property
    def failure_message(self) -> str | None:
        return self.divergence


class Replay:
    """A replay that is ready to run."""

    def __init__(
        self,
        kernel: Kernel,
        row: RunRow,
        content: Mapping[str, Any],
        request: ReplayRequest,
        *,
        owner: str,
        tools: list[Provider],
    ) -> None:
        """`tools` are used in the mode `same`. Raises NotReplayable and InvalidExecution."""
        obstacle = _obstacle(row, content, request.mode)
        if obstacle is not None:
            raise NotReplayable(obstacle)
        self.run = ReplayRun(record_level="full")
        providers = tools
        if request.mode == "recorded":
            providers = RecordedTools(content, self.run).providers()
        inputs = content.get("inputs") if request.inputs is None else request.inputs
        limits = msgspec.json.decode(row.details).get("limits", {})
        self._kernel = kernel
        self._execution = Execution(
            code=content["code"] if request.code is None else request.code,
            profile=profile_for(row.engine),
            limits=kernel.limits({name: limits.get(name) for name in _LIMITS}, clamp=True),
            providers=providers,
            inputs=None if inputs is None else encode_decoded_inputs(inputs, providers),
            owner=owner,
            protocol=row.protocol,
            label=row.label,
            parent_run_id=row.run_id,
        )

    async def execute(self) -> Result:
        return await self._kernel.run(self._execution, self.run)


class RecordedTools:
    """Tools that return the results of the recorded calls. Each recorded call answers one call with the same
    input; the order of calls does not matter, because the order of concurrent calls is not defined.
    """

    def __init__(self, content: Mapping[str, Any], run: ReplayRun) -> None:
        self._run = run
        self._providers: Mapping[str, list[str]] = content.get("providers", {})
        self._calls: list[Mapping[str, Any]] = list(content.get("calls", ()))
        self._count = 0

    def providers(self) -> list[Provider]:
        made = []
        for name, tools in self._providers.items():
            parent, _, own_name = name.rpartition(".")
            functions = {tool: Tool(tool, self._answer) for tool in tools}
            made.append(Provider(own_name, functions, "", parent=parent or None))
        return made

    async def _answer(self, value: Any, context: ToolContext) -> bytes:
        self._count += 1
        name = f"{context.provider}.{context.tool}"
        same_tool = [
            call
            for call in self._calls
            if (call["provider"], call["tool"]) == (context.provider, context.tool)
        ]
        for call in same_tool:
            if call.get("input") == value:
                self._calls.remove(call)
                return self._result(call)
        expected = f" The record has {_shown(same_tool[0].get('input'))}." if same_tool else ""
        message = (
            f"Call {self._count}, {name}, is not in the record: it has the input {_shown(value)}.{expected}"
        )
        self._run.divergence = self._run.divergence or message
        raise ToolError(message)

    def _result(self, call: Mapping[str, Any]) -> bytes:
        if call.get("ok"):
            return encode_value(call.get("output"))
        raise ToolError(
            call.get("message") or "The recorded call did not end.", call.get("code") or "tool_error"
        )


def _shown(value: Any) -> str:
    return cut(encode_value(_beginning(value)).decode(), MAX_SHOWN_CHARS)


_MAX_SHOWN_ITEMS = (MAX_SHOWN_CHARS // 2, 20, 5)
"""Maximum number of items that are shown of a list or an object at each depth."""


def _beginning(value: Any, depth: int = 0) -> Any:
    """Returns the first part of a value for a message. The value is cut before it is encoded, because
    encoding a whole input takes up to 0.3 s.
    """
    if depth == len(_MAX_SHOWN_ITEMS):
        return "…"
    if isinstance(value, str):
        return value[:MAX_SHOWN_CHARS]
    if isinstance(value, list):
        return [_beginning(item, depth + 1) for item in value[: _MAX_SHOWN_ITEMS[depth]]]
    if isinstance(value, dict):
        items = islice(value.items(), _MAX_SHOWN_ITEMS[depth])
        return {key[:MAX_SHOWN_CHARS]: _beginning(item, depth + 1) for key, item in items}
    return value
