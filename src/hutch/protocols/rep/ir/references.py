"""Parses and resolves references and literals in the parameters of a step.

A string is a reference if it consists of one of the forms below. In a path, `a.b` is a sequence of keys, `.0`
or `[0]` is an index, and `["odd key"]` is any key.

    $input.a.b      $.inputs.a.b        from the inputs of the run
    $step.id.a.b    $.vars.id.a.b       from the output of a step
    $$input.a                           the text `$input.a` itself

In a step with `interpolate`, a string may also contain references in braces. A string that consists of one is
replaced by the value, other strings contain the value as text.

    ${input.a.b}    ${step.id.a.b}      the value
    ${step.id.a?}                       null, or an empty text, if there is no such value
    $${input.a}                         the text `${input.a}` itself
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from hutch.errors import HutchError
from hutch.problems import JsonPath
from hutch.protocols.rep.ir.schema import MAX_ID_CHARS
from hutch.session.json_value import encode_value
from hutch.text import cut

if TYPE_CHECKING:
    from hutch.protocols.rep.ir.flow import Flow, FlowNode

MAX_RESOLVED_BYTES = 32 * 1024 * 1024
"""Maximum size of all values, as JSON, that the references of one step resolve to."""

MAX_REFERENCE_CHARS = 2_000
MAX_SEGMENTS = 100
"""Maximum number of keys and indexes in a reference."""

SUBFLOW_KINDS = ("flow.run",)
"""Kinds with another flow in their parameter `flow`."""

OPAQUE_PARAMETERS = {"switch": ("cases", "default"), **dict.fromkeys(SUBFLOW_KINDS, ("flow",))}
"""Parameters whose references are not resolved, by step kind."""

CODE_PARAMETERS = {
    "code.run": ("code",),
    "toolscript.run": ("code",),
    "ability.execute": ("transform",),
    "shell.run": ("command",),
}
"""Parameters without interpolation, by step kind. They are code: `${…}` has a meaning in it, and inserted
values could change what it does.
"""

_HEAD = re.compile(r"\$(?P<word>input|step|\.inputs|\.vars)(?=[.\[]|$)")
_SEGMENT = re.compile(
    r'\.(?P<key>[^\s.\[\]()"\'`${}]+)|\[(?P<index>\d{1,9})\]|\[(?P<quoted>"(?:[^"\\]|\\.)*")\]'
)
_STEP_WORDS = ("step", ".vars")
_TEMPLATE = re.compile(r"(?P<escape>\$?)\$\{(?P<body>(?:inputs?|steps?)\b[^{}]*)(?P<end>\}?)")
# A reference inside of a longer text.
_INSIDE = re.compile(r"(?<![$\w])\$\{?(?:input|step|\.inputs|\.vars)(?=[.\[])(?:\.[\w-]+|\[[^\]\s]*\])+\}?")
_MAX_LISTED_KEYS = 8
_MAX_KEY_CHARS = 80
_MAX_SHOWN_CHARS = 200

_TYPE_NAMES = {str: "string", bool: "boolean", int: "number", float: "number"}

_MAX_PYTHON_LITERAL = 10_000
_PYTHON_WORDS = ("True", "False", "None")
_LITERAL_STARTS = frozenset("\"'[{(+-0123456789.")
_JSON_TYPES_OF: dict[type, tuple[str, ...]] = {
    str: ("string",),
    bool: ("boolean",),
    int: ("integer", "number"),
    float: ("number",),
    list: ("array",),
    dict: ("object",),
    type(None): ("null",),
}


# --- references ---


class BadReference(ValueError):
    """The text starts like a reference but is not valid."""


class UnresolvedReference(HutchError):
    """The reference cannot be resolved in this run. The step fails and is not retried."""

    code = "unresolved_reference"

    def __init__(self, reference: str, message: str) -> None:
        super().__init__(f"{_shorten(reference)}: {message}")
        self.reference = reference


class Reference(NamedTuple):
    text: str
    step: str | None
    """Id of the step, or None for a reference to the inputs."""
    path: tuple[str | int, ...]


def parse_reference(text: str, steps: Collection[str] = ()) -> Reference | None:
    """Parses a reference. Returns None if the text is not a reference. Raises BadReference.

    Step ids may contain dots, so the longest id in `steps` that matches is used.
    """
    text = text.strip()
    if not text.startswith("$"):
        return None
    if len(text) > MAX_REFERENCE_CHARS and _HEAD.match(text):
        raise BadReference(
            f"{_shorten(text)} is not a reference: expected at most {MAX_REFERENCE_CHARS} characters"
        )
    split = _split(text) if len(text) <= MAX_REFERENCE_CHARS else None
    if split is None:
        return None
    word, path = split
    if word not in _STEP_WORDS:
        return Reference(text, None, path)
    if not path or not isinstance(path[0], str):
        raise BadReference(f"{text} does not name a step; expected $step.ID or $step.ID.KEY")
    name = candidate = path[0]
    length = 1
    for size, part in enumerate(path[1:], 2):
        if not isinstance(part, str) or len(candidate) > MAX_ID_CHARS:
            break
        candidate = f"{candidate}.{part}"
        if candidate in steps:
            name, length = candidate, size
    return Reference(text, name, path[length:])


@lru_cache(maxsize=4096)
def _split(text: str) -> tuple[str, tuple[str | int, ...]] | None:
    head = _HEAD.match(text)
    if head is None:
        return None
    path: list[str | int] = []
    position = head.end()
    while position < len(text):
        segment = _SEGMENT.match(text, position)
        if segment is None:
            raise BadReference(
                f'{_shorten(text)} is not a reference: expected keys after dots, [0] or ["key"];'
                " to pass this text itself, write a second $ before it"
            )
        if segment["index"] is not None:
            path.append(int(segment["index"]))
        elif segment["quoted"] is not None:
            path.append(_unquote(text, segment["quoted"]))
        else:
            path.append(segment["key"])
        if len(path) > MAX_SEGMENTS:
            raise BadReference(f"{_shorten(text)} has more than {MAX_SEGMENTS} keys and indexes")
        position = segment.end()
    return head["word"], tuple(path)


def _unquote(text: str, quoted: str) -> str:
    try:
        return msgspec.json.decode(quoted, type=str)
    except msgspec.DecodeError:
        raise BadReference(f"{_shorten(text)} is not a reference: {quoted} is not a JSON string") from None


def _shorten(text: str) -> str:
    return cut(" ".join(text[:_MAX_SHOWN_CHARS].split()), 80)


def find_references(value: Any, path: JsonPath = ()) -> Iterator[tuple[JsonPath, str]]:
    """Yields all strings that start like a reference, with their paths."""
    if isinstance(value, str):
        if _HEAD.match(value.strip()):
            yield path, value
    elif isinstance(value, dict):
        for key, child in value.items():
            yield from find_references(child, (*path, key))
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from find_references(child, (*path, index))


# --- interpolation ---


class TemplateReference(NamedTuple):
    """Reference in braces."""

    text: str
    """The reference without braces: `$input.a`."""
    is_optional: bool


@lru_cache(maxsize=1024)
def parse_template(text: str) -> tuple[str | TemplateReference, ...]:
    """Splits a text into literal parts and references. Raises BadReference."""
    parts: list[str | TemplateReference] = []
    position = 0
    for match in _TEMPLATE.finditer(text):
        parts.append(text[position : match.start()])
        position = match.end()
        if match["escape"]:
            parts.append(match[0][1:])
        else:
            parts.append(_template_reference(match[0], match["body"], match["end"]))
    parts.append(text[position:])
    return tuple(part for part in parts if part != "")


def _template_reference(whole: str, body: str, end: str) -> TemplateReference:
    if not end:
        raise BadReference(f"{_shorten(whole)} has no closing brace")
    if body.startswith(("inputs", "steps")):
        word = "input" if body.startswith("inputs") else "step"
        rest = body.removeprefix(f"{word}s")
        raise BadReference(
            f"{_shorten(whole)} is not a reference; did you mean ${{{_shorten(word + rest)}}}?"
        )
    reference = TemplateReference(f"${body.strip().removesuffix('?')}", body.rstrip().endswith("?"))
    if parse_reference(reference.text) is None:
        raise BadReference(
            f"{_shorten(whole)} is not a reference; expected ${{input.KEY}} or ${{step.ID.KEY}}"
        )
    return reference


def has_template(kind: str, parameters: Mapping[str, Any]) -> bool:
    """Returns True if a parameter of a step contains a reference in braces that can be interpolated."""
    return any(_TEMPLATE.search(text) for _, text in interpolated_texts(kind, parameters))


def interpolated_texts(
    kind: str, parameters: Mapping[str, Any], path: JsonPath = ()
) -> Iterator[tuple[JsonPath, str]]:
    """Yields the strings of a step's parameters that are interpolated if the step has `interpolate`."""
    literal = (*OPAQUE_PARAMETERS.get(kind, ()), *CODE_PARAMETERS.get(kind, ()))
    for key, value in parameters.items():
        if key not in literal:
            yield from _texts(value, (*path, key))


def _texts(value: Any, path: JsonPath) -> Iterator[tuple[JsonPath, str]]:
    if isinstance(value, str):
        if "$" in value:
            yield path, value
    elif isinstance(value, dict):
        for key, child in value.items():
            yield from _texts(child, (*path, key))
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from _texts(child, (*path, index))


def find_template_references(kind: str, parameters: Mapping[str, Any]) -> Iterator[TemplateReference]:
    """Yields the references in braces. Raises BadReference."""
    for _, text in interpolated_texts(kind, parameters):
        for part in parse_template(text):
            if isinstance(part, TemplateReference):
                yield part


def literal_reference(text: str, *, interpolate: bool) -> str | None:
    """Returns the part of a text that looks like a reference but is not replaced. None if there is none."""
    if _HEAD.match(text.strip().removeprefix("$")) or _HEAD.match(text.strip()):
        return None
    for match in _INSIDE.finditer(text):
        if not (interpolate and match[0].startswith("${")):
            return _shorten(match[0])
    return None


def _lookup_reference(reference: Reference, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Any:
    """Returns the value of a reference. Raises UnresolvedReference."""
    value: Any
    if reference.step is None:
        value = inputs
    elif reference.step in outputs:
        value = outputs[reference.step]
    else:
        raise UnresolvedReference(reference.text, f"step {reference.step} has no output in this run")
    for index in range(len(reference.path)):
        value = _member(reference, value, index)
    return value


def _member(reference: Reference, value: Any, index: int) -> Any:
    """Returns the member of a value that the part `index` of the reference names."""
    part = reference.path[index]
    if isinstance(value, Mapping):
        if part in value:
            return value[part]
        if isinstance(part, int) and str(part) in value:
            return value[str(part)]
        names = [cut(str(key), _MAX_KEY_CHARS) for key in islice(value, _MAX_LISTED_KEYS)]
        hint = (
            f"it has {', '.join(names)}{', …' if len(value) > len(names) else ''}" if names else "it is empty"
        )
        message = f"there is no {part!r} in {_container(reference, index)}; {hint}"
        raise UnresolvedReference(reference.text, message)
    if isinstance(value, (list, tuple)):
        position = (
            part if isinstance(part, int) else int(part) if part.isdecimal() and len(part) < 10 else None
        )
        if position is not None and position < len(value):
            return value[position]
        container = _container(reference, index)
        raise UnresolvedReference(
            reference.text,
            f"{container} is a list; expected an index, not {part!r}"
            if position is None
            else f"{container} has {len(value)} items, and no item {position}",
        )
    what = "null" if value is None else f"a {_TYPE_NAMES.get(type(value), 'single value')}"
    message = f"{_container(reference, index)} is {what}, which has no {part!r}"
    raise UnresolvedReference(reference.text, message)


def _container(reference: Reference, length: int) -> str:
    """Describes the value that the first parts of a reference lead to."""
    start = "the inputs" if reference.step is None else f"the output of {reference.step}"
    path = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in reference.path[:length])
    return start + "".join(path)


# --- resolving ---


def resolve_references(
    value: Any,
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any],
    *,
    steps: Collection[str] = (),
    schema: Any = None,
    literals: bool = False,
    interpolate: bool = False,
) -> Any:
    """Replaces all references in a value. Raises UnresolvedReference.

    With `interpolate`, references in braces are replaced as well.

    A string that contains a literal ("3", "[1, 2]") is decoded if `schema` does not allow a string. With
    `literals`, it is decoded unless the schema requires a string.
    """
    if isinstance(value, str):
        if interpolate and "${" in value:
            return _interpolate(value, inputs, outputs, steps)
        return _resolve_text(value, inputs, outputs, steps, schema, literals)
    if isinstance(value, dict):
        return {
            key: resolve_references(
                item,
                inputs,
                outputs,
                steps=steps,
                schema=_property(schema, key),
                literals=literals,
                interpolate=interpolate,
            )
            for key, item in value.items()
        }
    if isinstance(value, list):
        items = schema.get("items") if isinstance(schema, dict) else None
        return [
            resolve_references(
                item,
                inputs,
                outputs,
                steps=steps,
                schema=items,
                literals=literals,
                interpolate=interpolate,
            )
            for item in value
        ]
    return value


def _interpolate(
    text: str, inputs: Mapping[str, Any], outputs: Mapping[str, Any], steps: Collection[str]
) -> Any:
    try:
        parts = parse_template(text)
    except BadReference as error:
        raise UnresolvedReference(_shorten(text), str(error)) from None
    values = [
        part if isinstance(part, str) else _template_value(part, inputs, outputs, steps) for part in parts
    ]
    if len(values) == 1:
        return values[0]
    return "".join(
        value if isinstance(value, str) else _as_text(value, part)
        for value, part in zip(values, parts, strict=True)
    )


def _template_value(
    template: TemplateReference,
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any],
    steps: Collection[str],
) -> Any:
    reference = parse_reference(template.text, steps)
    assert reference is not None
    try:
        return _lookup_reference(reference, inputs, outputs)
    except UnresolvedReference:
        if template.is_optional:
            return None
        raise


def _as_text(value: Any, part: str | TemplateReference) -> str:
    """Returns a value as a part of a text: JSON, and nothing for a missing optional value."""
    if value is None and isinstance(part, TemplateReference) and part.is_optional:
        return ""
    return encode_value(value).decode()


def _resolve_text(
    text: str,
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any],
    steps: Collection[str],
    schema: Any,
    literals: bool,
) -> Any:
    bare = text.strip()
    if bare.startswith("$$") and _HEAD.match(bare[1:]):
        return bare[1:]
    try:
        reference = parse_reference(text, steps)
    except BadReference as error:
        raise UnresolvedReference(_shorten(text), str(error)) from None
    if reference is not None:
        return _lookup_reference(reference, inputs, outputs)
    return _coerce_literal(text, types_in(schema), eager=literals)


def _property(schema: Any, key: str) -> Any:
    if not isinstance(schema, dict):
        return None
    properties = schema.get("properties")
    if isinstance(properties, dict) and key in properties:
        return properties[key]
    return schema.get("additionalProperties")


def resolve_parameters(
    flow: Flow, node: FlowNode, inputs: Mapping[str, Any], outputs: Mapping[str, Any], schema: Any = None
) -> dict[str, Any]:
    """Resolves the parameters (`with`) of a step. `schema` is the JSON Schema of the step kind.

    The cases of a switch are not resolved, because they name steps. A flow in `flow.run` is not resolved,
    because it has its own references. Raises UnresolvedReference.
    """
    _check_size(flow, node, inputs, outputs)
    opaque = OPAQUE_PARAMETERS.get(node.kind, ())
    literals = flow.is_compiled or node.kind == "dsl.emit"
    code = CODE_PARAMETERS.get(node.kind, ())
    resolved = {}
    for key, value in node.with_.items():
        if key in opaque and (node.kind == "switch" or isinstance(value, dict)):
            resolved[key] = value
        else:
            resolved[key] = resolve_references(
                value,
                inputs,
                outputs,
                steps=flow.nodes,
                schema=_property(schema, key),
                literals=literals,
                interpolate=node.interpolate and key not in code,
            )
    return resolved


def _check_size(flow: Flow, node: FlowNode, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> None:
    """Limits the resolved size, because a short text may refer to a large output a thousand times.

    Raises UnresolvedReference.
    """
    total = 0
    opaque = OPAQUE_PARAMETERS.get(node.kind, ())
    values = [value for key, value in node.with_.items() if key not in opaque]
    references = [TemplateReference(text, False) for _, text in find_references(values)]
    if node.interpolate:
        try:
            references += find_template_references(node.kind, node.with_)
        except BadReference as error:
            raise UnresolvedReference(node.id, str(error)) from None
    for text, is_optional in references:
        try:
            reference = parse_reference(text, flow.nodes)
            if reference is not None:
                total += _size(_lookup_reference(reference, inputs, outputs))
        except BadReference:
            continue
        except UnresolvedReference:
            if not is_optional:
                raise
        if total > MAX_RESOLVED_BYTES:
            message = f"this makes the parameters of the step exceed {MAX_RESOLVED_BYTES // 2**20} MiB"
            raise UnresolvedReference(_shorten(text), message)


def _size(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    return len(encode_value(value)) if isinstance(value, (dict, list)) else 1


# --- literals ---


def _coerce_literal(text: str, types: Collection[str] | None, *, eager: bool) -> Any:
    """Decodes the literal in a string, or returns the string.

    `types` are the allowed JSON Schema types, None for all. With `eager`, any text that is a literal is
    decoded. That is needed for the public compiler, which quotes strings. Without `eager`, the text stays a
    string if a string is allowed.
    """
    if not eager and (types is None or "string" in types):
        return text
    value = _parse_literal(text)
    if value is text or types is None:
        return value
    return value if any(name in types for name in types_of(value)) else text


def _parse_literal(text: str) -> Any:
    """Decodes JSON or a Python literal. Returns the text itself if it is neither."""
    bare = text.strip()
    try:
        return msgspec.json.decode(bare)
    except (ValueError, RecursionError):
        pass
    if bare not in _PYTHON_WORDS and (bare[:1] not in _LITERAL_STARTS or len(bare) > _MAX_PYTHON_LITERAL):
        return text
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about unknown escapes
            return _to_json(ast.literal_eval(bare))
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return text


def _to_json(value: Any) -> Any:
    """Checks and converts a Python literal. Raises ValueError for values that do not exist in JSON."""
    if isinstance(value, (list, tuple)):
        return [_to_json(item) for item in value]
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise ValueError("a key that is not a string")
        return {key: _to_json(item) for key, item in value.items()}
    if type(value) not in _JSON_TYPES_OF or value != value or value in (float("inf"), float("-inf")):
        raise ValueError("not a JSON value")
    return value


def types_of(value: Any) -> tuple[str, ...]:
    """Returns the JSON Schema types of a value."""
    is_integral = isinstance(value, float) and value.is_integer()
    return ("integer", "number") if is_integral else _JSON_TYPES_OF[type(value)]


def types_in(schema: Any) -> frozenset[str] | None:
    """Returns the types that a JSON Schema allows, or None if it does not restrict them."""
    if not isinstance(schema, dict):
        return None
    choices = schema.get("anyOf", schema.get("oneOf"))
    if isinstance(choices, list):
        allowed = [types_in(choice) for choice in choices]
        return None if None in allowed else frozenset(name for names in allowed for name in names or ())
    declared = schema.get("type")
    if isinstance(declared, str):
        return frozenset({declared})
    if isinstance(declared, list):
        return frozenset(name for name in declared if isinstance(name, str))
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if not isinstance(values, list):
        return None
    return frozenset(name for value in values for name in _JSON_TYPES_OF.get(type(value), ()))
