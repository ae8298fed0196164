"""Manifest entries in the format that TraceMind's compiler writes."""

from __future__ import annotations

from typing import Any

from hutch.protocols.rep.ir.flow import Flow
from hutch.protocols.rep.ir.source.manifest import schema_hash


def manifest_entry(flow: Flow, ir_path: str) -> dict[str, Any]:
    return {
        "name": flow.name,
        "source_file": flow.metadata["source_file"],
        "policyRef": flow.constants["policyRef"],
        "step_kinds": sorted({node.kind for node in flow.nodes.values()}),
        "inputs_schema_hash": schema_hash(flow.inputs_schema),
        "ir_path": ir_path,
    }
