"""References in the parameters of a step, and literals in strings: what they are and what they stand for.

A string that is one of these as a whole is a reference; `a.b` is a path of keys, `.0` or `[0]` an index,
`["odd key"]` any key:

    $input.a.b      $.inputs.a.b        from the inputs of the run
    $step.id.a.b    $.vars.id.a.b       from the output of a step
    $$input.a                           the text `$input.a` itself
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from hutch.doors.rep.literals import literal, types_in
from hutch.doors.rep.problems import Place
from hutch.errors import HutchError
from hutch.session.jsonvalue import encode_value

if TYPE_CHECKING:
    from hutch.doors.rep.flow import Flow, Node

_HEAD = re.compile(r"\$(?P<word>input|step|\.inputs|\.vars)(?=[.\[]|$)")
_SEGMENT = re.compile(
    r'\.(?P<key>[^\s.\[\]()"\'`${}]+)|\[(?P<index>\d{1,9})\]|\[(?P<quoted>"(?:[^"\\]|\\.)*")\]'
)
_OF_STEPS = ("step", ".vars")
_MOST_NAMED = 8
MOST_BYTES = 32 * 1024 * 1024
"""Of all that the references of one step lead to, as JSON."""


class BadReference(ValueError):
    """A string that begins like a reference and is none."""


class UnresolvedReference(HutchError):
    """A reference that leads to nothing in this run. The step that has it fails; to try again is no use."""

    code = "unresolved_reference"

    def __init__(self, reference: str, message: str) -> None:
        super().__init__(f"{reference}: {message}")
        self.reference = reference


class Reference(NamedTuple):
    text: str
    step: str | None
    """None for the inputs."""
    path: tuple[str | int, ...]


def parse(text: str, steps: Collection[str] = ()) -> Reference | None:
    """The reference that a text is, None if it is something else. Raises BadReference.

    Ids may have dots: of `steps`, the longest that fits is meant.
    """
    text = text.strip()
    if not text.startswith("$"):
        return None
    found = _split(text)
    if found is None:
        return None
    word, path = found
    if word not in _OF_STEPS:
        return Reference(text, None, path)
    if not path or not isinstance(path[0], str):
        raise BadReference(f"{text} names no step; expected $step.ID or $step.ID.KEY")
    length = 1
    names = [part for part in path if isinstance(part, str)]
    for size in range(2, len(names) + 1):
        if path[:size] == tuple(names[:size]) and ".".join(names[:size]) in steps:
            length = size
    return Reference(text, ".".join(names[:length]), path[length:])


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
                f'{_short(text)} is no reference: expected keys after dots, [0] or ["key"];'
                " where this text itself is meant, write a second $ before it"
            )
        if segment["index"] is not None:
            path.append(int(segment["index"]))
        elif segment["quoted"] is not None:
            path.append(_unquoted(text, segment["quoted"]))
        else:
            path.append(segment["key"])
        position = segment.end()
    return head["word"], tuple(path)


def _unquoted(text: str, quoted: str) -> str:
    try:
        return msgspec.json.decode(quoted, type=str)
    except msgspec.DecodeError:
        raise BadReference(f"{_short(text)} is no reference: {quoted} is no JSON string") from None


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 80 else f"{line[:77]}…"


def mentioned(value: Any, place: Place = ()) -> Iterator[tuple[Place, str]]:
    """Every string within a value that begins like a reference, and where it is."""
    if isinstance(value, str):
        if _HEAD.match(value.strip()):
            yield place, value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from mentioned(each, (*place, key))
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from mentioned(each, (*place, number))


def lookup(reference: Reference, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Any:
    """What a reference leads to. Raises UnresolvedReference."""
    if reference.step is None:
        value: Any = inputs
        so_far = "the inputs"
    elif reference.step in outputs:
        value = outputs[reference.step]
        so_far = f"the output of {reference.step}"
    else:
        raise UnresolvedReference(reference.text, f"step {reference.step} has no output in this run")
    for part in reference.path:
        value = _member(reference, value, part, so_far)
        so_far = f"{so_far}{f'[{part}]' if isinstance(part, int) else f'.{part}'}"
    return value


def _member(reference: Reference, value: Any, part: str | int, so_far: str) -> Any:
    if isinstance(value, Mapping):
        if part in value:
            return value[part]
        if isinstance(part, int) and str(part) in value:
            return value[str(part)]
        names = [str(key) for key in list(value)[:_MOST_NAMED]]
        has = (
            f"it has {', '.join(names)}{', …' if len(value) > len(names) else ''}" if names else "it is empty"
        )
        raise UnresolvedReference(reference.text, f"there is no {part!r} in {so_far}; {has}")
    if isinstance(value, (list, tuple)):
        index = part if isinstance(part, int) else int(part) if part.isdecimal() and len(part) < 10 else None
        if index is None:
            raise UnresolvedReference(reference.text, f"{so_far} is a list; expected an index, not {part!r}")
        if index >= len(value):
            raise UnresolvedReference(reference.text, f"{so_far} has {len(value)} items, and no item {index}")
        return value[index]
    what = "null" if value is None else f"a {_NAMES.get(type(value), 'single value')}"
    raise UnresolvedReference(reference.text, f"{so_far} is {what}, which has no {part!r}")


_NAMES = {str: "string", bool: "boolean", int: "number", float: "number"}


def resolve(
    value: Any,
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any],
    *,
    steps: Collection[str] = (),
    schema: Any = None,
    literals: bool = False,
) -> Any:
    """A value with all its references replaced. Raises UnresolvedReference.

    A literal in a string ("3", "[1, 2]") is read as what it says where `schema` wants something other than a
    string, and with `literals` wherever a schema does not want the string.
    """
    if isinstance(value, str):
        return _resolve_text(value, inputs, outputs, steps, schema, literals)
    if isinstance(value, dict):
        return {
            key: resolve(each, inputs, outputs, steps=steps, schema=_property(schema, key), literals=literals)
            for key, each in value.items()
        }
    if isinstance(value, list):
        items = schema.get("items") if isinstance(schema, dict) else None
        return [
            resolve(each, inputs, outputs, steps=steps, schema=items, literals=literals) for each in value
        ]
    return value


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
        reference = parse(text, steps)
    except BadReference as error:
        raise UnresolvedReference(_short(text), str(error)) from None
    if reference is not None:
        return lookup(reference, inputs, outputs)
    return literal(text, types_in(schema), eager=literals)


def _property(schema: Any, key: str) -> Any:
    if not isinstance(schema, dict):
        return None
    properties = schema.get("properties")
    if isinstance(properties, dict) and key in properties:
        return properties[key]
    return schema.get("additionalProperties")


def parameters(
    flow: Flow, node: Node, inputs: Mapping[str, Any], outputs: Mapping[str, Any], schema: Any = None
) -> dict[str, Any]:
    """What a step is given: its `with`, resolved. `schema` is that of its kind. Raises UnresolvedReference.

    What stays as it is: the cases of a switch, which name steps, and a flow within `flow.run`, whose
    references are its own.
    """
    _weigh(flow, node, inputs, outputs)
    opaque = OPAQUE.get(node.kind, ())
    literals = flow.compiled or node.kind == "dsl.emit"
    given = {}
    for key, value in node.with_.items():
        if key in opaque and (node.kind == "switch" or isinstance(value, dict)):
            given[key] = value
        else:
            given[key] = resolve(
                value, inputs, outputs, steps=flow.nodes, schema=_property(schema, key), literals=literals
            )
    return given


def _weigh(flow: Flow, node: Node, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> None:
    """A few words may name the same large output a thousand times. Raises UnresolvedReference."""
    total = 0
    opaque = OPAQUE.get(node.kind, ())
    given = [value for key, value in node.with_.items() if key not in opaque]
    for _, text in mentioned(given):
        try:
            reference = parse(text, flow.nodes)
        except BadReference:
            continue
        if reference is not None:
            total += _size(lookup(reference, inputs, outputs))
        if total > MOST_BYTES:
            message = f"with this, the step is given more than {MOST_BYTES // 2**20} MiB"
            raise UnresolvedReference(_short(text), message)


def _size(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    return len(encode_value(value)) if isinstance(value, (dict, list)) else 1


OPAQUE = {"switch": ("cases", "default"), "flow.run": ("flow",)}
"""Parameters, by kind, in which no references are looked for."""
