"""Checks of optional features of the specification. They run only if the executor offers the feature."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx2
import msgspec

from hutch.conformance.outcome import Check, CheckFailed, NotSupported
from hutch.conformance.tpmjs.response import ExecutorResponse, expect_duration, show
from hutch.conformance.tpmjs.target import UNKNOWN, ExecutorTarget
from hutch.conformance.tpmjs.version_1_1 import expect_description

_EVENT_STREAM = "text/event-stream"
_EVENTS = ("log", "partial", "result")
ASYNC_SECONDS = 60.0
ASYNC_POLL_SECONDS = 0.1


async def _stream(target: ExecutorTarget) -> None:
    modes = await target.capability("executionModes")
    supports_streaming = await target.capability("supportsStreaming") is True
    declared = supports_streaming or (isinstance(modes, list) and "stream" in modes)
    await target.require_success()
    response = await target.execute(target.tool.request(), headers={"Accept": _EVENT_STREAM})
    kind = response.headers.get("content-type", "").partition(";")[0].strip()
    if kind != _EVENT_STREAM:
        if declared:
            raise CheckFailed(
                f"{response.request}: Content-Type: expected {_EVENT_STREAM}, got {kind or 'none'}"
            )
        raise NotSupported
    response.expect(200)
    if not declared:
        raise CheckFailed("the executor streams, but GET /info does not declare streaming")
    _expect_stream(response)


def _expect_stream(response: ExecutorResponse) -> None:
    events = _events(response)
    kinds = [event.event for event in events]
    if kinds[-1:] != ["result"] or kinds.count("result") != 1 or not set(kinds) <= set(_EVENTS):
        actual = ", ".join(kinds) or "none"
        raise CheckFailed(f"expected log and partial events and one result at the end, got {actual}")
    data: Any = None
    for event in events:
        # Skip log events, because the specification does not define the format of log lines.
        if event.event == "log":
            continue
        try:
            data = msgspec.json.decode(event.data)
        except (msgspec.DecodeError, RecursionError) as error:
            raise CheckFailed(f"the data of a {event.event} event is not JSON: {error}") from None
    if not isinstance(data, dict) or data.get("success") is not True or "output" not in data:
        raise CheckFailed(f"expected the answer of the execution in the result event, got {show(data)}")


def _events(response: ExecutorResponse) -> list[httpx2.ServerSentEvent]:
    stream = httpx2.Response(
        200,
        headers={"Content-Type": _EVENT_STREAM},
        content=response.body,
        request=httpx2.Request("POST", "http://executor"),
    )
    try:
        return list(httpx2.EventSource(stream, max_event_size=None))
    except httpx2.HTTPError as error:
        raise CheckFailed(f"{response.request}: the events cannot be read: {error}") from None


async def _validate(target: ExecutorTarget) -> None:
    await target.require_success()
    response = await _execute_optional(target, "/validate-tool", target.tool.request(params=None))
    response.expect(200)
    expect_description(response)
    unknown = await target.execute(target.tool.request(params=None, name=UNKNOWN), "/validate-tool")
    code = unknown.error()["code"]
    if code != "TOOL_NOT_FOUND":
        raise CheckFailed(f"an export that does not exist: expected TOOL_NOT_FOUND, got {show(code)}")


async def _batch(target: ExecutorTarget) -> None:
    await target.require_success()
    good, bad = target.tool.request(), target.tool.request(name=UNKNOWN)
    response = await _execute_optional(target, "/execute-batch", {"tools": [good, bad]})
    response.expect(200)
    body = response.json_object()
    if not isinstance(body.get("success"), bool):
        raise CheckFailed(f"success: expected true or false, got {show(body.get('success'))}")
    results = body.get("results")
    if not isinstance(results, list) or not all(isinstance(result, dict) for result in results):
        raise CheckFailed(f"results: expected a list of answers, got {show(results)}")
    outcomes = [result.get("success") for result in results]
    if outcomes != [True, False]:
        raise CheckFailed(
            f"results: expected a success and a failure in the order of the tools, got {show(outcomes)}"
        )
    expect_duration(response)


async def _callbacks(target: ExecutorTarget) -> None:
    """Checks that an empty body is refused, and that the status of a call can be read until the call has
    ended.
    """
    offered = await target.capability("supportsCallbacks") is True
    response = await target.execute({}, "/execute-async")
    if not offered and response.status in (404, 405):
        raise NotSupported
    if not offered:
        raise CheckFailed(f"{response.request} answers {response.status}, but GET /info does not declare it")
    response.refusal(400)
    modes = await target.capability("executionModes")
    if not isinstance(modes, list) or "async" not in modes:
        raise CheckFailed(f"executionModes: expected async beside supportsCallbacks, got {show(modes)}")
    await target.require_success()
    accepted = await target.execute(target.tool.request(), "/execute-async")
    accepted.expect(202)
    body = accepted.json_object()
    run_id, url = body.get("runId"), body.get("statusUrl")
    if not isinstance(run_id, str) or not isinstance(url, str) or not run_id or not url:
        raise CheckFailed(f"{accepted.request}: expected runId and statusUrl, got {show(body)}")
    await _wait_for_end(target, url)


async def _wait_for_end(target: ExecutorTarget, url: str) -> None:
    deadline = time.monotonic() + ASYNC_SECONDS
    while True:
        response = await target.get(url, with_key=True)
        response.expect(200)
        status = response.json_object().get("status")
        if status == "completed":
            return
        if status not in ("pending", "running"):
            raise CheckFailed(f"{response.request}: status: expected completed, got {show(status)}")
        if time.monotonic() > deadline:
            raise CheckFailed(f"{response.request}: the run was still {status} after {ASYNC_SECONDS:g} s")
        await asyncio.sleep(ASYNC_POLL_SECONDS)


async def _openapi(target: ExecutorTarget) -> None:
    response = await target.get("/openapi.json", with_key=True)
    if response.status in (401, 404):
        raise NotSupported
    response.expect(200)
    body = response.json_object()
    paths = body.get("paths")
    if not isinstance(body.get("openapi"), str) or not isinstance(paths, dict):
        raise CheckFailed("GET /openapi.json: expected an OpenAPI document with openapi and paths")
    missing = [path for path in ("/health", "/execute-tool") if path not in paths]
    if missing:
        raise CheckFailed(f"GET /openapi.json: it does not describe {', '.join(missing)}")


async def _execute_optional(target: ExecutorTarget, path: str, body: dict[str, Any]) -> ExecutorResponse:
    response = await target.execute(body, path)
    if response.status in (404, 405):
        raise NotSupported
    return response


CHECKS: tuple[Check[ExecutorTarget], ...] = (
    Check("Streaming: POST /execute-tool with Accept: text/event-stream", _stream),
    Check("POST /validate-tool", _validate),
    Check("POST /execute-batch", _batch),
    Check("POST /execute-async", _callbacks),
    Check("GET /openapi.json", _openapi),
)
