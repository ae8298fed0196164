"""Invalid requests: the error names the field of every problem, and nothing is executed."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from typing import Any

import pytest
from tests.http.server.asgi_server import serve_bounded
from tests.protocols.tpmjs.harness import (
    TpmjsServer,
    call,
    encode_request,
    open_connection,
    read_response,
    serve_on_port,
)
from tests.support.processes import TIMEOUT_SECONDS

ROUTES = ("/execute-tool", "/load-and-describe", "/validate-tool")

WRONG = [
    (None, "body: expected an object, got null"),
    ([], "body: expected an object, got an array"),
    ("x", "body: expected an object, got a string"),
    (1, "body: expected an object, got a number"),
    (True, "body: expected an object, got a boolean"),
    ({}, "packageName: expected a string, got nothing; name: expected a string, got nothing"),
    (
        {"packageName": None, "name": None},
        "packageName: expected a string, got null; name: expected a string",
    ),
    ({"packageName": 1, "name": "x"}, "packageName: expected a string, got a number"),
    ({"packageName": "a", "name": ["x"]}, "name: expected a string, got an array"),
    (call(""), "name: expected 1 to 256 characters, got 0"),
    (call("x" * 257), "name: expected 1 to 256 characters, got 257"),
    (call("x", []), "params: expected an object, got an array"),
    (call("x", "{}"), "params: expected an object, got a string"),
    (call("x", False), "params: expected an object, got a boolean"),
    (call("x", env=[]), "env: expected an object, got an array"),
    (call("x", env={"X": 1}), "env.X: expected a string, got a number"),
    (call("x", env={"X": None}), "env.X: expected a string, got null"),
    (call("x", env={"X": {}}), "env.X: expected a string, got an object"),
    (call("x", env={"": "1"}), 'env[""]: expected a name without "=" and NUL'),
    (call("x", env={"A=B": "1"}), 'env["A=B"]: expected a name without "=" and NUL'),
    (call("x", env={"A\0": "1"}), 'env["A\\u0000"]: expected a name without "=" and NUL'),
    (call("x", env={"A\ud800": "1"}), 'env["A\\ud800"]: expected a name'),
    (call("x", env={"A": "1\0"}), "env.A: expected text without NUL and lone surrogates"),
    (call("x", env={"A": "\ud800"}), "env.A: expected text without NUL and lone surrogates"),
    (call("x", [], env=3), "params: expected an object, got an array; env: expected an object, got a number"),
]


@pytest.mark.parametrize(("body", "expected"), WRONG)
async def test_invalid_field_is_named_with_the_expected_type(body: Any, expected: str) -> None:
    server = TpmjsServer()
    for path in ROUTES:
        response = await server.post(path, body)
        data = response.json()
        assert response.status_code == 400
        assert data["error"]["code"] == "INVALID_REQUEST"
        assert data["error"]["message"].startswith(expected)
        assert type(data["executionTimeMs"]) is int
    data = (await server.post("/execute-tool", body, X_TPMJS_Protocol_Version="1.1")).json()
    assert data.pop("error").startswith(expected)
    assert data.pop("executionTimeMs") >= 0
    assert data == {
        "success": False,
        "errorStage": "request",
        "errorCode": "INVALID_REQUEST",
        "retryable": False,
    }
    assert server.tools.calls == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("packageName", ""),
        ("packageName", "a; rm -rf /"),
        ("packageName", "$(id)"),
        ("packageName", "--registry=http://evil.example"),
        ("packageName", "../../etc"),
        ("packageName", "file:../x"),
        ("packageName", "git+ssh://evil.example/x"),
        ("packageName", "https://evil.example/x.tgz"),
        ("packageName", "a\0b"),
        ("packageName", "a\ud800"),
        ("packageName", "x" * 100_000),
        ("version", "`id`"),
        ("version", "1.0.0; id"),
        ("version", "file:/etc"),
        ("version", "git+https://evil.example/x"),
        ("version", "npm:other@1"),
        ("version", "--help"),
        ("version", 1),
        ("version", ["1.0.0"]),
        ("version", "x" * 100_000),
    ],
)
async def test_impossible_package_is_refused_by_its_field(field: str, value: Any) -> None:
    server = TpmjsServer()
    response = await server.post("/execute-tool", {**call("echo"), field: value})
    data = response.json()
    assert (response.status_code, data["error"]["code"]) == (400, "INVALID_REQUEST")
    assert data["error"]["message"].startswith(f"{field}: ")
    assert len(data["error"]["message"]) < 1_000
    assert server.tools.calls == []


async def test_values_of_env_are_never_quoted() -> None:
    env = {"A": "sk-secret\0", "B": ["sk-secret"], "C=": "sk-secret", "D": {"k": "sk-secret"}}
    response = await TpmjsServer().post("/execute-tool", call("echo", env=env))
    assert response.json()["error"]["message"].count("env") == 4
    assert "sk-secret" not in response.text


async def test_reported_problems_and_names_are_limited() -> None:
    env = {f"{'n' * 1000}{number}": number for number in range(1000)}
    message = (await TpmjsServer().post("/execute-tool", call("echo", env=env))).json()["error"]["message"]
    assert message.endswith("; there are more problems; fix these first")
    assert message.count("expected a string") == 50
    assert len(message) < 15_000


async def test_length_of_variables_is_limited() -> None:
    env = {"A": "x" * 40_000, "B": "x" * 30_000}
    message = (await TpmjsServer().post("/execute-tool", call("echo", env=env))).json()["error"]["message"]
    assert message == "env: expected values of at most 65536 characters, got 70000"


async def test_number_of_variables_is_limited() -> None:
    env = {f"n{number}": "x" for number in range(1_001)}
    message = (await TpmjsServer().post("/execute-tool", call("echo", env=env))).json()["error"]["message"]
    assert message == "env: expected at most 1000 names, got 1001"


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"", "body: expected a JSON object, got nothing"),
        (b" \n", "body: expected a JSON object, got nothing"),
        (b"{", "body: malformed JSON"),
        (b'{"packageName": "a", "name": "b"} x', "body: malformed JSON"),
        (b'{"packageName": "a", "name": "b", "params": {"x": NaN}}', "body: malformed JSON"),
        (b'{"packageName": "a", "name": "b", "params": {"x": -Infinity}}', "body: malformed JSON"),
        (b'{"packageName": "a", "name": "b", "params": {"x": 1e999}}', "body: malformed JSON"),
        (b'{"packageName": "a\xff", "name": "b"}', "body: malformed JSON"),
        (b'{"packageName": "a", "name": "b", "params": "\xc3\x28"}', "body: malformed JSON"),
        (b"[" * 200_000, "body: $ is nested deeper than 128 levels"),
        (b'{"params":' * 200 + b"1" + b"}" * 200, "body: $ is nested deeper than 128 levels"),
        ("{}".encode("utf-16"), "body: malformed JSON"),
    ],
)
async def test_invalid_json_is_refused_with_the_reason(raw: bytes, expected: str) -> None:
    server = TpmjsServer()
    response = await server.post("/execute-tool", raw)
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith(expected)
    assert server.tools.calls == []


async def test_duplicate_key_is_refused() -> None:
    server = TpmjsServer()
    raw = b'{"packageName": "a", "name": "crash", "params": {"x": 1, "x": 2}}'
    response = await server.post("/execute-tool", raw)
    assert response.status_code == 400
    assert "got 'x' twice" in response.json()["error"]["message"]
    assert server.tools.calls == []


async def test_lone_surrogates_are_accepted_in_params() -> None:
    assert (await TpmjsServer().execute("echo", {"x": "\ud800"})).json()["output"] == {"x": "\ud800"}


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("application/json", 200),
        ("application/json; charset=utf-8", 200),
        ('APPLICATION/JSON;charset="UTF-8"', 200),
        ("application/vnd.tpmjs+json", 200),
        (None, 200),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("multipart/form-data; boundary=x", 415),
        ("application/json; charset=utf-16", 415),
        ("application/jsonx", 415),
        ("json", 415),
        ("", 415),
    ],
)
async def test_content_type_must_be_json_or_absent(content_type: str | None, status: int) -> None:
    server = TpmjsServer()
    headers = {} if content_type is None else {"Content-Type": content_type}
    raw = json.dumps(call("echo")).encode()
    response = await server.client.post("http://127.0.0.1/execute-tool", content=raw, headers=headers)
    assert response.status_code == status
    if status == 415:
        assert response.json()["error"] == {
            "code": "UNSUPPORTED_MEDIA_TYPE",
            "message": f"Content-Type: expected application/json, got {content_type!r}",
        }
        assert server.tools.calls == []


async def test_compressed_body_is_refused() -> None:
    response = await TpmjsServer().post("/execute-tool", b"\x1f\x8b", Content_Encoding="gzip")
    assert response.status_code == 415
    assert "Content-Encoding" in response.json()["error"]["message"]


# --- body sizes, over a real connection ---


def padded(size: int) -> bytes:
    """Builds a valid body of exactly this many bytes."""
    raw = json.dumps(call("echo")).encode()
    return raw + b" " * (size - len(raw))


async def test_body_may_have_the_maximum_size_and_no_more() -> None:
    server = TpmjsServer(max_body_bytes=100_000)
    assert (await server.post("/execute-tool", padded(100_000))).status_code == 200
    response = await server.post("/execute-tool", padded(100_001))
    data = response.json()
    assert response.status_code == 413
    assert data["error"] == {"code": "PAYLOAD_TOO_LARGE", "message": "body: the maximum is 100000 bytes"}
    assert type(data["executionTimeMs"]) is int
    assert len(server.tools.calls) == 1


async def test_large_content_length_is_refused_before_the_body_is_sent() -> None:
    server = TpmjsServer()
    async with serve_on_port(server) as host, open_connection(host) as (reader, writer):
        writer.write(encode_request(host, "/execute-tool", b"", "Content-Length: 999999999999999999"))
        status, headers, body = await read_response(reader)
        assert (status, headers["access-control-allow-origin"]) == (413, "*")
        assert json.loads(body)["error"]["code"] == "PAYLOAD_TOO_LARGE"


async def test_client_that_sends_the_whole_body_first_can_read_the_413() -> None:
    """`urllib` is a client that sends the whole body first. It also asks the server to close the
    connection.
    """
    server = TpmjsServer()

    def send(port: int) -> tuple[int, bytes]:
        request = urllib.request.Request(f"http://127.0.0.1:{port}/execute-tool", bytes(20 * 2**20))
        try:
            urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
                request, timeout=TIMEOUT_SECONDS
            )
        except urllib.error.HTTPError as error:
            return error.code, error.read()
        raise AssertionError("the body was accepted")

    async with serve_bounded(server.app) as port:
        status, body = await asyncio.to_thread(send, port)
    assert status == 413
    assert b"body: the maximum is 10485760 bytes" in body


@pytest.mark.parametrize("chunked", [True, False])
async def test_body_of_20_megabytes_is_refused_and_the_client_gets_the_response(chunked: bool) -> None:
    server = TpmjsServer()
    size = 20 * 2**20
    async with serve_on_port(server) as host, open_connection(host) as (reader, writer):
        header = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {size}"
        writer.write(encode_request(host, "/execute-tool", b"", header))
        for _ in range(size // 2**16):
            writer.write(b"10000\r\n%b\r\n" % (b" " * 2**16) if chunked else b" " * 2**16)
            await writer.drain()
        if chunked:
            writer.write(b"0\r\n\r\n")
        status, _, body = await read_response(reader)
        assert (status, json.loads(body)["error"]["code"]) == (413, "PAYLOAD_TOO_LARGE")
        # After the 413, the client can use the connection for another request.
        writer.write(encode_request(host, "/execute-tool", json.dumps(call("echo")).encode()))
        assert (await read_response(reader))[0] == 200


async def test_body_that_does_not_arrive_times_out() -> None:
    server = TpmjsServer(request_seconds=0.05)
    async with serve_on_port(server) as host, open_connection(host) as (reader, writer):
        writer.write(encode_request(host, "/execute-tool", b"{", "Content-Length: 100"))
        status, _, body = await read_response(reader)
        assert (status, json.loads(body)["error"]["message"]) == (400, "body: did not arrive within 0.05 s")


async def test_client_that_disconnects_within_its_body_is_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = TpmjsServer()
    async with serve_on_port(server) as host:
        async with open_connection(host) as (_, writer):
            writer.write(encode_request(host, "/execute-tool", b"{", "Content-Length: 100"))
            await writer.drain()
        async with open_connection(host) as (reader, writer):
            writer.write(encode_request(host, "/execute-tool", json.dumps(call("echo")).encode()))
            assert (await read_response(reader))[0] == 200
    assert caplog.text == ""
