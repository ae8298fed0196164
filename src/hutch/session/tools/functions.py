"""Creates tools from Python functions: name, docstring and hints give the name, description and schemas.

The input is an object, and each parameter is one of its properties. A single parameter takes the whole input
instead if it is positional-only (`def f(value, /)`) or a model (a dataclass, TypedDict, msgspec Struct or
pydantic model). Make such a parameter keyword-only to turn it into a property. With an explicit
`input_schema`, a single parameter always takes the whole input, unconverted. A parameter with the hint
`ToolContext` gets the context and is not part of the input. Parameters bound by `functools.partial` are not
part of the input either.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import os
import types
import typing
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any, TypeAlias, overload

from hutch.errors import InvalidTool, Suspend, ToolError
from hutch.session.json_value import NotJsonSafe, decode_value, encode_value
from hutch.session.large_json import decode_large_value, encode_large_result
from hutch.session.schema.problems import describe_mismatch
from hutch.session.schema.type_hints import (
    Field,
    Mismatch,
    Schema,
    is_model,
    item_hint,
    object_shape,
    read_docstring,
    result_schema,
    single_value_shape,
    validator,
)
from hutch.session.tools.tool import Call, Deferred, FunctionTool, P, R, Tool, ToolContext

MAX_THREADS = 64


@overload
def tool(
    fn: Callable[P, R],
    *,
    name: str | None = None,
    description: str | None = None,
    input_schema: Schema | None = None,
    output_schema: Schema | None = None,
    idempotent: bool = False,
) -> FunctionTool[P, R]: ...
@overload
def tool(
    fn: None = None,
    *,
    name: str | None = None,
    description: str | None = None,
    input_schema: Schema | None = None,
    output_schema: Schema | None = None,
    idempotent: bool = False,
) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...
def tool(
    fn: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    description: str | None = None,
    input_schema: Schema | None = None,
    output_schema: Schema | None = None,
    idempotent: bool = False,
) -> Any:
    """Creates a tool from a function, as a call or as a decorator. The tool can still be called like the
    function.

    Name, description and schemas default to the function's name, docstring and hints. Async functions run in
    the event loop, others in a worker thread. The result of an async generator is the list of its values,
    which the guest can also read one by one. `idempotent`: a call may be made again if the process died
    before its result was stored. Raises InvalidTool.
    """
    if fn is None:
        return partial(
            _create_tool,
            name=name,
            description=description,
            input_schema=input_schema,
            output_schema=output_schema,
            idempotent=idempotent,
        )
    return _create_tool(fn, name, description, input_schema, output_schema, idempotent)


def _without_deferred(hint: Any) -> Any:
    """Returns the hint of the value that the guest gets: the type of the later value, not `Deferred`."""
    if hint is Deferred:
        return Any
    if typing.get_origin(hint) in (typing.Union, types.UnionType) and Deferred in typing.get_args(hint):
        return typing.Union[tuple(each for each in typing.get_args(hint) if each is not Deferred)]  # noqa: UP007
    return hint


def cached_tool(fn: Callable[..., Any]) -> Tool:
    """Returns `tool(fn)`. The tool is created once per function, because callers pass the same functions to
    every execution.
    """
    if not inspect.isfunction(fn):
        return tool(fn)
    cached: tuple[Any, Tool] | None = fn.__dict__.get(_TOOL_ATTRIBUTE)
    # Compare the function: functools.wraps copies this attribute to a wrapper, but the wrapper needs its own
    # tool.
    if cached is None or cached[0] is not fn:
        cached = fn.__dict__[_TOOL_ATTRIBUTE] = (fn, tool(fn))
    return cached[1]


_TOOL_ATTRIBUTE = "__hutch_tool__"


def _create_tool(
    fn: Callable[P, R],
    name: str | None = None,
    description: str | None = None,
    input_schema: Schema | None = None,
    output_schema: Schema | None = None,
    idempotent: bool = False,
) -> FunctionTool[P, R]:
    target, bound = _unwrap(fn)
    name = _name_of(fn) if name is None else name
    where = f"Tool {name}"
    hints = _hints(target, where)
    parameters = _parameters(fn, bound, where)
    context = next(
        (parameter.name for parameter in parameters if _is_context(hints.get(parameter.name))), None
    )
    about, parameter_texts = read_docstring(target.__doc__)
    fields = {
        parameter.name: _field(parameter, hints, parameter_texts)
        for parameter in parameters
        if parameter.name != context
    }
    # With a schema made from hints, `format` is checked, because the conversion by hints checks it too. With
    # an explicit schema, its draft decides whether `format` is checked.
    formats = True if input_schema is None else None
    if input_schema is not None:
        convert = _convert_by_schema(input_schema, len(fields), where)
    else:
        input_schema, convert = _convert_by_hints(fields, parameters, where)
    describe = partial(describe_mismatch, input_schema, formats=formats)
    streams = inspect.isasyncgenfunction(target)
    check_item = None
    if streams and output_schema is None:
        item = item_hint(hints.get("return"))
        item_schema = result_schema(item, where)
        if item_schema is not None:
            output_schema = result_schema(list[item], where)  # type: ignore[valid-type]
            check_item = _validator(item_schema, where)
    elif output_schema is None:
        output_schema = result_schema(_without_deferred(hints.get("return")), where)
    check = None if output_schema is None else _validator(output_schema, f"{where}: output_schema")
    run = _run_function(fn, target, parameters, context)
    if streams:
        run = _collect(name, run, check_item)
    return FunctionTool(
        fn,
        name,
        _call_function(name, convert, describe, run, check),
        description=description or about,
        input_schema=input_schema,
        output_schema=output_schema,
        streams=streams,
        idempotent=idempotent,
    )


def _unwrap(fn: Any) -> tuple[Any, frozenset[str]]:
    """Returns the function that has the hints, and the names of parameters bound by partials."""
    bound: frozenset[str] = frozenset()
    while isinstance(fn, partial):
        bound |= fn.keywords.keys()
        fn = fn.func
    if isinstance(fn, type) or not callable(fn):
        raise InvalidTool(f"{fn!r} cannot be a tool.", remedy="Pass a function, a bound method or a Tool.")
    target = fn if inspect.isroutine(fn) else type(fn).__call__
    if inspect.isgeneratorfunction(target):
        raise InvalidTool(
            f"Tool {_name_of(fn)} is a generator.", remedy="Make it async (`async def`), or return a list."
        )
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
        all_parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        raise InvalidTool(f"{where} has no readable signature.", remedy="Wrap it in a function.") from None
    parameters = [parameter for parameter in all_parameters if parameter.name not in bound]
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            stars, suggestion = (
                ("*", "list") if parameter.kind is parameter.VAR_POSITIONAL else ("**", "dict")
            )
            raise InvalidTool(
                f"{where}: parameter `{stars}{parameter.name}` has no fixed shape.",
                remedy=f"Take a {suggestion} as an ordinary parameter instead.",
            )
        if parameter.name in ("self", "cls") and parameter.annotation is parameter.empty:
            raise InvalidTool(
                f"{where}: parameter `{parameter.name}` is not bound.",
                remedy="Pass the method of an instance: obj.method.",
            )
    return parameters


def _is_context(hint: Any) -> bool:
    return hint is ToolContext or ToolContext in typing.get_args(hint)


def _field(parameter: inspect.Parameter, hints: dict[str, Any], parameter_texts: dict[str, str]) -> Field:
    hint = hints.get(parameter.name, Any)
    default, required = parameter.default, parameter.default is parameter.empty
    if type(default).__name__ == "FieldInfo" and hasattr(default, "is_required"):
        # The default is a pydantic `Field`, as in `x: int = Field(description=…)`.
        hint, required = typing.Annotated[hint, default], default.is_required()
        default = None if required else default.get_default(call_default_factory=True, validated_data={})
    return Field(
        parameter.name, hint, required, None if required else default, parameter_texts.get(parameter.name)
    )


Convert: TypeAlias = Callable[[Any], tuple[Any, ...]]
"""Function that maps an input to the values of the parameters, in order. Raises Mismatch."""


def _convert_by_hints(
    fields: dict[str, Field], parameters: list[inspect.Parameter], where: str
) -> tuple[Schema, Convert]:
    single = [parameter for parameter in parameters if parameter.name in fields]
    if len(single) == 1 and (
        single[0].kind is single[0].POSITIONAL_ONLY
        or (single[0].kind is not single[0].KEYWORD_ONLY and is_model(fields[single[0].name].hint))
    ):
        input_shape = single_value_shape(fields[single[0].name], where)
        return input_shape.schema, lambda value: (input_shape.convert(value),)
    shape = object_shape(fields.values(), where)
    return shape.schema, shape.convert


def _convert_by_schema(schema: Schema, count: int, where: str) -> Convert:
    if count > 1:
        raise InvalidTool(
            f"{where} has an explicit input_schema and {count} parameters.",
            remedy="Take the whole input as the only parameter, or leave the schema to the hints.",
        )
    check = _validator(schema, f"{where}: input_schema")

    def convert(value: Any) -> tuple[Any, ...]:
        reason = check(value)
        if reason is not None:
            # Treat null as an empty object if the schema allows that, because a call without an argument
            # arrives as null.
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


def _run_function(fn: Any, target: Any, parameters: list[inspect.Parameter], context: str | None) -> Run:
    by_position = [parameter.name for parameter in parameters if parameter.kind is not parameter.KEYWORD_ONLY]
    by_name = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]

    def start(values: tuple[Any, ...], tool_context: ToolContext) -> Any:
        if context is None and not by_name:
            return fn(*values)
        remaining = iter(values)
        args = [tool_context if name == context else next(remaining) for name in by_position]
        keyword_args = {name: tool_context if name == context else next(remaining) for name in by_name}
        return fn(*args, **keyword_args)

    def start_unless_cancelled(values: tuple[Any, ...], tool_context: ToolContext) -> Any:
        return None if tool_context.cancelled.is_set() else start(values, tool_context)

    async def in_thread(values: tuple[Any, ...], tool_context: ToolContext) -> Any:
        result = await _in_thread(partial(start_unless_cancelled, values, tool_context))
        return await result if inspect.isawaitable(result) else result

    is_async = inspect.iscoroutinefunction(target) or inspect.isasyncgenfunction(target)
    return start if is_async else in_thread


def _collect(name: str, run: Run, check: Callable[[object], str | None] | None) -> Run:
    """Runs an async generator: passes each value on as an item, and returns the list of all."""

    async def collect(values: tuple[Any, ...], context: ToolContext) -> list[Any]:
        items: list[Any] = []
        generator: Any = run(values, context)
        async with contextlib.aclosing(generator):
            async for value in generator:
                try:
                    json = encode_value(value)
                except NotJsonSafe as error:
                    message = f"Tool {name} yielded a non-serializable value: {error}"
                    raise ToolError(message, "serialization_error") from None
                items.append(item := decode_value(json))
                if check is not None and (reason := check(item)) is not None:
                    raise ToolError(f"Invalid output for tool {name}: {reason}", "validation_error")
                context.yield_item(json)
                # A generator that never waits would block the event loop.
                await asyncio.sleep(0)
        return items

    return collect


def _call_function(
    name: str,
    convert: Convert,
    describe: Callable[[Any, str], str],
    run: Run,
    check: Callable[[object], str | None] | None,
) -> Call:
    async def call(value: Any, context: ToolContext) -> bytes:
        try:
            values = convert(value)
        except Mismatch as error:
            message = f"Invalid input for tool {name}: {describe(value, str(error))}"
            raise ToolError(message, "validation_error") from None
        result = await run(values, context)
        if type(result) is Deferred:
            raise Suspend(result.message, token=result.token)
        try:
            raw = await encode_large_result(result)
        except NotJsonSafe as error:
            message = f"Tool {name} returned a non-serializable value: {error}"
            raise ToolError(message, "serialization_error") from None
        reason = None
        if check is not None:
            try:
                decoded = await decode_large_value(raw)
            except NotJsonSafe:
                # Validate the decoded text: keys such as 1 and "1" have the same text, and the guest gets
                # only the last one.
                decoded = decode_value(raw)
            reason = check(decoded)
        if reason is not None:
            raise ToolError(f"Invalid output for tool {name}: {reason}", "validation_error")
        return raw

    return call


@cache
def _thread_pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="hutch-tool")


# Threads do not survive a fork, so a forked child creates a new pool.
os.register_at_fork(after_in_child=_thread_pool.cache_clear)


async def _in_thread(work: Callable[[], Any]) -> Any:
    """Runs `work` in one of MAX_THREADS threads.

    Work that is cancelled before it starts never starts. Work that is cancelled later continues and keeps its
    thread. So there are never more threads, however many executions are cancelled.
    """
    context = contextvars.copy_context()
    return await asyncio.get_running_loop().run_in_executor(_thread_pool(), context.run, _run_work, work)


def _run_work(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except StopIteration as error:  # a future cannot hold StopIteration
        raise RuntimeError("the tool raised StopIteration") from error
    except SystemExit as error:  # SystemExit would end the event loop
        raise RuntimeError(f"the tool ended with exit code {error.code}") from error
