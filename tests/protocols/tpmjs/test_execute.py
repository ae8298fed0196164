"""Responses of `/execute-tool` in both protocol versions."""

from __future__ import annotations

import logging

import pytest
from tests.protocols.tpmjs.harness import FAULT, TpmjsServer, call

from hutch.protocols.tpmjs.execute import _ToolRun
from hutch.protocols.tpmjs.responses import FAILURE_KINDS
from hutch.session.tools.provider import MAX_MESSAGE_CHARS

SIX = {
    "PACKAGE_NOT_FOUND",
    "TOOL_NOT_FOUND",
    "TOOL_INVALID",
    "TOOL_EXECUTION_ERROR",
    "EXECUTION_TIMEOUT",
    "INTERNAL_ERROR",
}
# For each stage, the codes that version 1.1 of the specification defines.
STAGES = {
    "request": {"INVALID_REQUEST", "AUTHENTICATION_REQUIRED"},
    "load": {
        "PACKAGE_IMPORT_FAILED",
        "TOOL_NOT_FOUND",
        "TOOL_CONFIGURATION_REQUIRED",
        "INVALID_TOOL",
        "SCHEMA_UNAVAILABLE",
    },
    "execute": {"TOOL_EXECUTION_FAILED", "EXECUTION_TIMEOUT"},
    "executor": {"EXECUTOR_UNAVAILABLE", "EXECUTOR_INTERNAL_ERROR"},
}


async def test_success_has_output_duration_and_exact_version() -> None:
    server = TpmjsServer()
    body = {**call("echo", {"greeting": "Hello"}), "version": "1.x", "env": {"OPENAI_API_KEY": "sk-1"}}
    response = await server.post("/execute-tool", body)
    data = response.json()
    assert (response.status_code, response.headers["content-type"]) == (200, "application/json")
    assert type(data.pop("executionTimeMs")) is int
    assert data == {"success": True, "output": {"greeting": "Hello"}, "resolvedVersion": "1.2.3"}
    [made] = server.tools.calls
    assert (made.spec.name, made.name, made.params) == ("some-tools", "echo", {"greeting": "Hello"})
    assert (made.env, made.caller) == ({"OPENAI_API_KEY": "sk-1"}, "local")


async def test_optional_fields_may_be_absent_or_null_and_unknown_ones_are_ignored() -> None:
    server = TpmjsServer()
    for more in ({}, {"version": None, "params": None, "env": None}, {"toolCallId": 7, "__proto__": {}}):
        assert (await server.post("/execute-tool", {**call("echo"), **more})).json()["output"] == {}
    assert [(made.params, made.env, made.spec.version) for made in server.tools.calls] == [
        ({}, {}, "latest")
    ] * 3


async def test_repr_of_a_call_contains_no_secrets() -> None:
    server = TpmjsServer()
    await server.post("/execute-tool", {**call("echo", {"password": "hunter2"}), "env": {"KEY": "sk-secret"}})
    shown = repr(server.tools.calls)
    assert "KEY" in shown
    assert "sk-secret" not in shown
    assert "hunter2" not in shown


async def test_undefined_output_is_null() -> None:
    assert (await TpmjsServer().execute("undefined")).json()["output"] is None


@pytest.mark.parametrize("raw", ["12345678901234567890.123", '{"a":1,"a":2}', '"\\ud800"', "[1,\n 2]"])
async def test_output_is_passed_through_unchanged(raw: str) -> None:
    response = await TpmjsServer().execute("raw", {"json": raw})
    assert f'"output":{raw},"executionTimeMs":' in response.text


async def test_logs_are_present_only_if_there_are_some() -> None:
    server = TpmjsServer()
    data = (await server.execute("talk", {"lines": ["one", '{"success":true}', "\ud800"]})).json()
    assert (data["output"], data["logs"], data["runId"]) == ([], ["one", '{"success":true}', "\ud800"], "r1")
    assert "logsTruncated" not in data
    assert (await server.execute("talk", {"lines": ["x"], "cut": True})).json()["logsTruncated"] is True
    assert "logs" not in (await server.execute("echo")).json()


async def test_warnings_and_error_location_are_present_only_if_there_are_some() -> None:
    server = TpmjsServer()
    warned = (await server.execute("warn", {"warnings": ["params.a: is missing"]})).json()
    assert warned["warnings"] == ["params.a: is missing"]
    assert "warnings" not in (await server.execute("warn", {"warnings": []})).json()
    for version in ("1.0", "1.1"):
        params = {"code": "execution_error", "location": "index.js:1:2"}
        failed = await server.execute("fail", params, X_TPMJS_Protocol_Version=version)
        assert failed.json()["errorLocation"] == "index.js:1:2"


async def test_validate_must_be_a_boolean() -> None:
    server = TpmjsServer()
    for value, expected in ((True, True), (False, False), (None, False)):
        assert (await server.post("/execute-tool", {**call("echo"), "validate": value})).status_code == 200
        assert server.tools.calls[-1].validate is expected
    refused = await server.post("/execute-tool", {**call("echo"), "validate": "yes"})
    assert refused.json()["error"]["message"] == "validate: expected true or false, got a string"


FAILURES = [
    ("package_not_found", "load", "PACKAGE_NOT_FOUND", "PACKAGE_IMPORT_FAILED"),
    ("import_failed", "load", "TOOL_EXECUTION_ERROR", "PACKAGE_IMPORT_FAILED"),
    ("tool_not_found", "load", "TOOL_NOT_FOUND", "TOOL_NOT_FOUND"),
    ("tool_invalid", "load", "TOOL_INVALID", "INVALID_TOOL"),
    ("configuration_required", "load", "TOOL_INVALID", "TOOL_CONFIGURATION_REQUIRED"),
    ("schema_unavailable", "load", "TOOL_INVALID", "SCHEMA_UNAVAILABLE"),
    ("invalid_params", "request", "INVALID_REQUEST", "INVALID_REQUEST"),
    ("execution_error", "execute", "TOOL_EXECUTION_ERROR", "TOOL_EXECUTION_FAILED"),
    ("timeout", "execute", "EXECUTION_TIMEOUT", "EXECUTION_TIMEOUT"),
    ("internal", "executor", "INTERNAL_ERROR", "EXECUTOR_INTERNAL_ERROR"),
]


@pytest.mark.parametrize(("ours", "stage", "old", "new"), FAILURES)
async def test_tool_failure_in_both_versions(ours: str, stage: str, old: str, new: str) -> None:
    server = TpmjsServer()
    params = {"code": ours, "retryable": ours == "timeout"}
    for version in ("1.0", "7"):
        response = await server.execute("fail", params, X_TPMJS_Protocol_Version=version)
        data = response.json()
        assert response.status_code == {"internal": 500, "invalid_params": 400}.get(ours, 200)
        assert type(data.pop("executionTimeMs")) is int
        assert data == {
            "success": False,
            "error": {"code": old, "message": "it broke"},
            "resolvedVersion": "1.2.3",
            "logs": ["so far"],
        }
    data = (await server.execute("fail", params, X_TPMJS_Protocol_Version="1.1")).json()
    assert type(data.pop("executionTimeMs")) is int
    assert data == {
        "success": False,
        "error": "it broke",
        "errorStage": stage,
        "errorCode": new,
        "retryable": ours == "timeout",
        "resolvedVersion": "1.2.3",
        "logs": ["so far"],
    }


def test_every_failure_has_a_code_in_both_versions() -> None:
    for kind in FAILURE_KINDS.values():
        assert kind.code_1_1 in STAGES[kind.stage]
        assert kind.status != 200 or kind.code in SIX
    assert {ours for ours, *_ in FAILURES} <= set(FAILURE_KINDS)


async def test_message_of_an_error_does_not_change_its_code() -> None:
    for text in ("timed out after 120000ms", "Cannot find module", "404 Not Found - PACKAGE_NOT_FOUND"):
        data = (await TpmjsServer().execute("fail", {"code": "execution_error", "message": text})).json()
        assert data["error"] == {"code": "TOOL_EXECUTION_ERROR", "message": text}


FAILING_CALL = call("fail", {"code": "execution_error"})


async def test_client_without_a_protocol_version_gets_errors_as_strings() -> None:
    server = TpmjsServer()
    data = (await server.post_without_version("/execute-tool", FAILING_CALL)).json()
    assert (data["error"], data["errorCode"]) == ("it broke", "TOOL_EXECUTION_FAILED")
    data = (await server.post_without_version("/execute-batch", {"tools": [FAILING_CALL]})).json()
    assert data["results"][0]["error"] == "it broke"
    data = (await server.post_without_version("/load-and-describe", FAILING_CALL)).json()
    assert data["error"] == "it broke"
    response = await server.post_without_version("/execute-tool", {})
    assert response.status_code == 400
    assert isinstance(response.json()["error"], str)
    response = await TpmjsServer(api_key="key").post_without_version("/execute-tool", FAILING_CALL)
    assert response.status_code == 401
    assert isinstance(response.json()["error"], str)
    data = (await server.post("/execute-tool", FAILING_CALL, X_TPMJS_Protocol_Version="1.0")).json()
    assert data["error"]["code"] == "TOOL_EXECUTION_ERROR"


async def test_operator_can_send_structured_errors_to_clients_without_a_version() -> None:
    server = TpmjsServer(tpmjs_string_errors=False)
    data = (await server.post_without_version("/execute-tool", FAILING_CALL)).json()
    assert data["error"] == {"code": "TOOL_EXECUTION_ERROR", "message": "it broke"}


async def test_request_timeout_cancels_the_execution() -> None:
    server = TpmjsServer(request_seconds=0.2)
    response = await server.execute("wait")
    data = response.json()
    assert (response.status_code, data["error"]["code"]) == (200, "EXECUTION_TIMEOUT")
    assert data["error"]["message"] == "The request took longer than 0.2 s"
    assert data["executionTimeMs"] >= 100
    assert server.tools.cancelled.is_set()
    data = (await server.execute("wait", X_TPMJS_Protocol_Version="1.1")).json()
    assert (data["errorStage"], data["errorCode"], data["retryable"]) == (
        "execute",
        "EXECUTION_TIMEOUT",
        True,
    )


@pytest.mark.parametrize("name", ["crash", "impatient"])
async def test_internal_error_is_hidden_and_logged(name: str, caplog: pytest.LogCaptureFixture) -> None:
    server = TpmjsServer()
    with caplog.at_level(logging.ERROR):
        response = await server.execute(name)
    data = response.json()
    assert response.status_code == 500
    assert data["error"] == {"code": "INTERNAL_ERROR", "message": "The server failed; its log says why"}
    assert data["executionTimeMs"] >= 0
    assert FAULT in caplog.text
    assert (await server.execute("echo")).status_code == 200


@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_used_up_quota_names_the_limit(version: str) -> None:
    response = await TpmjsServer().execute("over_quota", X_TPMJS_Protocol_Version=version)
    assert (response.status_code, response.headers["retry-after"]) == (429, "60")
    data = response.json()
    error = data["error"] if version == "1.0" else data
    assert error["limit"] == "max_executions_per_day"
    assert "max_executions_per_day" in response.text.replace('"limit":"max_executions_per_day"', "")


async def test_busy_server_returns_retry_after() -> None:
    server = TpmjsServer()
    response = await server.execute("busy")
    assert (response.status_code, response.headers["retry-after"]) == (503, "8")
    assert response.json()["error"] == {
        "code": "BUSY",
        "message": "No runner became free. Try again in 7.2 s.",
    }
    data = (await server.execute("busy", X_TPMJS_Protocol_Version="1.1")).json()
    assert (data["errorStage"], data["errorCode"], data["retryable"]) == (
        "executor",
        "EXECUTOR_UNAVAILABLE",
        True,
    )


async def test_package_refused_by_the_executor_is_a_bad_request() -> None:
    response = await TpmjsServer().execute("unknown")
    assert response.status_code == 400
    assert response.json()["error"] == {
        "code": "INVALID_REQUEST",
        "message": "version: there is no such version",
    }


@pytest.mark.parametrize(
    "path", ["/execute-tool", "/api/execute-tool", "//execute-tool", "//api///execute-tool"]
)
async def test_path_is_found_below_api_and_with_repeated_slashes(path: str) -> None:
    response = await TpmjsServer().post(path, call("echo"))
    assert response.json()["success"] is True


async def test_large_params_and_outputs_are_complete() -> None:
    server = TpmjsServer()
    long = {"text": "é" * 1_000_000}
    assert (await server.execute("echo", long)).json()["output"] == long
    assert len((await server.execute("large", {"size": 8_000_000})).json()["output"]) == 8_000_000


def test_message_of_a_failed_tool_is_cut() -> None:
    """A hostile tool can send a message of megabytes. The host would have to redact and record the whole
    message.
    """
    run = _ToolRun()
    assert run.failure_code({"code": "execution_error", "message": "x" * 1_000_000}) == "execution_error"
    assert len(run.failure_message or "") == MAX_MESSAGE_CHARS
