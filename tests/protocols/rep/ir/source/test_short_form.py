"""The short form of flows."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.protocols.rep.flow_harness import FlowHarness
from tests.protocols.rep.flows import chain, document, step

from hutch.protocols.rep.ir.flow import Flow
from hutch.protocols.rep.ir.problems import InvalidFlow
from hutch.protocols.rep.ir.source.read import FlowSource
from hutch.protocols.rep.ir.source.yaml import decode_yaml

pytestmark = pytest.mark.anyio


def read(text: str) -> Flow:
    return FlowSource(decode_yaml(text), text, "demo.yaml").parse()


def problems_of(text: str) -> list[str]:
    with pytest.raises(InvalidFlow) as caught:
        read(text)
    return [str(problem) for problem in caught.value.problems]


def edges(flow: Flow) -> list[tuple[str, str, str, str | None]]:
    return [(edge.source, edge.target, edge.on, edge.case) for edge in flow.edges]


async def outputs_of(text: str, **inputs: Any) -> Any:
    flow = read(text)
    return (await FlowHarness().run(flow.document, inputs)).outputs


def test_defaults_make_a_chain_of_flow_ir() -> None:
    flow = read("{steps: [{run: echo}, {id: b, run: echo, with: {x: $step.step1}}], outputs: {y: $step.b}}")
    assert flow.document == {
        **document(
            [
                step("step1", "echo"),
                step("b", "echo", {"x": "$step.step1"}),
                step("finish", "finish", {"outputs": {"y": "$step.b"}}),
            ],
            chain("step1", "b", "finish"),
            source_file="demo.yaml",
        ),
        "metadata": {"generated_at": "1970-01-01T00:00:00Z", "source_file": "demo.yaml"},
    }


def test_all_fields_of_a_step_are_compiled() -> None:
    flow = read("""
name: all
timeout: 2m
inputs: {name: string, count: "int?", free: , full: {type: bool, required: false}}
steps:
  - {id: a, run: echo, timeout: 1.5, retry: 2}
  - {id: b, run: echo, after: [], timeout: 500ms, retry: {max: 1, backoff: 3s}}
  - {id: c, run: echo, after: [a, b]}
  - {id: d, run: echo, after_failure: c}
  - {id: e, run: echo}
""")
    assert (flow.name, flow.timeout_ms) == ("all", 120_000)
    assert flow.inputs_schema == {
        "name": {"type": "string"},
        "count": {"type": "int?"},
        "free": {"type": "any"},
        "full": {"type": "bool", "required": False},
    }
    assert [(node.timeout_ms, node.retry_max, node.backoff_ms) for node in flow.nodes.values()] == [
        (1500, 2, 1000),
        (500, 1, 3000),
        *[(0, 0, 0)] * 3,
    ]
    assert edges(flow) == [
        ("a", "c", "success", None),
        ("b", "c", "success", None),
        ("c", "d", "failure", None),
        ("c", "e", "success", None),
    ]


def test_same_text_compiles_to_the_same_document() -> None:
    text = "{name: x, steps: [{run: echo, when: $input.a == 1}]}"
    assert read(text).document == read(text).document


async def test_text_contains_the_values_of_references_in_braces() -> None:
    text = """
name: x
steps:
  - id: a
    run: echo
    with:
      value:
        url: http://example.com/users/${input.id}/${input.list[1]}
        whole: "${input.list}"
        escaped: $${input.id} costs $5 ${other}
        nothing: "<${input.missing?}>"
        none: "${input.missing?}"
outputs: $step.a
"""
    assert await outputs_of(text, id="ann", list=[1, {"b": True}]) == {
        "url": 'http://example.com/users/ann/{"b":true}',
        "whole": [1, {"b": True}],
        "escaped": "${input.id} costs $5 ${other}",
        "nothing": "<>",
        "none": None,
    }


def test_code_is_not_interpolated() -> None:
    flow = read("{name: x, steps: [{run: code.run, with: {code: 'return `${input.a}`', input: {a: 1}}}]}")
    assert not flow.nodes["step1"].interpolate


async def test_braces_in_flow_ir_stay_text() -> None:
    flow = document([step("a", "echo", {"value": "<${input.id}>"})])
    summary = await FlowHarness().run(flow, {"id": 1})
    assert summary.outputs == {"a": "<${input.id}>"}
    flow["graph"]["nodes"][0]["interpolate"] = True
    assert (await FlowHarness().run(flow, {"id": 1})).outputs == {"a": "<1>"}


CONDITIONAL = """
name: x
steps:
  - {id: a, run: echo, with: {value: 1}}
  - {id: b, run: echo, with: {value: 2}, when: CONDITION}
  - {id: c, run: echo, with: {value: 3}}
outputs: {b: "${step.b?}", c: $step.c}
"""


@pytest.mark.parametrize(
    ("condition", "value", "runs"),
    [
        ("$input.v", True, True),
        ("$input.v", False, False),
        ("not $input.v", False, True),
        ("${input.v} == ok", "ok", True),
        ("$input.v == 'two words'", "two words", True),
        ("$input.v == ok", "no", False),
        ("$input.v != 3", 3, False),
        ("$input.v != 3", 4, True),
        ("$input.v in [a, 2]", 2, True),
        ("$input.v in [a, 2]", "b", False),
        ("$input.v not in [a, 2]", "b", True),
    ],
)
async def test_step_runs_only_if_its_condition_holds(condition: str, value: Any, runs: bool) -> None:
    text = CONDITIONAL.replace("CONDITION", f'"{condition}"')
    assert await outputs_of(text, v=value) == {"b": 2 if runs else None, "c": 3}


@pytest.mark.parametrize(
    ("condition", "runs"), [("$input.v", False), ("not $input.v", True), ("$input.v == 1", False)]
)
async def test_condition_on_an_optional_input_that_is_not_given(condition: str, runs: bool) -> None:
    text = CONDITIONAL.replace("CONDITION", f'"{condition}"').replace(
        "steps:", 'inputs: {v: "any?"}\nsteps:', 1
    )
    assert await outputs_of(text) == {"b": 2 if runs else None, "c": 3}


async def test_condition_on_the_last_step_needs_no_outputs() -> None:
    text = "{name: x, steps: [{run: echo, with: {value: 1}}, {id: b, run: echo, when: $input.v}]}"
    assert await outputs_of(text, v=True) == {"b": None}
    assert await outputs_of(text, v=False) == {}


async def test_condition_must_be_a_boolean() -> None:
    flow = read("{name: x, steps: [{run: echo, when: $input.v}]}")
    summary = await FlowHarness().run(flow.document, {"v": "yes"})
    assert "There is no case for 'yes'" in summary.error["message"]


def test_nested_flow_may_have_the_short_form() -> None:
    flow = read("{name: x, steps: [{id: sub, run: flow.run, with: {flow: {steps: [{run: echo}]}}}]}")
    assert flow.nodes["sub"].with_["flow"]["flow"]["name"] == "sub"
    assert problems_of("""
name: x
steps:
  - id: sub
    run: flow.run
    with:
      flow:
        steps:
          - run: echo
            with: {x: $step.gone}
""") == ['steps[0].with.flow.steps[0].with.x: $step.gone: there is no step "gone" (line 10, step sub)']


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{name: x, steps: []}", "steps: expected a list of at least one step, got an empty list (line 1)"),
        ("{name: x, stepz: []}", "stepz: unknown key; did you mean steps? (line 1)"),
        (
            "name: x\nsteps:\n  - id: a\n    run: echo\n    timout: 3",
            "steps[0].timout: unknown key; did you mean timeout? (line 5, step a)",
        ),
        (
            "name: x\nsteps:\n  - {id: a, type: echo}",
            "steps[0].type: unknown key; did you mean run? (line 3, step a)",
        ),
        (
            "name: x\nsteps:\n  - {id: a, run: echo, timeout: soon}",
            'such as 500ms, 5s, 2m; got "soon" (line 3, step a)',
        ),
        (
            "name: x\nsteps:\n  - {id: a, run: echo}\n  - {id: b, run: echo, after: aa}",
            'steps[1].after: there is no step "aa"; did you mean a? (line 4, step b)',
        ),
        (
            "name: x\nsteps:\n  - {id: a, run: echo}\n  - id: b\n    run: echo\n    when: $step.a.n > 3",
            "compare numbers in a code.run step, and use its result (line 6, step b)",
        ),
        (
            "name: x\nsteps:\n  - id: a\n    run: echo\n    with:\n      url: x/${inputs.id}",
            "steps[0].with.url: ${inputs.id} is not a reference; did you mean ${input.id}? (line 6, step a)",
        ),
        (
            "name: x\ninputs: [user]\nsteps:\n  - id: a\n    run: echo\n    with: {url: 'x/${input.usre}'}",
            'steps[0].with.url: the flow has no input "usre"; did you mean user? (line 6, step a)',
        ),
        (
            "name: x\nsteps:\n  - id: a\n    run: echo\n    with: {url: 'x/${step.gone.y}'}",
            'steps[0].with.url: $step.gone.y: there is no step "gone" (line 5, step a)',
        ),
        (
            "name: x\nsteps:\n  - {id: a, run: echo}\noutputs: {y: $step.b}",
            'outputs.y: $step.b: there is no step "b" (line 4)',
        ),
        ("name: x\nsteps:\n  - {id: a}", "steps[0].run: expected a kind of step such as code.run"),
        (
            "name: x\nsteps:\n  - {id: a, run: echo}\n  - {id: a, run: echo}",
            'steps[1].id: "a" is already the id of another step (line 4, step a)',
        ),
        ("name: x\ninputs: {a: strnig}\nsteps: [{run: echo}]", "inputs.a.type: "),
    ],
)
def test_problems_have_the_line_the_step_and_a_suggestion(text: str, problem: str) -> None:
    found = problems_of(text)
    assert any(problem in each for each in found), found


def test_problems_of_flow_ir_have_the_line_and_the_step() -> None:
    text = json.dumps(document([step("a", "echo", retries=-1)]), indent="\t")
    with pytest.raises(InvalidFlow) as caught:
        FlowSource(json.loads(text), text).parse()
    [problem] = caught.value.problems
    assert (problem.line, problem.step) == (text[: text.index('"max"')].count("\n") + 1, "a")


def test_deep_document_is_refused() -> None:
    nested: Any = {}
    for _ in range(3000):
        nested = [nested]
    with pytest.raises(InvalidFlow, match="nested deeper"):
        FlowSource({"name": "x", "steps": [{"run": "echo", "with": {"x": nested}}]}).parse()


# --- for_each ---


async def test_for_each_compiles_to_a_step_with_an_inner_step() -> None:
    text = """
steps:
  - {id: list, run: echo, with: {value: [{n: a}, {n: b}]}}
  - id: each
    run: echo
    for_each: $step.list
    max_parallel: 2
    with: {value: "${index} ${item.n}"}
    retry: 2
    timeout: 5s
"""
    [node] = [each for each in read(text).document["graph"]["nodes"] if each["id"] == "each"]
    assert (node["type"], node["timeout_ms"], node["retry"]["max"]) == ("for_each", 0, 0)
    assert node["with"] == {
        "items": "$step.list",
        "step": {
            "type": "echo",
            "with": {"value": "${index} ${item.n}"},
            "timeout_ms": 5_000,
            "retry": {"max": 2, "backoff_ms": 1_000},
            "interpolate": True,
        },
        "max_parallel": 2,
    }
    assert await outputs_of(text) == {"each": ["0 a", "1 b"]}


def test_problems_of_for_each_have_the_place_in_the_short_form() -> None:
    first, *others = problems_of("""
steps:
  - {id: a, run: echo, for_each: 3, max_parallel: 0}
  - {id: b, run: echo, max_parallel: 2}
  - {id: c, run: echo, foreach: [1]}
""")
    expected = "a list, or a reference to one such as $input.items"
    assert first == f"steps[0].for_each: expected {expected}, got the number 3 (line 3, step a)"
    assert others == [
        "steps[0].max_parallel: expected a number from 1 to 64, got the number 0 (line 3, step a)",
        "steps[1].max_parallel: expected for_each in the same step (line 4, step b)",
        "steps[2].foreach: unknown key; did you mean for_each? (line 5, step c)",
    ]
    assert problems_of("""
inputs: {list: list}
steps:
  - id: a
    run: echo
    for_each: $input.lst
    with:
      x: $step.nope
""") == [
        'steps[0].for_each: the flow has no input "lst"; did you mean list? (line 6, step a)',
        'steps[0].with.x: $step.nope: there is no step "nope" (line 8, step a)',
    ]


def test_flow_without_a_file_needs_a_name() -> None:
    with pytest.raises(InvalidFlow, match="name: is missing; expected a name of letters"):
        FlowSource({"steps": [{"run": "echo"}]}).parse()
    with pytest.raises(InvalidFlow, match=r'name: expected a name of letters.* got "my flow"'):
        FlowSource({"steps": [{"run": "echo"}]}, "", "my flow.yaml").parse()


def test_flows_in_the_documentation_are_valid() -> None:
    page = (Path(__file__).parents[5] / "docs/rep.md").read_text()
    flows = [text for text in re.findall(r"```yaml\n(.*?)```", page, re.S) if "steps:" in text]
    assert [read(text).name for text in flows] == ["greet", "restock", "notify"]
