"""Stores suspended runs, collects the results that they wait for, and continues them."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from hutch.errors import HutchError, ResumeError, ToolError
from hutch.kernel import checkpoint as checkpoints
from hutch.kernel.checkpoint import Checkpoint
from hutch.kernel.execution import Execution
from hutch.sandbox.runner.profile import profile_for
from hutch.session.run import Result, RunHandle
from hutch.session.suspension import Answer
from hutch.session.tools.provider import Provider
from hutch.text import format_rfc3339

if TYPE_CHECKING:
    from hutch.kernel.kernel import Kernel
    from hutch.settings import Settings
    from hutch.store.store import Store
    from hutch.store.tables.checkpoints import CheckpointRow

logger = logging.getLogger("hutch.runs")

HOLD_SECONDS = 30.0
"""Time for which a process holds the runs that it continues. It extends the time while it lives."""
EXTEND_SECONDS = 10.0
PART_BYTES = 512 * 1024
LARGE_BYTES = 256 * 1024
"""Size above which a checkpoint is compressed in a thread."""
# Size of a checkpoint without the memory: the code, the pending calls and the recorded calls.
OVERHEAD_BYTES = 64 * 1024 * 1024


class SuspendedRuns:
    """Suspended runs of one store."""

    def __init__(
        self, settings: Settings, kernel: Kernel, open_store: Callable[[], Awaitable[Store]]
    ) -> None:
        self._settings = settings
        self._kernel = kernel
        self._open_store = open_store
        self._holder = secrets.token_hex(8)
        self._held: set[str] = set()
        self._extending: asyncio.Task[None] | None = None

    # --- suspending ---

    async def save(self, execution: Execution, run: RunHandle) -> Checkpoint:
        """Stores a run that was just suspended. Raises HutchError."""
        checkpoint = self._checkpoint(execution, run)
        store = await self._open_store()
        data = await self._encode(checkpoint)
        calls = {call.call_id: _digest(call.token) for call in checkpoint.session.pending}
        is_saved = await store.checkpoints.save(
            self._row(checkpoint, len(data)),
            [data[start : start + PART_BYTES] for start in range(0, len(data), PART_BYTES)],
            calls,
            self._holder,
        )
        self._held.discard(run.id)
        if not is_saved:
            raise ResumeError("checkpoint_in_use", f"Another process continues the run {run.id}.")
        return checkpoint

    def _checkpoint(self, execution: Execution, run: RunHandle) -> Checkpoint:
        assert run.session is not None
        assert run.session.saved is not None
        return Checkpoint(
            run_id=run.id,
            owner=execution.owner,
            bundle=checkpoints.bundle_digest(),
            generation=run.generation + 1,
            protocol=execution.protocol,
            label=execution.label,
            parent_run_id=execution.parent_run_id,
            code=execution.code,
            limits=execution.limits,
            created_at=run.started_at,
            expires_at=time.time() + self._settings.checkpoint_days * 86_400,
            session=run.session.saved,
        )

    async def _encode(self, checkpoint: Checkpoint) -> bytes:
        if len(checkpoint.session.memory) < LARGE_BYTES:
            return checkpoints.encode(checkpoint)
        return await asyncio.to_thread(checkpoints.encode, checkpoint)

    def _row(self, checkpoint: Checkpoint, size: int) -> CheckpointRow:
        from hutch.store.tables.checkpoints import CheckpointRow

        return CheckpointRow(
            run_id=checkpoint.run_id,
            owner=checkpoint.owner,
            bundle=checkpoint.bundle,
            generation=checkpoint.generation,
            expires_at=format_rfc3339(datetime.fromtimestamp(checkpoint.expires_at, UTC)),
            bytes=size,
        )

    # --- answers ---

    async def answer(self, run_id: str, owner: str, answers: Mapping[str, Answer]) -> None:
        """Stores results of pending calls. Raises ResumeError if a call does not exist or has a result."""
        store = await self._open_store()
        row = await store.checkpoints.get(run_id)
        if row is None or row.owner != owner:
            raise _not_found(run_id)
        known = await store.checkpoints.answers(run_id)
        for call_id in answers:
            if call_id not in known:
                waiting = ", ".join(known) or "no call"
                raise ResumeError(
                    "unknown_call", f"The run {run_id} has no pending call {call_id}; it waits for {waiting}."
                )
        for call_id, answer in answers.items():
            text = msgspec.json.encode(answer).decode()
            if not await store.checkpoints.answer(run_id, call_id, text):
                raise ResumeError("already_answered", f"The call {call_id} already has a result.")

    async def resolve(self, token: str, answer: Answer) -> tuple[str, str]:
        """Stores the result of the call with a token. Returns the run's id and owner. Raises ResumeError."""
        store = await self._open_store()
        digest = _digest(token)
        found = None if digest is None else await store.checkpoints.find_call(digest)
        if found is None:
            raise ResumeError("unknown_call", "There is no pending call with this token.")
        row, call_id = found
        if not await store.checkpoints.answer(row.run_id, call_id, msgspec.json.encode(answer).decode()):
            raise ResumeError("already_answered", "The call with this token already has a result.")
        return row.run_id, row.owner

    # --- continuing ---

    async def resume(
        self, run_id: str, owner: str, providers: Sequence[Provider]
    ) -> tuple[Execution, RunHandle]:
        """Takes a suspended run out of the store. `run` continues it. Raises ResumeError and VaultError."""
        store = await self._open_store()
        taken = await store.checkpoints.take(run_id, owner, self._holder, _after(HOLD_SECONDS))
        if taken is None:
            raise await self._refusal(store, run_id, owner)
        row, parts = taken
        self._hold(run_id)
        try:
            checkpoints.check_bundle(row.bundle)
            max_bytes = self._settings.max_checkpoint_bytes + OVERHEAD_BYTES
            data = b"".join(parts)
            is_large = len(data) > LARGE_BYTES
            checkpoint = (
                await asyncio.to_thread(checkpoints.decode, data, max_bytes)
                if is_large
                else checkpoints.decode(data, max_bytes)
            )
            answers = {
                call_id: msgspec.json.decode(text, type=Answer)
                for call_id, text in (await store.checkpoints.answers(run_id)).items()
                if text is not None
            }
        except BaseException:
            self._held.discard(run_id)
            await store.checkpoints.release(run_id, self._holder)
            raise
        execution = Execution(
            code=checkpoint.code,
            profile=profile_for("quickjs"),
            limits=checkpoint.limits,
            providers=providers,
            owner=owner,
            protocol=checkpoint.protocol,
            label=checkpoint.label,
            parent_run_id=checkpoint.parent_run_id,
            saved=checkpoint.session,
            answers=answers,
        )
        run = RunHandle(id=run_id, started_at=checkpoint.created_at, generation=checkpoint.generation)
        run.before_call = _Once(lambda: self._mark_called(store, run_id))
        return execution, run

    async def run(self, execution: Execution, run: RunHandle) -> Result:
        """Continues a run until it ends or is suspended again. Raises HutchError."""
        store = await self._open_store()
        try:
            result = await self._kernel.run(execution, run)
        except BaseException:
            self._held.discard(run.id)
            if not run.has_started:
                await store.checkpoints.release(run.id, self._holder)
            raise
        if run.session is None or run.session.saved is None:
            self._held.discard(run.id)
            await store.checkpoints.delete(run.id, self._holder)
        return result

    async def _mark_called(self, store: Store, run_id: str) -> None:
        try:
            is_held = await store.checkpoints.mark_called(run_id, self._holder)
        except HutchError as error:
            raise ToolError(f"The call was not made, because it could not be recorded: {error}") from None
        if not is_held:
            raise ToolError("The call was not made, because another process continues the run")

    async def _refusal(self, store: Store, run_id: str, owner: str) -> ResumeError:
        row = await store.checkpoints.get(run_id)
        if row is None or row.owner != owner:
            return _not_found(run_id)
        if row.state == "suspended":
            return ResumeError(
                "checkpoint_expired", f"The run {run_id} was suspended until {row.expires_at}."
            )
        return ResumeError("checkpoint_in_use", f"The run {run_id} is already running.")

    def _hold(self, run_id: str) -> None:
        self._held.add(run_id)
        if self._extending is None or self._extending.done():
            self._extending = asyncio.get_running_loop().create_task(self._extend())

    async def _extend(self) -> None:
        while self._held:
            await asyncio.sleep(EXTEND_SECONDS)
            try:
                store = await self._open_store()
                await store.checkpoints.extend(self._holder, _after(HOLD_SECONDS))
            except HutchError as error:
                logger.warning("cannot extend the hold of resumed runs: %s", error)

    # --- the rest ---

    async def pending(self, run_id: str, owner: str) -> list[str]:
        """Returns the ids of the calls that a suspended run waits for. Raises ResumeError."""
        store = await self._open_store()
        row = await store.checkpoints.get(run_id)
        if row is None or row.owner != owner:
            raise _not_found(run_id)
        return [call for call, answer in (await store.checkpoints.answers(run_id)).items() if answer is None]

    async def cancel(self, run_id: str, owner: str) -> bool:
        """Ends a suspended run. Returns False if it is not suspended."""
        store = await self._open_store()
        row = await store.checkpoints.get(run_id)
        if row is None or row.owner != owner or not await store.checkpoints.delete(run_id, None):
            return False
        await store.runs.end_suspended(run_id, "cancelled")
        return True

    async def end_interrupted(self) -> int:
        """Ends the runs that cannot be continued: those that have expired, and those whose process died after
        they had called a tool. Returns their number.
        """
        store = await self._open_store()
        rows = await store.checkpoints.take_interrupted()
        for row in rows:
            outcome = "expired" if row.state == "suspended" else "interrupted"
            await store.runs.end_suspended(row.run_id, outcome)
            logger.warning("the suspended run %s ended: %s", row.run_id, outcome)
        return len(rows)

    async def close(self) -> None:
        if self._extending is not None:
            self._extending.cancel()
            await asyncio.gather(self._extending, return_exceptions=True)


class _Once:
    """Awaits an action the first time that it is called."""

    def __init__(self, action: Callable[[], Awaitable[None]]) -> None:
        self._action: Callable[[], Awaitable[None]] | None = action
        self._lock = asyncio.Lock()

    async def __call__(self) -> None:
        if self._action is None:
            return
        async with self._lock:
            if self._action is not None:
                await self._action()
                self._action = None


def _digest(token: str | None) -> str | None:
    return None if token is None else hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def _after(seconds: float) -> str:
    return format_rfc3339(datetime.fromtimestamp(time.time() + seconds, UTC))


def _not_found(run_id: str) -> ResumeError:
    return ResumeError("checkpoint_not_found", f"There is no suspended run {run_id}.")
