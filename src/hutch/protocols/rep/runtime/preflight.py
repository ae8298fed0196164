"""Checks, before a run starts, that this runtime can run the flow with the given inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hutch.errors import HutchError
from hutch.problems import Problem, ProblemList
from hutch.protocols.rep.ir.inputs import check_inputs
from hutch.protocols.rep.ir.problems import format_problems, list_problems
from hutch.protocols.rep.jsonrpc import INVALID_IR, UNSUPPORTED_KIND, RpcError, rep_error
from hutch.protocols.rep.runtime.handshake import SHELL_KIND

if TYPE_CHECKING:
    from hutch.protocols.rep.ir.flow import Flow
    from hutch.protocols.rep.kinds.registry import Registry


class NotRunnable(HutchError):
    """This runtime cannot run the flow."""

    code = "invalid_flow"

    def __init__(self, code: int, message: str, *, step_id: str | None = None, details: Any = None) -> None:
        super().__init__(message)
        self.wire = rep_error(code, message, step_id=step_id, details=details)

    @property
    def as_rpc_error(self) -> RpcError:
        return RpcError(self.wire["code"], self.wire["message"], self.wire["data"])


def check_runnable(flow: Flow, inputs: Mapping[str, Any], registry: Registry, *, allow_shell: bool) -> None:
    """Checks the inputs and the parameters of all steps, and loads the step kinds. Raises NotRunnable."""
    problems = ProblemList(_not_runnable)
    problems.extend(check_inputs(flow, inputs))
    for node in flow.all_nodes():
        if node.kind not in registry or (node.kind == SHELL_KIND and not allow_shell):
            raise _unsupported(node.id, node.kind, registry, allow_shell)
        try:
            kind = registry.get(node.kind)
        except HutchError as error:
            details = {"kind": node.kind}
            raise NotRunnable(UNSUPPORTED_KIND, str(error), step_id=node.id, details=details) from None
        problems.extend(
            Problem(f"{node.path}.with.{name}", what, step=node.id)
            for name, what in kind.problems(node.with_)
        )
    problems.raise_if_any()


def _not_runnable(problems: list[Problem]) -> NotRunnable:
    details = {"problems": list_problems(problems)}
    return NotRunnable(INVALID_IR, format_problems(problems), details=details)


def _unsupported(step_id: str, kind: str, registry: Registry, allow_shell: bool) -> NotRunnable:
    supported = [name for name in registry.names() if name != SHELL_KIND or allow_shell]
    if kind == SHELL_KIND:
        message = (
            f"Step {step_id}: {SHELL_KIND} is not allowed; it needs TRACE_MIND_ALLOW_SHELL=1 in the runtime's"
            " environment and the option allow_shell of the run."
        )
    else:
        message = f"Step {step_id}: there is no kind {kind[:100]!r}; expected one of {', '.join(supported)}."
    details = {"kind": kind[:100], "supported": supported}
    return NotRunnable(UNSUPPORTED_KIND, message, step_id=step_id, details=details)
