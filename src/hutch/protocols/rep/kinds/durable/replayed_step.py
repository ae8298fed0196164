"""Records the tool calls of steps whose code cannot be stored, such as toolscripts.

If the runtime is killed, such a step begins again and gets the recorded results of its calls.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from hutch.errors import HutchError
from hutch.kernel.durable.calls.call_replay import CallReplay
from hutch.kernel.fair_use import DAY_SECONDS
from hutch.protocols.rep.kinds.registry import StepFailed

if TYPE_CHECKING:
    from hutch.protocols.rep.kinds.registry import Call
    from hutch.protocols.rep.runtime.context import StepServices


async def can_store(services: StepServices) -> bool:
    """Returns True if there is a store for recorded calls. Without a store, there is no journal either, so
    the flow cannot be resumed and recorded calls would not be used.
    """
    try:
        await services.store()
    except HutchError:
        return False
    return True


def attempt_id(call: Call, attempt: int, key: Sequence[str]) -> str:
    """Returns the run id of an attempt at a step. All processes compute the same id.

    `key` contains the code and the inputs of the step, so that a step with other code or inputs gets another
    id.
    """
    names = (call.context.owner, call.context.run_id, call.step_id, str(attempt), *key)
    return hashlib.sha256("\0".join(names).encode("utf-8", "surrogatepass")).hexdigest()[:32]


@asynccontextmanager
async def replayed_calls(call: Call, services: StepServices, key: Sequence[str]) -> AsyncIterator[str]:
    """Records the tool calls of an attempt at a step. If an earlier process has recorded calls of this
    attempt, replays those.

    Yields the run id for these calls. See `attempt_id` for `key`.
    """
    run_id = attempt_id(call, call.attempt, key)
    if not await can_store(services):
        yield run_id
        return
    store, settings, owner = await services.store(), call.context.services.settings, call.context.owner
    if await store.recorded_calls.stored_bytes(owner) > settings.max_suspended_bytes_per_owner:
        call.log(
            "warning",
            "the calls of this step are not recorded, because the recorded calls of this owner take more than"
            f" {settings.max_suspended_bytes_per_owner} bytes (setting max_suspended_bytes_per_owner)",
        )
        yield run_id
        return
    replay = await CallReplay.open(store, run_id, owner, settings.checkpoint_days * DAY_SECONDS)
    if replay.is_replaying:
        call.log("info", "begins again with the recorded results of its calls")

    async def forget() -> None:
        run_ids = [attempt_id(call, attempt, key) for attempt in range(call.attempt + 1)]
        await store.recorded_calls.delete(run_ids, owner)

    call.on_stored.append(forget)
    replays = services.gateway().replays
    replays[run_id] = replay
    try:
        yield run_id
    finally:
        del replays[run_id]
    if (message := replay.missing_call()) is not None:
        raise StepFailed(message, retriable=False)
