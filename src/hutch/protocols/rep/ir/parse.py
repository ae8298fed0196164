"""Parses Flow IR 1.0.0. Reports all problems at once: shape, ids, edges, cycles, switches and references."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, NamedTuple

import msgspec

from hutch.problems import JsonPath, NameSuggester, Problem, ProblemList, describe_value, format_path
from hutch.protocols.rep.ir import graph, schema
from hutch.protocols.rep.ir.budget import UNLIMITED, ValidationBudget
from hutch.protocols.rep.ir.flow import Flow, FlowNode
from hutch.protocols.rep.ir.inputs import declared_names, schema_problems
from hutch.protocols.rep.ir.json_bounds import json_problem
from hutch.protocols.rep.ir.problems import VERSION, InvalidFlow
from hutch.protocols.rep.ir.references import (
    OPAQUE_PARAMETERS,
    SUBFLOW_KINDS,
    BadReference,
    TemplateReference,
    find_references,
    interpolated_texts,
    parse_reference,
    parse_template,
)
from hutch.protocols.rep.ir.shape import shape_problems
from hutch.text import cut

NOT_FOR_ITEMS = ("switch", "finish", schema.FOR_EACH)
"""Kinds that cannot be the inner step of a `for_each`, because they need edges or other items."""
MAX_CASES = 1_000
"""Maximum number of cases of a switch."""
_MAX_VERSION_CHARS = 100

_NODES: JsonPath = ("graph", "nodes")
_EDGES: JsonPath = ("graph", "edges")


def parse_flow(document: object, budget: ValidationBudget = UNLIMITED) -> Flow:
    """Validates Flow IR and builds the flow. Raises InvalidFlow, also if the budget is used up.

    Takes time linear in the size of the document, which is limited.
    """
    if not isinstance(document, dict):
        raise InvalidFlow([_not_an_object(document)])
    version = document.get("version")
    if isinstance(version, str) and version != VERSION:
        # Report only the version, because everything else may be valid in that version.
        raise InvalidFlow([_wrong_version(version)], received_version=cut(version, _MAX_VERSION_CHARS))
    limit_problem = json_problem(document, budget.check)
    if limit_problem is not None:
        raise InvalidFlow([limit_problem])
    problems = ProblemList(InvalidFlow)
    decoded = None
    try:
        decoded = schema.decode_flow(document)
    except msgspec.ValidationError as error:
        problems.extend(shape_problems(document, error))
    problems.extend(_graph_problems(document, budget, depth=0))
    problems.raise_if_any()
    assert decoded is not None
    return Flow(document, decoded)


def readable_nodes(document: object) -> list[FlowNode]:
    """Returns the steps of an invalid flow that have an id, each with its kind and parameters. Includes the
    inner steps of `for_each` steps.
    """
    nodes = _graph_list(document, "nodes") if isinstance(document, dict) else []
    refs = list(_step_refs(nodes[: schema.MAX_NODES]))
    return [
        FlowNode(
            id=ref.id,
            kind=ref.kind,
            with_=ref.with_,
            interpolate=ref.interpolate,
            index=int(ref.path[2]),
            is_item=ref.is_item,
        )
        for ref in (*refs, *_item_steps(refs))
    ]


def _not_an_object(document: object) -> Problem:
    return Problem("", f"expected an object with Flow IR {VERSION}, got {describe_value(document)}")


def _wrong_version(version: str) -> Problem:
    return Problem("version", f'expected "{VERSION}", got {describe_value(version)}')


# --- the graph ---


class _StepRef(NamedTuple):
    path: JsonPath
    id: str
    kind: str
    with_: dict[str, Any]
    interpolate: bool
    is_item: bool = False
    """True for the inner step of a `for_each`."""


class _EdgeRef(NamedTuple):
    path: JsonPath
    source: str
    target: str
    case: str | None


class _StepsById(dict[str, _StepRef]):
    """Steps by id, with a suggester for misspelt ids. All messages about the flow share one suggester,
    because it makes only a limited number of suggestions.
    """

    def __init__(self, steps: Iterable[tuple[str, _StepRef]]) -> None:
        super().__init__(steps)
        self.suggester = NameSuggester()


def _graph_problems(document: dict[str, Any], budget: ValidationBudget, depth: int) -> Iterator[Problem]:
    """Yields the problems beyond the shape. Parts with a wrong shape are skipped.

    `depth` is the number of flows that this flow is nested in.
    """
    nodes, raw_edges = _graph_list(document, "nodes"), _graph_list(document, "edges")
    if len(nodes) > schema.MAX_NODES or len(raw_edges) > schema.MAX_EDGES:
        return  # `shape_problems` reports that there are too many
    steps = list(_step_refs(nodes))
    edges = list(_edge_refs(raw_edges))
    yield from schema_problems(document.get("inputs_schema"))
    yield from _duplicate_ids(steps)
    known = _StepsById((step.id, step) for step in reversed(steps))
    # Skip this check if a step has a wrong shape, because an edge may name that step.
    if len(steps) == len(nodes):
        yield from _dangling_edges(edges, known)
    budget.check()
    valid_edges = [edge for edge in edges if edge.source in known and edge.target in known]
    pairs = [(edge.source, edge.target) for edge in valid_edges]
    for number, cycle in graph.cycles(list(known), pairs):
        route = " → ".join([*_shortened(cycle), cycle[0]])
        yield Problem(format_path(valid_edges[number].path), f"closes a cycle: {route}")
    budget.check()
    ordered = graph.order(known, pairs)
    yield from _cases(valid_edges, known)
    budget.check()
    for step in steps:
        if step.kind == schema.FOR_EACH:
            yield from _for_each(step)
    all_steps = [*steps, *_item_steps(steps)]
    yield from _references(all_steps, known, ordered, pairs, document.get("inputs_schema"), budget)
    for step in all_steps:
        if step.kind in SUBFLOW_KINDS and isinstance(step.with_.get("flow"), dict):
            yield from _nested_flow(step, budget, depth + 1)


def _graph_list(document: dict[str, Any], key: str) -> list[Any]:
    graph_value = document.get("graph")
    value = graph_value.get(key) if isinstance(graph_value, dict) else None
    return value if isinstance(value, list) else []


def _step_refs(nodes: list[Any]) -> Iterator[_StepRef]:
    for number, node in enumerate(nodes):
        if isinstance(node, dict) and isinstance(node.get("id"), str):
            kind, parameters = node.get("type"), node.get("with")
            yield _StepRef(
                (*_NODES, number),
                node["id"],
                kind if isinstance(kind, str) else "",
                parameters if isinstance(parameters, dict) else {},
                node.get("interpolate") is True,
            )


def _edge_refs(edges: list[Any]) -> Iterator[_EdgeRef]:
    for number, edge in enumerate(edges):
        if isinstance(edge, dict) and isinstance(edge.get("from"), str) and isinstance(edge.get("to"), str):
            case = edge.get("case")
            yield _EdgeRef(
                (*_EDGES, number), edge["from"], edge["to"], case if isinstance(case, str) else None
            )


def _duplicate_ids(steps: list[_StepRef]) -> Iterator[Problem]:
    first: dict[str, _StepRef] = {}
    for step in steps:
        previous = first.setdefault(step.id, step)
        if previous is not step:
            message = f"{describe_value(step.id)} is already the id of {format_path(previous.path)}"
            yield Problem(format_path((*step.path, "id")), message)


def _dangling_edges(edges: list[_EdgeRef], known: _StepsById) -> Iterator[Problem]:
    for edge in edges:
        for word, name in (("from", edge.source), ("to", edge.target)):
            if name not in known:
                yield Problem(format_path((*edge.path, word)), _no_step(name, known))


def _no_step(name: str, known: _StepsById) -> str:
    close = known.suggester.closest(name, known)
    return f"there is no step {describe_value(name)}" + (f"; did you mean {close}?" if close else "")


def _shortened(names: list[str]) -> list[str]:
    return names if len(names) <= 12 else [*names[:6], "…", *names[-5:]]


# --- switches ---


def _cases(edges: list[_EdgeRef], known: _StepsById) -> Iterator[Problem]:
    outgoing: dict[str, list[_EdgeRef]] = {}
    for edge in edges:
        outgoing.setdefault(edge.source, []).append(edge)
        if edge.case is not None and known[edge.source].kind != "switch":
            kind = known[edge.source].kind
            yield Problem(
                format_path((*edge.path, "case")),
                f"only edges from a switch have a case; {edge.source} is a {kind}",
            )
    for step in known.values():
        if step.kind == "switch":
            yield from _switch(step, outgoing.get(step.id, []), known)


def _switch(step: _StepRef, edges: list[_EdgeRef], known: _StepsById) -> Iterator[Problem]:
    path = (*step.path, "with")
    key = step.with_.get("key_from")
    if not isinstance(key, str) or not key.strip().startswith("$"):
        yield Problem(
            format_path((*path, "key_from")),
            f"expected a reference such as $step.ID.KEY, got {describe_value(key)}",
        )
    cases_by_target: dict[str, set[str | None]] = {}
    for edge in edges:
        cases_by_target.setdefault(edge.target, set()).add(edge.case)
    cases = step.with_.get("cases")
    if not isinstance(cases, dict):
        if cases is not None or not any(edge.case is not None for edge in edges):
            yield Problem(
                format_path((*path, "cases")),
                f"expected an object of steps by case, got {describe_value(cases)}",
            )
        cases = {}
    if len(cases) > MAX_CASES:
        yield Problem(format_path((*path, "cases")), f"expected at most {MAX_CASES} cases, got {len(cases)}")
        return
    for case, target in cases.items():
        yield from _target((*path, "cases", case), case, target, cases_by_target, known)
    default = step.with_.get("default")
    cases_used: set[object] = {None, *cases, *(edge.case for edge in edges)}
    if isinstance(default, (str, type(None))) and default in cases_used:
        return
    if not isinstance(default, str) or default not in known:
        yield Problem(
            format_path((*path, "default")), f"expected a case or a step, got {describe_value(default)}"
        )
    elif default not in cases_by_target:
        yield Problem(format_path((*path, "default")), f"there is no edge from {step.id} to {default}")


def _target(
    path: JsonPath,
    case: str,
    target: object,
    cases_by_target: dict[str, set[str | None]],
    known: _StepsById,
) -> Iterator[Problem]:
    if not isinstance(target, str):
        yield Problem(format_path(path), f"expected the id of a step, got {describe_value(target)}")
    elif target not in known:
        yield Problem(format_path(path), _no_step(target, known))
    elif cases_by_target.get(target, set()).isdisjoint((case, None)):
        yield Problem(
            format_path(path),
            f'there is no edge from this switch to {target} with "case": {describe_value(case)}',
        )


# --- for_each ---


def _for_each(step: _StepRef) -> Iterator[Problem]:
    from hutch.session.schema.problems import check_against_schema

    path: JsonPath = (*step.path, "with")
    parameters = dict(step.with_)
    items = parameters.get("items")
    if isinstance(items, str):
        if not items.strip().startswith("$"):
            expected = "a list, or a reference to one such as $input.items"
            yield Problem(format_path((*path, "items")), f"expected {expected}, got {describe_value(items)}")
        parameters["items"] = []
    try:
        decoded = msgspec.convert(parameters, schema.ForEachParams)
    except msgspec.ValidationError as error:
        yield from check_against_schema(_for_each_schema(), parameters, path) or [
            Problem(format_path(path), str(error))
        ]
        return
    if decoded.step.type in NOT_FOR_ITEMS:
        message = f"a {decoded.step.type} cannot run for each item; use flow.run for several steps"
        yield Problem(format_path((*path, "step", "type")), message)


@cache
def _for_each_schema() -> dict[str, Any]:
    return msgspec.json.schema(schema.ForEachParams)


def _item_steps(steps: list[_StepRef]) -> Iterator[_StepRef]:
    """Yields the inner step of every `for_each` step, with the id of the `for_each` step."""
    for step in steps:
        inner = step.with_.get("step") if step.kind == schema.FOR_EACH else None
        if isinstance(inner, dict):
            for ref in _step_refs([{**inner, "id": step.id}]):
                yield ref._replace(path=(*step.path, "with", "step"), is_item=True)


# --- references ---


def _references(
    steps: list[_StepRef],
    known: _StepsById,
    ordered: list[str],
    pairs: list[tuple[str, str]],
    inputs_schema: object,
    budget: ValidationBudget,
) -> Iterator[Problem]:
    names = declared_names(inputs_schema)
    reach: dict[str, int] | None = None
    bits = {name: 1 << number for number, name in enumerate(ordered)}
    for step in steps:
        budget.check()
        for path, found in _references_of(step):
            try:
                if isinstance(found, BadReference):
                    raise found
                reference = parse_reference(found, known, in_item=step.is_item)
            except BadReference as error:
                yield Problem(format_path(path), str(error))
                continue
            if reference is None:
                continue
            if reference.root == "input":
                yield from _unknown_input(path, reference.path, names, known.suggester)
            elif reference.step is None:
                continue  # a reference to the item, whose keys are not known
            elif reference.step not in known:
                yield Problem(format_path(path), f"{reference.text}: {_no_step(reference.step, known)}")
            elif len(ordered) == len(known):  # otherwise there is a cycle, which is reported elsewhere
                if reach is None:
                    reach = graph.ancestors(ordered, pairs)
                if not reach[step.id] & bits[reference.step]:
                    yield Problem(
                        format_path(path), f"{reference.text}: {_not_before(reference.step, step.id)}"
                    )


def _references_of(step: _StepRef) -> Iterator[tuple[JsonPath, str | BadReference]]:
    opaque = OPAQUE_PARAMETERS.get(step.kind, ())
    for key, value in step.with_.items():
        if key not in opaque or (step.kind != "switch" and not isinstance(value, dict)):
            yield from find_references(value, (*step.path, "with", key), in_item=step.is_item)
    if not step.interpolate:
        return
    for path, text in interpolated_texts(step.kind, step.with_, (*step.path, "with")):
        try:
            parts = parse_template(text, in_item=step.is_item)
        except BadReference as error:
            yield path, error
            continue
        for part in parts:
            if isinstance(part, TemplateReference):
                yield path, part.text


def _unknown_input(
    reference_path: JsonPath,
    path: tuple[str | int, ...],
    names: frozenset[str] | None,
    suggester: NameSuggester,
) -> Iterator[Problem]:
    if names is None or not path or str(path[0]) in names:
        return
    close = suggester.closest(str(path[0]), names)
    hint = f"; did you mean {close}?" if close else ""
    yield Problem(format_path(reference_path), f"the flow has no input {describe_value(str(path[0]))}{hint}")


def _not_before(name: str, user: str) -> str:
    if name == user:
        return "a step cannot use its own output"
    return f"{name} cannot come before {user}; expected a step that leads to it"


def _nested_flow(step: _StepRef, budget: ValidationBudget, depth: int) -> Iterator[Problem]:
    """Validates a flow that is nested in `flow.run`."""
    document: dict[str, Any] = step.with_["flow"]
    path = format_path((*step.path, "with", "flow"))
    for problem in _nested_problems(document, budget, depth):
        dot = "" if problem.path.startswith("[") or not problem.path else "."
        yield Problem(f"{path}{dot}{problem.path}", problem.message)


def _nested_problems(document: dict[str, Any], budget: ValidationBudget, depth: int) -> Iterator[Problem]:
    """Yields the problems of a nested flow. The limits of the outer document apply to it as well."""
    if depth > schema.MAX_NESTED_FLOWS:
        yield Problem("", f"expected at most {schema.MAX_NESTED_FLOWS} levels of nested flows")
        return
    version = document.get("version")
    if isinstance(version, str) and version != VERSION:
        yield _wrong_version(version)
        return
    try:
        schema.decode_flow(document)
    except msgspec.ValidationError as error:
        yield from shape_problems(document, error)
    yield from _graph_problems(document, budget, depth)
