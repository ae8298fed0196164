"""What the door says: abilities without their code, credentials without their values, and failures."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from starlette.responses import Response

from hutch.doors import failing
from hutch.doors.abilities import documents
from hutch.session.jsonvalue import encode_value
from hutch.store.rows import Ability, Credential, RunRow

STATUS = {
    # What a request is refused for: nothing has happened.
    "INVALID_REQUEST": 400,
    "MISSING_DEPENDENCIES": 400,
    "MISSING_CREDENTIALS": 400,
    "UNAUTHORIZED": 401,
    "FORBIDDEN": 403,
    "NOT_FOUND": 404,
    "METHOD_NOT_ALLOWED": 405,
    "CONFLICT": 409,
    "PAYLOAD_TOO_LARGE": 413,
    "UNSUPPORTED_MEDIA_TYPE": 415,
    "RATE_LIMITED": 429,
    "INTERNAL_ERROR": 500,
    "BUSY": 503,
    "UNAVAILABLE": 503,
}
"""Failures that are ours. What an ability's API answers has its own status, with `UPSTREAM_ERROR`."""
REFUSED = {401: "UNAUTHORIZED", 403: "FORBIDDEN", 503: "UNAVAILABLE"}
CODES = (*STATUS, "UPSTREAM_ERROR", "WRAPPER_ERROR", "TIMEOUT", "MEMORY_LIMIT", "EGRESS_REFUSED")


class Failed(failing.Failed):
    """In the shape of this door."""

    def response(self) -> Response:
        body = failure(self.code, self.message, **self.more)
        return json_answer(body, STATUS[self.code], self.headers)


def now() -> str:
    """This moment, as `executedAt` has it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def failure(code: str, message: str, **more: Any) -> dict[str, Any]:
    """The specification's shape of a failure, with a code beside it that no upstream could have said."""
    return {"success": False, "error": message, "errorCode": code, **more, "executedAt": now()}


def not_found(ability_id: str) -> Failed:
    """The same for what nobody has and for what is another's."""
    return Failed("NOT_FOUND", f"Ability not found: {ability_id}")


def json_answer(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(encode_value(body), status, headers, "application/json")


def success(status: int = 200, /, **fields: Any) -> Response:
    return json_answer({"success": True, **fields}, status)


# --- what is kept ---


def ability(row: Ability, user_id: str) -> dict[str, Any]:
    """What its user may know: nothing of its code, and of its static headers the names alone."""
    document = documents.decode(row.document)
    return {
        "ability_id": document.ability_id,
        "ability_name": document.ability_name,
        "service_name": document.service_name,
        "description": document.description,
        "input_schema": document.input_schema,
        "static_header_keys": document.static_header_keys,
        "dynamic_header_keys": document.dynamic_header_keys,
        "requires_dynamic_headers": document.requires_dynamic_headers,
        "dependency_order": document.dependency_order,
        "version": row.version,
        "shared": row.shared,
        "own": row.owner_id == user_id,
        "created_at": row.created_at,
        "updated_at": row.updated_at,
    }


def credential(row: Credential) -> dict[str, Any]:
    """All but the value."""
    told: dict[str, Any] = {
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
        told |= {"expiredAt": row.expired_at, "cause": row.cause}
    return told


def run(row: RunRow) -> dict[str, Any]:
    return {
        "runId": row.run_id,
        "door": row.door,
        "label": row.label,
        "startedAt": row.started_at,
        "durationMs": row.duration_ms,
        "outcome": row.outcome,
    }
