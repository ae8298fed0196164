"""`hutch runtime check`: whether a program is a REP runtime, found out by asking it."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from hutch.cli.output import print_json
from hutch.doors.rep import flow as flows
from hutch.doors.rep.checks.examine import examine
from hutch.doors.rep.checks.subject import Samples, Subject
from hutch.doors.rep.choice import by_words, own
from hutch.doors.rep.exits import INVALID_FLOW
from hutch.doors.rep.problems import InvalidFlow
from hutch.errors import InvalidExecution

_CLEAR = "\r\x1b[K"


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
    """Exits with 0 if the runtime does all that it has to, else with 1; with 2 if it was not asked."""
    from hutch.cli.flow_run import read_inputs

    if not 0 < timeout < float("inf"):
        raise InvalidExecution("--timeout", "expected a number of seconds above 0")
    try:
        samples = Samples(_document(flow), _document(failing), _document(lasting), read_inputs(inputs))
    except InvalidFlow as error:
        print("\n".join(f"hutch: {line}" for line in str(error).splitlines()), file=sys.stderr)
        return INVALID_FLOW
    choice = by_words(list(command)) if command else own()
    report = asyncio.run(examine(Subject(choice, samples, seconds=timeout), now=_now))
    _now("")
    if as_json:
        print_json(report.json())
    else:
        print("\n".join(report.lines()))
    return 0 if report.passed else 1


def _document(path: Path | None) -> dict[str, Any] | None:
    """Raises InvalidFlow."""
    return None if path is None else flows.load(path).document


def _now(what: str) -> None:
    """What is being waited for, on a terminal."""
    if sys.stderr.isatty():
        print(f"{_CLEAR}{what[:78]}", end="", file=sys.stderr, flush=True)
