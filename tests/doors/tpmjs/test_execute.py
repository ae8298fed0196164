"""`/execute-tool`: what is said of an execution, in both versions of the protocol."""

from __future__ import annotations

import logging

import pytest
from tests.doors.tpmjs.scripted import FAULT, Door, call

from hutch.doors.tpmjs.answers import KINDS

SIX = {
    "PACKAGE_NOT_FOUND",
    "TOOL_NOT_FOUND",
    "TOOL_INVALID",
    "TOOL_EXECUTION_ERROR",
    "EXECUTION_TIMEOUT",
    "INTERNAL_ERROR",
}
# Version 1.1's own table.
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


async def test_success_has_the_output_the_time_and_the_exact_version() -> None:
    door = Door()
    body = {**call("echo", {"greeting": "Hello"}), "version": "1.x", "env": {"OPENAI_API_KEY": "sk-1"}}
    response = await door.post("/execute-tool", body)
    said = response.json()
    assert (response.status_code, response.headers["content-type"]) == (200, "application/json")
    assert type(said.pop("executionTimeMs")) is int
    assert said == {"success": True, "output": {"greeting": "Hello"}, "resolvedVersion": "1.2.3"}
    [made] = door.tools.calls
    assert (made.spec.name, made.name, made.params) == ("some-tools", "echo", {"greeting": "Hello"})
    assert (made.env, made.caller) == ({"OPENAI_API_KEY": "sk-1"}, "local")


async def test_what_is_optional_may_be_absent_or_null_and_what_is_unknown_is_ignored() -> None:
    door = Door()
    for more in ({}, {"version": None, "params": None, "env": None}, {"toolCallId": 7, "__proto__": {}}):
        assert (await door.post("/execute-tool", {**call("echo"), **more})).json()["output"] == {}
    assert [(made.params, made.env, made.spec.version) for made in door.tools.calls] == [
        ({}, {}, "latest")
    ] * 3


async def test_secrets_are_not_in_the_representation_of_a_call() -> None:
    door = Door()
    await door.post("/execute-tool", {**call("echo", {"password": "hunter2"}), "env": {"KEY": "sk-secret"}})
    shown = repr(door.tools.calls)
    assert "KEY" in shown
    assert "sk-secret" not in shown
    assert "hunter2" not in shown


async def test_undefined_output_is_null_and_not_absent() -> None:
    assert (await Door().execute("undefined")).json()["output"] is None


@pytest.mark.parametrize("raw", ["12345678901234567890.123", '{"a":1,"a":2}', '"\\ud800"', "[1,\n 2]"])
async def test_output_stays_the_text_that_it_is(raw: str) -> None:
    response = await Door().execute("raw", {"json": raw})
    assert f'"output":{raw},"executionTimeMs":' in response.text


async def test_logs_are_beside_the_output_and_only_when_there_are_some() -> None:
    door = Door()
    said = (await door.execute("talk", {"lines": ["one", '{"success":true}', "\ud800"]})).json()
    assert (said["output"], said["logs"], said["runId"]) == ([], ["one", '{"success":true}', "\ud800"], "r1")
    assert "logsTruncated" not in said
    assert (await door.execute("talk", {"lines": ["x"], "cut": True})).json()["logsTruncated"] is True
    assert "logs" not in (await door.execute("echo")).json()


FAILURES = [
    ("package_not_found", "load", "PACKAGE_NOT_FOUND", "PACKAGE_IMPORT_FAILED"),
    ("import_failed", "load", "TOOL_EXECUTION_ERROR", "PACKAGE_IMPORT_FAILED"),
    ("tool_not_found", "load", "TOOL_NOT_FOUND", "TOOL_NOT_FOUND"),
    ("tool_invalid", "load", "TOOL_INVALID", "INVALID_TOOL"),
    ("configuration_required", "load", "TOOL_EXECUTION_ERROR", "TOOL_CONFIGURATION_REQUIRED"),
    ("schema_unavailable", "load", "TOOL_INVALID", "SCHEMA_UNAVAILABLE"),
    ("execution_error", "execute", "TOOL_EXECUTION_ERROR", "TOOL_EXECUTION_FAILED"),
    ("timeout", "execute", "EXECUTION_TIMEOUT", "EXECUTION_TIMEOUT"),
    ("internal", "executor", "INTERNAL_ERROR", "EXECUTOR_INTERNAL_ERROR"),
]


@pytest.mark.parametrize(("ours", "stage", "old", "new"), FAILURES)
async def test_failure_of_a_tool_in_the_words_of_both_versions(
    ours: str, stage: str, old: str, new: str
) -> None:
    door = Door()
    params = {"code": ours, "retryable": ours == "timeout"}
    for header in ({}, {"X_TPMJS_Protocol_Version": "1.0"}, {"X_TPMJS_Protocol_Version": "7"}):
        response = await door.execute("fail", params, **header)
        said = response.json()
        assert response.status_code == (500 if ours == "internal" else 200)
        assert type(said.pop("executionTimeMs")) is int
        assert said == {
            "success": False,
            "error": {"code": old, "message": "it broke"},
            "resolvedVersion": "1.2.3",
            "logs": ["so far"],
        }
    said = (await door.execute("fail", params, X_TPMJS_Protocol_Version="1.1")).json()
    assert type(said.pop("executionTimeMs")) is int
    assert said == {
        "success": False,
        "error": "it broke",
        "errorStage": stage,
        "errorCode": new,
        "retryable": ours == "timeout",
        "resolvedVersion": "1.2.3",
        "logs": ["so far"],
    }


def test_every_failure_has_a_word_in_both_versions() -> None:
    for kind in KINDS.values():
        assert kind.code_1_1 in STAGES[kind.stage]
        assert kind.status != 200 or kind.code in SIX
    assert {ours for ours, *_ in FAILURES} <= set(KINDS)


async def test_text_of_an_error_does_not_choose_its_code() -> None:
    for text in ("timed out after 120000ms", "Cannot find module", "404 Not Found - PACKAGE_NOT_FOUND"):
        said = (await Door().execute("fail", {"code": "execution_error", "message": text})).json()
        assert said["error"] == {"code": "TOOL_EXECUTION_ERROR", "message": text}


async def test_client_that_names_no_version_can_be_given_strings() -> None:
    door = Door(tpmjs_string_errors=True)
    said = (await door.execute("fail", {"code": "execution_error"})).json()
    assert (said["error"], said["errorCode"]) == ("it broke", "TOOL_EXECUTION_FAILED")
    said = (await door.execute("fail", {"code": "execution_error"}, X_TPMJS_Protocol_Version="1.0")).json()
    assert said["error"]["code"] == "TOOL_EXECUTION_ERROR"


async def test_request_that_takes_too_long_is_a_timeout_and_its_execution_is_cancelled() -> None:
    door = Door(request_seconds=0.2)
    response = await door.execute("wait")
    said = response.json()
    assert (response.status_code, said["error"]["code"]) == (200, "EXECUTION_TIMEOUT")
    assert said["error"]["message"] == "The request took longer than 0.2 s"
    assert said["executionTimeMs"] >= 100
    assert door.tools.cancelled.is_set()
    said = (await door.execute("wait", X_TPMJS_Protocol_Version="1.1")).json()
    assert (said["errorStage"], said["errorCode"], said["retryable"]) == (
        "execute",
        "EXECUTION_TIMEOUT",
        True,
    )


@pytest.mark.parametrize("name", ["crash", "impatient"])
async def test_fault_of_ours_is_told_without_details_and_logged_with_them(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    door = Door()
    with caplog.at_level(logging.ERROR):
        response = await door.execute(name)
    said = response.json()
    assert response.status_code == 500
    assert said["error"] == {"code": "INTERNAL_ERROR", "message": "The server failed; its log says why"}
    assert said["executionTimeMs"] >= 0
    assert FAULT in caplog.text
    assert (await door.execute("echo")).status_code == 200


async def test_executor_without_a_place_is_busy_and_says_when_to_come_back() -> None:
    door = Door()
    response = await door.execute("busy")
    assert (response.status_code, response.headers["retry-after"]) == (503, "8")
    assert response.json()["error"] == {
        "code": "BUSY",
        "message": "No place came free. Try again in 7.2 s.",
    }
    said = (await door.execute("busy", X_TPMJS_Protocol_Version="1.1")).json()
    assert (said["errorStage"], said["errorCode"], said["retryable"]) == (
        "executor",
        "EXECUTOR_UNAVAILABLE",
        True,
    )


async def test_package_that_only_the_executor_finds_impossible_is_a_bad_request() -> None:
    response = await Door().execute("unknown")
    assert response.status_code == 400
    assert response.json()["error"] == {"code": "INVALID_REQUEST", "message": "version: there is none such"}


@pytest.mark.parametrize(
    "path", ["/execute-tool", "/api/execute-tool", "//execute-tool", "//api///execute-tool"]
)
async def test_path_is_found_below_api_and_with_slashes_too_many(path: str) -> None:
    response = await Door().post(path, call("echo"))
    assert response.json()["success"] is True


async def test_large_params_and_outputs_pass_whole() -> None:
    door = Door()
    long = {"text": "é" * 1_000_000}
    assert (await door.execute("echo", long)).json()["output"] == long
    assert len((await door.execute("large", {"size": 8_000_000})).json()["output"]) == 8_000_000
