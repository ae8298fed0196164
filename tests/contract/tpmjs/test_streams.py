"""Executions that are heard of while they go on: what they print, what they give bit by bit, how they end."""

from __future__ import annotations

from tests.contract.tpmjs.served import Executor, Meeting, tool


async def test_lines_and_values_come_while_the_tool_runs(made: Executor, meet: Meeting) -> None:
    package = made.publish("""
        console.log("importing");
        export const tool = {
          async *execute({ meet }) {
            console.log("begun");
            yield { first: undefined, n: 1 };
            await fetch(meet + "/wait/streaming");
            console.log("going on");
            yield "two";
          },
        };
    """)
    stream = made.stream(package, "tool", {"meet": meet.url})
    heard = [await anext(stream) for _ in range(3)]
    assert heard == [
        ("log", {"line": "importing"}),
        ("log", {"line": "begun"}),
        ("partial", {"value": {"n": 1}}),
    ]
    # It waits for us: nothing of what follows can have been sent.
    meet.let_go("streaming")
    *heard, (name, result) = [event async for event in stream]
    assert heard == [("log", {"line": "going on"}), ("partial", {"value": "two"})]
    assert (name, result["success"], result["output"]) == ("result", True, [{"n": 1}, "two"])
    assert result["logs"] == ["importing", "begun", "going on"]


async def test_generator_that_fails_has_given_what_it_gave(made: Executor) -> None:
    package = made.publish("export const tool = { async *execute() { yield 1; throw new Error('no more') } }")
    events = [event async for event in made.stream(package)]
    assert events[0] == ("partial", {"value": 1})
    assert events[-1][0] == "result"
    assert events[-1][1]["error"] == {"code": "TOOL_EXECUTION_ERROR", "message": "no more"}
    assert "output" not in events[-1][1]


async def test_many_values_arrive_in_order(made: Executor) -> None:
    package = made.publish("export const tool = { *execute() { for (let i = 0; i < 2000; i++) yield i } }")
    events = [event async for event in made.stream(package)]
    assert [told["value"] for name, told in events if name == "partial"] == [*range(2000)]
    assert events[-1][1]["output"] == [*range(2000)]


async def test_failures_of_every_stage_are_results_of_a_stream(made: Executor) -> None:
    for source, code in {
        tool("throw new Error('x')"): "TOOL_EXECUTION_ERROR",
        "throw new Error('x')": "TOOL_EXECUTION_ERROR",
        "export const tool = 1": "TOOL_INVALID",
        "export const other = 1": "TOOL_NOT_FOUND",
    }.items():
        [(name, result)] = [event async for event in made.stream(made.publish(source))]
        assert (name, result["error"]["code"]) == ("result", code)
    [(name, result)] = [event async for event in made.stream("made-up-by-nobody")]
    assert (name, result["error"]["code"]) == ("result", "PACKAGE_NOT_FOUND")


async def test_stream_of_a_tool_that_is_too_slow_ends_with_its_timeout(hasty: Executor) -> None:
    package = hasty.publish(
        "export const tool = { async *execute() { yield 1; await new Promise(() => {}) } }"
    )
    events = [event async for event in hasty.stream(package)]
    assert events[0] == ("partial", {"value": 1})
    assert events[-1][1]["error"]["code"] == "EXECUTION_TIMEOUT"


async def test_reader_who_is_slow_loses_no_result(made: Executor) -> None:
    source = "export const tool = { *execute() { for (let i = 0; i < 60; i++) yield 'x'.repeat(100_000) } }"
    stream = made.stream(made.publish(source))
    first = await anext(stream)
    assert first[0] == "partial"
    *_, (name, result) = [event async for event in stream]
    assert (name, len(result["output"])) == ("result", 60)
