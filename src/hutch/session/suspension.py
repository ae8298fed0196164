"""Suspended sessions: everything that another runner needs to continue an execution."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec

from hutch.errors import InvalidExecution
from hutch.session.files.calls import SavedFiles
from hutch.session.json_value import NotJsonSafe, well_formed
from hutch.session.large_json import encode_large_result, encode_large_value
from hutch.session.messages import SuspendedState
from hutch.session.run import CallRecord, PendingCall


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Result or error of a pending call."""

    result_json: bytes | None = None
    """JSON text of the result. None for an error."""
    code: str = ""
    message: str = ""


def encode_answer(answer: Answer) -> bytes:
    """Encodes a result or an error for the store."""
    if answer.result_json is not None:
        return _RESULT + answer.result_json
    return _ERROR + msgspec.msgpack.encode((answer.code, well_formed(answer.message)))


def decode_answer(data: bytes) -> Answer:
    """Decodes the return value of `encode_answer`."""
    if data.startswith(_RESULT):
        return Answer(result_json=data[len(_RESULT) :])
    code, message = msgspec.msgpack.decode(data[len(_ERROR) :], type=tuple[str, str])
    return Answer(code=code, message=message)


_RESULT, _ERROR = b"=", b"!"


async def answer_of(value: Any, field: str) -> Answer:
    """Returns the encoded result of a call. Raises InvalidExecution with the name of the field if the value
    is not JSON-safe.
    """
    try:
        return Answer(result_json=await encode_large_result(value))
    except NotJsonSafe as error:
        raise InvalidExecution(field, f"expected a JSON-safe value: {error}") from None


async def decoded_answer(value: Any) -> Answer:
    """Like `answer_of`, for a value that was decoded from JSON. Other tasks run while a long value is
    encoded.
    """
    return Answer(result_json=await encode_large_value(value))


async def answers_of(results: object, errors: object) -> dict[str, Answer]:
    """Returns results and error messages of calls, by call id. Raises InvalidExecution."""
    answers = {
        call_id: await answer_of(value, f"results.{call_id}")
        for call_id, value in _by_call_id(results, "results")
    }
    return with_errors(answers, errors)


def with_errors(answers: dict[str, Answer], errors: object) -> dict[str, Answer]:
    """Adds error messages of calls to their results. Raises InvalidExecution."""
    for call_id, message in _by_call_id(errors, "errors"):
        if not isinstance(message, str):
            raise InvalidExecution(f"errors.{call_id}", f"expected a str, got {type(message).__name__}")
        if call_id in answers:
            raise InvalidExecution(f"errors.{call_id}", "expected a result or an error of a call, got both")
        answers[call_id] = Answer(code="tool_error", message=message)
    return answers


def _by_call_id(values: object, field: str) -> list[tuple[str, Any]]:
    if values is None:
        return []
    if not isinstance(values, Mapping):
        raise InvalidExecution(field, f"expected a dict with the ids of calls, got {type(values).__name__}")
    for call_id in values:
        if not isinstance(call_id, str):
            raise InvalidExecution(field, f"expected the ids of calls, which are str, got {call_id!r}")
    return [*values.items()]


class SavedSession(msgspec.Struct, frozen=True, kw_only=True):
    """State of an execution that was suspended while it waited for the results of calls."""

    memory: list[bytes]
    """Difference between the VM's memory and its image, in parts of at most MEMORY_PART_BYTES."""
    state: SuspendedState
    manifests: list[bytes]
    """JSON text of the providers' manifests. The guest refers to tools by their position in them."""
    pending: list[PendingCall]
    in_flight: list[PendingCall] = []
    """Calls whose tools were running when the state was stored."""
    call_count: int
    elapsed_ms: float
    """Part of the time limit that is used up."""
    log_lines: int
    log_chars: int
    errors: list[tuple[str, str]]
    calls: list[CallRecord]
    saved_at: float = msgspec.field(default_factory=time.time)
    held_lines: list[bytes] = []
    """Replies to calls that returned while the execution was suspended. They are sent when it continues."""
    files: SavedFiles | None = None
    """None if the guest has no files."""

    @property
    def memory_bytes(self) -> int:
        return sum(map(len, self.memory))

    def state_after(self, seconds: float) -> SuspendedState:
        """Returns the state after a wait, with the waited time subtracted from the guest's timers."""
        passed = max(0.0, seconds) * 1000
        timers = [(id, max(0.0, left - passed), interval) for id, left, interval in self.state.timers]
        return msgspec.structs.replace(self.state, timers=timers)


class MemoryCollector:
    """Collects the parts of an execution's memory while it is being suspended."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, part: bytes) -> bool:
        """Adds a part. Returns False if the parts are too large. Hutch's own runners never send so much."""
        self._size += len(part)
        if self._size > self.max_bytes:
            return False
        self._parts.append(part)
        return True

    def clear(self) -> None:
        """Frees the parts. Later parts are still counted."""
        self._parts = []

    def memory(self) -> list[bytes]:
        return self._parts
