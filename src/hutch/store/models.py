"""Models of the table rows. Times are RFC 3339 text in UTC, so that they sort chronologically."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal, NamedTuple
from uuid import uuid4

import msgspec

from hutch.text import format_rfc3339

# The maximum is the highest integer up to which JavaScript represents every integer exactly.
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


def now(*, plus_seconds: float = 0.0) -> str:
    """Returns the current time plus an offset, in the format of the tables: `2031-02-03T04:05:06.789Z`."""
    return format_rfc3339(datetime.now(UTC) + timedelta(seconds=plus_seconds))


def new_id() -> str:
    return uuid4().hex


class User(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    data_key: str
    """Data keys of the user, encrypted by the vault."""
    created_at: str

    def __repr__(self) -> str:
        return f"User({self.id}, {self.name!r})"


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    user_id: str
    name: str
    digest: str
    hint: str
    scopes: tuple[str, ...] = ()
    created_at: str
    expires_at: str | None = None
    revoked_at: str | None = None
    last_used_at: str | None = None

    def __repr__(self) -> str:
        return f"ApiKey({self.id}, {self.name!r})"


class Quota(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Limits of one owner or key. If a limit of a key is None, the limit of its owner applies. If a limit of
    an owner is None, the limit in the settings applies. 0 means no limit.
    """

    max_concurrent_executions: Count | None = None
    max_executions_per_minute: Count | None = None
    max_executions_per_day: Count | None = None
    max_cpu_seconds_per_day: Count | None = None
    weight: Annotated[int, msgspec.Meta(ge=1, le=100)] | None = None
    """Number of turns that the owner gets in the queue for runners for each turn of an owner with the weight
    1. Keys have no weight.
    """


class Usage(NamedTuple):
    """Usage of an owner or an API key on one day."""

    executions: int = 0
    cpu_seconds: float = 0.0

    def __add__(self, other: Usage) -> Usage:  # type: ignore[override]
        return Usage(self.executions + other.executions, self.cpu_seconds + other.cpu_seconds)


class Credential(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    user_id: str
    domain: str
    kind: str
    key: str
    """Name of the header without the domain, as the user wrote it. Names that differ only in case are the
    same.
    """
    sealed: str
    hint: str = ""
    state: Literal["active", "expired"] = "active"
    expired_at: str | None = None
    cause: str | None = None
    created_at: str
    updated_at: str

    def __repr__(self) -> str:
        return f"Credential({self.id}, {self.domain}::{self.key}, {self.state})"


class Ability(msgspec.Struct, frozen=True, kw_only=True):
    ability_id: str
    owner_id: str
    version: int = 0
    """Number of the version, starting at 1. Assigned by the store."""
    shared: bool = False
    name: str
    service_name: str = ""
    description: str = ""
    document: str
    """Complete definition as JSON text, including the wrapper's code."""
    requires_dynamic_headers: bool = False
    created_at: str
    updated_at: str

    def __repr__(self) -> str:
        return f"Ability({self.ability_id!r}, version {self.version}, owner {self.owner_id})"


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A group of users, with whom abilities can be shared."""

    id: str
    name: str
    created_at: str


class AbilityShare(msgspec.Struct, frozen=True, kw_only=True):
    """A user or a group with whom an ability is shared. Either `user` or `group` is None."""

    user: str | None
    group: str | None
    created_at: str


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """A run record without its content."""

    run_id: str
    owner: str
    protocol: str
    engine: str
    label: str | None = None
    created_at: str
    duration_ms: float
    outcome: str
    """`ok`, or the error code."""
    details: str = "{}"
    """Other fields of the record as JSON text: limits, calls and requests."""
    parent_run_id: str | None = None
    """Run that started this one: a flow run, or the run that was replayed."""
    recorded: str = "metadata"
    """Level of the setting `record` with which the run was recorded."""
    error_message: str | None = None
    """Error message, cut for lists. Encrypted in the database."""

    def __repr__(self) -> str:
        return f"RunRow({self.run_id!r}, {self.protocol}, {self.outcome}, owner {self.owner})"


class NewRun(msgspec.Struct, frozen=True):
    """A run record that is not stored yet, with its content, and the tools and hosts by which lists of runs
    can be filtered.
    """

    row: RunRow
    content: str | None = None
    """Code, inputs, output, logs and so on as JSON text. Encrypted in the database."""
    tools: tuple[str, ...] = ()
    """Tools that the run called, as `provider.tool`."""
    hosts: tuple[str, ...] = ()
    """Hosts that the run reached."""
    redact: Callable[[str], Awaitable[str]] | None = None
    """Removes the run's secrets from the content before it is stored."""

    @property
    def size(self) -> int:
        row = self.row
        return 200 + len(row.details) + len(row.error_message or "") + len(self.content or "")


class FlowHead(msgspec.Struct, frozen=True, kw_only=True):
    """A flow without its document."""

    owner: str
    name: str
    version: int = 0
    """Number of the version, starting at 1. Assigned by the store."""
    created_at: str
    updated_at: str


class FlowRow(FlowHead, frozen=True, kw_only=True):
    document: str
    """Flow IR as JSON text."""

    def __repr__(self) -> str:
        return f"FlowRow({self.name!r}, version {self.version}, owner {self.owner})"


class FlowRunHead(msgspec.Struct, frozen=True, kw_only=True):
    """A flow run without its document, inputs and results."""

    run_id: str
    owner: str
    flow: str
    version: int | None = None
    """Version of the flow, or None if the flow is not stored."""
    origin: str
    """`server` if the server resumes the run automatically after a crash."""
    status: Literal["pending", "running", "completed", "failed"] = "pending"
    outcome: str | None = None
    """Outcome of a finished run: `ok`, `cancelled`, or the error code."""
    created_at: str
    started_at: str | None = None
    ended_at: str | None = None
    holder: str = ""
    """Id of the process that runs the flow, or empty."""
    seen_at: str | None = None
    """Time of the last heartbeat of the holder."""
    claims: int = 0
    """Number of starts since the run last made progress."""

    @property
    def is_over(self) -> bool:
        return self.ended_at is not None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.run_id!r}, {self.flow!r}, {self.status}, owner {self.owner})"


class FlowRunRow(FlowRunHead, frozen=True, kw_only=True):
    """Flow run with everything that is needed to resume it. The last four fields are JSON text."""

    document: str
    inputs: str = "{}"
    options: str = "{}"
    summary: str | None = None
    """Summary of the run, or None before the run has ended."""

    __repr__ = FlowRunHead.__repr__
