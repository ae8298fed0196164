"""Bad input: every fault by its field, and nothing has happened."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.doors.tpmjs.scripted import Door, answer, call, connected, listening, request

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
async def test_wrong_field_is_named_with_what_was_expected(body: Any, expected: str) -> None:
    door = Door()
    for path in ROUTES:
        response = await door.post(path, body)
        said = response.json()
        assert response.status_code == 400
        assert said["error"]["code"] == "INVALID_REQUEST"
        assert said["error"]["message"].startswith(expected)
        assert type(said["executionTimeMs"]) is int
    said = (await door.post("/execute-tool", body, X_TPMJS_Protocol_Version="1.1")).json()
    assert said.pop("error").startswith(expected)
    assert said.pop("executionTimeMs") >= 0
    assert said == {
        "success": False,
        "errorStage": "request",
        "errorCode": "INVALID_REQUEST",
        "retryable": False,
    }
    assert door.tools.calls == []


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
async def test_package_that_npm_could_not_have_is_refused_by_its_field(field: str, value: Any) -> None:
    door = Door()
    response = await door.post("/execute-tool", {**call("echo"), field: value})
    said = response.json()
    assert (response.status_code, said["error"]["code"]) == (400, "INVALID_REQUEST")
    assert said["error"]["message"].startswith(f"{field}: ")
    assert len(said["error"]["message"]) < 1_000
    assert door.tools.calls == []


async def test_values_of_env_are_never_told() -> None:
    env = {"A": "sk-secret\0", "B": ["sk-secret"], "C=": "sk-secret", "D": {"k": "sk-secret"}}
    response = await Door().post("/execute-tool", call("echo", env=env))
    assert response.json()["error"]["message"].count("env") == 4
    assert "sk-secret" not in response.text


async def test_many_faults_are_counted_and_long_names_cut() -> None:
    env = {f"{'n' * 1000}{number}": number for number in range(1000)}
    message = (await Door().post("/execute-tool", call("echo", env=env))).json()["error"]["message"]
    assert message.endswith("; and 990 more")
    assert len(message) < 2_000


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
async def test_body_that_is_no_json_is_refused_with_the_reason(raw: bytes, expected: str) -> None:
    door = Door()
    response = await door.post("/execute-tool", raw)
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith(expected)
    assert door.tools.calls == []


async def test_of_a_name_that_is_there_twice_the_last_counts() -> None:
    raw = b'{"packageName": "a", "name": "crash", "params": {"x": 1, "x": 2}, "name": "echo"}'
    assert (await Door().post("/execute-tool", raw)).json()["output"] == {"x": 2}


async def test_lone_surrogates_pass_in_params() -> None:
    assert (await Door().execute("echo", {"x": "\ud800"})).json()["output"] == {"x": "\ud800"}


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
async def test_content_type_is_json_or_absent(content_type: str | None, status: int) -> None:
    door = Door()
    headers = {} if content_type is None else {"Content-Type": content_type}
    raw = json.dumps(call("echo")).encode()
    response = await door.client.post("http://127.0.0.1/execute-tool", content=raw, headers=headers)
    assert response.status_code == status
    if status == 415:
        assert response.json()["error"] == {
            "code": "UNSUPPORTED_MEDIA_TYPE",
            "message": f"Content-Type: expected application/json, got {content_type!r}",
        }
        assert door.tools.calls == []


async def test_compressed_body_is_refused() -> None:
    response = await Door().post("/execute-tool", b"\x1f\x8b", Content_Encoding="gzip")
    assert response.status_code == 415
    assert "Content-Encoding" in response.json()["error"]["message"]


# --- sizes, over a real connection ---


def padded(size: int) -> bytes:
    """A right body of exactly so many bytes."""
    raw = json.dumps(call("echo")).encode()
    return raw + b" " * (size - len(raw))


async def test_body_up_to_the_limit_is_taken_and_one_byte_more_is_not() -> None:
    door = Door(max_body_bytes=100_000)
    assert (await door.post("/execute-tool", padded(100_000))).status_code == 200
    response = await door.post("/execute-tool", padded(100_001))
    said = response.json()
    assert response.status_code == 413
    assert said["error"] == {"code": "PAYLOAD_TOO_LARGE", "message": "body: the most is 100000 bytes"}
    assert type(said["executionTimeMs"]) is int
    assert len(door.tools.calls) == 1


async def test_length_that_is_too_large_is_refused_before_the_body_is_sent() -> None:
    door = Door()
    async with listening(door) as host, connected(host) as (reader, writer):
        writer.write(request(host, "/execute-tool", b"", "Content-Length: 999999999999999999"))
        status, headers, body = await answer(reader)
        assert (status, headers["access-control-allow-origin"]) == (413, "*")
        assert json.loads(body)["error"]["code"] == "PAYLOAD_TOO_LARGE"


@pytest.mark.parametrize("chunked", [True, False])
async def test_body_of_20_megabytes_is_refused_while_it_comes_and_the_client_hears_it(chunked: bool) -> None:
    door = Door()
    size = 20 * 2**20
    async with listening(door) as host, connected(host) as (reader, writer):
        header = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {size}"
        writer.write(request(host, "/execute-tool", b"", header))
        for _ in range(size // 2**16):
            writer.write(b"10000\r\n%b\r\n" % (b" " * 2**16) if chunked else b" " * 2**16)
            await writer.drain()
        if chunked:
            writer.write(b"0\r\n\r\n")
        status, _, body = await answer(reader)
        assert (status, json.loads(body)["error"]["code"]) == (413, "PAYLOAD_TOO_LARGE")
        # The connection is as good as before.
        writer.write(request(host, "/execute-tool", json.dumps(call("echo")).encode()))
        assert (await answer(reader))[0] == 200


async def test_body_that_does_not_come_is_not_waited_for_without_end() -> None:
    door = Door(request_seconds=0.05)
    async with listening(door) as host, connected(host) as (reader, writer):
        writer.write(request(host, "/execute-tool", b"{", "Content-Length: 100"))
        status, _, body = await answer(reader)
        assert (status, json.loads(body)["error"]["message"]) == (400, "body: did not come within 0.05 s")


async def test_client_that_goes_within_its_body_leaves_no_trace(caplog: pytest.LogCaptureFixture) -> None:
    door = Door()
    async with listening(door) as host:
        async with connected(host) as (_, writer):
            writer.write(request(host, "/execute-tool", b"{", "Content-Length: 100"))
            await writer.drain()
        async with connected(host) as (reader, writer):
            writer.write(request(host, "/execute-tool", json.dumps(call("echo")).encode()))
            assert (await answer(reader))[0] == 200
    assert caplog.text == ""
