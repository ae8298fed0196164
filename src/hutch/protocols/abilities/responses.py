"""HTTP responses: abilities without code, credentials without values, and errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.responses import Response

from hutch.http.errors import ERROR_KINDS, ApiError, ErrorKind
from hutch.protocols.abilities.definition import decode_definition
from hutch.protocols.abilities.headers import ability_domain
from hutch.session.json_value import encode_value
from hutch.store.models import Ability, Credential, RunRow
from hutch.text import now_rfc3339

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


def error_body(code: str, message: str, **more: Any) -> dict[str, Any]:
    """Builds the error body of the specification. `errorCode` is an addition that tells Hutch's errors from
    upstream errors.
    """
    return {"success": False, "error": message, "errorCode": code, **more, "executedAt": now_rfc3339()}


def error_response(error: ApiError) -> Response:
    kind = ABILITY_ERRORS[error.kind]
    return json_response(error_body(kind.code, error.message, **error.extra), kind.status, error.headers)


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


def ability_json(row: Ability, user_id: str) -> dict[str, Any]:
    """Converts an ability to JSON, without the code and the values of static headers."""
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
        "dependency_order": definition.dependency_order,
        "produces": {each.key: {"from": each.path, "kind": each.kind} for each in definition.produces},
        "version": row.version,
        "shared": row.shared,
        "own": row.owner_id == user_id,
        "created_at": row.created_at,
        "updated_at": row.updated_at,
    }
    # The public client reads camel case, and one field under another name.
    renamed = {camel_case(name): value for name, value in fields.items()}
    return {
        **fields,
        **renamed,
        "dynamicHeadersRequired": definition.requires_dynamic_headers,
        "domain": ability_domain(definition),
    }


def is_under(domain: str | None, parents: Sequence[str]) -> bool:
    """Returns True if a domain is one of `parents` or below one."""
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


def run_json(row: RunRow) -> dict[str, Any]:
    return {
        "runId": row.run_id,
        "door": row.protocol,
        "label": row.label,
        "startedAt": row.started_at,
        "durationMs": row.duration_ms,
        "outcome": row.outcome,
    }
