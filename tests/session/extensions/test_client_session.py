"""What a client accepts from a server, with messages that Hutch's server never sends."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from hutch.errors import ProtocolError
from hutch.session.channels.peer import Peer
from hutch.session.extensions import client_session
from hutch.session.extensions.client_session import ClientSession
from hutch.session.extensions.messages import ResumeRequest
from hutch.session.limits import Limits
from hutch.session.message_decoding import decode_from_runner, decode_from_server
from hutch.session.run import Listener

FILE = {"type": "file", "id": "1", "name": "a.txt", "mimeType": "text/plain", "size": 3}
WAITING = {
    "type": "pending_call",
    "id": "1",
    "callId": "c",
    "providerName": "tools",
    "safeToolName": "ask",
    "message": "m",
    "startedAt": 1.0,
    "startMs": 1.0,
    "input": {"a": 1},
}
RESUMED = {
    "type": "resumed",
    "id": "1",
    "runId": "run",
    "timeoutMs": 100.0,
    "maxLogLines": 5,
    "maxLogChars": 6,
    "logLines": 2,
}
DONE = {"type": "done", "id": "1", "ok": True, "durationMs": 1, "logs": [], "result": 1}
SUSPENDED = {**DONE, "ok": False, "error": {"code": "suspended", "message": "The run waits"}}


def line(message: dict[str, Any]) -> bytes:
    data = {"data": base64.b64encode(message["data"]).decode()} if "data" in message else {}
    return json.dumps({**message, **data}).encode()


def session(request: ResumeRequest | None = None, listeners: list[Listener] | None = None) -> ClientSession:
    peer = Peer(send=lambda _: None, trusted=True)
    opened = ClientSession("1", "", Limits(), [], peer, listeners=listeners or [])
    opened.resume_request = request
    opened.begin()
    return opened


def receive(opened: ClientSession, *messages: dict[str, Any]) -> list[bool]:
    return [opened.receive(decode_from_server(line(message))) for message in messages]


@pytest.mark.parametrize(
    "message",
    [
        {**FILE, "data": b"x"},
        WAITING,
        RESUMED,
        {"type": "stored", "id": "1", "calls": []},
        {"type": "suspend_refused", "id": "1", "reason": "no"},
    ],
)
def test_runner_cannot_send_messages_of_the_extensions(message: dict[str, Any]) -> None:
    decode_from_server(line(message))
    with pytest.raises(ProtocolError):
        decode_from_runner(line(message))


async def test_files_are_joined_and_incomplete_ones_left_out() -> None:
    opened = session()
    assert (
        receive(
            opened,
            {**FILE, "data": b"12"},
            {"type": "file", "id": "1", "data": b"3"},
            {**FILE, "name": "b.txt", "data": b"4"},
            DONE,
        )
        == [True] * 4
    )
    assert opened.result is not None
    assert [(file.name, file.data) for file in opened.result.files] == [("a.txt", b"123")]


@pytest.mark.parametrize(
    "change",
    [
        {"name": "../a"},
        {"mimeType": "text/plain\n"},
        {"size": -1},
        {"size": 2**40},
        {"data": b"1234"},
        {"name": None},
        {"mimeType": None},
    ],
)
async def test_invalid_files_are_dropped(change: dict[str, Any]) -> None:
    message = {**FILE, "data": b"123", **change}
    opened = session()
    assert receive(opened, {name: value for name, value in message.items() if value is not None}) == [False]
    receive(opened, DONE)
    assert opened.result is not None
    assert list(opened.result.files) == []


async def test_number_and_size_of_the_data_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"MAX_FILES": 2, "MAX_PENDING_CALLS": 2}.items():
        monkeypatch.setattr(client_session, name, value)
    opened = session()
    assert receive(opened, *[{**FILE, "data": b""}] * 3) == [True, True, False]
    assert receive(opened, *[WAITING] * 3) == [True, True, False]
    monkeypatch.setattr(client_session, "MAX_PENDING_BYTES", 20)
    monkeypatch.setattr(client_session, "MAX_FILE_BYTES", 5)
    opened = session()
    assert receive(opened, *[{**FILE, "data": b""}] * 2) == [True, False]
    assert receive(opened, WAITING, {**WAITING, "input": "x" * 20}) == [True, False]
    receive(opened, SUSPENDED)
    assert opened.result is not None
    assert [call.input for call in opened.result.pending_calls] == [{"a": 1}]


async def test_texts_of_waiting_calls_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_session, "MAX_PENDING_BYTES", 1_000)
    for field in ("callId", "providerName", "safeToolName", "message", "token"):
        assert receive(session(), {**WAITING, field: "x" * 1_000}) == [False]


@pytest.mark.parametrize(
    "message",
    [{"type": "file", "id": "1", "data": b""}, {**FILE, "name": "../a", "data": b"x"}],
    ids=["empty part", "invalid file"],
)
async def test_useless_messages_do_not_extend_the_time_limit(message: dict[str, Any]) -> None:
    opened = session()
    receive(opened, {**FILE, "data": b"1"})
    timer = opened._timer
    assert receive(opened, message) == [False]
    assert opened._timer is timer


async def test_data_after_the_end_of_a_run_must_arrive_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_session, "MAX_TRANSFER_SECONDS", 0.0)
    opened = session()
    receive(opened, {**FILE, "data": b"1"})
    assert "The runner was lost" in str((await opened.wait()).error)


@pytest.mark.parametrize(
    "change",
    [
        {"timeoutMs": 1e300},
        {"timeoutMs": -1.0},
        {"maxLogLines": -1},
        {"maxLogChars": -1},
        {"logLines": -1},
        {"runId": "x" * 200},
    ],
    ids=str,
)
async def test_resumed_run_with_invalid_numbers_is_dropped(change: dict[str, Any]) -> None:
    opened = session(ResumeRequest("run"))
    assert receive(opened, {**RESUMED, **change}, RESUMED) == [False, True]
    opened.cancel()


async def test_invalid_reports_of_a_stored_run_are_dropped() -> None:
    events: list[Any] = []
    opened = session(listeners=[events.append])
    stored = {"type": "stored", "id": "1"}
    calls = [["x" * 200], [""], ["c"] * 20_000, ["c"]]
    assert receive(opened, *({**stored, "calls": each} for each in calls)) == [False, False, False, True]
    assert [event.calls for event in events] == [["c"]]


async def test_run_that_ends_otherwise_has_no_pending_calls() -> None:
    opened = session()
    receive(opened, WAITING, DONE)
    assert opened.result is not None
    assert (opened.result.ok, list(opened.result.pending_calls)) == (True, [])


async def test_resumed_run_takes_over_its_limits_once() -> None:
    opened = session()
    assert receive(opened, RESUMED) == [False]
    opened = session(ResumeRequest("run"))
    assert receive(opened, RESUMED, {**RESUMED, "runId": "other"}) == [True, False]
    limits = opened.limits
    assert (opened.run_id, limits.timeout_ms, limits.max_log_lines, opened.log_lines) == ("run", 100.0, 5, 2)
    opened.cancel()


async def test_suspension_counts_although_the_run_was_cancelled() -> None:
    """The run is in the store of the server, so that the client has to know it."""
    opened = session()
    opened.cancel()
    receive(opened, SUSPENDED)
    assert opened.result is not None
    assert opened.result.error is not None
    assert opened.result.error.code == "suspended"


async def test_invalid_records_of_calls_are_left_out() -> None:
    for calls, tools in ((7, []), ([{"tool": 1}], []), ([call_record()], ["ask"])):
        opened = session(ResumeRequest("run"))
        receive(opened, RESUMED, {**DONE, "calls": calls})
        assert opened.result is not None
        assert [call.tool for call in opened.result.calls] == tools


def call_record() -> dict[str, Any]:
    return {"provider": "tools", "tool": "ask", "ok": True, "duration_ms": 1.5}
