"""TypeScript signatures of tools, generated from their JSON Schemas."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, NamedTuple

from hutch.protocols.toolscript.gateway.catalog import CatalogEntry
from hutch.session.json_value import well_formed
from hutch.session.schema.typescript import ObjectTypes, TypeRenderer
from hutch.session.schema.walk import (
    UNRESOLVED,
    SchemaRoot,
    allows_empty_object,
    allows_only_empty_object,
    references,
    resolve,
)

ANY_OBJECT = "Record<string, unknown>"
NO_SCHEMA = "Its server does not describe the arguments."

_DRAFTS = {
    "http://json-schema.org/draft-04/schema": "Draft4Validator",
    "http://json-schema.org/draft-06/schema": "Draft6Validator",
    "http://json-schema.org/draft-07/schema": "Draft7Validator",
    "https://json-schema.org/draft/2019-09/schema": "Draft201909Validator",
    "https://json-schema.org/draft/2020-12/schema": "Draft202012Validator",
}
_NEWEST_DRAFT = "https://json-schema.org/draft/2020-12/schema"


class ToolSignature(NamedTuple):
    """Signature of a tool: `(parameter): Promise<result>`. `notes` are added to its documentation."""

    parameter: str
    result: str
    notes: list[str]

    def __str__(self) -> str:
        return f"({self.parameter}): Promise<{self.result}>"


class ServerTypes:
    """The types of one server's tools, in a separate namespace.

    If the tools in `sharing` use an object type several times, the type is declared once under a name, which
    is shorter to read. Declarations for a compiler have no named types, because the compiler's messages would
    then contain the name instead of the type.
    """

    def __init__(
        self, namespace: str, *, compact: bool = False, sharing: Iterable[CatalogEntry] = ()
    ) -> None:
        self._namespace = namespace
        self._compact = compact
        self._roots: dict[str, tuple[SchemaRoot, SchemaRoot | None]] = {}
        found = ObjectTypes()
        self._types = self._renderer(found=found)
        for entry in sharing:
            self._roots[entry.qualified] = roots = _roots(entry)
            self._signature(*roots)
        for root in (root for roots in self._roots.values() for root in roots if root is not None):
            root.names.clear()
        self._types = self._renderer(repeated=found.repeated())

    def _renderer(
        self, *, found: ObjectTypes | None = None, repeated: dict[int, str] | None = None
    ) -> TypeRenderer:
        return TypeRenderer(
            unknown_type="any",
            compact=self._compact,
            reserved_names=("Promise", "Record"),
            prefix=f"{self._namespace}.",
            found=found,
            repeated=repeated,
        )

    @property
    def named(self) -> list[str]:
        """Declarations of the named types that the signatures use."""
        return [*self._types.declarations.values()]

    def signature(self, entry: CatalogEntry) -> ToolSignature:
        return self._signature(*(self._roots.get(entry.qualified) or _roots(entry)))

    def _signature(self, arguments: SchemaRoot, result: SchemaRoot | None) -> ToolSignature:
        notes: list[str] = []
        return ToolSignature(self._parameter(arguments, notes), self._result(result, notes), notes)

    def _parameter(self, root: SchemaRoot, notes: list[str]) -> str:
        if root.schema is None or root.schema == {}:
            notes.append(NO_SCHEMA)
            return f"args?: {ANY_OBJECT}"
        fault = _schema_problem(root)
        if fault is not None:
            notes.append(f"Its server's schema of the arguments is not valid: {fault}.")
        if allows_only_empty_object(root):
            return "args?: Record<string, never>"
        # Write the type of the arguments inline, because a reader of the signature needs it.
        rendered = self._types.render(root, inline=True) if _may_be_object(root.schema) else "never"
        if rendered in ("any", "never"):
            if fault is None:
                notes.append(NO_SCHEMA)
            return f"args?: {ANY_OBJECT}"
        return f"args{'?' if allows_empty_object(root) else ''}: {rendered}"

    def _result(self, root: SchemaRoot | None, notes: list[str]) -> str:
        if root is None:
            return "any"
        fault = _schema_problem(root)
        if fault is not None:
            notes.append(f"Its server's schema of the result is not valid: {fault}.")
        rendered = self._types.render(root)
        return "any" if rendered == "never" else rendered


def _roots(entry: CatalogEntry) -> tuple[SchemaRoot, SchemaRoot | None]:
    label = entry.member[:1].upper() + entry.member[1:]
    result = entry.output_schema
    return (
        SchemaRoot.of(entry.input_schema, f"{label}Args"),
        None if result is None else SchemaRoot.of(result, f"{label}Result"),
    )


def _may_be_object(schema: Any) -> bool:
    """Returns True if the schema of a tool's arguments allows an object. Other schemas are ignored, because
    MCP requires arguments to be an object.
    """
    kinds = schema.get("type", "object") if isinstance(schema, dict) else None
    return "object" in (kinds if isinstance(kinds, list) else [kinds])


def schema_problems(entry: CatalogEntry) -> Iterator[str]:
    """Yields the errors in the schemas of a tool, for the owner of the MCP server."""
    for what, schema in (("inputSchema", entry.input_schema), ("outputSchema", entry.output_schema)):
        fault = None if schema is None else _schema_problem(SchemaRoot.of(schema, what))
        if fault is not None:
            yield f"{what}: {fault}"


def _schema_problem(root: SchemaRoot) -> str | None:
    """Returns the first error in a JSON Schema as one line, or None."""
    schema = root.schema
    if not isinstance(schema, dict):
        return "it is too large" if schema is True else "it is not an object"
    missing = next((ref for ref in references(schema) if resolve(ref, root) is UNRESOLVED), None)
    if missing is not None:
        return _one_line(f"it refers to {missing!r}, which it does not contain")
    named = schema.get("$schema")
    draft = named.rstrip("#") if isinstance(named, str) else _NEWEST_DRAFT
    try:
        error = next(_meta_validator(draft if draft in _DRAFTS else _NEWEST_DRAFT).iter_errors(schema), None)
    except ValueError:
        # Report no problem for a schema with lone surrogates, which are rare and which jsonschema-rs cannot
        # represent.
        return None
    return None if error is None else _one_line(f"{error.message} at {_pointer(error.instance_path)}")


@cache
def _meta_validator(draft: str) -> Any:
    import jsonschema_rs

    return getattr(jsonschema_rs, _DRAFTS[draft])({"$ref": draft}, offline=True)


def _pointer(path: list[str | int]) -> str:
    return "/" + "/".join(str(step) for step in path[:20]) if path else "its root"


def _one_line(text: str) -> str:
    line = " ".join(well_formed(text).split())
    return line if len(line) <= 200 else f"{line[:120]} … {line[-60:]}"
