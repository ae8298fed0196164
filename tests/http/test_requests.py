"""Bodies: content types, sizes, timeouts and malformed JSON."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from starlette.requests import ClientDisconnect, Request
from tests.support.processes import TIMEOUT_SECONDS
from tests.support.stalls import LoopStalls, repeat_on_stall

from hutch.http.errors import ApiError
from hutch.http.requests import JsonBodyReader, parse_optional_object

MAX_BYTES = 1_000


class Upload:
    """A request whose body arrives in parts. Counts the parts that were read."""

    def __init__(self, *parts: bytes, ends: str = "body", **headers: str) -> None:
        self._parts = list(parts)
        self._ends = ends
        self.parts_read = 0
        raw = [(name.replace("_", "-").lower().encode(), value.encode()) for name, value in headers.items()]
        self.request = Request({"type": "http", "method": "POST", "headers": raw}, self._receive)

    async def _receive(self) -> dict[str, Any]:
        if self._parts:
            self.parts_read += 1
            more = len(self._parts) > 1 or self._ends != "body"
            return {"type": "http.request", "body": self._parts.pop(0), "more_body": more}
        if self._ends == "disconnect":
            return {"type": "http.disconnect"}
        return await asyncio.Event().wait()  # type: ignore[return-value]


def reader(seconds: float = TIMEOUT_SECONDS, max_bytes: int = MAX_BYTES) -> JsonBodyReader:
    return JsonBodyReader(max_bytes, seconds)


async def failure(upload: Upload, *, optional: bool = False, **limits: Any) -> tuple[str, str]:
    with pytest.raises(ApiError) as caught:
        await reader(**limits).read_object(upload.request, optional=optional)
    return caught.value.kind, caught.value.message


async def test_object_is_read_in_parts() -> None:
    upload = Upload(b'{"a": [1, ', b'"\\ud800"]}')
    assert await reader().read_object(upload.request) == {"a": [1, "\ud800"]}


async def test_empty_body_is_an_empty_object_only_if_optional() -> None:
    for body in (b"", b" \r\n"):
        assert await failure(Upload(body)) == ("invalid_request", "body: expected a JSON object, got nothing")
        assert await reader().read_object(Upload(body).request, optional=True) == {}
        assert await parse_optional_object(body) == {}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"[]", "body: expected an object, got an array"),
        (b"null", "body: expected an object, got null"),
        (b"3", "body: expected an object, got a number"),
        (b"{", "body: malformed JSON"),
        (b'{"a": NaN}', "body: malformed JSON"),
        (b"\xff", "body: malformed JSON"),
        (b"[" * 300 + b"]" * 300, "body: $ is nested deeper than 128 levels"),
    ],
)
async def test_other_values_and_malformed_json_are_refused(body: bytes, message: str) -> None:
    for optional in (False, True):
        kind, got = await failure(Upload(body), optional=optional)
        assert (kind, got[: len(message)]) == ("invalid_request", message)
    with pytest.raises(ApiError):
        await parse_optional_object(body)


@pytest.mark.parametrize(
    ("body", "key"),
    [
        (b'{"a": 1, "a": 2}', "a"),
        (b'{"a": {"b": [{"c": 1, "c" : 1}]}}', "c"),
        (b'{"a": 1, "\\u0061": 2}', "a"),
        ('{"\u00e9": 1, "\\u00e9": 2}'.encode(), "\u00e9"),
        (b'{"a": 1, "a": 2, "b": "\\u003a"}', "a"),
        (b'{"a": 1, "a": 2, "b": "\\u003A\\\\"}', "a"),
        (b'{"a": "\\ud800", "a": 2}', "a"),
        (b'{"\\ud800": 1, "\\uD800": 2}', "\ufffd\ufffd\ufffd"),
        (b'{"": 1, "": 2}', ""),
        (b'{"\\u001b[0m": 1, "\\u001b[0m": 2}', "\\\\u001b[0m"),
        (b'{"%s": 1, "%s": 2}' % (b"k" * 100, b"k" * 100), "k" * 40),
    ],
)
async def test_key_that_occurs_twice_is_refused_by_name(body: bytes, key: str) -> None:
    message = f"body: expected each key once in an object, got '{key}' twice"
    assert await failure(Upload(body)) == ("invalid_request", message)
    with pytest.raises(ApiError, match="twice"):
        await parse_optional_object(body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"a": {"a": {"a": 1}}, "b": [{"a": 1}, {"a": 1}]}',
        b'{"a": ":", ":": "\\":", "b": "a\\\\"}',
        b'{"a": "\\u003a\\u003A", "\\u003a": {}}',
        b'{"a": "\\ud800", "b": "\\"a\\": 1, \\"a\\": 2"}',
        b'{"a": 123456789012345678901234567890, "b": 1e300}',
        b'{"\\u0061\\u003c": 1, "a": "{\\"a\\": 1}"}',
    ],
)
async def test_similar_text_is_not_taken_for_a_key_that_occurs_twice(body: bytes) -> None:
    assert await reader().read_object(Upload(body).request) == json.loads(body)


@pytest.mark.parametrize("end", [b'"k5": 1', b'"x": "\\u003a", "k5": 1'], ids=["plain", "escaped colon"])
@repeat_on_stall
async def test_search_for_a_duplicate_key_does_not_block_the_event_loop(end: bytes) -> None:
    body = b"{" + b"".join(b'"k%d": 1, ' % number for number in range(40_000)) + end + b"}"
    async with LoopStalls() as stalls:
        _, message = await failure(Upload(body), max_bytes=len(body))
    assert message.endswith("got 'k5' twice")
    stalls.assert_short()


@pytest.mark.parametrize(
    "content_type",
    [
        None,
        "application/json",
        'APPLICATION/JSON; charset="UTF-8"',
        "application/vnd.x+json;charset=us-ascii",
    ],
)
async def test_json_content_types_and_none_are_accepted(content_type: str | None) -> None:
    headers = {} if content_type is None else {"Content_Type": content_type}
    assert await reader().read_object(Upload(b"{}", **headers).request) == {}


@pytest.mark.parametrize(
    "content_type",
    ["", "text/plain", "json", "application/jsonx", "text/x+json", "application/json; charset=utf-16"],
)
async def test_other_content_types_are_refused_before_reading(content_type: str) -> None:
    upload = Upload(b"{}", Content_Type=content_type)
    message = f"Content-Type: expected application/json, got {content_type!r}"
    assert await failure(upload) == ("unsupported_media_type", message)
    assert upload.parts_read == 0


async def test_compressed_body_is_refused_before_reading() -> None:
    upload = Upload(b"\x1f\x8b", Content_Encoding="gzip")
    assert await failure(upload) == ("unsupported_media_type", "Content-Encoding: expected none, got 'gzip'")
    assert upload.parts_read == 0
    assert await reader().read_object(Upload(b"{}", Content_Encoding="identity").request) == {}


@pytest.mark.parametrize("length", [str(MAX_BYTES + 1), "9" * 5_000])
async def test_large_content_length_is_refused_before_reading(length: str) -> None:
    upload = Upload(b"{}", Content_Length=length)
    assert await failure(upload) == ("too_large", "body: the maximum is 1000 bytes")
    assert upload.parts_read == 0


async def test_body_is_refused_as_soon_as_it_is_too_large() -> None:
    largest = b"{}".ljust(MAX_BYTES)
    assert await reader().read_object(Upload(largest[:500], largest[500:]).request) == {}
    upload = Upload(largest, b" ", b" ")
    assert await failure(upload) == ("too_large", "body: the maximum is 1000 bytes")
    assert upload.parts_read == 2


async def test_body_that_does_not_arrive_times_out() -> None:
    upload = Upload(b"{", ends="never")
    assert await failure(upload, seconds=0.01) == ("invalid_request", "body: did not arrive within 0.01 s")


async def test_disconnect_is_not_an_error_of_the_caller() -> None:
    with pytest.raises(ClientDisconnect):
        await reader().read_object(Upload(b"{", ends="disconnect").request)


@repeat_on_stall
async def test_many_large_bodies_at_once_do_not_block_the_event_loop() -> None:
    body = b'{"a": [' + b"1e300, " * 20_000 + b"1]}"
    shared = reader(max_bytes=len(body))
    async with LoopStalls() as stalls:
        bodies = await asyncio.gather(*(shared.read_object(Upload(body).request) for _ in range(8)))
    assert {len(each["a"]) for each in bodies} == {20_001}
    stalls.assert_short()
