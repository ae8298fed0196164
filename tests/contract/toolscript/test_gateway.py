"""Gateway Communication: a script's calls are HTTP requests to the gateway."""

from __future__ import annotations

import asyncio
import logging

import pytest
from tests.support.toolscripts import IMPORT, ScriptEnvironment


async def test_tool_invocation_with_camelcase_syntax(scripts: ScriptEnvironment) -> None:
    ran = await scripts.run(f"{IMPORT}return (await tools.github.createIssue({{ title: 'x' }})).title")
    assert ran.value == "x"
    [call] = [each for each in scripts.requests if each.method == "POST"]
    assert call.path == "/tools/github__create_issue"
    assert call.headers["content-type"] == "application/json"


async def test_multiple_servers_with_camelcase_namespacing(scripts: ScriptEnvironment) -> None:
    code = IMPORT + (
        "const made = await tools.github.createIssue({ title: 'x' });\n"
        "await tools.myAtlassian.createIssue({ title: 'y' });\n"
        "const got = await tools.myAtlassian.getIssue({ number: 1 });\n"
        "return made.number > 0 && got.number === 1;"
    )
    assert (await scripts.run(code)).value is True
    assert scripts.calls() == [
        "github__create_issue",
        "my-atlassian__create_issue",
        "my-atlassian__get_issue",
    ]


async def test_response_parsing(scripts: ScriptEnvironment) -> None:
    code = IMPORT + (
        "const { every } = tools;\nreturn {\n"
        "  structured: await every.add({ a: 1, b: 2 }), object: await every.echo({ value: { deep: [1] } }),\n"
        "  zero: await every.zero(), nothing: await every.nothing(),\n"
        "  text: await every.echo({ value: 'a' }),\n"
        "  blocks: (await every.blocks()).map((each: { type: string }) => each.type),\n};"
    )
    assert (await scripts.run(code)).value == {
        "structured": {"sum": 3},
        "object": {"deep": [1]},
        "zero": "0",
        "nothing": None,
        "text": "a",
        "blocks": ["text", "image", "resource_link"],
    }


async def test_error_propagation(scripts: ScriptEnvironment) -> None:
    code = (
        IMPORT
        + """
        async function failure(call: () => Promise<unknown>) {
          try {
            return await call();
          } catch (error) {
            if (!(error instanceof ToolError)) throw error;
            const { name, message, server, tool, details } = error;
            return { name, message, server, tool, details };
          }
        }
        return [
          await failure(() => tools.every.fail({ city: "Atlantis" })),
          await failure(() => tools.every.reject()),
          await failure(() => tools.myAtlassian.getIssue({ number: 1000 })),
        ];
    """
    )
    failed, rejected, elsewhere = (await scripts.run(code)).value
    assert failed == {
        "name": "ToolError",
        "message": "no such city: Atlantis",
        "server": "every",
        "tool": "fail",
        "details": None,
    }
    assert (rejected["message"], rejected["details"]) == (
        "the quota is used up",
        {"code": -32050, "data": {"retry": 60}},
    )
    assert (elsewhere["server"], elsewhere["tool"], elsewhere["message"]) == (
        "my-atlassian",
        "get_issue",
        "there is no issue 1000",
    )
    uncaught = await scripts.run(f"{IMPORT}\nawait tools.every.fail({{ city: 'Atlantis' }});\n")
    assert uncaught.exit_code == 1
    assert (
        uncaught.stderr == "error: Uncaught ToolError: no such city: Atlantis\n    at async script.ts:3:1\n"
    )


async def test_multiple_tool_calls(scripts: ScriptEnvironment) -> None:
    code = IMPORT + (
        "const seen: unknown[] = [];\n"
        "for (let i = 0; i < 20; i++) seen.push(await tools.every.echo({ value: [i] }));\n"
        "const together = await Promise.all([1, 2, 3].map((a) => tools.every.add({ a, b: a })));\n"
        "return [seen.flat(), together.map(({ sum }) => sum)];"
    )
    assert (await scripts.run(code)).value == [[*range(20)], [2, 4, 6]]
    assert scripts.calls().count("every__echo") == 20


async def test_run_record_contains_its_calls_and_their_outcome(
    scripts: ScriptEnvironment, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "hutch.runs")
    code = (
        f"{IMPORT}await tools.github.createIssue({{ title: 'x' }}); await tools.every.fail({{ city: 'x' }});"
    )
    other = f"{IMPORT}await tools.every.add({{ a: 1, b: 2 }});"
    await asyncio.gather(scripts.run(code, run_id="one"), scripts.run(other, run_id="other"))
    await asyncio.sleep(0)  # the log lines are written after the callers have the results
    fields = [each.fields for each in caplog.records if each.name == "hutch.runs"]
    records = {each["run_id"]: each for each in fields}
    assert [(each["provider"], each["tool"], each["ok"]) for each in records["one"]["calls"]] == [
        ("github", "create_issue", True),
        ("every", "fail", False),
    ]
    assert all(each["duration_ms"] > 0 for each in records["one"]["calls"])
    assert (records["one"]["tool_calls"], records["other"]["tool_calls"]) == (2, 1)
    assert [each["tool"] for each in records["other"]["calls"]] == ["add"]


async def test_run_record_counts_all_calls_and_lists_the_first(
    scripts: ScriptEnvironment, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "hutch.runs")
    monkeypatch.setattr("hutch.session.run.MAX_RECORDED_CALLS", 2)
    await scripts.run(f"{IMPORT}for (let n = 0; n < 5; n++) await tools.every.add({{ a: n, b: 1 }});")
    await asyncio.sleep(0)  # the log line is written after the caller has the result
    [record] = [each.fields for each in caplog.records if each.name == "hutch.runs"]
    assert (record["tool_calls"], len(record["calls"])) == (5, 2)
