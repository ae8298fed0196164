"""`hutch runtime check`: tests a program against the requirements for REP runtimes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from hutch.cli.support.console import print_json, print_note, print_report
from hutch.conformance.progress import Progress
from hutch.conformance.rep.suite import check_runtime
from hutch.conformance.rep.target import RuntimeTarget, SampleFlows
from hutch.errors import InvalidExecution
from hutch.protocols.rep.ir.problems import InvalidFlow
from hutch.protocols.rep.ir.source.read import load_flow
from hutch.protocols.rep.orchestrator.options import EXIT_INVALID_FLOW
from hutch.protocols.rep.orchestrator.runtime_choice import builtin_runtime, from_arguments


def check(
    command: tuple[str, ...],
    *,
    flow: Path | None,
    failing: Path | None,
    lasting: Path | None,
    inputs: str | None,
    timeout: float,
    as_json: bool,
) -> int:
    """Tests a runtime. Returns 0 if it conforms, 1 if it does not, and 2 if a flow is invalid and nothing was
    tested.
    """
    from hutch.cli.flow.run import read_inputs

    if not 0 < timeout < float("inf"):
        raise InvalidExecution("--timeout", "expected a number of seconds above 0")
    try:
        samples = SampleFlows(
            _load_document(flow), _load_document(failing), _load_document(lasting), read_inputs(inputs)
        )
    except InvalidFlow as error:
        for line in str(error).splitlines():
            print_note(line)
        return EXIT_INVALID_FLOW
    choice = from_arguments(list(command)) if command else builtin_runtime()
    report = asyncio.run(check_runtime(RuntimeTarget(choice, samples, seconds=timeout), Progress()))
    if as_json:
        print_json(report.json())
    else:
        print_report(report.lines())
    return 0 if report.passed else 1


def _load_document(path: Path | None) -> dict[str, Any] | None:
    """Loads a flow document. Raises InvalidFlow."""
    return None if path is None else load_flow(path).document
