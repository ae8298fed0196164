"""What the specification reserves for executors that want to do more; only what is offered is tested."""

from __future__ import annotations

from typing import Any

import httpx2
import msgspec

from hutch.cli.compliance.answer import Answer, milliseconds, show
from hutch.cli.compliance.outcome import Failed, NotSupported
from hutch.cli.compliance.subject import NOBODY, Check, Subject
from hutch.cli.compliance.version_1_1 import is_described

_EVENT_STREAM = "text/event-stream"
_EVENTS = ("log", "partial", "result")


async def _stream(on: Subject) -> None:
    modes = await on.capability("executionModes")
    told = await on.capability("supportsStreaming") is True or (isinstance(modes, list) and "stream" in modes)
    await on.works()
    answer = await on.execute(on.tool.request(), headers={"Accept": _EVENT_STREAM})
    kind = answer.headers.get("content-type", "").partition(";")[0].strip()
    if kind != _EVENT_STREAM:
        if told:
            raise Failed(f"{answer.request}: Content-Type: expected {_EVENT_STREAM}, got {kind or 'none'}")
        raise NotSupported
    answer.expect(200)
    if not told:
        raise Failed("it streams, but GET /info does not say so")
    _is_stream(answer)


def _is_stream(answer: Answer) -> None:
    events = _events(answer)
    kinds = [event.event for event in events]
    if kinds[-1:] != ["result"] or kinds.count("result") != 1 or not set(kinds) <= set(_EVENTS):
        told = ", ".join(kinds) or "none"
        raise Failed(f"expected log and partial events and one result at the end, got {told}")
    data: Any = None
    for event in events:
        # What a line of the log looks like is the executor's own matter.
        if event.event == "log":
            continue
        try:
            data = msgspec.json.decode(event.data)
        except (msgspec.DecodeError, RecursionError) as error:
            raise Failed(f"the data of a {event.event} event is no JSON: {error}") from None
    if not isinstance(data, dict) or data.get("success") is not True or "output" not in data:
        raise Failed(f"expected the answer of the execution in the result event, got {show(data)}")


def _events(answer: Answer) -> list[httpx2.ServerSentEvent]:
    response = httpx2.Response(
        200,
        headers={"Content-Type": _EVENT_STREAM},
        content=answer.body,
        request=httpx2.Request("POST", "http://executor"),
    )
    try:
        return list(httpx2.EventSource(response, max_event_size=None))
    except httpx2.HTTPError as error:
        raise Failed(f"{answer.request}: the events cannot be read: {error}") from None


async def _validate(on: Subject) -> None:
    await on.works()
    answer = await _offered(on, "/validate-tool", on.tool.request(params=None))
    answer.expect(200)
    is_described(answer)
    wrong = await on.execute(on.tool.request(params=None, name=NOBODY), "/validate-tool")
    code = wrong.error()["code"]
    if code != "TOOL_NOT_FOUND":
        raise Failed(f"an export that does not exist: expected TOOL_NOT_FOUND, got {show(code)}")


async def _batch(on: Subject) -> None:
    await on.works()
    good, bad = on.tool.request(), on.tool.request(name=NOBODY)
    answer = await _offered(on, "/execute-batch", {"tools": [good, bad]})
    answer.expect(200)
    body = answer.object()
    if not isinstance(body.get("success"), bool):
        raise Failed(f"success: expected true or false, got {show(body.get('success'))}")
    results = body.get("results")
    if not isinstance(results, list) or not all(isinstance(each, dict) for each in results):
        raise Failed(f"results: expected a list of answers, got {show(results)}")
    ends = [each.get("success") for each in results]
    if ends != [True, False]:
        raise Failed(f"results: expected a success and a failure in the order of the tools, got {show(ends)}")
    milliseconds(answer)


async def _callbacks(on: Subject) -> None:
    """An empty body: nothing is executed where it is offered."""
    offered = await on.capability("supportsCallbacks") is True
    answer = await on.execute({}, "/execute-async")
    if not offered and answer.status in (404, 405):
        raise NotSupported
    if not offered:
        raise Failed(f"{answer.request} answers {answer.status}, but GET /info does not say that it is there")
    answer.refusal(400)


async def _openapi(on: Subject) -> None:
    answer = await on.get("/openapi.json", keyed=True)
    if answer.status in (401, 404):
        raise NotSupported
    answer.expect(200)
    body = answer.object()
    paths = body.get("paths")
    if not isinstance(body.get("openapi"), str) or not isinstance(paths, dict):
        raise Failed("GET /openapi.json: expected an OpenAPI document with openapi and paths")
    absent = [path for path in ("/health", "/execute-tool") if path not in paths]
    if absent:
        raise Failed(f"GET /openapi.json: it does not describe {', '.join(absent)}")


async def _offered(on: Subject, path: str, body: dict[str, Any]) -> Answer:
    answer = await on.execute(body, path)
    if answer.status in (404, 405):
        raise NotSupported
    return answer


CHECKS: dict[str, Check] = {
    "Streaming: POST /execute-tool with Accept: text/event-stream": _stream,
    "POST /validate-tool": _validate,
    "POST /execute-batch": _batch,
    "POST /execute-async": _callbacks,
    "GET /openapi.json": _openapi,
}
