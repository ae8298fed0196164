"""Runs the calls that a guest makes to `files` and `display`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from hutch.errors import ToolError
from hutch.session.files.calls import FileCalls
from hutch.session.messages import ToolCall, tool_result_line
from hutch.tasks import start_now

if TYPE_CHECKING:
    from hutch.session.limits import Limits


class FileCallTasks:
    """Tasks of the file calls of one run."""

    def __init__(
        self,
        reply: Callable[[str, bytes], None],
        reply_error: Callable[[str, str, str], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._reply, self._reply_error, self._loop = reply, reply_error, loop
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def problem(self, files: FileCalls, limits: Limits) -> str | None:
        """Returns the reason why no further call is accepted, or None."""
        if len(self._tasks) >= limits.max_outstanding_calls:
            return f"More than {limits.max_outstanding_calls} calls of files at once"
        if files.count >= limits.max_calls:
            return f"More than {limits.max_calls} calls of files in one execution"
        return None

    def start(self, call: ToolCall, files: FileCalls, writable: Callable[[], Awaitable[None]] | None) -> None:
        task = start_now(self._run(call, files, writable), self._loop)
        if not task.done():
            self._tasks[call.call_id] = task

    def cancel(self) -> None:
        for task in list(self._tasks.values()):
            task.cancel()

    async def _run(
        self, call: ToolCall, files: FileCalls, writable: Callable[[], Awaitable[None]] | None
    ) -> None:
        try:
            # Only reads wait until the channel has space. A write must be done before the next message of the
            # runner is handled, because that message may end the run.
            if writable is not None and call.safe_tool_name == "read":
                # Do one read at a time. Otherwise all waiting reads would send their data at once when the
                # channel has space.
                async with files.reading:
                    await writable()
                    self._answer(call, files)
                    await asyncio.sleep(0)
            else:
                self._answer(call, files)
        except ToolError as error:
            self._reply_error(call.call_id, error.tool_code, error.message)
        finally:
            self._tasks.pop(call.call_id, None)

    def _answer(self, call: ToolCall, files: FileCalls) -> None:
        result = files.call(call.safe_tool_name, bytes(call.input))
        self._reply(call.call_id, tool_result_line(call.call_id, result))
