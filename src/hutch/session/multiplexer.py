"""Multiplexes the sessions of one runner over a channel."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from msgspec import UNSET

from hutch.errors import ProtocolError
from hutch.session.channels.low_latency import LowLatencyChannel
from hutch.session.channels.peer import BACKSTOP_SECONDS, RUNNER_CODES, START_TIMEOUT_SECONDS, Peer
from hutch.session.channels.stream import Channel
from hutch.session.extensions.messages import FilePart, PendingCallMessage
from hutch.session.host import Session
from hutch.session.limits import Limits
from hutch.session.message_decoding import decode_from_runner, decode_from_server
from hutch.session.messages import (
    Done,
    Log,
    Memory,
    ServerMessage,
    Suspended,
    ToolCall,
)
from hutch.session.relayed_session import AnySession, RelayedSession
from hutch.session.run import Listener
from hutch.session.tools.provider import Provider
from hutch.telemetry.trace_context import TraceContext

logger = logging.getLogger("hutch.session")

# A peer is disconnected when the costs of its dropped messages exceed this sum, because parsing them takes
# time. A message costs 1 more for every BYTES_PER_DROP bytes.
MAX_DROP_COST = 10_000
BYTES_PER_DROP = 2_048
# Cost of a malformed message. Rejecting it takes several times as long as dropping a valid message.
MALFORMED_COST = 3
# Length above which a message costs something for the bytes of fields that the host ignores; see
# `_ignored_bytes`.
MAX_ENVELOPE_BYTES = 4_096
# Maximum number of ended sessions for which late messages (`started`, `done`, the answer to a cancel) are
# still expected.
MAX_LATE_SESSIONS = 1_000
MAX_LATE_MESSAGES = 3


class Multiplexer:
    """Host end of a channel to a runner. Drops malformed messages and messages for unknown sessions. The
    channel stays usable.
    """

    def __init__(
        self,
        channel: Channel,
        *,
        full_manifests: bool = False,
        trusted: bool = False,
        codes: frozenset[str] = RUNNER_CODES,
        start_seconds: float = START_TIMEOUT_SECONDS,
        backstop_seconds: float = BACKSTOP_SECONDS,
        max_silence_seconds: float = 0.0,
    ) -> None:
        """The arguments besides `channel` are fields of `Peer`."""
        self.peer = Peer(
            send=channel.send,
            writable=channel.writable,
            full_manifests=full_manifests,
            trusted=trusted,
            codes=codes,
            start_seconds=start_seconds,
            backstop_seconds=backstop_seconds,
            max_silence_seconds=max_silence_seconds,
        )
        self._send_execute = self._send_result = channel.send
        if isinstance(channel, LowLatencyChannel):
            self._send_execute, self._send_result = channel.send_execute, channel.send_result
        self.sessions: dict[str, AnySession] = {}
        self._late_messages: dict[str, int] = {}
        self.close_reason: str | None = None
        self.dropped = 0
        self.on_late_done: Callable[[str], None] = lambda _: None
        self._decode = decode_from_server if trusted else decode_from_runner
        self._channel = channel
        channel.on_line = self._on_line
        channel.on_close = self.mark_lost

    def open(
        self,
        id: str,
        code: str,
        limits: Limits,
        providers: Sequence[Provider],
        on_started: Callable[[], None] | None = None,
        *,
        inputs: bytes | None = None,
        listeners: Sequence[Listener] = (),
        trace: TraceContext | None = None,
    ) -> Session:
        """Starts a session. The caller awaits the result and then calls `forget`. The arguments are those of
        `Session`.
        """
        session = Session(
            id,
            code,
            limits,
            providers,
            self.peer,
            on_started=on_started,
            inputs=inputs,
            listeners=listeners,
            trace=trace,
        )
        self.add(session)
        session.begin()
        return session

    def add(self, session: Session) -> None:
        """Adds a session that was created with this multiplexer's `peer`. From now on, the session gets its
        messages from the runner. The caller calls `Session.begin`.
        """
        self.sessions[session.id] = session
        if self.close_reason is not None:
            session.mark_lost(self.close_reason)

    def send_execute(self, may_poll: Callable[[], bool], line: bytes) -> None:
        """Sends `execute`. `may_poll` returns True if the host may use a core to poll for the replies."""
        (self._send_execute if may_poll() else self.peer.send)(line)

    def send_result(self, may_poll: Callable[[], bool], line: bytes) -> None:
        """Sends a tool result. `may_poll` returns True if the host may use a core to poll for the next
        message, and the runner may use another core to poll for the next result.
        """
        (self._send_result if may_poll() else self.peer.send)(line)

    def send(self, lines: bytes) -> None:
        """Sends lines to the runner for a session on another machine."""
        self._channel.send(lines)

    def attach(self, session: RelayedSession) -> None:
        """Adds a session of another machine, whose lines are relayed to that machine until `forget`."""
        self.sessions[session.id] = session
        if self.close_reason is not None:
            session.mark_lost(self.close_reason)

    def forget(self, session: AnySession) -> None:
        self.sessions.pop(session.id, None)
        if session.may_send_more:
            self._late_messages[session.id] = MAX_LATE_MESSAGES
            if len(self._late_messages) > MAX_LATE_SESSIONS:
                del self._late_messages[next(iter(self._late_messages))]

    def mark_lost(self, reason: str) -> None:
        """Ends all sessions because the channel has ended."""
        if self.close_reason is None:
            self.close_reason = reason
        for session in list(self.sessions.values()):
            session.mark_lost(reason)

    def close(self) -> None:
        self._channel.close()
        self.mark_lost("closed by the host")

    def _on_line(self, line: bytes) -> None:
        self.peer.lines_received += 1
        try:
            message = self._decode(line)
        except ProtocolError as error:
            self._drop(MALFORMED_COST + len(line) // BYTES_PER_DROP)
            logger.debug("dropped an invalid message from a runner: %s", error)
            return
        session = self._session_of(message)
        if session is None:
            self._on_unknown_session(message, len(line))
        elif session.relay is not None:
            session.relay(line, message)
        elif not session.receive(message):
            # The message may be late rather than invalid, so it has a cost only if it is long.
            self._drop(len(line) // BYTES_PER_DROP)
        elif len(line) > MAX_ENVELOPE_BYTES:
            self._drop(_ignored_bytes(message, len(line)) // BYTES_PER_DROP)

    def _on_unknown_session(self, message: ServerMessage, size: int) -> None:
        """Drops a message for an unknown session. If no such session ended recently, the message counts as
        invalid.
        """
        left = 0 if message.id is UNSET else self._late_messages.pop(message.id, 0)
        if left > 1 and message.id is not UNSET:
            self._late_messages[message.id] = left - 1
        self._drop(size // BYTES_PER_DROP + (not left))
        if isinstance(message, Done):
            self.on_late_done(message.id)

    def _drop(self, cost: int) -> None:
        self.dropped += cost
        if self.dropped > MAX_DROP_COST:
            self._channel.close()
            self.mark_lost("it sent too many invalid messages")

    def _session_of(self, message: ServerMessage) -> AnySession | None:
        if message.id is not UNSET:
            return self.sessions.get(message.id)
        # A `tool_call` of plain Execbox does not name its execution, because a plain channel has only one
        # execution at a time. So use the only session.
        return next(iter(self.sessions.values())) if len(self.sessions) == 1 else None


def _ignored_bytes(message: ServerMessage, size: int) -> int:
    """Returns the number of bytes of an accepted message that the host does not use."""
    if isinstance(message, ToolCall):
        return size - memoryview(message.input).nbytes
    # `done` and `log` cost nothing: a session has only one `done`, and the lines of accepted `log` messages
    # are bounded.
    if isinstance(message, Memory | FilePart):
        # Base64 has four characters for three bytes of data.
        return size - len(message.data) * 4 // 3
    return 0 if isinstance(message, Done | Log | Suspended | PendingCallMessage) else size
