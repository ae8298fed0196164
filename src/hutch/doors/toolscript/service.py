"""The compiler as a process that stays: it has read Deno's types once, and checks a script in milliseconds.

It speaks JSON-RPC on its stdin and stdout (`tsc --api --async`). All that it can read of a script it asks for
here: nothing of a check is ever in a file. It lives in the jail, bounded, and is replaced now and then.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import itertools
import os
import posixpath
import re
import signal
import struct
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from hutch.doors.toolscript import ambient
from hutch.doors.toolscript.compiler import Compiler
from hutch.doors.toolscript.syntax import Tree
from hutch.doors.toolscript.text import Text
from hutch.sandbox.cgroup import Group
from hutch.sandbox.jail import Jail, Launch, Mount
from hutch.sandbox.meter import Meter, Watch
from hutch.settings import MIB

MEMORY_BYTES = 1024 * MIB
# The compiler collects its garbage rather than go beyond this.
_SOFT_MEMORY_BYTES = 512 * MIB
_TASKS = 64
# A little is left behind by every check.
RECYCLE_AFTER = 500
# The syntax tree of some hundred lines.
_LITTLE = 64 * 1024
_MOST_ANSWER_BYTES = 256 * MIB

_FOLDER = "/compiler"
_PROJECTS = "/projects"
_BASE = f"{_PROJECTS}/base.json"
_NODE = f"{_PROJECTS}/node.d.ts"
_DECLARATIONS = "/declarations"
_LENGTH = re.compile(rb"content-length: *(\d+)", re.I)
_ASKED = ("readFile", "fileExists", "directoryExists", "getAccessibleEntries", "realpath")
_NO_TRUNCATION = 1
_OPTIONS: dict[str, Any] = {
    "allowImportingTsExtensions": True,
    "allowJs": True,
    "isolatedModules": True,
    "module": "esnext",
    "moduleDetection": "force",
    "moduleResolution": "bundler",
    "noEmit": True,
    "noImplicitOverride": True,
    "noLib": True,
    "resolveJsonModule": True,
    "skipLibCheck": True,
    "strict": True,
    "target": "esnext",
    "types": [],
}


T = TypeVar("T")


class Lost(Exception):
    """The compiler's process is over, or says what makes no sense."""


class Diagnostic(msgspec.Struct, rename="camel"):
    """What the compiler has to say about a place in a file. Places are in UTF-16 code units."""

    pos: int
    end: int
    code: int
    category: int
    text: str
    file_name: str = ""
    message_chain: list[Diagnostic] | None = None

    @property
    def is_error(self) -> bool:
        return self.category == 1

    def lines(self, depth: int = 0) -> list[str]:
        """What it says, and why, further in."""
        below = (line for each in self.message_chain or () for line in each.lines(depth + 1))
        return ["  " * depth + self.text, *below]


class _Message(msgspec.Struct):
    id: int | str | None = None
    method: str | None = None
    params: Any = None
    result: msgspec.Raw = msgspec.Raw(b"null")
    error: Any = None


class _Project(msgspec.Struct):
    id: str


class _Snapshot(msgspec.Struct):
    snapshot: int
    projects: list[_Project]


class _SourceFile(msgspec.Struct):
    data: str


class _Symbol(msgspec.Struct):
    id: int
    declarations: list[str] = []


class _Type(msgspec.Struct):
    id: int


class Service:
    """One compiler process. For one caller at a time; after any exception it is good for nothing."""

    def __init__(self, process: Process, group: Group | None, watch: Watch | None, base: str) -> None:
        self.checks = 0
        self._process = process
        self._group = group
        self._watch = watch
        self._base = base
        self._ids = itertools.count(1)
        self._numbers = itertools.count(1)
        self._folder = self._project = ""
        self._closable: dict[bool, str] = {}
        self._snapshot = 0
        self._is_warm = False
        self._files: dict[str, str] = {}
        self._always: dict[str, str] = {}
        self._ambient: list[str] = []

    @classmethod
    async def start(cls, compiler: Compiler, jail: Jail, meter: Meter) -> Service:
        """A process that answers. Raises Lost, and OSError where none can be started."""
        folder = Mount(str(compiler.folder), _FOLDER)
        seen = jail.seen(folder)
        # The jail's /proc/self/exe leads to its root, where the compiler looks for its library.
        library = Mount(str(compiler.folder / "lib.d.ts"), "/lib.d.ts")
        launch = Launch(
            (f"{seen}/tsc", "--api", "--async", "--cwd", "/", f"--callbacks={','.join(_ASKED)}"),
            mounts=(folder, library),
            env=(("GOMEMLIMIT", str(_SOFT_MEMORY_BYTES)),),
            tmp_bytes=0,
        )
        group = jail.controller.create(MEMORY_BYTES, _TASKS) if jail.controller else None
        try:
            with jail.command(launch, group=group) as command:
                process = await asyncio.create_subprocess_exec(
                    *command.argv, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, **command.options()
                )
        except BaseException:
            if group is not None:
                group.remove()
            raise
        watch = None if group else meter.watch(process.pid, MEMORY_BYTES, lambda: _kill(process))
        service = cls(process, group, watch, seen)
        service._ambient = [*(f"{seen}/{name}" for name in compiler.ambient), _NODE]
        service._files = service._always = {_BASE: _config(service._ambient), _NODE: ambient.NODE}
        try:
            await service._call("initialize", None)
        except BaseException:
            await service.close()
            raise
        return service

    async def warm(self) -> None:
        """Reads Deno's types, which the first check does otherwise."""
        if not self._is_warm:
            await self._update()

    @property
    def is_spent(self) -> bool:
        return self.checks >= RECYCLE_AFTER or self._process.returncode is not None

    async def close(self) -> None:
        """Ends the process, and with it all that it knows."""
        _kill(self._process)
        if self._watch is not None:
            self._watch.stop()
        if self._process.stdin is not None:
            self._process.stdin.close()
        # A pipe counts as open until its end has been read.
        while self._process.stdout is not None and await self._process.stdout.read(65536):
            pass
        await self._process.wait()
        if self._group is not None:
            self._group.kill()
            self._group.remove()

    # --- what is asked of it ---

    async def parse(self, files: Mapping[str, str]) -> None:
        """Takes files in without looking for what they import and what their names mean."""
        await self._open(files, {"noResolve": True}, [])

    async def load(self, files: Mapping[str, str], declarations: str) -> None:
        """Takes files in, with what `toolscript` declares, in order to check them."""
        name = f"{_DECLARATIONS}/{hashlib.sha256(declarations.encode()).hexdigest()}.d.ts"
        self.checks += 1
        await self._open(files, {"paths": {"toolscript": [name]}}, self._ambient, {name: declarations})

    async def syntax_errors(self, name: str) -> list[Diagnostic]:
        return await self._diagnostics("getSyntacticDiagnostics", name)

    async def errors(self, name: str) -> list[Diagnostic]:
        """What is wrong with a file's types."""
        return await self._diagnostics("getSemanticDiagnostics", name)

    async def tree(self, name: str, text: Text) -> Tree:
        answer = await self._ask("getSourceFile", _SourceFile, file=self._path(name))
        try:
            return await apart(lambda: Tree(base64.b64decode(answer.data), text), len(answer.data))
        except (ValueError, IndexError, struct.error) as error:
            raise Lost(f"its syntax tree cannot be read: {error}") from None

    async def tool_type(self, name: str, text: Text, index: int) -> str | None:
        """The type of what is named at a place in a file, if it is one that `toolscript` declares."""
        place = {"file": self._path(name), "position": text.units(index)}
        symbol = await self._ask("getSymbolAtPosition", _Symbol | None, **place)
        found = symbol and await self._ask("getTypeOfSymbol", _Type | None, symbol=symbol.id)
        # What a name stands for may have come through variables; what its type says was declared once.
        origin = found and await self._ask("getSymbolOfType", _Symbol | None, objectId=found.id)
        if origin is None or not any(f".{_DECLARATIONS}/" in each for each in origin.declarations):
            return None
        told: str | None = await self._ask("typeToString", str | None, type=found.id, flags=_NO_TRUNCATION)
        return told

    def said(self, text: str) -> str:
        """A message without the paths that only this process knows."""
        return re.sub(rf"{_DECLARATIONS}/\w+", "toolscript", text).replace(f"{self._folder}/", "")

    # --- projects ---

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}"

    async def _open(
        self,
        files: Mapping[str, str],
        options: Mapping[str, Any],
        always: list[str],
        others: Mapping[str, str] | None = None,
    ) -> None:
        """Every check has a folder of its own, so that nothing of the one before can be in it."""
        number = next(self._numbers)
        self._folder, self._project = f"/{number}", f"{_PROJECTS}/{number}.json"
        self._files = {**self._always, **(others or {})}
        self._files |= {self._path(name): text for name, text in files.items()}
        roots = [self._path(name) for name in files if not name.endswith(".json")]
        self._files[self._project] = _config([*roots, *always], options)
        # With the last project that has them the compiler forgets the declarations: that is closed when
        # another with declarations is open.
        last = self._closable.get(bool(always))
        self._closable[bool(always)] = self._project
        await self._update(self._project, last, typed=bool(always))

    async def _update(self, new: str | None = None, old: str | None = None, *, typed: bool = True) -> None:
        before = self._snapshot
        # As long as this one is open, the types that all have in common stay in memory.
        base = [_BASE] if typed and not self._is_warm else []
        self._is_warm |= typed
        changes = {"openProjects": [*base, *([new] if new else [])], "closeProjects": [old] if old else []}
        answer = await self._call("updateSnapshot", changes)
        self._snapshot = _decode(answer, _Snapshot).snapshot
        if before:
            # Nobody waits for its answer, which the next call passes over.
            self._request("release", {"snapshot": before})

    async def _diagnostics(self, method: str, name: str) -> list[Diagnostic]:
        found = await self._ask(method, list[Diagnostic] | None, file=self._path(name))
        return [each for each in found or () if each.is_error and each.file_name == self._path(name)]

    async def _ask(self, method: str, kind: Any, **params: Any) -> Any:
        asked = {"snapshot": self._snapshot, "project": self._project, **params}
        return _decode(await self._call(method, asked), kind)

    # --- the protocol ---

    async def _call(self, method: str, params: Any) -> msgspec.Raw:
        number = self._request(method, params)
        while True:
            message = await self._receive()
            if message.method is not None:
                self._send({"jsonrpc": "2.0", "id": message.id, "result": self._answer(message)})
            elif message.error is not None:
                raise Lost(f"{method}: {message.error}")
            elif message.id == number:
                return message.result

    def _request(self, method: str, params: Any) -> int:
        """Its number."""
        number = next(self._ids)
        self._send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        return number

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        body = msgspec.json.encode(message)
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)

    async def _receive(self) -> _Message:
        assert self._process.stdout is not None
        try:
            head = await self._process.stdout.readuntil(b"\r\n\r\n")
            length = _LENGTH.search(head)
            if length is None or int(length[1]) > _MOST_ANSWER_BYTES:
                raise Lost("its message has no length that could be")
            body = await self._process.stdout.readexactly(int(length[1]))
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            raise Lost("its process ended") from None
        message: _Message = _decode(body, _Message)
        return message

    def _answer(self, message: _Message) -> Any:
        """What it asks of the file system. None has it look for itself, and in the jail there is nothing."""
        path = posixpath.normpath(str(message.params))
        if path.startswith((f"{self._base}/", "/lib.d.ts")):
            return None
        match message.method:
            case "readFile":
                return {"content": self._files.get(path)}
            case "fileExists":
                return path in self._files
            case "directoryExists":
                return path == "/" or any(name.startswith(f"{path}/") for name in self._files)
            case "realpath":
                return path
            case _:
                return {"files": [], "directories": []}


async def apart(work: Callable[[], T], size: int) -> T:
    """Does what takes long for much in a thread, and for little at once: most scripts are little."""
    return await asyncio.to_thread(work) if size > _LITTLE else work()


def _config(roots: list[str], options: Mapping[str, Any] | None = None) -> str:
    return msgspec.json.encode({"compilerOptions": {**_OPTIONS, **(options or {})}, "files": roots}).decode()


def _decode(data: bytes | msgspec.Raw, kind: Any) -> Any:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise Lost(f"its answer makes no sense: {error}") from None


def _kill(process: Process) -> None:
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
