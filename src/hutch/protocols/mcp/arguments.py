"""Arguments of Hutch's own tools. Each tool has a struct, from which its JSON Schema is generated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import msgspec
from msgspec import Meta

from hutch.errors import InvalidExecution
from hutch.kernel.sessions.sessions import SESSION_ID_PATTERN
from hutch.problems import Problem, first_problems, similar_field
from hutch.text import cut

MAX_RESULTS = 50
_MAX_NAME_CHARS = 100
T = TypeVar("T", bound=msgspec.Struct)


Format = Annotated[
    Literal["text", "json"],
    Meta(description="`text` for a model, or `json` for a program: structured content instead of text."),
]


class SearchTools(msgspec.Struct, forbid_unknown_fields=True):
    query: Annotated[
        str, Meta(min_length=1, max_length=1_000, description="What the tool should do, in a few words.")
    ]
    limit: Annotated[int, Meta(ge=1, le=MAX_RESULTS, description="Maximum number of tools to list.")] = 8
    scores: Annotated[bool, Meta(description="Whether to add scores and the reasons for them.")] = False
    format: Format = "text"


class DescribeTools(msgspec.Struct, forbid_unknown_fields=True):
    names: Annotated[
        list[str],
        Meta(
            max_length=200,
            description="Servers or tools, such as `github` or `tools.github.createIssue`."
            " If empty, all tools.",
        ),
    ] = []
    filter: Annotated[str, Meta(description="The same names as one comma-separated string.")] = ""
    detail: Annotated[
        Literal["auto", "compact", "full"],
        Meta(
            description="`full` includes all descriptions, `compact` is one line per tool;"
            " `auto` is `full` for named tools and `compact` for all tools."
        ),
    ] = "auto"


class RunCode(msgspec.Struct, forbid_unknown_fields=True):
    code: Annotated[
        str, Meta(min_length=1, description="The script. Its top-level `return` value is the result.")
    ]
    language: Annotated[
        Literal["toolscript", "javascript"],
        Meta(
            description="`toolscript`: TypeScript, type-checked before it runs. `javascript`: the same calls,"
            " without types and imports; starts in a millisecond, and `files.write(name, data)` and"
            " `display(value)` return files and images."
        ),
    ] = "toolscript"
    session: Annotated[
        Annotated[str, Meta(pattern=SESSION_ID_PATTERN)] | None,
        Meta(
            description="Name under which top-level variables are kept for later calls with the same name."
            " The code runs like `javascript`; types are removed and not checked."
        ),
    ] = None
    values: Annotated[
        list[str],
        Meta(
            max_length=20,
            description="Names of earlier results that were too large to be returned. The code, which must be"
            " `javascript`, has them as `values.NAME`.",
        ),
    ] = []
    timeout_seconds: Annotated[
        Annotated[float, Meta(gt=0)] | None, Meta(description="Time limit; two minutes by default.")
    ] = None
    check: Annotated[bool, Meta(description="Whether to check the types of a toolscript before it runs.")] = (
        True
    )
    strict: Annotated[
        bool | None,
        Meta(description="Whether the check is strict everywhere, and not only where tools are used."),
    ] = None
    format: Format = "text"


class ContinueRun(msgspec.Struct, forbid_unknown_fields=True):
    run_id: Annotated[
        str, Meta(min_length=1, max_length=100, description="The id that the answer of run_code contains.")
    ]
    cancel: Annotated[bool, Meta(description="Whether to cancel the run instead of continuing it.")] = False
    format: Format = "text"


def schema_of(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Returns the JSON Schema of a struct. Nested structs are placed in `$defs`."""
    _, components = msgspec.json.schema_components((kind,), ref_template="#/$defs/{name}")
    schema = dict(components.pop(kind.__name__))
    schema.pop("title", None)
    return {**schema, "$defs": components} if components else schema


def parse_arguments(kind: type[T], arguments: Mapping[str, Any] | None) -> T:
    """Parses arguments leniently: null means absent, and "5" is accepted for 5. Raises InvalidExecution with
    all problems.
    """
    values = {name: value for name, value in (arguments or {}).items() if value is not None}
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError:
        first, *others = first_problems(_argument_problems(kind, values))
        more = "".join(f"; {problem}" for problem in others)
        raise InvalidExecution(first.path, f"{first.message}{more}") from None


def _argument_problems(kind: type[msgspec.Struct], values: Mapping[str, Any]) -> Iterator[Problem]:
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    for name in values:
        if name not in fields:
            similar = similar_field(name, fields)
            hint = f"did you mean `{similar}`?" if similar else f"expected {', '.join(fields)}"
            yield Problem("arguments", f"unknown field `{cut(name, _MAX_NAME_CHARS)}`; {hint}")
    for name, field in fields.items():
        if name in values:
            try:
                msgspec.convert(values[name], field.type, strict=False)
            except msgspec.ValidationError as error:
                text, _, path = str(error).partition(" - at `$")
                message = text[0].lower() + text[1:] + _allowed_values(field.type)
                yield Problem(f"{name}{path.rstrip('`')}", message)
        elif field.required:
            yield Problem("arguments", f"missing required field `{name}`")


def _allowed_values(kind: Any) -> str:
    """Returns the values of an enumeration as a part of a message, or an empty text for other types."""
    inner = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    return f"; expected {', '.join(get_args(inner))}" if get_origin(inner) is Literal else ""
