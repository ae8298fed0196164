"""`http.get` and `http.request`: one request through the broker, by the policy for the way out."""

from __future__ import annotations

import base64
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import msgspec
from msgspec import UNSET, UnsetType

from hutch.doors.rep.kinds.registry import Call, Kind, StepFailed
from hutch.egress.fetch import FetchError, FetchLimits, Injection, Request
from hutch.egress.policy import Policy, fetch_policy
from hutch.session.jsonvalue import NotJsonSafe, decode_value, encode_value

if TYPE_CHECKING:
    from hutch.egress.reply import Reply
    from hutch.egress.urls import Url

Query = dict[str, str | int | float | bool | list[str | int | float | bool] | None]
_CHUNK = 256 * 1024
# Of an answer that is an error, what is told of it.
_MOST_TOLD = 4_000
# What a later attempt may find otherwise.
_PASSING = frozenset({"unreachable", "timeout", "tls", "protocol"})
_PASSING_STATUS = frozenset({408, 409, 425, 429})


class Get(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where."""

    url: str
    headers: dict[str, str] = {}
    query: Query = {}


class Send(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What and where. A body that is no text is sent as JSON."""

    method: str
    url: str
    headers: dict[str, str] = {}
    query: Query = {}
    body: Any | UnsetType = UNSET


class _Nothing:
    """No secret is added: these requests are the flow's own."""

    def headers(self, url: Url) -> Injection:
        return Injection()


async def _get(call: Call) -> Any:
    params: Get = call.params
    return await _fetch(call, "GET", params.url, params.query, params.headers, UNSET)


async def _request(call: Call) -> Any:
    params: Send = call.params
    return await _fetch(call, params.method, params.url, params.query, params.headers, params.body)


async def _fetch(
    call: Call, method: str, url: str, query: Query, headers: dict[str, str], body: Any
) -> dict[str, Any]:
    context = call.context
    settings = context.rooms.settings
    limits = FetchLimits.of(settings)
    if (left := call.seconds_left) is not None:
        limits = msgspec.structs.replace(limits, seconds=left)
    policy = _widened(fetch_policy(settings), context.egress_allow)
    fetching = context.rooms.broker().open(_Nothing(), (), owner=context.owner, policy=policy, limits=limits)
    data, extra = _body(body, headers)
    request = Request(
        method=method, url=_with_query(url, query), headers=[*headers.items(), *extra], body=data
    )
    began = time.monotonic()
    try:
        reply = await fetching.send(request)
        answer = await _answer(reply)
    except FetchError as error:
        details = {"code": error.kind, "method": method.upper(), "url": url}
        raise StepFailed(error.message, retriable=error.kind in _PASSING, details=details) from None
    finally:
        await fetching.close()
    milliseconds = (time.monotonic() - began) * 1000
    call.log("debug", f"{method.upper()} {answer['url']} {answer['status']} in {milliseconds:.0f} ms")
    if answer["status"] >= 400:
        raise _refused(method, answer)
    return answer


def _widened(policy: Policy, allow: tuple[str, ...]) -> Policy:
    return policy if not allow else msgspec.structs.replace(policy, allow=(*policy.allow, *allow))


def _with_query(url: str, query: Query) -> str:
    pairs = [
        (name, _text(each))
        for name, value in query.items()
        if value is not None
        for each in (value if isinstance(value, list) else [value])
    ]
    if not pairs:
        return url
    front, mark, fragment = url.partition("#")
    joint = "&" if "?" in front else "?"
    return f"{front}{joint}{urlencode(pairs)}{mark}{fragment}"


def _text(value: str | int | float | bool) -> str:
    return value if isinstance(value, str) else encode_value(value).decode()


def _body(body: Any, headers: dict[str, str]) -> tuple[bytes | None, list[tuple[str, str]]]:
    """The body's bytes, and what is to be said of them unless the flow does."""
    if body is UNSET or body is None:
        return None, []
    typed = any(name.lower() == "content-type" for name in headers)
    if isinstance(body, str):
        return body.encode(errors="replace"), [] if typed else [("content-type", "text/plain;charset=UTF-8")]
    return encode_value(body), [] if typed else [("content-type", "application/json")]


async def _answer(reply: Reply) -> dict[str, Any]:
    parts: list[bytes] = []
    while part := await reply.read(_CHUNK):
        parts.append(part)
    headers: dict[str, str] = {}
    for name, value in reply.headers:
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    body = _decoded(b"".join(parts), headers.get("content-type", ""))
    return {"status": reply.status, "url": reply.url, "headers": headers, **body}


def _decoded(data: bytes, content_type: str) -> dict[str, Any]:
    """JSON where the answer says so and it is, text where it is, and Base64 of what is neither."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "application/json" or kind.endswith("+json"):
        try:
            return {"body": decode_value(data)}
        except NotJsonSafe:
            pass
    try:
        return {"body": data.decode()}
    except UnicodeDecodeError:
        return {"body": base64.b64encode(data).decode(), "encoding": "base64"}


def _refused(method: str, answer: dict[str, Any]) -> StepFailed:
    status = answer["status"]
    body = answer["body"]
    shown = body if isinstance(body, str) else encode_value(body).decode()
    details = {"status": status, "url": answer["url"], "body": shown[:_MOST_TOLD]}
    if (after := answer["headers"].get("retry-after")) is not None:
        details["retry_after"] = after
    message = f"{method.upper()} {answer['url']} was answered with {status}."
    retriable = status >= 500 or status in _PASSING_STATUS
    return StepFailed(message, retriable=retriable, details=details)


GET = Kind("http.get", _get, params=Get)
REQUEST = Kind("http.request", _request, params=Send)
