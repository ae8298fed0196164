"""Messages between the machines of a cluster: announcements, and the frames of a link."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Literal, TypeVar

import msgspec

from hutch.egress.request_log import OutgoingRequest
from hutch.kernel.placement import PackageDetails
from hutch.session.messages import WireError

PlaceKind = Literal["quickjs", "process"]
"""Executions of quickjs share processes. Each execution of another engine needs its own process."""
PLACE_KINDS: tuple[PlaceKind, ...] = ("quickjs", "process")


class Announcement(msgspec.Struct, frozen=True, kw_only=True):
    """State of a machine. The machine publishes it every second."""

    id: str
    """Random id of the process, and the last part of its subject."""
    node: str
    """Name of the machine."""
    version: str
    number: int
    """Counts the announcements of the process, so that a replayed old announcement is ignored."""
    is_leaving: bool = False


class FrontAnnouncement(Announcement, frozen=True, kw_only=True):
    wanted: dict[str, int] = {}
    """Executions that run or wait, by kind of place."""


class WorkerAnnouncement(Announcement, frozen=True, kw_only=True):
    public_key: bytes
    isolation: str
    bundle: str
    """Hash of the guest bundle. A suspended execution can continue only with the bundle that made its state.
    """
    engines: list[str]
    places: dict[str, int]
    used: dict[str, dict[str, int]] = {}
    """Number of taken places by kind, for each front."""
    packages: list[str] = []
    """Installed packages that were used recently."""
    spares: list[str] = []
    """Packages for which a spare runner is ready."""
    is_draining: bool = False
    fronts: list[str] = []
    """Ids of the fronts that the worker has heard of. A front ignores a worker that does not name it, because
    such an announcement may have been recorded before the front was started.
    """
    lost_links: list[bytes] = []
    """Ids of the last links of fronts that the worker has lost, until it gets a new link from the front. The
    executions of these links are cancelled.
    """


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """First packet of a link, from the front."""

    front: str
    node: str
    version: str


class FrameType(IntEnum):
    # Frames from the front to the worker.
    OPEN = 1
    CLOSE = 2
    # Frames in both directions.
    LINES = 3
    # Frames from the worker to the front.
    LEASED = 4
    REFUSED = 5
    TRAILER = 6
    END = 7
    STDOUT = 8
    STDERR = 9
    DRAIN = 10
    # Requests of a script's jail, and the responses of the front's gateway.
    REQUEST = 11
    RESPONSE = 12
    CANCEL_REQUEST = 13
    RELEASED = 14


class OpenPackage(msgspec.Struct, frozen=True, kw_only=True, tag="package"):
    name: str
    version: str
    env: dict[str, str]
    caller: str
    tool: str
    op: str


class OpenScript(msgspec.Struct, frozen=True, kw_only=True, tag="script"):
    url: str
    revision: str
    cwd: str


class OpenEngine(msgspec.Struct, frozen=True, kw_only=True, tag="engine"):
    engine: str


class Open(msgspec.Struct, frozen=True, kw_only=True):
    """Asks a worker for a runner. The frame contains the number of the lease."""

    session: str
    owner: str
    profile: OpenEngine | OpenPackage | OpenScript
    memory_limit_bytes: int
    max_log_lines: int
    max_log_chars: int


class Close(msgspec.Struct, frozen=True):
    """Tells the worker that the front does not need the runner any more."""

    ok: bool = False
    unresponsive: bool = False
    was_abandoned: bool = False
    """True if there is no result."""
    wants_output: bool = False
    """True if the front waits for a RELEASED frame with the output."""


class Leased(msgspec.Struct, frozen=True):
    package: PackageDetails | None = None


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """Tells the front that the worker cannot run the execution, and that nothing has happened."""

    code: str
    message: str
    retry_after: float = 1.0
    retryable: bool = False
    is_busy: bool = False
    """True if another worker may have a free place."""


class Trailer(msgspec.Struct, frozen=True, kw_only=True):
    """Data of an ended execution that only the worker has: CPU time, output and outgoing requests."""

    cpu_seconds: float | None = None
    output: bytes = b""
    requests: list[OutgoingRequest] = []


class End(msgspec.Struct, frozen=True, kw_only=True):
    """Tells the front that the runner has ended without sending its last message."""

    error: WireError | None = None
    value: Any = None
    lost: bool = False
    interrupted: str = ""
    """Reason why the whole worker ends. Empty if only the runner has ended."""


class GatewayRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request of a script to its gateway. The frame contains the number of the request."""

    gateway: str
    run_id: str | None
    method: str
    url: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes


class GatewayResponse(msgspec.Struct, frozen=True, kw_only=True):
    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


T = TypeVar("T")
_encoder = msgspec.msgpack.Encoder()


def encode(message: msgspec.Struct) -> bytes:
    return _encoder.encode(message)


def decode(data: bytes, type: type[T]) -> T:
    """Raises msgspec.DecodeError."""
    return msgspec.msgpack.decode(data, type=type)
