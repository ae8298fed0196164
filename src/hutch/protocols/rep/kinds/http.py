"""`http.get` and `http.request`: send one request, subject to the egress policy."""

from __future__ import annotations

import base64
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import msgspec
from msgspec import UNSET, UnsetType

from hutch.egress.client.models import FetchError, FetchLimits, FetchRequest, Injection
from hutch.egress.policy import EgressPolicy, fetch_policy
from hutch.protocols.rep.kinds.registry import Call, Kind, StepFailed
from hutch.protocols.rep.runtime.spans import export_requests
from hutch.session.json_value import NotJsonSafe, encode_value
from hutch.session.large_json import decode_large_value

if TYPE_CHECKING:
    from hutch.egress.addresses import Url
    from hutch.egress.client.response import FetchResponse

QueryParams = dict[str, str | int | float | bool | list[str | int | float | bool] | None]
_CHUNK_BYTES = 256 * 1024
# Number of characters of an error response that are copied to the error's details.
_MAX_DETAIL_CHARS = 4_000
# Errors that a retry may resolve.
_RETRIABLE_ERRORS = frozenset({"unreachable", "timeout", "tls", "protocol"})
_RETRIABLE_STATUS = frozenset({408, 409, 425, 429})


class GetParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    url: str
    headers: dict[str, str] = {}
    query: QueryParams = {}


class RequestParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of `http.request`. A body that is not a string is sent as JSON."""

    method: str
    url: str
    headers: dict[str, str] = {}
    query: QueryParams = {}
    body: Any | UnsetType = UNSET


class _NoCredentials:
    """Header source without credentials. Steps send only the headers that the flow sets."""

    def inject(self, url: Url) -> Injection:
        return Injection()


async def _get(call: Call) -> Any:
    params: GetParams = call.params
    return await _fetch(call, "GET", params.url, params.query, params.headers, UNSET)


async def _request(call: Call) -> Any:
    params: RequestParams = call.params
    return await _fetch(call, params.method, params.url, params.query, params.headers, params.body)


async def _fetch(
    call: Call, method: str, url: str, query: QueryParams, headers: dict[str, str], body: Any
) -> dict[str, Any]:
    context = call.context
    settings = context.services.settings
    limits = FetchLimits.of(settings)
    if (seconds := call.seconds_left) is not None:
        limits = msgspec.structs.replace(limits, max_seconds=seconds)
    policy = _widen(fetch_policy(settings), context.egress_allow)
    session = context.services.http_client().open_session(
        _NoCredentials(), (), owner=context.owner, policy=policy, limits=limits
    )
    data, extra = _body(body, headers)
    request = FetchRequest(
        method=method, url=_with_query(url, query), headers=[*headers.items(), *extra], body=data
    )
    started_at = time.monotonic()
    try:
        reply = await session.send(request)
        response = await _read_response(reply)
    except FetchError as error:
        details = {"code": error.kind, "method": method.upper(), "url": url}
        raise StepFailed(error.message, retriable=error.kind in _RETRIABLE_ERRORS, details=details) from None
    finally:
        await session.close()
        export_requests(context.tracer, session.request_log)
    elapsed_ms = (time.monotonic() - started_at) * 1000
    call.log("debug", f"{method.upper()} {response['url']} {response['status']} in {elapsed_ms:.0f} ms")
    if response["status"] >= 400:
        raise _error_response(method, response)
    return response


def _widen(policy: EgressPolicy, allow: tuple[str, ...]) -> EgressPolicy:
    return policy if not allow else msgspec.structs.replace(policy, allow=(*policy.allow, *allow))


def _with_query(url: str, query: QueryParams) -> str:
    pairs = [
        (name, _text(item))
        for name, value in query.items()
        if value is not None
        for item in (value if isinstance(value, list) else [value])
    ]
    if not pairs:
        return url
    base, separator, fragment = url.partition("#")
    joint = "&" if "?" in base else "?"
    return f"{base}{joint}{urlencode(pairs)}{separator}{fragment}"


def _text(value: str | int | float | bool) -> str:
    return value if isinstance(value, str) else encode_value(value).decode()


def _body(body: Any, headers: dict[str, str]) -> tuple[bytes | None, list[tuple[str, str]]]:
    """Returns the encoded body, and a Content-Type header unless the flow sets one."""
    if body is UNSET or body is None:
        return None, []
    has_type = any(name.lower() == "content-type" for name in headers)
    if isinstance(body, str):
        return body.encode(errors="replace"), [] if has_type else [
            ("content-type", "text/plain;charset=UTF-8")
        ]
    return encode_value(body), [] if has_type else [("content-type", "application/json")]


async def _read_response(reply: FetchResponse) -> dict[str, Any]:
    parts: list[bytes] = []
    while part := await reply.read(_CHUNK_BYTES):
        parts.append(part)
    headers: dict[str, str] = {}
    for name, value in reply.headers:
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    body = await _decode_body(b"".join(parts), headers.get("content-type", ""))
    return {"status": reply.status, "url": reply.url, "headers": headers, **body}


async def _decode_body(data: bytes, content_type: str) -> dict[str, Any]:
    """Decodes the body as JSON if its content type is JSON and it is valid JSON, otherwise as text, otherwise
    as Base64.
    """
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "application/json" or kind.endswith("+json"):
        try:
            return {"body": await decode_large_value(data)}
        except NotJsonSafe:
            pass
    try:
        return {"body": data.decode()}
    except UnicodeDecodeError:
        return {"body": base64.b64encode(data).decode(), "encoding": "base64"}


def _error_response(method: str, response: dict[str, Any]) -> StepFailed:
    status = response["status"]
    body = response["body"]
    shown = body if isinstance(body, str) else encode_value(body).decode()
    details = {"status": status, "url": response["url"], "body": shown[:_MAX_DETAIL_CHARS]}
    if (retry_after := response["headers"].get("retry-after")) is not None:
        details["retry_after"] = retry_after
    message = f"{method.upper()} {response['url']} was answered with {status}."
    retriable = status >= 500 or status in _RETRIABLE_STATUS
    return StepFailed(message, retriable=retriable, details=details)


GET = Kind("http.get", _get, params=GetParams)
REQUEST = Kind("http.request", _request, params=RequestParams)
