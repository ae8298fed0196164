"""Providers: dispatch of tool calls, validation order, errors, and manifests."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import json
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import msgspec
import pydantic
import pytest
from tests.session.calling import Color, Place, add, call, context, failure

from hutch.errors import InvalidTool, ToolError
from hutch.problems import MORE_PROBLEMS
from hutch.session.schema.problems import MAX_INPUT_PROBLEMS
from hutch.session.tools import functions
from hutch.session.tools.functions import tool
from hutch.session.tools.provider import Provider, check_providers
from hutch.session.tools.tool import Tool, ToolContext

# --- order, codes and messages ---


def test_invalid_input_is_refused_before_the_tool_runs() -> None:
    ran = []

    async def note(a: int) -> None:
        ran.append(a)

    assert failure(note, {"a": "x"}) == (
        "validation_error",
        'Invalid input for tool note: a: expected an integer, got "x"',
    )
    unknown = "Invalid input for tool note: b: is not known; expected only a"
    assert failure(note, {"a": 1, "b": 1})[1] == unknown
    assert failure(note, None)[1] == "Invalid input for tool note: expected an object, got null"
    assert ran == []


def test_all_problems_of_an_input_are_reported_with_what_was_expected() -> None:
    async def alert(level: Literal["high", "low"], count: int, timeout_seconds: float = 1) -> None:
        raise AssertionError

    code, message = failure(alert, {"level": "hgih", "timeout": 3})
    assert code == "validation_error"
    assert message.removeprefix("Invalid input for tool alert: ").split("; ") == [
        "count: is missing",
        "expected an integer",
        'level: expected "high" or "low", got "hgih"',
        "timeout: is not known",
        "did you mean timeout_seconds?",
    ]
    message = failure(tool(alert_anything, input_schema=ALERT), {"level": 3})[1]
    assert 'level: expected "high" or "low", got the number 3' in message
    assert "count: is missing" in message


ALERT = {
    "type": "object",
    "properties": {"level": {"enum": ["high", "low"]}, "count": {"type": "integer"}},
    "required": ["level", "count"],
}


async def alert_anything(value: Any) -> None:
    raise AssertionError(value)


class Circle(msgspec.Struct, tag="circle"):
    radius: float


class Square(msgspec.Struct, tag="square"):
    side: float


def test_problems_of_a_union_are_those_of_the_type_that_the_input_names() -> None:
    async def draw(shape: Circle | Square) -> None:
        raise AssertionError

    wrong = failure(draw, {"shape": {"type": "circle", "radius": "x"}})[1]
    assert wrong == 'Invalid input for tool draw: shape.radius: expected a number, got "x"'


def test_number_of_reported_problems_is_bounded() -> None:
    async def total(numbers: list[int]) -> None:
        raise AssertionError

    message = failure(total, {"numbers": ["x"] * 500})[1]
    assert message.count("expected an integer") == MAX_INPUT_PROBLEMS
    assert message.endswith(MORE_PROBLEMS)


class Even(pydantic.BaseModel):
    n: int

    @pydantic.field_validator("n")
    @classmethod
    def check(cls, n: int) -> int:
        if n % 2:
            raise ValueError("odd")
        return n


def test_problem_that_the_schema_does_not_show_is_still_reported() -> None:
    async def halve(even: Even) -> None:
        raise AssertionError

    assert "odd" in failure(halve, {"n": 3})[1]


def test_result_that_is_not_json_is_a_serialization_error_even_if_its_type_is_wrong_too() -> None:
    async def bad() -> int:
        return {"a": {1}}  # type: ignore[return-value]

    assert failure(bad) == (
        "serialization_error",
        "Tool bad returned a non-serializable value: $.a is a set",
    )


def test_result_of_another_type_is_a_validation_error() -> None:
    async def bad() -> list[int]:
        return [1, "x"]  # type: ignore[list-item]

    assert failure(bad) == (
        "validation_error",
        'Invalid output for tool bad: "x" is not of type "integer" - at `$[1]`',
    )


def test_results_are_serialized_according_to_their_schema() -> None:
    class Reply(pydantic.BaseModel):
        text: str = pydantic.Field(serialization_alias="body")

    async def reply() -> Any:
        return [Reply(text="x"), Color.RED, Place(1, 2)]

    assert call(reply) == [{"body": "x"}, "red", {"lat": 1, "lon": 2}]


def test_none_is_null() -> None:
    async def nothing() -> None:
        return None

    assert call(nothing) is None
    assert call(nothing, {}) is None


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
def test_exception_is_a_tool_error_with_its_message(is_async: bool) -> None:
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


def test_exceptions_are_logged_with_traceback_but_tool_errors_are_not(
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


def test_unknown_error_code_is_refused() -> None:
    with pytest.raises(
        InvalidTool, match=r"no code 'nocode'; expected one of internal_error, memory_limit, "
    ):
        ToolError("x", "nocode")


def test_unknown_tool_is_an_internal_error() -> None:
    assert failure(Provider.of(add, name="math"), {}, "sub") == ("internal_error", "Unknown tool math.sub")
    assert failure(Provider.of(add), {}, "__class__") == ("internal_error", "Unknown tool tools.__class__")


def test_cancellation_reaches_an_async_tool() -> None:
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


def test_sync_tool_does_not_start_after_its_run_was_cancelled() -> None:
    ran = []

    def note() -> None:
        ran.append(1)

    async def main() -> None:
        given = context()
        given.cancelled.set()
        await Provider.of(note).dispatch("note", None, given)

    asyncio.run(main())
    assert ran == []


def test_abandoned_sync_tools_never_take_more_than_the_maximum_of_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = ThreadPoolExecutor(2)
    monkeypatch.setattr(functions, "_thread_pool", lambda: pool)
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


def test_sync_tool_sees_the_context_variables_of_its_caller() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")

    def read() -> str:
        return variable.get("unset")

    async def main() -> bytes:
        variable.set("set")
        return await Provider.of(read).dispatch("read", None, context())

    assert asyncio.run(main()) == b'"set"'


def test_call_overhead_is_small() -> None:
    async def main() -> float:
        provider, given = Provider.of(add), context()
        best = float("inf")
        for _ in range(5):
            started = time.perf_counter()
            for _ in range(500):
                await provider.dispatch("add", {"a": 1, "b": 2}, given)
            best = min(best, (time.perf_counter() - started) / 500)
        return best

    assert asyncio.run(main()) < 100e-6  # takes about 6 µs; the limit allows for a busy machine


# --- providers ---


def test_manifest_has_the_shape_of_the_protocol() -> None:
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


def test_manifest_is_created_once_also_as_json() -> None:
    provider = Provider.of(add)
    assert provider.manifest() is provider.manifest()
    assert json.loads(provider.manifest_json(full=True)) == provider.manifest()
    short = json.loads(provider.manifest_json(full=False))
    assert short == {
        "name": "tools",
        "tools": {"add": {"safeName": "add", "originalName": "add"}},
        "types": "",
    }


def test_tools_with_colliding_names_are_called_correctly() -> None:
    async def first() -> int:
        return 1

    async def second() -> int:
        return 2

    provider = Provider.of(tool(first, name="a.b"), tool(second, name="a-b"))
    assert list(provider.tools) == ["a_b", "a_b__2"]
    assert asyncio.run(provider.dispatch("a_b__2", None, context())) == b"2"
    assert provider.tools["a_b__2"].name == "a-b"


def test_manifest_with_lone_surrogates_is_well_formed() -> None:
    async def never(value: Any, given: ToolContext) -> bytes:
        raise NotImplementedError

    schema = {"type": "object", "properties": {"\ud800": {"description": "\ud800"}}}
    provider = Provider.of(Tool("a\ud800", never, description="\ud800", input_schema=schema))
    assert msgspec.json.decode(msgspec.json.encode(provider.manifest())) == provider.manifest()


def test_function_is_inspected_only_once() -> None:
    assert Provider.of(add).tools["add"] is Provider.of(add).tools["add"]


def test_wrapper_is_not_confused_with_the_wrapped_function() -> None:
    async def inner() -> int:
        return 1

    Provider.of(inner)

    @functools.wraps(inner)
    async def outer() -> int:
        return 2

    assert call(outer) == 2


def test_invalid_namespace_is_refused() -> None:
    with pytest.raises(InvalidTool, match="Invalid provider namespace: my-tools"):
        Provider.of(add, name="my-tools")


def test_two_providers_with_the_same_name_are_refused() -> None:
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


async def call_remote(safe: str, value: Any, given: ToolContext) -> bytes:
    if value is None:
        raise OSError("far away")
    return json.dumps([safe, value, given.run_id]).encode()


def test_provider_from_a_manifest_calls_remote_tools() -> None:
    provider = Provider.from_manifest(MANIFEST, call_remote)
    assert provider.manifest() == MANIFEST
    assert provider.tools["add"].name == "math.add"
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
def test_invalid_manifest_is_refused_with_the_field(manifest: Any, message: str) -> None:
    with pytest.raises(InvalidTool) as caught:
        Provider.from_manifest(manifest, call_remote)
    assert message in str(caught.value)


@pytest.mark.parametrize("is_async", [False, True])
async def test_traceback_of_a_tool_starts_with_its_function(
    caplog: pytest.LogCaptureFixture, is_async: bool
) -> None:
    def divide(a: int) -> float:
        return a / 0

    async def divide_later(a: int) -> float:
        return divide(a)

    function = divide_later if is_async else divide
    provider = Provider.of(function)
    with pytest.raises(ToolError):
        await provider.dispatch(function.__name__, {"a": 1}, context())
    [record] = caplog.records
    assert record.exc_info is not None
    frames = [frame.name for frame in traceback.extract_tb(record.exc_info[2])]
    assert frames == (["divide_later", "divide"] if is_async else ["divide"])
