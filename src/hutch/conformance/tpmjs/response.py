"""HTTP responses of an executor, with methods that raise CheckFailed for unexpected content."""

from __future__ import annotations

from typing import Any

import msgspec

from hutch.conformance.outcome import CheckFailed

JsonObject = dict[str, Any]

MAX_EXCERPT_CHARS = 120


class ExecutorResponse(msgspec.Struct, frozen=True):
    request: str
    """Method and path, such as `POST /execute-tool`."""
    status: int
    headers: dict[str, str]
    """Headers by lower-case name."""
    body: bytes
    seconds: float

    def expect(self, *statuses: int) -> None:
        if self.status not in statuses:
            expected = " or ".join(map(str, statuses))
            raise CheckFailed(f"{self.request}: expected {expected}, got {self.status}{self._describe()}")

    def json_object(self) -> JsonObject:
        """Decodes the body, which must be a JSON object."""
        value = self._value()
        if not isinstance(value, dict):
            raise CheckFailed(f"{self.request}: expected a JSON object, got {_brief(self.body)}")
        return value

    def execution(self) -> JsonObject:
        """Decodes the response to an execution, which may have succeeded or failed."""
        self.expect(200)
        body = self.json_object()
        if not isinstance(body.get("success"), bool):
            got = show(body.get("success"))
            raise CheckFailed(f"{self.request}: success: expected true or false, got {got}")
        return body

    def refusal(self, *statuses: int) -> JsonObject:
        """Decodes the error of a refused request. The status must be one of `statuses`."""
        self.expect(*statuses)
        return self.error()

    def error(self) -> JsonObject:
        """Decodes the error in `{"success": false, "error": {"code", "message"}}`."""
        body = self.json_object()
        if body.get("success") is not False:
            raise CheckFailed(f'{self.request}: expected "success": false, got {_brief(self.body)}')
        error = body.get("error")
        if not isinstance(error, dict):
            raise CheckFailed(f"{self.request}: error: expected an object, got {show(error)}")
        for field in ("code", "message"):
            text(error, field, f"{self.request}: error.")
        return error

    def failure(self) -> JsonObject:
        """Decodes the error of a failed execution. The status must be 200."""
        error = self.refusal(200)
        expect_duration(self)
        return error

    def expect_cors(self, origin: str | None = None) -> None:
        """Checks that web pages of `origin` may read the response. Without `origin`, checks only that the
        response has `Access-Control-Allow-Origin`.
        """
        allowed = self.headers.get("access-control-allow-origin", "")
        if not allowed:
            raise CheckFailed(f"{self.request} ({self.status}): there is no Access-Control-Allow-Origin")
        if allowed != "*" and origin is not None and allowed != origin:
            raise CheckFailed(
                f"{self.request} ({self.status}): Access-Control-Allow-Origin: expected *, got {allowed}"
            )

    def _value(self) -> Any:
        try:
            return msgspec.json.decode(self.body)
        except (msgspec.DecodeError, RecursionError) as error:
            if _is_page(self.body) or not self.body:
                reason = _brief(self.body)
            else:
                reason = f"{error}: {_brief(self.body)}"
            raise CheckFailed(f"{self.request}: the answer ({self.status}) is not JSON: {reason}") from None

    def _describe(self) -> str:
        """Describes the response for a message about unexpected content."""
        if "location" in self.headers and 300 <= self.status < 400:
            return f", to {self.headers['location']}; redirects are not followed, give that address"
        try:
            error = self.json_object().get("error")
        except CheckFailed:
            return f": {_brief(self.body)}"
        if isinstance(error, dict):
            return f" ({show(error.get('code'))}: {show(error.get('message'))})"
        return f": {_brief(self.body)}"


def text(body: JsonObject, field: str, prefix: str = "") -> str:
    """Returns a field, which must be a non-empty string."""
    value = body.get(field)
    if not isinstance(value, str) or not value:
        got = "nothing" if field not in body else show(value)
        raise CheckFailed(f"{prefix}{field}: expected a string, got {got}")
    return value


def expect_duration(response: ExecutorResponse) -> None:
    """Checks that the response has a valid `executionTimeMs`."""
    body = response.json_object()
    value = body.get("executionTimeMs")
    if not is_natural(value):
        got = "nothing" if "executionTimeMs" not in body else show(value)
        raise CheckFailed(f"{response.request}: executionTimeMs: expected an integer from 0, got {got}")


def is_natural(value: object) -> bool:
    """Returns True if a value is a non-negative integer, which JSON may also write as 12.0."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return value >= 0 and value == value // 1


def show(value: object) -> str:
    """Formats a JSON value for a message."""
    return _brief(msgspec.json.encode(value))


def _is_page(raw: bytes) -> bool:
    return raw[:MAX_EXCERPT_CHARS].lstrip().lower().startswith((b"<!doctype", b"<html"))


def _brief(raw: bytes) -> str:
    if _is_page(raw):
        return "an HTML page"
    if not raw:
        return "an empty body"
    shown = " ".join(raw[: 4 * MAX_EXCERPT_CHARS].decode(errors="replace").split())
    return shown if len(shown) <= MAX_EXCERPT_CHARS else f"{shown[:MAX_EXCERPT_CHARS]}…"
