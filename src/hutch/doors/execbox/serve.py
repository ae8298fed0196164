"""An execution asked for over a channel, run by the kernel: for the WebSocket and for `hutch runner`."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import UNSET

from hutch.errors import InvalidExecution
from hutch.kernel import Execution, Kernel
from hutch.sandbox.profile import profile_for
from hutch.session.channel import Channel
from hutch.session.serving import Answer, Request, Serving

# What options are called there.
_ON_THE_WIRE = {
    "timeout_ms": "timeoutMs",
    "memory_limit_bytes": "memoryLimitBytes",
    "max_log_lines": "maxLogLines",
    "max_log_chars": "maxLogChars",
}


def serve(
    channel: Channel,
    kernel: Kernel,
    *,
    owner: str,
    engine: str = "quickjs",
    multiplexed: bool,
    admit: Callable[[], None] = lambda: None,
) -> Serving:
    """Serves a channel until it closes.

    `engine` is for executions that name none; `admit` raises HutchError for one that may not begin.
    """

    async def run(request: Request) -> Answer:
        admit()
        options = request.options
        try:
            limits = kernel.limits({name: getattr(options, name) for name in _ON_THE_WIRE}, clamp=True)
        except InvalidExecution as error:
            raise InvalidExecution(f"options.{_ON_THE_WIRE[error.field]}", error.detail) from None
        execution = Execution(
            code=request.code,
            profile=profile_for(engine if options.engine is UNSET else options.engine),
            limits=limits,
            providers=request.providers,
            owner=owner,
            door="execbox",
        )
        result = await kernel.run(execution, request.watch)
        return Answer(
            ok=result.ok,
            duration_ms=result.duration_ms,
            logs=result.logs,
            logs_truncated=result.logs_truncated,
            result_json=result.result_json,
            error=result.error,
        )

    return Serving(channel, run, multiplexed=multiplexed)
