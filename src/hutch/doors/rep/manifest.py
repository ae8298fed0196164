"""A manifest: which flows there are, where, and what each needs, as the public compiler writes it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec

from hutch.doors.rep import files
from hutch.doors.rep import flow as flows
from hutch.doors.rep.flow import Flow
from hutch.doors.rep.graph import CONTROL
from hutch.doors.rep.problems import InvalidFlow, Problem, at, kind_of
from hutch.doors.rep.shape import Name, Text


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A flow, as the manifest has it."""

    name: Name
    ir_path: Text
    """Relative to the manifest."""
    source_file: str | None = None
    policyRef: str | None = None
    step_kinds: tuple[str, ...]
    inputs_schema_hash: str


class Manifest:
    """The flows of a manifest, by name."""

    def __init__(self, path: Path, entries: list[Entry]) -> None:
        self.path = path
        self.entries: Mapping[str, Entry] = {entry.name: entry for entry in entries}
        self._places = {entry.name: number for number, entry in enumerate(entries)}

    def ir_path(self, name: str) -> Path:
        return self.path.parent / self.entries[name].ir_path

    def load(self, name: str) -> Flow:
        """A flow, which must be what the manifest says. Raises InvalidFlow."""
        if name not in self.entries:
            close = get_close_matches(name, self.entries, 1)
            hint = f"did you mean {close[0]}?" if close else f"it has {', '.join(self.entries) or 'none'}"
            raise InvalidFlow([Problem(str(self.path), f"has no flow {kind_of(name)}; {hint}")])
        flow = flows.load(self.ir_path(name))
        problems = list(self._differences(self.entries[name], flow))
        if problems:
            raise InvalidFlow(problems)
        return flow

    def _differences(self, entry: Entry, flow: Flow) -> Iterator[Problem]:
        def place(field: str) -> str:
            return at((self._places[entry.name], field))

        again = "compile it again"
        if flow.name != entry.name:
            yield Problem(place("name"), f"{entry.ir_path} has the flow {flow.name}; {again}")
        if entry.policyRef is not None and entry.policyRef != flow.constants["policyRef"]:
            told = kind_of(flow.constants["policyRef"])
            yield Problem(place("policyRef"), f"{entry.ir_path} has {told}; {again}")
        # Control kinds may be among them or not: runtimes need not declare them (decision 7).
        if set(entry.step_kinds) - CONTROL != set(flow.step_kinds()):
            kinds = ", ".join(flow.step_kinds()) or "none"
            yield Problem(place("step_kinds"), f"{entry.ir_path} has {kinds}; {again}")
        if entry.inputs_schema_hash != schema_hash(flow.inputs_schema):
            yield Problem(
                place("inputs_schema_hash"), f"is not that of the schema in {entry.ir_path}; {again}"
            )


def schema_hash(schema: Mapping[str, Any]) -> str:
    """Of the canonical JSON of a schema: keys sorted, no spaces, UTF-8."""
    text = json.dumps(schema, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return f"sha256:{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()}"


def load(path: Path) -> Manifest:
    """A manifest from its file. Raises InvalidFlow with all that is wrong with it; the flows are not read."""
    value = files.load(path)
    if not isinstance(value, list):
        raise InvalidFlow([Problem(str(path), f"expected a list of flows, got {kind_of(value)}")])
    problem = files.fault(value)
    if problem is not None:
        raise InvalidFlow([problem])
    try:
        entries = msgspec.convert(value, list[Entry])
    except msgspec.ValidationError as error:
        from hutch.doors.rep.schema import check

        problems = check(msgspec.json.schema(list[Entry]), value)
        raise InvalidFlow(problems or [Problem("", str(error))]) from None
    twice = list(_twice(entries))
    if twice:
        raise InvalidFlow(twice)
    return Manifest(path, entries)


def _twice(entries: list[Entry]) -> Iterator[Problem]:
    first: dict[str, int] = {}
    for number, entry in enumerate(entries):
        if first.setdefault(entry.name, number) != number:
            before = first[entry.name]
            yield Problem(at((number, "name")), f"{kind_of(entry.name)} is the name of [{before}] already")


def entry_for(flow: Flow, ir_path: str) -> dict[str, Any]:
    """What a manifest says of a flow."""
    return {
        "name": flow.name,
        "source_file": flow.metadata["source_file"],
        "policyRef": flow.constants["policyRef"],
        "step_kinds": sorted({node.kind for node in flow.nodes.values()}),
        "inputs_schema_hash": schema_hash(flow.inputs_schema),
        "ir_path": ir_path,
    }
