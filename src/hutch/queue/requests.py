"""Parts of asynchronous requests that all protocols share: options, callers and responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hutch.errors import InvalidInput
from hutch.http.errors import ApiError
from hutch.problems import Problem, ProblemList, describe_value
from hutch.queue.models import (
    MAX_ATTEMPTS,
    MAX_DELAY_MS,
    MAX_KEY_CHARS,
    MAX_PRIORITY,
    KeyInUse,
    QueueCaller,
    RunOptions,
    Webhook,
)
from hutch.queue.webhooks.target import TargetPolicy
from hutch.text import is_storable_text

if TYPE_CHECKING:
    from hutch.http.auth import Caller

IDEMPOTENCY_HEADER = "Idempotency-Key"
REPLAYED_HEADER = "Idempotency-Replayed"
_RANGES = {
    "priority": (-MAX_PRIORITY, MAX_PRIORITY),
    "delay_ms": (0, MAX_DELAY_MS),
    "deadline_ms": (1, MAX_DELAY_MS),
    "attempts": (1, MAX_ATTEMPTS),
}
OPTION_NAMES = (*_RANGES, "idempotency_key", "webhook")


def queue_caller(caller: Caller) -> QueueCaller:
    identity = caller.identity
    if identity is None:
        return QueueCaller(caller.owner)
    return QueueCaller(caller.owner, identity.key.id, tuple(identity.key.scopes))


def parse_options(
    body: Mapping[str, Any],
    headers: Mapping[str, str],
    targets: TargetPolicy,
    names: Mapping[str, str] | None = None,
) -> RunOptions:
    """Reads the options of an asynchronous run. `names` maps the options to the names that their fields have
    in the protocol. Raises ApiError with all problems.
    """
    problems = ProblemList(_invalid)
    shown = {name: (names or {}).get(name, name) for name in OPTION_NAMES}
    values: dict[str, Any] = {}
    for name, (minimum, maximum) in _RANGES.items():
        value = body.get(shown[name])
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
            got = describe_value(value)
            problems.add(shown[name], f"expected an integer from {minimum} to {maximum}, got {got}")
        else:
            values[name] = value
    key = body.get(shown["idempotency_key"], headers.get(IDEMPOTENCY_HEADER.lower()))
    if key is not None:
        if not isinstance(key, str) or not 1 <= len(key) <= MAX_KEY_CHARS or not is_storable_text(key):
            message = f"expected 1 to {MAX_KEY_CHARS} characters, got {describe_value(key)}"
            problems.add(shown["idempotency_key"], message)
        else:
            values["idempotency_key"] = key
    if (webhook := body.get(shown["webhook"])) is not None:
        try:
            values["webhook"] = parse_webhook(webhook, shown["webhook"], targets)
        except ApiError as error:
            field, _, message = error.message.partition(": ")
            problems.add(field, message)
    problems.raise_if_any()
    return RunOptions(**values)


def parse_webhook(value: object, name: str, targets: TargetPolicy) -> Webhook:
    """Reads a webhook: a URL, or an object with `url` and `secret`. Raises ApiError."""
    fields = {"url": value} if isinstance(value, str) else value
    if (
        not isinstance(fields, dict)
        or not isinstance(fields.get("url"), str)
        or not isinstance(fields.get("secret"), str | None)
        or not fields.keys() <= {"url", "secret"}
    ):
        got = describe_value(value)
        raise ApiError(
            "invalid_request", f"{name}: expected a URL, or an object with url and secret, got {got}"
        )
    webhook = Webhook(fields["url"], fields.get("secret"))
    try:
        targets.check(webhook)
    except InvalidInput as error:
        raise ApiError("invalid_request", f"{name}: {error.message}") from None
    return webhook


def queue_error(error: Exception) -> ApiError | None:
    """Converts errors of the queue. Returns None for other errors."""
    return ApiError("conflict", str(error)) if isinstance(error, KeyInUse) else None


def _invalid(problems: list[Problem]) -> ApiError:
    return ApiError("invalid_request", "; ".join(map(str, problems)))
