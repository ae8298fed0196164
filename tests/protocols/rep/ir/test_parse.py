"""Parsing of Flow IR: all fields, and all problems at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.protocols.rep.flows import chain, change, compiled, document, edge, step

from hutch.protocols.rep.ir.flow import Flow
from hutch.protocols.rep.ir.parse import parse_flow
from hutch.protocols.rep.ir.problems import InvalidFlow
from hutch.protocols.rep.ir.source.read import load_flow


def problems(value: object) -> list[str]:
    with pytest.raises(InvalidFlow) as refused:
        parse_flow(value)
    assert refused.value.rep_code == 1003
    return [str(problem) for problem in refused.value.problems]


def test_flow_has_the_fields_of_its_document() -> None:
    flow = parse_flow(
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


def test_output_of_the_public_compiler_is_parsed() -> None:
    flow = parse_flow(compiled())
    assert flow.order() == ["read", "when_0", "write", "emit_1", "finish_2"]
    assert flow.step_kinds() == ["opcua.read", "opcua.write"]
    assert flow.is_compiled
    assert [each.case for each in flow.outgoing("when_0")] == ["ok", "_DEFAULT"]


def test_only_wdl_sources_count_as_compiled() -> None:
    assert not parse_flow(document([step("a")])).is_compiled
    assert parse_flow(document([step("a")], source_file="flows/a.wdl.yaml")).is_compiled


def test_unknown_keys_are_ignored_where_allowed() -> None:
    value = document([{**step("a"), "note": 1}], [])
    value["extra"] = True
    value["metadata"]["tool"] = "x"
    assert isinstance(parse_flow(value), Flow)


WRONG_SHAPES = [
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


@pytest.mark.parametrize(
    ("path", "value", "expected"), WRONG_SHAPES, ids=[f"{path}={value}" for path, value, _ in WRONG_SHAPES]
)
def test_wrong_shape_is_reported_with_path_and_expectation(path: str, value: object, expected: str) -> None:
    flow = document([step("a"), step("b"), step("c")], chain("a", "b", "c"))
    change(path, value)(flow)
    found = problems(flow)
    assert [problem for problem in found if problem.startswith(expected)], found


@pytest.mark.parametrize("value", [None, [], "flow", 3])
def test_other_values_than_objects_are_refused(value: object) -> None:
    assert problems(value)[0].startswith("expected an object with Flow IR 1.0.0, got ")


def test_all_problems_are_reported_at_once() -> None:
    flow = document(
        [step("a", retries=-1), step("a"), step("b", with_={"x": "$step.unknown.y"})],
        [edge("a", "b", "sometimes"), edge("b", "c"), edge("b", "a")],
    )
    del flow["metadata"]["source_file"]
    found = "\n".join(problems(flow))
    for part in (
        "graph.nodes[0].retry.max: expected an integer ≥ 0",
        'graph.nodes[1].id: "a" is already the id of graph.nodes[0]',
        'graph.nodes[2].with.x: $step.unknown.y: there is no step "unknown"',
        "graph.edges[0].on: expected",
        'graph.edges[1].to: there is no step "c"',
        "graph.edges[2]: closes a cycle: a → b → a",
        "metadata.source_file: is missing",
    ):
        assert part in found


def test_unsupported_version_is_the_only_problem() -> None:
    value = document([step("a", retries=-1)])
    value["version"] = "2.0.0"
    with pytest.raises(InvalidFlow) as refused:
        parse_flow(value)
    assert [str(problem) for problem in refused.value.problems] == ['version: expected "1.0.0", got "2.0.0"']
    assert refused.value.rep_code == 1001
    assert refused.value.details == {"expected": "1.0.0", "received": "2.0.0"}


def test_details_list_every_problem() -> None:
    with pytest.raises(InvalidFlow) as refused:
        parse_flow(document([step("a"), step("a")]))
    assert refused.value.details == {
        "problems": [{"path": "graph.nodes[1].id", "message": '"a" is already the id of graph.nodes[0]'}]
    }


def test_misspelled_step_in_an_edge_gets_a_suggestion() -> None:
    found = problems(
        document([step("fetch"), step("build")], [edge("fetch", "buidl"), edge("fetsh", "build")])
    )
    assert found == [
        'graph.edges[0].to: there is no step "buidl"; did you mean build?',
        'graph.edges[1].from: there is no step "fetsh"; did you mean fetch?',
    ]


def test_every_cycle_is_reported_once() -> None:
    flow = document(
        [step(name) for name in "abcdefg"],
        [edge("a", "a"), *chain("b", "c", "d", "b"), *chain("e", "f", "e"), edge("d", "g"), edge("g", "e")],
    )
    assert problems(flow) == [
        "graph.edges[0]: closes a cycle: a → a",
        "graph.edges[3]: closes a cycle: b → c → d → b",
        "graph.edges[5]: closes a cycle: e → f → e",
    ]


def test_long_cycle_is_shortened() -> None:
    ids = [f"n{number}" for number in range(100)]
    found = problems(document([step(name) for name in ids], chain(*ids, "n0")))
    assert found[0].endswith(
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
        ("$step", "$step does not name a step; expected $step.ID or $step.ID.KEY"),
        ("$step.before..x", "$step.before..x is not a reference: expected keys after dots"),
        ("$input.", "$input. is not a reference: expected keys after dots"),
        ("$input.a b", "$input.a b is not a reference"),
    ],
)
def test_bad_reference_is_reported(reference: str, expected: str) -> None:
    steps = [step("before"), step("beside"), step("here", with_={"deep": [{"x": reference}]}), step("later")]
    found = problems(
        document(steps, [edge("before", "here"), edge("beside", "later"), edge("here", "later")])
    )
    assert len(found) == 1
    assert found[0].startswith(f"graph.nodes[2].with.deep[0].x: {expected}")


def test_good_references_are_accepted() -> None:
    given = {
        "a": "$step.first.x",
        "b": "$.vars.mid",
        "c": "$input.any.thing[0]",
        "d": "$5.00",
        "e": "$$step.zz",
    }
    parse_flow(
        document([step("first"), step("mid"), step("last", with_=given)], chain("first", "mid", "last"))
    )


def test_failed_or_skipped_step_may_be_referenced() -> None:
    steps = [step("a"), step("b"), step("c", with_={"x": "$step.a.error.message", "y": "$step.b"})]
    parse_flow(document(steps, [edge("a", "b"), edge("a", "c", "failure"), edge("b", "c")]))


def test_unknown_input_is_reported() -> None:
    steps = [step("a", with_={"x": "$input.nmae"})]
    simple = {"name": {"type": "string"}}
    closed = {"type": "object", "properties": simple, "additionalProperties": False}
    for schema in (simple, closed):
        assert problems(document(steps, inputs=schema)) == [
            'graph.nodes[0].with.x: the flow has no input "nmae"; did you mean name?'
        ]
    parse_flow(document(steps, inputs={"type": "object", "properties": simple}))
    parse_flow(document(steps))


# --- switches ---


def switch(cases: object, edges: list[dict[str, Any]], **extra: object) -> dict[str, Any]:
    given = {"key_from": "$step.a.x", "cases": cases, **extra}
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
def test_invalid_switch_is_reported(flow: dict[str, Any], expected: str) -> None:
    assert [problem for problem in problems(flow) if problem.startswith(f"graph.nodes[1].with.{expected}")]


def test_case_on_an_edge_of_another_step_is_reported() -> None:
    found = problems(document([step("a"), step("b")], [edge("a", "b", case="x")]))
    assert found == ["graph.edges[0].case: only edges from a switch have a case; a is a code.run"]


def test_switch_may_have_its_cases_only_on_edges() -> None:
    parse_flow(switch(None, [edge("s", "b", case="yes"), edge("s", "c", case="no")], default="no"))


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


def test_yaml_has_the_types_of_json(tmp_path: Path) -> None:
    file = tmp_path / "demo.yaml"
    file.write_text(YAML)
    flow = load_flow(file)
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
        ("a.yaml", "a: 1\na: 2", "expected YAML: line 2, column 1: 'a' is a duplicate key"),
        (
            "a.yaml",
            "a: &x [1]\nb: *x",
            "expected YAML: line 2, column 4: aliases are not supported",
        ),
        ("a.yaml", "a: !!python/object:os.system x", "expected YAML: line 1, column 4: tags such as "),
        ("a.yaml", "a: !secret x", "expected YAML: line 1, column 4: tags such as !secret are not supported"),
        ("a.yml", "[" * 50_000, "expected YAML: line 1, column 101: nested deeper than 100 levels"),
        (
            "a.yaml",
            "--- 1\n--- 2",
            "expected YAML: line 2, column 1: expected a single document in the stream but found another",
        ),
        ("a.yaml", "a: 1\nb: \x07x", "expected YAML: line 2, column 4: character U+0007 is not allowed"),
        ("a.yaml", "a: \0", "expected YAML: line 1, column 4: character U+0000 is not allowed"),
        ("a.yaml", "\x1b", "expected YAML: line 1, column 1: character U+001B is not allowed"),
        ("a.yaml", "a:\n\tb: 1", "expected YAML: line 2, column 1: found character '\\t' that cannot start"),
        ("a.yaml", "a: {b: 1, <<: {c: 2}}", "expected YAML: line 1, column 11: merge keys (<<) are not"),
        ("a.yaml", "a: &x {b: 1}\nc:\n  <<: *x", "expected YAML: line 3, column 7: aliases are not"),
        ("a.yaml", "!x a: 1", "expected YAML: line 1, column 1: tags such as !x are not supported"),
        ("a.yaml", "[a, b]: 1", "expected YAML: line 1, column 1: expected a key that is a string"),
        ("a.yaml", "a: 1e999", "expected YAML: line 1, column 4: '1e999' is not a valid float"),
        ("a.yaml", f"a: {'9' * 5_000}", f"expected YAML: line 1, column 4: '{'9' * 59}…' is not a valid int"),
        ("a.yaml", "%YAML 3.0\n--- 1", "expected YAML: line 1, column "),
        ("a.yaml", 'a: "\\z"', "expected YAML: line 1, column 6: found unknown escape character 'z'"),
        ("a.yaml", 'a: "\\ud800"', ""),
        ("a.yaml", b"\xfe\xff\0a", "expected UTF-8, but byte 0 is 0xfe"),
        ("a.yaml", b"a: \xed\xa0\x80", "expected UTF-8, but byte 3 is 0xed"),
        ("a.json", '{"a": 1, "b": {"c": 1, "c": 2}}', "expected JSON: 'c' is a duplicate key"),
        ("a.json", '{"a":\t"x\ty"}', "expected JSON: line 1, column 9: Invalid control character"),
        ("a.json", '{"a": \0}', "expected JSON: line 1, column 7: "),
        ("a.json", '{"a": "\\ud800"}', "expected JSON: "),
        ("a.json", '{"a": 1e999}', "expected JSON: "),
        ("a.json", f'{{"a": {"9" * 5_000}}}', "expected JSON: a number is out of range"),
        ("a.json", '{"a": NaN}', "expected JSON: "),
        ("a.json", "{'a': 1}", "expected JSON: line 1, column 2: "),
        ("a.json", '{"a": 1} x', "expected JSON: line 1, column 10: Extra data"),
        ("a.json", "{\ufeff}", "expected JSON: line 1, column 2: "),
    ],
)
def test_unreadable_file_is_reported_with_the_line(
    tmp_path: Path, name: str, text: str | bytes, expected: str
) -> None:
    file = tmp_path / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InvalidFlow) as refused:
        load_flow(file)
    assert str(refused.value).startswith(f"{file}: {expected}" if expected else "a: ")
    assert len(str(refused.value)) < 600


def test_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    file = tmp_path / "demo.yaml"
    file.write_bytes(b"\xef\xbb\xbf" + YAML.encode())
    assert load_flow(file).name == "demo"


def test_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InvalidFlow, match="cannot be read: No such file"):
        load_flow(tmp_path / "nothing.json")
    with pytest.raises(InvalidFlow, match="cannot be read: Is a directory"):
        load_flow(tmp_path)


def test_flows_in_the_documentation_are_valid(tmp_path: Path) -> None:
    page = (Path(__file__).parents[4] / "docs/rep.md").read_text()
    texts = [part.partition("```")[0] for part in page.split("```yaml\n")[1:3]]
    file = tmp_path / "flow.yaml"
    orders = []
    for text in texts:
        file.write_text(text)
        orders.append(load_flow(file).order())
    assert orders == [["shout", "finish"], ["stock", "short", "order-when", "order", "alarm", "finish"]]
