"""`hutch flow validate` and `hutch flow show`: flows in files, checked and drawn."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from hutch.cli.output import print_json
from hutch.doors.rep import drawing, manifest, project
from hutch.doors.rep import flow as flows
from hutch.doors.rep.flow import Flow
from hutch.doors.rep.problems import InvalidFlow, Problem, kind_of
from hutch.errors import HutchError, InvalidExecution

INVALID = 2


def open_flow(file: Path | None, manifest_file: Path | None, name: str | None) -> Flow:
    """The flow that was named on the command line, by its file or by a manifest. Raises InvalidFlow."""
    check_names(file, manifest_file, name)
    if file is not None:
        return flows.load(file)
    assert manifest_file is not None
    listed = manifest.load(manifest_file)
    if name is None:
        if len(listed.entries) != 1:
            raise InvalidExecution("--flow", f"expected one of {', '.join(listed.entries) or 'none'}")
        name = next(iter(listed.entries))
    return listed.load(name)


def check_names(file: Path | None, manifest_file: Path | None, name: str | None) -> None:
    """Raises InvalidExecution unless one place was named."""
    if (file is None) == (manifest_file is None):
        raise InvalidExecution("FILE", "expected the file of a flow, or --manifest with --flow")
    if name is not None and manifest_file is None:
        raise InvalidExecution("--flow", "expected --manifest as well: which flows there are")


def validate(file: Path | None, manifest_file: Path | None, name: str | None, *, json: bool) -> int:
    """Exits with 0 or 2."""
    check_names(file, manifest_file, name)
    warnings, ours = _project()
    if file is not None:
        reports = [_checked(file, partial(flows.load, file), ours=ours)]
    else:
        assert manifest_file is not None
        reports = _checked_manifest(manifest_file, name, ours=ours)
    ok = all(report["ok"] for report in reports)
    if json:
        whole: dict[str, Any] = reports[0] if file else {"ok": ok, "flows": reports, "warnings": []}
        whole["warnings"] = [*warnings, *whole["warnings"]]
        print_json(msgspec.json.encode(whole))
    else:
        for warning in warnings:
            _warn(warning)
        for report in reports:
            _tell(report)
    return 0 if ok else INVALID


def _checked_manifest(path: Path, name: str | None, *, ours: bool) -> list[dict[str, Any]]:
    try:
        listed = manifest.load(path)
    except InvalidFlow as error:
        return [_report(path, error.problems)]
    names = list(listed.entries) if name is None else [name]
    files = [listed.ir_path(each) if each in listed.entries else path for each in names]
    return [
        _checked(where, partial(listed.load, each), ours=ours)
        for each, where in zip(names, files, strict=True)
    ]


def _checked(path: Path, load: Callable[[], Flow], *, ours: bool) -> dict[str, Any]:
    try:
        flow = load()
    except InvalidFlow as error:
        return _report(path, error.problems)
    return {
        **_report(path, []),
        "flow": flow.name,
        "steps": len(flow.nodes),
        "edges": len(flow.edges),
        "step_kinds": flow.step_kinds(),
        "warnings": list(_not_for_ours(flow)) if ours else [],
    }


def _report(path: Path, problems: list[Problem]) -> dict[str, Any]:
    return {"ok": not problems, "file": str(path), "problems": problems, "warnings": []}


def _project() -> tuple[list[str], bool]:
    """What is wrong with this project's runtime, and whether it is ours."""
    try:
        bound = project.find(Path.cwd())
    except HutchError as error:
        return [str(error)], False
    mismatch = None if bound is None else bound.mismatch()
    return [] if mismatch is None else [mismatch], bound is None or bound.is_ours


def _not_for_ours(flow: Flow) -> Iterator[str]:
    """Why our own runtime would refuse it; another may have other kinds."""
    from hutch.doors.rep.kinds.registry import Registry

    registry = Registry.load({"TRACE_MIND_ALLOW_SHELL": "1"})  # whether it is allowed is asked at the run
    for node in flow.nodes.values():
        if node.kind not in registry:
            close = get_close_matches(node.kind, registry.names(), 1)
            hint = f"; did you mean {close[0]}?" if close else ""
            yield f"{node.path}.type: our runtime has no kind {kind_of(node.kind)}{hint}"
            continue
        try:
            wrong = registry.get(node.kind).problems(node.with_)
        except HutchError as error:
            yield f"{node.path}.type: {error}"
            continue
        yield from (f"{node.path}.with.{name}: {what}" for name, what in wrong)


def _tell(report: dict[str, Any]) -> None:
    for warning in report["warnings"]:
        _warn(f"{report['file']}: {warning}")
    if report["ok"]:
        kinds = ", ".join(report["step_kinds"]) or "no kinds that do anything"
        print(f"{report['file']}: ok: {report['flow']}, {_counted(report['steps'], 'step')} ({kinds})")
        return
    for problem in report["problems"]:
        own = problem.path == report["file"]  # the file itself cannot be read
        print(problem if own else f"{report['file']}: {problem}")
    print(f"hutch: {_counted(len(report['problems']), 'problem')} in {report['file']}", file=sys.stderr)


def _warn(text: str) -> None:
    print(f"hutch: warning: {text}", file=sys.stderr)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def show(
    file: Path | None, manifest_file: Path | None, name: str | None, *, mermaid: bool, json: bool
) -> int:
    """Exits with 2 if the flow is none."""
    try:
        flow = open_flow(file, manifest_file, name)
    except InvalidFlow as error:
        print("\n".join(f"hutch: {line}" for line in str(error).splitlines()), file=sys.stderr)
        return INVALID
    if json:
        print_json(msgspec.json.encode(flow.document))
        return 0
    if mermaid:
        print(drawing.mermaid(flow))
        return 0
    columns = shutil.get_terminal_size((100, 24)).columns
    print(drawing.draw(flow, columns, ascii_only=not _has_lines()))
    return 0


def _has_lines() -> bool:
    """Whether what reads our output can have more than ASCII."""
    try:
        "┌▼≤".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
