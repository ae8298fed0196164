"""One channel to a runner and the sessions on it: routes what comes to the session that it is for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from msgspec import UNSET

from hutch.errors import ProtocolError
from hutch.session.channel import Channel
from hutch.session.host import BACKSTOP, RUNNER_CODES, Limits, Session
from hutch.session.messages import Done, Job, RunnerMessage, decode_from_runner
from hutch.session.providers import Provider

logger = logging.getLogger("hutch.session")

# Reading nonsense takes time too: whoever keeps talking it is cut off, the sooner the longer it is.
MAX_DROPPED = 10_000
BYTES_A_DROP = 2_048
# Sessions of which the last word may still come, and with it `started` and the answer to a cancel.
MAX_LATE = 1_000
LATE_LINES = 3


class Link:
    """The host's end of a channel. Malformed and foreign messages are dropped; the channel stays usable."""

    def __init__(
        self,
        channel: Channel,
        *,
        full_manifests: bool = False,
        trusted: bool = False,
        codes: frozenset[str] = RUNNER_CODES,
        start_seconds: float | None = None,
        backstop_seconds: float = BACKSTOP,
        send_now: Callable[[bytes], None] | None = None,
    ) -> None:
        """`full_manifests`: whether the runner gets the tools' type declarations, which ours do not read.

        `trusted`: whether the other side is a host itself, which has judged its runner as we would.
        `codes`: of which errors we take the runner's word for it.
        `start_seconds`: how long a runner may take to start an execution beyond the execution's own time.
        `backstop_seconds`: how long a runner that keeps the time itself may overdraw it.
        `send_now`: how to say something to a runner that may be watching for it.
        """
        self._full_manifests = full_manifests
        self._trusted = trusted
        self._codes = codes
        self._start_seconds = start_seconds
        self._backstop_seconds = backstop_seconds
        self._send_now = send_now or channel.send
        self.sessions: dict[str, Session] = {}
        self._late: dict[str, int] = {}
        self.closed: str | None = None
        self.dropped = 0
        self.on_late: Callable[[str], None] = lambda _: None
        self._channel = channel
        channel.on_line = self._line
        channel.on_close = self.lose

    def open(
        self,
        id: str,
        code: str,
        limits: Limits,
        providers: Sequence[Provider],
        on_started: Callable[[], None] | None = None,
        job: Job | None = None,
        may_watch: Callable[[], bool] = lambda: False,
    ) -> Session:
        """A session that has begun; its `outcome` is awaited by the caller, who then calls `forget`.

        `may_watch`: whether the runner may use a core to watch for the next answer to a tool call.
        """

        def send_answer(line: bytes) -> None:
            (self._send_now if may_watch() else self._channel.send)(line)

        session = Session(
            id,
            code,
            limits,
            providers,
            self._channel.send,
            send_answer=send_answer,
            writable=self._channel.writable,
            full_manifests=self._full_manifests,
            trusted=self._trusted,
            codes=self._codes,
            start_seconds=self._start_seconds,
            backstop_seconds=self._backstop_seconds,
            on_started=on_started,
            job=job,
        )
        self.sessions[id] = session
        if self.closed is not None:
            session.lose(self.closed)
        else:
            session.begin()
        return session

    def forget(self, session: Session) -> None:
        self.sessions.pop(session.id, None)
        if session.may_be_answered:
            self._late[session.id] = LATE_LINES
            if len(self._late) > MAX_LATE:
                del self._late[next(iter(self._late))]

    def lose(self, reason: str) -> None:
        """The channel ended: so did every session on it."""
        if self.closed is None:
            self.closed = reason
        for session in list(self.sessions.values()):
            session.lose(reason)

    def close(self) -> None:
        self._channel.close()
        self.lose("closed by the host")

    def _line(self, line: bytes) -> None:
        try:
            message = decode_from_runner(line)
        except ProtocolError as error:
            self._drop(1 + len(line) // BYTES_A_DROP)
            logger.debug("dropped a message of a runner: %s", error)
            return
        session = self._session_of(message)
        if session is None:
            self._miss(message, len(line))
        elif not session.receive(message):
            # It may have been said in good faith, a moment too late; but not at this length.
            self._drop(len(line) // BYTES_A_DROP)

    def _miss(self, message: RunnerMessage, size: int) -> None:
        """What is said to nobody: nonsense, unless somebody was there who did not wait for it."""
        left = 0 if message.id is UNSET else self._late.pop(message.id, 0)
        if left > 1 and message.id is not UNSET:
            self._late[message.id] = left - 1
        self._drop(size // BYTES_A_DROP + (not left))
        if isinstance(message, Done):
            self.on_late(message.id)

    def _drop(self, cost: int) -> None:
        self.dropped += cost
        if self.dropped > MAX_DROPPED:
            self._channel.close()
            self.lose("it says too much that is not of the protocol")

    def _session_of(self, message: RunnerMessage) -> Session | None:
        if message.id is not UNSET:
            return self.sessions.get(message.id)
        # A tool_call of the plain protocol names no execution: there is only one on such a channel.
        return next(iter(self.sessions.values())) if len(self.sessions) == 1 else None
