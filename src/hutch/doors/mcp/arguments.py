"""What clients may ask of the door's own tools: one shape each, of which its JSON Schema is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from hutch.errors import InvalidExecution

MAX_FOUND = 50
T = TypeVar("T", bound=msgspec.Struct)


class SearchTools(msgspec.Struct, forbid_unknown_fields=True):
    query: Annotated[
        str, Meta(min_length=1, max_length=1_000, description="What the tool should do, in a few words.")
    ]
    limit: Annotated[int, Meta(ge=1, le=MAX_FOUND, description="The most tools to list.")] = 8


class DescribeTools(msgspec.Struct, forbid_unknown_fields=True):
    names: Annotated[
        list[str],
        Meta(
            max_length=200,
            description="Tools or whole servers, as in `github` or `tools.github.createIssue`."
            " Everything if empty.",
        ),
    ] = []
    filter: Annotated[str, Meta(description="The same as one text, separated by commas.")] = ""
    detail: Annotated[
        Literal["auto", "compact", "full"],
        Meta(
            description="`full` has all descriptions, `compact` a line a tool;"
            " `auto` is full for what is named, compact for everything."
        ),
    ] = "auto"


class RunCode(msgspec.Struct, forbid_unknown_fields=True):
    code: Annotated[str, Meta(min_length=1, description="The script. A top-level `return` gives its result.")]
    language: Annotated[
        Literal["toolscript", "javascript"],
        Meta(
            description='`toolscript`: TypeScript with `import { tools } from "toolscript"`, type-checked'
            " before it runs. `javascript`: no types and no imports; every server is a global, as in"
            " `github.createIssue(…)`; starts in a millisecond."
        ),
    ] = "toolscript"
    timeout_seconds: Annotated[
        Annotated[float, Meta(gt=0)] | None, Meta(description="How long it may run; as a rule two minutes.")
    ] = None
    check: Annotated[bool, Meta(description="Whether a toolscript's types are checked first.")] = True


def schema_of(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """A struct's JSON Schema, itself at the root and those within it below `$defs`."""
    _, components = msgspec.json.schema_components((kind,), ref_template="#/$defs/{name}")
    found = dict(components.pop(kind.__name__))
    found.pop("title", None)
    return {**found, "$defs": components} if components else found


def read(kind: type[T], arguments: Mapping[str, Any] | None) -> T:
    """Arguments as a model may write them: null for nothing, "5" for 5. Raises InvalidExecution."""
    given = {name: value for name, value in (arguments or {}).items() if value is not None}
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$.")
        raise InvalidExecution(path.rstrip("`") or "arguments", text[0].lower() + text[1:]) from None
