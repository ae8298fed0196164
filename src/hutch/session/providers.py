"""Tools of the host that a guest may call, and providers: namespaces of them.

How a function is called: its input is an object, and every parameter is one of its properties. A lone
parameter takes the whole input instead when it is positional-only (`def f(value, /)`) or when it is a model
(a dataclass, TypedDict, msgspec Struct or pydantic model); make it keyword-only to have it as a property all
the same. With an explicit `input_schema` the lone parameter always takes the whole input, as it came.
A parameter hinted `ToolContext` gets the context and is no part of the input; neither is what
`functools.partial` has bound.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import typing
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache, cached_property, partial
from typing import Any, TypeAlias, overload

import anyio
import msgspec

from hutch.errors import InvalidTool, ToolError
from hutch.session.declarations import declare
from hutch.session.jsonvalue import NotJsonSafe, decode_value, encode_value, well_formed
from hutch.session.names import check_namespace, is_identifier, safe_names
from hutch.session.schema import (
    Field,
    Mismatch,
    Schema,
    is_model,
    object_shape,
    read_docstring,
    returned_schema,
    validator,
    whole_shape,
)

MAX_THREADS = 64
MAX_MESSAGE = 8_000


class ToolContext(msgspec.Struct, frozen=True, kw_only=True):
    """What a tool may know of the call; a function gets it by asking for a parameter of this type."""

    run_id: str
    provider: str
    tool: str
    """The original name."""
    deadline: float
    """When the execution's time is over, by the clock of the event loop."""
    cancelled: anyio.Event
    """Set when nobody waits for the result any more."""


Call: TypeAlias = Callable[[Any, ToolContext], Awaitable[bytes]]
"""From the input's value to the JSON text of the result; raises ToolError, or anything for `tool_error`."""


class Tool:
    """One thing that a guest can call. `tool()` makes one of a function."""

    def __init__(
        self,
        name: str,
        call: Call,
        *,
        description: str | None = None,
        input_schema: Schema | None = None,
        output_schema: Schema | None = None,
    ) -> None:
        self.name = name
        self.call = call
        self.description = description
        self.input_schema = input_schema
        self.output_schema = output_schema

    def __repr__(self) -> str:
        return f"Tool({self.name!r})"


@overload
def tool(
    fn: Callable[..., Any],
    *,
    name: str | None = None,
    description: str | None = None,
    input_schema: Schema | None = None,
    output_schema: Schema | None = None,
) -> Tool: ...
@overload
def tool(
    fn: None = None,
    *,
    name: str | None = None,
    description: str | None = None,
    input_schema: Schema | None = None,
    output_schema: Schema | None = None,
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    fn: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    description: str | None = None,
    input_schema: Schema | None = None,
    output_schema: Schema | None = None,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """A tool of a function, as a call or as a decorator.

    Name, description and schemas come from the function's name, docstring and hints unless they are given.
    Async functions run in the event loop, others in a worker thread. Raises InvalidTool.
    """
    if fn is None:
        return partial(
            _tool_of,
            name=name,
            description=description,
            input_schema=input_schema,
            output_schema=output_schema,
        )
    return _tool_of(fn, name, description, input_schema, output_schema)


# --- a function as a tool ---


def _known_tool(fn: Callable[..., Any]) -> Tool:
    """`tool(fn)`, made once for a function: callers lend the same functions to every execution."""
    if not inspect.isfunction(fn):
        return tool(fn)
    known: tuple[Any, Tool] | None = fn.__dict__.get(_MADE)
    # functools.wraps copies what is kept on a function to another one.
    if known is None or known[0] is not fn:
        known = fn.__dict__[_MADE] = (fn, tool(fn))
    return known[1]


_MADE = "__hutch_tool__"


def _tool_of(
    fn: Callable[..., Any],
    name: str | None = None,
    description: str | None = None,
    input_schema: Schema | None = None,
    output_schema: Schema | None = None,
) -> Tool:
    target, bound = _target(fn)
    name = name or _name_of(fn)
    where = f"Tool {name}"
    hints = _hints(target, where)
    parameters = _parameters(fn, bound, where)
    context = next((each.name for each in parameters if _is_context(hints.get(each.name))), None)
    about, texts = read_docstring(target.__doc__)
    fields = {each.name: _field(each, hints, texts) for each in parameters if each.name != context}
    if input_schema is not None:
        convert = _by_schema(input_schema, len(fields), where)
    else:
        input_schema, convert = _by_hints(fields, parameters, where)
    if output_schema is None:
        output_schema = returned_schema(hints.get("return"), where)
    check = None if output_schema is None else _validator(output_schema, f"{where}: output_schema")
    run = _runner(fn, target, parameters, context)
    return Tool(
        name,
        _steps(name, convert, run, check),
        description=description or about,
        input_schema=input_schema,
        output_schema=output_schema,
    )


def _target(fn: Any) -> tuple[Any, frozenset[str]]:
    """The function that carries the hints, and the names of the parameters that partials have bound."""
    bound: frozenset[str] = frozenset()
    while isinstance(fn, partial):
        bound |= fn.keywords.keys()
        fn = fn.func
    if isinstance(fn, type) or not callable(fn):
        raise InvalidTool(f"{fn!r} cannot be a tool.", remedy="Pass a function, a bound method or a Tool.")
    target = fn if inspect.isroutine(fn) else type(fn).__call__
    if inspect.isgeneratorfunction(target) or inspect.isasyncgenfunction(target):
        raise InvalidTool(f"Tool {_name_of(fn)} is a generator.", remedy="Return a list instead.")
    return target, bound


def _name_of(fn: Any) -> str:
    while isinstance(fn, partial):
        fn = fn.func
    name: str = getattr(fn, "__name__", None) or type(fn).__name__
    if name == "<lambda>":
        raise InvalidTool("A lambda has no name.", remedy="Give it one: tool(lambda …, name=…).")
    return name


def _hints(target: Any, where: str) -> dict[str, Any]:
    try:
        return typing.get_type_hints(target, include_extras=True)
    except NameError as error:
        raise InvalidTool(
            f"{where}: a hint cannot be resolved: {error}.",
            remedy="Its type must be in the module at run time, not in a function or under TYPE_CHECKING.",
        ) from None
    except TypeError as error:
        raise InvalidTool(f"{where}: a hint cannot be read: {error}.") from None


def _parameters(fn: Any, bound: frozenset[str], where: str) -> list[inspect.Parameter]:
    try:
        every = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        raise InvalidTool(f"{where} does not tell its parameters.", remedy="Wrap it in a function.") from None
    parameters = [each for each in every if each.name not in bound]
    for each in parameters:
        if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD):
            stars, plain = ("*", "list") if each.kind is each.VAR_POSITIONAL else ("**", "dict")
            raise InvalidTool(
                f"{where}: parameter `{stars}{each.name}` has no fixed shape.",
                remedy=f"Take a {plain} as an ordinary parameter instead.",
            )
        if each.name in ("self", "cls") and each.annotation is each.empty:
            raise InvalidTool(
                f"{where}: parameter `{each.name}` is not bound.",
                remedy="Pass the method of an instance: obj.method.",
            )
    return parameters


def _is_context(hint: Any) -> bool:
    return hint is ToolContext or ToolContext in typing.get_args(hint)


def _field(parameter: inspect.Parameter, hints: dict[str, Any], texts: dict[str, str]) -> Field:
    hint = hints.get(parameter.name, Any)
    default, required = parameter.default, parameter.default is parameter.empty
    if type(default).__name__ == "FieldInfo" and hasattr(default, "is_required"):
        # pydantic's `x: int = Field(description=…)`
        hint, required = typing.Annotated[hint, default], default.is_required()
        default = None if required else default.get_default(call_default_factory=True, validated_data={})
    return Field(parameter.name, hint, required, None if required else default, texts.get(parameter.name))


Convert: TypeAlias = Callable[[Any], tuple[Any, ...]]
"""From an input to the values of the parameters in their order. Raises Mismatch."""


def _by_hints(
    fields: dict[str, Field], parameters: list[inspect.Parameter], where: str
) -> tuple[Schema, Convert]:
    lone = [each for each in parameters if each.name in fields]
    if len(lone) == 1 and (
        lone[0].kind is lone[0].POSITIONAL_ONLY
        or (lone[0].kind is not lone[0].KEYWORD_ONLY and is_model(fields[lone[0].name].hint))
    ):
        whole = whole_shape(fields[lone[0].name], where)
        return whole.schema, lambda value: (whole.convert(value),)
    shape = object_shape(fields.values(), where)
    return shape.schema, shape.convert


def _by_schema(schema: Schema, count: int, where: str) -> Convert:
    if count > 1:
        raise InvalidTool(
            f"{where} has an explicit input_schema and {count} parameters.",
            remedy="Take the whole input as the only parameter, or leave the schema to the hints.",
        )
    check = _validator(schema, f"{where}: input_schema")

    def convert(value: Any) -> tuple[Any, ...]:
        reason = check(value)
        if reason is not None:
            # A call without an argument comes as null.
            if value is not None or check({}) is not None:
                raise Mismatch(reason)
            value = {}
        return (value,) if count else ()

    return convert


def _validator(schema: Schema, where: str) -> Callable[[object], str | None]:
    try:
        return validator(schema)
    except InvalidTool as error:
        raise InvalidTool(f"{where}: {error.message}") from None


Run: TypeAlias = Callable[[tuple[Any, ...], ToolContext], Awaitable[Any]]


def _runner(fn: Any, target: Any, parameters: list[inspect.Parameter], context: str | None) -> Run:
    by_position = [each.name for each in parameters if each.kind is not each.KEYWORD_ONLY]
    by_name = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]

    def start(values: tuple[Any, ...], given: ToolContext) -> Any:
        if context is None and not by_name:
            return fn(*values)
        feed = iter(values)
        args = [given if name == context else next(feed) for name in by_position]
        named = {name: given if name == context else next(feed) for name in by_name}
        return fn(*args, **named)

    def start_late(values: tuple[Any, ...], given: ToolContext) -> Any:
        return None if given.cancelled.is_set() else start(values, given)

    async def in_thread(values: tuple[Any, ...], given: ToolContext) -> Any:
        result = await _in_thread(partial(start_late, values, given))
        return await result if inspect.isawaitable(result) else result

    return start if inspect.iscoroutinefunction(target) else in_thread


def _steps(name: str, convert: Convert, run: Run, check: Callable[[object], str | None] | None) -> Call:
    async def call(value: Any, context: ToolContext) -> bytes:
        try:
            values = convert(value)
        except Mismatch as error:
            raise ToolError(f"Invalid input for tool {name}: {error}", "validation_error") from None
        result = await run(values, context)
        try:
            raw = encode_value(result)
        except NotJsonSafe as error:
            message = f"Tool {name} returned a non-serializable value: {error}"
            raise ToolError(message, "serialization_error") from None
        reason = check(decode_value(raw)) if check is not None else None
        if reason is not None:
            raise ToolError(f"Invalid output for tool {name}: {reason}", "validation_error")
        return raw

    return call


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="hutch-tool")


async def _in_thread(work: Callable[[], Any]) -> Any:
    """`work` in one of MAX_THREADS threads.

    Cancelled before it begins, it never begins; after that it is left to itself and keeps its thread, so that
    no number of executions can make more threads.
    """
    context = contextvars.copy_context()
    return await asyncio.get_running_loop().run_in_executor(_threads(), context.run, _settle, work)


def _settle(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except StopIteration as error:  # which no future can carry
        raise RuntimeError("the tool raised StopIteration") from error


# --- providers ---


class Provider:
    """A namespace of tools, by their safe names."""

    def __init__(self, name: str, tools: Mapping[str, Tool], types: str | None = None) -> None:
        check_namespace(name)
        self.name = name
        self.tools = dict(tools)
        self._types = types

    @classmethod
    def of(cls, *tools: Tool | Callable[..., Any], name: str = "tools") -> Provider:
        """A provider of tools and functions. Raises InvalidTool."""
        check_namespace(name)
        made = [each if isinstance(each, Tool) else _known_tool(each) for each in tools]
        return cls(name, dict(zip(safe_names(each.name for each in made), made, strict=True)))

    @classmethod
    def from_manifest(
        cls, manifest: Mapping[str, Any], call: Callable[[str, Any, ToolContext], Awaitable[bytes]]
    ) -> Provider:
        """A provider whose tools live elsewhere: `call` gets the safe name, the input and the context.

        Raises InvalidTool that names the field of the manifest.
        """
        entries = _check_manifest(manifest)
        tools = {
            safe: Tool(entry["originalName"], partial(call, safe), description=entry.get("description"))
            for safe, entry in entries.items()
        }
        return cls(manifest["name"], tools, manifest["types"])

    def original_name(self, safe_name: str) -> str:
        """The original name of a tool; of an unknown one, the name itself."""
        known = self.tools.get(safe_name)
        return safe_name if known is None else known.name

    def declarations(self) -> str:
        """The tools as TypeScript."""
        if self._types is None:
            self._types = well_formed(declare(self.name, self.tools))
        return self._types

    def manifest(self) -> dict[str, Any]:
        """What a runner is told: one dict for all calls, not to be changed."""
        return self._manifest

    @cached_property
    def _manifest(self) -> dict[str, Any]:
        tools = _entries(self.tools)
        for safe, each in self.tools.items():
            if each.description is not None:
                tools[safe]["description"] = well_formed(each.description)
        return {"name": self.name, "tools": tools, "types": self.declarations()}

    def manifest_json(self, *, full: bool) -> bytes:
        """The manifest as JSON text; without `full` only the names, all that our own runners read."""
        return self._manifest_json if full else self._names_json

    @cached_property
    def _manifest_json(self) -> bytes:
        return encode_value(self.manifest())

    @cached_property
    def _names_json(self) -> bytes:
        return encode_value({"name": self.name, "tools": _entries(self.tools), "types": ""})

    async def dispatch(self, safe_name: str, input: Any, context: ToolContext) -> bytes:
        """The JSON text of what a tool gives for an input. Raises ToolError and nothing else."""
        called = self.tools.get(safe_name)
        if called is None:
            raise ToolError(f"Unknown tool {self.name}.{safe_name}", "internal_error")
        try:
            return await called.call(input, context)
        except Exception as error:
            raise _as_tool_error(error) from error


def _entries(tools: Mapping[str, Tool]) -> dict[str, dict[str, str]]:
    return {safe: {"safeName": safe, "originalName": well_formed(each.name)} for safe, each in tools.items()}


def check_providers(providers: Iterable[Provider]) -> dict[str, Provider]:
    """Providers by name. Raises InvalidTool if two have the same."""
    by_name: dict[str, Provider] = {}
    for each in providers:
        if each.name in by_name:
            raise InvalidTool(f"Two providers are called {each.name}.", remedy="Give each its own name.")
        by_name[each.name] = each
    return by_name


def _as_tool_error(error: Exception) -> ToolError:
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    code = error.tool_code if isinstance(error, ToolError) else "tool_error"
    message = well_formed(str(error)) or type(error).__name__
    return ToolError(message if len(message) <= MAX_MESSAGE else f"{message[:MAX_MESSAGE]}…", code)


def _check_manifest(manifest: Any) -> Mapping[str, Any]:
    if not isinstance(manifest, Mapping):
        raise InvalidTool(f"Provider manifest: expected an object, got {type(manifest).__name__}.")
    name = _text(manifest, "name", "manifest")
    check_namespace(name)
    _text(manifest, "types", "manifest")
    entries = manifest.get("tools")
    if not isinstance(entries, Mapping):
        raise InvalidTool("Provider manifest: `manifest.tools` must be an object.")
    for safe, entry in entries.items():
        where = f"manifest.tools.{safe}"
        if not isinstance(safe, str) or not is_identifier(safe):
            raise InvalidTool(f"Provider manifest: `{where}` must be a JavaScript identifier.")
        if not isinstance(entry, Mapping):
            raise InvalidTool(f"Provider manifest: `{where}` must be an object.")
        if _text(entry, "safeName", where) != safe:
            raise InvalidTool(f"Provider manifest: `{where}.safeName` must be its key, `{safe}`.")
        _text(entry, "originalName", where)
        if "description" in entry:
            _text(entry, "description", where)
    return entries


def _text(holder: Mapping[str, Any], field: str, where: str) -> str:
    value = holder.get(field)
    if not isinstance(value, str):
        got = type(value).__name__ if field in holder else "nothing"
        raise InvalidTool(f"Provider manifest: `{where}.{field}` must be a string, got {got}.")
    return value
