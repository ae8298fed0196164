"""Runs toolscripts: checked, then in a process and a jail of their own, with a gateway as all their world."""

from __future__ import annotations

import itertools
import shutil
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import msgspec

from hutch.doors.toolscript.check import Checker, Script
from hutch.doors.toolscript.relay import Relay
from hutch.errors import SandboxUnavailable
from hutch.kernel import Execution, Kernel, Result, new_run_id
from hutch.sandbox import temporary
from hutch.sandbox.jail import Isolation, Mount
from hutch.sandbox.profile import Profile
from hutch.sandbox.runner import OnOutput
from hutch.session.host import Calls

VARIABLE = "TOOLSCRIPT_GATEWAY_URL"
TIMED_OUT = 124
FAILED = 1
_FOLDER = "/tmp/script"
_MAP = "/import-map.json"
# Of earlier states: nobody starts a script for them any more.
_MOST_MAPS = 32


class World(Protocol):
    """What a script can reach: a gateway, here or elsewhere."""

    @property
    def relay(self) -> Relay: ...
    @property
    def url(self) -> str:
        """As the script is told it."""

    async def session(self) -> str:
        """Changes whenever the tools do."""

    async def declarations(self) -> str:
        """The types of all tools."""

    def calls_of(self, run_id: str) -> AbstractContextManager[Calls]:
        """What a run calls meanwhile, as far as that is seen from here."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A script to run."""

    script: Script
    args: tuple[str, ...] = ()
    cwd: str = "/"
    timeout_ms: float | None = None
    memory_bytes: int | None = None
    check: bool = True
    owner: str = "local"
    run_id: str | None = None
    on_output: OnOutput | None = None


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How a script ended: its exit code, what it returned as JSON, and what we have to say about it."""

    exit_code: int
    value_json: str | None = None
    message: str | None = None
    run_id: str = ""
    duration_ms: float = 0.0


class Scripts:
    """Runs scripts against one world after another."""

    def __init__(self, kernel: Kernel, checker: Checker, isolation: Isolation) -> None:
        self.checker = checker
        self._kernel = kernel
        self._isolation = isolation
        self._maps = ImportMaps()

    async def run(self, request: Request, world: World) -> Ending:
        """Raises ScriptRefused for one that fails its check, Busy, and InvalidExecution for its limits."""
        script = request.script
        prepared = await self.checker.prepare(script, await world.declarations() if request.check else None)
        settings = self._kernel.settings
        asked = {
            "timeout_ms": request.timeout_ms or settings.script_timeout_ms,
            "memory_limit_bytes": request.memory_bytes or settings.script_memory_bytes,
        }
        code = {
            "files": {**script.files, script.name: prepared.text},
            "main": script.name,
            "returns": prepared.returns,
            "shift": prepared.shift,
            "args": request.args,
        }
        run_id = request.run_id or new_run_id()
        with world.calls_of(run_id) as calls:
            execution = Execution(
                code=msgspec.json.encode(code).decode(),
                profile=await self._profile(request, world),
                limits=self._kernel.limits(asked),
                owner=request.owner,
                door="toolscript",
                label=script.name,
                run_id=run_id,
                on_output=request.on_output,
                calls=calls,
                failure_in=_failure_in,
            )
            return _ending(await self._kernel.run(execution))

    async def warm(self, world: World, *, cwd: str = "/") -> None:
        """Has a process ready for the next script."""
        self._kernel.pool.prepare(await self._profile(Request(script=Script(""), cwd=cwd), world))

    async def _profile(self, request: Request, world: World) -> Profile:
        if self._isolation != "container":
            raise SandboxUnavailable(
                "Toolscripts need containers: without one they could reach all of this machine's network.",
                remedy="`hutch doctor` says how to get them.",
            )
        host, _, port = world.url.partition("://")[2].partition("/")[0].rpartition(":")
        where = f"{host or '127.0.0.1'}:{port}"
        import_map = self._maps.file(f"{world.url}/runtime/tools.ts?_t={await world.session()}")
        return Profile(
            "script",
            mounts=(Mount(str(import_map), _MAP),),
            env=((VARIABLE, world.url), ("DENO_DIR", "/tmp/deno")),
            permissions=(
                f"--import-map={_MAP}",
                f"--allow-net={where}",
                f"--allow-import={where}",
                f"--allow-env={VARIABLE}",
            ),
            cwd=request.cwd,
            egress=world.relay,
            port=int(port),
            folder=_FOLDER,
        )

    async def close(self) -> None:
        await self.checker.close()
        self._maps.close()


class ImportMaps:
    """The files that tell Deno what `toolscript` is, one for every state of a gateway."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._files: dict[str, Path] = {}
        self._numbers = itertools.count()

    def file(self, url: str) -> Path:
        if self._folder is None:
            self._folder = temporary.make_folder()
        known = self._files.get(url)
        if known is None:
            known = self._files[url] = self._folder / f"{next(self._numbers)}.json"
            known.write_bytes(msgspec.json.encode({"imports": {"toolscript": url}}))
            while len(self._files) > _MOST_MAPS:
                self._files.pop(next(iter(self._files))).unlink()
        return known

    def close(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def _exit_code(said: Any) -> int:
    code = said.get("exit") if isinstance(said, dict) else None
    return code if isinstance(code, int) and 0 <= code <= 255 else FAILED


def _failure_in(said: Any) -> str | None:
    return None if _exit_code(said) == 0 else "script_failed"


def _ending(result: Result) -> Ending:
    common: dict[str, Any] = {"run_id": result.run_id, "duration_ms": result.duration_ms}
    error = result.error
    if error is None:
        value = result.result.get("value") if isinstance(result.result, dict) else None
        return Ending(
            exit_code=_exit_code(result.result),
            value_json=value if isinstance(value, str) else None,
            **common,
        )
    if error.code == "timeout":
        return Ending(exit_code=TIMED_OUT, message="The script did not finish in time", **common)
    return Ending(exit_code=FAILED, message=error.message, **common)
