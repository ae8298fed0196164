"""Session of a client with a Hutch server, with the negotiated extensions: files, and suspended runs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from time import monotonic, time
from typing import Any

import msgspec
from msgspec import UNSET

from hutch.session.calls.description import MAX_CALL_ID_CHARS
from hutch.session.calls.link import SessionLink
from hutch.session.channels.peer import START_TIMEOUT_SECONDS
from hutch.session.extensions.messages import (
    FILE_PART_BYTES,
    MAX_RUN_ID_CHARS,
    FilePart,
    PendingCallMessage,
    Resumed,
    ResumeRequest,
    Stored,
    SuspendRefused,
    SuspendRequest,
)
from hutch.session.files.model import File, InputFiles, name_problem
from hutch.session.host import Session
from hutch.session.messages import Done, ServerMessage, WireError, encode
from hutch.session.run import SUSPENDED, CallRecord, PendingCall, RunSuspended

# Upper bounds for what a server may send. Its settings are usually lower.
MAX_FILES = 10_000
MAX_FILE_BYTES = 1024 * 1024 * 1024
MAX_PENDING_CALLS = 10_000
MAX_PENDING_BYTES = 128 * 1024 * 1024
MAX_TIMEOUT_MS = 365 * 24 * 3600 * 1000
# Time for which a client waits for the files and calls of a run after the run has ended.
MAX_TRANSFER_SECONDS = 3_600.0
# Time beyond the time limit for which a client waits, because the server may store the run at its end.
STORE_SECONDS = 30.0
_MIME_TYPE = re.compile(r"[\x21-\x7e]{1,255}")


class ClientSession(Session):
    """Client's side of an execution on a server. All attributes below belong to the extensions."""

    resume_request: ResumeRequest | None = None
    """Makes the execution continue a suspended run."""
    suspend_problem = ""
    """Reason why the run cannot be suspended. Empty if it can be."""
    uploads: InputFiles | None = None
    """Input files to send."""
    on_resumed: Callable[[], None] | None = None
    """Called when the server continues the suspended run."""
    is_resumed = False
    _server_calls: list[CallRecord] | None = None
    _received: list[_IncomingFile] | None = None
    _received_bytes = 0
    _waiting: list[PendingCall] | None = None
    _waiting_bytes = 0
    _transfer_ends_at: float | None = None
    _refused: Callable[[str], None] | None = None

    def begin(self) -> None:
        if not self.suspend_problem:
            self._max_seconds += STORE_SECONDS
        super().begin()

    def _link(self) -> SessionLink:
        link = super()._link()
        problem = self.suspend_problem
        return msgspec.structs.replace(link, suspends_on_server=not problem, suspend_problem=problem)

    def _options(self) -> bytes:
        options = super()._options()
        if self.resume_request is not None:
            options = options[:-1] + b',"resume":' + msgspec.json.encode(self.resume_request) + b"}"
        if self.uploads is not None:
            options = options[:-1] + b',"files":' + self.uploads.listing() + b"}"
        return options

    @property
    def _manifests(self) -> list[bytes]:
        if self.resume_request is None or self._inputs is None:
            return super()._manifests
        # The server compares the results with the schemas of their tools.
        return [provider.manifest_with_schemas() for provider in self._providers.values()]

    async def send_files(self) -> None:
        """Sends the contents of the input files. Must be called after `begin`."""
        if self.uploads is None:
            return
        for file in self.uploads.files:
            for start in range(0, file.size, FILE_PART_BYTES):
                if self._is_over():
                    return
                line = encode(FilePart(id=self.id, data=file.data[start : start + FILE_PART_BYTES]))
                self._peer.send(line)
                await asyncio.sleep(0)
                if self._peer.writable is not None:
                    await self._peer.writable()
                # The time in which the server has to start begins when it has all files.
                self._sent_at = monotonic()

    @property
    def calls(self) -> list[CallRecord]:
        return super().calls if self._server_calls is None else self._server_calls

    def suspend(self, on_refused: Callable[[str], None] | None = None) -> None:
        """Asks the server to suspend the run when it next waits."""
        if not self.suspend_problem:
            self._refused = on_refused
            self._peer.send(encode(SuspendRequest(self.id)))
        elif on_refused is not None:
            on_refused(self.suspend_problem)

    # --- messages of the server ---

    def receive(self, message: ServerMessage) -> bool:
        if not isinstance(message, FilePart | PendingCallMessage | Resumed | SuspendRefused | Stored):
            return super().receive(message)
        if message.id != self.id or self._has_ended:
            return False
        match message:
            case FilePart():
                return self._await_end(is_expected=self._add_part(message))
            case PendingCallMessage():
                return self._await_end(is_expected=self._add_waiting(message))
            case Resumed():
                return self._on_server_resumed(message)
            case SuspendRefused():
                refused, self._refused = self._refused, None
                if refused is not None:
                    refused(message.reason[:1_000])
                return refused is not None
            case Stored():
                if not self._is_observed or not _are_call_ids(message.calls):
                    return False
                self._emit(RunSuspended(calls=message.calls))
                return True

    def _await_end(self, *, is_expected: bool) -> bool:
        """Waits for `done` beyond the time limit if data of the ended run arrives. Returns `is_expected`."""
        if not is_expected or self._timer is None or self._cancelling:
            return is_expected
        now = self._loop.time()
        if self._transfer_ends_at is None:
            self._transfer_ends_at = now + MAX_TRANSFER_SECONDS
        self._timer.cancel()
        ends_at = min(now + START_TIMEOUT_SECONDS, self._transfer_ends_at)
        self._timer = self._loop.call_at(ends_at, self._lose_server)
        return True

    def _lose_server(self) -> None:
        self.mark_lost(f"the server sent nothing for {START_TIMEOUT_SECONDS:g} s")

    def _on_server_resumed(self, message: Resumed) -> bool:
        if self.resume_request is None or self.is_resumed or not _is_valid(message):
            return False
        self.is_resumed = True
        self.run_id = message.run_id
        self.limits = msgspec.structs.replace(
            self.limits,
            timeout_ms=message.timeout_ms,
            max_log_lines=message.max_log_lines,
            max_log_chars=message.max_log_chars,
        )
        self._max_seconds = max(0.0, message.timeout_ms / 1000) + STORE_SECONDS
        self._tool_deadline = self._loop.time() + message.timeout_ms / 1000
        self.log_lines = message.log_lines
        if self._calls is not None:
            self._calls.deadline = self._tool_deadline
        if self.on_resumed is not None:
            self.on_resumed()
        return True

    def _add_part(self, part: FilePart) -> bool:
        if self._received is None:
            self._received = []
        if part.name is not UNSET:
            file = _incoming_file(part)
            if file is None or len(self._received) >= MAX_FILES:
                return False
            if self._received_bytes + file.size > MAX_FILE_BYTES:
                return False
            self._received_bytes += file.size
            self._received.append(file)
        elif not part.data:
            return False
        if not self._received or len(self._received[-1].data) + len(part.data) > self._received[-1].size:
            return False
        self._received[-1].data += part.data
        return True

    def _add_waiting(self, call: PendingCallMessage) -> bool:
        if self._waiting is None:
            self._waiting = []
        texts = call.call_id, call.provider_name, call.safe_tool_name, call.message
        size = memoryview(call.input).nbytes + sum(map(len, texts))
        size += 0 if call.token is UNSET else len(call.token)
        if len(self._waiting) >= MAX_PENDING_CALLS or self._waiting_bytes + size > MAX_PENDING_BYTES:
            return False
        self._waiting_bytes += size
        self._waiting.append(
            PendingCall(
                call_id=call.call_id,
                provider=call.provider_name,
                tool=call.safe_tool_name,
                input_json=bytes(call.input),
                message=call.message,
                token=None if call.token is UNSET else call.token,
                started_at=min(call.started_at, time()),
                start_ms=call.start_ms,
                line=None if call.line is UNSET else call.line,
            )
        )
        return True

    def _done(self, done: Done) -> None:
        if done.calls is not UNSET and self.resume_request is not None:
            try:
                self._server_calls = msgspec.convert(done.calls, list[CallRecord])
            except msgspec.ValidationError:
                self._server_calls = None
        if self._cancelling and not done.ok and done.error is not UNSET and done.error.code == SUSPENDED:
            # The run was suspended before the server was asked to cancel it.
            self._settle_done(done, done.error)
        else:
            super()._done(done)

    def _settle(self, error: WireError | None, **fields: Any) -> None:
        super()._settle(error, **fields)
        files = [each.file() for each in self._received or () if each.is_complete]
        waiting = self._waiting if error is not None and error.code == SUSPENDED else None
        if self.result is not None and (files or waiting):
            self.result = msgspec.structs.replace(self.result, files=files, pending_calls=waiting or ())


def _is_valid(message: Resumed) -> bool:
    """Returns False if a number is out of range. A timer for a time beyond all years raises an error."""
    return (
        0 <= message.timeout_ms <= MAX_TIMEOUT_MS
        and min(message.max_log_lines, message.max_log_chars, message.log_lines) >= 0
        and len(message.run_id) <= MAX_RUN_ID_CHARS
    )


def _are_call_ids(ids: list[str]) -> bool:
    return len(ids) <= MAX_PENDING_CALLS and all(0 < len(id) <= MAX_CALL_ID_CHARS for id in ids)


class _IncomingFile(msgspec.Struct):
    name: str
    mime_type: str
    size: int
    data: bytearray

    @property
    def is_complete(self) -> bool:
        return len(self.data) == self.size

    def file(self) -> File:
        return File(self.name, self.mime_type, bytes(self.data))


def _incoming_file(part: FilePart) -> _IncomingFile | None:
    """Returns None if the description of the file is invalid."""
    if part.name is UNSET or part.mime_type is UNSET or part.size is UNSET or part.size < 0:
        return None
    if name_problem(part.name) is not None or not _MIME_TYPE.fullmatch(part.mime_type):
        return None
    return _IncomingFile(part.name, part.mime_type, part.size, bytearray())
