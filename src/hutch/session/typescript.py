"""TypeScript types from JSON Schema: for a model to read, a compiler to check.

The schemas may be anybody's: whatever they hold, the text is well-formed TypeScript of bounded size, and what
cannot be understood is `unknown`, or `any` where one asks for that.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

from hutch.session.names import is_identifier, safe_name
from hutch.session.schemas import (
    COMBINING,
    NOTHING,
    OF_ARRAYS,
    OF_OBJECTS,
    REFERENCES,
    Root,
    dict_of,
    implied,
    list_of,
    references,
    resolve,
    steps,
)

MAX_RENDERED = 200_000  # schemas of all tools together
MAX_LEVELS = 100  # of schemas in schemas, through references too
MAX_LITERALS = 200
MAX_SHARING_STEPS = 100_000
ONE_LINE = 72


class _Type(NamedTuple):
    """The text of a type, and how loosely it binds: 0 atom, 1 intersection, 2 union."""

    text: str
    rank: int = 0

    def within(self, rank: int) -> str:
        return f"({self.text})" if self.rank > rank else self.text


UNKNOWN = _Type("unknown")
ANY = _Type("any")
_OPEN = (UNKNOWN, ANY)
NEVER = _Type("never")

_PRIMITIVES = {
    "string": _Type("string"),
    "number": _Type("number"),
    "integer": _Type("number"),
    "boolean": _Type("boolean"),
    "null": _Type("null"),
}


class Types:
    """Renders schemas, and collects the types that they refer to by name.

    `anything` is what stands for a value of which nothing is known. `compact` leaves comments and line breaks
    out. Names in `taken` are given to no type. `prefix` leads from where the types are used to them.
    """

    def __init__(
        self,
        *,
        anything: Literal["unknown", "any"] = "unknown",
        compact: bool = False,
        taken: Iterable[str] = ("Promise",),
        prefix: str = "",
    ) -> None:
        self.declarations: dict[str, str] = {}
        self._anything = ANY if anything == "any" else UNKNOWN
        self._compact = compact
        self._prefix = prefix
        self._waiting: dict[str, Callable[[], None]] = {}
        self._open: list[str] = []
        self._shared: dict[Any, str] = {}
        self._taken = set(taken)
        self._steps = MAX_SHARING_STEPS
        self._budget = MAX_RENDERED
        self._level = 0

    def render(self, root: Root, pad: str = "  ") -> str:
        """The type of a schema; what it refers to is in `declarations` then."""
        rendered = self._render(root.schema, root, pad, False)
        while self._waiting:
            self._waiting.pop(next(iter(self._waiting)))()
        return rendered.text

    def _render(self, schema: Any, root: Root, pad: str, bare: bool) -> _Type:
        """`bare` is the right side of an alias outside any brackets, where TypeScript allows no way back."""
        if schema is False:
            return NEVER
        if not isinstance(schema, dict) or self._budget <= 0 or self._level >= MAX_LEVELS:
            return self._anything
        self._budget -= 1
        self._level += 1
        rendered = self._combined(schema, root, pad, bare)
        self._level -= 1
        return rendered

    def _combined(self, schema: dict[str, Any], root: Root, pad: str, bare: bool) -> _Type:
        parts = [self._own(schema, root, pad)]
        for word in REFERENCES:
            if isinstance(schema.get(word), str):
                parts.append(self._reference(schema[word], root, bare))
        for word in ("anyOf", "oneOf"):
            if isinstance(schema.get(word), list):
                parts.append(_union(self._render(each, root, pad, bare) for each in schema[word]))
        if isinstance(schema.get("allOf"), list):
            parts += [self._render(each, root, pad, bare) for each in schema["allOf"]]
        rendered = _intersection(parts)
        return _union([rendered, _PRIMITIVES["null"]]) if schema.get("nullable") is True else rendered

    def _own(self, schema: dict[str, Any], root: Root, pad: str) -> _Type:
        """What the schema says itself, without what it refers to or combines."""
        literals = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(literals, list) and len(literals) <= MAX_LITERALS:
            return _union(_literal(each) for each in literals)
        combined = any(word in schema for word in COMBINING)
        kinds = schema.get("type", implied(schema))
        options = []
        for kind in kinds if isinstance(kinds, list) else [kinds]:
            if kind == "object":
                silent = combined and not any(word in schema for word in OF_OBJECTS)
                options.append(self._anything if silent else self._object(schema, root, pad))
            elif kind == "array":
                silent = combined and not any(word in schema for word in OF_ARRAYS)
                options.append(self._anything if silent else self._array(schema, root, pad))
            else:
                known = _PRIMITIVES.get(kind) if isinstance(kind, str) else None
                options.append(known or self._anything)
        return _union(options)

    def _object(self, schema: dict[str, Any], root: Root, pad: str) -> _Type:
        inner = pad + "  "
        properties = dict_of(schema.get("properties"))
        required = dict.fromkeys(name for name in list_of(schema.get("required")) if isinstance(name, str))
        members = []
        for name, each in properties.items():
            mark = "" if name in required else "?"
            rendered = self._render(each, root, inner, False)
            members.append((self._comment(each, inner), f"{key(name)}{mark}: {rendered.text}"))
        # Never `any`: with what another part says of these it would make `any` of that too.
        members += [("", f"{key(name)}: unknown") for name in required if name not in properties]
        others = self._other_properties(schema, root, inner)
        if others is not None:
            # An index signature must hold for the named members too.
            members.append(("", f"[key: string]: {(self._anything if members else others).text}"))
        elif not members:
            closed = schema.get("additionalProperties") is False
            members.append(("", f"[key: string]: {(NEVER if closed else self._anything).text}"))
        return _Type(self._braces(members, pad))

    def _braces(self, members: list[tuple[str, str]], pad: str) -> str:
        line = "; ".join(member for _, member in members)
        short = len(line) <= ONE_LINE and "\n" not in line and not any(doc for doc, _ in members)
        if short or self._compact:
            return f"{{ {line} }}"
        return "{\n" + "".join(f"{doc}{pad}  {member};\n" for doc, member in members) + pad + "}"

    def _comment(self, schema: Any, pad: str, default: bool = True) -> str:
        return "" if self._compact else comment(_schema_doc(schema, default), pad)

    def _other_properties(self, schema: dict[str, Any], root: Root, pad: str) -> _Type | None:
        others = list(dict_of(schema.get("patternProperties")).values())
        additional = schema.get("additionalProperties")
        if additional is True or isinstance(additional, dict):
            others.append(additional)
        return _union(self._render(each, root, pad, False) for each in others) if others else None

    def _array(self, schema: dict[str, Any], root: Root, pad: str) -> _Type:
        items = schema.get("items", True)
        old_style = isinstance(items, list)
        first = items if old_style else list_of(schema.get("prefixItems"))
        rest = schema.get("additionalItems", True) if old_style else items
        if not first:
            return _Type(f"{self._render(rest, root, pad, False).within(0)}[]")
        least = schema.get("minItems")
        least = least if isinstance(least, int) else len(first)
        parts = []
        for index, each in enumerate(first):
            rendered = self._render(each, root, pad, False)
            parts.append(rendered.text if index < least else f"{rendered.within(0)}?")
        if rest is not False and schema.get("maxItems") != len(first):
            parts.append(f"...{self._render(rest, root, pad, False).within(0)}[]")
        return _Type(f"[{', '.join(parts)}]")

    # --- references ---

    def _reference(self, ref: str, root: Root, bare: bool) -> _Type:
        target = resolve(ref, root)
        if target is NOTHING:
            return self._anything
        name = root.names.get(id(target)) or self._name(ref, target, root)
        if bare and name in self._open:
            return self._anything
        if bare and name in self._waiting:
            self._waiting.pop(name)()
        return _Type(f"{self._prefix}{name}")

    def _name(self, ref: str, target: Any, root: Root) -> str:
        shared = self._sharing_key(ref, root)
        name = self._shared.get(shared) if shared else None
        if name is None:
            name = self._free_name(root.label if target is root.schema else steps(ref)[-1])
            self.declarations[name] = ""  # keeps its place
            self._waiting[name] = lambda: self._declare(name, target, root)
            if shared:
                self._shared[shared] = name
        root.names[id(target)] = name
        return name

    def _declare(self, name: str, target: Any, root: Root) -> None:
        self._open.append(name)
        rendered = self._render(target, root, "  ", True)
        self._open.pop()
        doc = self._comment(target, "  ", default=False)
        if rendered.rank == 0 and rendered.text.startswith("{") and rendered.text.endswith("}"):
            self.declarations[name] = f"{doc}  interface {name} {rendered.text}"
        else:
            self.declarations[name] = f"{doc}  type {name} = {rendered.text};"

    def _free_name(self, wanted: str) -> str:
        safe = safe_name(wanted[:80])
        base = name = safe[0].upper() + safe[1:]
        number = 1
        while name in self._taken:
            number += 1
            name = f"{base}_{number}"
        self._taken.add(name)
        return name

    def _sharing_key(self, ref: str, root: Root) -> Any:
        """Equal for references that mean the same in two schemas: all that they reach is equal."""
        reached: dict[str, str] = {}
        waiting = [ref]
        while waiting:
            each = waiting.pop()
            self._steps -= 1
            if self._steps < 0:
                return None
            target = NOTHING if each in reached else resolve(each, root)
            if target is not NOTHING:
                reached[each], further = self._body(target, root)
                waiting += further
        return ref, frozenset(reached.items())

    def _body(self, target: Any, root: Root) -> tuple[str, list[str]]:
        """The text of a schema that is referred to, and the references in it."""
        known = root.bodies.get(id(target))
        if known is None:
            known = root.bodies[id(target)] = (json.dumps(target, sort_keys=True), references(target))
            self._steps -= len(known[0]) // 100
        return known


def _union(types: Iterable[_Type]) -> _Type:
    parts = list(dict.fromkeys(each for each in types if each != NEVER))
    for each in parts:
        if each in _OPEN:
            return each
    if len(parts) < 2:
        return parts[0] if parts else NEVER
    return _Type(" | ".join(each.text for each in parts), 2)


def _intersection(types: Iterable[_Type]) -> _Type:
    given = list(dict.fromkeys(types))
    parts = [each for each in given if each not in _OPEN]
    if NEVER in parts:
        return NEVER
    if len(parts) < 2:
        return (parts or given)[0]
    return _Type(" & ".join(each.within(1) for each in parts), 1)


def _literal(value: Any) -> _Type:
    if isinstance(value, dict):
        members = "; ".join(f"{key(name)}: {_literal(each).text}" for name, each in value.items())
        return _Type(f"{{ {members} }}" if members else "{}")
    if isinstance(value, list):
        return _Type(f"[{', '.join(_literal(each).text for each in value)}]")
    if isinstance(value, str):
        return _Type(quote(value))
    if value is None or isinstance(value, bool):
        return _Type(json.dumps(value))
    return _Type(repr(value)) if abs(value) < 2**53 else _PRIMITIVES["number"]


def quote(text: str) -> str:
    quoted = json.dumps(text, ensure_ascii=False)
    if quoted.isprintable():
        return quoted
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in quoted)


def key(name: str) -> str:
    return name if is_identifier(name) else quote(name)


# What a type cannot say, and who does not know it learns by failing.
_BOUNDS = (
    *("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "multipleOf"),
    *("minLength", "maxLength", "pattern", "minItems", "maxItems"),
)


def _schema_doc(schema: Any, default: bool = True) -> list[str]:
    if not isinstance(schema, dict):
        return []
    lines = doc_lines(schema.get("description"), 1_000)
    if isinstance(schema.get("format"), str):
        lines += doc_lines(f"@format {schema['format']}", 80)
    for bound in _BOUNDS:
        if isinstance(schema.get(bound), int | float | str) and not isinstance(schema[bound], bool):
            lines += doc_lines(f"@{bound} {schema[bound]}", 200)
    if default and schema.get("default") is not None:
        lines += doc_lines(f"@default {json.dumps(schema['default'], ensure_ascii=False)}", 200)
    return [*lines, "@deprecated"] if schema.get("deprecated") is True else lines


def doc_lines(text: Any, most: int) -> list[str]:
    if not isinstance(text, str):
        return []
    clipped = text if len(text) <= most else f"{text[:most]}…"
    # splitlines knows every separator that could end a line of the source.
    return [_printable(line).rstrip().replace("*/", "*\\/") for line in clipped.strip().splitlines()]


def _printable(line: str) -> str:
    return line if line.isprintable() else "".join(each if each.isprintable() else " " for each in line)


def comment(lines: list[str], pad: str) -> str:
    if not lines:
        return ""
    if len(lines) == 1:
        return f"{pad}/** {lines[0]} */\n"
    return f"{pad}/**\n" + "".join(f"{pad} * {line}".rstrip() + "\n" for line in lines) + f"{pad} */\n"
