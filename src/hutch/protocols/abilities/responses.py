"""HTTP responses: abilities without code, credentials without values, and errors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from hutch.http.errors import ERROR_KINDS, ApiError, ErrorKind
from hutch.protocols.abilities.definition import decode_definition
from hutch.protocols.abilities.headers import ability_domain
from hutch.session.json_value import encode_value
from hutch.store.models import Ability, AbilityShare, Credential, RunRow
from hutch.text import now_rfc3339

if TYPE_CHECKING:
    from hutch.store.store import Store

ABILITY_ERRORS = {
    **ERROR_KINDS,
    "missing_dependencies": ErrorKind(400, "MISSING_DEPENDENCIES"),
    "missing_credentials": ErrorKind(400, "MISSING_CREDENTIALS"),
}
"""Hutch's own errors. If the ability's API fails, the error is `UPSTREAM_ERROR` with the status of that API.
"""
ERROR_CODES = (
    *(kind.code for kind in ABILITY_ERRORS.values()),
    "UPSTREAM_ERROR",
    "WRAPPER_ERROR",
    "TIMEOUT",
    "MEMORY_LIMIT",
    "EGRESS_REFUSED",
)


def execution_error(error: ApiError) -> dict[str, Any]:
    """Builds the error body that the specification fixes for executions. `errorCode` is an addition of Hutch.
    It distinguishes Hutch's errors from upstream errors.
    """
    code = ABILITY_ERRORS[error.kind].code
    more = _more_fields(error)
    return {"success": False, "error": error.message, "errorCode": code, **more, "executedAt": now_rfc3339()}


def execution_error_response(error: ApiError) -> Response:
    return json_response(execution_error(error), ABILITY_ERRORS[error.kind].status, error.headers)


def error_response(error: ApiError) -> Response:
    """Builds the error response of all routes except the route that executes abilities. Most of Hutch's
    routes use this format.
    """
    kind = ABILITY_ERRORS[error.kind]
    body = {"code": kind.code, "message": error.message, **_more_fields(error)}
    return json_response({"success": False, "error": body}, kind.status, error.headers)


def _more_fields(error: ApiError) -> dict[str, Any]:
    """Returns the additional fields of an error. An `invalid_request` error always has `problems`."""
    problems = {"problems": [error.message]} if error.kind == "invalid_request" else {}
    return {**problems, **error.extra}


def not_found(ability_id: str) -> ApiError:
    """Builds the error for a missing ability. It is also used for abilities of other users, so that ids
    cannot be probed.
    """
    return ApiError("not_found", f"Ability not found: {ability_id}")


def json_response(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(encode_value(body), status, headers, "application/json")


def success(status: int = 200, /, **fields: Any) -> Response:
    return json_response({"success": True, **fields}, status)


# --- database rows as JSON ---


def ability_json(row: Ability, user_id: str, owner: str | None = None) -> dict[str, Any]:
    """Converts an ability to JSON, without the code and the values of static headers. `owner` is the name of
    the owner if another user shares the ability with the caller, otherwise None.
    """
    definition = decode_definition(row.document)
    fields = {
        "ability_id": definition.ability_id,
        "ability_name": definition.ability_name,
        "service_name": definition.service_name,
        "description": definition.description,
        "input_schema": definition.input_schema,
        "static_header_keys": definition.static_header_keys,
        "dynamic_header_keys": definition.dynamic_header_keys,
        "requires_dynamic_headers": definition.requires_dynamic_headers,
        "credential_kinds": definition.credential_kinds,
        "dependency_order": definition.dependency_order,
        "produces": {each.key: {"from": each.path, "kind": each.kind} for each in definition.produces},
        "version": row.version,
        "shared": row.shared,
        "shared_by": owner,
        "own": row.owner_id == user_id,
        "created_at": row.created_at,
        "updated_at": row.updated_at,
    }
    # Repeat the fields under the names that the public client reads.
    renamed = {camel_case(name): value for name, value in fields.items()}
    return {
        **fields,
        **renamed,
        "dynamicHeadersRequired": definition.requires_dynamic_headers,
        "domain": ability_domain(definition),
    }


def is_under(domain: str | None, parents: Sequence[str]) -> bool:
    """Returns True if a domain is one of `parents` or a subdomain of one."""
    return domain is not None and any(domain == each or domain.endswith(f".{each}") for each in parents)


def camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


def credential_json(row: Credential) -> dict[str, Any]:
    """Converts a credential to JSON, without the value."""
    result: dict[str, Any] = {
        "credentialId": row.id,
        "domain": row.domain,
        "credentialType": row.kind,
        "credentialKey": row.key,
        "hint": row.hint,
        "state": row.state,
        "createdAt": row.created_at,
        "updatedAt": row.updated_at,
    }
    if row.state == "expired":
        result |= {"expiredAt": row.expired_at, "cause": row.cause}
    return result


def share_json(share: AbilityShare) -> dict[str, Any]:
    name = {"user": share.user} if share.user is not None else {"group": share.group}
    return {**name, "createdAt": share.created_at}


async def shared_by(rows: Iterable[Ability], user_id: str, store: Store) -> dict[str, str]:
    """Returns the names of the owners who share abilities with this user, by their ids."""
    return await store.users.names(row.owner_id for row in rows if row.owner_id != user_id and not row.shared)


def run_json(row: RunRow) -> dict[str, Any]:
    return {
        "runId": row.run_id,
        "door": row.protocol,
        "label": row.label,
        "startedAt": row.created_at,
        "durationMs": row.duration_ms,
        "outcome": row.outcome,
    }
