"""Maps positions in a compiled flow to positions in the short form."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

_GRAPH_PATH = re.compile(r"graph\.(?P<list>nodes|edges)\[(?P<number>\d+)\](?P<rest>.*)", re.S)
_FLOW_RENAMES = {"inputs_schema": "inputs", "flow.name": "name", "flow.timeout_ms": "timeout", "flow": ""}
_STEP_RENAMES = {"type": "run", "timeout_ms": "timeout", "retry.backoff_ms": "retry.backoff"}
FOR_EACH_RENAMES = {
    "with.items": "for_each",
    "with.max_parallel": "max_parallel",
    "with.step.with": "with",
    **{f"with.step.{old}": new for old, new in _STEP_RENAMES.items()},
    "with.step": "",
    "with": "",
    "type": "for_each",
}


class SourceMap:
    """Maps paths of the compiled flow to paths of the short form."""

    def __init__(self) -> None:
        self.nodes: list[StepOrigin] = []
        self.edges: list[str] = []
        """Path of the step that each edge leads to."""

    def locate(self, path: str) -> str:
        match = _GRAPH_PATH.fullmatch(path)
        if match is None:
            return _renamed(path, _FLOW_RENAMES)
        number, rest = int(match["number"]), match["rest"]
        if match["list"] == "edges":
            return self.edges[number]
        return self.nodes[number].locate(rest.removeprefix("."))


class StepOrigin(NamedTuple):
    """Source of a compiled step."""

    path: str
    renames: Mapping[str, str] | None = _STEP_RENAMES
    """Maps fields of the compiled step to fields of the source. None if the source is a single value without
    fields.
    """
    nested: SourceMap | None = None
    """Source of the flow in `with.flow`."""

    def locate(self, rest: str) -> str:
        if self.renames is None:
            return self.path
        renamed = _renamed(rest, self.renames)
        if self.nested is not None and renamed.startswith("with.flow."):
            return f"{self.path}.with.flow.{self.nested.locate(renamed.removeprefix('with.flow.'))}"
        return ".".join(filter(None, (self.path, renamed)))


def _renamed(path: str, renames: Mapping[str, str]) -> str:
    for old, new in renames.items():
        if path == old or path.startswith((f"{old}.", f"{old}[")):
            return (new + path[len(old) :]).removeprefix(".")
    return path
