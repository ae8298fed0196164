"""Asynchronous executions of abilities: `POST /runs` with the kind `ability`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from hutch.errors import Busy, Unauthorized
from hutch.http.errors import ApiError
from hutch.protocols.abilities import requests, responses
from hutch.protocols.abilities.execute import AbilityExecutor
from hutch.queue.attempt import Attempt, LeaseLost
from hutch.queue.models import HandlerResult, QueueCaller, RunRequest
from hutch.session.json_value import encode_decoded_value, encode_value
from hutch.store.store import Store

PROTOCOL = "abilities"
_BUSY_STATUSES = (429, 503)


class _StoredExecution(msgspec.Struct, frozen=True):
    ability: str
    params: dict[str, Any] = {}
    transform_code: str | None = msgspec.field(name="transformCode", default=None)


class QueuedAbility:
    kind = "ability"
    protocol = PROTOCOL
    is_repeatable = False
    has_hidden_effects = False

    def __init__(
        self, store: Callable[[], Awaitable[Store]], executor: Callable[[], Awaitable[AbilityExecutor]]
    ) -> None:
        self._store = store
        self._executor = executor

    async def parse(self, body: dict[str, Any], caller: QueueCaller) -> RunRequest:
        if caller.scopes is None:
            raise ApiError(
                "forbidden", "Abilities need a user's key, because they use that user's credentials"
            )
        fields = dict(body)
        ability = fields.pop("ability", None)
        if not isinstance(ability, str):
            raise ApiError("invalid_request", "request.ability: expected the id of an ability")
        parsed = requests.parse_execute(fields)
        if await (await self._store()).abilities.get(ability, caller.owner) is None:
            raise responses.not_found(ability)
        stored = {"ability": ability, "params": parsed.params, "transformCode": parsed.transform_code}
        return RunRequest(
            kind=self.kind, protocol=self.protocol, label=ability, body=encode_decoded_value(stored)
        )

    async def run(self, attempt: Attempt) -> HandlerResult:
        stored = msgspec.json.decode(attempt.request, type=_StoredExecution)
        user = await (await self._store()).users.by_id(attempt.caller.owner)
        if user is None:
            raise Unauthorized("unknown", "The user of this run does not exist any more.")
        executor = await self._executor()
        response = await executor.execute(
            user, stored.ability, stored.params, stored.transform_code, preparation=attempt
        )
        if attempt.is_lost:
            raise LeaseLost
        if response.status in _BUSY_STATUSES and attempt.handle is None:
            raise Busy(retry_after=float(response.headers.get("Retry-After", "1")))
        is_ok = response.body.get("success") is True
        outcome = "ok" if is_ok else _outcome(attempt)
        return HandlerResult(ok=is_ok, outcome=outcome, body=encode_value(response.body))


def _outcome(attempt: Attempt) -> str:
    recorded = "" if attempt.handle is None else attempt.handle.outcome
    return recorded if recorded not in ("", "ok") else "ability_failed"
