"""One HTTP answer, and what can be asked of it; what is not as asked is Failed with the reason."""

from __future__ import annotations

from typing import Any

import msgspec

from hutch.cli.compliance.outcome import Failed

Object = dict[str, Any]

# Enough of what the other side said to recognize it.
EXCERPT = 120


class Answer(msgspec.Struct, frozen=True):
    """What came back."""

    request: str
    """Of what: `POST /execute-tool`."""
    status: int
    headers: dict[str, str]
    """By their names in lower case."""
    body: bytes
    seconds: float

    def expect(self, *statuses: int) -> None:
        if self.status not in statuses:
            wanted = " or ".join(map(str, statuses))
            raise Failed(f"{self.request}: expected {wanted}, got {self.status}{self._told()}")

    def object(self) -> Object:
        """The body, which must be a JSON object."""
        value = self._value()
        if not isinstance(value, dict):
            raise Failed(f"{self.request}: expected a JSON object, got {_brief(self.body)}")
        return value

    def execution(self) -> Object:
        """The answer to an execution, whether it succeeded or not."""
        self.expect(200)
        body = self.object()
        if not isinstance(body.get("success"), bool):
            got = show(body.get("success"))
            raise Failed(f"{self.request}: success: expected true or false, got {got}")
        return body

    def refusal(self, *statuses: int) -> Object:
        """The error of a request that was refused as the specification has it, with one of these statuses."""
        self.expect(*statuses)
        return self.error()

    def error(self) -> Object:
        """The error of `{"success": false, "error": {"code", "message"}}`."""
        body = self.object()
        if body.get("success") is not False:
            raise Failed(f'{self.request}: expected "success": false, got {_brief(self.body)}')
        error = body.get("error")
        if not isinstance(error, dict):
            raise Failed(f"{self.request}: error: expected an object, got {show(error)}")
        for field in ("code", "message"):
            text(error, field, f"{self.request}: error.")
        return error

    def failure(self) -> Object:
        """The error of an execution that failed, which is answered with 200."""
        error = self.refusal(200)
        milliseconds(self)
        return error

    def allows(self, origin: str | None = None) -> None:
        """Whether pages of this origin, or of any, may read it."""
        allowed = self.headers.get("access-control-allow-origin", "")
        if not allowed:
            raise Failed(f"{self.request} ({self.status}): there is no Access-Control-Allow-Origin")
        if allowed != "*" and origin is not None and allowed != origin:
            raise Failed(
                f"{self.request} ({self.status}): Access-Control-Allow-Origin: expected *, got {allowed}"
            )

    def _value(self) -> Any:
        try:
            return msgspec.json.decode(self.body)
        except (msgspec.DecodeError, RecursionError) as error:
            if _is_page(self.body) or not self.body:
                why = _brief(self.body)
            else:
                why = f"{error}: {_brief(self.body)}"
            raise Failed(f"{self.request}: the answer ({self.status}) is no JSON: {why}") from None

    def _told(self) -> str:
        """What an unwelcome answer says of itself."""
        if "location" in self.headers and 300 <= self.status < 400:
            return f", to {self.headers['location']}; redirects are not followed, give that address"
        try:
            error = self.object().get("error")
        except Failed:
            return f": {_brief(self.body)}"
        if isinstance(error, dict):
            return f" ({show(error.get('code'))}: {show(error.get('message'))})"
        return f": {_brief(self.body)}"


def text(body: Object, field: str, where: str = "") -> str:
    """A field that must be a string and not an empty one."""
    value = body.get(field)
    if not isinstance(value, str) or not value:
        got = "nothing" if field not in body else show(value)
        raise Failed(f"{where}{field}: expected a string, got {got}")
    return value


def milliseconds(answer: Answer) -> None:
    """`executionTimeMs` is an integer from 0."""
    body = answer.object()
    value = body.get("executionTimeMs")
    if not is_whole(value):
        got = "nothing" if "executionTimeMs" not in body else show(value)
        raise Failed(f"{answer.request}: executionTimeMs: expected an integer from 0, got {got}")


def is_whole(value: object) -> bool:
    """Whether it is an integer from 0, which JSON may also write as 12.0."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return value >= 0 and value == value // 1


def show(value: object) -> str:
    """A JSON value, briefly."""
    return _brief(msgspec.json.encode(value))


def _is_page(raw: bytes) -> bool:
    return raw[:EXCERPT].lstrip().lower().startswith((b"<!doctype", b"<html"))


def _brief(raw: bytes) -> str:
    if _is_page(raw):
        return "an HTML page"
    if not raw:
        return "an empty body"
    shown = " ".join(raw[: 4 * EXCERPT].decode(errors="replace").split())
    return shown if len(shown) <= EXCERPT else f"{shown[:EXCERPT]}…"
