"""Reads manifests: lists of flows with their files and requirements, as written by the public compiler."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from hutch.problems import Problem, ProblemList, describe_value, format_path
from hutch.protocols.rep.ir.flow import Flow
from hutch.protocols.rep.ir.graph import CONTROL_KINDS
from hutch.protocols.rep.ir.json_bounds import json_problem
from hutch.protocols.rep.ir.problems import InvalidFlow
from hutch.protocols.rep.ir.schema import Name, Text
from hutch.protocols.rep.ir.source.files import load_document
from hutch.protocols.rep.ir.source.read import load_flow
from hutch.text import cut, did_you_mean


class ManifestEntry(msgspec.Struct, frozen=True, kw_only=True):
    name: Name
    ir_path: Text
    """Path of the flow file, relative to the manifest."""
    source_file: str | None = None
    policyRef: str | None = None
    step_kinds: tuple[str, ...]
    inputs_schema_hash: str


class FlowManifest:
    """The flows of a manifest, by name."""

    def __init__(self, path: Path, entries: list[ManifestEntry]) -> None:
        self.path = path
        self.entries: Mapping[str, ManifestEntry] = {entry.name: entry for entry in entries}
        self._indexes = {entry.name: number for number, entry in enumerate(entries)}

    def ir_path(self, name: str) -> Path:
        return self.path.parent / self.entries[name].ir_path

    def load(self, name: str) -> Flow:
        """Loads a flow and checks that it matches its entry. Raises InvalidFlow."""
        if name not in self.entries:
            close = did_you_mean(name, self.entries)
            hint = (
                f"did you mean {close}?" if close else f"it has {cut(', '.join(self.entries), 500) or 'none'}"
            )
            raise InvalidFlow([Problem(str(self.path), f"has no flow {describe_value(name)}; {hint}")])
        flow = load_flow(self.ir_path(name))
        problems = ProblemList(InvalidFlow)
        problems.extend(self._differences(self.entries[name], flow))
        problems.raise_if_any()
        return flow

    def _differences(self, entry: ManifestEntry, flow: Flow) -> Iterator[Problem]:
        def path_of(field: str) -> str:
            return format_path((self._indexes[entry.name], field))

        remedy = "compile it again"
        if flow.name != entry.name:
            yield Problem(path_of("name"), f"{entry.ir_path} has the flow {flow.name}; {remedy}")
        if entry.policyRef is not None and entry.policyRef != flow.constants["policyRef"]:
            actual = describe_value(flow.constants["policyRef"])
            yield Problem(path_of("policyRef"), f"{entry.ir_path} has {actual}; {remedy}")
        # Ignore control kinds, because runtimes do not have to declare them.
        if set(entry.step_kinds) - CONTROL_KINDS != set(flow.step_kinds()):
            kinds = ", ".join(flow.step_kinds()) or "none"
            yield Problem(path_of("step_kinds"), f"{entry.ir_path} has {kinds}; {remedy}")
        if entry.inputs_schema_hash != schema_hash(flow.inputs_schema):
            yield Problem(
                path_of("inputs_schema_hash"), f"does not match the schema in {entry.ir_path}; {remedy}"
            )


def schema_hash(schema: Mapping[str, Any]) -> str:
    """Hashes the canonical JSON of a schema: sorted keys, no spaces, UTF-8."""
    text = json.dumps(schema, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return f"sha256:{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()}"


def load_manifest(path: Path) -> FlowManifest:
    """Reads a manifest without its flows. Raises InvalidFlow."""
    value = load_document(path)
    if not isinstance(value, list):
        raise InvalidFlow([Problem(str(path), f"expected a list of flows, got {describe_value(value)}")])
    problem = json_problem(value)
    if problem is not None:
        raise InvalidFlow([problem])
    try:
        entries = msgspec.convert(value, list[ManifestEntry])
    except msgspec.ValidationError as error:
        from hutch.session.schema.problems import check_against_schema

        faults = check_against_schema(msgspec.json.schema(list[ManifestEntry]), value)
        raise InvalidFlow(faults or [Problem("", str(error))]) from None
    problems = ProblemList(InvalidFlow)
    problems.extend(_duplicates(entries))
    problems.raise_if_any()
    return FlowManifest(path, entries)


def _duplicates(entries: list[ManifestEntry]) -> Iterator[Problem]:
    first: dict[str, int] = {}
    for number, entry in enumerate(entries):
        if first.setdefault(entry.name, number) != number:
            previous = first[entry.name]
            yield Problem(
                format_path((number, "name")),
                f"{describe_value(entry.name)} is already the name of [{previous}]",
            )
