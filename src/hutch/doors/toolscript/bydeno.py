"""Checks with Deno alone, where the native compiler cannot be had: in seconds instead of milliseconds."""

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

from hutch.doors.toolscript.compiler import Shed
from hutch.doors.toolscript.outline import Outline, Specifier, Statement, StatementKind
from hutch.doors.toolscript.problems import Problem, ScriptRefused, unchecked
from hutch.doors.toolscript.text import Text
from hutch.npm import tree
from hutch.sandbox.jail import Jail, Launch, Mount
from hutch.settings import MIB

SECONDS = 60.0
_MEMORY_BYTES = 2048 * MIB
_TASKS = 128
_MOST_OUTPUT = 4 * MIB
_MOST_COMPLAINTS = 256 * 1024
_PLUGIN = Path(__file__).parent / "outline.js"
_TARGET = "/check"
_LINT = {"lint": {"plugins": ["./outline.js"], "rules": {"tags": [], "include": ["hutch/outline"]}}}
_MAP = {"imports": {"toolscript": "./toolscript.d.ts"}}
_ALONE = ("--quiet", "--no-lock", "--no-remote", "--no-npm")
_COMPLAINT = re.compile(
    r"^(?:TS(?P<code>\d+) \[ERROR\]|error): (?P<said>.*?)"
    r"^ {4}at (?P<url>file:\S+?):(?P<line>\d+):(?P<column>\d+)$",
    re.M | re.S,
)
_MARKS = re.compile(r"[\s|]*([~^]+)")


class _Place(msgspec.Struct, rename="camel"):
    byte_pos: int


class _Range(msgspec.Struct):
    start: _Place
    end: _Place


class _Reported(msgspec.Struct):
    filename: str
    range: _Range
    message: str


class _Failed(msgspec.Struct):
    message: str


class _Report(msgspec.Struct):
    diagnostics: list[_Reported]
    errors: list[_Failed]


class _Told(msgspec.Struct):
    """What the plugin says of a node: a statement, what is imported, or else a return."""

    kind: StatementKind | None = None
    specifier: str | None = None
    dynamic: bool = False


class ByDeno:
    """`deno lint` as a parser and `deno check`, each in a jail and a folder of its own."""

    def __init__(self, jail: Jail, shed: Shed) -> None:
        self._jail = jail
        self._shed = shed
        self._one = asyncio.Semaphore(1)

    async def outlines(self, files: Mapping[str, str]) -> dict[str, Outline]:
        """The outlines of files by their names. Raises ScriptRefused for what is no TypeScript."""
        async with self._folder(files) as folder:
            (folder / "deno.json").write_bytes(msgspec.json.encode(_LINT))
            (folder / "outline.js").write_bytes(_PLUGIN.read_bytes())
            paths = (f"{self._root(folder)}/files/{name}" for name in files)
            config = f"--config={self._root(folder)}/deno.json"
            told = await self._deno(folder, "lint", "--quiet", "--json", config, *paths)
            try:
                report = msgspec.json.decode(told[0], type=_Report)
            except msgspec.MsgspecError:
                raise _refused(files, told[1]) from None
            if report.errors:
                complaints = "\n".join(f"error: {each.message}" for each in report.errors)
                raise ScriptRefused(self._problems(folder, files, complaints))
            reported: dict[str, list[_Reported]] = {name: [] for name in files}
            for each in report.diagnostics:
                reported[self._name(folder, each.filename)].append(each)
            return {name: _outline(files[name], found) for name, found in reported.items()}

    async def check(self, files: Mapping[str, str], declarations: str) -> list[Problem]:
        """What is wrong with files that are run together."""
        async with self._folder(files) as folder:
            (folder / "toolscript.d.ts").write_text(declarations)
            (folder / "map.json").write_bytes(msgspec.json.encode(_MAP))
            script = f"{self._root(folder)}/files/{next(iter(files))}"
            options = (*_ALONE, "--no-config", f"--import-map={self._root(folder)}/map.json")
            _, said, code = await self._deno(folder, "check", *options, script)
            problems = self._problems(folder, files, said)
            return problems if problems or code == 0 else _refused(files, said).problems

    # --- one run ---

    @asynccontextmanager
    async def _folder(self, files: Mapping[str, str]) -> AsyncIterator[Path]:
        async with self._one:
            folder = self._shed.stage_anywhere()
            try:
                (folder / "cache").mkdir()
                for name, text in files.items():
                    place = folder / "files" / name
                    place.parent.mkdir(parents=True, exist_ok=True)
                    place.write_text(text, newline="")
                yield folder
            finally:
                await asyncio.to_thread(tree.discard, folder)

    def _root(self, folder: Path) -> str:
        return self._jail.seen(Mount(str(folder), _TARGET))

    async def _deno(self, folder: Path, *arguments: str) -> tuple[str, str, int]:
        cache = Mount(str(folder / "cache"), f"{_TARGET}/cache", writable=True)
        launch = Launch(
            (self._jail.deno, *arguments),
            mounts=(Mount(str(folder), _TARGET), cache),
            env=(("DENO_DIR", self._jail.seen(cache)), ("DENO_NO_PACKAGE_JSON", "1")),
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
                    out, said = await asyncio.gather(_read(process.stdout), _read(process.stderr))
                    return out, said, await process.wait()
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

    # --- what it said ---

    def _name(self, folder: Path, url: str) -> str:
        return unquote(url.removeprefix("file://")).removeprefix(f"{self._root(folder)}/files/")

    def _problems(self, folder: Path, files: Mapping[str, str], said: str) -> list[Problem]:
        problems = []
        texts = {name: Text(text) for name, text in files.items()}
        for found in _COMPLAINT.finditer(said[:_MOST_COMPLAINTS]):
            name = self._name(folder, found["url"])
            if name in files:
                message, length = _message(found["said"])
                message = message.replace(f"file://{self._root(folder)}/files/", "./")
                line = int(found["line"])
                problems.append(
                    Problem(
                        file=name,
                        line=line,
                        column=int(found["column"]),
                        length=length,
                        message=message,
                        code=int(found["code"] or 0),
                        source_line=texts[name].line(line),
                    )
                )
        return problems


def _outline(text: str, reported: list[_Reported]) -> Outline:
    places = _indices(
        text, [place.byte_pos for each in reported for place in (each.range.start, each.range.end)]
    )
    statements, specifiers, returns = [], [], []
    for each in reported:
        start, end = places[each.range.start.byte_pos], places[each.range.end.byte_pos]
        told = msgspec.json.decode(each.message, type=_Told)
        if told.kind is not None:
            statements.append(Statement(told.kind, start, end))
        elif told.specifier is not None:
            specifiers.append(Specifier(told.specifier, start, end, told.dynamic))
        else:
            returns.append(start)
    return Outline(tuple(statements), tuple(specifiers), tuple(returns))


def _indices(text: str, places: list[int]) -> dict[int, int]:
    """Characters for bytes."""
    data = text.encode(errors="replace")
    indices: dict[int, int] = {}
    before = index = 0
    for place in sorted(set(places)):
        index += len(data[before:place].decode(errors="replace"))
        indices[place] = index
        before = place
    return indices


def _message(said: str) -> tuple[str, int]:
    """What was said without the source that was shown, and how much of that was marked."""
    lines = said.rstrip().split("\n")
    for number, line in enumerate(lines):
        if marks := _MARKS.fullmatch(line):
            lines = [each for each in lines[: max(1, number - 1)] if each.strip(" |")]
            return "\n".join(lines).removeprefix("SyntaxError: "), len(marks[1])
    return "\n".join(lines), 1


def _refused(files: Mapping[str, str], said: str) -> ScriptRefused:
    """It did not get as far as to say what is wrong where."""
    name = next(iter(files))
    first = said.strip().partition("\n")[0].removeprefix("error: ") or "Deno gave up on it."
    return ScriptRefused([unchecked(name, first)])


async def _read(stream: asyncio.StreamReader) -> str:
    """All that there is, of which the beginning is kept."""
    kept = bytearray()
    while chunk := await stream.read(65536):
        kept += chunk[: max(0, _MOST_OUTPUT - len(kept))]
    return kept.decode(errors="replace")
