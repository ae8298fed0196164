"""Turns the outcome of a wrapper into a response, with secrets redacted."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from hutch.egress.client.models import Headers, RequestLogEntry
from hutch.egress.redaction import Redactor, cached_redactor
from hutch.errors import SettingError
from hutch.protocols.abilities.fetch_tools import LastResponse
from hutch.protocols.abilities.wrapper import WrapperFailure, WrapperResponse, truncate_body
from hutch.session.json_value import decode_value, encode_value
from hutch.store.models import Ability
from hutch.text import now_rfc3339

_SET_COOKIE = "set-cookie"
_RETRY_AFTER = "retry-after"
# Matches seconds or a date. Other values of Retry-After are not sent to the caller.
_RETRY_AFTER_VALUE = re.compile(r"[A-Za-z0-9 ,:+-]{1,64}")

_LOGIN = re.compile(r"log[ _-]?[io]n|sign[ _-]?in|auth|session|token")


# --- response ---


class ResponseContent(msgspec.Struct, frozen=True):
    status: int
    body: dict[str, Any]
    headers: dict[str, str] = {}


class AbilityResponseBuilder:
    """Builds the response of one ability call. The duration is measured from the creation of the builder."""

    def __init__(self, max_chars: int) -> None:
        self.redactor: Redactor = cached_redactor(())
        """Redacts the secrets that the call uses."""
        self.about: dict[str, Any] = {}
        """Fields that every result has, besides those of the response."""
        self.executed_at = now_rfc3339()
        self._started = time.perf_counter()
        self._max_chars = max_chars

    async def success(self, response: WrapperResponse, body: Any) -> ResponseContent:
        return ResponseContent(200, {"success": True, "result": await self._result(response, body)})

    async def credentials_rejected(
        self,
        status: int,
        response: WrapperResponse | None,
        last: LastResponse | None,
        *,
        marked: bool,
        logins: list[Ability],
    ) -> ResponseContent:
        """Builds the response for credentials that the service rejected."""
        message = f"Authentication failed ({status})."
        if marked:
            message += " Credentials marked as expired."
        if logins:
            ids = ", ".join(ability.ability_id for ability in logins)
            message += f" Please authenticate using one of these login abilities: {ids}"
        offered = [
            {"id": ability.ability_id, "name": ability.name, "description": ability.description}
            for ability in logins
        ]
        expired = {"credentialsExpired": True} if marked else {}
        result = (
            self._result_without_body(status)
            if response is None
            else await self._result(response, response.body)
        )
        result["statusCode"] = status
        body = self._failure("UPSTREAM_ERROR", message, result, **expired, loginAbilities=offered)
        return ResponseContent(_response_status(status), body, _retry_after_header(status, response or last))

    async def upstream_error(self, response: WrapperResponse) -> ResponseContent:
        """Builds the response for an error status of the service."""
        message = f"The API returned {response.status} {response.reason}".rstrip()
        result = await self._result(response, response.body)
        body = self._failure("UPSTREAM_ERROR", message, result)
        return ResponseContent(
            _response_status(response.status), body, _retry_after_header(response.status, response)
        )

    async def wrapper_failed(self, failure: WrapperFailure, last: LastResponse | None) -> ResponseContent:
        """Builds the response for a wrapper that returned no response.

        Most wrappers discard a failed response and throw. In that case the status of the last response is
        used.
        """
        line = {} if failure.line is None else {"errorLine": failure.line}
        if last is None or last.status < 400 or failure.code != "WRAPPER_ERROR":
            return ResponseContent(
                500, self._failure(failure.code, failure.message, self._result_without_body(), **line)
            )
        result = {**self._result_without_body(last.status), **await self._header_fields(last.headers)}
        body = self._failure("UPSTREAM_ERROR", failure.message, result, **line)
        return ResponseContent(_response_status(last.status), body, _retry_after_header(last.status, last))

    def _failure(self, code: str, message: str, result: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {
            "success": False,
            "result": result,
            "error": self.redactor.text(message),
            "errorCode": code,
            **more,
            "executedAt": self.executed_at,
        }

    def _result_without_body(self, status: int | None = None) -> dict[str, Any]:
        known = {} if status is None else {"statusCode": status}
        return {**known, **self.about, "executedAt": self.executed_at, "executionTimeMs": self._elapsed_ms()}

    async def _result(self, response: WrapperResponse, body: Any) -> dict[str, Any]:
        truncated = truncate_body(body, self._max_chars)
        result = {"statusCode": response.status, "body": await self.redact(truncated.body)}
        result |= await self._header_fields(response.headers)
        result |= self.about
        result["executedAt"] = self.executed_at
        result["executionTimeMs"] = self._elapsed_ms()
        if truncated.original_length is not None:
            result |= {"truncated": True, "originalLength": truncated.original_length}
        return result

    async def _header_fields(self, headers: Headers) -> dict[str, Any]:
        """Joins repeated headers. Cookies are also listed individually."""
        redacted = await self.redactor.headers(headers)
        joined: dict[str, str] = {}
        for name, value in redacted:
            key = name.lower()
            joined[key] = f"{joined[key]}, {value}" if key in joined else value
        cookies = [value for name, value in redacted if name.lower() == _SET_COOKIE]
        return {"headers": joined, **({"setCookie": cookies} if cookies else {})}

    async def redact(self, body: Any) -> Any:
        """Redacts secrets in the body. Upstream responses were redacted on arrival, but a wrapper may have
        put parts of a secret together.
        """
        try:
            return await self.redactor.value(body)
        except UnicodeEncodeError:
            return decode_value(self.redactor.data(encode_value(body)))

    def _elapsed_ms(self) -> float:
        return round((time.perf_counter() - self._started) * 1000, 1)


def _response_status(status: int) -> int:
    """Returns the status for the caller: the upstream status if it is an error, otherwise 500."""
    return status if 400 <= status <= 599 else 500


def _retry_after_header(status: int, response: WrapperResponse | LastResponse | None) -> dict[str, str]:
    if response is None or status not in (429, 503):
        return {}
    retry_after = next((value for name, value in response.headers if name.lower() == _RETRY_AFTER), "")
    return {"Retry-After": retry_after} if _RETRY_AFTER_VALUE.fullmatch(retry_after) else {}


# --- rejected credentials ---


class CredentialOutcomes(msgspec.Struct, frozen=True):
    """Credentials that were rejected, with the rejecting response, and credentials that were accepted."""

    rejected: dict[str, RequestLogEntry]
    accepted: set[str]

    @property
    def last_status(self) -> int | None:
        """Status of the last rejection, or None."""
        statuses = [entry.status for entry in self.rejected.values()]
        return statuses[-1] if statuses else None


def credential_outcomes(
    request_log: Iterable[RequestLogEntry], expire_on: frozenset[int]
) -> CredentialOutcomes:
    """Sorts credentials into rejected and accepted ones. Only the last response for a credential counts, so
    401 followed by 200 is a success.
    """
    rejected: dict[str, RequestLogEntry] = {}
    accepted: set[str] = set()
    for entry in request_log:
        if entry.status is None:
            continue
        for credential in entry.credentials:
            if entry.status in expire_on:
                rejected[credential] = entry
                accepted.discard(credential)
            elif 200 <= entry.status <= 299:
                rejected.pop(credential, None)
                accepted.add(credential)
    return CredentialOutcomes(rejected, accepted)


@lru_cache(maxsize=16)
def parse_statuses(text: str) -> frozenset[int]:
    """Parses a list of statuses such as `401,403,407` or `401-499`. Raises SettingError."""
    statuses: set[int] = set()
    for part in filter(None, (item.strip() for item in text.split(","))):
        first, dash, last = (item.strip() for item in part.partition("-"))
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise _invalid_statuses(text)
        numbers = range(int(first), int(last or first) + 1)
        if not numbers or numbers[0] < 400 or numbers[-1] > 599:
            raise _invalid_statuses(text)
        statuses.update(numbers)
    return frozenset(statuses)


def _invalid_statuses(text: str) -> SettingError:
    return SettingError(
        f"ability_expire_on: expected statuses from 400 to 599, such as 401,403,407 or 401-499, got {text!r}."
    )


def login_abilities(abilities: Sequence[Ability], service_name: str) -> list[Ability]:
    """Returns the abilities that seem to log in to this service, judging by their names and descriptions.
    Leaves out abilities that need credentials themselves.
    """
    service = service_name.lower()
    return [
        ability
        for ability in abilities
        if not ability.requires_dynamic_headers
        and service in _search_text(ability)
        and _LOGIN.search(_search_text(ability))
    ]


def _search_text(ability: Ability) -> str:
    parts = (ability.ability_id, ability.name, ability.description, ability.service_name)
    return " ".join(parts).lower()
