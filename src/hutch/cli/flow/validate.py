"""`hutch flow validate`, `hutch flow show` and `hutch init`."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from hutch.cli.flow.findings import check_kinds, literal_references, misspelled_keys
from hutch.cli.support.console import print_json, print_json_value, print_line, print_note, print_text
from hutch.errors import HutchError, InvalidExecution
from hutch.problems import Problem
from hutch.protocols.rep.drawing import render
from hutch.protocols.rep.ir.flow import Flow
from hutch.protocols.rep.ir.problems import InvalidFlow
from hutch.protocols.rep.ir.source import project
from hutch.protocols.rep.ir.source.manifest import load_manifest
from hutch.protocols.rep.ir.source.read import load_flow
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
        reports = [_flow_report(file, partial(load_flow, file), is_builtin=is_builtin)]
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


def _flow_report(path: Path, load: Callable[[], Flow], *, is_builtin: bool) -> dict[str, Any]:
    try:
        flow = load()
        findings = list(check_kinds(flow, path.parent)) if is_builtin else []
        errors = [flow.locate(finding.problem) for finding in findings if finding.is_error]
        if errors:
            raise InvalidFlow(errors)
    except InvalidFlow as error:
        return _report(path, error.problems)
    warnings = [
        *(finding.problem for finding in findings),
        *literal_references(flow),
        *misspelled_keys(flow),
    ]
    return {
        **_report(path, []),
        "flow": flow.name,
        "steps": len(flow.nodes),
        "edges": len(flow.edges),
        "step_kinds": flow.step_kinds(),
        "warnings": [str(flow.locate(warning)) for warning in warnings],
    }


def _report(path: Path, problems: list[Problem]) -> dict[str, Any]:
    return {"ok": not problems, "file": str(path), "problems": problems, "warnings": []}


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
