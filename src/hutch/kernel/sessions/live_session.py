"""A stateful session that this process holds: its current state, and the turns that are not stored yet."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import msgspec

from hutch.errors import ResumeError, SessionError
from hutch.kernel.durable import packing
from hutch.kernel.state_memory import StateCharge
from hutch.session.messages import VmState
from hutch.session.turn import TurnState
from hutch.store.tables.durable.sessions import SessionRow

# Maximum size of an encoded state without the VM's memory.
_OVERHEAD_BYTES = 1024


class LiveSession:
    """State of one session. States of turns are immutable, so they can be stored while the next turn runs,
    and shared by forks.
    """

    def __init__(self, row: SessionRow, state: TurnState | None, stored: dict[int, int]) -> None:
        """`stored` maps the turns whose states are in the store to their sizes."""
        self.row = row
        self.turn = row.turn
        self.state = state
        """State after the last turn. None before the first one."""
        self.held_until = 0.0
        """Monotonic time until which no other process can take the session."""
        self.is_changed = False
        """True if the store has an older state."""
        self.charge: StateCharge | None = None
        """Counts the memory of the states."""
        self._stored = stored
        self._unsaved: dict[int, TurnState] = {}

    def add(self, state: TurnState, max_turns: int, max_bytes: int) -> None:
        """Adds the state after another turn. Forgets the oldest unstored states if there are more than
        `max_turns` of them, or if they have more than `max_bytes` in total.
        """
        self.turn += 1
        self.state = self._unsaved[self.turn] = state
        self._stored.pop(self.turn, None)
        self.is_changed = True
        size = sum([unsaved.memory_bytes for unsaved in self._unsaved.values()])
        for turn in sorted(self._unsaved)[:-1]:
            if size <= max_bytes and turn > self.turn - max_turns:
                break
            size -= self._unsaved.pop(turn).memory_bytes

    def count_memory(self) -> None:
        """Sets the session's memory charge to the size of the states that are in memory now."""
        if self.charge is not None:
            states = {
                id(state): state for state in (self.state, *self._unsaved.values()) if state is not None
            }
            self.charge.set(sum(state.memory_bytes for state in states.values()))

    def start_with(self, state: TurnState, turn: int) -> None:
        """Replaces all states by a copy of another session's state."""
        self.turn, self.state, self._unsaved, self._stored = turn, state, {turn: state}, {}
        self.is_changed = True

    def go_back(self, turn: int, state: TurnState | None) -> None:
        """Discards all later turns. `state` is the state after `turn`."""
        self.turn, self.state = turn, state
        self._unsaved = {number: kept for number, kept in self._unsaved.items() if number <= turn}
        self._stored = {number: size for number, size in self._stored.items() if number <= turn}
        self.is_changed = True

    def find(self, turn: int) -> TurnState | None:
        """Returns the state after a turn if it is in memory."""
        return self.state if turn == self.turn else self._unsaved.get(turn)

    def is_stored(self, turn: int) -> bool:
        return turn in self._stored

    @property
    def turns(self) -> Sequence[int]:
        """Turns to which the session can go back."""
        return sorted({*self._stored, *self._unsaved})

    def begin_save(self, max_turns: int) -> dict[int, TurnState]:
        """Returns the states to store, and marks them as stored already now, so that changes during the write
        are not lost. `fail_save` reverts this.
        """
        self.is_changed = False
        oldest = self.turn - max_turns
        states = {turn: state for turn, state in self._unsaved.items() if turn > oldest}
        self._unsaved = {}
        self._stored = {turn: size for turn, size in self._stored.items() if turn > oldest}
        self._stored |= dict.fromkeys(states, 0)
        return states

    def drop_oldest(self, sizes: dict[int, int], max_bytes: int) -> list[int]:
        """Records the sizes of stored states. Returns the turns to keep: the latest ones that fit into
        `max_bytes` together, and at least one.
        """
        self._stored |= {turn: size for turn, size in sizes.items() if turn in self._stored}
        kept: list[int] = []
        total = 0
        for turn in sorted(self._stored, reverse=True):
            total += self._stored[turn]
            if kept and total > max_bytes:
                del self._stored[turn]
            else:
                kept.append(turn)
        return kept

    def fail_save(self, states: dict[int, TurnState]) -> None:
        for turn, state in states.items():
            if self._stored.get(turn) is not None:
                del self._stored[turn]
                self._unsaved.setdefault(turn, state)
        self.is_changed = True

    @property
    def stored_bytes(self) -> int:
        return sum(self._stored.values())

    @property
    def is_held(self) -> bool:
        return time.monotonic() < self.held_until


async def encode_state(state: TurnState) -> list[bytes]:
    """Encodes a state in parts."""
    if state.memory_bytes < packing.LARGE_BYTES:
        return _encode(state)
    return await asyncio.to_thread(_encode, state)


def _encode(state: TurnState) -> list[bytes]:
    return packing.pack(msgspec.msgpack.encode(state.vm), state.memory)


async def decode_state(parts: Sequence[bytes], max_bytes: int) -> TurnState:
    """Decodes a state whose authenticity was checked. Raises SessionError."""
    # Decode even small states in a thread, because a few kilobytes may be the compressed form of a large
    # memory.
    return await asyncio.to_thread(_decode, parts, max_bytes)


def _decode(parts: Sequence[bytes], max_bytes: int) -> TurnState:
    try:
        header, memory = packing.unpack(parts, max_bytes + _OVERHEAD_BYTES)
        return TurnState(memory=memory, vm=msgspec.msgpack.decode(header, type=VmState))
    except (ResumeError, msgspec.DecodeError) as error:
        raise SessionError("session_invalid", f"The state of the session cannot be read: {error}") from None
