"""`Accept: text/event-stream`: events of a running tool, and its result as the last event."""

from __future__ import annotations

import json

import pytest
from tests.protocols.tpmjs.harness import (
    FakeTools,
    TpmjsServer,
    call,
    encode_request,
    open_connection,
    parse_events,
    read_response,
    serve_on_port,
)

from hutch.http import sse
from hutch.protocols.tpmjs.requests import parse_call
from hutch.protocols.tpmjs.routes import ExecutionEvents

SSE = "text/event-stream"


async def test_logs_and_values_are_sent_before_the_result() -> None:
    server = TpmjsServer()
    params = {"lines": ["one", "two\nlines"], "values": ["1", '{"a":\n"\\r\\n"}']}
    response = await server.execute("talk", params, Accept=SSE)
    assert (response.status_code, response.headers["content-type"]) == (
        200,
        "text/event-stream; charset=utf-8",
    )
    assert response.headers["access-control-allow-origin"] == "*"
    *received, (name, result) = parse_events(response.text)
    assert received == [
        ("log", {"line": "one"}),
        ("log", {"line": "two\nlines"}),
        ("partial", {"value": 1}),
        ("partial", {"value": {"a": "\r\n"}}),
    ]
    plain = (await server.execute("talk", params)).json()
    assert type(result.pop("executionTimeMs")) is int
    del plain["executionTimeMs"]
    assert (name, result) == ("result", plain)


async def test_output_cannot_forge_an_event() -> None:
    """Line breaks in the JSON of an output are replaced by spaces."""
    response = await TpmjsServer().execute(
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
    server = TpmjsServer()
    [(kind, data)] = parse_events((await server.execute(name, params, Accept=SSE)).text)
    assert (kind, data["success"], data["error"]["code"]) == ("result", False, old)
    [(kind, data)] = parse_events(
        (await server.execute(name, params, Accept=SSE, X_TPMJS_Protocol_Version="1.1")).text
    )
    assert (kind, data["errorCode"]) == ("result", new)
    assert type(data["executionTimeMs"]) is int


async def test_timeout_is_the_result() -> None:
    [_, (_, data)] = parse_events((await TpmjsServer(request_seconds=0.05).execute("wait", Accept=SSE)).text)
    assert data["error"]["code"] == "EXECUTION_TIMEOUT"


async def test_invalid_request_is_refused_in_json() -> None:
    server = TpmjsServer()
    response = await server.post("/execute-tool", [], Accept=SSE)
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
async def test_stream_is_sent_only_if_the_accept_header_prefers_it(accept: str, streams: bool) -> None:
    response = await TpmjsServer().execute("echo", Accept=accept)
    assert response.headers["content-type"].startswith(SSE) is streams


async def test_events_are_sent_at_once_and_silence_has_a_heartbeat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sse, "HEARTBEAT_SECONDS", 0.01)
    server = TpmjsServer()
    async with serve_on_port(server) as host, open_connection(host) as (reader, writer):
        writer.write(
            encode_request(host, "/execute-tool", json.dumps(call("wait")).encode(), f"Accept: {SSE}")
        )
        await reader.readuntil(b'event: log\ndata: {"line":"waiting"}\n\n')
        await reader.readuntil(b": still running\n\n")
        await reader.readuntil(b": still running\n\n")
        server.tools.go.set()
        rest = await reader.readuntil(b"\r\n0\r\n\r\n")
        assert b"event: result\n" in rest
        assert b'"output":"went"' in rest


async def test_slow_reader_misses_events_but_not_the_result() -> None:
    """The buffer of events is limited, so events that do not fit are dropped."""
    buffer = ExecutionEvents()
    await FakeTools().flood(parse_call(call("flood", {"lines": 10_000}), "local"), buffer)
    buffer.end()
    text = await buffer.next()
    assert text is not None
    assert await buffer.next() is None
    assert len(text) < sse.MAX_BUFFER_BYTES + 1_000
    assert text.startswith(b'event: log\ndata: {"line":"0 ')
    dropped = 10_000 - text.count(b"event: log")
    assert text.endswith(b": %d events were dropped: they came faster than they were read\n\n" % dropped)
    response = await TpmjsServer().execute("flood", {"lines": 10_000}, Accept=SSE)
    assert response.text.rstrip().splitlines()[-2] == "event: result"


async def test_single_event_may_exceed_the_buffer_limit() -> None:
    value = '"' + "x" * 3_000_000 + '"'
    received = parse_events((await TpmjsServer().execute("talk", {"values": [value]}, Accept=SSE)).text)
    assert [name for name, _ in received] == ["partial", "result"]


async def test_client_that_does_not_read_does_not_block_other_executions() -> None:
    server = TpmjsServer()
    body = json.dumps(call("flood", {"lines": 20_000})).encode()
    async with serve_on_port(server) as host, open_connection(host) as (reader, writer):
        writer.write(encode_request(host, "/execute-tool", body, f"Accept: {SSE}"))
        await server.tools.wait_started(1)
        async with open_connection(host) as (other, asking):
            asking.write(encode_request(host, "/execute-tool", json.dumps(call("echo")).encode()))
            assert (await read_response(other))[0] == 200
        assert b"event: result" in (await read_response(reader))[2]
