"""Credentials in the query and the body of requests, also after redirects."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
from tests.egress.recording_server import (
    Credentials,
    RecordingServer,
    http_response,
    make_request,
    open_session,
    run_http_client,
    run_recording_server,
)

from hutch.egress.addresses import parse_url
from hutch.egress.client.client import FetchClient
from hutch.egress.client.fields import MAX_MERGED_BODY_BYTES, merge_fields
from hutch.egress.client.models import FetchError, Headers, InjectedField

pytestmark = pytest.mark.anyio

SECRET = "s3cret/+ &=value"
ENCODED = "s3cret%2F%2B%20%26%3Dvalue"
QUERY = InjectedField("query", "key", SECRET, "c1")
BODY = InjectedField("body", "key", SECRET, "c1")
JSON = [("Content-Type", "application/vnd.api+json; charset=utf-8")]
FORM = [("content-type", "application/x-www-form-urlencoded")]


@pytest.fixture
async def server() -> AsyncIterator[RecordingServer]:
    async with run_recording_server() as running:
        yield running


@pytest.fixture
async def client() -> AsyncIterator[FetchClient]:
    async with run_http_client() as running:
        yield running


@pytest.mark.parametrize(
    ("target", "sent", "credentials"),
    [
        ("/a", f"/a?key={ENCODED}", ("c1",)),
        ("/a?b=1", f"/a?b=1&key={ENCODED}", ("c1",)),
        ("/a?monkey=1", f"/a?monkey=1&key={ENCODED}", ("c1",)),
        ("/a?b=1&key=own", "/a?b=1&key=own", ()),
        ("/a?key", "/a?key", ()),
    ],
)
def test_field_is_added_to_the_query_unless_it_is_there(
    target: str, sent: str, credentials: tuple[str, ...]
) -> None:
    merged = merge_fields([QUERY], parse_url(f"https://example.com{target}"), [], b"body")
    assert (merged.target, merged.body, merged.credentials) == (sent, b"body", credentials)


@pytest.mark.parametrize(
    ("headers", "body", "sent"),
    [
        (JSON, b'{"a": {"key": 1}}', json.dumps({"a": {"key": 1}, "key": SECRET})),
        (JSON, b'{"key": "own"}', json.dumps({"key": "own"})),
        (FORM, b"", f"key={ENCODED}"),
        (FORM, b"a=1", f"a=1&key={ENCODED}"),
        (FORM, b"key=own", "key=own"),
    ],
)
def test_field_is_added_to_the_body_unless_it_is_there(headers: Headers, body: bytes, sent: str) -> None:
    merged = merge_fields([BODY], parse_url("https://example.com/"), headers, body)
    assert merged.body is not None
    if headers is JSON:
        assert json.loads(merged.body) == json.loads(sent)
    else:
        assert merged.body.decode() == sent
    assert merged.credentials == (() if b"own" in body else ("c1",))


def test_request_without_a_body_gets_none() -> None:
    merged = merge_fields([BODY], parse_url("https://example.com/"), JSON, None)
    assert (merged.body, merged.credentials) == (None, ())


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (JSON, b"[1]"),
        (JSON, b"{"),
        (JSON, b'{"\xff": 1}'),
        ([], b"a=1"),
        ([("content-type", "text/plain")], b"{}"),
    ],
)
def test_body_that_has_no_place_for_a_field_is_refused_without_the_value(
    headers: Headers, body: bytes
) -> None:
    with pytest.raises(FetchError, match="JSON object") as caught:
        merge_fields([BODY], parse_url("https://example.com/"), headers, body)
    assert "s3cret" not in caught.value.message


def test_large_body_gets_no_field() -> None:
    with pytest.raises(FetchError, match="at most"):
        merge_fields([BODY], parse_url("https://example.com/"), FORM, b"a" * (MAX_MERGED_BODY_BYTES + 1))


def test_repr_contains_no_value() -> None:
    assert "s3cret" not in repr([QUERY, BODY])


@pytest.mark.parametrize(
    "echoed", [ENCODED, ENCODED.lower(), "s3cret%2F%2B+%26%3Dvalue", "s3cret/%2B%20%26%3Dvalue"]
)
async def test_redirect_that_repeats_the_query_does_not_pass_the_credential_on(
    server: RecordingServer, client: FetchClient, echoed: str
) -> None:
    other = server.url(f"/b?x=1&key={echoed}", "127.0.0.1")
    server.responses["/a"] = http_response("302 Found", f"Location: {other}")
    server.responses["/b"] = http_response("302 Found", f"Location: {server.url('/c', 'localhost')}")
    session = open_session(client, Credentials(localhost=[QUERY]), (SECRET,))
    response = await session.send(make_request(server.url("/a", "localhost")))
    targets = [received.target for received in server.requests]
    assert targets == [f"/a?key={ENCODED}", "/b?x=1", f"/c?key={ENCODED}"]
    assert [entry.credentials for entry in session.request_log] == [("c1",), (), ("c1",)]
    assert [entry.path for entry in session.request_log] == ["/a", "/b", "/c"]
    assert "s3cret" not in response.url


async def test_body_that_is_sent_again_after_a_redirect_has_no_credential_of_another_host(
    server: RecordingServer, client: FetchClient
) -> None:
    server.responses["/a"] = http_response(
        "307 Temporary Redirect", f"Location: {server.url('/b', '127.0.0.1')}"
    )
    session = open_session(client, Credentials(localhost=[BODY]), (SECRET,))
    request = make_request(server.url("/a", "localhost"), *FORM, method="POST", body=b"a=1")
    await session.send(request)
    assert [received.body.decode() for received in server.requests] == [f"a=1&key={ENCODED}", "a=1"]
