"""Which runtime runs a flow: the project's, ours, or one that was named for this once."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from hutch.doors.rep import project
from hutch.doors.rep.codes import UNSUPPORTED_KIND, failure
from hutch.errors import HutchError, SettingError

OWN = "hutch"
# Programs that run other programs: the name of a runtime is that of the next word.
_INTERPRETERS = re.compile(r"(python|node|deno|bun|ruby|perl|bash|sh|env|java)[0-9.]*")


class LanguageMismatch(HutchError):
    """The runtime and its plugins are not of one family of languages (section 9)."""

    code = "language_mismatch"

    @property
    def wire(self) -> dict[str, object]:
        """As a REP error: one of validation."""
        return failure(UNSUPPORTED_KIND, str(self), cause="LanguageMismatch")


class RuntimeChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A runtime: what it is called, and what to start."""

    engine: str
    """Also the name of the file with its capabilities."""
    command: tuple[str, ...]
    is_ours: bool = False
    folder: Path | None = None
    """Where it is started; None for the current one."""
    env: Mapping[str, str] = {}
    """What it finds in its environment beside ours."""


def own() -> RuntimeChoice:
    """Our own runtime, in a process of its own."""
    # -P: a file of the flow's project is not to be taken for a module of ours.
    return RuntimeChoice(
        engine=OWN, command=(sys.executable, "-P", "-m", "hutch", "runtime", "serve"), is_ours=True
    )


def choose(name: str | None, executor: str | None, start: Path) -> RuntimeChoice:
    """By what was asked for and, without that, by the project that a folder is in.

    Raises SettingError, ConfigError, LanguageMismatch.
    """
    if name is not None:
        project.check_engine(name)
    if executor is not None:
        return by_command(executor, name)
    if name == OWN:
        return own()
    bound = project.find(start)
    if bound is not None and name in (None, bound.engine):
        return _bound(bound)
    if name is None or name in project.OURS:
        return own()
    known = OWN if bound is None else f"{OWN}, and {bound.engine}, this project's"
    raise SettingError(
        f"There is no runtime {name!r} here; there is {known}.",
        remedy="Say with --executor which program it is, or bind the project to it with `hutch init`.",
    )


def _bound(bound: project.ProjectRuntime) -> RuntimeChoice:
    mismatch = bound.mismatch()
    if mismatch is not None:
        raise LanguageMismatch(mismatch)
    if bound.is_ours:
        return own()
    if bound.executor is None:
        raise SettingError(
            f"{bound.file}: the runtime {bound.engine} has no executor_path.",
            remedy=f"Say which program it is: `hutch init --runtime {bound.engine} --executor PROGRAM`.",
        )
    return RuntimeChoice(engine=bound.engine, command=_runnable(str(bound.executor)), folder=bound.folder)


def by_command(text: str, name: str | None = None) -> RuntimeChoice:
    """A runtime by its command line, as a shell reads it. Raises SettingError."""
    import shlex

    try:
        words = shlex.split(text)
    except ValueError as error:
        raise SettingError(f"--executor: {text!r} is no command: {error}.") from None
    if not words:
        raise SettingError("--executor: expected a command, such as 'python runtime.py'.")
    return by_words(words, name)


def by_words(words: list[str], name: str | None = None) -> RuntimeChoice:
    """A runtime by its program and arguments."""
    return RuntimeChoice(engine=name or _named(words), command=(*_runnable(words[0]), *words[1:]))


def _runnable(program: str) -> tuple[str, ...]:
    """A Python file is run with Python, as the public orchestrator does."""
    return (sys.executable, program) if program.endswith(".py") else (program,)


def _named(words: list[str]) -> str:
    """A name for a runtime that has none, fit for a file."""
    told = [each for each in words if not each.startswith("-")]
    program = Path(told[0]).name if told else ""
    if len(told) > 1 and _INTERPRETERS.fullmatch(program):
        program = Path(told[1]).name
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", Path(program).stem).strip("-_")
    return plain[:64] or "executor"
