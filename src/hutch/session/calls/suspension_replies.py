"""Replies to the tool calls of a run that is being suspended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping

from hutch.session.messages import ToolCall
from hutch.session.run import PendingCall
from hutch.session.suspension import Answer


class SuspensionReplies:
    """Collects the replies that were sent after the runner was asked to suspend the run. Also passes results
    to a journal before the guest gets them.
    """

    def __init__(self) -> None:
        self._recent: list[tuple[str, bytes]] | None = []
        """Sent replies with the ids of their calls. The runner may have suspended the run before a reply
        arrived. None if the run is not being suspended.
        """
        self._finished: dict[str, tuple[PendingCall, Answer | None]] = {}
        """Calls that ended since the runner was asked to suspend the run, with their results. The result of a
        stream is None.
        """
        self._journal: Callable[[str, Answer], Awaitable[None]] | None = None
        self._journaled: set[str] = set()
        """Ids of calls whose results are stored before the guest receives them."""

    def begin(self) -> None:
        """Stores replies from now on, because the runner was asked to suspend the run."""
        self._recent, self._finished = [], {}

    def forget(self) -> None:
        """Drops the stored replies, because the run was not suspended."""
        self._recent, self._finished = None, {}

    def take(self) -> list[bytes]:
        """Returns the replies that the guest has not received, and forgets them."""
        lines = self.lines
        self.forget()
        return lines

    @property
    def lines(self) -> list[bytes]:
        return [line for _, line in self._recent or []]

    def add(self, call_id: str, line: bytes) -> None:
        if self._recent is not None:
            self._recent.append((call_id, line))

    def drop_received(self, open_calls: Mapping[str, int]) -> None:
        """Drops the replies that the guest received before its suspension. `open_calls` maps the id of each
        call whose result the guest has not received to the number of items that the guest has received.
        """
        received = dict(open_calls)
        missing: list[tuple[str, bytes]] = []
        for call_id, line in self._recent or []:
            if received.get(call_id, 0) > 0:
                received[call_id] -= 1
            elif call_id in received:
                missing.append((call_id, line))
        self._recent = missing

    def finished_calls(self) -> list[PendingCall]:
        """Returns the calls that ended after the suspension."""
        return [call for call, _ in self._held().values()]

    def begin_journal(
        self, journal: Callable[[str, Answer], Awaitable[None]], call_ids: Iterable[str]
    ) -> dict[str, Answer]:
        """From now on, passes the results of these calls to `journal` before the guest gets them. Returns the
        results that arrived since the run was suspended.
        """
        self._journal, self._journaled = journal, set(call_ids)
        return {call_id: answer for call_id, (_, answer) in self._held().items() if answer is not None}

    async def note_end(self, call: ToolCall, answer: Answer, describe: Callable[[], PendingCall]) -> None:
        """Notes that a call has ended. If its result has to be stored, passes the result to the journal
        first.
        """
        if call.call_id in self._journaled and self._journal is not None:
            self._journaled.discard(call.call_id)
            await self._journal(call.call_id, answer)
        if self._recent is not None:
            self._finished[call.call_id] = describe(), None if call.stream is True else answer

    def _held(self) -> dict[str, tuple[PendingCall, Answer | None]]:
        held = {call_id for call_id, _ in self._recent or []}
        return {call_id: ended for call_id, ended in self._finished.items() if call_id in held}
