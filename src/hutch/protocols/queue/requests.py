"""Bodies of requests for scripts, schedules and triggers."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec

from hutch.http.errors import ApiError
from hutch.queue.models import MAX_ATTEMPTS, Webhook
from hutch.queue.requests import parse_webhook
from hutch.queue.webhooks.target import TargetPolicy
from hutch.store.tables.queue.schedules import MissedPolicy, ScriptEngine, SignatureScheme, TargetKind

T = TypeVar("T")

Attempts = Annotated[int, msgspec.Meta(ge=1, le=MAX_ATTEMPTS)]


class ScriptBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    code: str
    engine: ScriptEngine = "script"


class _StarterBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    flow: str | None = None
    script: str | None = None
    inputs: dict[str, Any] = {}
    attempts: Attempts | None = None
    webhook: Any = None

    @property
    def target(self) -> tuple[TargetKind, str]:
        """Raises ApiError."""
        if (self.flow is None) == (self.script is None):
            raise ApiError("invalid_request", "flow: expected either flow or script")
        return ("flow", self.flow) if self.flow is not None else ("script", str(self.script))

    def target_webhook(self, targets: TargetPolicy) -> Webhook | None:
        """Raises ApiError."""
        return None if self.webhook is None else parse_webhook(self.webhook, "webhook", targets)


class ScheduleBody(_StarterBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    cron: str
    timezone: str = "UTC"
    missed: MissedPolicy = "skip"


class TriggerBody(_StarterBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    signature: SignatureScheme = "none"
    secret: str | None = None
    map: dict[str, str] = msgspec.field(default_factory=dict)


class PauseBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    paused: bool


def convert(body: dict[str, Any], kind: type[T]) -> T:
    """Raises ApiError."""
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as error:
        raise ApiError("invalid_request", f"body: {error}") from None
