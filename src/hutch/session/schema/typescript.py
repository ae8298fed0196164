"""Generates TypeScript types and declarations from JSON Schema, for models to read and a compiler to check.

Schemas are untrusted, so the output is always well-formed TypeScript of bounded size. Unsupported parts
become `unknown`, or `any` on request.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple, Protocol

from hutch.session.schema.walk import (
    ARRAY_KEYWORDS,
    COMBINING_KEYWORDS,
    OBJECT_KEYWORDS,
    REFERENCES,
    UNRESOLVED,
    SchemaRoot,
    allows_empty_object,
    allows_only_empty_object,
    as_dict,
    as_list,
    implied_type,
    pointer_steps,
    references,
    resolve,
)
from hutch.session.tools.names import is_identifier, safe_name
from hutch.text import printable

MAX_RENDERED_SCHEMAS = 200_000  # maximum for all tools together
MAX_LEVELS = 100  # maximum depth of nested schemas, including references
MAX_LITERALS = 200
MAX_SHARING_STEPS = 100_000
MAX_ONE_LINE_CHARS = 72
# A repeated object type is declared once, under a name, if that saves more than this many characters. Each
# reference to the name counts as REFERENCE_CHARS.
MIN_SAVED_CHARS = 60
REFERENCE_CHARS = 15

# Constraints that a type cannot express, and that are written as comments.
_CONSTRAINTS = (
    *("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "multipleOf"),
    *("minLength", "maxLength", "pattern", "minItems", "maxItems"),
)


class _TypeText(NamedTuple):
    """A type expression and its precedence: 0 atom, 1 intersection, 2 union."""

    text: str
    precedence: int = 0

    def parenthesized(self, precedence: int) -> str:
        return f"({self.text})" if self.precedence > precedence else self.text


UNKNOWN = _TypeText("unknown")
ANY = _TypeText("any")
_UNTYPED = (UNKNOWN, ANY)
NEVER = _TypeText("never")

_PRIMITIVES = {
    "string": _TypeText("string"),
    "number": _TypeText("number"),
    "integer": _TypeText("number"),
    "boolean": _TypeText("boolean"),
    "null": _TypeText("null"),
}


class ObjectTypes:
    """Collects the rendered object types of all schemas, to find types that occur more than once."""

    def __init__(self) -> None:
        self._texts: dict[int, str] = {}  # keyed by the `id()` of the schema
        self._found: list[str] = []
        self._seen: set[str] = set()

    def begin(self) -> int:
        return len(self._found)

    def end(self, start: int, schema: dict[str, Any], text: str) -> None:
        text = self._texts[id(schema)] = " ".join(text.split())
        if text in self._seen:
            # Do not count the types inside a repeated type again, because the outer type will be declared
            # only once.
            del self._found[start:]
        self._seen.add(text)
        self._found.append(text)

    def repeated(self) -> dict[int, str]:
        """Returns the texts of the types that should have a name, by the `id()` of their schemas."""
        named = {
            text
            for text, count in Counter(self._found).items()
            if (count - 1) * (len(text) - REFERENCE_CHARS) > MIN_SAVED_CHARS
        }
        return {schema: text for schema, text in self._texts.items() if text in named}


class TypeRenderer:
    """Renders schemas, and collects declarations of the types that they refer to.

    `unknown_type` is the type of values without a schema. `compact` omits comments and line breaks. Names in
    `reserved_names` are not used for types. `prefix` is prepended to references to declared types. `found`
    collects the object types. `repeated` has the texts of the object types that are declared once and
    referred to by a name.
    """

    def __init__(
        self,
        *,
        unknown_type: Literal["unknown", "any"] = "unknown",
        compact: bool = False,
        reserved_names: Iterable[str] = ("Promise",),
        prefix: str = "",
        found: ObjectTypes | None = None,
        repeated: Mapping[int, str] | None = None,
    ) -> None:
        self._found = found
        self._repeated = repeated or {}
        self._label = ""  # the name that the next object type gets if it needs one
        self._inline: Any = None  # schema that is rendered in place although it is repeated
        self.declarations: dict[str, str] = {}
        self._any_type = ANY if unknown_type == "any" else UNKNOWN
        self._compact = compact
        self._prefix = prefix
        self._pending: dict[str, Callable[[], None]] = {}
        self._rendering: list[str] = []
        self._shared: dict[Any, str] = {}
        self._used_names = set(reserved_names)
        self._steps = MAX_SHARING_STEPS
        self._budget = MAX_RENDERED_SCHEMAS
        self._level = 0

    def render(self, root: SchemaRoot, pad: str = "  ", *, inline: bool = False) -> str:
        """Renders the type of a schema. Types that it refers to are added to `declarations`.

        `inline`: the type itself gets no name, even if it is repeated.
        """
        self._label, self._inline = root.label, root.schema if inline else None
        rendered = self._render(root.schema, root, pad, False)
        while self._pending:
            self._pending.pop(next(iter(self._pending)))()
        return rendered.text

    def _render(self, schema: Any, root: SchemaRoot, pad: str, is_alias: bool) -> _TypeText:
        """`is_alias`: the schema is the right side of a type alias, where TypeScript forbids circular
        references.
        """
        if schema is False:
            return NEVER
        if not isinstance(schema, dict) or self._budget <= 0 or self._level >= MAX_LEVELS:
            return self._any_type
        self._budget -= 1
        self._level += 1
        rendered = self._combined_type(schema, root, pad, is_alias)
        self._level -= 1
        return rendered

    def _combined_type(self, schema: dict[str, Any], root: SchemaRoot, pad: str, is_alias: bool) -> _TypeText:
        parts = [self._own_type(schema, root, pad)]
        for keyword in REFERENCES:
            if isinstance(schema.get(keyword), str):
                parts.append(self._reference(schema[keyword], root, is_alias))
        for keyword in ("anyOf", "oneOf"):
            if isinstance(schema.get(keyword), list):
                parts.append(_union(self._render(option, root, pad, is_alias) for option in schema[keyword]))
        if isinstance(schema.get("allOf"), list):
            parts += [self._render(option, root, pad, is_alias) for option in schema["allOf"]]
        rendered = _intersection(parts)
        return _union([rendered, _PRIMITIVES["null"]]) if schema.get("nullable") is True else rendered

    def _own_type(self, schema: dict[str, Any], root: SchemaRoot, pad: str) -> _TypeText:
        """Renders the schema's own keywords, without references and combinations."""
        literals = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(literals, list) and len(literals) <= MAX_LITERALS:
            return _union(_literal(literal) for literal in literals)
        combined = any(keyword in schema for keyword in COMBINING_KEYWORDS)
        type_names = schema.get("type", implied_type(schema))
        options = []
        for type_name in type_names if isinstance(type_names, list) else [type_names]:
            if type_name == "object":
                is_unspecified = combined and not any(keyword in schema for keyword in OBJECT_KEYWORDS)
                options.append(self._any_type if is_unspecified else self._object(schema, root, pad))
            elif type_name == "array":
                is_unspecified = combined and not any(keyword in schema for keyword in ARRAY_KEYWORDS)
                options.append(self._any_type if is_unspecified else self._array(schema, root, pad))
            else:
                known = _PRIMITIVES.get(type_name) if isinstance(type_name, str) else None
                options.append(known or self._any_type)
        return _union(options)

    def _object(self, schema: dict[str, Any], root: SchemaRoot, pad: str) -> _TypeText:
        if schema is self._inline or not _is_only_object(schema):
            return self._object_literal(schema, root, pad)
        repeated = self._repeated.get(id(schema))
        if repeated is not None:
            return _TypeText(f"{self._prefix}{self._repeated_name(repeated, schema, root)}")
        if self._found is None:
            return self._object_literal(schema, root, pad)
        start = self._found.begin()
        rendered = self._object_literal(schema, root, pad)
        self._found.end(start, schema, rendered.text)
        return rendered

    def _object_literal(self, schema: dict[str, Any], root: SchemaRoot, pad: str) -> _TypeText:
        inner = pad + "  "
        properties = as_dict(schema.get("properties"))
        required = dict.fromkeys(name for name in as_list(schema.get("required")) if isinstance(name, str))
        members = []
        for name, property_schema in properties.items():
            mark = "" if name in required else "?"
            self._label = name
            rendered = self._render(property_schema, root, inner, False)
            members.append(
                (self._comment(property_schema, inner), f"{property_key(name)}{mark}: {rendered.text}")
            )
        # The type is always `unknown` and never `any`, because an intersection with `any` would turn the type
        # from another part of the schema into `any`.
        members += [("", f"{property_key(name)}: unknown") for name in required if name not in properties]
        others = self._other_properties(schema, root, inner)
        if others is not None:
            # With named members, the index signature must allow any type, because TypeScript applies the
            # index signature to these members, too.
            members.append(("", f"[key: string]: {(self._any_type if members else others).text}"))
        elif not members:
            closed = schema.get("additionalProperties") is False
            members.append(("", f"[key: string]: {(NEVER if closed else self._any_type).text}"))
        return _TypeText(self._braces(members, pad))

    def _braces(self, members: list[tuple[str, str]], pad: str) -> str:
        line = "; ".join(member for _, member in members)
        short = len(line) <= MAX_ONE_LINE_CHARS and "\n" not in line and not any(doc for doc, _ in members)
        if short or self._compact:
            return f"{{ {line} }}"
        return "{\n" + "".join(f"{doc}{pad}  {member};\n" for doc, member in members) + pad + "}"

    def _comment(self, schema: Any, pad: str, default: bool = True) -> str:
        return "" if self._compact else doc_comment(_schema_comment_lines(schema, default), pad)

    def _other_properties(self, schema: dict[str, Any], root: SchemaRoot, pad: str) -> _TypeText | None:
        others = list(as_dict(schema.get("patternProperties")).values())
        additional = schema.get("additionalProperties")
        if additional is True or isinstance(additional, dict):
            others.append(additional)
        return _union(self._render(other, root, pad, False) for other in others) if others else None

    def _array(self, schema: dict[str, Any], root: SchemaRoot, pad: str) -> _TypeText:
        self._label = _singular(self._label)
        items = schema.get("items", True)
        old_style = isinstance(items, list)
        item_schemas = items if old_style else as_list(schema.get("prefixItems"))
        rest = schema.get("additionalItems", True) if old_style else items
        if not item_schemas:
            return _TypeText(f"{self._render(rest, root, pad, False).parenthesized(0)}[]")
        min_items = schema.get("minItems")
        min_items = min_items if isinstance(min_items, int) else len(item_schemas)
        parts = []
        for index, item in enumerate(item_schemas):
            rendered = self._render(item, root, pad, False)
            parts.append(rendered.text if index < min_items else f"{rendered.parenthesized(0)}?")
        if rest is not False and schema.get("maxItems") != len(item_schemas):
            parts.append(f"...{self._render(rest, root, pad, False).parenthesized(0)}[]")
        return _TypeText(f"[{', '.join(parts)}]")

    # --- references ---

    def _reference(self, ref: str, root: SchemaRoot, is_alias: bool) -> _TypeText:
        target = resolve(ref, root)
        if target is UNRESOLVED:
            return self._any_type
        name = root.names.get(id(target)) or self._type_name(ref, target, root)
        if is_alias and name in self._rendering:
            return self._any_type
        if is_alias and name in self._pending:
            self._pending.pop(name)()
        return _TypeText(f"{self._prefix}{name}")

    def _type_name(self, ref: str, target: Any, root: SchemaRoot) -> str:
        shared = self._sharing_key(ref, root)
        name = self._shared.get(shared) if shared else None
        if name is None:
            name = self._free_name(root.label if target is root.schema else pointer_steps(ref)[-1])
            self.declarations[name] = ""  # reserves its place in the order of declarations
            self._pending[name] = lambda: self._declare(name, target, root)
            if shared:
                self._shared[shared] = name
        root.names[id(target)] = name
        return name

    def _repeated_name(self, text: str, schema: dict[str, Any], root: SchemaRoot) -> str:
        name = self._shared.get(text)
        if name is None:
            name = self._shared[text] = self._free_name(self._label or root.label)
            self.declarations[name] = ""  # reserves its place in the order of declarations
            self._pending[name] = lambda: self._declare(name, schema, root)
        return name

    def _declare(self, name: str, target: Any, root: SchemaRoot) -> None:
        self._rendering.append(name)
        self._label, self._inline = name, target
        rendered = self._render(target, root, "  ", True)
        self._rendering.pop()
        doc = self._comment(target, "  ", default=False)
        if rendered.precedence == 0 and rendered.text.startswith("{") and rendered.text.endswith("}"):
            self.declarations[name] = f"{doc}  interface {name} {rendered.text}"
        else:
            self.declarations[name] = f"{doc}  type {name} = {rendered.text};"

    def _free_name(self, wanted: str) -> str:
        safe = safe_name(wanted[:80])
        base = name = safe[0].upper() + safe[1:]
        number = 1
        while name in self._used_names:
            number += 1
            name = f"{base}_{number}"
        self._used_names.add(name)
        return name

    def _sharing_key(self, ref: str, root: SchemaRoot) -> Any:
        """Returns a key for a reference, or None after too many steps. References with equal keys share one
        type. Two references have equal keys if they have the same text and if all schemas to which they lead
        are equal.
        """
        reached: dict[str, str] = {}
        pending = [ref]
        while pending:
            reference = pending.pop()
            self._steps -= 1
            if self._steps < 0:
                return None
            target = UNRESOLVED if reference in reached else resolve(reference, root)
            if target is not UNRESOLVED:
                reached[reference], further = self._body(target, root)
                pending += further
        return ref, frozenset(reached.items())

    def _body(self, target: Any, root: SchemaRoot) -> tuple[str, list[str]]:
        """Returns the text of a referenced schema, and the references in it."""
        known = root.bodies.get(id(target))
        if known is None:
            known = root.bodies[id(target)] = (json.dumps(target, sort_keys=True), references(target))
            self._steps -= len(known[0]) // 100
        return known


def _is_only_object(schema: dict[str, Any]) -> bool:
    return schema.get("type", "object") == "object" and not any(
        keyword in schema for keyword in (*COMBINING_KEYWORDS, "const", "enum", "nullable")
    )


def _singular(name: str) -> str:
    for plural, singular in (("ies", "y"), ("sses", "ss"), ("xes", "x"), ("ches", "ch"), ("shes", "sh")):
        if name.endswith(plural):
            return name.removesuffix(plural) + singular
    return name if name.endswith(("ss", "us", "is")) else name.removesuffix("s")


# --- type expressions ---


def _union(types: Iterable[_TypeText]) -> _TypeText:
    parts = list(dict.fromkeys(part for part in types if part != NEVER))
    for part in parts:
        if part in _UNTYPED:
            return part
    if len(parts) < 2:
        return parts[0] if parts else NEVER
    return _TypeText(" | ".join(part.text for part in parts), 2)


def _intersection(types: Iterable[_TypeText]) -> _TypeText:
    unique = list(dict.fromkeys(types))
    parts = [part for part in unique if part not in _UNTYPED]
    if NEVER in parts:
        return NEVER
    if len(parts) < 2:
        return (parts or unique)[0]
    return _TypeText(" & ".join(part.parenthesized(1) for part in parts), 1)


def _literal(value: Any) -> _TypeText:
    if isinstance(value, dict):
        members = "; ".join(f"{property_key(name)}: {_literal(item).text}" for name, item in value.items())
        return _TypeText(f"{{ {members} }}" if members else "{}")
    if isinstance(value, list):
        return _TypeText(f"[{', '.join(_literal(item).text for item in value)}]")
    if isinstance(value, str):
        return _TypeText(string_literal(value))
    if value is None or isinstance(value, bool):
        return _TypeText(json.dumps(value))
    return _TypeText(repr(value)) if abs(value) < 2**53 else _PRIMITIVES["number"]


def string_literal(text: str) -> str:
    quoted = json.dumps(text, ensure_ascii=False)
    if quoted.isprintable():
        return quoted
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in quoted)


def property_key(name: str) -> str:
    return name if is_identifier(name) else string_literal(name)


# --- comments ---


def _schema_comment_lines(schema: Any, default: bool = True) -> list[str]:
    if not isinstance(schema, dict):
        return []
    lines = comment_lines(schema.get("description"), 1_000)
    if isinstance(schema.get("format"), str):
        lines += comment_lines(f"@format {schema['format']}", 80)
    for bound in _CONSTRAINTS:
        if isinstance(schema.get(bound), int | float | str) and not isinstance(schema[bound], bool):
            lines += comment_lines(f"@{bound} {schema[bound]}", 200)
    if default and schema.get("default") is not None:
        lines += comment_lines(f"@default {json.dumps(schema['default'], ensure_ascii=False)}", 200)
    return [*lines, "@deprecated"] if schema.get("deprecated") is True else lines


def comment_lines(text: Any, maximum: int) -> list[str]:
    if not isinstance(text, str):
        return []
    clipped = text if len(text) <= maximum else f"{text[:maximum]}…"
    # Use `splitlines`, because it splits at every character that could end a line of the source.
    return [
        printable(line, replacement=" ").rstrip().replace("*/", "*\\/")
        for line in clipped.strip().splitlines()
    ]


def doc_comment(lines: list[str], pad: str) -> str:
    if not lines:
        return ""
    if len(lines) == 1:
        return f"{pad}/** {lines[0]} */\n"
    return f"{pad}/**\n" + "".join(f"{pad} * {line}".rstrip() + "\n" for line in lines) + f"{pad} */\n"


# --- declarations of tools ---


class DeclarableTool(Protocol):
    """Properties of a tool that its declaration needs."""

    @property
    def description(self) -> str | None: ...
    @property
    def input_schema(self) -> Mapping[str, Any] | None: ...
    @property
    def output_schema(self) -> Mapping[str, Any] | None: ...
    @property
    def streams(self) -> bool: ...


def namespace_declaration(provider_name: str, tools: Mapping[str, DeclarableTool]) -> str:
    """Returns `declare namespace N { … }` with a function for each tool and the types that these functions
    use.
    """
    types = TypeRenderer()
    functions = [_function_declaration(types, safe, tool) for safe, tool in tools.items()]
    members = [*types.declarations.values(), *functions]
    if not members:
        return f"declare namespace {provider_name} {{}}"
    return f"declare namespace {provider_name} {{\n" + "\n\n".join(members) + "\n}"


def _function_declaration(types: TypeRenderer, safe: str, tool: DeclarableTool) -> str:
    label = safe[:1].upper() + safe[1:]
    parameter = _parameter_declaration(types, SchemaRoot.of(tool.input_schema, f"{label}Input"))
    output = True if tool.output_schema is None else tool.output_schema
    result = types.render(SchemaRoot.of(output, f"{label}Output"))
    doc = doc_comment(comment_lines(tool.description, 4_000), "  ")
    iterable = ""
    if tool.streams:
        is_list = tool.output_schema is not None and tool.output_schema.get("type") == "array"
        item = result.removesuffix("[]") if is_list and result.endswith("[]") else "unknown"
        iterable = f" & AsyncIterable<{item}>"
    return f"{doc}  function {safe}({parameter}): Promise<{result}>{iterable};"


def _parameter_declaration(types: TypeRenderer, root: SchemaRoot) -> str:
    if allows_only_empty_object(root):
        return ""
    rendered = types.render(root)
    optional = rendered == "unknown" or allows_empty_object(root)
    return f"input{'?' if optional else ''}: {rendered}"
