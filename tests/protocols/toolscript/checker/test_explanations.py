"""Explanations that are added to type errors. An explanation says what the author can write instead."""

from __future__ import annotations

import pytest
from tests.protocols.toolscript.checkers import running_checker

from hutch.protocols.toolscript.checker.diagnostics import InvalidScript, ScriptProblem
from hutch.protocols.toolscript.checker.explanations import MAX_LISTED_NAMES, explain, explain_language

GATEWAY = """
export interface Github {
  createIssue(args: { title: string }): Promise<{ number: number }>;
  listIssues(args?: {}): Promise<any>;
}
export interface MyFiles {
  read(args: { path: string }): Promise<any>;
}
export interface Tools {
  github: Github;
  files: MyFiles;
}
export declare const tools: Tools;
"""
NAMESPACES = """
export declare namespace tools {
  function add(input: { a: number }): Promise<number>;
}
export declare namespace tools.shop {
  function order(input: {}): Promise<any>;
}
"""


async def test_compiler_messages_are_explained() -> None:
    """The explanations recognise the messages of the compiler, so the test needs the real compiler."""
    cases = {
        "tools.gitlab": (GATEWAY, ": tools has github, files."),
        "tools.github__create_issue": (GATEWAY, "Did you mean tools.github.createIssue?"),
        "tools.files.open()": (GATEWAY, ": tools.files has read."),
        "tools.github.createIssue({ title: '' }).number": (GATEWAY, "Did you forget await?"),
        "[...tools.github.createIssue({ title: '' })]": (GATEWAY, "Did you forget await?"),
        "tools.github.createIssue({ title: '' }) + 1": (GATEWAY, "Did you forget await?"),
        "tools.shopping": (NAMESPACES, ": tools has add, shop."),
        "tools.shop.buy()": (NAMESPACES, ": tools.shop has order."),
        "shop.order({})": (NAMESPACES, "Did you mean tools.shop?"),
    }
    async with running_checker() as checker:
        for code, (declarations, expected) in cases.items():
            [problem] = await checker.check(f"return {code};", declarations)
            assert problem.message.split("\n")[0].endswith(expected), (code, problem.message)


@pytest.mark.parametrize(
    "message",
    [
        "Property 'x' does not exist on type 'Github'. Did you mean 'y'?",
        "Property 'x' does not exist on type 'Other'.",
        "Property 'x' does not exist on type '{ a: Promise<any>; }'.",
        "Cannot find name 'nothing'.",
    ],
)
def test_other_messages_stay_as_they_are(message: str) -> None:
    problem = ScriptProblem(file="a.ts", message=message, code=2339)
    assert explain(problem, GATEWAY) == problem


def test_long_lists_of_names_are_cut() -> None:
    members = "".join(
        f"  tool{number}(args: {{}}): Promise<any>;\n" for number in range(MAX_LISTED_NAMES + 5)
    )
    declarations = f"export interface Many {{\n{members}}}\nexport interface Tools {{\n  many: Many;\n}}\n"
    problem = ScriptProblem(file="a.ts", message="Property 'x' does not exist on type 'Many'.", code=2339)
    explained = explain(problem, declarations).message
    assert explained.endswith("tool19 and 5 more.")
    assert ": tools.many has tool0, tool1, " in explained


def test_python_is_one_problem() -> None:
    problems = [ScriptProblem(file="a.ts", message=text) for text in ("'=' expected.", "';' expected.")]
    [found] = explain_language("import requests\nprint(1)", InvalidScript(problems)).problems
    assert found.message.startswith("'=' expected; this looks like Python")
