"""What a caller is told of a run: the specification's shapes, with nothing in them that was a secret."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from hutch.doors.abilities import answers, bodies
from hutch.doors.abilities.upstream import Last
from hutch.doors.abilities.wrapper import Failure, Response
from hutch.egress.fetch import Headers
from hutch.egress.redaction import Redactor, redactor_of
from hutch.session.jsonvalue import decode_value, encode_value
from hutch.store.rows import Ability

_COOKIE = "set-cookie"
_RETRY = "retry-after"
# Seconds or a date; nothing else is passed on.
_WHEN = re.compile(r"[A-Za-z0-9 ,:+-]{1,64}")


class Ended(msgspec.Struct, frozen=True):
    """Status, body and headers of the answer."""

    status: int
    body: dict[str, Any]
    headers: dict[str, str] = {}


class Ending:
    """The end of one call that has begun now."""

    def __init__(self, most_chars: int) -> None:
        self.redactor: Redactor = redactor_of(())
        """Of the secrets that the call has used."""
        self.executed_at = answers.now()
        self._began = time.perf_counter()
        self._most_chars = most_chars

    def succeeded(self, response: Response, body: Any) -> Ended:
        return Ended(200, {"success": True, "result": self._result(response, body)})

    def refused(
        self,
        status: int,
        response: Response | None,
        last: Last | None,
        *,
        marked: bool,
        logins: list[Ability],
    ) -> Ended:
        """The service does not know whoever asks, or not any more."""
        message = f"Authentication failed ({status})."
        if marked:
            message += " Credentials marked as expired."
        if logins:
            ids = ", ".join(each.ability_id for each in logins)
            message += f" Please authenticate using one of these login abilities: {ids}"
        offered = [
            {"id": each.ability_id, "name": each.name, "description": each.description} for each in logins
        ]
        expired = {"credentialsExpired": True} if marked else {}
        result = self._empty(status) if response is None else self._result(response, response.body)
        result["statusCode"] = status
        body = self._failure("UPSTREAM_ERROR", message, result, **expired, loginAbilities=offered)
        return Ended(_own(status), body, _passed_on(status, response or last))

    def unhappy(self, response: Response) -> Ended:
        """The service answered, but not with success."""
        message = f"The API answered {response.status} {response.reason}".rstrip()
        result = self._result(response, response.body)
        body = self._failure("UPSTREAM_ERROR", message, result)
        return Ended(_own(response.status), body, _passed_on(response.status, response))

    def failed(self, failure: Failure, last: Last | None) -> Ended:
        """There is no response. Most wrappers throw away one that is no success: then its status counts."""
        line = {} if failure.line is None else {"errorLine": failure.line}
        if last is None or last.status < 400 or failure.code != "WRAPPER_ERROR":
            return Ended(500, self._failure(failure.code, failure.message, self._empty(), **line))
        result = {**self._empty(last.status), **self._headers(last.headers)}
        body = self._failure("UPSTREAM_ERROR", failure.message, result, **line)
        return Ended(_own(last.status), body, _passed_on(last.status, last))

    def _failure(self, code: str, message: str, result: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {
            "success": False,
            "result": result,
            "error": self.redactor.text(message),
            "errorCode": code,
            **more,
            "executedAt": self.executed_at,
        }

    def _empty(self, status: int | None = None) -> dict[str, Any]:
        known = {} if status is None else {"statusCode": status}
        return {**known, "executedAt": self.executed_at, "executionTimeMs": self._milliseconds()}

    def _result(self, response: Response, body: Any) -> dict[str, Any]:
        shown = bodies.cut(body, self._most_chars)
        result = {"statusCode": response.status, "body": self._scrubbed(shown.body)}
        result |= self._headers(response.headers)
        result["executedAt"] = self.executed_at
        result["executionTimeMs"] = self._milliseconds()
        if shown.original_length is not None:
            result |= {"truncated": True, "originalLength": shown.original_length}
        return result

    def _headers(self, headers: Headers) -> dict[str, Any]:
        """One text for each name; where several cookies are set, they are listed besides."""
        given = self.redactor.headers(headers)
        joined: dict[str, str] = {}
        for name, value in given:
            key = name.lower()
            joined[key] = f"{joined[key]}, {value}" if key in joined else value
        cookies = [value for name, value in given if name.lower() == _COOKIE]
        return {"headers": joined, **({"setCookie": cookies} if cookies else {})}

    def _scrubbed(self, body: Any) -> Any:
        """Upstream's answer was scrubbed as it came; a wrapper may have put parts of it together."""
        try:
            return self.redactor.value(body)
        except UnicodeEncodeError:
            return decode_value(self.redactor.data(encode_value(body)))

    def _milliseconds(self) -> float:
        return round((time.perf_counter() - self._began) * 1000, 1)


def _own(status: int) -> int:
    """The API's own status: that of the service, where it tells of a failure."""
    return status if 400 <= status <= 599 else 500


def _passed_on(status: int, answered: Response | Last | None) -> dict[str, str]:
    if answered is None or status not in (429, 503):
        return {}
    when = next((value for name, value in answered.headers if name.lower() == _RETRY), "")
    return {"Retry-After": when} if _WHEN.fullmatch(when) else {}


def login_first(found: Sequence[Ability], service_name: str) -> list[Ability]:
    """Of what a search found, what logs in to this service and needs no login itself."""
    service = service_name.lower()
    return [
        each
        for each in found
        if not each.requires_dynamic_headers and service in _text(each) and _LOGIN.search(_text(each))
    ]


_LOGIN = re.compile(r"log[ _-]?[io]n|sign[ _-]?in|auth|session|token")


def _text(ability: Ability) -> str:
    said = (ability.ability_id, ability.name, ability.description, ability.service_name)
    return " ".join(said).lower()
