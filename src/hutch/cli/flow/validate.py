"""`hutch flow validate`, `hutch flow show` and `hutch init`."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from hutch.cli.flow.findings import check_kinds, literal_references, misspelled_keys
from hutch.cli.support.console import print_json, print_json_value, print_line, print_note, print_text
from hutch.errors import HutchError, InvalidExecution
from hutch.problems import Problem, first_problems, without_consequences
from hutch.protocols.rep.drawing import render
from hutch.protocols.rep.ir.flow import Flow
from hutch.protocols.rep.ir.problems import InvalidFlow
from hutch.protocols.rep.ir.source import project
from hutch.protocols.rep.ir.source.manifest import load_manifest
from hutch.protocols.rep.ir.source.read import FlowSource, load_flow, load_source
from hutch.protocols.rep.orchestrator.options import EXIT_INVALID_FLOW


def open_flow(file: Path | None, manifest_file: Path | None, name: str | None) -> Flow:
    """Loads the flow that the command line names by file or by manifest. Raises InvalidFlow."""
    _check_flow_arguments(file, manifest_file, name)
    if file is not None:
        return load_flow(file)
    assert manifest_file is not None
    flow_manifest = load_manifest(manifest_file)
    if name is None:
        if len(flow_manifest.entries) != 1:
            raise InvalidExecution("--flow", f"expected one of {', '.join(flow_manifest.entries) or 'none'}")
        name = next(iter(flow_manifest.entries))
    return flow_manifest.load(name)


def _check_flow_arguments(file: Path | None, manifest_file: Path | None, name: str | None) -> None:
    """Raises InvalidExecution unless either a file or a manifest is given."""
    if (file is None) == (manifest_file is None):
        raise InvalidExecution("FILE", "expected the file of a flow, or --manifest with --flow")
    if name is not None and manifest_file is None:
        raise InvalidExecution("--flow", "expected --manifest as well")


# --- hutch flow validate ---


def validate_flow(file: Path | None, manifest_file: Path | None, name: str | None, *, json: bool) -> int:
    """Prints the problems of flows. Returns 0, or 2 if a flow is invalid."""
    _check_flow_arguments(file, manifest_file, name)
    warnings, is_builtin = _check_project()
    if file is not None:
        reports = [_file_report(file, is_builtin=is_builtin)]
    else:
        assert manifest_file is not None
        reports = _validate_manifest(manifest_file, name, is_builtin=is_builtin)
    ok = all(report["ok"] for report in reports)
    if json:
        output: dict[str, Any] = reports[0] if file else {"ok": ok, "flows": reports, "warnings": []}
        output["warnings"] = [*warnings, *output["warnings"]]
        print_json(msgspec.json.encode(output))
    else:
        for warning in warnings:
            print_note(f"warning: {warning}")
        for report in reports:
            _print_report(report)
    return 0 if ok else EXIT_INVALID_FLOW


def _validate_manifest(path: Path, name: str | None, *, is_builtin: bool) -> list[dict[str, Any]]:
    try:
        flow_manifest = load_manifest(path)
    except InvalidFlow as error:
        return [_report(path, error.problems)]
    entries = flow_manifest.entries
    files = {
        entry: flow_manifest.ir_path(entry) if entry in entries else path
        for entry in (entries if name is None else [name])
    }
    return [
        _flow_report(file, partial(flow_manifest.load, entry), is_builtin=is_builtin)
        for entry, file in files.items()
    ]


def _file_report(path: Path, *, is_builtin: bool) -> dict[str, Any]:
    try:
        source = load_source(path)
    except InvalidFlow as error:
        return _report(path, error.problems)
    return _flow_report(path, source.parse, is_builtin=is_builtin, source=source)


def _flow_report(
    path: Path, load: Callable[[], Flow], *, is_builtin: bool, source: FlowSource | None = None
) -> dict[str, Any]:
    """Reports the problems of a flow. `source` is the text that `load` parses. If it is given, the steps of
    an invalid flow are checked too.
    """
    flow, problems = None, []
    locate: Callable[[Problem], Problem]
    try:
        flow = load()
        nodes, locate = [*flow.all_nodes()], flow.locate
    except InvalidFlow as error:
        if source is None:
            return _report(path, error.problems)
        problems, nodes, locate = error.problems, source.readable_nodes(), source.locate
    findings = list(check_kinds(nodes, path.parent)) if is_builtin else []
    errors = [locate(finding.problem) for finding in findings if finding.is_error]
    problems = [*problems, *without_consequences(errors, problems)]
    warnings = [
        *(finding.problem for finding in findings if not finding.is_error),
        *literal_references(nodes),
        *(() if flow is None else misspelled_keys(flow)),
    ]
    texts = [str(warning) for warning in without_consequences(map(locate, warnings), problems)]
    if flow is None or problems:
        return _report(path, sorted(problems, key=lambda problem: problem.line or sys.maxsize), texts)
    return {
        **_report(path, [], texts),
        "flow": flow.name,
        "steps": len(flow.nodes),
        "edges": len(flow.edges),
        "step_kinds": flow.step_kinds(),
    }


def _report(path: Path, problems: Iterable[Problem], warnings: Sequence[str] = ()) -> dict[str, Any]:
    shown = first_problems(problems)
    return {"ok": not shown, "file": str(path), "problems": shown, "warnings": [*warnings]}


def _check_project() -> tuple[list[str], bool]:
    """Returns problems with the runtime binding of this project, and True if its runtime is the built-in
    one.
    """
    try:
        bound = project.find(Path.cwd())
    except HutchError as error:
        return [str(error)], False
    mismatch = None if bound is None else bound.language_mismatch()
    return [] if mismatch is None else [mismatch], bound is None or bound.is_builtin


def _print_report(report: dict[str, Any]) -> None:
    for warning in report["warnings"]:
        print_note(f"warning: {report['file']}: {warning}")
    if report["ok"]:
        kinds = ", ".join(report["step_kinds"]) or "control steps only"
        steps = _count(report["steps"], "step")
        print_line(f"{report['file']}: ok: {report['flow']}, {steps} ({kinds})")
        return
    for problem in report["problems"]:
        is_unreadable = problem.path == report["file"]
        text = str(problem) if is_unreadable else f"{report['file']}: {problem}"
        print_text(text)
    print_note(f"{_count(len(report['problems']), 'problem')} in {report['file']}")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


# --- hutch flow show ---


def show_flow(
    file: Path | None, manifest_file: Path | None, name: str | None, *, mermaid: bool, json: bool, ir: bool
) -> int:
    """Prints a drawing of a flow. Returns 0, or 2 if the flow is invalid."""
    try:
        flow = open_flow(file, manifest_file, name)
    except InvalidFlow as error:
        for line in str(error).splitlines():
            print_note(line)
        return EXIT_INVALID_FLOW
    if json:
        print_json(msgspec.json.encode(flow.document))
        return 0
    if ir:
        print_json_value(flow.document, indent=2)
        return 0
    if mermaid:
        print_text(render.mermaid(flow))
        return 0
    columns = shutil.get_terminal_size((100, 24)).columns
    print_text(render.draw(flow, columns, ascii_only=not _can_print_boxes()))
    return 0


def _can_print_boxes() -> bool:
    """Returns True if the encoding of stdout has the characters for drawings."""
    try:
        "┌▼≤".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


# --- hutch init ---


def init_project(
    engine: str, executor: str | None, language: str | None, plugins_language: str | None
) -> int:
    bound = project.bind(
        Path(),
        engine,
        language=language,
        plugins_language=plugins_language,
        executor_path=executor,
    )
    print_line(f"{bound.file}: the runtime is {bound.engine} ({bound.language})")
    if bound.executor_path is None and not bound.is_builtin:
        print_note(f"warning: {bound.engine} is not built in: name its program with --executor.")
    elif bound.executor is not None and len(bound.executor.parts) > 1 and not bound.executor.exists():
        print_note(f"warning: {bound.executor} does not exist yet.")
    if not bound.is_builtin:
        print_note("`hutch trust` lets `hutch flow run` start its program")
    mismatch = bound.language_mismatch()
    if mismatch is not None:
        print_note(f"warning: {mismatch}")
    return 0
