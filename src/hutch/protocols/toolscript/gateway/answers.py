"""Decodes the answers of gateways. Gateways of other implementations leave out some fields."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from hutch.errors import HutchError
from hutch.strict_json import parse_json

T = TypeVar("T")


class ListedTool(msgspec.Struct, frozen=True, rename="camel"):
    """An entry of `GET /tools`, or the tool of a search result. The public implementation calls the qualified
    name `toolId` in search results.
    """

    qualified_name: str | None = None
    tool_id: str | None = None
    server_name: str | None = None
    tool_name: str | None = None
    description: str | None = None
    script_name: str | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("Object missing required field `qualifiedName`")

    @property
    def shown_name(self) -> str:
        """Name of the tool's function in scripts, or the qualified name if the gateway reports no name for
        scripts.
        """
        return self.script_name or self.name

    @property
    def name(self) -> str:
        name = self.qualified_name or self.tool_id
        return name or (f"{self.server_name}__{self.tool_name}" if self.tool_name else "")


class ListedMatch(msgspec.Struct, frozen=True):
    """A result of `GET /search`."""

    tool: ListedTool
    score: float
    reason: str | None = None


class ListedServer(msgspec.Struct, frozen=True):
    """An entry of `GET /servers`."""

    name: str


class ServerState(msgspec.Struct, frozen=True):
    name: str
    state: str
    tools: int
    error: str | None = None


class ListedCollision(msgspec.Struct, frozen=True):
    name: str
    became: dict[str, str]


class GatewayStatus(msgspec.Struct, frozen=True):
    """Answer to `GET /status`."""

    tools: int
    servers: list[ServerState]
    revision: str
    collisions: list[ListedCollision] = []


class Answer(msgspec.Struct, Generic[T], frozen=True):
    """A decoded answer: the decoded fields, and the whole JSON value."""

    value: T
    json: Any


def decode_answer(path: str, body: bytes, kind: type[T]) -> Answer[T]:
    """Decodes the answer to a request for `path`. Raises HutchError if the answer does not
    match the type `kind`.
    """
    try:
        value = parse_json(body)
        return Answer(msgspec.convert(value, kind), value)
    except (ValueError, RecursionError) as error:
        raise HutchError(
            f"The gateway's answer to {path} is not a valid answer of a gateway: {error}.",
            remedy="Check that --gateway-url or TOOLSCRIPT_GATEWAY_URL is the URL of a gateway.",
        ) from None
