"""Flow IR is read as a whole: what it says, and everything that is wrong with it at once."""

from __future__ import annotations

import copy
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.doors.rep.flows import chain, compiled, document, edge, step

from hutch.doors.rep.drawing import draw
from hutch.doors.rep.flow import Flow, load, read
from hutch.doors.rep.inputs import check
from hutch.doors.rep.problems import InvalidFlow
from hutch.doors.rep.shape import MOST_NODES


def problems(value: object) -> list[str]:
    with pytest.raises(InvalidFlow) as refused:
        read(value)
    assert refused.value.rep_code == 1003
    return [str(each) for each in refused.value.problems]


def test_flow_says_what_its_document_says() -> None:
    flow = read(
        document(
            [step("a", timeout_ms=500, retries=2, backoff_ms=10), step("b", "http.get", {"url": "x"})],
            [edge("a", "b"), edge("a", "b", "failure")],
            timeout_ms=9000,
        )
    )
    assert (flow.name, flow.timeout_ms) == ("demo", 9000)
    a, b = flow.nodes.values()
    assert (a.id, a.kind, a.timeout_ms, a.retry_max, a.backoff_ms) == ("a", "code.run", 500, 2, 10)
    assert (b.with_, b.path) == ({"url": "x"}, "graph.nodes[1]")
    assert [(each.source, each.target, each.on) for each in flow.edges] == [
        ("a", "b", "success"),
        ("a", "b", "failure"),
    ]
    assert flow.entries() == ["a"]
    assert flow.successors("a") == ["b"]
    assert flow.outgoing("a") == flow.incoming("b") == list(flow.edges)
    assert flow.constants == {"policyRef": "none", "policy": {}}
    assert flow.document["graph"]["nodes"][1]["id"] == "b"


def test_what_the_public_compiler_makes_is_read() -> None:
    flow = read(compiled())
    assert flow.order() == ["read", "when_0", "write", "emit_1", "finish_2"]
    assert flow.step_kinds() == ["opcua.read", "opcua.write"]
    assert flow.compiled
    assert [each.case for each in flow.outgoing("when_0")] == ["ok", "_DEFAULT"]


def test_flow_written_by_hand_is_not_taken_for_a_compiled_one() -> None:
    assert not read(document([step("a")])).compiled
    assert read(document([step("a")], source_file="flows/a.wdl.yaml")).compiled


def test_unknown_keys_are_passed_over_where_the_format_allows_them() -> None:
    value = document([{**step("a"), "note": 1}], [])
    value["extra"] = True
    value["metadata"]["tool"] = "x"
    assert isinstance(read(value), Flow)


def change(path: str, value: object) -> Callable[[dict[str, Any]], None]:
    """Sets what a dotted path leads to; … takes it away."""

    def apply(target: Any) -> None:
        *way, last = [int(part) if part.isdecimal() else part for part in path.split(".")]
        for part in way:
            target = target[part]
        if value is ...:
            del target[last]
        else:
            target[last] = value

    return apply


WRONG = [
    ("graph.nodes.2.retry.max", -1, "graph.nodes[2].retry.max: expected an integer ≥ 0, got the number -1"),
    ("graph.nodes.2.retry.max", "2", 'graph.nodes[2].retry.max: expected an integer ≥ 0, got "2"'),
    ("graph.nodes.2.retry.max", True, "graph.nodes[2].retry.max: expected an integer ≥ 0, got true"),
    (
        "graph.nodes.2.retry.max",
        2**31,
        "graph.nodes[2].retry.max: expected at most 2147483647, got the number 2147483648",
    ),
    (
        "graph.nodes.0.retry.jitter",
        1,
        "graph.nodes[0].retry.jitter: is not known; expected only backoff_ms, max",
    ),
    ("graph.nodes.0.retry", ..., "graph.nodes[0].retry: is missing; expected an object"),
    ("graph.nodes.0.id", "a b", "graph.nodes[0].id: expected a string that matches ^[A-Za-z0-9_.-]+$, got"),
    ("graph.nodes.0.type", "", 'graph.nodes[0].type: expected a string that is not empty, got ""'),
    ("graph.nodes.0.with", [], "graph.nodes[0].with: expected an object, got a list"),
    ("graph.nodes", [], "graph.nodes: expected a list of at least 1, got a list"),
    ("graph.edges", ..., "graph.edges: is missing; expected a list"),
    ("graph.edges.0.on", "always", 'graph.edges[0].on: expected "failure" or "success", got "always"'),
    ("graph.edges.0.on", ..., 'graph.edges[0].on: is missing; expected "failure" or "success"'),
    ("graph.extra", 1, "graph.extra: is not known; expected only edges, nodes"),
    ("flow.timeout_ms", 1.5, "flow.timeout_ms: expected an integer ≥ 0, got the number 1.5"),
    ("flow.timeout", 1, "flow.timeout: is not known; did you mean timeout_ms?"),
    ("flow.name", ..., "flow.name: is missing; expected a string that matches"),
    ("flow.name", "a" * 201, "flow.name: expected at most 200 characters, got a string"),
    ("constants.policyRef", "", 'constants.policyRef: expected a string that is not empty, got ""'),
    ("constants", None, "constants: expected an object, got null"),
    ("inputs_schema", [], "inputs_schema: expected an object, got a list"),
    (
        "metadata.generated_at",
        "yesterday",
        "metadata.generated_at: expected a time such as 2026-01-31T12:00:00Z",
    ),
    ("metadata.generated_at", "2026-01-31T12:00:00", "metadata.generated_at: expected a time such as"),
    ("metadata.source_file", None, "metadata.source_file: expected a string that is not empty, got null"),
    ("version", ..., 'version: is missing; expected "1.0.0"'),
    ("version", 1, 'version: expected "1.0.0", got the number 1'),
]


@pytest.mark.parametrize(("path", "value", "expected"), WRONG, ids=[f"{each[0]}={each[1]}" for each in WRONG])
def test_what_has_the_wrong_shape_is_told_with_its_path_and_what_was_expected(
    path: str, value: object, expected: str
) -> None:
    flow = document([step("a"), step("b"), step("c")], chain("a", "b", "c"))
    change(path, value)(flow)
    told = problems(flow)
    assert [each for each in told if each.startswith(expected)], told


@pytest.mark.parametrize("value", [None, [], "flow", 3])
def test_what_is_no_object_is_told(value: object) -> None:
    assert problems(value)[0].startswith("expected an object with Flow IR 1.0.0, got ")


def test_everything_is_told_at_once() -> None:
    flow = document(
        [step("a", retries=-1), step("a"), step("b", with_={"x": "$step.nobody.y"})],
        [edge("a", "b", "sometimes"), edge("b", "c"), edge("b", "a")],
    )
    del flow["metadata"]["source_file"]
    told = "\n".join(problems(flow))
    for part in (
        "graph.nodes[0].retry.max: expected an integer ≥ 0",
        'graph.nodes[1].id: "a" is the id of graph.nodes[0] already',
        'graph.nodes[2].with.x: $step.nobody.y: there is no step "nobody"',
        "graph.edges[0].on: expected",
        'graph.edges[1].to: there is no step "c"',
        "graph.edges[2]: closes a cycle: a → b → a",
        "metadata.source_file: is missing",
    ):
        assert part in told


def test_another_version_is_the_only_thing_told() -> None:
    value = document([step("a", retries=-1)])
    value["version"] = "2.0.0"
    with pytest.raises(InvalidFlow) as refused:
        read(value)
    assert [str(each) for each in refused.value.problems] == ['version: expected "1.0.0", got "2.0.0"']
    assert refused.value.rep_code == 1001
    assert refused.value.details == {"expected": "1.0.0", "received": "2.0.0"}


def test_details_have_every_problem_for_the_wire() -> None:
    with pytest.raises(InvalidFlow) as refused:
        read(document([step("a"), step("a")]))
    assert refused.value.details == {
        "problems": [{"path": "graph.nodes[1].id", "message": '"a" is the id of graph.nodes[0] already'}]
    }


def test_ends_of_edges_that_are_nearly_a_step_are_guessed() -> None:
    told = problems(
        document([step("fetch"), step("build")], [edge("fetch", "buidl"), edge("fetsh", "build")])
    )
    assert told == [
        'graph.edges[0].to: there is no step "buidl"; did you mean build?',
        'graph.edges[1].from: there is no step "fetsh"; did you mean fetch?',
    ]


def test_every_cycle_is_told_once() -> None:
    flow = document(
        [step(each) for each in "abcdefg"],
        [edge("a", "a"), *chain("b", "c", "d", "b"), *chain("e", "f", "e"), edge("d", "g"), edge("g", "e")],
    )
    assert problems(flow) == [
        "graph.edges[0]: closes a cycle: a → a",
        "graph.edges[3]: closes a cycle: b → c → d → b",
        "graph.edges[5]: closes a cycle: e → f → e",
    ]


def test_long_cycle_is_told_in_short() -> None:
    ids = [f"n{number}" for number in range(100)]
    told = problems(document([step(each) for each in ids], chain(*ids, "n0")))
    assert told[0].endswith(
        "closes a cycle: n0 → n1 → n2 → n3 → n4 → n5 → … → n95 → n96 → n97 → n98 → n99 → n0"
    )


# --- references ---


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("$step.later.x", "$step.later.x: later cannot come before here; expected a step that leads to it"),
        ("$step.beside", "$step.beside: beside cannot come before here; expected a step that leads to it"),
        ("$step.here.x", "$step.here.x: a step cannot use its own output"),
        ("$.vars.befor.x", '$.vars.befor.x: there is no step "befor"; did you mean before?'),
        ("$step", "$step names no step; expected $step.ID or $step.ID.KEY"),
        ("$step.before..x", "$step.before..x is no reference: expected keys after dots"),
        ("$input.", "$input. is no reference: expected keys after dots"),
        ("$input.a b", "$input.a b is no reference"),
    ],
)
def test_bad_reference_is_told(reference: str, expected: str) -> None:
    steps = [step("before"), step("beside"), step("here", with_={"deep": [{"x": reference}]}), step("later")]
    told = problems(document(steps, [edge("before", "here"), edge("beside", "later"), edge("here", "later")]))
    assert len(told) == 1
    assert told[0].startswith(f"graph.nodes[2].with.deep[0].x: {expected}")


def test_good_references_are_not_told() -> None:
    given = {
        "a": "$step.first.x",
        "b": "$.vars.mid",
        "c": "$input.any.thing[0]",
        "d": "$5.00",
        "e": "$$step.zz",
    }
    read(document([step("first"), step("mid"), step("last", with_=given)], chain("first", "mid", "last")))


def test_step_may_be_used_after_it_failed_or_may_have_been_passed_over() -> None:
    steps = [step("a"), step("b"), step("c", with_={"x": "$step.a.error.message", "y": "$step.b"})]
    read(document(steps, [edge("a", "b"), edge("a", "c", "failure"), edge("b", "c")]))


def test_input_that_cannot_be_there_is_told() -> None:
    steps = [step("a", with_={"x": "$input.nmae"})]
    simple = {"name": {"type": "string"}}
    closed = {"type": "object", "properties": simple, "additionalProperties": False}
    for schema in (simple, closed):
        assert problems(document(steps, inputs=schema)) == [
            'graph.nodes[0].with.x: inputs_schema has no input "nmae"; did you mean name?'
        ]
    read(document(steps, inputs={"type": "object", "properties": simple}))
    read(document(steps))


# --- switches ---


def switch(cases: object, edges: list[dict[str, Any]], **more: object) -> dict[str, Any]:
    given = {"key_from": "$step.a.x", "cases": cases, **more}
    steps = [step("a"), step("s", "switch", given), step("b"), step("c")]
    return document(steps, [edge("a", "s"), *edges])


@pytest.mark.parametrize(
    ("flow", "expected"),
    [
        (
            switch({"yes": "b"}, [edge("s", "c", case="yes")]),
            'cases.yes: there is no edge from this switch to b with "case": "yes"',
        ),
        (switch({"yes": "d"}, [edge("s", "b", case="yes")]), 'cases.yes: there is no step "d"'),
        (switch({"yes": 1}, [edge("s", "b", case="yes")]), "cases.yes: expected the id of a step"),
        (switch("b", [edge("s", "b")]), 'cases: expected an object of steps by case, got "b"'),
        (
            switch({"yes": "b"}, [edge("s", "b", case="yes")], default="maybe"),
            'default: expected a case or a step, got "maybe"',
        ),
        (
            switch({"yes": "b"}, [edge("s", "b", case="yes")], default="c"),
            "default: there is no edge from s to c",
        ),
        (
            switch({"yes": "b"}, [edge("s", "b", case="yes")], key_from="a.x"),
            'key_from: expected a reference such as $step.ID.KEY, got "a.x"',
        ),
    ],
)
def test_switch_that_leads_nowhere_is_told(flow: dict[str, Any], expected: str) -> None:
    assert [each for each in problems(flow) if each.startswith(f"graph.nodes[1].with.{expected}")]


def test_case_of_what_is_no_switch_is_told() -> None:
    told = problems(document([step("a"), step("b")], [edge("a", "b", case="x")]))
    assert told == ["graph.edges[0].case: only edges from a switch have a case; a is a code.run"]


def test_switch_may_have_its_cases_on_its_edges_alone() -> None:
    read(switch(None, [edge("s", "b", case="yes"), edge("s", "c", case="no")], default="no"))


# --- flows in flows ---


def test_flow_within_a_flow_is_checked_with_its_own_references() -> None:
    inner = document([step("one"), step("two", with_={"x": "$step.one.y"})], chain("one", "two"))
    read(document([step("outer", "flow.run", {"flow": inner, "inputs": {}})]))
    inner["graph"]["nodes"][1]["with"]["x"] = "$step.outer.y"
    assert problems(document([step("outer", "flow.run", {"flow": inner})])) == [
        'graph.nodes[0].with.flow.graph.nodes[1].with.x: $step.outer.y: there is no step "outer"'
    ]


# --- bounds ---


def test_too_many_steps_are_refused() -> None:
    told = problems(document([step(f"n{number}") for number in range(MOST_NODES + 1)]))
    assert told[0].startswith("graph.nodes: expected at most 10000 items")


def test_deep_value_is_refused_and_breaks_nothing() -> None:
    deep: Any = "end"
    for _ in range(50_000):
        deep = [deep]
    assert "is nested deeper than 100 levels" in problems(document([step("a", with_={"x": deep})]))[0]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1: 2}, b"x", {1, 2}, "\ud800", {"\ud800": 1}])
def test_value_that_json_has_not_is_refused(value: object) -> None:
    assert problems(document([step("a", with_={"x": value})]))[0].startswith("graph.nodes[0].with.x")


def test_large_flow_in_which_everything_refers_to_everything_is_read_in_reasonable_time() -> None:
    ids = [f"n{number}" for number in range(3000)]
    steps = [
        step(each, with_={"first": "$step.n0", "last": f"$step.n{max(0, number - 1)}"} if number else {})
        for number, each in enumerate(ids)
    ]
    began = time.monotonic()
    flow = read(document(steps, chain(*ids)))
    assert flow.order() == ids
    assert time.monotonic() - began < 20


# --- anything at all ---

ODD: list[Any] = [
    None,
    True,
    0,
    -1,
    1.5,
    "",
    "a",
    "$step.a",
    "$input.",
    "$step.read.values",
    "switch",
    "flow.run",
]
ODD += ["list<", "\x00", "\ud800", 10**30, [], {}, [1], {"a": 1}, {"type": "string"}]
ODD += [{"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}}]


def places(value: Any, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The ways to all that is in a value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [each for key, part in inside for each in [(*way, key), *places(part, (*way, key))]]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_a_document_is_it_is_read_or_refused(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(25):
        value = document([*compiled()["graph"]["nodes"], step("in", "flow.run", {"flow": compiled()})])
        value["graph"]["edges"] = compiled()["graph"]["edges"]
        for _ in range(chance.randint(1, 4)):
            *way, last = chance.choice(places(value))
            target = value
            for key in way:
                target = target[key]
            if chance.random() < 0.2:
                del target[last]
            else:
                target[last] = copy.deepcopy(chance.choice(ODD))
        try:
            flow = read(value)
        except InvalidFlow as error:
            json.dumps(error.details)
        else:
            assert draw(flow)
            assert isinstance(check(flow, {"endpoint": chance.choice(ODD)}), list)


# --- files ---

YAML = """\
version: 1.0.0
flow: {name: demo, timeout_ms: 0}
constants: {policyRef: none, policy: {}}
inputs_schema: {}
graph:
  nodes:
    - id: a
      type: code.run
      with: {code: "return 1", yes: no, when: 2026-01-31}
      timeout_ms: 0
      retry: {max: 0, backoff_ms: 0}
    - id: b
      type: switch
      with: {key_from: $step.a, cases: {1: c}}
      timeout_ms: 0
      retry: {max: 0, backoff_ms: 0}
    - {id: c, type: finish, with: {}, timeout_ms: 0, retry: {max: 0, backoff_ms: 0}}
  edges:
    - {from: a, to: b, on: success}
    - {from: b, to: c, on: success, case: "1"}
metadata: {generated_at: 2026-01-31T12:00:00Z, source_file: demo.yaml}
"""


def test_yaml_is_read_as_json_would_be(tmp_path: Path) -> None:
    file = tmp_path / "demo.yaml"
    file.write_text(YAML)
    flow = load(file)
    assert flow.nodes["a"].with_ == {"code": "return 1", "yes": "no", "when": "2026-01-31"}
    assert flow.edges[0].on == "success"
    assert flow.nodes["b"].with_["cases"] == {"1": "c"}
    json.dumps(flow.document)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        (
            "a.json",
            '{"version": "1.0.0",\n  "flow" 1}',
            "expected JSON: line 2, column 10: Expecting ':' delimiter",
        ),
        ("a.json", "", "expected JSON: line 1, column 1"),
        ("a.json", b"\xff", "expected UTF-8, but byte 0 is 0xff"),
        ("a.json", "[" * 200_000, "expected JSON: "),
        ("a.yaml", "a: [1", "expected YAML: line 1, column "),
        ("a.yaml", "a: 1\na: 2", "expected YAML: line 2, column 1: 'a' is there twice"),
        ("a.yaml", "a: &x [1]\nb: *x", "expected YAML: line 2, column 4: aliases are not read; write it out"),
        ("a.yaml", "a: !!python/object:os.system x", "expected YAML: line 1, column 4: tags such as "),
        ("a.yaml", "a: !secret x", "expected YAML: line 1, column 4: tags such as !secret are not read"),
        ("a.yml", "[" * 50_000, "expected YAML: line 1, column 101: nested deeper than 100 levels"),
        ("a.yaml", "--- 1\n--- 2", "expected YAML: "),
    ],
)
def test_file_that_cannot_be_read_is_told_with_the_line(
    tmp_path: Path, name: str, text: str | bytes, expected: str
) -> None:
    file = tmp_path / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InvalidFlow) as refused:
        load(file)
    assert str(refused.value).startswith(f"{file}: {expected}")


def test_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidFlow, match="cannot be read: No such file"):
        load(tmp_path / "nothing.json")
    with pytest.raises(InvalidFlow, match="cannot be read: Is a directory"):
        load(tmp_path)


def test_flow_in_the_documents_is_one(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs/rep.md").read_text()
    file = tmp_path / "greet.yaml"
    file.write_text(page.partition("```yaml\n")[2].partition("```")[0])
    assert load(file).order() == ["shout", "done"]
