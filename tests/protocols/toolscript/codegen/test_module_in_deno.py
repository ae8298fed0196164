"""The generated module in a real Deno: compilation, calls and errors."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.protocols.toolscript.fakes import (
    Deno,
    FakeServer,
    FakeTool,
    FakeToolSource,
    GatewayHarness,
    failing,
    listening,
    returning,
)

from hutch.protocols.toolscript.codegen.module import declarations, tools_module
from hutch.protocols.toolscript.gateway.catalog import Catalog
from hutch.session.tools.names import RESERVED_WORDS

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
    FakeTool("github", "create_issue", "Creates an issue.", ISSUE, NUMBER),
    FakeTool("github", "get_user"),
    FakeTool("github", "get-user"),
    FakeTool("github", "fail"),
    FakeTool("github", "new"),
    FakeTool("github", "then"),
    FakeTool("file-system", "list", None, {"type": "object", "properties": {}}),
)


@pytest.fixture(scope="module")
def deno(tmp_path_factory: pytest.TempPathFactory) -> Deno:
    return Deno(tmp_path_factory.mktemp("deno"))


@pytest.fixture
async def harness() -> GatewayHarness:
    harness = GatewayHarness(FakeToolSource(*TOOLS))
    harness.upstream.functions["create_issue"] = returning({"number": 7})
    return harness


@pytest.fixture
async def url(harness: GatewayHarness) -> AsyncIterator[str]:
    async with listening(harness) as url:
        yield url


RIGHT = """
const parent = { title: "y", parent: null };
const made = await tools.github.createIssue({ title: "x", labels: ["bug"], parent });
const n: number = made.number;
const anything: string = await tools.github.getUser();
await tools.github.getUser_2({ whatever: [n, anything] });
await tools.fileSystem.list();
await tools.fileSystem.list({});
const results = (error: unknown) =>
  error instanceof ToolError ? `${error.server} ${error.tool} ${error.details}` : "";
export { results };
"""

WRONG = {
    "an unknown tool": "await tools.github.createIssu({ title: 'x' });",
    "an unknown server": "await tools.gitlab.list();",
    "a missing argument": "await tools.github.createIssue({});",
    "no arguments": "await tools.github.createIssue();",
    "an argument of another type": "await tools.github.createIssue({ title: 1 });",
    "an unknown argument": "await tools.github.createIssue({ title: 'x', titel: 'y' });",
    "a value outside of an enumeration": "await tools.github.createIssue({ title: 'x', labels: ['b'] });",
    "an unexpected argument": "await tools.fileSystem.list({ path: '/' });",
    "a result of another type": "const s: string = (await tools.github.createIssue({ title: 'x' })).number;",
}


async def test_compiler_accepts_valid_and_rejects_invalid_uses_of_all_forms(deno: Deno) -> None:
    catalog = Catalog.of(TOOLS)
    forms = {
        "module.ts": tools_module(catalog),
        "full.d.ts": declarations(catalog),
        "compact.d.ts": declarations(catalog, compact=True),
        "none.ts": tools_module(Catalog()),
        "none.d.ts": declarations(Catalog()),
    }
    files = [deno.write(name, text) for name, text in forms.items()]
    # The compiler reports each `@ts-expect-error` comment above a line without an error. So the check
    # succeeds only if every line of WRONG is an error.
    wrong = "\n".join(f"// @ts-expect-error {what}\n{use}" for what, use in WRONG.items())
    for name in [*forms][:3]:
        source = f'import {{ ToolError, tools }} from "./{name}";\n{RIGHT}\n{wrong}\n'
        files.append(deno.write(f"use-{name.replace('.d.ts', '.ts')}", source))
    done = await deno.check(*files)
    assert done.code == 0, done.err


async def test_script_calls_tools_over_http(deno: Deno, harness: GatewayHarness, url: str) -> None:
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


async def test_script_is_checked_against_the_gateways_module(deno: Deno, url: str) -> None:
    script = 'import { tools } from "toolscript";\nawait tools.github.createIssue({ titel: "x" });\n'
    done = await deno.run(url, script, check=True)
    assert done.code == 1
    assert "'titel' does not exist in type" in done.err


async def test_namespace_can_be_awaited_printed_and_serialised_without_a_call(
    deno: Deno, harness: GatewayHarness, url: str
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
    assert harness.upstream.calls == []


async def test_failed_call_throws_a_complete_tool_error(
    deno: Deno, harness: GatewayHarness, url: str
) -> None:
    harness.upstream.functions["fail"] = failing("tool_error", "no such repository", {"status": 404})
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
        const results = [];
        for (const each of all) results.push(await each().catch(seen));
        console.log(JSON.stringify(results));
        """,
    )
    assert done.code == 0, done.err
    failed, not_an_object, cyclic = json.loads(done.out)
    head = [True, True, "ToolError", "github"]
    assert failed == [*head, "fail", "no such repository", {"status": 404}]
    assert not_an_object[:6] == [*head, "get_user", "body: expected an object, got an array"]
    assert cyclic[5].startswith("The arguments cannot be written as JSON: Converting circular structure")


async def test_uncaught_tool_error_shows_its_message_and_the_scripts_line(
    deno: Deno, harness: GatewayHarness, url: str
) -> None:
    harness.upstream.functions["fail"] = failing("tool_error", "no such repository")
    done = await deno.run(url, 'import { tools } from "toolscript";\n\nawait tools.github.fail();\n')
    assert done.code == 1
    assert "ToolError: no such repository" in done.err
    assert "script.ts:3:1" in done.err
    assert "await tools.github.fail();" in done.err
    assert "runtime/tools.ts" not in done.err.partition("ToolError")[2]


async def test_unreachable_gateway_is_named(deno: Deno, harness: GatewayHarness) -> None:
    async with listening(harness) as url:
        module = deno.write("gone.ts", (await harness.get("/runtime/tools.ts")).text)
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
    *sorted(RESERVED_WORDS),
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


def hostile_tools(seed: int, count: int) -> list[FakeTool]:
    rng = random.Random(seed)

    def text() -> str:
        return "".join(rng.choice(PIECES) for _ in range(rng.randint(0, 3)))

    servers = [*PIECES[:5], *(text() for _ in range(15))]
    tools = [FakeTool("plain", each) for each in PIECES]
    for _ in range(count):
        schema: Any = {
            "type": "object",
            "properties": {text(): {"description": text() + text(), "default": text(), "const": text()}},
            "description": text(),
        }
        tools.append(
            FakeTool(rng.choice(servers), text(), text() + text(), schema, rng.choice([None, schema]))
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


async def test_tools_with_hostile_names_compile_and_can_be_called(deno: Deno) -> None:
    given = hostile_tools(4, 300)
    names = dict.fromkeys(each.server for each in given)
    harness = GatewayHarness(
        FakeToolSource(*given, servers=tuple(FakeServer(each, each, each) for each in names))
    )
    catalog = await harness.gateway.catalog()
    expected = [[each.namespace, each.member, each.server, each.tool] for each in catalog]
    assert len(expected) > 250
    async with listening(harness) as url:
        done = await deno.run(url, CALL_ALL % json.dumps(json.dumps(expected)))
    assert done.out == "0 true undefined\n", done.err or done.out[:3_000]
    called = {(server, tool) for server, tool, _ in harness.upstream.calls}
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
