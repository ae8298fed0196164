"""Chooses the runtime for a flow: from the command line, from the project, or the built-in one."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from hutch.errors import HutchError, SettingError
from hutch.protocols.rep.ir.source import project
from hutch.protocols.rep.jsonrpc import UNSUPPORTED_KIND, rep_error

BUILTIN = "hutch"
# Matches programs that run other programs. For these, the runtime's name is taken from the next argument.
_INTERPRETERS = re.compile(r"(python|node|deno|bun|ruby|perl|bash|sh|env|java)[0-9.]*")


class LanguageMismatch(HutchError):
    """The runtime and its plugins belong to different language families (section 9)."""

    code = "language_mismatch"

    @property
    def wire(self) -> dict[str, object]:
        """REP validation error object."""
        return rep_error(UNSUPPORTED_KIND, str(self), cause="LanguageMismatch")


class RuntimeChoice(msgspec.Struct, frozen=True, kw_only=True):
    engine: str
    """Name of the runtime, also used as the file name in the capabilities cache."""
    command: tuple[str, ...]
    is_builtin: bool = False
    folder: Path | None = None
    """Working directory. None means the current one."""
    env: Mapping[str, str] = {}
    """Additional environment variables."""


def builtin_runtime(folder: Path | None = None) -> RuntimeChoice:
    """Returns the built-in runtime, which runs as a separate process. It uses the trusted project files of
    `folder`, if given.
    """
    # -P prevents files of the flow's project from shadowing Hutch's modules.
    command = (sys.executable, "-P", "-m", "hutch", "runtime", "serve")
    project_option = () if folder is None else ("--project", str(folder.absolute()))
    return RuntimeChoice(engine=BUILTIN, command=(*command, *project_option), is_builtin=True)


def choose_runtime(
    name: str | None,
    executor: str | None,
    start: Path,
    find_project: Callable[[Path], project.ProjectRuntime | None],
) -> RuntimeChoice:
    """Chooses a runtime by `name` and `executor`, or else by the project that contains `start`.

    `find_project` returns the runtime of that project if the user trusts it. Raises SettingError, ConfigError
    and LanguageMismatch.
    """
    if name is not None:
        project.check_engine(name)
    if executor is not None:
        return from_command_line(executor, name)
    if name == BUILTIN:
        return builtin_runtime(start)
    bound = find_project(start)
    if bound is not None and name in (None, bound.engine):
        return _from_project(bound, start)
    if name is None or name in project.BUILTIN_ENGINES:
        return builtin_runtime(start)
    known = BUILTIN if bound is None else f"{BUILTIN} or {bound.engine}"
    raise SettingError(
        f"There is no runtime {name!r} here; expected {known}.",
        remedy="Name its program with --executor, or bind the project to it with `hutch init`.",
    )


def _from_project(bound: project.ProjectRuntime, start: Path) -> RuntimeChoice:
    mismatch = bound.language_mismatch()
    if mismatch is not None:
        raise LanguageMismatch(mismatch)
    if bound.is_builtin:
        return builtin_runtime(start)
    if bound.executor is None:
        raise SettingError(
            f"{bound.file}: the runtime {bound.engine} has no executor_path.",
            remedy=f"Name its program: `hutch init --runtime {bound.engine} --executor PROGRAM`.",
        )
    return RuntimeChoice(engine=bound.engine, command=_runnable(str(bound.executor)), folder=bound.folder)


def from_command_line(text: str, name: str | None = None) -> RuntimeChoice:
    """Parses a shell command line that starts a runtime. Raises SettingError."""
    import shlex

    try:
        words = shlex.split(text)
    except ValueError as error:
        raise SettingError(f"--executor: {text!r} is not a command: {error}.") from None
    if not words:
        raise SettingError("--executor: expected a command, such as 'python runtime.py'.")
    return from_arguments(words, name)


def from_arguments(words: list[str], name: str | None = None) -> RuntimeChoice:
    return RuntimeChoice(engine=name or _derive_name(words), command=(*_runnable(words[0]), *words[1:]))


def _runnable(program: str) -> tuple[str, ...]:
    """Returns the command for a program. Python files are run with Python, as in the public orchestrator."""
    return (sys.executable, program) if program.endswith(".py") else (program,)


def _derive_name(words: list[str]) -> str:
    """Derives a runtime name, which is valid as a file name, from a command line."""
    names = [word for word in words if not word.startswith("-")]
    program = Path(names[0]).name if names else ""
    if len(names) > 1 and _INTERPRETERS.fullmatch(program):
        program = Path(names[1]).name
    safe = re.sub(r"[^A-Za-z0-9_-]+", "-", Path(program).stem).strip("-_")
    return safe[:64] or "executor"
