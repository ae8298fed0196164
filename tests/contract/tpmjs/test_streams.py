"""Streamed executions: printed lines, partial values and the result."""

from __future__ import annotations

from tests.contract.tpmjs.harness import SyncServer, ToolServer, tool


async def test_lines_and_values_are_sent_while_the_tool_runs(
    tool_server: ToolServer, sync: SyncServer
) -> None:
    package = tool_server.publish("""
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
    stream = tool_server.stream(package, "tool", {"meet": sync.url})
    received = [await anext(stream) for _ in range(3)]
    assert received == [
        ("log", {"line": "importing"}),
        ("log", {"line": "begun"}),
        ("partial", {"value": {"n": 1}}),
    ]
    # Until this release, the tool waits, so it has sent only the three events above.
    sync.release("streaming")
    *received, (name, result) = [event async for event in stream]
    assert received == [("log", {"line": "going on"}), ("partial", {"value": "two"})]
    assert (name, result["success"], result["output"]) == ("result", True, [{"n": 1}, "two"])
    assert result["logs"] == ["importing", "begun", "going on"]


async def test_values_before_a_failure_are_sent(tool_server: ToolServer) -> None:
    package = tool_server.publish(
        "export const tool = { async *execute() { yield 1; throw new Error('no more') } }"
    )
    events = [event async for event in tool_server.stream(package)]
    assert events[0] == ("partial", {"value": 1})
    assert events[-1][0] == "result"
    assert events[-1][1]["error"] == {"code": "TOOL_EXECUTION_ERROR", "message": "no more"}
    assert "output" not in events[-1][1]


async def test_many_values_arrive_in_order(tool_server: ToolServer) -> None:
    package = tool_server.publish(
        "export const tool = { *execute() { for (let i = 0; i < 2000; i++) yield i } }"
    )
    events = [event async for event in tool_server.stream(package)]
    assert [event["value"] for name, event in events if name == "partial"] == [*range(2000)]
    assert events[-1][1]["output"] == [*range(2000)]


async def test_failure_of_every_stage_is_the_result_of_the_stream(tool_server: ToolServer) -> None:
    for source, code in {
        tool("throw new Error('x')"): "TOOL_EXECUTION_ERROR",
        "throw new Error('x')": "TOOL_EXECUTION_ERROR",
        "export const tool = 1": "TOOL_INVALID",
        "export const other = 1": "TOOL_NOT_FOUND",
    }.items():
        [(name, result)] = [event async for event in tool_server.stream(tool_server.publish(source))]
        assert (name, result["error"]["code"]) == ("result", code)
    [(name, result)] = [event async for event in tool_server.stream("made-up-and-missing")]
    assert (name, result["error"]["code"]) == ("result", "PACKAGE_NOT_FOUND")


async def test_stream_of_a_slow_tool_ends_with_the_timeout(short_timeout_server: ToolServer) -> None:
    package = short_timeout_server.publish(
        "export const tool = { async *execute() { yield 1; await new Promise(() => {}) } }"
    )
    events = [event async for event in short_timeout_server.stream(package)]
    assert events[0] == ("partial", {"value": 1})
    assert events[-1][1]["error"]["code"] == "EXECUTION_TIMEOUT"


async def test_slow_reader_gets_the_result(tool_server: ToolServer) -> None:
    source = "export const tool = { *execute() { for (let i = 0; i < 60; i++) yield 'x'.repeat(100_000) } }"
    stream = tool_server.stream(tool_server.publish(source))
    first = await anext(stream)
    assert first[0] == "partial"
    *_, (name, result) = [event async for event in stream]
    assert (name, len(result["output"])) == ("result", 60)
