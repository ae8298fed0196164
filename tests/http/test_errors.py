"""Conversion of exceptions to errors that may be sent to callers."""

from __future__ import annotations

import logging

import pytest

from hutch.errors import (
    AlreadyExists,
    Busy,
    HutchError,
    InvalidExecution,
    InvalidInput,
    InvalidPackage,
    InvalidText,
    RateLimited,
    StoreError,
    VaultError,
)
from hutch.http.errors import ERROR_KINDS, ApiError, Refusal, method_not_allowed, to_api_error

LOGGER = logging.getLogger("hutch.test")
SECRET = "/home/operator/hutch.db"


@pytest.mark.parametrize(
    ("error", "kind", "status", "message"),
    [
        (InvalidExecution("code", "expected text"), "invalid_request", 400, "code: expected text"),
        (InvalidInput("domain", "is empty"), "invalid_request", 400, "domain: is empty"),
        (InvalidPackage("version", "is unknown"), "invalid_request", 400, "version: is unknown"),
        (InvalidText("name: has a NUL"), "invalid_request", 400, "name: has a NUL"),
        (AlreadyExists("x exists."), "conflict", 409, "x exists."),
    ],
)
def test_errors_of_the_caller_are_shown_and_not_logged(
    error: Exception, kind: str, status: int, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    converted = to_api_error(error, LOGGER)
    assert (converted.kind, converted.message) == (kind, message)
    assert ERROR_KINDS[kind].status == status
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("error", "kind", "seconds"),
    [
        (Busy("Full.", retry_after=7.2), "busy", "8"),
        (RateLimited("Too many.", retry_after=0.1), "rate_limited", "1"),
        (StoreError(SECRET), "unavailable", "1"),
    ],
)
def test_temporary_errors_have_retry_after(error: Exception, kind: str, seconds: str) -> None:
    converted = to_api_error(error, LOGGER)
    assert (converted.kind, converted.headers) == (kind, {"Retry-After": seconds})


@pytest.mark.parametrize(
    "error", [StoreError(SECRET), VaultError(SECRET), HutchError(SECRET), OSError(SECRET)]
)
def test_details_of_internal_errors_are_logged_and_hidden(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    converted = to_api_error(error, LOGGER)
    assert converted.kind == ("unavailable" if isinstance(error, StoreError) else "internal")
    assert SECRET not in converted.message
    assert SECRET in caplog.text


def test_api_error_stays_as_it_is() -> None:
    error = ApiError("not_found", "There is no x", name="x")
    assert to_api_error(error, LOGGER) is error
    assert (error.extra, str(error)) == ({"name": "x"}, "There is no x")


def test_method_not_allowed_names_the_allowed_methods() -> None:
    error = method_not_allowed("/x", "PATCH", ["PUT", "GET"])
    assert (error.message, error.headers) == (
        "/x does not take PATCH; it takes GET, PUT",
        {"Allow": "GET, PUT"},
    )


@pytest.mark.parametrize(
    ("status", "kind"), [(401, "unauthorized"), (403, "forbidden"), (503, "unavailable")]
)
def test_refusal_becomes_an_error_with_its_status(status: int, kind: str) -> None:
    error = Refusal(status, "no", {"X-Y": "z"}).error()
    assert (error.kind, error.message, error.headers) == (kind, "no", {"X-Y": "z"})
    assert ERROR_KINDS[kind].status == status
