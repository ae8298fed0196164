"""Parses the references in the parameters of a step. `resolve` replaces them by values.

A string is a reference if it consists of one of the forms below. In a path, `a.b` is a sequence of keys, `.0`
or `[0]` is an index, and `["odd key"]` is any key.

    $input.a.b      $.inputs.a.b        from the inputs of the run
    $step.id.a.b    $.vars.id.a.b       from the output of a step
    $item.a.b       $index              the item of a `for_each` and its index, only in its inner step
    $$input.a                           the text `$input.a` itself

In a step with `interpolate`, a string may also contain references in braces. A string that consists of one is
replaced by the value, other strings contain the value as text.

    ${input.a.b}    ${step.id.a.b}      the value
    ${step.id.a?}                       null, or an empty text, if there is no such value
    $${input.a}                         the text `${input.a}` itself
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import msgspec

from hutch.problems import JsonPath
from hutch.protocols.rep.ir.schema import FOR_EACH, MAX_ID_CHARS
from hutch.text import cut

MAX_REFERENCE_CHARS = 2_000
MAX_SEGMENTS = 100
"""Maximum number of keys and indexes in a reference."""

SUBFLOW_KINDS = ("flow.run",)
"""Kinds with another flow in their parameter `flow`."""

OPAQUE_PARAMETERS = {
    "switch": ("cases", "default"),
    FOR_EACH: ("step",),
    **dict.fromkeys(SUBFLOW_KINDS, ("flow",)),
}
"""Parameters whose references are not resolved, by step kind."""

CODE_PARAMETERS = {
    "code.run": ("code",),
    "toolscript.run": ("code",),
    "ability.execute": ("transform",),
    "shell.run": ("command",),
}
"""Parameters without interpolation, by step kind. These parameters are code: `${…}` has another meaning
there, and inserted values could change the program.
"""

_HEAD = re.compile(r"\$(?P<word>input|step|\.inputs|\.vars)(?=[.\[]|$)")
# In the inner step of a `for_each`, `$item` and `$index` are references too. Elsewhere they are ordinary
# text.
_ITEM_HEAD = re.compile(r"\$(?P<word>input|step|\.inputs|\.vars|item|index)(?=[.\[]|$)")
_SEGMENT = re.compile(
    r'\.(?P<key>[^\s.\[\]()"\'`${}]+)|\[(?P<index>\d{1,9})\]|\[(?P<quoted>"(?:[^"\\]|\\.)*")\]'
)
_STEP_WORDS = ("step", ".vars")
_TEMPLATE = re.compile(r"(?P<escape>\$?)\$\{(?P<body>(?:inputs?|steps?)\b[^{}]*)(?P<end>\}?)")
_ITEM_TEMPLATE = re.compile(r"(?P<escape>\$?)\$\{(?P<body>(?:inputs?|steps?|item|index)\b[^{}]*)(?P<end>\}?)")
# Matches a reference inside of a longer text.
_INSIDE = re.compile(r"(?<![$\w])\$\{?(?:input|step|\.inputs|\.vars)(?=[.\[])(?:\.[\w-]+|\[[^\]\s]*\])+\}?")
_ITEM_INSIDE = re.compile(r"(?<![$\w])(?:\$\{(?:item|index)\b[^{}]*\}|\$(?:item|index)(?=[.\[]|$))")
_MAX_SHOWN_CHARS = 200


class BadReference(ValueError):
    """The text starts like a reference but is not valid."""


class Reference(NamedTuple):
    text: str
    step: str | None
    """Id of the step, or None."""
    path: tuple[str | int, ...]
    root: Literal["input", "step", "item", "index"] = "input"


def starts_reference(text: str, *, in_item: bool = False) -> bool:
    """Returns True if the text starts like a reference. `in_item` is true in the inner step of a
    `for_each`.
    """
    return (_ITEM_HEAD if in_item else _HEAD).match(text.strip()) is not None


def parse_reference(text: str, steps: Collection[str] = (), *, in_item: bool = False) -> Reference | None:
    """Parses a reference. Returns None if the text is not a reference. Raises BadReference.

    Step ids may contain dots, so the longest id in `steps` that matches is used.
    """
    text = text.strip()
    if not text.startswith("$"):
        return None
    if len(text) > MAX_REFERENCE_CHARS and starts_reference(text, in_item=in_item):
        raise BadReference(
            f"{shorten(text)} is not a reference: expected at most {MAX_REFERENCE_CHARS} characters"
        )
    split = _split(text, in_item) if len(text) <= MAX_REFERENCE_CHARS else None
    if split is None:
        return None
    word, path = split
    if word == "item":
        return Reference(text, None, path, "item")
    if word == "index":
        if path:
            raise BadReference(f"{shorten(text)} is not a reference: $index is a number, without keys")
        return Reference(text, None, (), "index")
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
    return Reference(text, name, path[length:], "step")


@lru_cache(maxsize=4096)
def _split(text: str, in_item: bool) -> tuple[str, tuple[str | int, ...]] | None:
    head = (_ITEM_HEAD if in_item else _HEAD).match(text)
    if head is None:
        return None
    path: list[str | int] = []
    position = head.end()
    while position < len(text):
        segment = _SEGMENT.match(text, position)
        if segment is None:
            raise BadReference(
                f'{shorten(text)} is not a reference: expected keys after dots, [0] or ["key"];'
                " to pass this text itself, write a second $ before it"
            )
        if segment["index"] is not None:
            path.append(int(segment["index"]))
        elif segment["quoted"] is not None:
            path.append(_unquote(text, segment["quoted"]))
        else:
            path.append(segment["key"])
        if len(path) > MAX_SEGMENTS:
            raise BadReference(f"{shorten(text)} has more than {MAX_SEGMENTS} keys and indexes")
        position = segment.end()
    return head["word"], tuple(path)


def _unquote(text: str, quoted: str) -> str:
    try:
        return msgspec.json.decode(quoted, type=str)
    except msgspec.DecodeError:
        raise BadReference(f"{shorten(text)} is not a reference: {quoted} is not a JSON string") from None


def shorten(text: str) -> str:
    """Returns the start of a text on one line, for messages."""
    return cut(" ".join(text[:_MAX_SHOWN_CHARS].split()), 80)


def find_references(
    value: Any, path: JsonPath = (), *, in_item: bool = False
) -> Iterator[tuple[JsonPath, str]]:
    """Yields all strings that start like a reference, with their paths."""
    for place, text in _texts(value, path):
        if starts_reference(text, in_item=in_item):
            yield place, text


# --- interpolation ---


class TemplateReference(NamedTuple):
    """Reference in braces."""

    text: str
    """The reference without braces: `$input.a`."""
    is_optional: bool


@lru_cache(maxsize=1024)
def parse_template(text: str, *, in_item: bool = False) -> tuple[str | TemplateReference, ...]:
    """Splits a text into literal parts and references. Raises BadReference."""
    parts: list[str | TemplateReference] = []
    position = 0
    for match in (_ITEM_TEMPLATE if in_item else _TEMPLATE).finditer(text):
        parts.append(text[position : match.start()])
        position = match.end()
        if match["escape"]:
            parts.append(match[0][1:])
        else:
            parts.append(_template_reference(match[0], match["body"], match["end"], in_item))
    parts.append(text[position:])
    return tuple(part for part in parts if part != "")


def _template_reference(whole: str, body: str, end: str, in_item: bool) -> TemplateReference:
    if not end:
        raise BadReference(f"{shorten(whole)} has no closing brace")
    if body.startswith(("inputs", "steps")):
        word = "input" if body.startswith("inputs") else "step"
        rest = body.removeprefix(f"{word}s")
        raise BadReference(f"{shorten(whole)} is not a reference; did you mean ${{{shorten(word + rest)}}}?")
    reference = TemplateReference(f"${body.strip().removesuffix('?')}", body.rstrip().endswith("?"))
    if parse_reference(reference.text, in_item=in_item) is None:
        raise BadReference(
            f"{shorten(whole)} is not a reference; expected ${{input.KEY}} or ${{step.ID.KEY}}"
        )
    return reference


def has_template(kind: str, parameters: Mapping[str, Any], *, in_item: bool = False) -> bool:
    """Returns True if a parameter of a step contains a reference in braces that can be interpolated."""
    template = _ITEM_TEMPLATE if in_item else _TEMPLATE
    return any(template.search(text) for _, text in interpolated_texts(kind, parameters))


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


def find_template_references(
    kind: str, parameters: Mapping[str, Any], *, in_item: bool = False
) -> Iterator[TemplateReference]:
    """Yields the references in braces. Raises BadReference."""
    for _, text in interpolated_texts(kind, parameters):
        for part in parse_template(text, in_item=in_item):
            if isinstance(part, TemplateReference):
                yield part


def literal_reference(text: str, *, interpolate: bool) -> str | None:
    """Returns the part of a text that looks like a reference but is not replaced, or None."""
    if _HEAD.match(text.strip().removeprefix("$")) or _HEAD.match(text.strip()):
        return None
    for match in _INSIDE.finditer(text):
        if not (interpolate and match[0].startswith("${")):
            return shorten(match[0])
    return None


def misplaced_item(text: str) -> str | None:
    """Returns a reference to the item of a `for_each` in a step that may not use it, or None.

    Only the inner step of the `for_each` may use such a reference, so call this function with texts of other
    steps.
    """
    match = _ITEM_INSIDE.search(text)
    return None if match is None else shorten(match[0])
