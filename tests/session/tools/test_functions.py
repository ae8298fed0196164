"""Functions as tools: their parameters, explicit schemas, and functions that are not supported."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import msgspec
import pydantic
import pytest
from tests.session.calling import Color, Place, add, call, context, failure

from hutch.errors import InvalidTool
from hutch.session.tools.functions import tool
from hutch.session.tools.provider import Provider
from hutch.session.tools.tool import Tool, ToolContext

if TYPE_CHECKING:
    from decimal import Decimal


class Search(TypedDict, total=False):
    text: str


class User(pydantic.BaseModel):
    name: str


# --- parameters ---


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


def test_blocking_tool_does_not_block_the_event_loop() -> None:
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


def test_parameters_bound_by_a_partial_are_not_part_of_the_input() -> None:
    bound = functools.partial(add, b=10)
    assert tool(bound).input_schema == {
        "type": "object",
        "properties": {"a": {"type": "integer", "description": "The first."}},
        "required": ["a"],
        "additionalProperties": False,
    }
    assert failure(bound, {"a": 1, "b": 99})[0] == "validation_error"


def test_awaitable_returned_by_a_sync_function_is_awaited() -> None:
    def later(a: int) -> Any:
        return add(a)

    assert call(later, {"a": 1}) == 3


def test_each_kind_of_parameter_gets_its_value() -> None:
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


def test_single_model_takes_the_whole_input() -> None:
    assert call(shift, {"lat": 1}) == {"lat": 2.0, "lon": 0.0}
    assert call(greet, {"name": "Ann"}) == "Hello Ann"
    assert call(find, {"text": "x"}) == "x"
    assert call(find, None) == "everything"


def test_keyword_only_model_is_a_property() -> None:
    assert call(greet_by_key, {"user": {"name": "Ann"}}) == "Hello Ann"


def test_models_among_other_parameters_are_properties() -> None:
    assert call(locate, {"place": {"lat": 3}, "color": "red"}) == "red at 3.0"


def test_single_positional_only_parameter_takes_the_whole_input_of_any_type() -> None:
    assert call(length, [1, 2, 3]) == 3
    assert failure(length, ["x"]) == (
        "validation_error",
        'Invalid input for tool length: [0]: expected an integer, got "x"',
    )


def test_parameter_without_a_hint_takes_any_json_value() -> None:
    async def echo(value):  # type: ignore[no-untyped-def]
        return value

    odd = {"__proto__": [None, {"\u2028": "\ud800"}]}
    assert call(echo, {"value": odd}) == odd


async def describe(a: int, given: ToolContext) -> dict[str, Any]:
    return {"a": a, "run": given.run_id, "tool": given.tool, "cancelled": given.cancelled.is_set()}


async def maybe_describe(*, given: ToolContext | None = None) -> str:
    return given.run_id if given else "none"


def test_context_parameter_gets_the_context_and_is_not_part_of_the_input() -> None:
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


def test_pydantic_field_as_default_gives_description_constraint_and_default() -> None:
    made = tool(with_field)
    assert made.input_schema is not None
    assert made.input_schema["required"] == ["count"]
    assert made.input_schema["properties"]["count"]["description"] == "How many"
    assert call(with_field, {"count": 1}) == 8
    assert failure(with_field, {"count": 0})[0] == "validation_error"


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


def test_descriptions_in_hints_override_those_in_the_docstring() -> None:
    schema = tool(annotated).input_schema
    assert schema is not None
    assert [each["description"] for each in schema["properties"].values()] == ["From Meta", "From F"]


# --- explicit schemas ---

SQUARE = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def test_explicit_schemas_override_hints_and_the_parameter_gets_the_input_unconverted() -> None:
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
        'Invalid input for tool square!: n: expected an integer, got "x"',
    )
    assert failure(provider, {"n": 11}) == (
        "validation_error",
        "Invalid output for tool square!: 121 is greater than the maximum of 100 - at `$`",
    )


def test_call_without_input_matches_an_explicit_schema_without_required_properties() -> None:
    async def keys(value: dict[str, Any]) -> list[str]:
        return list(value)

    assert call(tool(keys, input_schema={"type": "object"})) == []
    assert failure(tool(keys, input_schema=SQUARE))[0] == "validation_error"


def test_function_without_parameters_may_have_an_input_schema() -> None:
    async def ping() -> str:
        return "pong"

    assert call(tool(ping, input_schema={"type": "object"}), {"x": 1}) == "pong"


def test_several_parameters_with_an_explicit_schema_are_refused() -> None:
    with pytest.raises(InvalidTool, match="Tool add has an explicit input_schema and 2 parameters"):
        tool(add, input_schema=SQUARE)


@pytest.mark.parametrize("which", ["input_schema", "output_schema"])
def test_invalid_explicit_schema_is_reported_with_tool_and_argument(which: str) -> None:
    async def one(value: Any) -> Any:
        return value

    with pytest.raises(InvalidTool, match=f"^Tool one: {which}: Invalid JSON Schema at `\\$.type`"):
        tool(one, **{which: {"type": "objekt"}})  # type: ignore[call-overload]


def test_decorator_needs_no_parentheses() -> None:
    @tool
    async def plain(a: int) -> int:
        return a

    assert call(plain, {"a": 4}) == 4


# --- unsupported functions ---


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
        (generates, r"^Tool generates is a generator\. Make it async"),
        (Bare.method, r"^Tool method: parameter `self` is not bound\. Pass the method of an instance"),
        (Bare, r"cannot be a tool\. Pass a function"),
        (5, r"^5 cannot be a tool"),
        (lambda a: a, r"^A lambda has no name"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_unsupported_function_is_refused_with_name_parameter_and_remedy(fn: Any, message: str) -> None:
    with pytest.raises(InvalidTool, match=message):
        Provider.of(fn)


async def test_decorated_function_can_still_be_called() -> None:
    @tool
    def add(a: int, b: int = 2) -> int:
        """Adds two numbers."""
        return a + b

    @tool(name="other")
    async def named(text: str) -> str:
        return text

    assert (add(1), add(1, b=5), await named("x")) == (3, 6, "x")
    assert (add.name, named.name, add.__name__, add.__doc__) == ("add", "other", "add", "Adds two numbers.")
    assert list(inspect.signature(add).parameters) == ["a", "b"]
