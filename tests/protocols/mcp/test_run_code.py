"""run_code: results of toolscripts and JavaScript, successful and failing."""

from __future__ import annotations

import asyncio
import json

import pytest
from mcp import Client
from tests.protocols.mcp.harness import (
    IMPORT,
    RESOURCE_READER,
    McpHarness,
    run,
    run_structured,
    text_of,
)
from tests.protocols.toolscript.fakes import returning

from hutch.app.app import App
from hutch.protocols.mcp.results import MAX_CHARS, MAX_LISTED_CALLS, MAX_PREVIEW_CHARS, fair_shares
from hutch.protocols.mcp.server import HutchMcpServer

PIXEL = {"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png"}
LANGUAGES = ("toolscript", "javascript")


async def test_toolscript_returns_result_output_and_tool_calls(client: Client) -> None:
    code = f"""{IMPORT}
        console.log("making");
        const made = await tools.github.createIssue({{ title: "x" }});
        console.error("made");
        return made.number + 1;"""
    found = await run_structured(client, code)
    assert (found["ok"], found["result"], found["exitCode"], found["error"]) == (True, 8, 0, None)
    assert (found["stdout"], found["stderr"], found["logs"]) == ("making\n", "made\n", [])
    (call,) = found["toolCalls"]
    assert (call["server"], call["tool"], call["ok"]) == ("github", "create_issue", True)
    assert call["durationMs"] >= 0
    assert found["durationMs"] > 0
    assert found["truncated"] is False
    answer = await run(client, code)
    assert answer.structured_content is None
    assert text_of(answer) == "8\n\nstdout:\nmaking\n\nstderr:\nmade\n\n(1 tool call)"


async def test_javascript_returns_result_logs_and_tool_calls(client: Client) -> None:
    code = """
        console.log("making");
        const made = await tools.github.createIssue({ title: "x" });
        return { made, read: await tools.fileSystem.readFile({ path: "/a" }) };"""
    found = await run_structured(client, code, "javascript")
    assert found["ok"]
    assert found["result"]["made"] == {"number": 7}
    assert found["result"]["read"]["arguments"] == {"path": "/a"}
    assert found["logs"] == ["making"]
    assert [(each["server"], each["tool"]) for each in found["toolCalls"]] == [
        ("github", "create_issue"),
        ("file-system", "read_file"),
    ]


async def test_javascript_call_without_await_is_explained(client: Client) -> None:
    warning = "1 call of tools.github.createIssue had not ended when the code returned"
    undefined = "return tools.github.createIssue({ title: 'x' }).number"
    text = text_of(await run(client, undefined, "javascript"))
    assert "The result is undefined" in text
    assert "`return` the values" not in text
    assert f"Warning: {warning}" in text
    found = await run_structured(client, undefined, "javascript")
    assert [each.startswith(warning) for each in found["warnings"]] == [True]
    not_a_number = "const made = tools.github.createIssue({ title: 'x' });\nreturn made * 2"
    text = text_of(await run(client, not_a_number, "javascript"))
    assert text.count(warning) == 1
    assert "NaN" in text
    awaited = await run(client, "await tools.github.createIssue({ title: 'x' });\nreturn", "javascript")
    assert "(The result is undefined: `return` the values that you need; 1 tool call)" in text_of(awaited)


async def test_session_keeps_variables_between_calls(client: Client) -> None:
    first = "const made: {number: number} = await tools.github.createIssue({ title: 'x' })"
    assert (await run_structured(client, first, session="work"))["ok"]
    found = await run_structured(client, "made.number + 1", session="work")
    assert (found["result"], found["toolCalls"]) == (8, [])
    other = await run_structured(client, "typeof made", session="other")
    assert other["result"] == "undefined"
    refused = await run(client, "1", session="a b")
    assert refused.is_error
    assert "session: " in text_of(refused)


@pytest.mark.parametrize("language", LANGUAGES)
async def test_code_reads_resources_of_allowed_servers(app: App, language: str) -> None:
    tools = (RESOURCE_READER, RESOURCE_READER._replace(server="slack"))
    harness = McpHarness(app, {"slack": "deny"}, tools)
    contents = [{"uri": "file:///a", "text": "The text."}]
    harness.upstream.functions["read_resource"] = returning({"contents": contents})
    code = """
        const read = await tools.fileSystem.readResource({ uri: "file:///a" });
        const denied = await tools.slack.readResource({ uri: "file:///a" }).catch((e) => e.message);
        return [read.contents[0].text, denied];"""
    mcp_server = HutchMcpServer(harness)
    async with Client(mcp_server.server) as client:
        found = await run_structured(client, code, language)
    mcp_server.close()
    assert found["result"] == ["The text.", "The policy denies slack__read_resource"]
    assert harness.upstream.calls == [("file-system", "read_resource", {"uri": "file:///a"})]


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("start", ["", IMPORT, 'import { tools as t } from "toolscript"; const tools = t;\n'])
async def test_tools_have_the_same_names_in_both_languages_and_need_no_import(
    client: Client, language: str, start: str
) -> None:
    code = f"""{start}
        const issues = await tools.github.listIssues();
        const {{ number }} = await tools.github.createIssue({{ title: issues[0].title }});
        return number;"""
    assert (await run_structured(client, code, language))["result"] == 7


async def test_unknown_tool_in_javascript_is_reported_with_the_names_of_the_others(client: Client) -> None:
    found = await run_structured(client, "await tools.github.creatIssue()", "javascript")
    assert found["error"]["message"].startswith(
        "TypeError: tools.github.creatIssue is not a function; tools.github has createIssue, listIssues,"
    )


async def test_type_error_is_reported_and_nothing_runs(harness: McpHarness, client: Client) -> None:
    code = f'{IMPORT}await tools.github.listIssues();\nawait tools.github.createIssue({{ titel: "x" }});'
    answer = await run(client, code)
    assert answer.is_error
    text = text_of(answer)
    assert "script.ts:3:" in text
    assert "^^^^^" in text
    assert "tools.github.createIssue(args: { title: string; }): Promise<{ number: number; }>" in text
    error = (await run_structured(client, code))["error"]
    assert (error["code"], error["problems"][0]["line"]) == ("invalid_script", 3)
    assert harness.upstream.calls == []


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("code", ["def f(x):\n    return x\nf(1)", "x = 5\nprint(x)"])
async def test_python_is_refused_with_the_languages_that_run(
    client: Client, language: str, code: str
) -> None:
    text = text_of(await run(client, code, language))
    assert text.count("this looks like Python; code has to be JavaScript or TypeScript") == 1


async def test_check_can_be_disabled(harness: McpHarness, client: Client) -> None:
    code = f'{IMPORT}return await tools.github.createIssue({{ titel: "x" }});'
    assert (await run_structured(client, code))["error"]["code"] == "invalid_script"
    assert (await run_structured(client, code, check=False))["result"] == {"number": 7}


async def test_failing_script_reports_position_and_reason(client: Client) -> None:
    code = f"{IMPORT}\nawait tools.github.fail();"
    found = await run_structured(client, code)
    assert found["exitCode"] == 1
    assert [each["ok"] for each in found["toolCalls"]] == [False]
    answer = await run(client, code)
    assert answer.is_error
    text = text_of(answer)
    assert text.count("ToolError: no such repository") == 1
    assert "script.ts:3" in text
    assert "1 failed" in text


async def test_failing_javascript_reports_position_and_reason(client: Client) -> None:
    answer = await run(client, "const a = 1;\nthrow new TypeError('no');", "javascript")
    assert answer.is_error
    assert "TypeError: no (line 2, column" in text_of(answer)
    failed = await run_structured(client, "await tools.github.fail()", "javascript")
    assert failed["error"]["message"].startswith("no such repository (line 1, column ")
    wrong = await run_structured(client, "await tools.github.createIssue([1])", "javascript")
    assert "Expected an object of arguments, got a list" in wrong["error"]["message"]


async def test_position_of_a_syntax_error_in_javascript_is_told_once(client: Client) -> None:
    text = text_of(await run(client, "x = = 1", "javascript"))
    assert text == "SyntaxError: Unexpected token (line 1, column 5)"
    python = text_of(await run(client, "def f(x):\n    return x", "javascript"))
    assert python.startswith("SyntaxError: Unexpected token; this looks like Python; ")
    assert python.endswith(" (line 1, column 5)")


async def test_script_can_set_its_exit_code(client: Client) -> None:
    found = await run_structured(client, "console.log('out'); Deno.exit(3);")
    assert (found["exitCode"], found["stdout"]) == (3, "out\n")
    assert found["error"]["message"] == "The script ended with exit code 3"


@pytest.mark.parametrize("language", LANGUAGES)
async def test_timeout_ends_the_run(client: Client, language: str) -> None:
    found = await run_structured(client, "for (;;) {}", language, timeout_seconds=0.3)
    assert found["error"]["code"] == "timeout"
    assert "300 ms" in found["error"]["message"]


@pytest.mark.parametrize("language", LANGUAGES)
async def test_timeout_names_the_tool_that_the_code_waited_for(
    harness: McpHarness, client: Client, language: str
) -> None:
    async def hang(*_: object) -> None:
        await asyncio.Event().wait()

    harness.upstream.functions["list_issues"] = hang
    found = await run_structured(client, "await tools.github.listIssues()", language, timeout_seconds=0.5)
    message = found["error"]["message"]
    assert " 500 ms, waiting for tools.github.listIssues" in message
    assert message.endswith("; timeout_seconds allows up to 300")
    assert found["exitCode"] in (124, None)


@pytest.mark.parametrize("language", LANGUAGES)
async def test_long_result_is_kept_and_later_code_can_use_it(client: Client, language: str) -> None:
    code = "return Array.from({ length: 20000 }, (_, i) => i)"
    found = await run_structured(client, code, language)
    whole = json.dumps([*range(20_000)], separators=(",", ":"))
    assert found["truncated"] is True
    note = f"… truncated, {len(whole) - MAX_PREVIEW_CHARS} more characters"
    assert found["result"] == whole[:MAX_PREVIEW_CHARS] + note
    name = found["value"]["name"]
    assert found["value"]["bytes"] == len(whole)
    answer = text_of(await run(client, code, language))
    assert answer.startswith(found["result"])
    assert "is kept as v_" in answer
    use = f"return values.{name}.reduce((a, b) => a + b)"
    assert (await run_structured(client, use, "javascript", values=[name]))["result"] == sum(range(20_000))
    turn = await run_structured(
        client, f"let kept = values.{name}", "javascript", values=[name], session="kept"
    )
    assert turn["ok"], turn
    found = await run_structured(client, "kept.length", "javascript", session="kept")
    assert found["result"] == 20_000


async def test_unknown_value_is_an_error_that_lists_the_known_ones(client: Client) -> None:
    known = (await run_structured(client, "return 'x'.repeat(40_000)", "javascript"))["value"]["name"]
    error = text_of(await run(client, "return values.v_1", "javascript", values=["v_1"]))
    assert error.startswith("values: there is no value 'v_1', or it has expired; known values: ")
    assert known in error
    error = text_of(await run(client, "return 1", "toolscript", values=[known]))
    assert error.startswith('values: expected language "javascript"')


async def test_string_result_is_returned_unchanged(client: Client) -> None:
    assert text_of(await run(client, 'return "a\\nb \\"c\\""')) == 'a\nb "c"'


async def test_long_output_is_truncated_and_leaves_space_for_the_result(client: Client) -> None:
    code = """
        for (let i = 0; i < 300; i++) console.log("ü".repeat(1000));
        console.error("e");
        return { small: 1 };"""
    found = await run_structured(client, code)
    assert found["result"] == {"small": 1}
    assert found["stderr"] == "e\n"
    assert found["truncated"] is True
    shown, _, note = found["stdout"].partition("…")
    assert len(shown) <= MAX_CHARS
    assert note == f" truncated, {300 * 1001 - len(shown)} more characters"


def test_fair_shares_grants_small_sizes_completely() -> None:
    assert fair_shares([10, 100, 1_000, 1_000], 310) == [10, 100, 100, 100]
    assert fair_shares([1, 2, 3], 100) == [1, 2, 3]
    assert fair_shares([], 100) == []


async def test_first_calls_are_listed_and_all_are_counted(client: Client) -> None:
    code = "for (let i = 0; i < 130; i++) await tools.github.listIssues(); return 'done'"
    found = await run_structured(client, code, "javascript")
    assert found["toolCallCount"] == 130
    assert len(found["toolCalls"]) == MAX_LISTED_CALLS
    assert found["truncated"] is True


@pytest.mark.parametrize("language", LANGUAGES)
async def test_lone_surrogates_do_not_break_the_result(client: Client, language: str) -> None:
    found = await run_structured(
        client, 'console.log("\\ud800"); return { "\\ud800": ["\\udfff", "😀"] };', language
    )
    assert found["result"] == {"\ufffd": ["\ufffd", "😀"]}


async def test_missing_result_is_reported(client: Client) -> None:
    assert "`return` the values that you need" in text_of(await run(client, "const a = 1;"))
    assert text_of(await run(client, "return 0;")) == "0"


@pytest.mark.parametrize("language", LANGUAGES)
async def test_promise_in_the_result_is_noted(client: Client, language: str) -> None:
    text = text_of(await run(client, "return `${tools.github.wait()}`;", language))
    assert "did you forget await?" in text


async def test_short_output_of_a_failed_script_is_reported_beside_its_error(client: Client) -> None:
    text = text_of(await run(client, "console.log('r'); console.error('e'); throw new Error('x');"))
    assert text.endswith("stdout:\nr\n\nstderr:\ne")
    assert text.count("Uncaught Error: x") == 1


async def test_map_in_the_result_is_refused_instead_of_lost(client: Client) -> None:
    answer = await run(client, "return { a: [new Map([[1, 2]])], b: {} };")
    assert answer.is_error
    assert "a Map at .a[0], which is not JSON; use Object.fromEntries(map)" in text_of(answer)
    assert text_of(await run(client, "return [{}, new Date(0)];")) == '[{},"1970-01-01T00:00:00.000Z"]'


@pytest.mark.parametrize(
    "code",
    [
        "async () => { return (await tools.github.createIssue({ title: 'x' })).number }",
        "// one function\nasync function main() {\n  return 1;\n}\n",
        "export default () => 1;",
        "```ts\nreturn 1;\n```",
    ],
)
async def test_one_function_and_code_in_a_fence_run(client: Client, code: str) -> None:
    found = await run_structured(client, code)
    assert (found["ok"], found["error"]) == (True, None)
    assert isinstance(found["result"], int)


async def test_concurrent_runs_have_separate_calls(harness: McpHarness, mcp_server: HutchMcpServer) -> None:
    script = f"{IMPORT}await tools.github.createIssue({{ title: 'x' }}); await tools.github.wait(); return 1;"
    other = f"{IMPORT}await tools.github.wait(); await tools.fileSystem.readFile({{ path: '/' }}); return 2;"
    async with Client(mcp_server.server) as client:
        running = [
            asyncio.create_task(run_structured(client, script)),
            asyncio.create_task(run_structured(client, other)),
            asyncio.create_task(run_structured(client, "await tools.github.wait(); return 3", "javascript")),
        ]
        while sum(tool == "wait" for _, tool, _ in harness.upstream.calls) < 3:
            harness.upstream.called.clear()
            await harness.upstream.called.wait()
        harness.upstream.released.set()
        found = await asyncio.gather(*running)
    assert [each["result"] for each in found] == [1, 2, 3]
    assert [[call["tool"] for call in each["toolCalls"]] for each in found] == [
        ["create_issue", "wait"],
        ["wait", "read_file"],
        ["wait"],
    ]


@pytest.mark.parametrize("language", LANGUAGES)
async def test_policy_applies_to_code(app: App, language: str) -> None:
    harness = McpHarness(app, {"github__create_issue": "deny"})
    mcp_server = HutchMcpServer(harness)
    code = "await tools.github.createIssue({ title: 'x' })"
    async with Client(mcp_server.server) as client:
        found = await run_structured(client, code, language)
    mcp_server.close()
    assert "The policy denies github__create_issue" in found["error"]["message"]
    assert [(each["tool"], each["ok"]) for each in found["toolCalls"]] == [("create_issue", False)]
    assert harness.upstream.calls == []


@pytest.mark.parametrize("language", LANGUAGES)
async def test_images_audio_and_resources_are_passed_on_as_content(app: App, language: str) -> None:
    harness = McpHarness(app)
    sound = {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}
    resource = {"type": "resource", "resource": {"uri": "file:///a", "mimeType": "text/plain", "text": "t"}}
    broken = {"type": "image", "data": "no base64!", "mimeType": "image/png"}
    harness.upstream.functions["list_issues"] = returning([PIXEL, sound, resource, broken])
    code = "return { seen: await tools.github.listIssues(), count: 4 }"
    mcp_server = HutchMcpServer(harness)
    async with Client(mcp_server.server) as client:
        answer = await run(client, code, language)
    mcp_server.close()
    text, *media = answer.content
    assert [block.model_dump(by_alias=True, mode="json", exclude_none=True) for block in media] == [
        PIXEL,
        sound,
        resource,
    ]
    assert text.type == "text"
    assert PIXEL["data"] not in text.text
    assert '"data":"(content 1 of this answer)"' in text.text
    assert "no base64!" in text.text
    assert '"count":4' in text.text


async def test_files_are_returned_as_images_and_resources(client: Client) -> None:
    code = """
        display(new Uint8Array([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a]));
        files.write("ä.csv", "a,b");
        files.write("data.bin", new Uint8Array([0, 1]));
        files.write("large.bin", new Uint8Array(5_000_000));
        null
    """
    text, *blocks = (await run(client, code, "javascript")).content
    assert text.type == "text"
    assert "large.bin (application/octet-stream, 5000000 bytes; too large to be included)" in text.text
    assert [block.model_dump(by_alias=True, mode="json", exclude_none=True) for block in blocks] == [
        {"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png"},
        {
            "type": "resource",
            "resource": {"uri": "hutch-file:///%C3%A4.csv", "mimeType": "text/csv", "text": "a,b"},
        },
        {
            "type": "resource",
            "resource": {
                "uri": "hutch-file:///data.bin",
                "mimeType": "application/octet-stream",
                "blob": "AAE=",
            },
        },
    ]


async def test_script_can_use_only_its_tools(client: Client) -> None:
    found = await run_structured(client, 'return await fetch("http://127.0.0.1:9999/").catch(String)')
    assert found["result"].endswith("; scripts have no permissions, only tools")
    found = await run_structured(client, "return typeof fetch + typeof Deno + typeof process", "javascript")
    assert found["result"] == "undefinedundefinedundefined"


@pytest.mark.parametrize("language", LANGUAGES)
async def test_server_that_is_not_connected_is_named(client: Client, language: str) -> None:
    answer = text_of(await run(client, "return await tools.slack.post({})", language))
    expected = (
        "the MCP server slack is not connected"
        if language == "toolscript"
        else "not connected: MCP server slack"
    )
    assert expected in answer
    # The error about a misspelt name does not mention servers that are not connected.
    other = text_of(await run(client, "return await tools.slak.post({})", "toolscript"))
    assert "not connected" not in other
    assert "tools has github, fileSystem." in other


async def test_missing_require_is_explained_without_advice_for_node(client: Client) -> None:
    answer = text_of(await run(client, "const fs = require('fs'); return fs"))
    assert "Cannot find name 'require': guests have no CommonJS modules" in answer
    assert "npm i" not in answer
