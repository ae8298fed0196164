"""Stateful sessions over the Execbox WebSocket. Clients request this extension when they connect."""

from __future__ import annotations

from typing import Any

import msgspec

from hutch.errors import InvalidExecution
from hutch.kernel.execution import Execution
from hutch.kernel.sessions.sessions import Sessions
from hutch.session.json_value import encode_value
from hutch.session.messages import SessionRequest
from hutch.session.run import Result, RunHandle


class ChannelSessions:
    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def run(self, requested: Any, execution: Execution, run: RunHandle) -> Result:
        """Runs a turn or another session action. Returns the value of the action as a Result. Raises
        HutchError.
        """
        try:
            request = msgspec.convert(requested, SessionRequest)
        except msgspec.ValidationError as error:
            raise InvalidExecution("options.session", str(error)) from None
        if request.action == "run":
            if execution.profile.engine != "quickjs":
                raise InvalidExecution(
                    "options.engine", f"expected quickjs for a session, got {execution.profile.engine}"
                )
            if execution.check:
                raise InvalidExecution(
                    "options.check",
                    "expected false for a session, whose variables the compiler does not know",
                )
            return await self._sessions.run(request.id, execution, run)
        value = msgspec.to_builtins(await self._manage(request, execution))
        return Result(ok=True, result=value, result_json=encode_value(value), run_id=run.id)

    async def _manage(self, request: SessionRequest, execution: Execution) -> Any:
        sessions, id, owner = self._sessions, request.id, execution.owner
        match request.action:
            case "fork":
                return await sessions.fork(id, owner, request.copy)
            case "rollback":
                return await sessions.rollback(id, owner, request.turn)
            case "variables":
                return await sessions.variables(id, owner, execution.protocol)
            case "info":
                return await sessions.get(id, owner)
            case "store":
                return await sessions.store_now(id, owner)
            case "delete":
                return await sessions.delete(id, owner)
            case _:
                return await sessions.list(owner)
