"""Checks scripts with Deno if the native compiler is not available. Takes seconds instead of milliseconds."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import unquote

import msgspec

from hutch.npm import tree
from hutch.protocols.toolscript.checker.diagnostics import InvalidScript, ScriptProblem, cannot_check
from hutch.protocols.toolscript.checker.source_text import (
    Outline,
    SourceText,
    Specifier,
    Statement,
    StatementKind,
)
from hutch.protocols.toolscript.checker.toolchain import GLOBAL_TYPES, Toolchain
from hutch.sandbox.jail.jail import Jail, Launch, Mount
from hutch.settings import MIB

SECONDS = 60.0
_MEMORY_BYTES = 2048 * MIB
_TASKS = 128
_MAX_OUTPUT = 4 * MIB
_MAX_ERROR_CHARS = 256 * 1024
_PLUGIN = Path(__file__).parent / "outline.js"
_TARGET = "/check"
_LINT_CONFIG = {"lint": {"plugins": ["./outline.js"], "rules": {"tags": [], "include": ["hutch/outline"]}}}
_IMPORT_MAP = {"imports": {"toolscript": "./toolscript.d.ts"}}
_OFFLINE_OPTIONS = ("--quiet", "--no-lock", "--no-remote", "--no-npm")
_ERROR = re.compile(
    r"^(?:TS(?P<code>\d+) \[ERROR\]|error): (?P<message>.*?)"
    r"^ {4}at (?P<url>file:\S+?):(?P<line>\d+):(?P<column>\d+)$",
    re.M | re.S,
)
_MARKS = re.compile(r"[\s|]*([~^]+)")


class _Position(msgspec.Struct, rename="camel"):
    byte_pos: int


class _Range(msgspec.Struct):
    start: _Position
    end: _Position


class _LintDiagnostic(msgspec.Struct):
    filename: str
    range: _Range
    message: str


class _LintError(msgspec.Struct):
    message: str


class _LintReport(msgspec.Struct):
    diagnostics: list[_LintDiagnostic]
    errors: list[_LintError]


class _OutlineNode(msgspec.Struct):
    """A node reported by the lint plugin (outline.js).

    It is a statement if `kind` is set, an import if `specifier` is set, and otherwise a return.
    """

    kind: StatementKind | None = None
    specifier: str | None = None
    dynamic: bool = False


class DenoBackend:
    """Parses scripts with `deno lint` and checks them with `deno check`. Each of these processes has its own
    jail and folder.
    """

    def __init__(self, jail: Jail, toolchain: Toolchain) -> None:
        self._jail = jail
        self._toolchain = toolchain
        self._one_at_a_time = asyncio.Semaphore(1)

    async def outlines(self, files: Mapping[str, str]) -> dict[str, Outline]:
        """Parses files. Raises InvalidScript for syntax errors."""
        async with self._folder(files) as folder:
            (folder / "deno.json").write_bytes(msgspec.json.encode(_LINT_CONFIG))
            (folder / "outline.js").write_bytes(_PLUGIN.read_bytes())
            paths = (f"{self._root(folder)}/files/{name}" for name in files)
            config = f"--config={self._root(folder)}/deno.json"
            output, stderr, _ = await self._deno(folder, "lint", "--quiet", "--json", config, *paths)
            try:
                report = msgspec.json.decode(output, type=_LintReport)
            except msgspec.MsgspecError:
                raise _unlocated_error(files, stderr) from None
            if report.errors:
                errors = "\n".join(f"error: {error.message}" for error in report.errors)
                raise InvalidScript(self._problems(folder, files, errors))
            reported: dict[str, list[_LintDiagnostic]] = {name: [] for name in files}
            for diagnostic in report.diagnostics:
                reported[self._name(folder, diagnostic.filename)].append(diagnostic)
            return {name: _outline(files[name], outline) for name, outline in reported.items()}

    async def check(self, files: Mapping[str, str], declarations: str) -> list[ScriptProblem]:
        """Type-checks the files of a script together. Returns the problems."""
        async with self._folder(files) as folder:
            (folder / "toolscript.d.ts").write_text(declarations)
            (folder / "map.json").write_bytes(msgspec.json.encode(_IMPORT_MAP))
            (folder / "globals.d.ts").write_text(GLOBAL_TYPES)
            script = f"{self._root(folder)}/files/{next(iter(files))}"
            global_types = f"{self._root(folder)}/globals.d.ts"
            options = (*_OFFLINE_OPTIONS, "--no-config", f"--import-map={self._root(folder)}/map.json")
            _, stderr, code = await self._deno(folder, "check", *options, script, global_types)
            problems = self._problems(folder, files, stderr)
            return problems if problems or code == 0 else _unlocated_error(files, stderr).problems

    # --- running Deno ---

    @asynccontextmanager
    async def _folder(self, files: Mapping[str, str]) -> AsyncIterator[Path]:
        async with self._one_at_a_time:
            folder = self._toolchain.stage_anywhere()
            try:
                (folder / "cache").mkdir()
                for name, text in files.items():
                    path = folder / "files" / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(text, newline="")
                yield folder
            finally:
                await asyncio.to_thread(tree.discard, folder)

    def _root(self, folder: Path) -> str:
        return self._jail.guest_path(Mount(str(folder), _TARGET))

    async def _deno(self, folder: Path, *arguments: str) -> tuple[str, str, int]:
        cache = Mount(str(folder / "cache"), f"{_TARGET}/cache", writable=True)
        launch = Launch(
            (self._jail.deno, *arguments),
            mounts=(Mount(str(folder), _TARGET), cache),
            env=(("DENO_DIR", self._jail.guest_path(cache)), ("DENO_NO_PACKAGE_JSON", "1")),
            cwd=_TARGET,
        )
        controller = self._jail.controller
        group = controller.create(_MEMORY_BYTES, _TASKS) if controller else None
        try:
            with self._jail.command(launch, group=group) as command:
                process = await asyncio.create_subprocess_exec(
                    *command.argv, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, **command.options()
                )
            try:
                assert process.stdout is not None
                assert process.stderr is not None
                async with asyncio.timeout(SECONDS):
                    out, err = await asyncio.gather(_read_all(process.stdout), _read_all(process.stderr))
                    return out, err, await process.wait()
            except TimeoutError:
                return "", f"The check took longer than {SECONDS:g} s.", 1
            finally:
                if process.returncode is None:
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    await process.wait()
        finally:
            if group is not None:
                group.kill()
                group.remove()

    # --- reading its output ---

    def _name(self, folder: Path, url: str) -> str:
        return unquote(url.removeprefix("file://")).removeprefix(f"{self._root(folder)}/files/")

    def _problems(self, folder: Path, files: Mapping[str, str], output: str) -> list[ScriptProblem]:
        problems = []
        texts = {name: SourceText(text) for name, text in files.items()}
        for match in _ERROR.finditer(output[:_MAX_ERROR_CHARS]):
            name = self._name(folder, match["url"])
            if name in files:
                message, length = _message(match["message"])
                message = message.replace(f"file://{self._root(folder)}/files/", "./")
                line = int(match["line"])
                problems.append(
                    ScriptProblem(
                        file=name,
                        line=line,
                        column=int(match["column"]),
                        length=length,
                        message=message,
                        code=int(match["code"] or 0),
                        source_line=texts[name].line(line),
                    )
                )
        return problems


def _outline(text: str, reported: list[_LintDiagnostic]) -> Outline:
    spans = [diagnostic.range for diagnostic in reported]
    indices = _indices(text, [position.byte_pos for span in spans for position in (span.start, span.end)])
    statements, specifiers, returns = [], [], []
    for diagnostic in reported:
        span = diagnostic.range
        start, end = indices[span.start.byte_pos], indices[span.end.byte_pos]
        node = msgspec.json.decode(diagnostic.message, type=_OutlineNode)
        if node.kind is not None:
            statements.append(Statement(node.kind, start, end))
        elif node.specifier is not None:
            specifiers.append(Specifier(node.specifier, start, end, node.dynamic))
        else:
            returns.append(start)
    return Outline(tuple(statements), tuple(specifiers), tuple(returns))


def _indices(text: str, offsets: list[int]) -> dict[int, int]:
    """Maps byte offsets to character indices."""
    data = text.encode(errors="replace")
    indices: dict[int, int] = {}
    before = index = 0
    for offset in sorted(set(offsets)):
        index += len(data[before:offset].decode(errors="replace"))
        indices[offset] = index
        before = offset
    return indices


def _message(text: str) -> tuple[str, int]:
    """Splits a message from the source that is quoted below it. Returns the message and the number of marked
    columns.
    """
    lines = text.rstrip().split("\n")
    for number, line in enumerate(lines):
        if marks := _MARKS.fullmatch(line):
            lines = [line for line in lines[: max(1, number - 1)] if line.strip(" |")]
            return "\n".join(lines).removeprefix("SyntaxError: "), len(marks[1])
    return "\n".join(lines), 1


def _unlocated_error(files: Mapping[str, str], stderr: str) -> InvalidScript:
    """Builds the error for Deno output that contains no positions."""
    name = next(iter(files))
    first = stderr.strip().partition("\n")[0].removeprefix("error: ") or "Deno failed without a message."
    return InvalidScript([cannot_check(name, first)])


async def _read_all(stream: asyncio.StreamReader) -> str:
    """Reads the stream to its end and returns the first _MAX_OUTPUT bytes."""
    data = bytearray()
    while chunk := await stream.read(65536):
        data += chunk[: max(0, _MAX_OUTPUT - len(data))]
    return data.decode(errors="replace")
