"""What happens to a script before it runs: its files are found, it is checked, and made runnable."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import time
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from hutch.doors.toolscript import graph, source
from hutch.doors.toolscript.bydeno import ByDeno
from hutch.doors.toolscript.compiler import VERSION, Say, Shed
from hutch.doors.toolscript.native import Native, Unavailable
from hutch.doors.toolscript.outline import Outline
from hutch.doors.toolscript.problems import Problem, ScriptRefused, problem, unchecked
from hutch.doors.toolscript.source import Source
from hutch.doors.toolscript.text import Text
from hutch.errors import PackageNotFound
from hutch.sandbox.jail import Jail
from hutch.settings import Settings

logger = logging.getLogger("hutch.toolscript")

SCRIPT = "script.ts"
"""The name of a script that is in no file."""
CHECK_SECONDS = 20.0
# After which time a compiler that could not be had is asked for again.
RETRY_SECONDS = 300.0
_KEPT = 256
_KEPT_CHARS = 256 * 1024
# What TypeScript says of modules that it does not find, and what Deno says in its own words.
_ABOUT_MODULES = (2307, 2792, 2882, 0)
_QUOTED = re.compile(r"""["']([^"']*)["']""")


class Script(msgspec.Struct, frozen=True):
    """A script as it was written, with the files that it imports, by their paths from its folder."""

    text: str
    name: str = SCRIPT
    files: dict[str, str] = {}


class Backend(Protocol):
    """Who reads scripts: the native compiler, or Deno where that cannot be had."""

    async def outlines(self, files: Mapping[str, str]) -> dict[str, Outline]: ...
    async def check(self, files: Mapping[str, str], declarations: str) -> list[Problem]: ...


class Checker:
    """Prepares scripts. It belongs to one event loop; its processes start when they are first needed."""

    def __init__(
        self, settings: Settings, jail: Jail, *, say: Say | None = None, seconds: float = CHECK_SECONDS
    ) -> None:
        """`say` is told how the fetching of the compiler goes, and, once, that there is none."""
        self._shed = Shed(settings)
        self._jail = jail
        self._say = say
        self._seconds = seconds
        self._native: Native | None = None
        self._fallback = ByDeno(jail, self._shed)
        self._choosing = asyncio.Lock()
        self._retry_at = 0.0
        self._prepared: OrderedDict[bytes, Source] = OrderedDict()

    async def start(self) -> None:
        """Has a compiler ready, so that the first script need not wait for it."""
        await self._backend()
        try:
            if self._native is not None:
                await self._native.start(warm=True)
        except Unavailable as error:
            await self._give_up(error)

    async def read(self, path: Path) -> Script:
        """The script in a file. Raises ScriptRefused if it, or something that it imports, cannot be had."""
        files = await graph.graph(path, self.outlines)
        name = next(iter(files))
        return Script(files.pop(name), name, files)

    async def prepare(self, script: Script, declarations: str | None) -> Source:
        """What is to be run of a script. It is checked unless there are no declarations to check it against.

        `declarations` are the types of what `import … from "toolscript"` gives. Raises ScriptRefused.
        """
        try:
            key = _key(script, declarations)
        except UnicodeEncodeError:
            raise ScriptRefused([unchecked(script.name, "it is not UTF-8 text.")]) from None
        kept = self._prepared.get(key)
        if kept is not None:
            self._prepared.move_to_end(key)
            return kept
        prepared = Source(script.text)
        if source.may_return(script.text):
            outlines = await self.outlines({script.name: script.text})
            prepared = source.rewrite(script.name, script.text, outlines[script.name])
        if declarations is not None and (problems := await self._check(script, prepared, declarations)):
            raise ScriptRefused(problems)
        self._keep(key, prepared, len(script.text))
        return prepared

    async def check(
        self, script: str, declarations: str, *, name: str = SCRIPT, files: Mapping[str, str] | None = None
    ) -> list[Problem]:
        """What is wrong with a script, without running it."""
        try:
            await self.prepare(Script(script, name, dict(files or {})), declarations)
        except ScriptRefused as refused:
            return refused.problems
        return []

    async def outlines(self, files: Mapping[str, str]) -> dict[str, Outline]:
        """The outlines of files. Raises ScriptRefused for what is no TypeScript."""
        if not files:
            return {}
        try:
            return await (await self._backend()).outlines(files)
        except Unavailable as error:
            await self._give_up(error)
            return await self._fallback.outlines(files)

    async def close(self) -> None:
        """Ends its processes. Those at work end when they are done."""
        native, self._native = self._native, None
        if native is not None:
            await native.close()

    async def _check(self, script: Script, prepared: Source, declarations: str) -> list[Problem]:
        files = {script.name: prepared.text, **script.files}
        try:
            found = await (await self._backend()).check(files, declarations)
        except ScriptRefused as refused:
            found = refused.problems
        except Unavailable as error:
            await self._give_up(error)
            found = await self._fallback.check(files, declarations)
        shown = [_explained(_moved(each, prepared) if each.file == script.name else each) for each in found]
        order = {name: number for number, name in enumerate(files)}
        return sorted(shown, key=lambda each: (order[each.file], each.line, each.column))

    def _keep(self, key: bytes, prepared: Source, chars: int) -> None:
        if chars <= _KEPT_CHARS:
            self._prepared[key] = prepared
            while len(self._prepared) > _KEPT:
                self._prepared.popitem(last=False)

    # --- who does it ---

    async def _backend(self) -> Backend:
        async with self._choosing:
            if self._native is None and time.monotonic() >= self._retry_at:
                self._native = await self._find_native()
        return self._native or self._fallback

    async def _find_native(self) -> Native | None:
        try:
            native = Native(await self._shed.compiler(self._say), self._jail, self._seconds)
            await native.start()
            return native
        except (PackageNotFound, Unavailable, OSError) as error:
            await self._give_up(error)
            return None

    async def _give_up(self, error: Exception) -> None:
        """Does without the native compiler for a while. Says so the first time."""
        reason = (
            error.message if isinstance(error, PackageNotFound) else f"TypeScript {VERSION} fails: {error}."
        )
        if self._retry_at == 0:
            tell = self._say or logger.warning
            tell(f"{reason} Scripts are checked by `deno check` meanwhile, which takes seconds.")
        self._retry_at = time.monotonic() + RETRY_SECONDS
        await self.close()


def _key(script: Script, declarations: str | None) -> bytes:
    return hashlib.sha256(msgspec.msgpack.encode((script, declarations))).digest()


def _moved(found: Problem, prepared: Source) -> Problem:
    """A problem of what is run, where the script's author will find it."""
    if not prepared.returns or not found.line:
        return found
    start = prepared.origin(found.line, found.column)
    end = start + found.length
    moved = problem(found.file, prepared.original, start, end, found.message, code=found.code)
    return msgspec.structs.replace(moved, signature=found.signature)


def _explained(found: Problem) -> Problem:
    """That a module is not there is known; why it cannot be, only we know."""
    if found.code in _ABOUT_MODULES:
        line = Text(found.source_line)
        named = _QUOTED.match(line.text, line.at(1, found.column))
        why = graph.objection(named[1]) if named else None
        if why:
            return msgspec.structs.replace(found, message=why)
    return found
