"""Runs the executions that are requested over a channel. Used by the WebSocket and by `hutch runner`."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import UNSET

from hutch.errors import InvalidExecution
from hutch.kernel.execution import Execution
from hutch.kernel.kernel import Kernel
from hutch.protocols.execbox.channel_runs import ChannelRuns
from hutch.protocols.execbox.channel_sessions import ChannelSessions
from hutch.sandbox.runner.profile import profile_for
from hutch.session.channels.stream import Channel
from hutch.session.extensions.server_side import NO_EXTENSIONS, ChannelExtensions
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
    extensions: ChannelExtensions = NO_EXTENSIONS,
    sessions: ChannelSessions | None = None,
    runs: ChannelRuns | None = None,
) -> ChannelServer:
    """Serves a channel until it closes.

    `engine` is the default engine. `pending` counts the bytes of the executions of all clients. `admit`
    raises HutchError if no execution may start. `extensions` says what the client has negotiated. `sessions`
    and `runs` handle stateful sessions and suspended runs, and are None if the client has not negotiated
    them.
    """

    async def run(request: ExecutionRequest) -> Result:
        admit()
        options = request.options
        if runs is not None and options.resume is not UNSET:
            return await runs.run(request, owner)
        is_turn = sessions is not None and options.session is not UNSET
        if is_turn and request.files:
            raise InvalidExecution("options.files", "expected no files, because a turn of a session has none")
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
            files=None if extensions.files is None or is_turn else kernel.files(request.files),
            checkpoint_after_ms=0.0 if runs is None else kernel.settings.checkpoint_after_ms,
            has_client_tools=runs is not None,
        )
        if sessions is not None and is_turn:
            return await sessions.run(options.session, execution, request.run)
        return await kernel.run(execution, request.run)

    return ChannelServer(
        channel,
        run,
        multiplexed=multiplexed,
        pending=pending,
        owner=owner,
        continues_traces=kernel.is_traced,
        extensions=extensions,
    )
