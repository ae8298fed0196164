"""JSON Schema from Python type hints, and validation of values against hints and schemas.

msgspec handles the hints that it supports. pydantic, if installed, handles hints with pydantic types and
hints that msgspec refuses, such as a union of two dataclasses. pydantic and jsonschema-rs are imported
lazily.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
)
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec.structs import astuple

from hutch.errors import InvalidTool
from hutch.session.json_value import NotJsonSafe, decode_value, encode_value
from hutch.session.schema.validate import InvalidSchema, compile_schema, json_path, well_formed_value

Schema: TypeAlias = dict[str, Any]
Mode: TypeAlias = Literal["validation", "serialization"]

REMEDY = "Use JSON types, a dataclass, TypedDict, msgspec Struct or pydantic model, or an explicit schema."


class Mismatch(ValueError):
    """A value does not match. The message is one line with the path and the expected type."""

    def __init__(self, message: str, path: tuple[str | int, ...] = ()) -> None:
        super().__init__(_with_path(message, path) if path else message)
        self.message = message
        self.path = path


class Unsupported(TypeError):
    """A hint has no JSON Schema."""


class Shape(msgspec.Struct, frozen=True):
    """Schema of a hint, and the conversion from a JSON value to the hinted type."""

    schema: Schema
    convert: Callable[[Any], Any]
    """Converts a JSON value to the hinted type. Raises Mismatch."""
    by_msgspec: bool
    """True if msgspec converts the hint without pydantic."""


class Field(msgspec.Struct, frozen=True):
    """One parameter of a function."""

    name: str
    hint: Any
    required: bool
    default: Any = None
    description: str | None = None


class Definitions:
    """Merges the `$defs` of several schemas into one, with unique names."""

    def __init__(self) -> None:
        self.known: Schema = {}

    def merge(self, schema: Schema, prefix: str = "#/$defs/") -> Schema:
        """Moves the `$defs` of `schema` into this object, and returns the schema without them. Redirects
        references that start with `prefix`.
        """
        own_definitions: Schema = schema.pop("$defs", {})
        moved = {prefix + name: f"#/$defs/{name}" for name in own_definitions}
        adopted = {name: _redirect(body, moved) for name, body in own_definitions.items()}
        if any(name in self.known and self.known[name] != body for name, body in adopted.items()):
            # Rename all definitions of this schema and not only the conflicting ones, because a definition
            # that refers to a renamed definition changes as well.
            renamed = {name: self._free_name(name) for name in own_definitions}
            moved = {prefix + name: f"#/$defs/{new}" for name, new in renamed.items()}
            adopted = {renamed[name]: _redirect(body, moved) for name, body in own_definitions.items()}
        self.known |= adopted
        result: Schema = _redirect(schema, moved)
        return result

    def add_to(self, schema: Schema) -> Schema:
        return {**schema, "$defs": self.known} if self.known else schema

    def _free_name(self, name: str) -> str:
        number = 2
        while f"{name}_{number}" in self.known:
            number += 1
        return f"{name}_{number}"


def _redirect(node: Any, moved: dict[str, str]) -> Any:
    if isinstance(node, dict):
        return {key: _redirect(value, moved) for key, value in node.items()}
    if isinstance(node, list):
        return [_redirect(item, moved) for item in node]
    return moved.get(node, node) if isinstance(node, str) else node


def _value_shape(hint: Any, definitions: Definitions, mode: Mode = "validation") -> Shape:
    """Returns the shape of a hint. Raises Unsupported if the hint has no JSON Schema."""
    builders = (
        [_pydantic_shape, _msgspec_shape]
        if _mentions_pydantic(hint, {})
        else [_msgspec_shape, _pydantic_shape]
    )
    reasons = []
    for builder in builders:
        try:
            return builder(hint, definitions, mode)
        except Unsupported as error:
            reasons.append(str(error))
    raise Unsupported(reasons[0])


def object_shape(fields: Iterable[Field], where: str) -> Shape:
    """Returns the shape of an object with exactly these fields. The conversion returns a tuple of their
    values.

    Raises InvalidTool, which names `where`, the field and the remedy.
    """
    fields = list(fields)
    definitions = Definitions()
    shapes = []
    for field in fields:
        try:
            shapes.append(_value_shape(field.hint, definitions))
        except Unsupported as error:
            raise _invalid_parameter(where, field, error) from None
    schema: Schema = {
        "type": "object",
        "properties": {
            field.name: _with_description(shape.schema, field)
            for field, shape in zip(fields, shapes, strict=True)
        },
        "required": [field.name for field in fields if field.required],
        "additionalProperties": False,
    }
    return Shape(definitions.add_to(schema), _object_converter(fields, shapes), False)


def single_value_shape(field: Field, where: str) -> Shape:
    """Returns the shape of an input that is a single parameter. If the parameter has a default, null is
    accepted.

    Raises InvalidTool like `object_shape`.
    """
    definitions = Definitions()
    try:
        shape = _value_shape(field.hint, definitions)
    except Unsupported as error:
        raise _invalid_parameter(where, field, error) from None
    empty_for_none = is_model(field.hint)

    def convert(value: Any) -> Any:
        if value is None and not field.required:
            return field.default
        return shape.convert({} if value is None and empty_for_none else value)

    return Shape(definitions.add_to(shape.schema), convert, shape.by_msgspec)


def result_schema(hint: Any, where: str) -> Schema | None:
    """Returns the schema of a function's result, or None if the hint gives no type. Raises InvalidTool."""
    if hint in (None, Any, object, typing.NoReturn, typing.Never):
        return None
    if typing.get_origin(hint) in (Awaitable, Coroutine):
        return result_schema(typing.get_args(hint)[-1], where)
    definitions = Definitions()
    try:
        shape = _value_shape(hint, definitions, "serialization")
    except Unsupported as error:
        raise InvalidTool(
            f"{where}: the return hint cannot be JSON Schema: {error}.", remedy=REMEDY
        ) from None
    return definitions.add_to(shape.schema)


def item_hint(hint: Any) -> Any:
    """Returns the type of the values of an async generator, or Any if the hint does not contain the type."""
    arguments = typing.get_args(hint)
    is_iterator = typing.get_origin(hint) in (AsyncIterator, AsyncIterable, AsyncGenerator)
    return arguments[0] if is_iterator and arguments else Any


def is_model(hint: Any) -> bool:
    """Returns True if a hint is a class whose instances are JSON objects with named members."""
    while typing.get_origin(hint) is typing.Annotated:
        hint = typing.get_args(hint)[0]
    cls = typing.get_origin(hint) or hint
    if not isinstance(cls, type):
        return False
    if issubclass(cls, msgspec.Struct):
        return not cls.__struct_config__.array_like
    return _is_typed_dict(cls) or dataclasses.is_dataclass(cls) or hasattr(cls, "model_fields")


def _is_typed_dict(cls: type) -> bool:
    # typing.is_typeddict does not support typing_extensions.
    return issubclass(cls, dict) and hasattr(cls, "__required_keys__")


def _invalid_parameter(where: str, field: Field, error: Unsupported) -> InvalidTool:
    message = f"{where}: parameter `{field.name}` has a hint that cannot be JSON Schema: {error}."
    return InvalidTool(message, remedy=REMEDY)


def _with_description(schema: Schema, field: Field) -> Schema:
    described = dict(schema)
    if field.description:
        described.setdefault("description", field.description)
    if not field.required:
        with suppress(NotJsonSafe):
            described.setdefault("default", decode_value(encode_value(field.default)))
    return described


_ABSENT: Any = object()


def _object_converter(fields: list[Field], shapes: list[Shape]) -> Callable[[Any], tuple[Any, ...]]:
    members: list[Any] = []
    by_pydantic = []
    for index, (field, shape) in enumerate(zip(fields, shapes, strict=True)):
        hint = field.hint if shape.by_msgspec else Any
        default = field.default if shape.by_msgspec else _ABSENT
        members.append(
            (field.name, hint) if field.required else (field.name, hint, _default_factory(default))
        )
        if not shape.by_msgspec:
            by_pydantic.append((index, field, shape.convert))
    members_type = msgspec.defstruct("Input", members, kw_only=True, forbid_unknown_fields=True)
    none_required = not any(field.required for field in fields)

    def convert(value: Any) -> tuple[Any, ...]:
        if value is None and none_required:
            value = {}
        try:
            values = astuple(msgspec.convert(value, members_type, dec_hook=_dec_hook))
        except (msgspec.ValidationError, UnicodeError, RecursionError) as error:
            raise Mismatch(_reason(error)) from None
        if not by_pydantic:
            return values
        changed = list(values)
        for index, field, convert_one in by_pydantic:
            changed[index] = _convert_member(values[index], field, convert_one)
        return tuple(changed)

    return convert


def _default_factory(default: Any) -> Any:
    # Use a factory: Python functions share a mutable default between calls, but msgspec would copy or refuse
    # it.
    return msgspec.field(default_factory=lambda: default)


def _convert_member(value: Any, field: Field, convert: Callable[[Any], Any]) -> Any:
    if value is _ABSENT:
        return field.default
    try:
        return convert(value)
    except Mismatch as error:
        raise Mismatch(error.message, (field.name, *error.path)) from None


# --- docstrings ---


def read_docstring(doc: str | None) -> tuple[str | None, dict[str, str]]:
    """Parses a Google, NumPy, Sphinx or Epydoc docstring. Returns the description, and the descriptions of
    the parameters by name.
    """
    text = inspect.cleandoc(doc or "").strip()
    if "\n" not in text and not text.startswith((":", "@")):
        return text or None, {}  # a single line needs no parser, whose import takes 5 ms
    from docstring_parser import ParseError, parse

    try:
        parsed = parse(text)
    except ParseError:
        return text, {}
    descriptions = {
        parameter.arg_name.lstrip("*"): " ".join((parameter.description or "").split())
        for parameter in parsed.params
        if parameter.args[0] != "attribute"
    }
    about = (parsed.description or "").strip()
    return about or None, {name: text for name, text in descriptions.items() if text}


# --- msgspec ---


def _msgspec_shape(hint: Any, definitions: Definitions, mode: Mode) -> Shape:
    def of_custom(cls: type) -> Schema:
        if cls is object:
            return {"$comment": "any JSON value"}
        if not _is_pydantic(cls):
            raise NotImplementedError
        return _pydantic_shape(cls, definitions, mode).schema

    try:
        schema = msgspec.json.schema(hint, schema_hook=of_custom, ref_template="#/msgspec/{name}")
    except (TypeError, ValueError, NameError, AttributeError) as error:
        raise Unsupported(_unsupported_reason(hint, str(error))) from None

    def convert(value: Any) -> Any:
        try:
            return msgspec.convert(value, hint, dec_hook=_dec_hook)
        except (msgspec.ValidationError, UnicodeError, RecursionError) as error:
            raise Mismatch(_reason(error)) from None

    return Shape(definitions.merge(schema, "#/msgspec/"), convert, True)


def _dec_hook(cls: type, value: Any) -> Any:
    return value if cls is object else _adapter_convert(_adapter(cls), value)


# Matches a message with two paths: msgspec appends its own path to the path from pydantic.
_TWO_PATHS = re.compile(r"(.*) - at `\$(.*)` - at `(.*)`")


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeError):
        return "Expected well-formed Unicode, got a lone surrogate in a key or an enumerated string"
    text = " ".join(str(error).split())
    return _TWO_PATHS.sub(r"\1 - at `\3\2`", text)


def _unsupported_reason(hint: Any, error: str) -> str:
    name = hint.__qualname__ if isinstance(hint, type) else repr(hint)
    detail = " ".join(error.split())
    # Omit msgspec's advice for custom types: it recommends msgspec's own hooks, which the author of a tool
    # cannot set.
    return name if "schema_hook" in detail or name in detail else f"{name} ({detail[:200]})"


# --- pydantic ---


def _is_pydantic(value: Any) -> bool:
    owner = value if isinstance(value, type) else type(value)
    if owner.__module__.partition(".")[0] in ("pydantic", "pydantic_core", "annotated_types"):
        return True
    return hasattr(owner, "__pydantic_core_schema__") or hasattr(owner, "__get_pydantic_core_schema__")


def _mentions_pydantic(hint: Any, seen: dict[int, Any]) -> bool:
    if id(hint) in seen:
        return False
    seen[id(hint)] = hint
    if _is_pydantic(hint):
        return True
    inner: list[Any] = list(typing.get_args(hint))
    inner += getattr(hint, "__metadata__", ())
    if isinstance(hint, type) and (dataclasses.is_dataclass(hint) or _is_typed_dict(hint)):
        with suppress(NameError, TypeError):
            inner += typing.get_type_hints(hint, include_extras=True).values()
    return any(_mentions_pydantic(part, seen) for part in inner)


def _pydantic_shape(hint: Any, definitions: Definitions, mode: Mode) -> Shape:
    try:
        adapter = _adapter.__wrapped__(hint)
        schema = adapter.json_schema(mode=mode)
    except ImportError:
        raise Unsupported(_unsupported_reason(hint, "pydantic is not installed")) from None
    except Exception as error:  # pydantic's errors have no common base class, and models run their own code
        raise Unsupported(_unsupported_reason(hint, str(error).partition("\n")[0])) from None
    return Shape(definitions.merge(schema), partial(_adapter_convert, adapter), False)


@lru_cache(maxsize=256)
def _adapter(hint: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(hint)


def _adapter_convert(adapter: Any, value: Any) -> Any:
    from pydantic import ValidationError

    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise Mismatch(first["msg"], first["loc"]) from None
    except (UnicodeError, RecursionError) as error:
        raise Mismatch(_reason(error)) from None


# --- explicit schemas ---


def validator(schema: Schema) -> Callable[[object], str | None]:
    """Compiles a JSON Schema to a function that returns the first error, or None. The draft is 2020-12 unless
    `$schema` names another.

    References are resolved within the schema only. Nothing is fetched or read. Raises InvalidTool if the
    schema is not valid.
    """
    try:
        compiled = compile_schema(schema)
    except InvalidSchema as error:
        raise InvalidTool(
            f"Invalid JSON Schema at `{json_path(error.path)}`: {error.reason[:300]}."
        ) from None

    def check(value: object) -> str | None:
        try:
            error = next(compiled.iter_errors(value), None)
        except UnicodeError:
            error = next(compiled.iter_errors(well_formed_value(value)), None)
        return None if error is None else _with_path(_clip(error.message), error.instance_path)

    return check


def _clip(message: str) -> str:
    return message if len(message) <= 300 else f"{message[:140]} … {message[-140:]}"


def _with_path(message: str, path: Iterable[str | int]) -> str:
    return f"{' '.join(message.split())} - at `{json_path(path)}`"
