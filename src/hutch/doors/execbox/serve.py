"""An execution asked for over a channel, run by the kernel: for the WebSocket and for `hutch runner`."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import UNSET

from hutch.kernel import Execution, Kernel
from hutch.sandbox.profile import profile_for
from hutch.session.channel import Channel
from hutch.session.serving import Answer, Request, Serving


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
        limits = kernel.limits(
            {
                "timeout_ms": options.timeout_ms,
                "memory_limit_bytes": options.memory_limit_bytes,
                "max_log_lines": options.max_log_lines,
                "max_log_chars": options.max_log_chars,
            },
            clamp=True,
        )
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
