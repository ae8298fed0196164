"""Collects the files of a script: all imported files in its folder and below."""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from hutch.protocols.toolscript.checker.diagnostics import InvalidScript, ScriptProblem, problem_at
from hutch.protocols.toolscript.checker.source_text import Outline, SourceText
from hutch.settings import MIB

MODULE = "toolscript"
CODE_SUFFIXES = (".ts", ".mts", ".js", ".mjs")
SUFFIXES = (*CODE_SUFFIXES, ".json")
_AVAILABLE = f'"{MODULE}", node: modules, and the files that a script in a file has beside it'
_REMOTE_SCHEMES = ("npm", "jsr", "http", "https", "data", "blob")
MAX_FILES = 1_000
MAX_BYTES = 16 * MIB

ParseFiles = Callable[[Mapping[str, str]], Awaitable[dict[str, Outline]]]


async def read_files(path: Path, parse: ParseFiles) -> dict[str, str]:
    """Reads a script and all files that it imports. Returns the texts by path relative to the script's
    folder, starting with the script itself.

    Raises InvalidScript, which names the failing import and the reason.
    """
    folder = ScriptFolder(path)
    files = {folder.script: folder.read(folder.script)}
    unparsed = dict(files)
    while unparsed:
        outlines = await parse(
            {name: text for name, text in unparsed.items() if name.endswith(CODE_SUFFIXES)}
        )
        problems: list[ScriptProblem] = []
        new: dict[str, str] = {}
        for name, outline in outlines.items():
            for specifier in outline.specifiers:
                try:
                    target = resolve(name, specifier.text)
                    if target is not None and target not in files and target not in new:
                        new[target] = folder.read(target)
                except UnresolvedImport as error:
                    # Skip dynamic imports, which fail only if the script reaches them.
                    if not specifier.dynamic:
                        text = SourceText(files[name])
                        problems.append(problem_at(name, text, specifier.start, specifier.end, str(error)))
        if problems:
            raise InvalidScript(problems)
        files |= new
        unparsed = new
    return files


class UnresolvedImport(Exception):
    """The import cannot be resolved. The message contains the reason."""


def import_objection(specifier: str) -> str | None:
    """Returns the reason why toolscripts cannot import this specifier, or None if they can."""
    if specifier == MODULE or specifier.startswith(("node:", "./", "../")):
        return None
    scheme, colon, _ = specifier.partition(":")
    if colon and scheme in _REMOTE_SCHEMES:
        return f"{scheme}: imports are not available in toolscripts, which can import {_AVAILABLE}."
    if specifier.startswith(("/", "file:")):
        return "A toolscript can import files by relative paths only, such as ./name.ts."
    return f"There is no module {specifier!r} for toolscripts, which can import {_AVAILABLE}."


def resolve(importer: str, specifier: str) -> str | None:
    """Returns the path of the imported file relative to the script's folder, or None for a built-in module.
    Raises UnresolvedImport.
    """
    if reason := import_objection(specifier):
        raise UnresolvedImport(reason)
    if not specifier.startswith("."):
        return None
    if any(char in specifier for char in "?#%"):
        # Refuse these characters. They would end the file name in a URL, but the compiler treats them as part
        # of the name.
        raise UnresolvedImport("A path with ?, # or % in it cannot be imported.")
    name = posixpath.normpath(posixpath.join(posixpath.dirname(importer), specifier))
    if name == ".." or name.startswith("../") or "\0" in name:
        raise UnresolvedImport("That is outside of the script's folder; only files in it can be imported.")
    return name


class ScriptFolder:
    """The folder of a script. Symbolic links are followed unless they lead out of the folder."""

    def __init__(self, path: Path) -> None:
        try:
            script = path.resolve(strict=True)
        except (OSError, RuntimeError):
            raise _script_error(path.name, f"There is no file {path}.") from None
        self.script = script.name
        self._root = script.parent
        self._bytes = 0
        self._files = 0
        if script.suffix not in CODE_SUFFIXES:
            message = f"A script's name ends in {', '.join(CODE_SUFFIXES[:-1])} or {CODE_SUFFIXES[-1]}."
            raise _script_error(path.name, message)

    def read(self, name: str) -> str:
        """Returns the text of a file. Raises UnresolvedImport, or InvalidScript for the script itself."""
        try:
            return self._read(name)
        except UnresolvedImport as error:
            if name == self.script:
                raise _script_error(name, str(error)) from None
            raise

    def _read(self, name: str) -> str:
        if not name.endswith(SUFFIXES):
            raise UnresolvedImport(
                self._suggest(name) or f"Only {', '.join(SUFFIXES)} files can be imported."
            )
        path = self._root / name
        try:
            resolved = path.resolve(strict=True)
            if not resolved.is_relative_to(self._root):
                raise UnresolvedImport("That is a link out of the script's folder.")
            # Open without blocking, because opening a FIFO would wait for its writer.
            handle = os.open(resolved, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, RuntimeError, ValueError) as error:
            if isinstance(error, PermissionError):
                raise UnresolvedImport("That file may not be read.") from None
            raise UnresolvedImport(self._suggest(name) or f"There is no file {name}.") from None
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise UnresolvedImport("That is not a file.")
            with os.fdopen(handle, "rb", closefd=False) as file:
                return self._decode(file.read(MAX_BYTES - self._bytes + 1))
        finally:
            os.close(handle)

    def _decode(self, data: bytes) -> str:
        self._bytes += len(data)
        self._files += 1
        if self._bytes > MAX_BYTES:
            raise UnresolvedImport(f"The script's files have more than {MAX_BYTES // MIB} MiB.")
        if self._files > MAX_FILES:
            raise UnresolvedImport(f"The script has more than {MAX_FILES} files.")
        try:
            return data.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise UnresolvedImport("That file is not UTF-8 text.") from None

    def _suggest(self, name: str) -> str | None:
        """Suggests an existing file for a missing import.

        Other tools add missing extensions, or find a .ts file by its .js name. Deno does neither.
        """
        stem = name.removesuffix(".js").removesuffix(".mjs")
        for suffix in (*SUFFIXES, "/index.ts", "/mod.ts"):
            if (self._root / f"{stem}{suffix}").is_file():
                return f"There is no file {name}. Did you mean {stem}{suffix}?"
        return None


def _script_error(name: str, message: str) -> InvalidScript:
    return InvalidScript([ScriptProblem(file=name, message=message)])
