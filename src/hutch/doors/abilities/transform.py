"""A caller's transform, run on a body in an execution of its own."""

from __future__ import annotations

from typing import Any

from hutch.doors.abilities import bodies
from hutch.doors.abilities.running import Running
from hutch.errors import HutchError
from hutch.session.jsonvalue import NotJsonSafe
from hutch.session.messages import Job, WireError


async def apply(code: str, body: Any, running: Running) -> Any:
    """What the transform made of the body, or what went wrong, beside the body as it was."""
    settings = running.kernel.settings
    try:
        result = await running.run(
            code,
            Job("transform", bodies.json_text(body).decode()),
            "transform",
            timeout_ms=settings.transform_timeout_ms,
            memory_bytes=settings.ability_memory_bytes,
        )
    except (HutchError, NotJsonSafe) as error:
        return _failed(str(error), body)
    if result.error is not None:
        return _failed(_reason(result.error, settings.transform_timeout_ms), body)
    return result.result


def _failed(message: str, body: Any) -> dict[str, Any]:
    return {"_transform_error": message, "_original_data": body}


def _reason(error: WireError, timeout_ms: float) -> str:
    if error.code == "timeout":
        return f"The transform did not finish within {timeout_ms / 1000:g} s"
    return error.message or "The transform failed"
