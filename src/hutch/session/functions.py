"""A Python function as a tool: its name, docstring and hints give name, description and schemas.

How it is called: its input is an object, and every parameter is one of its properties. A lone
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
import os
import typing
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any, TypeAlias, overload

from hutch.errors import InvalidTool, ToolError
from hutch.session.jsonvalue import NotJsonSafe, decode_value, encode_value
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
from hutch.session.tools import Call, Tool, ToolContext

MAX_THREADS = 64


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


def known_tool(fn: Callable[..., Any]) -> Tool:
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
    name = _name_of(fn) if name is None else name
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


# The threads of a process are not those of its children.
os.register_at_fork(after_in_child=_threads.cache_clear)


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
    except SystemExit as error:  # which would end the loop that waits for it
        raise RuntimeError(f"the tool ended with exit code {error.code}") from error
