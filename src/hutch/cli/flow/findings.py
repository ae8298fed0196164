"""Problems of a valid flow that depend on the built-in runtime, and probable mistakes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from hutch.errors import HutchError
from hutch.problems import NameSuggester, Problem, describe_value, format_path
from hutch.protocols.rep.ir.flow import Flow, FlowNode
from hutch.protocols.rep.ir.parse import parse_flow, readable_nodes
from hutch.protocols.rep.ir.problems import InvalidFlow
from hutch.protocols.rep.ir.references import (
    SUBFLOW_KINDS,
    interpolated_texts,
    literal_reference,
    misplaced_item,
)
from hutch.protocols.rep.ir.source.files import YAML_SUFFIXES
from hutch.protocols.rep.ir.source.read import load_flow
from hutch.protocols.rep.kinds.registry import Registry
from hutch.text import cut

_FLOW_SUFFIXES = (".json", *YAML_SUFFIXES)
_NODE_KEYS = ("id", "type", "with", "timeout_ms", "retry")
_EDGE_KEYS = ("from", "to", "on", "case")


class Finding(NamedTuple):
    problem: Problem
    is_error: bool = True


def check_kinds(nodes: Iterable[FlowNode], folder: Path) -> Iterator[Finding]:
    """Yields reasons why the built-in runtime would reject a flow with these steps, or why one of the steps
    would fail.

    File names in steps are relative to `folder`.
    """
    # Allow shell.run here, because each run decides whether it is allowed.
    registry = Registry.load({"TRACE_MIND_ALLOW_SHELL": "1"})
    yield from _check_nodes(nodes, folder, registry, NameSuggester())


def _check_nodes(
    nodes: Iterable[FlowNode], folder: Path, registry: Registry, suggester: NameSuggester
) -> Iterator[Finding]:
    for node in nodes:
        if node.kind not in registry:
            close = suggester.closest(node.kind, registry.names())
            hint = f"; did you mean {close}?" if close else ""
            message = f"the built-in runtime has no kind {describe_value(node.kind)}{hint}"
            # Report an error only if the kind is probably misspelled, because other kinds may belong to
            # another runtime.
            yield Finding(Problem(f"{node.path}.type", message), is_error=close is not None)
            continue
        try:
            problems = list(registry.get(node.kind).problems(node.with_))
        except HutchError as error:
            yield Finding(Problem(f"{node.path}.type", str(error)), is_error=False)
            continue
        for name, message in problems:
            yield Finding(Problem(f"{node.path}.with.{name}", message))
        if node.kind in SUBFLOW_KINDS:
            yield from _check_subflow(node, folder, registry, suggester)
        elif node.kind == "toolscript.run":
            yield from _check_file(f"{node.path}.with.file", node.with_.get("file"), folder)


def _check_subflow(
    node: FlowNode, folder: Path, registry: Registry, suggester: NameSuggester
) -> Iterator[Finding]:
    value, path = node.with_.get("flow"), f"{node.path}.with.flow"
    if isinstance(value, dict):
        for problem, is_error in _check_nodes(_nested_nodes(value), folder, registry, suggester):
            yield Finding(Problem(f"{path}.{problem.path}", problem.message), is_error)
    elif isinstance(value, str) and Path(value).suffix.lower() in _FLOW_SUFFIXES:
        missing = list(_check_file(path, value, folder))
        yield from missing
        if not missing:
            try:
                load_flow(folder / value)
            except InvalidFlow as error:
                yield Finding(Problem(path, f"{value} is invalid: {error.problems[0]}"))
    # A value that is not a path is the name of a stored flow or a reference, and cannot be checked here.


def _nested_nodes(document: dict[str, Any]) -> Iterable[FlowNode]:
    try:
        return parse_flow(document).all_nodes()
    except InvalidFlow:
        return readable_nodes(document)  # the check of the outer flow reports these problems


def _check_file(path: str, name: object, folder: Path) -> Iterator[Finding]:
    if not isinstance(name, str) or name.startswith("$") or (folder / name).is_file():
        return
    parent = (folder / name).parent
    others = [other.name for other in parent.iterdir()] if parent.is_dir() else []
    close = NameSuggester().closest(Path(name).name, others)
    hint = f"; did you mean {Path(name).parent / close}?" if close else ""
    yield Finding(Problem(path, f"there is no file {cut(str(folder / name), 200)}{hint}"))


def literal_references(nodes: Iterable[FlowNode]) -> Iterator[Problem]:
    """Yields a problem for each text with a reference that the runtime will not replace."""
    for node in nodes:
        for place, text in interpolated_texts(node.kind, node.with_, (*node.json_path, "with")):
            if not node.is_item and (item := misplaced_item(text)) is not None:
                message = f"{item} is not replaced, except in a step with for_each"
                yield Problem(format_path(place), message)
            found = literal_reference(text, interpolate=node.interpolate)
            if found is None:
                continue
            name = found.removeprefix("$").strip("{}").removeprefix(".")
            message = (
                f"{found} is only a part of this text and is not replaced; to insert the value, write"
                f" ${{{name}}} in the short form, or in a step with `interpolate: true`"
            )
            yield Problem(format_path(place), message)


def misspelled_keys(flow: Flow) -> Iterator[Problem]:
    """Yields unknown keys of steps and edges that resemble a known key. Flow IR allows unknown keys."""
    suggester = NameSuggester()
    for name, known in (("nodes", _NODE_KEYS), ("edges", _EDGE_KEYS)):
        for number, item in enumerate(flow.document["graph"][name]):
            for key in item.keys() - {*known, "interpolate"}:
                if close := suggester.closest(key, known):
                    path = format_path(("graph", name, number, key))
                    yield Problem(path, f"unknown key, which is ignored; did you mean {close}?")
