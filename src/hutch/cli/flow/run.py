"""`hutch flow run`: checks the flow, the inputs and the runtime before anything is started.

asyncio is imported while the runtime's process starts, because both take long.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from hutch.cli.support.project import project_runtime
from hutch.errors import InvalidExecution
from hutch.problems import Problem
from hutch.protocols.rep.ir.inputs import check_inputs
from hutch.protocols.rep.ir.problems import InvalidFlow, format_problems
from hutch.protocols.rep.ir.references import SUBFLOW_KINDS
from hutch.protocols.rep.ir.source.read import load_flow
from hutch.protocols.rep.jsonrpc import INVALID_IR, rep_error
from hutch.protocols.rep.orchestrator.options import (
    EXIT_BROKEN,
    EXIT_INVALID_FLOW,
    EXIT_REFUSED,
    MAX_ID_CHARS,
    TIMEOUT_SECONDS,
    RunOptions,
    RunOutcome,
    is_run_id,
)
from hutch.protocols.rep.orchestrator.process import RuntimeStartError, launch
from hutch.protocols.rep.orchestrator.runtime_choice import LanguageMismatch, RuntimeChoice, choose_runtime

if TYPE_CHECKING:
    from hutch.protocols.rep.ir.flow import Flow
    from hutch.protocols.rep.ir.source.manifest import FlowManifest


class FlowRunArguments(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of `hutch flow run`."""

    file: Path | None = None
    manifest: Path | None = None
    name: str | None = None
    inputs: str | None = None
    runtime: str | None = None
    executor: str | None = None
    timeout: float = TIMEOUT_SECONDS
    allow_shell: bool = False
    json: bool = False
    run_id: str | None = None
    user: str | None = None
    concurrency: int | None = None
    egress_allow: tuple[str, ...] = ()


class RunRejected(Exception):
    """Raised if the arguments, the flow or the inputs are invalid. Nothing was started."""

    def __init__(self, exit_code: int, error: dict[str, Any], remedy: str = "") -> None:
        super().__init__("\n".join(filter(None, (error["message"], remedy))))
        self.exit_code = exit_code
        self.error = error


def run(arguments: FlowRunArguments) -> int:
    """Runs a flow. Returns REP's exit code: 0 to 4, or 130 if the run was interrupted."""
    options = RunOptions()
    flow: Flow | None = None
    try:
        options = _options(arguments)
        flow, folder, subflows = _load_given_flow(arguments)
        choice = _choose_runtime(arguments)
        inputs = _load_inputs(arguments, flow)
        if choice.is_builtin:
            extra = {"journal": True, "folder": str(folder.absolute())}
            if subflows:
                extra["flows"] = subflows
            options = msgspec.structs.replace(options, extra={**extra, **options.extra})
        try:
            process = launch(choice, options)
        except RuntimeStartError as error:
            raise RunRejected(EXIT_BROKEN, rep_error(3001, str(error), cause="CannotStart")) from None
    except RunRejected as rejection:
        return _report_rejection(arguments, options, flow, rejection)
    try:
        from hutch.cli.flow.live import run_live
    except BaseException:
        process.abandon()
        raise
    code = run_live(flow, inputs, choice, options, process, as_json=arguments.json)
    sys.stdout.flush()
    sys.stderr.flush()
    # Everything is closed, so skip finalizing the interpreter, which would take as long as a short run.
    os._exit(code)


def _options(arguments: FlowRunArguments) -> RunOptions:
    if not 0 <= arguments.timeout < float("inf"):
        raise InvalidExecution("--timeout", "expected a number of seconds, 0 for no limit")
    if arguments.egress_allow:
        from hutch.egress.policy import parse_rules

        parse_rules("--egress-allow", arguments.egress_allow)
    if arguments.run_id is not None and not is_run_id(arguments.run_id):
        raise InvalidExecution("--run-id", f"expected 1 to {MAX_ID_CHARS} printable characters, without /")
    extra = {
        "user": arguments.user,
        "concurrency": arguments.concurrency,
        "egress_allow": list(arguments.egress_allow) or None,
    }
    run_id = {} if arguments.run_id is None else {"run_id": arguments.run_id}
    return RunOptions(
        **run_id,
        timeout=arguments.timeout or None,
        allow_shell=arguments.allow_shell,
        log_json=arguments.json,
        extra={name: value for name, value in extra.items() if value is not None},
    )


def _load_given_flow(arguments: FlowRunArguments) -> tuple[Flow, Path, dict[str, Any]]:
    """Returns the flow, the base folder of its file names, and its subflows."""
    try:
        if arguments.file is not None and arguments.manifest is None and arguments.name is None:
            return load_flow(arguments.file), arguments.file.parent, {}
        from hutch.cli.flow.validate import open_flow
        from hutch.protocols.rep.ir.source.manifest import load_manifest

        flow = open_flow(arguments.file, arguments.manifest, arguments.name)
        assert arguments.manifest is not None
        return (
            flow,
            arguments.manifest.parent,
            referenced_flows(flow, load_manifest(arguments.manifest)),
        )
    except InvalidFlow as error:
        wire = rep_error(error.rep_code, error.message, details=error.details)
        # Name the command that finds all problems. A run that was refused names only the problems of the flow
        # itself, because the parameters of its steps are checked later.
        remedy = "" if arguments.file is None else f"`hutch flow validate {arguments.file}` checks everything"
        raise RunRejected(EXIT_INVALID_FLOW, wire, remedy) from None


def referenced_flows(flow: Flow, manifest: FlowManifest) -> dict[str, Any]:
    """Collects the flows of the manifest that are named by `flow.run` steps of the flow, or of its subflows.
    Raises InvalidFlow.
    """
    documents: dict[str, Any] = {}
    pending = [flow]
    while pending:
        for node in pending.pop().all_nodes():
            name = node.with_.get("flow") if node.kind in SUBFLOW_KINDS else None
            if isinstance(name, str) and name in manifest.entries and name not in documents:
                subflow = manifest.load(name)
                documents[name] = subflow.document
                pending.append(subflow)
    return documents


def _choose_runtime(arguments: FlowRunArguments) -> RuntimeChoice:
    try:
        return choose_runtime(arguments.runtime, arguments.executor, Path.cwd(), project_runtime)
    except LanguageMismatch as mismatch:
        raise RunRejected(EXIT_REFUSED, mismatch.wire) from None


def _load_inputs(arguments: FlowRunArguments, flow: Flow) -> dict[str, Any]:
    try:
        inputs = read_inputs(arguments.inputs)
    except InvalidFlow as error:
        raise _reject_inputs(error.problems) from None
    problems = check_inputs(flow, inputs)
    if problems:
        raise _reject_inputs(problems, remedy="" if arguments.inputs else _inputs_hint(problems))
    return inputs


def _inputs_hint(problems: list[Problem]) -> str:
    """Returns an example of how to give the missing inputs."""
    names = [
        problem.path.removeprefix("inputs.") for problem in problems if problem.path.startswith("inputs.")
    ]
    example = ", ".join(f'"{name}": …' for name in names)
    return f"Give it with --inputs '{{{example}}}', or --inputs @FILE."


def read_inputs(text: str | None) -> dict[str, Any]:
    """Parses `--inputs`, which is JSON or @FILE. Raises InvalidFlow."""
    if text is None:
        return {}
    try:
        if text.startswith("@"):
            text = sys.stdin.read() if text == "@-" else Path(text[1:]).read_text("utf-8-sig")
        value = msgspec.json.decode(text)
    except OSError as error:
        raise InvalidFlow([Problem("inputs", f"{text[1:]} cannot be read: {error.strerror}")]) from None
    except (ValueError, RecursionError) as error:
        hint = f"; did you mean @{text}?" if len(text) < 200 and Path(text).is_file() else ""
        expected = f"expected JSON such as '{{\"name\": 1}}', or @FILE{hint}"
        raise InvalidFlow([Problem("inputs", expected if hint else f"{expected}: {error}")]) from None
    if not isinstance(value, dict):
        raise InvalidFlow([Problem("inputs", "expected an object, such as '{\"name\": 1}'")])
    return value


def _reject_inputs(problems: list[Problem], remedy: str = "") -> RunRejected:
    details = {"problems": [{"path": problem.path, "message": problem.message} for problem in problems]}
    return RunRejected(
        EXIT_REFUSED,
        rep_error(INVALID_IR, format_problems(problems), details=details),
        remedy,
    )


def _report_rejection(
    arguments: FlowRunArguments, options: RunOptions, flow: Flow | None, rejection: RunRejected
) -> int:
    if arguments.json:
        outcome = RunOutcome(
            run_id=options.run_id,
            flow=arguments.name or "" if flow is None else flow.name,
            engine=arguments.runtime or "",
            status="failed",
            exit_code=rejection.exit_code,
            error=rejection.error,
        )
        from hutch.cli.support.console import print_json_value

        print_json_value(outcome.wire)
    else:
        from hutch.cli.support.console import print_note

        for line in str(rejection).splitlines():
            print_note(line)
    return rejection.exit_code
