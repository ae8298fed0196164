"""JSON Schema from Python type hints, and checking values against hints and schemas.

msgspec does what it supports. pydantic does hints that mention pydantic, and those that msgspec refuses (a
union of two dataclasses, say) if it is installed. Neither pydantic nor jsonschema-rs is imported early.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec.structs import astuple

from hutch.errors import InvalidTool
from hutch.session.jsonvalue import MAX_DEPTH, NotJsonSafe, decode_value, encode_value, well_formed
from hutch.session.names import is_identifier

Schema: TypeAlias = dict[str, Any]
Mode: TypeAlias = Literal["validation", "serialization"]

REMEDY = "Use JSON types, a dataclass, TypedDict, msgspec Struct or pydantic model, or an explicit schema."


class Mismatch(ValueError):
    """A value that does not fit; the text is one line that names the place and what was expected."""

    def __init__(self, message: str, path: tuple[str | int, ...] = ()) -> None:
        super().__init__(_located(message, path) if path else message)
        self.message = message
        self.path = path


class Unsupported(TypeError):
    """A hint that cannot be JSON Schema."""


class Shape(msgspec.Struct, frozen=True):
    """What a hint means: its schema, and the way from a JSON value to the hinted one."""

    schema: Schema
    convert: Callable[[Any], Any]
    """Raises Mismatch."""
    native: bool
    """Whether msgspec converts the hint by itself."""


class Field(msgspec.Struct, frozen=True):
    """One parameter of a function."""

    name: str
    hint: Any
    required: bool
    default: Any = None
    description: str | None = None


class Definitions:
    """The `$defs` of one schema, gathered from several, each name for one thing."""

    def __init__(self) -> None:
        self.known: Schema = {}

    def adopt(self, schema: Schema, prefix: str = "#/$defs/") -> Schema:
        """`schema` without its own `$defs`; references that begin with `prefix` lead to ours."""
        own: Schema = schema.pop("$defs", {})
        moved = {prefix + name: f"#/$defs/{name}" for name in own}
        adopted = {name: _redirect(body, moved) for name, body in own.items()}
        if any(name in self.known and self.known[name] != body for name, body in adopted.items()):
            # What refers to a renamed definition differs too, so they all get names of their own.
            renamed = {name: self._free(name) for name in own}
            moved = {prefix + name: f"#/$defs/{new}" for name, new in renamed.items()}
            adopted = {renamed[name]: _redirect(body, moved) for name, body in own.items()}
        self.known |= adopted
        result: Schema = _redirect(schema, moved)
        return result

    def into(self, schema: Schema) -> Schema:
        return {**schema, "$defs": self.known} if self.known else schema

    def _free(self, name: str) -> str:
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


def value_shape(hint: Any, definitions: Definitions, mode: Mode = "validation") -> Shape:
    """The shape of one hint. Raises Unsupported."""
    ways = [_by_pydantic, _by_msgspec] if _mentions_pydantic(hint, {}) else [_by_msgspec, _by_pydantic]
    reasons = []
    for way in ways:
        try:
            return way(hint, definitions, mode)
        except Unsupported as error:
            reasons.append(str(error))
    raise Unsupported(reasons[0])


def object_shape(fields: Iterable[Field], where: str) -> Shape:
    """The shape of an object with these fields, and no others; converts to the tuple of their values.

    Raises InvalidTool that names `where`, the field and the remedy.
    """
    fields = list(fields)
    definitions = Definitions()
    shapes = []
    for field in fields:
        try:
            shapes.append(value_shape(field.hint, definitions))
        except Unsupported as error:
            raise _unfit(where, field, error) from None
    schema: Schema = {
        "type": "object",
        "properties": {
            field.name: _described(shape.schema, field) for field, shape in zip(fields, shapes, strict=True)
        },
        "required": [field.name for field in fields if field.required],
        "additionalProperties": False,
    }
    return Shape(definitions.into(schema), _object_converter(fields, shapes), False)


def whole_shape(field: Field, where: str) -> Shape:
    """The shape of an input that is one parameter, or nothing if the parameter has a default.

    Raises InvalidTool as `object_shape` does.
    """
    definitions = Definitions()
    try:
        shape = value_shape(field.hint, definitions)
    except Unsupported as error:
        raise _unfit(where, field, error) from None
    empty_for_none = is_model(field.hint)

    def convert(value: Any) -> Any:
        if value is None and not field.required:
            return field.default
        return shape.convert({} if value is None and empty_for_none else value)

    return Shape(definitions.into(shape.schema), convert, shape.native)


def returned_schema(hint: Any, where: str) -> Schema | None:
    """The schema of what a function returns; None where the hint says nothing. Raises InvalidTool."""
    if hint in (None, Any, object, typing.NoReturn, typing.Never):
        return None
    if typing.get_origin(hint) in (Awaitable, Coroutine):
        return returned_schema(typing.get_args(hint)[-1], where)
    definitions = Definitions()
    try:
        shape = value_shape(hint, definitions, "serialization")
    except Unsupported as error:
        raise InvalidTool(
            f"{where}: the return hint cannot be JSON Schema: {error}.", remedy=REMEDY
        ) from None
    return definitions.into(shape.schema)


def is_model(hint: Any) -> bool:
    """Whether a hint is a class whose instances are JSON objects with named members."""
    while typing.get_origin(hint) is typing.Annotated:
        hint = typing.get_args(hint)[0]
    cls = typing.get_origin(hint) or hint
    if not isinstance(cls, type):
        return False
    if issubclass(cls, msgspec.Struct):
        return not cls.__struct_config__.array_like
    return _is_typed_dict(cls) or dataclasses.is_dataclass(cls) or hasattr(cls, "model_fields")


def _is_typed_dict(cls: type) -> bool:
    # typing.is_typeddict does not know those of typing_extensions.
    return issubclass(cls, dict) and hasattr(cls, "__required_keys__")


def _unfit(where: str, field: Field, error: Unsupported) -> InvalidTool:
    message = f"{where}: parameter `{field.name}` has a hint that cannot be JSON Schema: {error}."
    return InvalidTool(message, remedy=REMEDY)


def _described(schema: Schema, field: Field) -> Schema:
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
        hint = field.hint if shape.native else Any
        default = field.default if shape.native else _ABSENT
        members.append((field.name, hint) if field.required else (field.name, hint, _same(default)))
        if not shape.native:
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
            changed[index] = _member(values[index], field, convert_one)
        return tuple(changed)

    return convert


def _same(default: Any) -> Any:
    # A factory, because msgspec copies or refuses mutable defaults, and Python shares them.
    return msgspec.field(default_factory=lambda: default)


def _member(value: Any, field: Field, convert: Callable[[Any], Any]) -> Any:
    if value is _ABSENT:
        return field.default
    try:
        return convert(value)
    except Mismatch as error:
        raise Mismatch(error.message, (field.name, *error.path)) from None


# --- docstrings ---

_HEADER = re.compile(
    r"(args|arguments|params|parameters|returns?|yields?|raises|attributes|examples?|notes?|see also):?", re.I
)
_PARAMETERS = ("args", "arguments", "params", "parameters")
_GOOGLE = re.compile(r"\s*\*{0,2}(\w+)\s*(?:\([^)]*\))?:\s*(.*)")
_NUMPY = re.compile(r"(\w+)\s*(?::.*)?()")
_SPHINX = re.compile(r":(?:param|parameter|arg)\s+(?:[^:]*\s)?(\w+):\s*(.*)")


def read_docstring(doc: str | None) -> tuple[str | None, dict[str, str]]:
    """What a docstring (Google, NumPy or Sphinx style) says of a function, and of its parameters."""
    lines = inspect.cleandoc(doc or "").splitlines()
    about: list[str] = []
    parameters: dict[str, list[str]] = {}
    section, entry, margin = "", _GOOGLE, 0
    current: list[str] = about
    for line, following in zip(lines, [*lines[1:], ""], strict=False):
        indent = len(line) - len(line.lstrip())
        underlined = following.startswith("---")
        header = _HEADER.fullmatch(line)
        if header and (underlined or line.endswith(":")):
            section, entry, margin, current = header[1].lower(), _NUMPY if underlined else _GOOGLE, -1, []
        elif found := _SPHINX.match(line):
            section, current = "sphinx", parameters.setdefault(found[1], [found[2]])
        elif line.startswith((":return", ":raise", ":type", ":rtype")):
            section, current = "sphinx", []
        elif section in _PARAMETERS and line and not line.startswith("---"):
            margin = indent if margin < 0 else margin
            found = entry.fullmatch(line) if indent == margin else None
            if found:
                current = parameters.setdefault(found[1], [found[2]])
            else:
                current.append(line.strip())
        else:
            current.append(line.strip() if section else line)
    texts = {name: " ".join(" ".join(words).split()) for name, words in parameters.items()}
    return "\n".join(about).strip() or None, {name: text for name, text in texts.items() if text}


# --- msgspec ---


def _by_msgspec(hint: Any, definitions: Definitions, mode: Mode) -> Shape:
    def of_custom(cls: type) -> Schema:
        if cls is object:
            return {"$comment": "any JSON value"}
        if not _is_pydantic(cls):
            raise NotImplementedError
        return _by_pydantic(cls, definitions, mode).schema

    try:
        schema = msgspec.json.schema(hint, schema_hook=of_custom, ref_template="#/msgspec/{name}")
    except (TypeError, ValueError, NameError, AttributeError) as error:
        raise Unsupported(_hint_reason(hint, str(error))) from None

    def convert(value: Any) -> Any:
        try:
            return msgspec.convert(value, hint, dec_hook=_dec_hook)
        except (msgspec.ValidationError, UnicodeError, RecursionError) as error:
            raise Mismatch(_reason(error)) from None

    return Shape(definitions.adopt(schema, "#/msgspec/"), convert, True)


def _dec_hook(cls: type, value: Any) -> Any:
    return value if cls is object else _adapter_convert(_adapter(cls), value)


# msgspec adds its own place to the one that pydantic found.
_TWO_PLACES = re.compile(r"(.*) - at `\$(.*)` - at `(.*)`")


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeError):
        return "Expected well-formed Unicode, got a lone surrogate in a key or an enumerated string"
    text = " ".join(str(error).split())
    return _TWO_PLACES.sub(r"\1 - at `\3\2`", text)


def _hint_reason(hint: Any, error: str) -> str:
    name = hint.__qualname__ if isinstance(hint, type) else repr(hint)
    detail = " ".join(error.split())
    # msgspec's advice for custom types is about its own hooks.
    return name if "schema_hook" in detail or name in detail else f"{name} ({detail[:200]})"


# --- pydantic ---


def _is_pydantic(thing: Any) -> bool:
    owner = thing if isinstance(thing, type) else type(thing)
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
    return any(_mentions_pydantic(each, seen) for each in inner)


def _by_pydantic(hint: Any, definitions: Definitions, mode: Mode) -> Shape:
    try:
        adapter = _adapter.__wrapped__(hint)
        schema = adapter.json_schema(mode=mode)
    except ImportError:
        raise Unsupported(_hint_reason(hint, "pydantic is not installed")) from None
    except Exception as error:  # pydantic's errors have no common root, and models run code of their own
        raise Unsupported(_hint_reason(hint, str(error).partition("\n")[0])) from None
    return Shape(definitions.adopt(schema), partial(_adapter_convert, adapter), False)


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
    """A check against a JSON Schema (2020-12 unless `$schema` says otherwise): None, or what is wrong where.

    References lead only into the schema itself: nothing is ever fetched or read for one. Raises InvalidTool.
    """
    import jsonschema_rs

    try:
        compiled = jsonschema_rs.validator_for(schema, offline=True)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        path = _path(getattr(error, "instance_path", ()))
        reason = " ".join(str(error).partition("\n")[0].split())[:300]
        raise InvalidTool(f"Invalid JSON Schema at `{path}`: {reason}.") from None

    def check(value: object) -> str | None:
        try:
            error = next(compiled.iter_errors(value), None)
        except UnicodeError:
            # Rust has no strings with lone surrogates; to a schema they are characters like any other.
            error = next(compiled.iter_errors(_well_formed(value)), None)
        return None if error is None else _located(_clip(error.message), error.instance_path)

    return check


def _well_formed(value: Any) -> Any:
    if isinstance(value, str):
        return well_formed(value)
    if isinstance(value, dict):
        return {_well_formed(key): _well_formed(item) for key, item in value.items()}
    return [_well_formed(item) for item in value] if isinstance(value, list) else value


def _clip(message: str) -> str:
    return message if len(message) <= 300 else f"{message[:140]} … {message[-140:]}"


def _located(message: str, path: Iterable[str | int]) -> str:
    return f"{' '.join(message.split())} - at `{_path(path)}`"


def _path(steps: Iterable[str | int]) -> str:
    parts = [
        f"[{step}]" if isinstance(step, int) else f".{step}" if is_identifier(step) else f"[{step!r}]"
        for step in steps
    ]
    return "$" + "".join(parts[:MAX_DEPTH])
