"""The rules of a flow beyond its shape: ids, edges, cycles, switches and references.

They look at what is of the right shape and pass over the rest, so that everything is told at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from hutch.doors.rep import graph
from hutch.doors.rep.problems import MOST_PROBLEMS, Guesses, InvalidFlow, Place, Problem, at, kind_of
from hutch.doors.rep.references import OPAQUE, BadReference, mentioned, parse

_NODES: Place = ("graph", "nodes")
_EDGES: Place = ("graph", "edges")


class _Step(NamedTuple):
    place: Place
    id: str
    kind: str
    with_: dict[str, Any]


class _Link(NamedTuple):
    place: Place
    source: str
    target: str
    case: str | None


class _Known(dict[str, _Step]):
    """Steps by id, and guesses at what is none's."""

    def __init__(self, steps: Iterable[tuple[str, _Step]]) -> None:
        super().__init__(steps)
        self.guesses = Guesses()


def beyond_shape(document: dict[str, Any]) -> list[Problem]:
    """All that is wrong in these respects, or the first of very much."""
    return list(islice(_problems(document), MOST_PROBLEMS))


def _problems(document: dict[str, Any]) -> Iterator[Problem]:
    from hutch.doors.rep.inputs import schema_problems

    inner = document.get("graph")
    parts = inner if isinstance(inner, dict) else {}
    nodes, edges = (parts[key] if isinstance(parts.get(key), list) else [] for key in ("nodes", "edges"))
    steps = list(_steps(nodes))
    links = list(_links(edges))
    yield from schema_problems(document.get("inputs_schema"))
    yield from _twice(steps)
    known = _Known((step.id, step) for step in reversed(steps))
    if len(steps) == len(nodes):  # else a name may be that of a step we could not read
        yield from _dangling(links, known)
    sound = [link for link in links if link.source in known and link.target in known]
    pairs = [(link.source, link.target) for link in sound]
    for number, cycle in graph.cycles(list(known), pairs):
        way = " → ".join([*_shortened(cycle), cycle[0]])
        yield Problem(at(sound[number].place), f"closes a cycle: {way}")
    ordered = graph.order(known, pairs)
    yield from _cases(sound, known)
    yield from _references(steps, known, ordered, pairs, document.get("inputs_schema"))


def _steps(nodes: list[Any]) -> Iterator[_Step]:
    for number, node in enumerate(nodes):
        if isinstance(node, dict) and isinstance(node.get("id"), str):
            kind, given = node.get("type"), node.get("with")
            yield _Step(
                (*_NODES, number),
                node["id"],
                kind if isinstance(kind, str) else "",
                given if isinstance(given, dict) else {},
            )


def _links(edges: list[Any]) -> Iterator[_Link]:
    for number, edge in enumerate(edges):
        if isinstance(edge, dict) and isinstance(edge.get("from"), str) and isinstance(edge.get("to"), str):
            case = edge.get("case")
            yield _Link((*_EDGES, number), edge["from"], edge["to"], case if isinstance(case, str) else None)


def _twice(steps: list[_Step]) -> Iterator[Problem]:
    first: dict[str, _Step] = {}
    for step in steps:
        before = first.setdefault(step.id, step)
        if before is not step:
            message = f"{kind_of(step.id)} is the id of {at(before.place)} already"
            yield Problem(at((*step.place, "id")), message)


def _dangling(links: list[_Link], known: _Known) -> Iterator[Problem]:
    for link in links:
        for word, name in (("from", link.source), ("to", link.target)):
            if name not in known:
                yield Problem(at((*link.place, word)), _no_step(name, known))


def _no_step(name: str, known: _Known) -> str:
    close = known.guesses.near(name, known)
    return f"there is no step {kind_of(name)}" + (f"; did you mean {close}?" if close else "")


def _shortened(names: list[str]) -> list[str]:
    return names if len(names) <= 12 else [*names[:6], "…", *names[-5:]]


# --- switches ---


def _cases(links: list[_Link], known: _Known) -> Iterator[Problem]:
    leaving: dict[str, list[_Link]] = {}
    for link in links:
        leaving.setdefault(link.source, []).append(link)
        if link.case is not None and known[link.source].kind != "switch":
            kind = known[link.source].kind
            yield Problem(
                at((*link.place, "case")), f"only edges from a switch have a case; {link.source} is a {kind}"
            )
    for step in known.values():
        if step.kind == "switch":
            yield from _switch(step, leaving.get(step.id, []), known)


def _switch(step: _Step, links: list[_Link], known: _Known) -> Iterator[Problem]:
    place = (*step.place, "with")
    key = step.with_.get("key_from")
    if not isinstance(key, str) or not key.strip().startswith("$"):
        yield Problem(
            at((*place, "key_from")), f"expected a reference such as $step.ID.KEY, got {kind_of(key)}"
        )
    cases = step.with_.get("cases")
    if not isinstance(cases, dict):
        if cases is not None or not any(link.case is not None for link in links):
            yield Problem(at((*place, "cases")), f"expected an object of steps by case, got {kind_of(cases)}")
        cases = {}
    for case, target in cases.items():
        yield from _target((*place, "cases", case), case, target, links, known)
    default = step.with_.get("default")
    taken: set[object] = {None, *cases, *(link.case for link in links)}
    if isinstance(default, (str, type(None))) and default in taken:
        return
    if not isinstance(default, str) or default not in known:
        yield Problem(at((*place, "default")), f"expected a case or a step, got {kind_of(default)}")
    elif not any(link.target == default for link in links):
        yield Problem(at((*place, "default")), f"there is no edge from {step.id} to {default}")


def _target(place: Place, case: str, target: object, links: list[_Link], known: _Known) -> Iterator[Problem]:
    if not isinstance(target, str):
        yield Problem(at(place), f"expected the id of a step, got {kind_of(target)}")
    elif target not in known:
        yield Problem(at(place), _no_step(target, known))
    elif not any(link.target == target and link.case in (case, None) for link in links):
        yield Problem(
            at(place), f'there is no edge from this switch to {target} with "case": {kind_of(case)}'
        )


# --- references ---


def _references(
    steps: list[_Step],
    known: _Known,
    ordered: list[str],
    pairs: list[tuple[str, str]],
    inputs_schema: object,
) -> Iterator[Problem]:
    from hutch.doors.rep.inputs import declared

    names = declared(inputs_schema)
    reach: dict[str, int] | None = None
    bits = {name: 1 << number for number, name in enumerate(ordered)}
    for step in steps:
        for place, text in _mentioned(step):
            try:
                reference = parse(text, known)
            except BadReference as error:
                yield Problem(at(place), str(error))
                continue
            if reference is None:
                continue
            if reference.step is None:
                yield from _input(place, reference.path, names, known.guesses)
            elif reference.step not in known:
                yield Problem(at(place), f"{reference.text}: {_no_step(reference.step, known)}")
            elif len(ordered) == len(known):  # without cycles, which are told already
                if reach is None:
                    reach = graph.before(ordered, pairs)
                if not reach[step.id] & bits[reference.step]:
                    yield Problem(at(place), f"{reference.text}: {_not_before(reference.step, step.id)}")
        yield from _inner(step)


def _mentioned(step: _Step) -> Iterator[tuple[Place, str]]:
    opaque = OPAQUE.get(step.kind, ())
    for key, value in step.with_.items():
        if key not in opaque or (step.kind != "switch" and not isinstance(value, dict)):
            yield from mentioned(value, (*step.place, "with", key))


def _input(
    place: Place, path: tuple[str | int, ...], names: frozenset[str] | None, guesses: Guesses
) -> Iterator[Problem]:
    if names is None or not path or str(path[0]) in names:
        return
    close = guesses.near(str(path[0]), names)
    hint = f"; did you mean {close}?" if close else ""
    yield Problem(at(place), f"inputs_schema has no input {kind_of(str(path[0]))}{hint}")


def _not_before(name: str, own: str) -> str:
    if name == own:
        return "a step cannot use its own output"
    return f"{name} cannot come before {own}; expected a step that leads to it"


def _inner(step: _Step) -> Iterator[Problem]:
    """A flow within `flow.run` is checked like any other."""
    document = step.with_.get("flow")
    if step.kind != "flow.run" or not isinstance(document, dict):
        return
    from hutch.doors.rep.flow import read

    place = at((*step.place, "with", "flow"))
    try:
        read(document)
    except InvalidFlow as error:
        for problem in error.problems:
            dot = "" if problem.path.startswith("[") or not problem.path else "."
            yield Problem(f"{place}{dot}{problem.path}", problem.message)
