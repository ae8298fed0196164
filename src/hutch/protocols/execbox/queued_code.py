"""Asynchronous runs of code: `POST /runs` with the kind `code`. Their requests have the format of `POST
/run`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from hutch.http.run_results import result_json
from hutch.kernel.durable.suspended_runs import SuspendedRuns
from hutch.kernel.kernel import Kernel
from hutch.protocols.execbox.http_run import PROTOCOL, RunBody, RunHandler, parse_body
from hutch.queue.attempt import Attempt
from hutch.queue.models import HandlerResult, QueueCaller, RunRequest
from hutch.queue.suspended_attempt import continue_suspended, wait_suspended
from hutch.session.json_value import encode_decoded_value
from hutch.session.run import SUSPENDED, Result, RunHandle


class QueuedCode:
    kind = "code"
    protocol = PROTOCOL
    is_repeatable = False
    has_hidden_effects = False

    def __init__(self, handler: RunHandler, kernel: Kernel, suspended_runs: SuspendedRuns) -> None:
        self._handler = handler
        self._kernel = kernel
        self._suspended_runs = suspended_runs

    async def parse(self, body: dict[str, Any], caller: QueueCaller) -> RunRequest:
        parsed = parse_body(body)
        await self._handler.check(parsed)
        return RunRequest(
            kind=self.kind, protocol=self.protocol, label=parsed.label, body=encode_decoded_value(body)
        )

    async def run(self, attempt: Attempt) -> HandlerResult:
        runs = self._suspended_runs
        result = await continue_suspended(attempt, runs) if attempt.row.generation > 1 else None
        if result is None:
            result = await self._start(attempt)
        outcome = "ok" if result.error is None else result.error.code
        if attempt.handle is not None and attempt.handle.outcome not in ("", SUSPENDED):
            outcome = attempt.handle.outcome
        return HandlerResult(ok=result.ok, outcome=outcome, body=await result_json(result))

    async def _start(self, attempt: Attempt) -> Result:
        body = msgspec.json.decode(attempt.request, type=RunBody)
        execution = await self._handler.execution(attempt.caller, body)
        run = RunHandle(record_level=self._handler.record_level(body.record))
        await attempt.begin(run)
        result = await self._kernel.run(execution, run)
        if result.error is not None and result.error.code == SUSPENDED:
            return await wait_suspended(attempt, self._suspended_runs)
        return result
