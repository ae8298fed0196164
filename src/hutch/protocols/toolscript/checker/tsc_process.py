"""One long-running native compiler process, which checks a script in milliseconds.

The process uses JSON-RPC over stdin and stdout (`tsc --api --async`) and keeps Deno's types in memory. The
host answers the compiler's file system requests, so a check writes no files. The process runs in the jail
with limits and is replaced after RECYCLE_AFTER checks.
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

from hutch.protocols.toolscript.checker.source_text import SourceText
from hutch.protocols.toolscript.checker.toolchain import GLOBAL_TYPES, NODE_TYPES, Compiler
from hutch.protocols.toolscript.checker.tsc_ast import SyntaxTree
from hutch.sandbox.jail.cgroup import Cgroup
from hutch.sandbox.jail.jail import Jail, Launch, Mount
from hutch.sandbox.jail.memory_meter import MemoryMeter, MemoryWatch
from hutch.settings import MIB

MEMORY_BYTES = 1024 * MIB
# Value of GOMEMLIMIT. Above it, the compiler collects garbage more often.
_SOFT_MEMORY_BYTES = 512 * MIB
_TASKS = 64
# Number of checks after which a process is replaced, because every check leaks a little memory.
RECYCLE_AFTER = 500
# Larger inputs are processed in a thread. A syntax tree of a few hundred lines has this size.
_SMALL_BYTES = 64 * 1024
_MAX_RESPONSE_BYTES = 256 * MIB

_FOLDER = "/compiler"
_PROJECTS = "/projects"
_BASE = f"{_PROJECTS}/base.json"
_NODE = f"{_PROJECTS}/node.d.ts"
_GLOBALS = f"{_PROJECTS}/globals.d.ts"
_DECLARATIONS = "/declarations"
_LENGTH = re.compile(rb"content-length: *(\d+)", re.I)
_CALLBACKS = ("readFile", "fileExists", "directoryExists", "getAccessibleEntries", "realpath")
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


class TscFailed(Exception):
    """The compiler process has ended or sent an invalid message."""


class Diagnostic(msgspec.Struct, rename="camel"):
    """A compiler message about a range of a file. Offsets count UTF-16 code units."""

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
        """Returns the message, followed by its nested reasons with indentation."""
        nested = (line for reason in self.message_chain or () for line in reason.lines(depth + 1))
        return ["  " * depth + self.text, *nested]


class _RpcMessage(msgspec.Struct):
    id: int | str | None = None
    method: str | None = None
    params: Any = None
    result: msgspec.Raw = msgspec.Raw(b"null")
    error: Any = None


class _Project(msgspec.Struct):
    id: str


class _ProjectSnapshot(msgspec.Struct):
    snapshot: int
    projects: list[_Project]


class _SourceFile(msgspec.Struct):
    data: str


class _Symbol(msgspec.Struct):
    id: int
    declarations: list[str] = []


class _Type(msgspec.Struct):
    id: int


class TscProcess:
    """One compiler process, for one caller at a time. Close it after any exception."""

    def __init__(
        self, process: Process, group: Cgroup | None, watch: MemoryWatch | None, compiler_root: str
    ) -> None:
        self.checks = 0
        self._process = process
        self._group = group
        self._watch = watch
        self._compiler_root = compiler_root
        self._ids = itertools.count(1)
        self._numbers = itertools.count(1)
        self._folder = self._project = ""
        self._last_projects: dict[bool, str] = {}
        self._snapshot = 0
        self._is_warm = False
        self._files: dict[str, str] = {}
        self._base_files: dict[str, str] = {}
        self._ambient: list[str] = []

    @classmethod
    async def start(cls, compiler: Compiler, jail: Jail, meter: MemoryMeter) -> TscProcess:
        """Starts a process and waits until it responds. Raises TscFailed and OSError."""
        folder = Mount(str(compiler.folder), _FOLDER)
        root = jail.guest_path(folder)
        # Mount the library in the root folder, because the compiler looks for it in the folder of
        # /proc/self/exe.
        library = Mount(str(compiler.folder / "lib.d.ts"), "/lib.d.ts")
        launch = Launch(
            (f"{root}/tsc", "--api", "--async", "--cwd", "/", f"--callbacks={','.join(_CALLBACKS)}"),
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
        service = cls(process, group, watch, root)
        service._ambient = [*(f"{root}/{name}" for name in compiler.ambient_files), _NODE]
        service._files = service._base_files = {_BASE: _config(service._ambient), _NODE: NODE_TYPES}
        try:
            await service._call("initialize", None)
        except BaseException:
            await service.close()
            raise
        return service

    async def warm(self) -> None:
        """Loads Deno's types, so that the first check does not have to load them."""
        if not self._is_warm:
            await self._update()

    @property
    def is_exhausted(self) -> bool:
        return self.checks >= RECYCLE_AFTER or self._process.returncode is not None

    async def close(self) -> None:
        _kill(self._process)
        if self._watch is not None:
            self._watch.stop()
        if self._process.stdin is not None:
            self._process.stdin.close()
        # Read stdout to its end, because asyncio keeps a pipe open until then.
        while self._process.stdout is not None and await self._process.stdout.read(65536):
            pass
        await self._process.wait()
        if self._group is not None:
            self._group.kill()
            self._group.remove()

    # --- requests ---

    async def parse(self, files: Mapping[str, str]) -> None:
        """Opens files for parsing only. Imports and names are not resolved."""
        await self._open(files, {"noResolve": True}, [])

    async def load(self, files: Mapping[str, str], declarations: str) -> None:
        """Opens files for type checking, with the declarations of the module "toolscript"."""
        name = f"{_DECLARATIONS}/{hashlib.sha256(declarations.encode()).hexdigest()}.d.ts"
        self.checks += 1
        ambient = [*self._ambient, _GLOBALS]
        extra = {name: declarations, _GLOBALS: GLOBAL_TYPES}
        await self._open(files, {"paths": {"toolscript": [name]}}, ambient, extra)

    async def syntax_errors(self, name: str) -> list[Diagnostic]:
        return await self._diagnostics("getSyntacticDiagnostics", name)

    async def type_errors(self, name: str) -> list[Diagnostic]:
        return await self._diagnostics("getSemanticDiagnostics", name)

    async def tree(self, name: str, text: SourceText) -> SyntaxTree:
        response = await self._query("getSourceFile", _SourceFile, file=self._path(name))
        try:
            return await in_thread_if_large(
                lambda: SyntaxTree(base64.b64decode(response.data), text), len(response.data)
            )
        except (ValueError, IndexError, struct.error) as error:
            raise TscFailed(f"its syntax tree cannot be read: {error}") from None

    async def tool_type(self, name: str, text: SourceText, index: int) -> str | None:
        """Returns the type of the name at a position. Returns None if the module "toolscript" does not
        declare that type.
        """
        position = {"file": self._path(name), "position": text.units(index)}
        symbol = await self._query("getSymbolAtPosition", _Symbol | None, **position)
        type_ = symbol and await self._query("getTypeOfSymbol", _Type | None, symbol=symbol.id)
        # Look up the symbol of the type, which leads to the original declaration even if the name is a local
        # variable.
        origin = type_ and await self._query("getSymbolOfType", _Symbol | None, objectId=type_.id)
        if origin is None or not any(f".{_DECLARATIONS}/" in path for path in origin.declarations):
            return None
        rendered: str | None = await self._query(
            "typeToString", str | None, type=type_.id, flags=_NO_TRUNCATION
        )
        return rendered

    def without_paths(self, text: str) -> str:
        """Removes the paths of the virtual file system from a message."""
        return re.sub(rf"{_DECLARATIONS}/\w+", "toolscript", text).replace(f"{self._folder}/", "")

    # --- projects ---

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}"

    async def _open(
        self,
        files: Mapping[str, str],
        options: Mapping[str, Any],
        ambient_files: list[str],
        extra_files: Mapping[str, str] | None = None,
    ) -> None:
        """Opens a project. Every check has its own folder, so that it sees nothing of the previous check."""
        number = next(self._numbers)
        self._folder, self._project = f"/{number}", f"{_PROJECTS}/{number}.json"
        self._files = {**self._base_files, **(extra_files or {})}
        self._files |= {self._path(name): text for name, text in files.items()}
        roots = [self._path(name) for name in files if not name.endswith(".json")]
        self._files[self._project] = _config([*roots, *ambient_files], options)
        # Close the previous project only when the next one is open, because the compiler unloads declarations
        # together with the last project that uses them.
        last = self._last_projects.get(bool(ambient_files))
        self._last_projects[bool(ambient_files)] = self._project
        await self._update(self._project, last, typed=bool(ambient_files))

    async def _update(self, new: str | None = None, old: str | None = None, *, typed: bool = True) -> None:
        before = self._snapshot
        # Keep the base project open, so that the shared types stay in memory.
        base = [_BASE] if typed and not self._is_warm else []
        self._is_warm |= typed
        changes = {"openProjects": [*base, *([new] if new else [])], "closeProjects": [old] if old else []}
        response = await self._call("updateSnapshot", changes)
        self._snapshot = _decode(response, _ProjectSnapshot).snapshot
        if before:
            # Do not wait for the response. The next call skips it.
            self._request("release", {"snapshot": before})

    async def _diagnostics(self, method: str, name: str) -> list[Diagnostic]:
        diagnostics = await self._query(method, list[Diagnostic] | None, file=self._path(name))
        path = self._path(name)
        return [
            diagnostic
            for diagnostic in diagnostics or ()
            if diagnostic.is_error and diagnostic.file_name == path
        ]

    async def _query(self, method: str, kind: Any, **params: Any) -> Any:
        query = {"snapshot": self._snapshot, "project": self._project, **params}
        return _decode(await self._call(method, query), kind)

    # --- the protocol ---

    async def _call(self, method: str, params: Any) -> msgspec.Raw:
        number = self._request(method, params)
        while True:
            message = await self._receive()
            if message.method is not None:
                self._send({"jsonrpc": "2.0", "id": message.id, "result": self._file_callback(message)})
            elif message.error is not None:
                raise TscFailed(f"{method}: {message.error}")
            elif message.id == number:
                return message.result

    def _request(self, method: str, params: Any) -> int:
        """Sends a request and returns its id."""
        number = next(self._ids)
        self._send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        return number

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        body = msgspec.json.encode(message)
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)

    async def _receive(self) -> _RpcMessage:
        assert self._process.stdout is not None
        try:
            head = await self._process.stdout.readuntil(b"\r\n\r\n")
            length = _LENGTH.search(head)
            if length is None or int(length[1]) > _MAX_RESPONSE_BYTES:
                raise TscFailed("its message has no valid length")
            body = await self._process.stdout.readexactly(int(length[1]))
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            raise TscFailed("its process ended") from None
        message: _RpcMessage = _decode(body, _RpcMessage)
        return message

    def _file_callback(self, message: _RpcMessage) -> Any:
        """Answers a file system request of the compiler.

        With the answer None, the compiler reads the file itself. It can read only its own files, because the
        jail contains no others.
        """
        path = posixpath.normpath(str(message.params))
        if path.startswith((f"{self._compiler_root}/", "/lib.d.ts")):
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


async def in_thread_if_large(work: Callable[[], T], size: int) -> T:
    """Runs `work` in a thread if the input is large. Small inputs are faster without a thread."""
    return await asyncio.to_thread(work) if size > _SMALL_BYTES else work()


def _config(roots: list[str], options: Mapping[str, Any] | None = None) -> str:
    return msgspec.json.encode({"compilerOptions": {**_OPTIONS, **(options or {})}, "files": roots}).decode()


def _decode(data: bytes | msgspec.Raw, kind: Any) -> Any:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise TscFailed(f"its response is invalid: {error}") from None


def _kill(process: Process) -> None:
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
