from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import enum
import functools
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import anyio
import msgspec
import pydantic
import pytest

from hutch.errors import InvalidTool, ToolError
from hutch.session import functions
from hutch.session.functions import tool
from hutch.session.providers import Provider, check_providers
from hutch.session.tools import Tool, ToolContext

if TYPE_CHECKING:
    from decimal import Decimal


@dataclasses.dataclass
class Place:
    """A point on Earth."""

    lat: float
    lon: float = 0.0


class Search(TypedDict, total=False):
    text: str


class User(pydantic.BaseModel):
    name: str


class Color(enum.Enum):
    RED = "red"


async def add(a: int, b: int = 2) -> int:
    """Adds two numbers.

    Args:
        a: The first.
    """
    return a + b


def context(**changes: Any) -> ToolContext:
    known: dict[str, Any] = {
        "run_id": "r1",
        "provider": "tools",
        "tool": "t",
        "deadline": 1.0,
        "cancelled": anyio.Event(),
    }
    return ToolContext(**(known | changes))


def call(fn: Any, value: Any = None, name: str | None = None, *, given: ToolContext | None = None) -> Any:
    """What a guest gets from the only tool of a provider."""
    provider = fn if isinstance(fn, Provider) else Provider.of(fn)
    (only,) = provider.tools
    return json.loads(asyncio.run(provider.dispatch(name or only, value, given or context())))


def failure(fn: Any, value: Any = None, name: str | None = None) -> tuple[str, str]:
    with pytest.raises(ToolError) as caught:
        call(fn, value, name)
    return caught.value.tool_code, caught.value.message


# --- what a function takes ---


def test_parameters_are_the_properties_of_the_input() -> None:
    assert call(add, {"a": 1}) == 3
    assert call(add, {"b": 5, "a": 1}) == 6


def test_name_description_and_schemas_come_from_the_function() -> None:
    made = tool(add)
    assert (made.name, made.description) == ("add", "Adds two numbers.")
    assert made.input_schema is not None
    assert made.input_schema["properties"]["a"] == {"type": "integer", "description": "The first."}
    assert made.output_schema == {"type": "integer"}


def test_sync_functions_run_in_a_thread_and_async_ones_in_the_loop() -> None:
    def sync() -> bool:
        return threading.current_thread() is threading.main_thread()

    async def in_loop() -> bool:
        return threading.current_thread() is threading.main_thread()

    assert call(sync) is False
    assert call(in_loop) is True


def test_a_blocking_tool_does_not_block_the_loop() -> None:
    released = threading.Event()

    def wait() -> bool:
        return released.wait(10)

    async def main() -> bytes:
        provider = Provider.of(wait)
        pending = asyncio.create_task(provider.dispatch("wait", None, context()))
        asyncio.get_running_loop().call_later(0.01, released.set)
        return await pending

    assert asyncio.run(main()) == b"true"


def test_methods_partials_and_callable_objects_are_tools() -> None:
    class Shop:
        def __init__(self, price: int) -> None:
            self.price = price

        async def cost(self, count: int) -> int:
            return count * self.price

        async def __call__(self, count: int) -> int:
            return count

    assert call(Shop(3).cost, {"count": 2}) == 6
    assert call(Shop(3), {"count": 2}) == 2
    assert list(Provider.of(Shop(3)).tools) == ["Shop"]
    assert call(functools.partial(add, 10), {"b": 1}) == 11
    assert call(functools.partial(add, b=10), {"a": 1}) == 11


def test_what_a_partial_has_bound_is_out_of_the_guests_reach() -> None:
    bound = functools.partial(add, b=10)
    assert tool(bound).input_schema == {
        "type": "object",
        "properties": {"a": {"type": "integer", "description": "The first."}},
        "required": ["a"],
        "additionalProperties": False,
    }
    assert failure(bound, {"a": 1, "b": 99})[0] == "validation_error"


def test_a_sync_function_that_returns_an_awaitable_is_awaited() -> None:
    def later(a: int) -> Any:
        return add(a)

    assert call(later, {"a": 1}) == 3


def test_every_kind_of_parameter_gets_its_value() -> None:
    async def mixed(a: int, /, b: int, *, c: int, d: int = 4) -> list[int]:
        return [a, b, c, d]

    assert call(mixed, {"a": 1, "b": 2, "c": 3}) == [1, 2, 3, 4]


async def shift(place: Place) -> Place:
    return Place(place.lat + 1, place.lon)


async def find(query: Search) -> str:
    return query.get("text", "everything")


async def greet(user: User) -> str:
    return f"Hello {user.name}"


async def greet_by_key(*, user: User) -> str:
    return f"Hello {user.name}"


async def locate(place: Place, color: Color) -> str:
    return f"{color.value} at {place.lat}"


async def length(value: list[int], /) -> int:
    return len(value)


def test_a_lone_model_takes_the_whole_input() -> None:
    assert call(shift, {"lat": 1}) == {"lat": 2.0, "lon": 0.0}
    assert call(greet, {"name": "Ann"}) == "Hello Ann"
    assert call(find, {"text": "x"}) == "x"
    assert call(find, None) == "everything"


def test_a_lone_model_is_a_property_if_it_is_keyword_only() -> None:
    assert call(greet_by_key, {"user": {"name": "Ann"}}) == "Hello Ann"


def test_models_among_others_are_properties() -> None:
    assert call(locate, {"place": {"lat": 3}, "color": "red"}) == "red at 3.0"


def test_a_lone_positional_only_parameter_takes_the_whole_input_of_any_type() -> None:
    assert call(length, [1, 2, 3]) == 3
    assert failure(length, ["x"]) == (
        "validation_error",
        "Invalid input for tool length: Expected `int`, got `str` - at `$[0]`",
    )


def test_a_parameter_without_a_hint_takes_any_json_value() -> None:
    async def echo(value):  # type: ignore[no-untyped-def]
        return value

    odd = {"__proto__": [None, {"\u2028": "\ud800"}]}
    assert call(echo, {"value": odd}) == odd


async def describe(a: int, given: ToolContext) -> dict[str, Any]:
    return {"a": a, "run": given.run_id, "tool": given.tool, "cancelled": given.cancelled.is_set()}


async def maybe_describe(*, given: ToolContext | None = None) -> str:
    return given.run_id if given else "none"


def test_a_tool_that_asks_for_the_context_gets_it_and_the_guest_does_not_see_it() -> None:
    assert call(describe, {"a": 1}) == {"a": 1, "run": "r1", "tool": "t", "cancelled": False}
    assert call(maybe_describe) == "r1"
    schema = tool(describe).input_schema
    assert schema is not None
    assert list(schema["properties"]) == ["a"]
    assert failure(describe, {"a": 1, "given": {"run_id": "forged"}})[0] == "validation_error"


async def with_field(
    count: int = pydantic.Field(description="How many", ge=1), rest: int = pydantic.Field(7)
) -> int:
    return count + rest


def test_pydantic_fields_as_defaults_give_description_constraint_and_default() -> None:
    made = tool(with_field)
    assert made.input_schema is not None
    assert made.input_schema["required"] == ["count"]
    assert made.input_schema["properties"]["count"]["description"] == "How many"
    assert call(with_field, {"count": 1}) == 8
    assert failure(with_field, {"count": 0})[0] == "validation_error"


# --- order, codes and messages ---


def test_wrong_input_is_refused_before_the_tool_runs() -> None:
    ran = []

    async def note(a: int) -> None:
        ran.append(a)

    assert failure(note, {"a": "x"}) == (
        "validation_error",
        "Invalid input for tool note: Expected `int`, got `str` - at `$.a`",
    )
    assert (
        failure(note, {"a": 1, "b": 1})[1] == "Invalid input for tool note: Object contains unknown field `b`"
    )
    assert failure(note, None)[1] == "Invalid input for tool note: Expected `object`, got `null`"
    assert ran == []


def test_a_result_that_is_not_json_is_a_serialization_error_even_if_its_type_is_wrong_too() -> None:
    async def bad() -> int:
        return {"a": {1}}  # type: ignore[return-value]

    assert failure(bad) == (
        "serialization_error",
        "Tool bad returned a non-serializable value: $.a is a set",
    )


def test_a_result_of_another_type_is_a_validation_error() -> None:
    async def bad() -> list[int]:
        return [1, "x"]  # type: ignore[list-item]

    assert failure(bad) == (
        "validation_error",
        'Invalid output for tool bad: "x" is not of type "integer" - at `$[1]`',
    )


def test_results_are_written_as_their_schema_says() -> None:
    class Reply(pydantic.BaseModel):
        text: str = pydantic.Field(serialization_alias="body")

    async def reply() -> Any:
        return [Reply(text="x"), Color.RED, Place(1, 2)]

    assert call(reply) == [{"body": "x"}, "red", {"lat": 1, "lon": 2}]


def test_nothing_is_null() -> None:
    async def nothing() -> None:
        return None

    assert call(nothing) is None
    assert call(nothing, {}) is None


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
def test_an_exception_is_a_tool_error_with_its_message(is_async: bool) -> None:
    def raising(error: Exception) -> Callable[[], Any]:
        async def later() -> None:
            raise error

        def now() -> None:
            raise error

        return later if is_async else now

    assert failure(raising(ValueError("no such city"))) == ("tool_error", "no such city")
    assert failure(raising(LookupError())) == ("tool_error", "LookupError")
    assert failure(raising(KeyError("missing"))) == ("tool_error", "KeyError: 'missing'")
    assert failure(raising(ToolError("not yours", "validation_error"))) == ("validation_error", "not yours")
    assert failure(raising(ExceptionGroup("g", [ToolError("inner", "timeout")]))) == ("timeout", "inner")
    assert failure(raising(ValueError("a\ud800"))) == ("tool_error", "a\ufffd")
    assert len(failure(raising(ValueError("x" * 1_000_000)))[1]) < 10_000
    assert failure(raising(StopIteration()))[0] == "tool_error"


def test_a_fault_of_a_tool_is_logged_with_its_traceback_and_a_chosen_error_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def faulty() -> None:
        raise KeyError("missing")

    def refusing() -> None:
        raise ToolError("not yours")

    failure(faulty)
    failure(refusing)
    [record] = [each for each in caplog.records if each.name == "hutch.tools"]
    assert (record.levelname, record.getMessage()) == ("WARNING", "the tool tools.faulty failed")
    assert record.exc_text is not None
    assert "in faulty" in record.exc_text


def test_a_code_that_the_protocol_does_not_have_is_refused() -> None:
    with pytest.raises(
        InvalidTool, match=r"no code 'nocode'; expected one of internal_error, memory_limit, "
    ):
        ToolError("x", "nocode")


def test_an_unknown_tool_is_an_internal_error() -> None:
    assert failure(Provider.of(add, name="math"), {}, "sub") == ("internal_error", "Unknown tool math.sub")
    assert failure(Provider.of(add), {}, "__class__") == ("internal_error", "Unknown tool tools.__class__")


def test_cancellation_passes_through_an_async_tool() -> None:
    async def main() -> str:
        seen = asyncio.Event()
        ended = []

        async def wait() -> None:
            seen.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("cleaned up")

        task = asyncio.create_task(Provider.of(wait).dispatch("wait", None, context()))
        await seen.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return ended[0]

    assert asyncio.run(main()) == "cleaned up"


def test_cancellation_does_not_wait_for_a_sync_tool() -> None:
    release = threading.Event()

    async def main() -> None:
        started = asyncio.Event()
        loop = asyncio.get_running_loop()

        def block() -> None:
            loop.call_soon_threadsafe(started.set)
            release.wait(10)

        task = asyncio.create_task(Provider.of(block).dispatch("block", None, context()))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 5)
        assert not release.is_set()

    try:
        asyncio.run(main())
    finally:
        release.set()


def test_a_sync_tool_does_not_begin_after_its_run_was_cancelled() -> None:
    ran = []

    def note() -> None:
        ran.append(1)

    async def main() -> None:
        given = context()
        given.cancelled.set()
        await Provider.of(note).dispatch("note", None, given)

    asyncio.run(main())
    assert ran == []


def test_abandoned_sync_tools_never_take_more_than_their_share_of_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = ThreadPoolExecutor(2)
    monkeypatch.setattr(functions, "_threads", lambda: pool)
    release, ran = threading.Event(), []
    both = threading.Barrier(3)

    def block(number: int) -> None:
        ran.append(number)
        both.wait(10)
        release.wait(10)

    async def main() -> None:
        provider = Provider.of(block)
        tasks = [asyncio.create_task(provider.dispatch("block", {"number": n}, context())) for n in range(20)]
        await asyncio.to_thread(both.wait, 10)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    try:
        asyncio.run(main())
    finally:
        release.set()
        pool.shutdown()
    assert len(ran) == 2


def test_a_sync_tool_sees_the_context_variables_of_its_caller() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")

    def read() -> str:
        return variable.get("unset")

    async def main() -> bytes:
        variable.set("set")
        return await Provider.of(read).dispatch("read", None, context())

    assert asyncio.run(main()) == b'"set"'


def test_a_tiny_typed_tool_costs_little() -> None:
    async def main() -> float:
        provider, given = Provider.of(add), context()
        best = float("inf")
        for _ in range(5):
            started = time.perf_counter()
            for _ in range(500):
                await provider.dispatch("add", {"a": 1, "b": 2}, given)
            best = min(best, (time.perf_counter() - started) / 500)
        return best

    assert asyncio.run(main()) < 100e-6  # about 6 µs; generous for a busy machine


# --- explicit schemas ---

SQUARE = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def test_explicit_schemas_win_and_the_only_parameter_takes_the_input_as_it_came() -> None:
    @tool(name="square!", description="Squares", input_schema=SQUARE, output_schema={"maximum": 100})
    async def anything(value: dict[str, Any], given: ToolContext) -> Any:
        assert given.run_id == "r1"
        return value["n"] ** 2

    provider = Provider.of(anything)
    assert isinstance(anything, Tool)
    assert anything.input_schema is SQUARE
    assert call(provider, {"n": 3, "more": 1}) == 9
    assert failure(provider, {"n": "x"}) == (
        "validation_error",
        'Invalid input for tool square!: "x" is not of type "integer" - at `$.n`',
    )
    assert failure(provider, {"n": 11}) == (
        "validation_error",
        "Invalid output for tool square!: 121 is greater than the maximum of 100 - at `$`",
    )


def test_a_call_without_input_fits_an_explicit_schema_that_requires_nothing() -> None:
    async def keys(value: dict[str, Any]) -> list[str]:
        return list(value)

    assert call(tool(keys, input_schema={"type": "object"})) == []
    assert failure(tool(keys, input_schema=SQUARE))[0] == "validation_error"


def test_a_handler_without_parameters_may_have_a_schema() -> None:
    async def ping() -> str:
        return "pong"

    assert call(tool(ping, input_schema={"type": "object"}), {"x": 1}) == "pong"


def test_several_parameters_with_an_explicit_schema_are_refused() -> None:
    with pytest.raises(InvalidTool, match="Tool add has an explicit input_schema and 2 parameters"):
        tool(add, input_schema=SQUARE)


@pytest.mark.parametrize("which", ["input_schema", "output_schema"])
def test_an_invalid_explicit_schema_names_the_tool_and_which(which: str) -> None:
    async def one(value: Any) -> Any:
        return value

    with pytest.raises(InvalidTool, match=f"^Tool one: {which}: Invalid JSON Schema at `\\$.type`"):
        tool(one, **{which: {"type": "objekt"}})  # type: ignore[call-overload]


def test_a_decorator_needs_no_parentheses() -> None:
    @tool
    async def plain(a: int) -> int:
        return a

    assert call(plain, {"a": 4}) == 4


# --- what cannot be a tool ---


class Bare:
    def method(self, a: int) -> int:
        return a


async def takes_bare(a: int, thing: Bare) -> None: ...
async def takes_callback(then: Callable[[int], int]) -> None: ...
async def takes_args(*args: int) -> None: ...
async def takes_kwargs(**rest: int) -> None: ...
async def returns_bare() -> Bare: ...  # type: ignore[empty-body]
async def unresolved(price: Decimal) -> None: ...
def generates() -> Iterator[int]:
    yield 1


async def generates_async() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (takes_bare, r"^Tool takes_bare: parameter `thing` has a hint .*: Bare\. Use JSON types"),
        (takes_callback, r"^Tool takes_callback: parameter `then` has a hint .*Callable.*Use JSON types"),
        (takes_args, r"^Tool takes_args: parameter `\*args` has no fixed shape\. Take a list"),
        (takes_kwargs, r"^Tool takes_kwargs: parameter `\*\*rest` has no fixed shape\. Take a dict"),
        (returns_bare, r"^Tool returns_bare: the return hint cannot be JSON Schema: Bare\."),
        (
            unresolved,
            r"^Tool unresolved: a hint cannot be resolved: name 'Decimal' is not defined\. Its type",
        ),
        (generates, r"^Tool generates is a generator\. Return a list"),
        (generates_async, r"^Tool generates_async is a generator\. Return a list"),
        (Bare.method, r"^Tool method: parameter `self` is not bound\. Pass the method of an instance"),
        (Bare, r"cannot be a tool\. Pass a function"),
        (5, r"^5 cannot be a tool"),
        (lambda a: a, r"^A lambda has no name"),
    ],
    ids=lambda each: getattr(each, "__name__", str(each)),
)
def test_what_cannot_be_a_tool_is_refused_with_name_parameter_and_remedy(fn: Any, message: str) -> None:
    with pytest.raises(InvalidTool, match=message):
        Provider.of(fn)


# --- providers ---


def test_the_manifest_has_the_shape_of_the_protocol() -> None:
    async def other() -> None:
        pass

    manifest = Provider.of(add, tool(other, name="my-tool"), name="math").manifest()
    assert manifest == {
        "name": "math",
        "tools": {
            "add": {"safeName": "add", "originalName": "add", "description": "Adds two numbers."},
            "my_tool": {"safeName": "my_tool", "originalName": "my-tool"},
        },
        "types": manifest["types"],
    }
    assert manifest["types"].startswith("declare namespace math {")
    assert "function add(input: {" in manifest["types"]


def test_the_manifest_is_made_once_and_known_as_json_too() -> None:
    provider = Provider.of(add)
    assert provider.manifest() is provider.manifest()
    assert json.loads(provider.manifest_json(full=True)) == provider.manifest()
    short = json.loads(provider.manifest_json(full=False))
    assert short == {
        "name": "tools",
        "tools": {"add": {"safeName": "add", "originalName": "add"}},
        "types": "",
    }


def test_colliding_names_reach_their_own_tools() -> None:
    async def first() -> int:
        return 1

    async def second() -> int:
        return 2

    provider = Provider.of(tool(first, name="a.b"), tool(second, name="a-b"))
    assert list(provider.tools) == ["a_b", "a_b__2"]
    assert asyncio.run(provider.dispatch("a_b__2", None, context())) == b"2"
    assert provider.original_name("a_b__2") == "a-b"
    assert provider.original_name("nobody") == "nobody"


def test_a_manifest_with_lone_surrogates_is_well_formed() -> None:
    async def never(value: Any, given: ToolContext) -> bytes:
        raise NotImplementedError

    schema = {"type": "object", "properties": {"\ud800": {"description": "\ud800"}}}
    provider = Provider.of(Tool("a\ud800", never, description="\ud800", input_schema=schema))
    assert msgspec.json.decode(msgspec.json.encode(provider.manifest())) == provider.manifest()


def test_a_function_is_inspected_once_however_often_it_is_lent() -> None:
    assert Provider.of(add).tools["add"] is Provider.of(add).tools["add"]


def test_a_wrapper_is_not_taken_for_what_it_wraps() -> None:
    async def inner() -> int:
        return 1

    Provider.of(inner)

    @functools.wraps(inner)
    async def outer() -> int:
        return 2

    assert call(outer) == 2


def test_a_bad_namespace_is_refused() -> None:
    with pytest.raises(InvalidTool, match="Invalid provider namespace: my-tools"):
        Provider.of(add, name="my-tools")


def test_two_providers_of_one_name_are_refused() -> None:
    a, b = Provider.of(add, name="a"), Provider.of(add, name="b")
    assert check_providers([a, b]) == {"a": a, "b": b}
    with pytest.raises(InvalidTool, match="Two providers are called a"):
        check_providers([a, b, Provider.of(name="a")])


# --- plain manifests ---

ADD = {"safeName": "add", "originalName": "math.add", "description": "Adds"}
MANIFEST = {
    "name": "far",
    "tools": {"add": ADD, "delete": {"safeName": "delete", "originalName": "d"}},
    "types": "T",
}


async def far(safe: str, value: Any, given: ToolContext) -> bytes:
    if value is None:
        raise OSError("far away")
    return json.dumps([safe, value, given.run_id]).encode()


def test_a_manifest_is_a_provider_whose_tools_live_elsewhere() -> None:
    provider = Provider.from_manifest(MANIFEST, far)
    assert provider.manifest() == MANIFEST
    assert provider.original_name("add") == "math.add"
    assert json.loads(asyncio.run(provider.dispatch("add", {"a": 1}, context()))) == ["add", {"a": 1}, "r1"]
    with pytest.raises(ToolError, match="far away"):
        asyncio.run(provider.dispatch("delete", None, context()))
    with pytest.raises(ToolError, match=r"Unknown tool far\.sub"):
        asyncio.run(provider.dispatch("sub", None, context()))


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        ([], "expected an object, got list"),
        ({}, "`manifest.name` must be a string, got nothing"),
        (MANIFEST | {"name": "a-b"}, "Invalid provider namespace: a-b"),
        (MANIFEST | {"types": None}, "`manifest.types` must be a string, got NoneType"),
        ({"name": "far", "types": ""}, "`manifest.tools` must be an object"),
        (MANIFEST | {"tools": {"a-b": ADD}}, "`manifest.tools.a-b` must be a JavaScript identifier"),
        (MANIFEST | {"tools": {"add": 5}}, "`manifest.tools.add` must be an object"),
        (MANIFEST | {"tools": {"sub": ADD}}, "`manifest.tools.sub.safeName` must be its key, `sub`"),
        (
            MANIFEST | {"tools": {"add": {"safeName": "add"}}},
            "`manifest.tools.add.originalName` must be a string",
        ),
        (
            MANIFEST | {"tools": {"add": {"originalName": "add"}}},
            "`manifest.tools.add.safeName` must be a string",
        ),
        (
            MANIFEST | {"tools": {"add": ADD | {"description": None}}},
            "`manifest.tools.add.description` must be",
        ),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_a_manifest_is_checked_and_the_error_names_the_field(manifest: Any, message: str) -> None:
    with pytest.raises(InvalidTool) as caught:
        Provider.from_manifest(manifest, far)
    assert message in str(caught.value)


async def annotated(
    a: Annotated[int, msgspec.Meta(description="From Meta")],
    b: Annotated[int, pydantic.Field(description="From F")],
) -> int:
    """Adds.

    Args:
        a: From the docstring.
        b: From the docstring.
    """
    return a + b


def test_descriptions_in_hints_beat_those_in_the_docstring() -> None:
    schema = tool(annotated).input_schema
    assert schema is not None
    assert [each["description"] for each in schema["properties"].values()] == ["From Meta", "From F"]
