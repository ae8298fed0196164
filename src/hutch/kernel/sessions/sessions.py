"""Runs the turns of stateful sessions, stores the sessions when they are idle, and restores them."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec

from hutch.errors import HutchError, InvalidExecution, SessionError, VaultError
from hutch.kernel.durable.checkpoint import bundle_digest
from hutch.kernel.durable.holds import EXTEND_SECONDS, HOLD_SECONDS
from hutch.kernel.durable.packing import size_of
from hutch.kernel.execution import Execution
from hutch.kernel.fair_use import DAY_SECONDS
from hutch.kernel.sessions.live_session import LiveSession, decode_state, encode_state
from hutch.sandbox.runner.profile import profile_for
from hutch.session.run import Result, RunHandle
from hutch.session.turn import Turn, TurnState
from hutch.store.models import new_id, now
from hutch.store.tables.durable.sessions import SessionRow

if TYPE_CHECKING:
    from hutch.kernel.kernel import Kernel
    from hutch.settings import Settings
    from hutch.store.store import Store

logger = logging.getLogger("hutch.sessions")

WAIT_SECONDS = 5.0
"""Time for which a turn waits for a session that another process holds."""
POLL_SECONDS = 0.05
MAX_WAITING_TURNS = 64
"""Maximum number of turns of one session that wait for the turn that runs."""
SESSION_ID_PATTERN = "^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$"
_ID = re.compile(SESSION_ID_PATTERN.strip("^$"))


class SessionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Description of a stateful session."""

    id: str
    turn: int
    """Number of turns that have changed the session."""
    created_at: str
    used_at: str
    expires_at: str
    bytes: int
    """Size in the store."""


class Variable(msgspec.Struct, frozen=True, kw_only=True):
    """A variable of a stateful session."""

    name: str
    type: str
    """Result of `typeof`, or the class of an object: `Array`, `Map`, `Date`, …"""
    bytes: int
    """Approximate size in memory, including everything that the value refers to."""


class _Slot:
    """Use of one session in this process."""

    def __init__(self) -> None:
        self.turn_lock = asyncio.Lock()
        self.save_lock = asyncio.Lock()
        self.users = 0
        self.live: LiveSession | None = None
        """None while this process does not hold the session."""
        self.saving_task: asyncio.Task[None] | None = None

    def drop(self) -> None:
        """Frees the memory of the session."""
        if self.live is not None and self.live.charge is not None:
            self.live.charge.release()
        self.live = None


class Sessions:
    """Stateful sessions of one store. A session is identified by its owner and its id."""

    def __init__(
        self, settings: Settings, kernel: Kernel, open_store: Callable[[], Awaitable[Store]]
    ) -> None:
        self._settings = settings
        self._kernel = kernel
        self._open_store = open_store
        self._holder = secrets.token_hex(8)
        self._slots: dict[tuple[str, str], _Slot] = {}
        self._saving: set[asyncio.Task[None]] = set()
        # Only one write runs at a time, because encoding a state takes several times the state's memory, and
        # many forks may have to be stored at once.
        self._writing = asyncio.Semaphore(1)
        self._full_owners: set[str] = set()
        """Owners whose stored sessions exceeded the limit at the last check."""

    # --- turns ---

    async def run(
        self, session_id: str, execution: Execution, run: RunHandle, *, create: bool = True
    ) -> Result:
        """Runs a turn. If the turn fails, the session stays as it was. With `create`, a missing session is
        created. Raises HutchError if the turn could not be started.
        """
        if execution.owner in self._full_owners:
            await self._check_bytes(await self._open_store(), execution.owner)
        async with self._use(execution.owner, session_id, create=create) as (slot, live):
            turn = Turn(number=live.turn + 1, state=live.state, max_bytes=self._settings.max_checkpoint_bytes)
            label = execution.label or session_id
            result = await self._kernel.run(msgspec.structs.replace(execution, turn=turn, label=label), run)
            if slot.live is not live:
                raise SessionError(
                    "session_in_use",
                    f"Another process has used the session {session_id} meanwhile,"
                    " so the changes of this turn were not kept.",
                )
            state = None if run.session is None else run.session.turn_state
            if state is not None:
                live.add(state, self._settings.max_session_history, self._settings.max_checkpoint_bytes)
                live.count_memory()
            return result

    async def variables(self, session_id: str, owner: str, protocol: str) -> list[Variable]:
        """Lists the variables of a session. This counts as a run of `protocol`, because reading the variables
        can run code of the guest. Raises HutchError and ExecutionError.
        """
        async with self._use(owner, session_id) as (_, live):
            if live.state is None:
                return []
            turn = Turn(number=live.turn + 1, state=live.state, form="variables", max_bytes=0)
            execution = Execution(
                code="",
                profile=profile_for("quickjs"),
                limits=self._kernel.limits({}),
                owner=owner,
                protocol=protocol,
                label=f"{session_id}: variables",
                turn=turn,
            )
            result = (await self._kernel.run(execution)).raise_for_error()
        try:
            return msgspec.convert(result.result, list[Variable])
        except msgspec.ValidationError:
            # The guest has changed the built-ins that are needed to list its variables.
            raise SessionError("session_invalid", "The variables of the session cannot be listed.") from None

    async def rollback(self, session_id: str, owner: str, turn: int) -> None:
        """Restores the state after `turn` and discards all later turns. Turn 0 is the empty session. Raises
        SessionError.
        """
        async with self._use(owner, session_id) as (slot, live), slot.save_lock:
            state = None if turn == 0 else live.find(turn)
            if state is None and turn != 0:
                if not live.is_stored(turn):
                    turns = live.turns
                    known = f"one of the turns {turns[0]} to {turns[-1]}, or 0" if turns else "0"
                    raise SessionError("turn_not_found", f"turn: expected {known}, got {turn}.")
                state, _ = await self._load(live.row, turn)
            live.go_back(turn, state)

    async def fork(self, session_id: str, owner: str, copy_id: str) -> None:
        """Copies the current state of a session to a new session. Raises SessionError."""
        check_session_id(copy_id)
        async with self._use(owner, session_id) as (_, live):
            turn, state = live.turn, live.state
        async with self._locked(owner, copy_id) as slot:
            started = time.monotonic()
            row = None if slot.live is not None else await self._insert(owner, copy_id, self._holder)
            if row is None:
                raise _exists(copy_id)
            copy = LiveSession(row, None, {})
            copy.held_until = started + HOLD_SECONDS
            if state is not None:
                copy.start_with(state, turn)
                copy.charge = self._kernel.states.charge(owner)
                copy.count_memory()
            self._hold(slot, copy, copy_id)

    # --- the list of sessions ---

    async def create(self, session_id: str, owner: str) -> SessionInfo:
        """Creates an empty session. Raises SessionError."""
        check_session_id(session_id)
        row = await self._insert(owner, session_id)
        if row is None:
            raise _exists(session_id)
        return _info(row)

    async def get(self, session_id: str, owner: str) -> SessionInfo:
        """Raises SessionError if there is no such session."""
        check_session_id(session_id)
        row = await (await self._open_store()).sessions.get(owner, session_id)
        if row is None:
            raise _not_found(session_id)
        return self._current_info(row)

    async def list(self, owner: str) -> list[SessionInfo]:
        rows = await (await self._open_store()).sessions.list(owner)
        return [self._current_info(row) for row in rows]

    def _current_info(self, row: SessionRow) -> SessionInfo:
        slot = self._slots.get((row.owner, row.name))
        live = None if slot is None else slot.live
        return _info(row if live is None else msgspec.structs.replace(row, turn=live.turn))

    async def delete(self, session_id: str, owner: str) -> None:
        """Deletes a session. Raises SessionError if it does not exist, or another process uses it."""
        check_session_id(session_id)
        store = await self._open_store()
        async with self._locked(owner, session_id) as slot, slot.save_lock:
            if not await store.sessions.delete(owner, session_id, self._holder):
                row = await store.sessions.get(owner, session_id)
                raise _not_found(session_id) if row is None else _in_use(row)
            slot.drop()

    async def store_now(self, session_id: str, owner: str) -> None:
        """Stores a session that this process holds, and frees its memory. Raises HutchError."""
        async with self._locked(owner, session_id) as slot:
            await self._save(slot, release=True)

    async def close(self) -> None:
        """Stores all sessions that this process holds."""
        slots = [*self._slots.values()]
        for slot in slots:
            try:
                await self._save(slot, release=True)
            except HutchError as error:
                logger.warning("a session could not be stored, so its last turns are lost: %s", error)
        saving_tasks = [slot.saving_task for slot in slots if slot.saving_task is not None]
        for task in saving_tasks:
            task.cancel()
        await asyncio.gather(*saving_tasks, *self._saving, return_exceptions=True)

    # --- holding a session ---

    @asynccontextmanager
    async def _locked(self, owner: str, session_id: str) -> AsyncIterator[_Slot]:
        """Waits until no other task of this process uses a session."""
        slot = self._slots.get((owner, session_id))
        if slot is None:
            slot = self._slots[owner, session_id] = _Slot()
        if slot.users > MAX_WAITING_TURNS:
            raise SessionError(
                "session_in_use", f"{MAX_WAITING_TURNS} turns of the session {session_id} are waiting."
            )
        slot.users += 1
        try:
            async with slot.turn_lock:
                yield slot
        finally:
            slot.users -= 1
            self._forget_unused(owner, session_id, slot)

    def _forget_unused(self, owner: str, session_id: str, slot: _Slot) -> None:
        if slot.users == 0 and slot.live is None and self._slots.get((owner, session_id)) is slot:
            del self._slots[owner, session_id]

    @asynccontextmanager
    async def _use(
        self, owner: str, session_id: str, *, create: bool = False
    ) -> AsyncIterator[tuple[_Slot, LiveSession]]:
        """Holds a session while one task uses it."""
        check_session_id(session_id)
        async with self._locked(owner, session_id) as slot:
            live = slot.live
            if live is None or not live.is_held:
                charge = await self._kernel.states.reserve(owner, self._settings.max_checkpoint_bytes)
                try:
                    live = await self._take(owner, session_id, live, create=create)
                except BaseException:
                    charge.release()
                    raise
                live.charge = charge
                live.count_memory()
                self._hold(slot, live, session_id)
            yield slot, live

    def _hold(self, slot: _Slot, live: LiveSession, session_id: str) -> None:
        slot.live = live
        if slot.saving_task is None or slot.saving_task.done():
            saving = self._save_regularly(live.row.owner, session_id, slot)
            slot.saving_task = asyncio.get_running_loop().create_task(saving)

    async def _take(
        self, owner: str, session_id: str, known: LiveSession | None, *, create: bool
    ) -> LiveSession:
        """Reserves a session in the store and loads its state. Waits if another process holds it.

        `known` is this process's copy of the session. The copy is used if no other process has changed the
        session meanwhile.
        """
        store, give_up_at = await self._open_store(), time.monotonic() + WAIT_SECONDS
        while True:
            started = time.monotonic()
            row = await store.sessions.take(owner, session_id, self._holder, now(plus_seconds=HOLD_SECONDS))
            if row is None and (found := await store.sessions.get(owner, session_id)) is not None:
                if found.expires_at <= now():
                    raise _expired(found)
                if time.monotonic() > give_up_at:
                    raise _in_use(found)
                await asyncio.sleep(POLL_SECONDS)
                continue
            if row is None and not create:
                raise _not_found(session_id)
            row = row or await self._insert(owner, session_id, self._holder)
            if row is not None:
                break
        if known is not None and known.row.version == row.version:
            live = known
        else:
            if known is not None:
                logger.warning("another process has used the session %s, so turns were lost", session_id)
            live = await self._restore(store, row)
        live.held_until = started + HOLD_SECONDS
        return live

    async def _insert(self, owner: str, session_id: str, holder: str | None = None) -> SessionRow | None:
        """Adds a session. Returns None if the session already exists. Raises SessionError."""
        row = SessionRow(
            session_key=new_id(),
            owner=owner,
            name=session_id,
            bundle=bundle_digest(),
            holder=holder,
            held_until=None if holder is None else now(plus_seconds=HOLD_SECONDS),
            expires_at=self._expiry(),
        )
        store, settings = await self._open_store(), self._settings
        await self._check_bytes(store, owner)
        if await store.sessions.insert(row, settings.max_sessions_per_owner):
            return row
        if await store.sessions.get(owner, session_id) is None:
            raise _limit(f"{settings.max_sessions_per_owner} sessions (setting max_sessions_per_owner)")
        return None

    async def _check_bytes(self, store: Store, owner: str) -> None:
        """Raises SessionError if an owner's sessions, including unsaved ones, are too large."""
        maximum = self._settings.max_session_bytes_per_owner
        unsaved = sum(
            slot.live.state.memory_bytes
            for (user, _), slot in self._slots.items()
            if user == owner and slot.live is not None and not slot.live.row.bytes and slot.live.state
        )
        if await store.sessions.stored_bytes(owner) + unsaved >= maximum:
            raise _limit(f"{maximum} bytes (setting max_session_bytes_per_owner)")

    async def _restore(self, store: Store, row: SessionRow) -> LiveSession:
        try:
            if row.turn == 0:
                return LiveSession(msgspec.structs.replace(row, bundle=bundle_digest()), None, {})
            if row.bundle != bundle_digest():
                raise SessionError(
                    "session_incompatible",
                    f"The session {row.name} was used with another version of Hutch,"
                    " and only that version can continue it.",
                    remedy="Delete it, or use another id.",
                )
            return LiveSession(row, *await self._load(row, row.turn))
        except BaseException:
            await store.sessions.release(row.session_key, self._holder)
            raise

    async def _load(self, row: SessionRow, turn: int) -> tuple[TurnState, dict[int, int]]:
        """Returns the state after a turn, and the sizes of all stored states by turn."""
        try:
            data, sizes = await (await self._open_store()).sessions.state(row, turn)
        except VaultError as error:
            logger.warning("the state of the session %s cannot be decrypted: %s", row.name, error)
            raise SessionError(
                "session_invalid",
                f"The state of the session {row.name} was altered, or the key that encrypted it is missing.",
                remedy="Delete it, or use another id.",
            ) from None
        return await decode_state(data, self._settings.max_checkpoint_bytes), sizes

    def _expiry(self) -> str:
        return now(plus_seconds=self._settings.session_days * DAY_SECONDS)

    # --- storing ---

    async def _save_regularly(self, owner: str, session_id: str, slot: _Slot) -> None:
        """Stores a session after its turns, keeps it reserved while a turn runs, and releases it when it is
        idle.
        """
        while slot.live is not None:
            await asyncio.sleep(self._settings.session_idle_ms / 1000)
            try:
                if slot.users:
                    await self._save(slot, release=False)
                else:
                    async with self._locked(owner, session_id):
                        await self._save(slot, release=True)
            except HutchError as error:
                logger.warning("the session %s could not be stored: %s", session_id, error)

    async def _save(self, slot: _Slot, *, release: bool) -> None:
        """Stores the changes of a session. With `release`, other processes can use the session afterwards.
        Raises HutchError. Cancelling this call does not stop the write, because its outcome must be known.
        """
        saving = asyncio.get_running_loop().create_task(self._save_now(slot, release=release))
        self._saving.add(saving)
        saving.add_done_callback(self._saving.discard)
        await asyncio.shield(saving)

    async def _save_now(self, slot: _Slot, *, release: bool) -> None:
        async with slot.save_lock:
            live, started = slot.live, time.monotonic()
            if live is None:
                return
            if live.is_changed or release:
                is_held = await self._write(live, release=release)
            elif live.held_until - started < HOLD_SECONDS - EXTEND_SECONDS:
                store = await self._open_store()
                until = now(plus_seconds=HOLD_SECONDS)
                is_held = await store.sessions.extend(live.row.session_key, self._holder, until)
            else:
                return
            live.held_until = started + HOLD_SECONDS
            if release or not is_held:
                slot.drop()
            else:
                live.count_memory()
            if not is_held:
                raise SessionError(
                    "session_in_use", "Another process has used the session, so turns were lost."
                )

    async def _write(self, live: LiveSession, *, release: bool) -> bool:
        """Returns False if another process has used the session since the last write."""
        async with self._writing:
            return await self._write_next(live, release=release)

    async def _write_next(self, live: LiveSession, *, release: bool) -> bool:
        settings, turn = self._settings, live.turn
        states = live.begin_save(settings.max_session_history)
        try:
            store = await self._open_store()
            data = {number: await encode_state(state) for number, state in states.items()}
            sizes = {number: size_of(parts) for number, parts in data.items()}
            kept = live.drop_oldest(sizes, settings.max_checkpoint_bytes)
            row = msgspec.structs.replace(
                live.row,
                turn=turn,
                version=new_id(),
                holder=None if release else self._holder,
                held_until=None if release else now(plus_seconds=HOLD_SECONDS),
                used_at=now(),
                expires_at=self._expiry(),
                bytes=live.stored_bytes,
            )
            is_saved = await store.sessions.save(row, data, kept, self._holder, live.row.version)
        except BaseException:
            live.fail_save(states)
            raise
        live.row = row
        if await store.sessions.stored_bytes(row.owner) >= settings.max_session_bytes_per_owner:
            self._full_owners.add(row.owner)
        else:
            self._full_owners.discard(row.owner)
        return is_saved


def new_session_id() -> str:
    return secrets.token_hex(8)


def check_session_id(session_id: object) -> None:
    """Raises InvalidExecution unless the id is valid."""
    if not isinstance(session_id, str) or not _ID.fullmatch(session_id):
        shown = f"{session_id!r:.100}"
        raise InvalidExecution(
            "session", f"expected 1 to 128 letters, digits, '.', '_', ':' or '-', got {shown}"
        )


def _info(row: SessionRow) -> SessionInfo:
    return SessionInfo(
        id=row.name,
        turn=row.turn,
        created_at=row.created_at,
        used_at=row.used_at,
        expires_at=row.expires_at,
        bytes=row.bytes,
    )


def _exists(session_id: str) -> SessionError:
    return SessionError(
        "session_exists", f"There is a session {session_id} already.", remedy="Use another id."
    )


def _expired(row: SessionRow) -> SessionError:
    return SessionError(
        "session_expired",
        f"The session {row.name} expired at {row.expires_at}.",
        remedy="Delete it to use its id again.",
    )


def _not_found(session_id: str) -> SessionError:
    return SessionError("session_not_found", f"There is no session {session_id}.")


def _in_use(row: SessionRow) -> SessionError:
    return SessionError(
        "session_in_use",
        f"Another process uses the session {row.name}, until {row.held_until} at the latest.",
        remedy="Try again.",
    )


def _limit(reached: str) -> SessionError:
    return SessionError("session_limit", f"This owner has {reached}.", remedy="Delete some sessions.")
