"""The module in a real Deno: what compiles, what is called, and what a script sees of a failure."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.doors.toolscript.scripted import Deno, Door, Given, Server, Upstream, fails, gives, listening

from hutch.doors.toolscript.catalog import Catalog
from hutch.doors.toolscript.module import declarations, tools_module
from hutch.session.names import RESERVED

ISSUE = {
    "type": "object",
    "properties": {
        "title": {"type": "string"},
        "labels": {"type": "array", "items": {"enum": ["bug", "idea"]}},
        "parent": {"anyOf": [{"$ref": "#"}, {"type": "null"}], "default": None},
    },
    "required": ["title"],
}
NUMBER = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
TOOLS = (
    Given("github", "create_issue", "Creates an issue.", ISSUE, NUMBER),
    Given("github", "get_user"),
    Given("github", "get-user"),
    Given("github", "fail"),
    Given("github", "new"),
    Given("github", "then"),
    Given("file-system", "list", None, {"type": "object", "properties": {}}),
)


@pytest.fixture(scope="module")
def deno(tmp_path_factory: pytest.TempPathFactory) -> Deno:
    return Deno(tmp_path_factory.mktemp("deno"))


@pytest.fixture
async def door() -> Door:
    door = Door(Upstream(*TOOLS))
    door.upstream.does["create_issue"] = gives({"number": 7})
    return door


@pytest.fixture
async def url(door: Door) -> AsyncIterator[str]:
    async with listening(door) as url:
        yield url


RIGHT = """
const parent = { title: "y", parent: null };
const made = await tools.github.createIssue({ title: "x", labels: ["bug"], parent });
const n: number = made.number;
const anything: string = await tools.github.getUser();
await tools.github.getUser_2({ whatever: [n, anything] });
await tools.fileSystem.list();
await tools.fileSystem.list({});
const told = (error: unknown) =>
  error instanceof ToolError ? `${error.server} ${error.tool} ${error.details}` : "";
export { told };
"""

WRONG = {
    "a tool that is not there": "await tools.github.createIssu({ title: 'x' });",
    "a server that is not there": "await tools.gitlab.list();",
    "an argument left out": "await tools.github.createIssue({});",
    "all arguments left out": "await tools.github.createIssue();",
    "an argument of another type": "await tools.github.createIssue({ title: 1 });",
    "an argument that nobody knows": "await tools.github.createIssue({ title: 'x', titel: 'y' });",
    "a word that is not in an enumeration": "await tools.github.createIssue({ title: 'x', labels: ['b'] });",
    "an argument where there is none": "await tools.fileSystem.list({ path: '/' });",
    "a result of another type": "const s: string = (await tools.github.createIssue({ title: 'x' })).number;",
}


async def test_the_compiler_accepts_right_uses_of_every_form_and_refuses_wrong_ones(deno: Deno) -> None:
    catalog = Catalog.of(TOOLS)
    forms = {
        "module.ts": tools_module(catalog),
        "full.d.ts": declarations(catalog),
        "compact.d.ts": declarations(catalog, compact=True),
        "none.ts": tools_module(Catalog()),
        "none.d.ts": declarations(Catalog()),
    }
    files = [deno.write(name, text) for name, text in forms.items()]
    # Every directive must have an error to expect, or the compiler complains.
    wrong = "\n".join(f"// @ts-expect-error {what}\n{use}" for what, use in WRONG.items())
    for name in [*forms][:3]:
        source = f'import {{ ToolError, tools }} from "./{name}";\n{RIGHT}\n{wrong}\n'
        files.append(deno.write(f"use-{name.replace('.d.ts', '.ts')}", source))
    done = await deno.check(*files)
    assert done.code == 0, done.err


async def test_a_script_calls_tools_by_http(deno: Deno, door: Door, url: str) -> None:
    done = await deno.run(
        url,
        """
        import { tools } from "toolscript";
        const made = await tools.github.createIssue({ title: "x" });
        const got = await Promise.all([tools.github.getUser(), tools.github.getUser_2({ a: [1, "ü"] })]);
        console.log(JSON.stringify([made, got, await tools.github.new(), Object.keys(tools)]));
        """,
    )
    assert done.code == 0, done.err
    assert json.loads(done.out) == [
        {"number": 7},
        [
            {"server": "github", "tool": "get_user", "arguments": {}},
            {"server": "github", "tool": "get-user", "arguments": {"a": [1, "ü"]}},
        ],
        {"server": "github", "tool": "new", "arguments": {}},
        ["github", "fileSystem"],
    ]


async def test_a_module_from_the_gateway_is_checked_against(deno: Deno, url: str) -> None:
    script = 'import { tools } from "toolscript";\nawait tools.github.createIssue({ titel: "x" });\n'
    done = await deno.run(url, script, check=True)
    assert done.code == 1
    assert "'titel' does not exist in type" in done.err


async def test_a_namespace_can_be_awaited_printed_and_written_without_a_call(
    deno: Deno, door: Door, url: str
) -> None:
    done = await deno.run(
        url,
        """
        import * as all from "toolscript";
        const github = await all.tools.github;
        await all.tools;
        await (await import("toolscript"));
        JSON.stringify(all.tools);
        console.log(typeof github.getUser, typeof github.then_, "then" in github, "constructor" in github);
        console.log(Object.isFrozen(all.tools), Object.isFrozen(github));
        """,
    )
    assert done.out == "function function false false\ntrue true\n", done.err
    assert door.upstream.calls == []


async def test_a_failed_call_throws_a_tool_error_with_everything(deno: Deno, door: Door, url: str) -> None:
    door.upstream.does["fail"] = fails("tool_error", "no such repository", {"status": 404})
    done = await deno.run(
        url,
        """
        import { ToolError, tools } from "toolscript";
        const seen = (error: any) => [error instanceof ToolError, error instanceof Error, error.name,
          error.server, error.tool, error.message, error.details];
        const cyclic: any = {};
        cyclic.self = cyclic;
        const all = [() => tools.github.fail(), () => tools.github.getUser([] as any),
          () => tools.github.getUser(cyclic)];
        const told = [];
        for (const each of all) told.push(await each().catch(seen));
        console.log(JSON.stringify(told));
        """,
    )
    assert done.code == 0, done.err
    failed, not_an_object, cyclic = json.loads(done.out)
    head = [True, True, "ToolError", "github"]
    assert failed == [*head, "fail", "no such repository", {"status": 404}]
    assert not_an_object[:6] == [*head, "get_user", "body: expected an object, got an array"]
    assert cyclic[5].startswith("The arguments cannot be written as JSON: Converting circular structure")


async def test_an_uncaught_tool_error_shows_its_text_and_the_scripts_line(
    deno: Deno, door: Door, url: str
) -> None:
    door.upstream.does["fail"] = fails("tool_error", "no such repository")
    done = await deno.run(url, 'import { tools } from "toolscript";\n\nawait tools.github.fail();\n')
    assert done.code == 1
    assert "ToolError: no such repository" in done.err
    assert "script.ts:3:1" in done.err
    assert "await tools.github.fail();" in done.err
    assert "runtime/tools.ts" not in done.err.partition("ToolError")[2]


async def test_a_gateway_that_is_gone_is_named(deno: Deno, door: Door) -> None:
    async with listening(door) as url:
        module = deno.write("gone.ts", (await door.get("/runtime/tools.ts")).text)
    done = await deno.run(
        url,
        f"""
        import {{ tools }} from "{module}";
        await tools.github.getUser().catch((error) => console.log(error.name, error.message));
        """,
    )
    assert done.out.startswith(f"ToolError The gateway at {url} cannot be reached: "), done.err


# --- hostile names ---

WORDS = """
    __proto__ prototype constructor then toString valueOf toJSON hasOwnProperty __defineGetter__ name async
    get set of static readonly declare module namespace type any unknown never Promise Record
"""
PIECES = [
    *sorted(RESERVED),
    *WORDS.split(),
    "*/",
    "/*",
    "//",
    "`${x}`",
    '"',
    "'",
    "\\",
    "\n",
    "\r",
    "\u2028",
    "\x00",
    "\ud800",
    "\udc00",
    "\u200b",
    "\u202e",
    "🙂",
    "é",
    "e\u0301",
    "ß",
    "ŉ",
    "ﬁ",
    "天",
    "٣",
    "\u07c0",
    "ª",
    "·",
    "%2F",
    "%",
    "/",
    "..",
    "?a=b",
    "#",
    "&",
    "__",
    "_",
    "-",
    " ",
    "",
    "0",
    "9x",
    "</script>",
    "]]; globalThis.pwned = true; [[",
    "globalThis.pwned = true",
]


def hostile_tools(seed: int, count: int) -> list[Given]:
    dice = random.Random(seed)

    def text() -> str:
        return "".join(dice.choice(PIECES) for _ in range(dice.randint(0, 3)))

    servers = [*PIECES[:5], *(text() for _ in range(15))]
    tools = [Given("plain", each) for each in PIECES]
    for _ in range(count):
        schema: Any = {
            "type": "object",
            "properties": {text(): {"description": text() + text(), "default": text(), "const": text()}},
            "description": text(),
        }
        tools.append(
            Given(dice.choice(servers), text(), text() + text(), schema, dice.choice([None, schema]))
        )
    return tools


CALL_ALL = """
import { tools } from "toolscript";
const expected = JSON.parse(%s);
let wrong = 0;
for (const [namespace, member, server, tool] of expected) {
  const got = await (tools as any)[namespace][member]({ x: 1 });
  if (got.server !== server || got.tool !== tool) {
    wrong++;
    console.log(JSON.stringify([namespace, member, server, tool, got]));
  }
}
const seen = Object.values(tools).reduce((sum, own) => sum + Object.keys(own as object).length, 0);
console.log(wrong, seen === expected.length, (globalThis as any).pwned);
"""


async def test_tools_of_any_name_are_called_by_it_and_compile(deno: Deno) -> None:
    given = hostile_tools(4, 300)
    names = dict.fromkeys(each.server for each in given)
    door = Door(Upstream(*given, servers=tuple(Server(each, each, each) for each in names)))
    catalog = await door.gateway.catalog()
    expected = [[each.namespace, each.member, each.server, each.tool] for each in catalog]
    assert len(expected) > 250
    async with listening(door) as url:
        done = await deno.run(url, CALL_ALL % json.dumps(json.dumps(expected)))
    assert done.out == "0 true undefined\n", done.err or done.out[:3_000]
    called = {(server, tool) for server, tool, _ in door.upstream.calls}
    assert called == {(each.server, each.name) for each in given}

    uses = "\n".join(
        f"void tools.{namespace}.{member};" for namespace, member, _, _ in expected if member != "new"
    )
    files = [
        deno.write("hostile.ts", tools_module(catalog)),
        deno.write("hostile.d.ts", declarations(catalog)),
        deno.write("hostile-compact.d.ts", declarations(catalog, compact=True)),
        deno.write("hostile-use.ts", f'import {{ tools }} from "./hostile.d.ts";\n{uses}\n'),
    ]
    checked = await deno.check(*files)
    assert checked.code == 0, checked.err[:3_000]
