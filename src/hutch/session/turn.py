"""Turns of stateful sessions: executions that start with the memory of the previous turn."""

from __future__ import annotations

from typing import Literal

import msgspec

from hutch.session.messages import VmState


class TurnState(msgspec.Struct, frozen=True, kw_only=True):
    """State of a VM between two turns."""

    memory: list[bytes]
    """Difference between the VM's memory and its image, in parts of at most MEMORY_PART_BYTES."""
    vm: VmState

    @property
    def memory_bytes(self) -> int:
        return sum(map(len, self.memory))


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """Makes an execution a turn of a stateful session."""

    number: int
    """Counts the turns of the session, beginning with 1."""
    state: TurnState | None
    """State after the previous turn. None for the first turn."""
    form: Literal["run", "variables"] = "run"
    """With `variables`, the result is a list of the session's variables, and no code runs."""
    max_bytes: int
    """Maximum size of the memory after the turn."""


def turn_json(turn: Turn) -> bytes:
    """Encodes a turn for `execute`. The memory of the previous turn must have been sent before."""
    fields = {"number": turn.number, "form": turn.form, "maxBytes": turn.max_bytes}
    return msgspec.json.encode(fields if turn.state is None else {**fields, "vm": turn.state.vm})
