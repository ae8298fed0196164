"""Tells the listeners of a run about its tool calls."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, Raw, UnsetType

from hutch.session.calls.description import line_of, run_call_id
from hutch.session.messages import ToolCall
from hutch.session.run import Listener, RunEvent, ToolCallEnded, ToolCallStarted, to_milliseconds


class CallListener:
    """Listener that gets tool calls as arguments instead of events. Most recorded runs have no other listener
    than the timeline, and making the events takes more time than the timeline's entries.
    """

    def __call__(self, event: RunEvent) -> None:
        raise NotImplementedError

    def start_call(
        self, call_id: str, provider: str, tool: str, line: int | None, input_json: Raw | UnsetType
    ) -> None:
        raise NotImplementedError

    def end_call(
        self,
        call_id: str,
        ok: bool,
        duration_ms: float,
        output_json: Raw | bytes | None,
        code: str,
        message: str,
    ) -> None:
        """`code` and `message` are empty if the call did not fail."""
        raise NotImplementedError


def report_start(listeners: Sequence[Listener], call: ToolCall) -> None:
    event = None
    for listener in listeners:
        if isinstance(listener, CallListener):
            names = call.provider_name, call.safe_tool_name
            listener.start_call(run_call_id(call), *names, line_of(call), call.input)
            continue
        if event is None:
            event = ToolCallStarted(
                call_id=run_call_id(call),
                provider=call.provider_name,
                tool=call.safe_tool_name,
                line=line_of(call),
                input_json=call.input,
            )
        listener(event)


def report_end(
    listeners: Sequence[Listener],
    call_id: str,
    seconds: float,
    result: bytes | None,
    code: str,
    message: str,
) -> None:
    """`result` is the JSON text of the result. None if the call failed."""
    event = None
    duration_ms = to_milliseconds(seconds)
    for listener in listeners:
        if isinstance(listener, CallListener):
            listener.end_call(call_id, result is not None, duration_ms, result, code, message)
            continue
        if event is None:
            event = ToolCallEnded(
                call_id=call_id,
                ok=result is not None,
                duration_ms=duration_ms,
                code=code or UNSET,
                message=message or UNSET,
                output_json=UNSET if result is None else Raw(result),
            )
        listener(event)
