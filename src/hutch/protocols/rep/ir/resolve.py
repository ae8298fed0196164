"""Replaces the references in the parameters of a step by the values of a run."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from hutch.errors import HutchError
from hutch.protocols.rep.ir.literals import coerce_literal, types_in
from hutch.protocols.rep.ir.references import (
    CODE_PARAMETERS,
    OPAQUE_PARAMETERS,
    BadReference,
    Reference,
    TemplateReference,
    find_references,
    find_template_references,
    parse_reference,
    parse_template,
    shorten,
    starts_reference,
)
from hutch.session.json_value import encode_value
from hutch.text import cut

if TYPE_CHECKING:
    from hutch.protocols.rep.ir.flow import Flow, FlowNode

MAX_RESOLVED_BYTES = 32 * 1024 * 1024
"""Maximum size of all values, as JSON, that the references of one step resolve to."""
_MAX_LISTED_KEYS = 8
_MAX_KEY_CHARS = 80
_TYPE_NAMES = {str: "string", bool: "boolean", int: "number", float: "number"}


class UnresolvedReference(HutchError):
    """The reference cannot be resolved in this run. The step fails and is not retried."""

    code = "unresolved_reference"

    def __init__(self, reference: str, message: str) -> None:
        super().__init__(f"{shorten(reference)}: {message}")
        self.reference = reference


class LoopItem(NamedTuple):
    """Item of a `for_each`."""

    value: Any
    position: int


class ReferenceValues(NamedTuple):
    """Values that the references of a step can resolve to."""

    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]
    """Outputs of the finished steps, by step id."""
    steps: Collection[str] = ()
    """Ids of all steps of the flow."""
    item: LoopItem | None = None
    """Set in the inner step of a `for_each`."""
    optional_inputs: Collection[str] = ()
    """Names of inputs that are null if the run does not have them."""

    @property
    def in_item(self) -> bool:
        return self.item is not None

    def parse(self, text: str) -> Reference | None:
        """Parses a reference. Returns None if the text is not a reference. Raises BadReference."""
        return parse_reference(text, self.steps, in_item=self.in_item)

    def look_up(self, reference: Reference) -> Any:
        """Returns the value of a reference. Raises UnresolvedReference."""
        value = self._root(reference)
        if value is self.inputs and reference.path and reference.root == "input":
            name = str(reference.path[0])
            if name in self.optional_inputs and name not in self.inputs:
                value = {**self.inputs, name: None}
        for index in range(len(reference.path)):
            value = _member(reference, value, index)
        return value

    def _root(self, reference: Reference) -> Any:
        if reference.root == "input":
            return self.inputs
        if reference.step is None:
            assert self.item is not None
            return self.item.value if reference.root == "item" else self.item.position
        if reference.step in self.outputs:
            return self.outputs[reference.step]
        raise UnresolvedReference(reference.text, f"step {reference.step} has no output in this run")


def _member(reference: Reference, value: Any, index: int) -> Any:
    """Looks up part `index` of the reference's path in a value. Raises UnresolvedReference."""
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
    """Describes a value for a message. The first `length` parts of the reference lead to this value."""
    start = "the item" if reference.root == "item" else "the inputs"
    if reference.step is not None:
        start = f"the output of {reference.step}"
    path = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in reference.path[:length])
    return start + "".join(path)


def resolve_references(
    value: Any,
    values: ReferenceValues,
    *,
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
            return _interpolate(value, values)
        return _resolve_text(value, values, schema, literals)
    if isinstance(value, dict):
        return {
            key: resolve_references(
                item, values, schema=_property(schema, key), literals=literals, interpolate=interpolate
            )
            for key, item in value.items()
        }
    if isinstance(value, list):
        items = schema.get("items") if isinstance(schema, dict) else None
        return [
            resolve_references(item, values, schema=items, literals=literals, interpolate=interpolate)
            for item in value
        ]
    return value


def _interpolate(text: str, values: ReferenceValues) -> Any:
    try:
        parts = parse_template(text, in_item=values.in_item)
    except BadReference as error:
        raise UnresolvedReference(shorten(text), str(error)) from None
    replaced = [part if isinstance(part, str) else _template_value(part, values) for part in parts]
    if len(replaced) == 1:
        return replaced[0]
    return "".join(
        value if isinstance(value, str) else _as_text(value, part)
        for value, part in zip(replaced, parts, strict=True)
    )


def _template_value(template: TemplateReference, values: ReferenceValues) -> Any:
    reference = values.parse(template.text)
    assert reference is not None
    try:
        return values.look_up(reference)
    except UnresolvedReference:
        if template.is_optional:
            return None
        raise


def _as_text(value: Any, part: str | TemplateReference) -> str:
    """Formats a value for insertion into a text: as JSON, or as "" for a missing optional value."""
    if value is None and isinstance(part, TemplateReference) and part.is_optional:
        return ""
    return encode_value(value).decode()


def _resolve_text(text: str, values: ReferenceValues, schema: Any, literals: bool) -> Any:
    bare = text.strip()
    if bare.startswith("$$") and starts_reference(bare[1:], in_item=values.in_item):
        return bare[1:]
    try:
        reference = values.parse(text)
    except BadReference as error:
        raise UnresolvedReference(shorten(text), str(error)) from None
    if reference is not None:
        return values.look_up(reference)
    return coerce_literal(text, types_in(schema), eager=literals)


def _property(schema: Any, key: str) -> Any:
    if not isinstance(schema, dict):
        return None
    properties = schema.get("properties")
    if isinstance(properties, dict) and key in properties:
        return properties[key]
    return schema.get("additionalProperties")


def resolve_parameters(
    flow: Flow, node: FlowNode, values: ReferenceValues, schema: Any = None
) -> dict[str, Any]:
    """Resolves the parameters (`with`) of a step. `schema` is the JSON Schema of the step kind.

    The cases of a switch are not resolved, because they name steps. A flow in `flow.run` and the inner step
    of a `for_each` are not resolved, because they have their own references. Raises UnresolvedReference.
    """
    _check_size(node, values)
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
                values,
                schema=_property(schema, key),
                literals=literals,
                interpolate=node.interpolate and key not in code,
            )
    return resolved


def _check_size(node: FlowNode, values: ReferenceValues) -> None:
    """Limits the resolved size, because a short text may refer to a large output a thousand times.

    Raises UnresolvedReference.
    """
    total = 0
    opaque = OPAQUE_PARAMETERS.get(node.kind, ())
    parameters = [value for key, value in node.with_.items() if key not in opaque]
    found = find_references(parameters, in_item=values.in_item)
    references = [TemplateReference(text, False) for _, text in found]
    if node.interpolate:
        try:
            references += find_template_references(node.kind, node.with_, in_item=values.in_item)
        except BadReference as error:
            raise UnresolvedReference(node.id, str(error)) from None
    for text, is_optional in references:
        try:
            reference = values.parse(text)
            if reference is not None:
                total += _size(values.look_up(reference))
        except BadReference:
            continue
        except UnresolvedReference:
            if not is_optional:
                raise
        if total > MAX_RESOLVED_BYTES:
            message = f"this makes the parameters of the step exceed {MAX_RESOLVED_BYTES // 2**20} MiB"
            raise UnresolvedReference(shorten(text), message)


def _size(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    return len(encode_value(value)) if isinstance(value, (dict, list)) else 1
