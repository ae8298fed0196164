"""TypeScript declarations of a provider's tools, from JSON Schema: for a model to read, a compiler to check.

The schemas may be anybody's: whatever they hold, the text is well-formed TypeScript of bounded size, and what
cannot be understood is `unknown`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote

from hutch.session.names import is_identifier, safe_name

MAX_NODES = 20_000  # of one schema
MAX_NESTING = 100  # of its JSON
MAX_RENDERED = 200_000  # schemas of all tools together
MAX_LEVELS = 100  # of schemas in schemas, through references too
MAX_LITERALS = 200
MAX_SHARING_STEPS = 100_000
ONE_LINE = 72


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
    types = _Types()
    functions = [types.function(safe, tool) for safe, tool in tools.items()]
    members = [*types.declarations.values(), *functions]
    if not members:
        return f"declare namespace {provider_name} {{}}"
    return f"declare namespace {provider_name} {{\n" + "\n\n".join(members) + "\n}"


class _Type(NamedTuple):
    """The text of a type, and how loosely it binds: 0 atom, 1 intersection, 2 union."""

    text: str
    rank: int = 0

    def within(self, rank: int) -> str:
        return f"({self.text})" if self.rank > rank else self.text


UNKNOWN = _Type("unknown")
NEVER = _Type("never")

_PRIMITIVES = {
    "string": _Type("string"),
    "number": _Type("number"),
    "integer": _Type("number"),
    "boolean": _Type("boolean"),
    "null": _Type("null"),
}


class _Root(NamedTuple):
    """A whole schema: what references start from."""

    schema: Any
    label: str
    names: dict[int, str]
    """Type names by the identity of what is named: one thing can be referred to in many ways."""
    bodies: dict[int, tuple[str, list[str]]]


class _Types:
    """Renders schemas, and collects the types that they refer to by name."""

    def __init__(self) -> None:
        self.declarations: dict[str, str] = {}
        self._waiting: dict[str, Callable[[], None]] = {}
        self._open: list[str] = []
        self._shared: dict[Any, str] = {}
        self._taken = {"Promise"}
        self._steps = MAX_SHARING_STEPS
        self._budget = MAX_RENDERED
        self._level = 0

    def function(self, safe: str, tool: Declarable) -> str:
        label = safe[:1].upper() + safe[1:]
        given = _Root(_plain(tool.input_schema), f"{label}Input", {}, {})
        gives = _Root(_plain(tool.output_schema), f"{label}Output", {}, {})
        parameter = self._parameter(given)
        result = UNKNOWN if tool.output_schema is None else self._render(gives.schema, gives, "  ", False)
        while self._waiting:
            self._waiting.pop(next(iter(self._waiting)))()
        comment = _comment(_doc_lines(tool.description, 4_000), "  ")
        return f"{comment}  function {safe}({parameter}): Promise<{result.text}>;"

    def _parameter(self, root: _Root) -> str:
        schema = _target(root.schema, root)
        if _is_plain_object(schema) and _takes_nothing(schema):
            return ""
        rendered = self._render(root.schema, root, "  ", False)
        optional = rendered == UNKNOWN or _is_plain_object(schema)
        return f"input{'?' if optional else ''}: {rendered.text}"

    def _render(self, schema: Any, root: _Root, pad: str, bare: bool) -> _Type:
        """`bare` is the right side of an alias outside any brackets, where TypeScript allows no way back."""
        if schema is False:
            return NEVER
        if not isinstance(schema, dict) or self._budget <= 0 or self._level >= MAX_LEVELS:
            return UNKNOWN
        self._budget -= 1
        self._level += 1
        rendered = self._combined(schema, root, pad, bare)
        self._level -= 1
        return rendered

    def _combined(self, schema: dict[str, Any], root: _Root, pad: str, bare: bool) -> _Type:
        parts = [self._own(schema, root, pad)]
        if isinstance(schema.get("$ref"), str):
            parts.append(self._reference(schema["$ref"], root, bare))
        for key in ("anyOf", "oneOf"):
            if isinstance(schema.get(key), list):
                parts.append(_union(self._render(each, root, pad, bare) for each in schema[key]))
        if isinstance(schema.get("allOf"), list):
            parts += [self._render(each, root, pad, bare) for each in schema["allOf"]]
        rendered = _intersection(parts)
        return _union([rendered, _PRIMITIVES["null"]]) if schema.get("nullable") is True else rendered

    def _own(self, schema: dict[str, Any], root: _Root, pad: str) -> _Type:
        """What the schema says itself, without what it refers to or combines."""
        literals = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(literals, list) and len(literals) <= MAX_LITERALS:
            return _union(_literal(each) for each in literals)
        combined = any(key in schema for key in ("$ref", "anyOf", "oneOf", "allOf"))
        kinds = schema.get("type", _implied(schema))
        options = []
        for kind in kinds if isinstance(kinds, list) else [kinds]:
            if kind == "object":
                silent = combined and not any(key in schema for key in _OF_OBJECTS)
                options.append(UNKNOWN if silent else self._object(schema, root, pad))
            elif kind == "array":
                silent = combined and not any(key in schema for key in _OF_ARRAYS)
                options.append(UNKNOWN if silent else self._array(schema, root, pad))
            else:
                options.append(_PRIMITIVES.get(kind, UNKNOWN) if isinstance(kind, str) else UNKNOWN)
        return _union(options)

    def _object(self, schema: dict[str, Any], root: _Root, pad: str) -> _Type:
        inner = pad + "  "
        properties = _dict(schema.get("properties"))
        required = dict.fromkeys(name for name in _list(schema.get("required")) if isinstance(name, str))
        members = []
        for name, each in properties.items():
            mark = "" if name in required else "?"
            rendered = self._render(each, root, inner, False)
            members.append((_comment(_schema_doc(each), inner), f"{_key(name)}{mark}: {rendered.text}"))
        members += [("", f"{_key(name)}: unknown") for name in required if name not in properties]
        others = self._other_properties(schema, root, inner)
        if others is not None:
            # An index signature must hold for the named members too.
            members.append(("", f"[key: string]: {'unknown' if members else others.text}"))
        elif not members:
            closed = schema.get("additionalProperties") is False
            members.append(("", f"[key: string]: {'never' if closed else 'unknown'}"))
        return _Type(_braces(members, pad))

    def _other_properties(self, schema: dict[str, Any], root: _Root, pad: str) -> _Type | None:
        others = list(_dict(schema.get("patternProperties")).values())
        additional = schema.get("additionalProperties")
        if additional is True or isinstance(additional, dict):
            others.append(additional)
        return _union(self._render(each, root, pad, False) for each in others) if others else None

    def _array(self, schema: dict[str, Any], root: _Root, pad: str) -> _Type:
        items = schema.get("items", True)
        old_style = isinstance(items, list)
        first = items if old_style else _list(schema.get("prefixItems"))
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

    def _reference(self, ref: str, root: _Root, bare: bool) -> _Type:
        target = _resolve(ref, root.schema)
        if target is _NOTHING:
            return UNKNOWN
        name = root.names.get(id(target)) or self._name(ref, target, root)
        if bare and name in self._open:
            return UNKNOWN
        if bare and name in self._waiting:
            self._waiting.pop(name)()
        return _Type(name)

    def _name(self, ref: str, target: Any, root: _Root) -> str:
        key = self._sharing_key(ref, root)
        name = self._shared.get(key) if key else None
        if name is None:
            name = self._free_name(root.label if ref == "#" else _steps(ref)[-1])
            self.declarations[name] = ""  # keeps its place
            self._waiting[name] = lambda: self._declare(name, target, root)
            if key:
                self._shared[key] = name
        root.names[id(target)] = name
        return name

    def _declare(self, name: str, target: Any, root: _Root) -> None:
        self._open.append(name)
        rendered = self._render(target, root, "  ", True)
        self._open.pop()
        comment = _comment(_schema_doc(target, default=False), "  ")
        if rendered.rank == 0 and rendered.text.startswith("{") and rendered.text.endswith("}"):
            self.declarations[name] = f"{comment}  interface {name} {rendered.text}"
        else:
            self.declarations[name] = f"{comment}  type {name} = {rendered.text};"

    def _free_name(self, wanted: str) -> str:
        safe = safe_name(wanted[:80])
        base = name = safe[0].upper() + safe[1:]
        number = 1
        while name in self._taken:
            number += 1
            name = f"{base}_{number}"
        self._taken.add(name)
        return name

    def _sharing_key(self, ref: str, root: _Root) -> Any:
        """Equal for references that mean the same in two schemas: all that they reach is equal."""
        reached: dict[str, str] = {}
        waiting = [ref]
        while waiting:
            each = waiting.pop()
            self._steps -= 1
            if self._steps < 0:
                return None
            target = _NOTHING if each in reached else _resolve(each, root.schema)
            if target is not _NOTHING:
                reached[each], further = self._body(target, root)
                waiting += further
        return ref, frozenset(reached.items())

    def _body(self, target: Any, root: _Root) -> tuple[str, list[str]]:
        """The text of a schema that is referred to, and the references in it."""
        known = root.bodies.get(id(target))
        if known is None:
            known = root.bodies[id(target)] = (json.dumps(target, sort_keys=True), _references(target))
            self._steps -= len(known[0]) // 100
        return known


_OF_OBJECTS = ("properties", "required", "additionalProperties", "patternProperties")
_OF_ARRAYS = ("items", "prefixItems")


def _implied(schema: dict[str, Any]) -> str | None:
    if any(key in schema for key in _OF_OBJECTS):
        return "object"
    return "array" if any(key in schema for key in _OF_ARRAYS) else None


def _is_plain_object(schema: Any) -> bool:
    """Whether `{}` fits, so that a call may leave its input out."""
    if not isinstance(schema, dict) or schema.get("required"):
        return False
    if any(key in schema for key in ("$ref", "anyOf", "oneOf", "allOf", "minProperties")):
        return False
    return bool(schema.get("type", _implied(schema)) == "object")


def _takes_nothing(schema: dict[str, Any]) -> bool:
    others = schema.get("additionalProperties")
    return schema.get("properties") == {} and not others and "patternProperties" not in schema


def _target(schema: Any, root: _Root) -> Any:
    for _ in range(MAX_LEVELS):
        if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str):
            break
        schema = _resolve(schema["$ref"], root.schema)
    return schema


_NOTHING = object()


def _resolve(ref: str, root: Any) -> Any:
    """What a reference into the schema itself leads to."""
    if ref == "#":
        return root
    if not ref.startswith("#/"):
        return _NOTHING
    found = root
    for key in _steps(ref):
        if isinstance(found, list) and key.isdecimal() and len(key) < 6 and int(key) < len(found):
            found = found[int(key)]
        elif isinstance(found, dict) and key in found:
            found = found[key]
        else:
            return _NOTHING
    return found


def _steps(ref: str) -> list[str]:
    return [step.replace("~1", "/").replace("~0", "~") for step in unquote(ref[2:]).split("/")]


def _references(node: Any) -> list[str]:
    found = []
    waiting = [node]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            if isinstance(each.get("$ref"), str):
                found.append(each["$ref"])
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each
    return found


def _union(types: Iterable[_Type]) -> _Type:
    parts = list(dict.fromkeys(each for each in types if each != NEVER))
    if UNKNOWN in parts:
        return UNKNOWN
    if len(parts) < 2:
        return parts[0] if parts else NEVER
    return _Type(" | ".join(each.text for each in parts), 2)


def _intersection(types: Iterable[_Type]) -> _Type:
    parts = list(dict.fromkeys(each for each in types if each != UNKNOWN))
    if NEVER in parts:
        return NEVER
    if len(parts) < 2:
        return parts[0] if parts else UNKNOWN
    return _Type(" & ".join(each.within(1) for each in parts), 1)


def _literal(value: Any) -> _Type:
    if isinstance(value, dict):
        members = "; ".join(f"{_key(name)}: {_literal(each).text}" for name, each in value.items())
        return _Type(f"{{ {members} }}" if members else "{}")
    if isinstance(value, list):
        return _Type(f"[{', '.join(_literal(each).text for each in value)}]")
    if isinstance(value, str):
        return _Type(_quote(value))
    if value is None or isinstance(value, bool):
        return _Type(json.dumps(value))
    return _Type(repr(value)) if abs(value) < 2**53 else _PRIMITIVES["number"]


def _quote(text: str) -> str:
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in quoted)


def _key(name: str) -> str:
    return name if is_identifier(name) else _quote(name)


def _braces(members: list[tuple[str, str]], pad: str) -> str:
    line = "; ".join(member for _, member in members)
    if len(line) <= ONE_LINE and "\n" not in line and not any(comment for comment, _ in members):
        return f"{{ {line} }}"
    return "{\n" + "".join(f"{comment}{pad}  {member};\n" for comment, member in members) + pad + "}"


def _schema_doc(schema: Any, default: bool = True) -> list[str]:
    if not isinstance(schema, dict):
        return []
    lines = _doc_lines(schema.get("description"), 1_000)
    if isinstance(schema.get("format"), str):
        lines += _doc_lines(f"@format {schema['format']}", 80)
    if default and schema.get("default") is not None:
        lines += _doc_lines(f"@default {json.dumps(schema['default'], ensure_ascii=False)}", 200)
    return [*lines, "@deprecated"] if schema.get("deprecated") is True else lines


def _doc_lines(text: Any, most: int) -> list[str]:
    if not isinstance(text, str):
        return []
    clipped = text if len(text) <= most else f"{text[:most]}…"
    # splitlines knows every separator that could end a line of the source.
    return [
        "".join(each if each.isprintable() else " " for each in line).rstrip().replace("*/", "*\\/")
        for line in clipped.strip().splitlines()
    ]


def _comment(lines: list[str], pad: str) -> str:
    if not lines:
        return ""
    if len(lines) == 1:
        return f"{pad}/** {lines[0]} */\n"
    return f"{pad}/**\n" + "".join(f"{pad} * {line}".rstrip() + "\n" for line in lines) + f"{pad} */\n"


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


class _TooLarge(Exception):
    """A schema has more nodes than anyone would read."""


def _plain(schema: Any) -> Any:
    """A copy of bare JSON values, bounded in depth; True, which is any value, for what is too large."""
    left = MAX_NODES

    def copy(value: Any, depth: int) -> Any:
        nonlocal left
        left -= 1 + (len(value) // 64 if isinstance(value, str) else 0)
        if left < 0:
            raise _TooLarge
        if isinstance(value, Mapping):
            items = value.items() if depth < MAX_NESTING else ()
            return {copy(key, depth): copy(each, depth + 1) for key, each in items if isinstance(key, str)}
        if isinstance(value, (list, tuple)):
            return [copy(each, depth + 1) for each in value] if depth < MAX_NESTING else []
        return _scalar(value)

    try:
        return copy(schema, 0)
    except _TooLarge:
        return True


def _scalar(value: Any) -> Any:
    """Without subclasses, which may write themselves in their own way, and numbers that are not JSON."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value) if value.bit_length() <= 1024 else None
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return True
