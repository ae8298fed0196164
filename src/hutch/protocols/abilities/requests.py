"""Parses request bodies and search queries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from hutch.http.errors import ApiError
from hutch.http.requests import MAX_TEXT_CHARS, query_text
from hutch.problems import Problem, ProblemList
from hutch.session.json_value import kind_of
from hutch.text import cut

MAX_SEARCH_RESULTS = 100
MAX_PAGE_SIZE = 1_000
MAX_VALUES = 100_000
"""Maximum number of values in a body. Decoding more takes too long."""
CREDENTIAL_KEY_HEADER = "x-credential-key"


class ExecuteBody(NamedTuple):
    """Body of an execute request."""

    params: dict[str, Any]
    transform_code: str | None = None


class CredentialBody(NamedTuple):
    """Body of a request to store a credential. `repr` omits the value."""

    domain: str
    kind: str
    key: str
    value: str
    encrypted: bool

    def __repr__(self) -> str:
        return f"CredentialBody({self.domain!r})"


MAX_STREAMED_CREDENTIALS = 200
MAX_NAMES = 200
"""Maximum number of users, and of groups, in one request to share an ability."""

_EXECUTE_FIELDS = ("params", "transformCode")


def parse_execute(body: dict[str, Any]) -> ExecuteBody:
    """Parses the body of an execute request. Raises ApiError with the problems of the body."""
    problems = ProblemList(_invalid_request)
    params, code = body.get("params"), body.get("transformCode")
    if params is not None and not isinstance(params, dict):
        problems.add("params", f"expected an object, got {kind_of(params)}")
    # Reject misplaced parameters, because the ability would run without them.
    if params is None and (other := next((name for name in body if name not in _EXECUTE_FIELDS), None)):
        problems.add("params", f"expected an object, got nothing; {cut(other, 80)!r} belongs inside it")
    if code is not None and not isinstance(code, str):
        problems.add("transformCode", f"expected a string, got {kind_of(code)}")
    problems.raise_if_any()
    return ExecuteBody(params or {}, code or None)


_CREDENTIAL_FIELDS = ("domain", "credentialType", "credentialKey", "value", "encryptedValue")


def parse_credential(body: dict[str, Any]) -> CredentialBody:
    """Parses the body of a credential. Raises ApiError with the problems. The problems never contain the
    credential's value.
    """
    problems = ProblemList(_invalid_request)
    for field in _CREDENTIAL_FIELDS:
        if body.get(field) is not None and not isinstance(body[field], str):
            problems.add(field, f"expected a string, got {kind_of(body[field])}")
    for field in ("domain", "credentialKey"):
        if body.get(field) is None:
            problems.add(field, "expected a string, got nothing")
    fields = [field for field in ("value", "encryptedValue") if body.get(field) is not None]
    if len(fields) != 1:
        got = "both" if fields else "neither"
        problems.add("value", f"expected either value or encryptedValue, got {got}")
    problems.raise_if_any()
    return CredentialBody(
        domain=body["domain"],
        kind=body.get("credentialType") or "header",
        key=body["credentialKey"],
        value=body[fields[0]],
        encrypted=fields[0] == "encryptedValue",
    )


class ShareBody(NamedTuple):
    """Names of the users and groups to share an ability with."""

    users: list[str]
    groups: list[str]


def parse_share(body: dict[str, Any]) -> ShareBody:
    """Parses the body of a request to share an ability. Raises ApiError with the problems of the body."""
    problems = ProblemList(_invalid_request)
    names: dict[str, list[str]] = {"users": [], "groups": []}
    for field in names:
        value = body.get(field)
        if value is None:
            continue
        if not isinstance(value, list) or len(value) > MAX_NAMES:
            problems.add(field, f"expected a list of at most {MAX_NAMES} names")
        elif others := [item for item in value if not isinstance(item, str)]:
            problems.add(field, f"expected names, got {kind_of(others[0])}")
        else:
            names[field] = list(dict.fromkeys(value))
    if not len(problems) and not any(names.values()):
        problems.add("users", "expected the name of at least one user or group, got nothing")
    problems.raise_if_any()
    return ShareBody(**names)


def _invalid_request(problems: list[Problem]) -> ApiError:
    return invalid_request([str(problem) for problem in problems])


def parse_credential_stream(body: dict[str, Any]) -> list[CredentialBody]:
    """Parses the credentials of one domain, with the public client's field names. Raises ApiError."""
    entries = body.get("credentials")
    if not isinstance(entries, list) or not 0 < len(entries) <= MAX_STREAMED_CREDENTIALS:
        problem = f"credentials: expected a list of 1 to {MAX_STREAMED_CREDENTIALS} objects"
        raise invalid_request([problem])
    parsed = []
    for index, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise invalid_request([f"credentials[{index}]: expected an object, got {kind_of(entry)}"])
        fields = {"domain": body.get("domain"), **entry}
        fields |= {"credentialType": entry.get("type"), "credentialKey": entry.get("key")}
        try:
            parsed.append(parse_credential(fields))
        except ApiError as error:
            raise invalid_request(
                [f"credentials[{index}].{text}" for text in error.extra["problems"]]
            ) from None
    return parsed


def search_domains(query: Mapping[str, str]) -> list[str]:
    """Returns the domains that a search is restricted to, or an empty list."""
    text = query_text(query, "domains").lower()
    return [domain for part in text.split(",") if (domain := part.strip())]


def invalid_request(problems: list[str]) -> ApiError:
    return ApiError("invalid_request", "; ".join(problems), problems=problems)


def search_query(query: Mapping[str, str]) -> str:
    text = query.get("q", "").strip()
    if not text:
        raise ApiError("invalid_request", "q: expected a search text")
    return text[:MAX_TEXT_CHARS]
