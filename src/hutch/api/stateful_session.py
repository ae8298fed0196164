"""Public API of a stateful session."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, Unpack

from hutch.errors import QuotaExceeded
from hutch.kernel.execution import Execution
from hutch.kernel.sessions.sessions import SessionInfo, Variable, new_session_id
from hutch.session.events.log_relay import relay_logs
from hutch.session.run import Result, RunHandle, refused_result

if TYPE_CHECKING:
    from hutch.api.options import TurnOptions


class Sessions(Protocol):
    """Stateful sessions of this process, or of a server."""

    async def run(self, session_id: str, execution: Execution, run: RunHandle) -> Result: ...
    async def variables(self, session_id: str, owner: str, protocol: str) -> list[Variable]: ...
    async def rollback(self, session_id: str, owner: str, turn: int) -> None: ...
    async def fork(self, session_id: str, owner: str, copy_id: str) -> None: ...
    async def get(self, session_id: str, owner: str) -> SessionInfo: ...
    async def store_now(self, session_id: str, owner: str) -> None: ...
    async def delete(self, session_id: str, owner: str) -> None: ...


class Session:
    """Code that runs in turns, which share their top-level declarations.

    ```python
    async with h.session("analysis") as s:
        await s.run("let x = 1")
        result = await s.run("x + 1")  # result.result == 2
    ```

    At the end of the context, the session is stored, so that another process can continue it. Without the
    context, it is stored a second after its last turn. Turns run one after the other. A turn that fails
    changes nothing.
    """

    def __init__(
        self,
        session_id: str,
        owner: str,
        sessions: Callable[[], Awaitable[Sessions]],
        execution: Callable[[str, TurnOptions], Awaitable[Execution]],
    ) -> None:
        self.id = session_id
        self.owner = owner
        self._sessions = sessions
        self._execution = execution

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.store()

    async def run(
        self,
        code: str,
        *,
        on_log: Callable[[str], object] | None = None,
        **options: Unpack[TurnOptions],
    ) -> Result:
        """Runs a turn. The arguments are those of `Hutch.run`. The first turn creates the session.

        Raises SessionError if the session cannot be used, and HutchError as `Hutch.run` does.
        """
        execution = await self._execution(code, options)
        run = partial(self._run, execution)
        return await (run(RunHandle()) if on_log is None else relay_logs(on_log, run))

    async def _run(self, execution: Execution, run: RunHandle) -> Result:
        try:
            return await (await self._sessions()).run(self.id, execution, run)
        except QuotaExceeded as error:
            return refused_result(str(error), error.retry_after, run.id)

    async def variables(self) -> list[Variable]:
        """Returns the names, types and approximate sizes of the variables. Raises SessionError."""
        return await (await self._sessions()).variables(self.id, self.owner, "python")

    async def rollback(self, turn: int) -> None:
        """Restores the state after a turn and discards all later turns. Turn 0 is the empty session.

        The setting `max_session_history` limits how many turns back this can go. Raises SessionError.
        """
        await (await self._sessions()).rollback(self.id, self.owner, turn)

    async def fork(self, session_id: str | None = None) -> Session:
        """Copies the session to a new, independent session. Raises SessionError."""
        copy_id = new_session_id() if session_id is None else session_id
        await (await self._sessions()).fork(self.id, self.owner, copy_id)
        return Session(copy_id, self.owner, self._sessions, self._execution)

    async def info(self) -> SessionInfo:
        """Returns the number of the last turn, times and the size. Raises SessionError."""
        return await (await self._sessions()).get(self.id, self.owner)

    async def store(self) -> None:
        """Stores the session now, so that another process can continue it. Raises HutchError."""
        await (await self._sessions()).store_now(self.id, self.owner)

    async def delete(self) -> None:
        """Deletes the session. Raises SessionError."""
        await (await self._sessions()).delete(self.id, self.owner)
