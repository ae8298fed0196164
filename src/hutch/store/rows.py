"""What stands in the tables, one struct a row. Times are RFC 3339 texts in UTC: they sort as times do."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Literal
from uuid import uuid4

import msgspec


def now(*, plus_seconds: float = 0.0) -> str:
    """This moment, or one before or after it, as every table has it: `2031-02-03T04:05:06.789Z`."""
    return at(datetime.now(UTC) + timedelta(seconds=plus_seconds))


def at(moment: datetime) -> str:
    """A moment as every table has it."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def new_id() -> str:
    """An id that nobody has and nobody guesses."""
    return uuid4().hex


class User(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    data_key: str
    """Sealed by the vault."""
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


class Credential(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    user_id: str
    domain: str
    kind: str
    key: str
    """The bare name of the header, as it was given. No two differ in case alone."""
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
    """Given by the store: 1, 2, …"""
    shared: bool = False
    name: str
    service_name: str = ""
    description: str = ""
    document: str
    """All of it, as JSON text, the wrapper's code included."""
    requires_dynamic_headers: bool = False
    created_at: str
    updated_at: str

    def __repr__(self) -> str:
        return f"Ability({self.ability_id!r}, version {self.version}, owner {self.owner_id})"


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """One run, as `hutch.runs.RunRecord` has it. Never its code, inputs, results or the text of its error."""

    run_id: str
    owner: str
    door: str
    engine: str
    label: str | None = None
    started_at: str
    duration_ms: float
    outcome: str
    """`ok`, or the error's code."""
    details: str = "{}"
    """What else the record has, as JSON text: limits, calls, requests."""


class FlowHead(msgspec.Struct, frozen=True, kw_only=True):
    """A flow, without what it does."""

    owner: str
    name: str
    version: int = 0
    """Given by the store: 1, 2, …"""
    created_at: str
    updated_at: str


class FlowRow(FlowHead, frozen=True, kw_only=True):
    document: str
    """Flow IR, as JSON text."""

    def __repr__(self) -> str:
        return f"FlowRow({self.name!r}, version {self.version}, owner {self.owner})"


class FlowRunHead(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a flow, without what it was given and what it gave."""

    run_id: str
    owner: str
    flow: str
    version: int | None = None
    """Of the flow, if that has one."""
    origin: str
    """Who goes on with it by itself: `server`, or nobody."""
    status: Literal["pending", "running", "completed", "failed"] = "pending"
    outcome: str | None = None
    """Once it is over: `ok`, `cancelled`, or the code of the error."""
    created_at: str
    started_at: str | None = None
    ended_at: str | None = None
    holder: str = ""
    """The process that runs it."""
    seen_at: str | None = None
    """When that process said last that it is there."""
    claims: int = 0
    """How often it was begun since it last got any further."""

    @property
    def is_over(self) -> bool:
        return self.ended_at is not None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.run_id!r}, {self.flow!r}, {self.status}, owner {self.owner})"


class FlowRunRow(FlowRunHead, frozen=True, kw_only=True):
    """A run of a flow, with all that it takes to go on with it. The last four are JSON texts."""

    document: str
    inputs: str = "{}"
    options: str = "{}"
    summary: str | None = None
    """Once it is over."""

    __repr__ = FlowRunHead.__repr__
