"""Whether a flow can be run here, with these inputs: said before anything of it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hutch.doors.rep import inputs as inputs_module
from hutch.doors.rep.capabilities import SHELL
from hutch.doors.rep.codes import INVALID_IR, UNSUPPORTED_KIND, RpcError, failure
from hutch.doors.rep.problems import Problem, present
from hutch.errors import HutchError

if TYPE_CHECKING:
    from hutch.doors.rep.flow import Flow
    from hutch.doors.rep.kinds.registry import Registry


class NotRunnable(HutchError):
    """The flow cannot be run here."""

    code = "invalid_flow"

    def __init__(self, code: int, message: str, *, step_id: str | None = None, details: Any = None) -> None:
        super().__init__(message)
        self.wire = failure(code, message, step_id=step_id, details=details)

    @property
    def as_answer(self) -> RpcError:
        return RpcError(self.wire["code"], self.wire["message"], self.wire["data"])


def prepare(flow: Flow, inputs: Mapping[str, Any], registry: Registry, *, allow_shell: bool) -> None:
    """Raises NotRunnable. All kinds of the flow are loaded afterwards."""
    problems = inputs_module.check(flow, inputs)
    for node in flow.nodes.values():
        if node.kind not in registry or (node.kind == SHELL and not allow_shell):
            raise _unsupported(node.id, node.kind, registry, allow_shell)
        try:
            kind = registry.get(node.kind)
        except HutchError as error:
            details = {"kind": node.kind}
            raise NotRunnable(UNSUPPORTED_KIND, str(error), step_id=node.id, details=details) from None
        problems += [Problem(f"{node.path}.with.{name}", what) for name, what in kind.problems(node.with_)]
    if problems:
        listed = [{"path": each.path, "message": each.message} for each in problems]
        raise NotRunnable(INVALID_IR, present(problems), details={"problems": listed})


def _unsupported(step_id: str, kind: str, registry: Registry, allow_shell: bool) -> NotRunnable:
    known = [name for name in registry.names() if name != SHELL or allow_shell]
    if kind == SHELL:
        message = (
            f"Step {step_id}: {SHELL} is not allowed; it wants TRACE_MIND_ALLOW_SHELL=1 in the runtime's"
            " environment and the option allow_shell of the run."
        )
    else:
        message = f"Step {step_id}: there is no kind {kind[:100]!r} here; there is {', '.join(known)}."
    details = {"kind": kind, "supported": known}
    return NotRunnable(UNSUPPORTED_KIND, message, step_id=step_id, details=details)
