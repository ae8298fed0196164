"""TypeScript declarations of a provider's tools: what a guest may call, as a namespace of functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from hutch.session.schemas import Root, fits_empty, takes_nothing
from hutch.session.typescript import Types, comment, doc_lines


class Declarable(Protocol):
    """A tool, as far as its declaration goes."""

    @property
    def description(self) -> str | None: ...
    @property
    def input_schema(self) -> Mapping[str, Any] | None: ...
    @property
    def output_schema(self) -> Mapping[str, Any] | None: ...


def declare(provider_name: str, tools: Mapping[str, Declarable]) -> str:
    """`declare namespace N { … }` with a function for every tool and the types that they name."""
    types = Types()
    functions = [_function(types, safe, tool) for safe, tool in tools.items()]
    members = [*types.declarations.values(), *functions]
    if not members:
        return f"declare namespace {provider_name} {{}}"
    return f"declare namespace {provider_name} {{\n" + "\n\n".join(members) + "\n}"


def _function(types: Types, safe: str, tool: Declarable) -> str:
    label = safe[:1].upper() + safe[1:]
    parameter = _parameter(types, Root.of(tool.input_schema, f"{label}Input"))
    output = True if tool.output_schema is None else tool.output_schema
    result = types.render(Root.of(output, f"{label}Output"))
    doc = comment(doc_lines(tool.description, 4_000), "  ")
    return f"{doc}  function {safe}({parameter}): Promise<{result}>;"


def _parameter(types: Types, root: Root) -> str:
    if takes_nothing(root):
        return ""
    rendered = types.render(root)
    optional = rendered == "unknown" or fits_empty(root)
    return f"input{'?' if optional else ''}: {rendered}"
