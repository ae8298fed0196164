"""How far each step of a run is, by the events that tell of it."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from hutch.doors.rep.flow import Flow

State = Literal["waiting", "running", "succeeded", "failed", "skipped"]
OVER: tuple[State, ...] = ("succeeded", "failed", "skipped")


class Step:
    """A row of the board."""

    def __init__(self, step_id: str, kind: str) -> None:
        self.id = step_id
        self.kind = kind
        self.state: State = "waiting"
        self.attempt = 0
        self.is_restored = False
        """Whether it was over before this run was gone on with."""
        self._began = 0.0
        self._took = 0.0

    def begin(self, attempt: int) -> None:
        self.state = "running"
        self.attempt = attempt
        self._began = monotonic()

    def end(self, state: State, took: float | None) -> None:
        self.state = state
        self._took = took if took is not None else monotonic() - self._began if self._began else 0.0

    @property
    def seconds(self) -> float:
        """How long it has taken, its last attempt alone."""
        return monotonic() - self._began if self.state == "running" else self._took


class Board:
    """The steps of a flow, those of flows inside of it after the step that they are of."""

    def __init__(self, flow: Flow) -> None:
        self.name = flow.name
        self.steps = {each: Step(each, flow.nodes[each].kind) for each in flow.order()}
        self._began = monotonic()

    @property
    def seconds(self) -> float:
        return monotonic() - self._began

    @property
    def own(self) -> list[Step]:
        """Those of the flow itself."""
        return [each for each in self.steps.values() if "/" not in each.id]

    def count(self, *states: State) -> int:
        return sum(each.state in states for each in self.own)

    def hear(self, event: dict[str, Any]) -> Step | None:
        """The step that an event is of, if it is of one and changed it. What is unknown is left alone."""
        kind, step_id = event.get("type"), event.get("step_id")
        if kind not in ("step", "skipped") or not isinstance(step_id, str):
            return None
        step = self.steps.get(step_id) or self._inner(step_id, event)
        if step is None:
            return None
        if kind == "skipped":
            step.end("skipped", 0.0)
            return step
        attempt = event.get("attempt")
        step.is_restored = event.get("restored") is True
        match event.get("state"):
            case "started":
                step.begin(attempt if isinstance(attempt, int) else 0)
            case "succeeded":
                step.end("succeeded", _seconds(event))
            case "failed":
                step.end("failed", _seconds(event))
            case _:
                return None
        return step

    def _inner(self, step_id: str, event: dict[str, Any]) -> Step | None:
        outer = step_id.rpartition("/")[0]
        if outer not in self.steps:
            return None
        kind = event.get("kind")
        step = Step(step_id, kind if isinstance(kind, str) else "")
        rows = list(self.steps.items())
        place = 1 + max(
            number for number, (each, _) in enumerate(rows) if each == outer or each.startswith(f"{outer}/")
        )
        self.steps = dict([*rows[:place], (step_id, step), *rows[place:]])
        return step


def _seconds(event: dict[str, Any]) -> float | None:
    took = event.get("duration_ms")
    return took / 1000 if isinstance(took, int | float) and not isinstance(took, bool) else None
