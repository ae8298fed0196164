"""Checks toolscripts and runs each one in its own jailed process, which can reach only a gateway."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import msgspec

from hutch.errors import SandboxUnavailable
from hutch.kernel.execution import Execution, Source
from hutch.kernel.kernel import Kernel
from hutch.kernel.placement import ScriptRecipe
from hutch.kernel.run_preparation import RunPreparation
from hutch.protocols.toolscript.checker.checker import Checker, Script
from hutch.protocols.toolscript.jail_server.http1 import JailRequest, JailResponse
from hutch.sandbox import temp_dirs
from hutch.sandbox.jail.jail import Isolation, Mount
from hutch.sandbox.runner.profile import Profile
from hutch.session.events.output_lines import OutputLines
from hutch.session.limits import Limits, timeout_message
from hutch.session.run import CallLog, OnOutput, Result, RunHandle, new_run_id

# Placeholder profile for a script that runs on a worker. The worker creates the real profile.
REMOTE_PROFILE = Profile("script")
GATEWAY_VARIABLE = "TOOLSCRIPT_GATEWAY_URL"
TIMEOUT_EXIT_CODE = 124
FAILURE_EXIT_CODE = 1
_FOLDER = "/tmp/script"
_IMPORT_MAP = "/import-map.json"
# Maximum number of import maps that are kept, including maps of earlier revisions.
_MAX_IMPORT_MAPS = 32


class Uplink(Protocol):
    """The gateway that a script can reach. Scripts of different gateways never share a runner."""

    def __hash__(self) -> int: ...
    @property
    def url(self) -> str:
        """URL of the gateway inside the jail."""

    async def revision(self) -> str:
        """Returns an id that changes when the tools change."""


class ScriptGateway(Uplink, Protocol):
    """Interface of a local or remote gateway, for the scripts of this process."""

    async def declarations(self) -> str:
        """Returns the type declarations of all tools."""

    async def handle(self, run_id: str | None, request: JailRequest, response: JailResponse) -> None:
        """Handles a request from a jail. The task is cancelled if the script disconnects."""

    def record_calls(self, run_id: str) -> AbstractContextManager[CallLog]:
        """Records the tool calls of a run that pass through this process."""

    def open_calls(self, run_id: str) -> list[str]:
        """Returns the names of the tools that a run is waiting for, as far as this process knows."""


class ScriptRequest(msgspec.Struct, frozen=True, kw_only=True):
    script: Script
    args: tuple[str, ...] = ()
    cwd: str = "/"
    timeout_ms: float | None = None
    memory_bytes: int | None = None
    check: bool = True
    strict: bool | None = None
    """True to check all of the script strictly. None for the value of the setting `script_strict`."""
    owner: str = "local"
    run_id: str | None = None
    on_output: OnOutput | None = None
    preparation: RunPreparation | None = None
    """Prepares the run with the id `run_id`. None if the script does not come from the queue."""


class ScriptResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a script: exit code, returned value as JSON, and a message from the host."""

    exit_code: int
    value_json: str | None = None
    message: str | None = None
    run_id: str = ""
    duration_ms: float = 0.0


class ScriptRunner:
    def __init__(self, kernel: Kernel, checker: Checker, isolation: Isolation) -> None:
        self.checker = checker
        self._kernel = kernel
        self._isolation = isolation
        self._maps = ImportMaps()

    async def run(self, request: ScriptRequest, gateway: ScriptGateway) -> ScriptResult:
        """Checks and runs a script. Raises InvalidScript, Busy, and InvalidExecution for invalid limits."""
        script = request.script
        settings = self._kernel.settings
        prepared = await self.checker.prepare(
            script,
            await gateway.declarations() if request.check else None,
            strict=settings.script_strict if request.strict is None else request.strict,
        )
        requested = {
            "timeout_ms": request.timeout_ms or settings.script_timeout_ms,
            "memory_limit_bytes": request.memory_bytes or settings.script_memory_bytes,
        }
        code = {
            "files": {**script.files, script.name: prepared.text},
            "main": script.name,
            "returns": prepared.returns,
            "shift": prepared.shift,
            "lineCount": prepared.original.line_count,
            "args": request.args,
        }
        run_id = request.run_id or new_run_id()
        with gateway.record_calls(run_id) as calls:
            execution = Execution(
                code=msgspec.json.encode(code).decode(),
                profile=await self._profile_or_remote(request, gateway),
                recipe=await self._recipe(request, gateway),
                limits=self._kernel.limits(requested),
                owner=request.owner,
                protocol="toolscript",
                label=script.name,
                source=Source(script.text, msgspec.json.encode(request.args)),
            )
            run = calls.run = ScriptRun(run_id, call_log=calls)
            run.on_output = run.output = OutputLines(run, request.on_output)
            if request.preparation is not None:
                await request.preparation.begin(run)
            result = await self._kernel.run(execution, run)
            return _script_result(result, execution.limits, gateway.open_calls(run_id))

    async def warm(self, gateway: ScriptGateway, *, cwd: str = "/") -> None:
        """Starts a process for the next script in advance."""
        self._kernel.prestart(await self.profile(cwd, gateway))

    async def _recipe(self, request: ScriptRequest, gateway: ScriptGateway) -> ScriptRecipe | None:
        if self._kernel.placement is None:
            return None
        revision = await gateway.revision()
        return ScriptRecipe(url=gateway.url, revision=revision, cwd=request.cwd, handler=gateway)

    async def _profile_or_remote(self, request: ScriptRequest, gateway: ScriptGateway) -> Profile:
        placement = self._kernel.placement
        if self._isolation != "container" and placement is not None and placement.has_workers(REMOTE_PROFILE):
            return REMOTE_PROFILE
        return await self.profile(request.cwd, gateway)

    async def profile(self, cwd: str, gateway: Uplink) -> Profile:
        """Returns the profile of a script with this gateway. Raises SandboxUnavailable."""
        if self._isolation != "container":
            raise SandboxUnavailable(
                "Toolscripts need containers: without one they could reach all of this machine's network.",
                remedy="`hutch doctor` says how to get them.",
            )
        host, _, port = gateway.url.partition("://")[2].partition("/")[0].rpartition(":")
        address = f"{host or '127.0.0.1'}:{port}"
        import_map = self._maps.file(f"{gateway.url}/runtime/tools.ts?_t={await gateway.revision()}")
        return Profile(
            "script",
            mounts=(Mount(str(import_map), _IMPORT_MAP),),
            env=((GATEWAY_VARIABLE, gateway.url), ("DENO_DIR", "/tmp/deno")),
            permissions=(
                f"--import-map={_IMPORT_MAP}",
                f"--allow-net={address}",
                f"--allow-import={address}",
                f"--allow-env={GATEWAY_VARIABLE}",
            ),
            cwd=cwd,
            egress=gateway,
            uplink_port=int(port),
            writable_folder=_FOLDER,
        )

    async def close(self) -> None:
        await self.checker.close()
        self._maps.close()


class ImportMaps:
    """Import map files that resolve "toolscript". There is one file per gateway revision."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._files: dict[str, Path] = {}
        self._numbers = itertools.count()

    def file(self, url: str) -> Path:
        if self._folder is None:
            self._folder = temp_dirs.make_temp_dir()
        path = self._files.get(url)
        if path is None:
            path = self._files[url] = self._folder / f"{next(self._numbers)}.json"
            path.write_bytes(msgspec.json.encode({"imports": {"toolscript": url}}))
            while len(self._files) > _MAX_IMPORT_MAPS:
                self._files.pop(next(iter(self._files))).unlink()
        return path

    def close(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def _exit_code(value: Any) -> int:
    code = value.get("exit") if isinstance(value, dict) else None
    return code if isinstance(code, int) and 0 <= code <= 255 else FAILURE_EXIT_CODE


class ScriptRun(RunHandle):
    """Run of a script. The error message comes from the script and is not trusted, but affects only the
    record of this run.
    """

    _failure: str | None = None
    output: OutputLines | None = None
    stopped_as: str | None = None
    """Outcome of the run if it ends now. Set if the process stops the script, but a process continues it."""

    def end(self, result: Result) -> None:
        if self.output is not None:
            self.output.end()
            # Break the reference cycle between the run and its output.
            self.output = self.on_output = None
        super().end(result)

    def fail(self, code: str) -> None:
        super().fail(self.stopped_as or code)

    def outcome_of(self, result: Result) -> str:
        return self.stopped_as or super().outcome_of(result)

    def failure_code(self, value: Any) -> str | None:
        exit_code = _exit_code(value)
        if exit_code == 0:
            return None
        error = value.get("error") if isinstance(value, dict) else None
        self._failure = error if isinstance(error, str) else f"The script ended with exit code {exit_code}"
        return "script_failed"

    @property
    def failure_message(self) -> str | None:
        return self._failure


def _script_result(result: Result, limits: Limits, open_calls: Sequence[str]) -> ScriptResult:
    common: dict[str, Any] = {"run_id": result.run_id, "duration_ms": result.duration_ms}
    error = result.error
    if error is None:
        value = result.result.get("value") if isinstance(result.result, dict) else None
        return ScriptResult(
            exit_code=_exit_code(result.result),
            value_json=value if isinstance(value, str) else None,
            **common,
        )
    if error.code == "timeout":
        message = timeout_message("The script did not finish within", limits.timeout_ms, open_calls)
        return ScriptResult(exit_code=TIMEOUT_EXIT_CODE, message=message, **common)
    return ScriptResult(exit_code=FAILURE_EXIT_CODE, message=error.message, **common)
