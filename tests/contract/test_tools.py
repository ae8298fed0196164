"""Host tools in a guest: names and namespaces, inputs, and the order of validation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from tests.conftest import Run

import hutch
from hutch import Provider, tool
from hutch.errors import InvalidTool


async def add(a: float, b: float) -> float:
    return a + b


async def echo(value: Any, /) -> Any:
    return value


def provider_of(*names: str) -> Provider:
    """Returns a provider with a tool for each name. Each tool returns its own original name."""

    def named(name: str) -> hutch.Tool:
        async def answer() -> str:
            return name

        return tool(answer, name=name)

    return Provider.of(*map(named, names))


# --- names ---


async def test_tool_is_called_and_returns_its_result(run: Run) -> None:
    result = await run("return (await tools.add({ a: 1, b: 2 })) * 2", tools=[add])
    assert result.result == 6


async def test_namespaces_come_from_a_mapping_or_from_providers(run: Run) -> None:
    code = "[await math.add({ a: 1, b: 2 }), await other.echo('x')]"
    assert (await run(code, tools={"math": [add], "other": [echo]})).result == [3, "x"]
    mixed = [Provider.of(add, name="math"), Provider.of(echo, name="other")]
    assert (await run(code, tools=mixed)).result == [3, "x"]


async def test_namespaces_have_no_prototype_and_unknown_members_are_undefined(run: Run) -> None:
    code = """[
        Object.getPrototypeOf(tools), typeof tools.nope, typeof tools.constructor, typeof tools.__proto__,
        typeof tools.toString, 'hasOwnProperty' in tools, Object.keys(tools)
    ]"""
    result = await run(code, tools=[add])
    assert result.result == [None, "undefined", "undefined", "undefined", "undefined", False, ["add"]]


async def test_calling_an_unknown_tool_is_the_guests_type_error(run: Run) -> None:
    result = await run("await tools.nope()", tools=[add])
    assert result.error is not None
    assert (result.error.code, result.error.name) == ("runtime_error", "TypeError")


@pytest.mark.parametrize("name", ["constructor", "__proto__", "toString", "hasOwnProperty", "then", "$"])
async def test_tool_may_have_the_name_of_an_object_member(run: Run, name: str) -> None:
    safe = next(iter(provider_of(name).tools))
    code = f"[await tools[{safe!r}](), Object.keys(tools), Object.getPrototypeOf(tools)]"
    result = await run(code, tools=provider_of(name))
    assert result.error is None
    assert result.result == [name, [safe], None]


async def test_names_are_made_safe_and_collisions_numbered(run: Run) -> None:
    provider = provider_of("search docs", "search-docs", "search_docs", "2fa", "delete", "!!", " x ")
    result = await run("Object.keys(tools)", tools=provider)
    assert result.result == ["search_docs", "search_docs__2", "search_docs__3", "_2fa", "delete_", "_", "x"]
    assert (await run("await tools.search_docs__2()", tools=provider)).result == "search-docs"


@pytest.mark.parametrize("name", ["1a", "a-b", "", "class", "a.b", "await"])
async def test_namespace_that_is_not_an_identifier_is_refused(run: Run, name: str) -> None:
    with pytest.raises(InvalidTool, match="Invalid provider namespace: "):
        await run("1", tools={name: [add]})


async def test_two_providers_with_one_name_are_refused(run: Run) -> None:
    with pytest.raises(InvalidTool, match="Two providers are called tools"):
        await run("1", tools=[Provider.of(add), Provider.of(echo)])


async def test_tools_cannot_be_replaced_in_their_namespace(run: Run) -> None:
    code = "try { tools.add = () => 'mine' } catch {}\nreturn await tools.add({ a: 1, b: 1 })"
    assert (await run(code, tools=[add])).result == 2


async def test_namespace_may_have_the_name_of_a_global(run: Run) -> None:
    assert (await run("await console.add({ a: 1, b: 1 })", tools={"console": [add]})).result == 2


# --- input ---


async def test_only_the_first_argument_is_sent_and_a_missing_one_is_null(run: Run) -> None:
    code = (
        "[await tools.echo('a', 'b'), await tools.echo(), await tools.echo(undefined), await"
        " tools.echo(null)]"
    )
    assert (await run(code, tools=[echo])).result == ["a", None, None, None]


@pytest.mark.parametrize(
    "value", [0, -1.5, "", "\u2028\0\ud800", [], {}, [[None]], {"__proto__": {"x": 1}, "a": {"b": [1]}}, True]
)
async def test_inputs_and_results_keep_their_value(run: Run, value: Any) -> None:
    async def give() -> Any:
        return value

    code = "const value = await tools.give();\nreturn [value, await tools.echo(value)]"
    result = await run(code, tools=[give, echo])
    assert result.error is None
    assert result.result == [value, value]


async def test_undefined_properties_are_dropped_from_an_input(run: Run) -> None:
    assert (await run("await tools.echo({ a: undefined, b: 1 })", tools=[echo])).result == {"b": 1}


async def test_input_is_copied_when_the_tool_is_called(run: Run) -> None:
    code = "const v = { n: 1 };\nconst call = tools.echo(v);\nv.n = 2;\nreturn await call"
    assert (await run(code, tools=[echo])).result == {"n": 1}


async def test_tool_that_returns_nothing_returns_null(run: Run) -> None:
    async def nothing() -> None: ...

    assert (await run("await tools.nothing() === null", tools=[nothing])).result is True


# --- order of validation and its error messages ---


@dataclass
class Point:
    x: int
    y: int


async def test_input_is_validated_before_the_tool_runs(run: Run) -> None:
    ran = []

    async def plot(point: Point) -> str:
        ran.append(point)
        return "plotted"

    result = await run("await tools.plot({ x: 'one', y: 2 })", tools=[plot])
    assert ran == []
    assert result.error is not None
    assert result.error.code == "validation_error"
    assert result.error.message.startswith("Invalid input for tool plot: ")
    assert "x" in result.error.message
    assert (await run("await tools.plot({ x: 1, y: 2 })", tools=[plot])).result == "plotted"
    assert ran == [Point(1, 2)]


async def test_messages_name_the_tool_by_its_original_name(run: Run) -> None:
    named = tool(add, name="add two numbers")
    result = await run("await tools.add_two_numbers({ a: 1 })", tools=[named])
    assert result.error is not None
    assert result.error.message.startswith("Invalid input for tool add two numbers: ")


async def test_result_that_is_not_json_is_refused_before_its_schema_is_checked(run: Run) -> None:
    @tool(output_schema={"type": "string"})
    async def bad() -> Any:
        return {1, 2}

    result = await run("await tools.bad()", tools=[bad])
    assert result.error is not None
    assert result.error.code == "serialization_error"
    assert result.error.message.startswith("Tool bad returned a non-serializable value")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), b"bytes", object(), {"a": {1}}, 10**400])
async def test_host_values_that_are_not_json_safe_are_refused(run: Run, value: Any) -> None:
    async def give() -> Any:
        return value

    result = await run("await tools.give()", tools=[give])
    assert result.error is not None
    assert result.error.code == "serialization_error"
    assert result.error.message.startswith("Tool give returned a non-serializable value")


async def test_host_value_with_a_cycle_is_refused(run: Run) -> None:
    async def give() -> Any:
        value: list[Any] = []
        value.append(value)
        return value

    result = await run("await tools.give()", tools=[give])
    assert result.error is not None
    assert result.error.code == "serialization_error"


async def test_output_is_validated_after_the_tool_ran(run: Run) -> None:
    ran = []

    @tool(output_schema={"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})
    async def count() -> Any:
        ran.append(1)
        return {"n": "many"}

    result = await run("await tools.count()", tools=[count])
    assert ran == [1]
    assert result.error is not None
    assert result.error.code == "validation_error"
    assert result.error.message.startswith("Invalid output for tool count: ")
