"""The types of tools: what each takes and gives, from the JSON Schemas that its server has for it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from hutch.doors.toolscript.catalog import Entry
from hutch.session.jsonvalue import well_formed
from hutch.session.schemas import NOTHING, Root, fits_empty, references, resolve, takes_nothing
from hutch.session.typescript import Types

ANYTHING = "Record<string, unknown>"
NO_SCHEMA = "Its server says nothing about the arguments."

_DRAFTS = {
    "http://json-schema.org/draft-04/schema": "Draft4Validator",
    "http://json-schema.org/draft-06/schema": "Draft6Validator",
    "http://json-schema.org/draft-07/schema": "Draft7Validator",
    "https://json-schema.org/draft/2019-09/schema": "Draft201909Validator",
    "https://json-schema.org/draft/2020-12/schema": "Draft202012Validator",
}
_NEWEST = "https://json-schema.org/draft/2020-12/schema"


class Signature(NamedTuple):
    """How a tool is called: `(parameter): Promise<result>`, and what to know besides."""

    parameter: str
    result: str
    notes: list[str]

    def __str__(self) -> str:
        return f"({self.parameter}): Promise<{self.result}>"


class ServerTypes:
    """The types of one server's tools, in a namespace of their own."""

    def __init__(self, namespace: str, *, compact: bool = False) -> None:
        self._types = Types(
            anything="any", compact=compact, taken=("Promise", "Record"), prefix=f"{namespace}."
        )

    @property
    def named(self) -> list[str]:
        """Declarations of the types that signatures mention."""
        return [*self._types.declarations.values()]

    def signature(self, entry: Entry) -> Signature:
        label = entry.member[:1].upper() + entry.member[1:]
        notes: list[str] = []
        parameter = self._parameter(Root.of(entry.input_schema, f"{label}Args"), notes)
        result = self._result(entry.output_schema, f"{label}Result", notes)
        return Signature(parameter, result, notes)

    def _parameter(self, root: Root, notes: list[str]) -> str:
        if root.schema is None or root.schema == {}:
            notes.append(NO_SCHEMA)
            return f"args?: {ANYTHING}"
        fault = schema_fault(root)
        if fault is not None:
            notes.append(f"Its server's schema of the arguments is not valid: {fault}.")
        if takes_nothing(root):
            return "args?: Record<string, never>"
        rendered = self._types.render(root) if _may_be_object(root.schema) else "never"
        if rendered in ("any", "never"):
            if fault is None:
                notes.append(NO_SCHEMA)
            return f"args?: {ANYTHING}"
        return f"args{'?' if fits_empty(root) else ''}: {rendered}"

    def _result(self, schema: Any, label: str, notes: list[str]) -> str:
        if schema is None:
            return "any"
        root = Root.of(schema, label)
        fault = schema_fault(root)
        if fault is not None:
            notes.append(f"Its server's schema of the result is not valid: {fault}.")
        rendered = self._types.render(root)
        return "any" if rendered == "never" else rendered


def _may_be_object(schema: Any) -> bool:
    """Arguments are an object, whatever their schema says."""
    kinds = schema.get("type", "object") if isinstance(schema, dict) else None
    return "object" in (kinds if isinstance(kinds, list) else [kinds])


def faults(entry: Entry) -> Iterator[str]:
    """What is wrong with a tool's schemas, for who looks after its server."""
    for what, schema in (("inputSchema", entry.input_schema), ("outputSchema", entry.output_schema)):
        fault = None if schema is None else schema_fault(Root.of(schema, what))
        if fault is not None:
            yield f"{what}: {fault}"


def schema_fault(root: Root) -> str | None:
    """Why this is not JSON Schema, in one line, or None."""
    schema = root.schema
    if not isinstance(schema, dict):
        return "it is too large" if schema is True else "it is not an object"
    missing = next((ref for ref in references(schema) if resolve(ref, root) is NOTHING), None)
    if missing is not None:
        return _one_line(f"it refers to {missing!r}, which is not in it")
    named = schema.get("$schema")
    draft = named.rstrip("#") if isinstance(named, str) else _NEWEST
    try:
        error = next(_meta(draft if draft in _DRAFTS else _NEWEST).iter_errors(schema), None)
    except ValueError:
        # Lone surrogates, which Rust does not have: too rare to look any closer.
        return None
    return None if error is None else _one_line(f"{error.message} at {_pointer(error.instance_path)}")


@cache
def _meta(draft: str) -> Any:
    import jsonschema_rs

    return getattr(jsonschema_rs, _DRAFTS[draft])({"$ref": draft}, offline=True)


def _pointer(path: list[str | int]) -> str:
    return "/" + "/".join(str(step) for step in path[:20]) if path else "its root"


def _one_line(text: str) -> str:
    line = " ".join(well_formed(text).split())
    return line if len(line) <= 200 else f"{line[:120]} … {line[-60:]}"
