"""`ability.execute`: an ability of the run's user, with the credentials that the user keeps for it."""

from __future__ import annotations

from typing import Any

import msgspec

from hutch.doors.rep.kinds.registry import Call, Kind, StepFailed

_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
_TOLD = ("errorCode", "credentialsExpired", "loginAbilities", "executedAt")


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which ability, with what; `transform` is JavaScript that makes of the answer what the flow wants."""

    ability: str
    params: dict[str, Any] = {}
    transform: str | None = None


async def _execute(call: Call) -> Any:
    params: Params = call.params
    name = call.context.user
    if name is None:
        raise StepFailed(
            "Abilities belong to somebody, and this run to nobody: name a user (hutch flow run --user NAME).",
            retriable=False,
        )
    keeping = (await call.context.app()).keeping
    user = await (await keeping.store()).users.by_name(name)
    if user is None:
        raise StepFailed(
            f"There is no user {name!r}; `hutch user list` says which there are.", retriable=False
        )
    abilities = await keeping.abilities()
    answer = await abilities.execute(user, params.ability, params.params, params.transform, door="rep")
    for line in answer.logs:
        call.log("info", line)
    return _value(answer.status, answer.body)


def _value(status: int, body: dict[str, Any]) -> Any:
    """Of an answer, what the specification calls its result: statusCode, body, headers, executedAt."""
    if body.get("success") is True:
        return body.get("result")
    details = {key: body[key] for key in _TOLD if key in body} | {"status": status}
    message = body.get("error")
    raise StepFailed(
        message if isinstance(message, str) else f"The ability failed with {status}.",
        retriable=status in _PASSING,
        details=details,
    )


EXECUTE = Kind("ability.execute", _execute, params=Params)
