"""Which steps may begin: edges fire or cannot fire any more, and a step waits for all that still can."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hutch.doors.rep.switches import chosen

if TYPE_CHECKING:
    from hutch.doors.rep.flow import Edge, Flow
    from hutch.doors.rep.steps import StepResult


class Progress:
    """How far a flow has come. Every edge is decided once; a step begins if any of those to it fired."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._undecided = {id: len(flow.incoming(id)) for id in flow.nodes}
        self._fired: set[str] = set()

    def has_handler(self, id: str) -> bool:
        """Whether something follows if the step fails."""
        return any(edge.on == "failure" for edge in self._flow.outgoing(id))

    def is_last(self, id: str) -> bool:
        """Whether nothing comes after a step but the end."""
        return all(self._flow.nodes[edge.target].kind == "finish" for edge in self._flow.outgoing(id))

    def ended(self, id: str, result: StepResult) -> tuple[list[str], list[str]]:
        """The steps that may begin now, and those that never will."""
        ready: list[str] = []
        skipped: list[str] = []
        decided = deque(self._decided(id, result))
        while decided:
            edge, fires = decided.popleft()
            target = edge.target
            self._undecided[target] -= 1
            if fires:
                self._fired.add(target)
            if self._undecided[target]:
                continue
            if target in self._fired:
                ready.append(target)
            else:
                skipped.append(target)
                decided.extend((each, False) for each in self._flow.outgoing(target))
        return ready, skipped

    def _decided(self, id: str, result: StepResult) -> Iterator[tuple[Edge, bool]]:
        node, edges = self._flow.nodes[id], self._flow.outgoing(id)
        if node.kind == "switch" and result.state == "succeeded":
            taken = chosen(self._flow, node, result.output["value"])
            return ((edge, edge in taken) for edge in edges)
        on = "failure" if result.state == "failed" else "success"
        return ((edge, edge.on == on) for edge in edges)
