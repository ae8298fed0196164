"""Descriptions of tools, kept: they are asked for often, and a version's do not change."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from hutch.doors.tpmjs.calls import ToolCall, ToolFailure, Tools
from hutch.session.jsonvalue import encode_value

_MAX_KEPT = 256
_MAX_BYTES = 64 * 1024

Key = tuple[str, str, str]


class Descriptions:
    """Describes tools through a cache of what went well.

    What a call with an env brings is not kept: it may be another with another env.
    """

    def __init__(
        self, tools: Tools, latest_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._tools = tools
        self._latest_seconds = latest_seconds
        self._clock = clock
        self._kept: OrderedDict[Key, tuple[bytes, str, float | None]] = OrderedDict()

    def known(self, call: ToolCall) -> tuple[bytes, str] | None:
        """The tool's JSON and its exact version, if they need not be asked for."""
        if call.env:
            return None
        key = (call.spec.name, call.spec.version, call.name)
        tool, version, until = self._kept.get(key, (b"", "", None))
        if not tool:
            return None
        if until is not None and self._clock() >= until:
            del self._kept[key]
            return None
        self._kept.move_to_end(key)
        return tool, version

    async def ask(self, call: ToolCall) -> tuple[bytes | None, ToolFailure | None, str | None]:
        """As Tools.describe, with the tool as JSON."""
        description, failure, version = await self._tools.describe(call)
        if description is None:
            return None, failure, version
        tool = encode_value(description)
        if failure is None and version is not None and not call.env and len(tool) <= _MAX_BYTES:
            self._keep(call, tool, version)
        return tool, failure, version

    def _keep(self, call: ToolCall, tool: bytes, version: str) -> None:
        """Under the version that was asked for, for as long as a tag is believed, and under the exact one."""
        spec = call.spec
        if spec.version != version:
            until = self._clock() + self._latest_seconds
            self._kept[spec.name, spec.version, call.name] = tool, version, until
        self._kept[spec.name, version, call.name] = tool, version, None
        while len(self._kept) > _MAX_KEPT:
            self._kept.popitem(last=False)
