"""Adds, pauses and removes schedules and triggers, and starts the runs of triggers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from hutch.errors import HutchError, InvalidInput
from hutch.queue.models import Accepted, QueueCaller
from hutch.queue.schedules.cron import next_tick
from hutch.queue.targets import StartOptions, caller_of, check_name, target_request
from hutch.queue.triggers.mapping import check_mapping, map_inputs
from hutch.queue.triggers.payload import check_inputs, decode_payload
from hutch.queue.triggers.signatures import (
    check_secret,
    check_signature,
    delivery_id,
    new_token,
    token_digest,
)
from hutch.queue.webhooks.signature import new_secret
from hutch.store.models import new_id
from hutch.store.tables.queue.schedules import MissedPolicy, Schedule, SignatureScheme, TargetKind, Trigger

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hutch.queue.queue import RunQueue
    from hutch.store.store import Store


class NotFound(HutchError):
    """There is no such schedule, trigger or script."""

    code = "not_found"


class TriggerOptions(StartOptions, frozen=True, kw_only=True, omit_defaults=True):
    mapping: dict[str, str] = msgspec.field(default_factory=dict)
    secret: str | None = None


class NewTrigger(NamedTuple):
    trigger: Trigger
    token: str
    secret: str | None
    """Secret of the signature, if the server has created one."""


class Starters:
    """The schedules and triggers of one server."""

    def __init__(self, queue: RunQueue) -> None:
        self._queue = queue

    async def _check_target(
        self, caller: QueueCaller, kind: TargetKind, target: str, inputs: dict[str, Any]
    ) -> None:
        """Checks the target and, if the queue has handlers, its inputs. Raises HutchError and ApiError."""
        store = await self._queue.store()
        await target_request(store, caller, kind, target, inputs)
        if kind == "flow" and await store.flows.newest_version(caller.owner, target) is None:
            raise InvalidInput("target", f"there is no stored flow {target!r}.")

    # --- schedules ---

    async def add_schedule(
        self,
        caller: QueueCaller,
        name: str,
        kind: TargetKind,
        target: str,
        cron: str,
        *,
        timezone: str = "UTC",
        missed: MissedPolicy = "skip",
        options: StartOptions | None = None,
    ) -> Schedule:
        """Adds a schedule. Raises InvalidInput, AlreadyExists and Forbidden."""
        options = options or StartOptions()
        check_name(name)
        store = await self._queue.store()
        next_at = next_tick(cron, timezone, await store.queued_runs.now())
        await self._check_target(caller, kind, target, options.inputs)
        row = Schedule(
            id=new_id(),
            owner=caller.owner,
            scopes=_scopes(caller),
            name=name,
            target_kind=kind,
            target=target,
            cron=cron,
            timezone=timezone,
            missed=missed,
            next_at=next_at,
        )
        await store.schedules.add(row, msgspec.json.encode(options))
        return row

    async def pause_schedule(self, row: Schedule, *, is_paused: bool) -> None:
        """Pauses or continues a schedule. Ticks during a pause do not count as missed."""
        store = await self._queue.store()
        next_at = next_tick(row.cron, row.timezone, await store.queued_runs.now())
        await store.schedules.pause(row.id, is_paused=is_paused, next_at=next_at)

    # --- triggers ---

    async def add_trigger(
        self,
        caller: QueueCaller,
        name: str,
        kind: TargetKind,
        target: str,
        *,
        signature: SignatureScheme = "none",
        options: TriggerOptions | None = None,
    ) -> NewTrigger:
        """Adds a trigger with a new URL. Creates a secret if the signature scheme needs one and the caller
        gave none.
        """
        options = options or TriggerOptions()
        check_name(name)
        check_mapping(options.mapping)
        check_secret(signature, options.secret)
        await self._check_target(caller, kind, target, options.inputs)
        secret = options.secret
        if secret is None and signature != "none":
            secret = new_secret()
        options = msgspec.structs.replace(options, secret=secret)
        token = new_token()
        row = Trigger(
            id=new_id(),
            owner=caller.owner,
            scopes=_scopes(caller),
            name=name,
            target_kind=kind,
            target=target,
            token_digest=token_digest(token),
            signature=signature,
        )
        await (await self._queue.store()).triggers.add(row, msgspec.json.encode(options))
        return NewTrigger(row, token, secret)

    async def find_trigger(self, token: str) -> Trigger:
        """Raises NotFound."""
        row = await (await self._queue.store()).triggers.by_token(token_digest(token))
        if row is None:
            raise NotFound("There is no trigger with this URL.")
        return row

    async def fire(
        self, row: Trigger, headers: Mapping[str, str], query: Mapping[str, str], body: bytes, now: float
    ) -> Accepted:
        """Starts the run of a trigger. Raises Unauthorized, InvalidInput, Forbidden, NotFound and
        StoreError.
        """
        store = await self._queue.store()
        options = msgspec.json.decode(await store.triggers.options(row.id), type=TriggerOptions)
        check_signature(row.signature, options.secret or "", headers, body, now)
        if row.is_paused:
            raise NotFound("This trigger is paused.")
        payload = await decode_payload(body, headers)
        mapped = map_inputs(options.mapping, payload, headers, query)
        await check_inputs(mapped, len(body))
        # `options.inputs` comes last, so that the sender of a request cannot replace the inputs that the
        # owner has set.
        inputs = {**mapped, **options.inputs}
        request = await target_request(store, caller_of(row), row.target_kind, row.target, inputs)
        repeated = delivery_id(row.signature, headers, payload)
        key = None if repeated is None else f"trigger {row.id[:12]} {repeated}"
        accepted = await self._queue.submit(
            request, caller_of(row), options.run_options(key), f"trigger {row.name}"
        )
        await store.triggers.note_run(row.id, accepted.run_id)
        return accepted


def _scopes(caller: QueueCaller) -> str | None:
    return None if caller.scopes is None else msgspec.json.encode(list(caller.scopes)).decode()


async def find_schedule(store: Store, owners: Sequence[str], name: str) -> Schedule:
    """Returns the schedule with this name or id, if one of these owners has it. Raises NotFound."""
    for owner in owners:
        if (row := await store.schedules.find(owner, name)) is not None:
            return row
    raise NotFound(f"There is no schedule {name[:200]!r}.")


async def find_trigger(store: Store, owners: Sequence[str], name: str) -> Trigger:
    """Returns the trigger with this name or id, if one of these owners has it. Raises NotFound."""
    for owner in owners:
        if (row := await store.triggers.find(owner, name)) is not None:
            return row
    raise NotFound(f"There is no trigger {name[:200]!r}.")
