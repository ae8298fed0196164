"""Asynchronous calls of tools: `POST /execute-async`, and `POST /runs` with the kind `tool`."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from hutch.protocols.tpmjs import requests, responses
from hutch.protocols.tpmjs.execute import ToolExecutor
from hutch.protocols.tpmjs.responses import ProtocolVersion
from hutch.queue.attempt import Attempt
from hutch.queue.models import HandlerResult, QueueCaller, RunRequest
from hutch.session.json_value import encode_decoded_value

OPTION_NAMES = {
    "delay_ms": "delayMs",
    "deadline_ms": "deadlineMs",
    "idempotency_key": "idempotencyKey",
    "webhook": "callbackUrl",
}
"""Names of the options in the protocol's style."""
_CALL_FIELDS = ("packageName", "version", "name", "params", "env", "validate")


class _StoredCall(msgspec.Struct, frozen=True):
    call: dict[str, Any]
    version: ProtocolVersion = "1.0"


class QueuedTool:
    kind = "tool"
    protocol = "tpmjs"
    is_repeatable = False
    # Assume that every call has effects, because a tool may have network access.
    has_hidden_effects = True

    def __init__(self, tools: ToolExecutor) -> None:
        self._tools = tools

    async def parse(
        self, body: dict[str, Any], caller: QueueCaller, version: ProtocolVersion = "1.0"
    ) -> RunRequest:
        call = requests.parse_call(body, caller.owner)
        fields = {name: body[name] for name in _CALL_FIELDS if name in body}
        return RunRequest(
            kind=self.kind,
            protocol=self.protocol,
            label=f"{call.spec}#{call.name}",
            body=encode_decoded_value({"call": fields, "version": version}),
        )

    async def run(self, attempt: Attempt) -> HandlerResult:
        stored = msgspec.json.decode(attempt.request, type=_StoredCall)
        call = requests.parse_call(stored.call, attempt.caller.owner)
        began = time.monotonic()
        outcome = await self._tools.execute(call, None, attempt)
        elapsed_ms = int((time.monotonic() - began) * 1000)
        response = responses.execution_response(outcome, stored.version, elapsed_ms)
        code = "ok" if outcome.failure is None else outcome.failure.code
        return HandlerResult(ok=outcome.failure is None, outcome=code, body=response.body)
