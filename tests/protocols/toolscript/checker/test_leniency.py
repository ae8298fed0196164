"""The lenient type check: strict about uses of tools, lenient about ordinary JavaScript."""

from __future__ import annotations

import pytest
from tests.protocols.toolscript.checkers import find_problems
from tests.support.stalls import LoopStalls, repeat_on_stall

from hutch.protocols.toolscript.checker.checker import Checker

# Correct JavaScript. The strict check of TypeScript refuses every line.
CORRECT = """\
try { await tools.github.search({ text: "x" }); } catch (e) { console.log(e.message, e.code); }
const found = await tools.github.search({ text: "y" });
const titles = found.items.map((item) => item.title).filter((t, i) => i > 0);
const counts = {}, key = String(titles.length);
counts[key] = (counts[key] || 0) + 1;
function label(issue, suffix) { return issue.title + (suffix ?? ""); }
const issues = await tools.github.listIssues();
label(issues[0]);
const o = {};
o.x = 1;
const totals = issues.reduce((all, { title }) => { all[title] = 1; all.last = title; return all; }, {});
const out = { ok: [], failed: [] };
out.ok.push(issues[0]);
class Counter { constructor() { this.count = 0; } }
new Counter().count += 1;
const error = new Error("x");
error.code = "E";
console.log("abc".match(/b/)[0], new Map([["a", [1]]]).get("a").length, issues.find((i) => i.number).title);
console.log([...issues].sort((a, b) => new Date(a.title) - new Date(b.title)), parseInt(5), Math.round("2"));
let page = await tools.github.listIssues();
page = await tools.github.createIssue({ title: "x" });
let state = "open";
await tools.github.listIssues({ state });
const args = {};
args.title = "z";
await tools.github.createIssue(args);
const server = "github", tool = key;
await tools[server][tool]({});
let label2 = 0;
label2 = "none";
const seen = new Set();
await tools.github.search({ text: [...seen][0] });
return { o, totals, out, page };
"""
# Mistakes that the lenient check finds, too.
WRONG = """\
await tools.github.createIssue({ titel: "x" });
await tools.github.createIssue({});
await tools.githb.createIssue({ title: "x" });
await tools.github.createIsue({ title: "x" });
await tools["githb"].createIssue({ title: "x" });
await tools.github.listIssues({ state: "opne" });
const made = await tools.github.createIssue({ title: "x" });
console.log(made.nmber, tools.github.listIssues().length);
const count: number = "x";
console.log(undeclared, "abc".lenght);
await tools.github.createIssue();
function half(n: number) { return n / 2; }
half("x");
(await tools.github.listIssues()).map((issue) => issue.titel);
// These variables have the name of the wrong property.
let state = "open", title = {};
await tools.github.listIssues({ state });
title.text = "x";
await tools.github.listIssues({ state: "opne" });
await tools.github.createIssue({
  title: 1,
});
"""
WRONG_LINES = [1, 2, 3, 4, 5, 6, 8, 8, 9, 10, 10, 11, 13, 14, 19, 21]


async def test_correct_javascript_is_accepted(native: Checker) -> None:
    assert [str(problem) for problem in await find_problems(native, CORRECT)] == []


async def test_wrong_use_of_tools_and_certain_mistakes_are_found(native: Checker) -> None:
    assert [problem.line for problem in await find_problems(native, WRONG)] == WRONG_LINES


async def test_deno_is_lenient_about_the_same(deno_only: Checker) -> None:
    """One script contains all wrong and correct lines, because Deno takes seconds for each script."""
    found = await find_problems(deno_only, f"{WRONG}{{\n{CORRECT}}}")
    assert [problem.line for problem in found] == WRONG_LINES


@repeat_on_stall
async def test_a_thousand_problems_on_one_line_do_not_stall_the_event_loop(native: Checker) -> None:
    many = "".join(f"const x{number}: number = 'x'; " for number in range(1_500))
    async with LoopStalls() as stalls:
        assert len(await find_problems(native, f"{many}let y = 1, z; z.a[1] = [y]; // 漢字")) == 1_000
    stalls.assert_short()


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("try { throw 1; } catch (e) { e.message; }", 18046),
        ("const f = (x) => x;", 7006),
        ("const n = {}; const k = 'a' + 1; n[k] = 1;", 7053),
        ("const o = {}; o.x = 1;", 2339),
    ],
)
async def test_strict_check_refuses_what_the_lenient_check_accepts(
    native: Checker, script: str, code: int
) -> None:
    assert await find_problems(native, script) == []
    assert [problem.code for problem in await find_problems(native, script, strict=True)] == [code]
