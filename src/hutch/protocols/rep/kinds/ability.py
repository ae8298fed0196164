"""`ability.execute`: executes an ability with the credentials of the run's user."""

from __future__ import annotations

from typing import Any

import msgspec

from hutch.protocols.rep.kinds.registry import Call, Kind, StepFailed

_RETRIABLE_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
_DETAIL_FIELDS = ("errorCode", "credentialsExpired", "loginAbilities", "executedAt")


class AbilityParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of `ability.execute`. `transform` is JavaScript code that converts the response."""

    ability: str
    params: dict[str, Any] = {}
    transform: str | None = None


async def _execute(call: Call) -> Any:
    params: AbilityParams = call.params
    name = call.context.user
    if name is None:
        raise StepFailed(
            "ability.execute needs a user: start the run with `hutch flow run --user NAME`.",
            retriable=False,
        )
    services = await call.context.step_services()
    user = await (await services.store()).users.by_name(name)
    if user is None:
        raise StepFailed(f"There is no user {name!r}; `hutch user list` lists all users.", retriable=False)
    abilities = await services.abilities()
    response = await abilities.execute(user, params.ability, params.params, params.transform, protocol="rep")
    for line in response.logs:
        call.log("info", line)
    return _result(response.status, response.body)


def _result(status: int, body: dict[str, Any]) -> Any:
    """Returns the `result` of the specification: statusCode, body, headers, executedAt. Raises StepFailed."""
    if body.get("success") is True:
        return body.get("result")
    details = {key: body[key] for key in _DETAIL_FIELDS if key in body} | {"status": status}
    message = body.get("error")
    raise StepFailed(
        message if isinstance(message, str) else f"The ability failed with {status}.",
        retriable=status in _RETRIABLE_STATUS,
        details=details,
    )


EXECUTE = Kind("ability.execute", _execute, params=AbilityParams)
