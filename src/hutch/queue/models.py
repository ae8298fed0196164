"""Requests for asynchronous runs, and the handlers that execute them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from hutch.errors import HutchError

if TYPE_CHECKING:
    from hutch.queue.attempt import Attempt

MAX_PRIORITY = 100
MAX_ATTEMPTS = 100
MAX_KEY_CHARS = 255
MAX_DELAY_MS = 366 * 86_400_000
MAX_URL_CHARS = 4_096


class KeyInUse(HutchError):
    """This idempotency key was used with another request."""

    code = "idempotency_key_in_use"


class RunReleased(HutchError):
    """The server stops, and another server continues the run."""

    code = "released"


class QueueCaller(NamedTuple):
    """Owner, key and scopes of a request. When the run starts, the user and the key must still be valid."""

    owner: str
    key_id: str | None = None
    """API key of a user; None for the operator."""
    scopes: Sequence[str] | None = None
    """Scopes of the key; None for the operator, who may do everything."""

    def may(self, scope: str) -> bool:
        return self.scopes is None or scope in self.scopes


class Webhook(msgspec.Struct, frozen=True, omit_defaults=True):
    """Target of the message about the end of a run."""

    url: str
    secret: str | None = None
    """Secret with which the message is signed; None for the secret of the owner."""


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    priority: int = 0
    """Runs of the same owner with a higher priority start first."""
    delay_ms: int = 0
    deadline_ms: int | None = None
    """Time after which a waiting run is not started any more, and a running one is stopped."""
    attempts: int | None = None
    """Maximum number of attempts. None for one attempt, which is repeated only if it cannot have had effects.
    """
    idempotency_key: str | None = None
    webhook: Webhook | None = None


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A valid request for an asynchronous run."""

    kind: str
    protocol: str
    label: str | None = None
    body: bytes
    """The request as JSON text, which only the handler of its kind reads."""


class Accepted(NamedTuple):
    run_id: str
    is_new: bool
    """False if an earlier request with the same idempotency key has added the run."""


class HandlerResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one attempt."""

    ok: bool
    outcome: str
    """`ok` or the error code."""
    body: bytes
    """JSON text of the response that a synchronous request would have received."""


class RunHandler(Protocol):
    """Checks requests of one kind, and executes them."""

    kind: str
    protocol: str
    """Protocol of the record, and the scope that a user's key needs."""
    is_repeatable: bool
    """True if a restarted run continues where it stopped and repeats nothing."""
    has_hidden_effects: bool
    """True if the guest may have effects other than through tool calls."""

    async def parse(self, body: dict[str, Any], caller: QueueCaller) -> RunRequest:
        """Checks a request before it is accepted. Raises ApiError or HutchError."""

    async def run(self, attempt: Attempt) -> HandlerResult:
        """Executes a run. Raises HutchError if the run could not start, and RunReleased if another server has
        to continue it.
        """
