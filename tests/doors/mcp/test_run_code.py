"""Code that a model wrote: what it gets back of toolscripts and of JavaScript, right and wrong."""

from __future__ import annotations

import asyncio
import json

import pytest
from mcp import Client
from tests.doors.mcp.houses import IMPORT, House, ran, run, text_of

from hutch.app import App
from hutch.doors.mcp.answers import MOST_CALLS, MOST_CHARS, fair
from hutch.doors.mcp.server import Door

LANGUAGES = ("toolscript", "javascript")


async def test_a_toolscript_gives_its_result_its_output_and_its_tool_calls(client: Client) -> None:
    code = f"""{IMPORT}
        console.log("making");
        const made = await tools.github.createIssue({{ title: "x" }});
        console.error("made");
        return made.number + 1;"""
    answer = await run(client, code)
    found = answer.structured_content
    assert (found["ok"], found["result"], found["exitCode"], found["error"]) == (True, 8, 0, None)
    assert (found["stdout"], found["stderr"], found["logs"]) == ("making\n", "made\n", [])
    (call,) = found["toolCalls"]
    assert (call["server"], call["tool"], call["ok"]) == ("github", "create_issue", True)
    assert call["durationMs"] >= 0
    assert found["durationMs"] > 0
    assert found["truncated"] is False
    assert text_of(answer) == "8\n\nstdout:\nmaking\n\nstderr:\nmade\n\n(1 tool call)"


async def test_javascript_gives_its_result_its_logs_and_its_tool_calls(client: Client) -> None:
    code = """
        console.log("making");
        const made = await github.createIssue({ title: "x" });
        return { made, read: await fileSystem.readFile({ path: "/a" }) };"""
    found = await ran(client, code, "javascript")
    assert found["ok"]
    assert found["result"]["made"] == {"number": 7}
    assert found["result"]["read"]["arguments"] == {"path": "/a"}
    assert found["logs"] == ["making"]
    assert [(each["server"], each["tool"]) for each in found["toolCalls"]] == [
        ("github", "create_issue"),
        ("file-system", "read_file"),
    ]


async def test_a_type_error_is_a_result_that_a_model_can_correct_and_nothing_has_run(
    house: House, client: Client
) -> None:
    code = f'{IMPORT}await tools.github.listIssues();\nawait tools.github.createIssue({{ titel: "x" }});'
    answer = await run(client, code)
    assert answer.is_error
    text = text_of(answer)
    assert "script.ts:3:" in text
    assert "^^^^^" in text
    assert "tools.github.createIssue(args: { title: string; }): Promise<{ number: number; }>" in text
    assert answer.structured_content["error"]["code"] == "invalid_script"
    assert answer.structured_content["error"]["problems"][0]["line"] == 3
    assert house.upstream.calls == []


async def test_a_toolscript_need_not_be_checked(house: House, client: Client) -> None:
    code = f'{IMPORT}return await tools.github.createIssue({{ titel: "x" }});'
    assert (await ran(client, code))["error"]["code"] == "invalid_script"
    assert (await ran(client, code, check=False))["result"] == {"number": 7}


async def test_a_script_that_fails_says_where_and_why(client: Client) -> None:
    answer = await run(client, f"{IMPORT}\nawait tools.github.fail();")
    assert answer.is_error
    assert answer.structured_content["exitCode"] == 1
    assert [each["ok"] for each in answer.structured_content["toolCalls"]] == [False]
    text = text_of(answer)
    assert text.count("ToolError: no such repository") == 1
    assert "script.ts:3" in text
    assert "1 failed" in text


async def test_javascript_that_fails_says_where_and_why(client: Client) -> None:
    answer = await run(client, "const a = 1;\nthrow new TypeError('no');", "javascript")
    assert answer.is_error
    assert answer.structured_content["error"]["line"] == 2
    assert "TypeError: no (line 2, column" in text_of(answer)
    failed = await ran(client, "await github.fail()", "javascript")
    assert failed["error"]["message"].startswith("no such repository (line 1, column ")
    wrong = await ran(client, "await github.createIssue([1])", "javascript")
    assert "Expected an object of arguments, got a list" in wrong["error"]["message"]


async def test_a_script_may_choose_its_exit_code(client: Client) -> None:
    found = await ran(client, "console.log('out'); Deno.exit(3);")
    assert (found["exitCode"], found["stdout"]) == (3, "out\n")
    assert found["error"]["message"] == "The script ended with exit code 3"


@pytest.mark.parametrize("language", LANGUAGES)
async def test_what_takes_too_long_is_ended(client: Client, language: str) -> None:
    found = await ran(client, "for (;;) {}", language, timeout_seconds=0.3)
    assert found["error"]["code"] == "timeout"
    assert found["exitCode"] in (124, None)


@pytest.mark.parametrize("language", LANGUAGES)
async def test_a_long_result_is_truncated_where_one_sees_it(client: Client, language: str) -> None:
    answer = await run(client, "return Array.from({ length: 20000 }, (_, i) => i)", language)
    found = answer.structured_content
    whole = json.dumps([*range(20_000)], separators=(",", ":"))
    assert found["truncated"] is True
    note = f"… truncated, {len(whole) - MOST_CHARS} more characters"
    assert found["result"] == whole[:MOST_CHARS] + note
    assert text_of(answer) == found["result"]
    assert len(json.dumps(found)) < MOST_CHARS + 1_000


async def test_a_text_is_given_as_it_is(client: Client) -> None:
    assert text_of(await run(client, 'return "a\\nb \\"c\\""')) == 'a\nb "c"'


async def test_long_output_is_truncated_and_leaves_room_for_the_result(client: Client) -> None:
    code = """
        for (let i = 0; i < 300; i++) console.log("ü".repeat(1000));
        console.error("e");
        return { small: 1 };"""
    found = await ran(client, code)
    assert found["result"] == {"small": 1}
    assert found["stderr"] == "e\n"
    assert found["truncated"] is True
    shown, _, note = found["stdout"].partition("…")
    assert len(shown) <= MOST_CHARS
    assert note == f" truncated, {300 * 1001 - len(shown)} more characters"


def test_what_is_short_is_whole_and_what_is_long_shares_the_rest() -> None:
    assert fair([10, 100, 1_000, 1_000], 310) == [10, 100, 100, 100]
    assert fair([1, 2, 3], 100) == [1, 2, 3]
    assert fair([], 100) == []


async def test_of_many_calls_the_first_are_listed_and_all_are_counted(client: Client) -> None:
    code = "for (let i = 0; i < 130; i++) await github.listIssues(); return 'done'"
    found = await ran(client, code, "javascript")
    assert found["toolCallCount"] == 130
    assert len(found["toolCalls"]) == MOST_CALLS
    assert found["truncated"] is True


@pytest.mark.parametrize("language", LANGUAGES)
async def test_what_is_no_unicode_does_not_keep_an_answer_from_being_sent(
    client: Client, language: str
) -> None:
    found = await ran(client, 'console.log("\\ud800"); return { "\\ud800": ["\\udfff", "😀"] };', language)
    assert found["result"] == {"\ufffd": ["\ufffd", "😀"]}


async def test_nothing_returned_is_said_to_be_nothing(client: Client) -> None:
    assert "`return` what you want to see" in text_of(await run(client, "const a = 1;"))
    assert text_of(await run(client, "return 0;")) == "0"


async def test_runs_at_the_same_time_have_their_own_calls(house: House, door: Door) -> None:
    script = f"{IMPORT}await tools.github.createIssue({{ title: 'x' }}); await tools.github.wait(); return 1;"
    other = f"{IMPORT}await tools.github.wait(); await tools.fileSystem.readFile({{ path: '/' }}); return 2;"
    async with Client(door.server) as client:
        running = [
            asyncio.create_task(ran(client, script)),
            asyncio.create_task(ran(client, other)),
            asyncio.create_task(ran(client, "await github.wait(); return 3", "javascript")),
        ]
        while sum(tool == "wait" for _, tool, _ in house.upstream.calls) < 3:
            house.upstream.called.clear()
            await house.upstream.called.wait()
        house.upstream.go.set()
        found = await asyncio.gather(*running)
    assert [each["result"] for each in found] == [1, 2, 3]
    assert [[call["tool"] for call in each["toolCalls"]] for each in found] == [
        ["create_issue", "wait"],
        ["wait", "read_file"],
        ["wait"],
    ]


@pytest.mark.parametrize("language", LANGUAGES)
async def test_code_is_bound_by_the_policy(app: App, language: str) -> None:
    house = House(app, {"github__create_issue": "deny"})
    door = Door(house)
    call = "github.createIssue({ title: 'x' })"
    code = f"await {call}" if language == "javascript" else f"{IMPORT}await tools.{call};"
    async with Client(door.server) as client:
        found = await ran(client, code, language)
    door.close()
    assert "The policy denies github__create_issue" in found["error"]["message"]
    assert [(each["tool"], each["ok"]) for each in found["toolCalls"]] == [("create_issue", False)]
    assert house.upstream.calls == []


async def test_a_script_has_nothing_but_its_tools(client: Client) -> None:
    found = await ran(client, 'return await fetch("http://127.0.0.1:9999/").catch(String)')
    assert "allow-net" in found["result"]
    found = await ran(client, "return typeof fetch + typeof Deno + typeof process", "javascript")
    assert found["result"] == "undefinedundefinedundefined"
