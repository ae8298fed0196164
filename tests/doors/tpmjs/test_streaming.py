"""`Accept: text/event-stream`: events while a tool runs, and its result as the last of them."""

from __future__ import annotations

import json

import pytest
from tests.doors.tpmjs.scripted import Door, Tools, answer, call, connected, events, listening, request

from hutch.doors.tpmjs import streaming
from hutch.doors.tpmjs.requests import parse_call

SSE = "text/event-stream"


async def test_logs_and_values_come_as_events_before_the_result() -> None:
    door = Door()
    params = {"lines": ["one", "two\nlines"], "values": ["1", '{"a":\n"\\r\\n"}']}
    response = await door.execute("talk", params, Accept=SSE)
    assert (response.status_code, response.headers["content-type"]) == (
        200,
        "text/event-stream; charset=utf-8",
    )
    assert response.headers["access-control-allow-origin"] == "*"
    *told, (name, result) = events(response.text)
    assert told == [
        ("log", {"line": "one"}),
        ("log", {"line": "two\nlines"}),
        ("partial", {"value": 1}),
        ("partial", {"value": {"a": "\r\n"}}),
    ]
    plain = (await door.execute("talk", params)).json()
    assert type(result.pop("executionTimeMs")) is int
    del plain["executionTimeMs"]
    assert (name, result) == ("result", plain)


async def test_output_cannot_pass_for_an_event() -> None:
    """Line breaks are where JSON may have them, and lead nowhere."""
    response = await Door().execute(
        "raw", {"json": "[\n\n1,\r\n\r\n2\n\nevent: result\ndata: {}]"}, Accept=SSE
    )
    assert response.text.count("\n\n") == 1
    assert response.text.count("\nevent:") == 0


@pytest.mark.parametrize(
    ("name", "params", "old", "new"),
    [
        ("fail", {"code": "execution_error"}, "TOOL_EXECUTION_ERROR", "TOOL_EXECUTION_FAILED"),
        ("busy", None, "BUSY", "EXECUTOR_UNAVAILABLE"),
        ("crash", None, "INTERNAL_ERROR", "EXECUTOR_INTERNAL_ERROR"),
        ("unknown", None, "INVALID_REQUEST", "INVALID_REQUEST"),
    ],
)
async def test_failure_is_the_result(name: str, params: object, old: str, new: str) -> None:
    door = Door()
    [(kind, said)] = events((await door.execute(name, params, Accept=SSE)).text)
    assert (kind, said["success"], said["error"]["code"]) == ("result", False, old)
    [(kind, said)] = events(
        (await door.execute(name, params, Accept=SSE, X_TPMJS_Protocol_Version="1.1")).text
    )
    assert (kind, said["errorCode"]) == ("result", new)
    assert type(said["executionTimeMs"]) is int


async def test_timeout_is_the_result() -> None:
    [_, (_, said)] = events((await Door(request_seconds=0.05).execute("wait", Accept=SSE)).text)
    assert said["error"]["code"] == "EXECUTION_TIMEOUT"


async def test_what_is_refused_is_refused_in_json() -> None:
    door = Door()
    response = await door.post("/execute-tool", [], Accept=SSE)
    assert (response.status_code, response.headers["content-type"]) == (400, "application/json")


@pytest.mark.parametrize(
    ("accept", "streams"),
    [
        (SSE, True),
        ("Text/Event-Stream;q=0.5", True),
        (f"{SSE}, */*", True),
        (f"application/json;q=0.5, {SSE}", True),
        (f"application/json, {SSE}", False),
        (f"{SSE};q=0", False),
        (f"{SSE};q=x", False),
        ("*/*", False),
        ("text/*", False),
        ("", False),
    ],
)
async def test_events_are_for_who_asks_for_them_by_name(accept: str, streams: bool) -> None:
    response = await Door().execute("echo", Accept=accept)
    assert response.headers["content-type"].startswith(SSE) is streams


async def test_event_comes_when_it_happens_and_silence_has_a_heartbeat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streaming, "HEARTBEAT_SECONDS", 0.01)
    door = Door()
    async with listening(door) as host, connected(host) as (reader, writer):
        writer.write(request(host, "/execute-tool", json.dumps(call("wait")).encode(), f"Accept: {SSE}"))
        await reader.readuntil(b'event: log\ndata: {"line":"waiting"}\n\n')
        await reader.readuntil(b": still running\n\n")
        await reader.readuntil(b": still running\n\n")
        door.tools.go.set()
        rest = await reader.readuntil(b"\r\n0\r\n\r\n")
        assert b"event: result\n" in rest
        assert b'"output":"went"' in rest


async def test_slow_reader_misses_events_but_not_the_result() -> None:
    """What waits for it is bounded."""
    feed = streaming.Feed()
    await Tools().flood(parse_call(call("flood", {"lines": 10_000}), "local"), feed)
    feed.end()
    text = await feed.next()
    assert text is not None
    assert await feed.next() is None
    assert len(text) < streaming.MAX_WAITING_BYTES + 1_000
    assert text.startswith(b'event: log\ndata: {"line":"0 ')
    left_out = 10_000 - text.count(b"event: log")
    assert text.endswith(b": %d events were left out: they came faster than they were read\n\n" % left_out)
    response = await Door().execute("flood", {"lines": 10_000}, Accept=SSE)
    assert response.text.rstrip().splitlines()[-2] == "event: result"


async def test_one_event_may_be_longer_than_what_may_wait() -> None:
    value = '"' + "x" * 3_000_000 + '"'
    told = events((await Door().execute("talk", {"values": [value]}, Accept=SSE)).text)
    assert [name for name, _ in told] == ["partial", "result"]


async def test_reader_that_does_not_read_holds_up_no_execution() -> None:
    door = Door()
    body = json.dumps(call("flood", {"lines": 20_000})).encode()
    async with listening(door) as host, connected(host) as (reader, writer):
        writer.write(request(host, "/execute-tool", body, f"Accept: {SSE}"))
        await door.tools.begun_with(1)
        async with connected(host) as (other, asking):
            asking.write(request(host, "/execute-tool", json.dumps(call("echo")).encode()))
            assert (await answer(other))[0] == 200
        assert b"event: result" in (await answer(reader))[2]
