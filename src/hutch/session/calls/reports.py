"""Progress and items that a tool reports while it runs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from hutch.errors import ToolError
from hutch.session.calls.description import run_call_id
from hutch.session.json_value import encode_value

if TYPE_CHECKING:
    from hutch.session.calls.tool_calls import ToolCalls
    from hutch.session.messages import ToolCall


class CallReports:
    """Receives progress and items of one tool call."""

    __slots__ = ("_call", "_calls", "_item_bytes", "_max_bytes")

    def __init__(self, calls: ToolCalls, call: ToolCall, max_bytes: int) -> None:
        self._calls = calls
        self._call = call
        self._max_bytes = max_bytes
        self._item_bytes = 0

    def progress(self, value: Any) -> None:
        self._calls.report_progress(run_call_id(self._call), partial(encode_value, value))

    def item(self, json: bytes) -> None:
        call = self._call
        self._item_bytes += len(json) + 1
        if self._item_bytes > self._max_bytes:
            raise ToolError(
                f"Tool {call.safe_tool_name} yielded more than {self._max_bytes} bytes of JSON",
                "serialization_error",
            )
        self._calls.report_progress(run_call_id(call), lambda: json)
        if call.stream is True:
            self._calls.send_item(call.call_id, json)
