"""The files that a script is made of: what it imports from its own folder and below, and nothing else."""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from hutch.doors.toolscript.outline import Outline
from hutch.doors.toolscript.problems import Problem, ScriptRefused, problem
from hutch.doors.toolscript.text import Text
from hutch.settings import MIB

MODULE = "toolscript"
CODE = (".ts", ".mts", ".js", ".mjs")
SUFFIXES = (*CODE, ".json")
_AVAILABLE = f'"{MODULE}", node: modules, and the files that a script in a file has beside it'
_ELSEWHERE = ("npm", "jsr", "http", "https", "data", "blob")
MOST_FILES = 1_000
MOST_BYTES = 16 * MIB

Outlines = Callable[[Mapping[str, str]], Awaitable[dict[str, Outline]]]


async def graph(path: Path, outlines: Outlines) -> dict[str, str]:
    """The texts of a script and of all files that it needs, by their paths from its folder; itself first.

    Raises ScriptRefused, which names the import that cannot be followed, and why.
    """
    folder = Folder(path)
    files = {folder.script: folder.read(folder.script)}
    waiting = dict(files)
    while waiting:
        found = await outlines({name: text for name, text in waiting.items() if name.endswith(CODE)})
        problems: list[Problem] = []
        new: dict[str, str] = {}
        for name, outline in found.items():
            for specifier in outline.specifiers:
                try:
                    wanted = resolve(name, specifier.text)
                    if wanted is not None and wanted not in files and wanted not in new:
                        new[wanted] = folder.read(wanted)
                except Unresolved as error:
                    # What is only looked for once it is reached fails only then.
                    if not specifier.dynamic:
                        text = Text(files[name])
                        problems.append(problem(name, text, specifier.start, specifier.end, str(error)))
        if problems:
            raise ScriptRefused(problems)
        files |= new
        waiting = new
    return files


class Unresolved(Exception):
    """An import that cannot be followed. Its message says why."""


def objection(specifier: str) -> str | None:
    """Why a toolscript cannot import something, whatever there may be of that name."""
    if specifier == MODULE or specifier.startswith(("node:", "./", "../")):
        return None
    scheme, colon, _ = specifier.partition(":")
    if colon and scheme in _ELSEWHERE:
        return f"{scheme}: imports are not available in toolscripts, which can import {_AVAILABLE}."
    if specifier.startswith(("/", "file:")):
        return "A toolscript can import files by relative paths only, such as ./name.ts."
    return f"There is no module {specifier!r} for toolscripts, which can import {_AVAILABLE}."


def resolve(importer: str, specifier: str) -> str | None:
    """The file that is imported, by its path from the script's folder, or None. Raises Unresolved."""
    if why := objection(specifier):
        raise Unresolved(why)
    if not specifier.startswith("."):
        return None
    if any(char in specifier for char in "?#%"):
        # In a URL they are no part of the file's name; to a compiler, they are.
        raise Unresolved("A path with ?, # or % in it cannot be imported.")
    name = posixpath.normpath(posixpath.join(posixpath.dirname(importer), specifier))
    if name == ".." or name.startswith("../") or "\0" in name:
        raise Unresolved("That is outside of the script's folder, and only files in it can be imported.")
    return name


class Folder:
    """The script's folder. Links are followed as long as they do not lead out of it."""

    def __init__(self, path: Path) -> None:
        try:
            script = path.resolve(strict=True)
        except (OSError, RuntimeError):
            raise _missing(path.name, f"There is no file {path}.") from None
        self.script = script.name
        self._root = script.parent
        self._bytes = 0
        self._files = 0
        if script.suffix not in CODE:
            message = f"A script's name ends in {', '.join(CODE[:-1])} or {CODE[-1]}."
            raise _missing(path.name, message)

    def read(self, name: str) -> str:
        """A file's text. Raises Unresolved; for the script itself, ScriptRefused."""
        try:
            return self._read(name)
        except Unresolved as error:
            if name == self.script:
                raise _missing(name, str(error)) from None
            raise

    def _read(self, name: str) -> str:
        if not name.endswith(SUFFIXES):
            raise Unresolved(self._suggest(name) or f"Only {', '.join(SUFFIXES)} files can be imported.")
        place = self._root / name
        try:
            real = place.resolve(strict=True)
            if not real.is_relative_to(self._root):
                raise Unresolved("That is a link out of the script's folder.")
            # Not blocking: a pipe would make us wait for its other end.
            handle = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, RuntimeError, ValueError) as error:
            if isinstance(error, PermissionError):
                raise Unresolved("That file may not be read.") from None
            raise Unresolved(self._suggest(name) or f"There is no file {name}.") from None
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise Unresolved("That is not a file.")
            with os.fdopen(handle, "rb", closefd=False) as file:
                return self._decode(file.read(MOST_BYTES - self._bytes + 1))
        finally:
            os.close(handle)

    def _decode(self, data: bytes) -> str:
        self._bytes += len(data)
        self._files += 1
        if self._bytes > MOST_BYTES:
            raise Unresolved(f"The script's files have more than {MOST_BYTES // MIB} MiB.")
        if self._files > MOST_FILES:
            raise Unresolved(f"The script has more than {MOST_FILES} files.")
        try:
            return data.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise Unresolved("That file is not UTF-8 text.") from None

    def _suggest(self, name: str) -> str | None:
        """Other tools find a file without its ending, or a .ts file by the name of its .js; Deno does not."""
        stem = name.removesuffix(".js").removesuffix(".mjs")
        for ending in (*SUFFIXES, "/index.ts", "/mod.ts"):
            if (self._root / f"{stem}{ending}").is_file():
                return f"There is no file {name}. Did you mean {stem}{ending}?"
        return None


def _missing(name: str, message: str) -> ScriptRefused:
    return ScriptRefused([Problem(file=name, message=message)])
