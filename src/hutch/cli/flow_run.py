"""`hutch flow run`: what is run, on which runtime, with what; all of it checked before anything is started.

The event loop is loaded while the runtime's process starts: each takes its time.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from hutch.doors.rep import exits
from hutch.doors.rep import flow as flows
from hutch.doors.rep.choice import LanguageMismatch, RuntimeChoice, choose
from hutch.doors.rep.codes import INVALID_IR, failure
from hutch.doors.rep.inputs import check
from hutch.doors.rep.launch import CannotStart, launch
from hutch.doors.rep.outcome import TIMEOUT_SECONDS, RunEnd, RunOptions
from hutch.doors.rep.problems import InvalidFlow, Problem, present
from hutch.errors import InvalidExecution

if TYPE_CHECKING:
    from hutch.doors.rep.flow import Flow
    from hutch.doors.rep.manifest import Manifest

_LONGEST_ID = 200


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What was typed after `hutch flow run`."""

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


class Unfit(Exception):
    """Something is wrong with what was given; nothing was started."""

    def __init__(self, exit_code: int, error: dict[str, Any], remedy: str = "") -> None:
        super().__init__("\n".join(filter(None, (error["message"], remedy))))
        self.exit_code = exit_code
        self.error = error


def run(asked: Asked) -> int:
    """Exits as REP has it: 0, 1, 2, 3, 4, or 130 if it was interrupted."""
    options = RunOptions()
    flow: Flow | None = None
    try:
        options = _options(asked)
        flow, folder, named = _flow(asked)
        choice = _choice(asked)
        inputs = _inputs(asked, flow)
        if choice.is_ours:
            told = {"journal": True, "folder": str(folder.absolute()), **({"flows": named} if named else {})}
            options = msgspec.structs.replace(options, more={**told, **options.more})
        try:
            launched = launch(choice, options)
        except CannotStart as error:
            raise Unfit(exits.BROKEN, failure(3001, str(error), cause="CannotStart")) from None
    except Unfit as unfit:
        return _refused(asked, options, flow, unfit)
    try:
        from hutch.cli.flow_drive import drive
    except BaseException:
        launched.abandon()
        raise
    code = drive(flow, inputs, choice, options, launched, as_json=asked.json)
    sys.stdout.flush()
    sys.stderr.flush()
    # All is closed by now, and taking Python apart would take as long as a short run.
    os._exit(code)


def _options(asked: Asked) -> RunOptions:
    if not 0 <= asked.timeout < float("inf"):
        raise InvalidExecution("--timeout", "expected a number of seconds, 0 for no limit")
    if asked.egress_allow:
        from hutch.egress.policy import parse

        parse("--egress-allow", asked.egress_allow)
    if asked.run_id is not None and not _is_id(asked.run_id):
        raise InvalidExecution("--run-id", f"expected 1 to {_LONGEST_ID} printable characters, without /")
    more = {
        "user": asked.user,
        "concurrency": asked.concurrency,
        "egress_allow": list(asked.egress_allow) or None,
    }
    ours = {} if asked.run_id is None else {"run_id": asked.run_id}
    return RunOptions(
        **ours,
        timeout=asked.timeout or None,
        allow_shell=asked.allow_shell,
        log_json=asked.json,
        more={name: value for name, value in more.items() if value is not None},
    )


def _is_id(text: str) -> bool:
    return 0 < len(text) <= _LONGEST_ID and text.isprintable() and "/" not in text


def _flow(asked: Asked) -> tuple[Flow, Path, dict[str, Any]]:
    """The flow, the folder that its files are relative to, and flows that its steps name."""
    try:
        if asked.file is not None and asked.manifest is None and asked.name is None:
            return flows.load(asked.file), asked.file.parent, {}
        from hutch.cli.flow_files import open_flow
        from hutch.doors.rep import manifest

        flow = open_flow(asked.file, asked.manifest, asked.name)
        assert asked.manifest is not None
        return flow, asked.manifest.parent, named_flows(flow, manifest.load(asked.manifest))
    except InvalidFlow as error:
        wire = failure(error.rep_code, error.message, details=error.details)
        raise Unfit(exits.INVALID_FLOW, wire) from None


def named_flows(flow: Flow, listed: Manifest) -> dict[str, Any]:
    """The flows of a manifest that are run as steps, also as steps of each other. Raises InvalidFlow."""
    found: dict[str, Any] = {}
    waiting = [flow]
    while waiting:
        for node in waiting.pop().nodes.values():
            name = node.with_.get("flow") if node.kind == "flow.run" else None
            if isinstance(name, str) and name in listed.entries and name not in found:
                inner = listed.load(name)
                found[name] = inner.document
                waiting.append(inner)
    return found


def _choice(asked: Asked) -> RuntimeChoice:
    try:
        return choose(asked.runtime, asked.executor, Path.cwd())
    except LanguageMismatch as mismatch:
        raise Unfit(exits.REFUSED, mismatch.wire) from None


def _inputs(asked: Asked, flow: Flow) -> dict[str, Any]:
    try:
        given = read_inputs(asked.inputs)
    except InvalidFlow as error:
        raise _unfit_inputs(error.problems) from None
    problems = check(flow, given)
    if problems:
        raise _unfit_inputs(problems, remedy="" if asked.inputs else _example(problems))
    return given


def _example(problems: list[Problem]) -> str:
    """How to give what is missing, to who gave nothing."""
    names = [each.path.removeprefix("inputs.") for each in problems if each.path.startswith("inputs.")]
    wanted = ", ".join(f'"{name}": …' for name in names)
    return f"Give it with --inputs '{{{wanted}}}', or --inputs @FILE."


def read_inputs(text: str | None) -> dict[str, Any]:
    """From `--inputs`: JSON, or `@` and a file with it. Raises InvalidFlow."""
    if text is None:
        return {}
    try:
        if text.startswith("@"):
            text = sys.stdin.read() if text == "@-" else Path(text[1:]).read_text("utf-8-sig")
        value = msgspec.json.decode(text)
    except OSError as error:
        raise InvalidFlow([Problem("inputs", f"{text[1:]} cannot be read: {error.strerror}")]) from None
    except (ValueError, RecursionError) as error:
        hint = f"; is @{text} meant?" if len(text) < 200 and Path(text).is_file() else ""
        what = f"expected JSON such as '{{\"name\": 1}}', or @FILE{hint}"
        raise InvalidFlow([Problem("inputs", f"{what}: {error}" if not hint else what)]) from None
    if not isinstance(value, dict):
        raise InvalidFlow([Problem("inputs", "expected an object, such as '{\"name\": 1}'")])
    return value


def _unfit_inputs(problems: list[Problem], remedy: str = "") -> Unfit:
    details = {"problems": [{"path": each.path, "message": each.message} for each in problems]}
    return Unfit(exits.REFUSED, failure(INVALID_IR, present(problems), details=details), remedy)


def _refused(asked: Asked, options: RunOptions, flow: Flow | None, unfit: Unfit) -> int:
    if asked.json:
        end = RunEnd(
            run_id=options.run_id,
            flow=asked.name or "" if flow is None else flow.name,
            engine=asked.runtime or "",
            status="failed",
            exit_code=unfit.exit_code,
            error=unfit.error,
        )
        print_value(end.wire)
    else:
        for line in str(unfit).splitlines():
            print(f"hutch: {line}", file=sys.stderr)
    return unfit.exit_code


def print_value(value: Mapping[str, Any] | Any, *, indent: int | None = None) -> None:
    """JSON on stdout, which is UTF-8 whatever the terminal's encoding is."""
    from hutch.cli.output import print_json

    try:
        text = json.dumps(value, indent=indent, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        # Half a character, which only an escape can tell.
        text = json.dumps(value, indent=indent).encode()
    print_json(text)
