"""Runs the executions that are requested over a channel. Used by the WebSocket and by `hutch runner`."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import UNSET

from hutch.errors import InvalidExecution
from hutch.kernel.execution import Execution
from hutch.kernel.kernel import Kernel
from hutch.protocols.execbox.channel_sessions import ChannelSessions
from hutch.sandbox.runner.profile import profile_for
from hutch.session.channels.stream import Channel
from hutch.session.run import Result
from hutch.session.runner import ChannelServer, ExecutionRequest, PendingBytes

# Names of the options in messages.
_WIRE_NAMES = {
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
    pending: PendingBytes,
    admit: Callable[[], None] = lambda: None,
    sessions: ChannelSessions | None = None,
) -> ChannelServer:
    """Serves a channel until it closes.

    `engine` is the default engine. `pending` counts the bytes of the executions of all clients. `admit`
    raises HutchError if no execution may start. `sessions` handles stateful sessions, and is None if the
    client has not negotiated them.
    """

    async def run(request: ExecutionRequest) -> Result:
        admit()
        options = request.options
        try:
            limits = kernel.limits({name: getattr(options, name) for name in _WIRE_NAMES}, clamp=True)
        except InvalidExecution as error:
            raise InvalidExecution(f"options.{_WIRE_NAMES[error.field]}", error.detail) from None
        execution = Execution(
            code=request.code,
            profile=profile_for(engine if options.engine is UNSET else options.engine),
            limits=limits,
            providers=request.providers,
            inputs=request.inputs,
            check=options.check is True,
            owner=owner,
            protocol="execbox",
        )
        if sessions is not None and options.session is not UNSET:
            return await sessions.run(options.session, execution, request.run)
        return await kernel.run(execution, request.run)

    return ChannelServer(
        channel,
        run,
        multiplexed=multiplexed,
        pending=pending,
        owner=owner,
        continues_traces=kernel.is_traced,
    )
