"""Executes and describes tools of npm packages."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from hutch.egress.policy import EgressPolicy, policy_for
from hutch.egress.redaction import Redactor, prepare_redactor
from hutch.errors import ExecutionError, PackageNotFound, PackageTooLarge, StoreError
from hutch.kernel.execution import Execution, Source
from hutch.kernel.kernel import Kernel
from hutch.kernel.placement import PackageDetails, PackageRecipe
from hutch.kernel.run_preparation import RunPreparation
from hutch.npm.package_spec import PackageSpec
from hutch.npm.packages import Package, PackageManager
from hutch.protocols.tpmjs import params
from hutch.protocols.tpmjs.code_cache import CodeCache
from hutch.protocols.tpmjs.health_check import read_health_check
from hutch.protocols.tpmjs.models import (
    EventSink,
    FailureCode,
    PackageToolCall,
    ToolDescription,
    ToolFailure,
    ToolOutcome,
)
from hutch.sandbox.jail.jail import Isolation, Mount
from hutch.sandbox.runner.profile import UPLINK_PORT, Profile
from hutch.session.json_value import encode_decoded_value, encode_value
from hutch.session.large_json import LARGE_TEXT_BYTES
from hutch.session.limits import Limits
from hutch.session.run import Result, RunHandle
from hutch.session.tools.provider import MAX_MESSAGE_CHARS, Provider
from hutch.session.tools.tool import Tool, ToolContext
from hutch.text import cut

logger = logging.getLogger("hutch.tpmjs")

TREE_DIR = "/pkg"
# A tmpfs of limited size in the container. It must be writable, because many tools write into their working
# directory.
WORKING_DIR = "/tmp"
PROXY_URL = f"http://127.0.0.1:{UPLINK_PORT}"
# Variables that programs expect. The caller's `env` may override them.
_DEFAULT_ENV = {"HOME": WORKING_DIR, "TMPDIR": WORKING_DIR}
# Lets `./util.js` import util.ts, because TypeScript code uses the file names that exist after a build.
_TYPESCRIPT_ENV = (("DENO_UNSTABLE_SLOPPY_IMPORTS", "1"),)
_NETWORK_UNAVAILABLE = "This server has no containers, so tools have no network access."
_NETWORK_OFF = "Network access is off for this tool."
_GUEST_FAILURES: dict[str, FailureCode] = {
    "import_failed": "import_failed",
    "tool_not_found": "tool_not_found",
    "tool_invalid": "tool_invalid",
    "configuration_required": "configuration_required",
    "schema_unavailable": "schema_unavailable",
    "invalid_params": "invalid_params",
}
_MAX_LOCATION_CHARS = 300
# Placeholder profile for a tool that runs on a worker. The worker creates the real profile.
REMOTE_PROFILE = Profile("npm", stdin_payload=b"{}")
# If a package is available in less time than this, it was already installed.
MIN_INSTALL_SECONDS = 0.02


class ToolExecutor:
    """Runs and describes tools of npm packages. The package store installs missing packages."""

    def __init__(
        self, kernel: Kernel, packages: PackageManager, isolation: Isolation, deno_version: str
    ) -> None:
        self._kernel = kernel
        self._packages = packages
        self._settings = kernel.settings
        self._isolation = isolation
        self._code_cache = CodeCache(kernel, packages, deno_version)

    async def close(self) -> None:
        await self._code_cache.close()

    async def execute(
        self,
        call: PackageToolCall,
        events: EventSink | None = None,
        preparation: RunPreparation | None = None,
    ) -> ToolOutcome:
        """Runs a tool to its end. Raises Busy."""
        began = time.monotonic()
        try:
            if self._has_workers:
                return await self._outcome(RemotePackage(call.spec), call, events, preparation=preparation)
            package = await self._packages.get(call.spec)
        except (PackageNotFound, StoreError) as error:
            failure = package_failure(error)
            run_id = await self._record_failed_install(call, failure, began, preparation)
            return ToolOutcome(failure=failure, run_id=run_id)
        return await self.execute_package(
            package, call, events, _install_ms(time.monotonic() - began), preparation
        )

    async def execute_package(
        self,
        package: Package,
        call: PackageToolCall,
        events: EventSink | None = None,
        install_ms: float = 0.0,
        preparation: RunPreparation | None = None,
    ) -> ToolOutcome:
        """Runs a tool of this package. Ignores the package spec of the call. Raises Busy."""
        return await self._outcome(package, call, events, install_ms, preparation)

    async def _outcome(
        self,
        package: Package | RemotePackage,
        call: PackageToolCall,
        events: EventSink | None,
        install_ms: float = 0.0,
        preparation: RunPreparation | None = None,
    ) -> ToolOutcome:
        result, run, failure = await self._run("execute", package, call, events, install_ms, preparation)
        return ToolOutcome(
            output_json=run.output_json,
            failure=failure,
            resolved_version=package.version,
            warnings=run.warnings(call),
            logs=result.logs,
            logs_truncated=result.logs_truncated,
            run_id=result.run_id,
        )

    async def _record_failed_install(
        self,
        call: PackageToolCall,
        failure: ToolFailure,
        began: float,
        preparation: RunPreparation | None,
    ) -> str:
        """Records a call whose package could not be installed. Returns the id of the run."""
        run = RunHandle(install_ms=_install_ms(time.monotonic() - began), redactor=await _redactor(call))
        if preparation is not None:
            preparation.adopt(run)
        execution = Execution(
            code="",
            profile=Profile("npm"),
            owner=call.caller,
            protocol="tpmjs",
            source=Source(inputs=encode_decoded_value(call.params)),
            label=f"{call.spec}#{call.name}",
        )
        self._kernel.record_unstarted(execution, run, ExecutionError(failure.code, failure.message))
        return run.id

    def begin_batch(self, run: RunHandle, caller: str, calls: int) -> None:
        self._kernel.begin_group(_batch(caller, calls), run)

    def record_batch(self, run: RunHandle, caller: str, failed: int, calls: int, seconds: float) -> None:
        """Records a batch of calls that has ended. The calls have their own records."""
        error = ExecutionError("tool_error", f"{failed} of {calls} calls failed") if failed else None
        result = Result(ok=not failed, error=error, run_id=run.id, duration_ms=round(seconds * 1000, 3))
        self._kernel.record_group(_batch(caller, calls), run, result)

    async def describe(
        self, call: PackageToolCall
    ) -> tuple[ToolDescription | None, ToolFailure | None, str | None]:
        """Loads a tool without executing it. Returns the description, the failure and the exact version.
        Raises Busy.
        """
        package: Package | RemotePackage = RemotePackage(call.spec)
        if not self._has_workers:
            try:
                package = await self._packages.get(call.spec)
            except (PackageNotFound, StoreError) as error:
                return None, package_failure(error), None
        description, failure = await self.describe_package(package, call)
        return description, failure, package.version

    async def describe_package(
        self, package: Package | RemotePackage, call: PackageToolCall
    ) -> tuple[ToolDescription | None, ToolFailure | None]:
        """Describes a tool of this package. Ignores the package spec of the call. Raises Busy."""
        _, run, failure = await self._run("describe", package, call, None)
        if run.output_json is None:
            return None, failure
        try:
            described = msgspec.json.decode(run.output_json, type=ToolDescription)
        except (msgspec.DecodeError, RecursionError):
            return None, ToolFailure("schema_unavailable", "The tool's description has an unknown format")
        if isinstance(package, RemotePackage):
            check, problem = package.health_check
        else:
            check, problem = await asyncio.to_thread(read_health_check, package, call.name)
        # Set these fields here, because the guest must not set them.
        return msgspec.structs.replace(
            described,
            health_check=msgspec.UNSET if check is None else check,
            warnings=msgspec.UNSET if problem is None else [problem],
        ), None

    async def list_package(self, package: Package, call: PackageToolCall) -> list[str] | ToolFailure:
        """Returns the names of the tools that this package exports. The call's name is not used. Raises
        Busy.
        """
        _, run, failure = await self._run("list", package, call, None)
        if run.output_json is None:
            return failure or ToolFailure("tool_not_found", "The package has no tools")
        try:
            return msgspec.json.decode(run.output_json, type=list[str])
        except msgspec.DecodeError:
            return ToolFailure("tool_not_found", "The list of the package's tools has an unknown format")

    async def _run(
        self,
        op: Literal["execute", "describe", "list"],
        package: Package | RemotePackage,
        call: PackageToolCall,
        events: EventSink | None,
        install_ms: float = 0.0,
        preparation: RunPreparation | None = None,
    ) -> tuple[Result, _ToolRun, ToolFailure | None]:
        """Runs the guest. Returns the execution result, the run with the guest's output, and the failure."""
        run = _ToolRun(redactor=await _redactor(call), install_ms=install_ms)
        if isinstance(package, RemotePackage):
            profile, recipe = REMOTE_PROFILE, package.recipe(call, op, run)
        else:
            profile, recipe = self._profile_for(package, op, call.env, call.caller), None
        validate = call.validate or self._settings.tpmjs_validate
        request = {"op": op, "name": call.name, "stream": events is not None, "validate": validate}
        params_json = encode_decoded_value(call.params)
        if len(params_json) > LARGE_TEXT_BYTES:
            # Let other tasks run: encoding took up to 40 ms.
            await asyncio.sleep(0)
        providers = [] if events is None else [_event_provider(events)]
        if validate:
            providers.append(_params_provider(call.params))
        execution = Execution(
            code=encode_value(request).decode(),
            inputs=params_json,
            profile=profile,
            recipe=recipe,
            limits=self._limits(),
            providers=providers,
            owner=call.caller,
            protocol="tpmjs",
            source=Source(inputs=params_json),
            # Without a tool name, the call lists the tools, so its label has no `#`.
            label=f"{package.name}@{package.version}#{call.name}".removesuffix("#"),
        )
        if preparation is not None:
            await preparation.begin(run)
        try:
            result = await self._kernel.run(execution, run)
        except (PackageNotFound, StoreError) as error:
            # Do not record the failed installation here, because the kernel has recorded the run.
            failure = package_failure(error)
            return Result(ok=False, run_id=run.id), run, failure
        if self._has_containers and isinstance(package, Package):
            self._code_cache.note_use(package, lambda: self._profile(package))
        if result.error is not None:
            return result, run, _execution_failure(result.error, execution.limits.timeout_ms)
        return result, run, run.failure

    def _limits(self) -> Limits:
        settings = self._settings
        requested = {"timeout_ms": settings.tool_timeout_ms, "memory_limit_bytes": settings.tool_memory_bytes}
        limits = self._kernel.limits(requested, clamp=True)
        # The output is JSON inside a JSON string, where escapes may double its size. The line also contains
        # the logs, so leave space for them.
        max_bytes = settings.max_line_bytes - 4 * limits.max_log_chars - 65_536
        return msgspec.structs.replace(limits, max_result_bytes=min(2 * limits.max_result_bytes, max_bytes))

    @property
    def _has_containers(self) -> bool:
        return self._isolation == "container"

    @property
    def _has_workers(self) -> bool:
        placement = self._kernel.placement
        return placement is not None and placement.has_workers(REMOTE_PROFILE)

    async def profile_for_front(
        self, spec: PackageSpec, op: str, env: Mapping[str, str], caller: str, tool: str
    ) -> tuple[Profile, PackageDetails]:
        """Returns the profile for a tool call that a front server sends to this worker. Installs the package
        if necessary. Raises PackageNotFound and StoreError.
        """
        began = time.monotonic()
        package = await self._packages.get(spec)
        install_ms = _install_ms(time.monotonic() - began)
        check = await asyncio.to_thread(read_health_check, package, tool) if op == "describe" else None
        if self._has_containers:
            self._code_cache.note_use(package, lambda: self._profile(package))
        details = PackageDetails(
            name=package.name, version=package.version, install_ms=install_ms, health_check=check
        )
        return self._profile_for(package, op, env, caller), details

    def _profile_for(self, package: Package, op: str, env: Mapping[str, str], caller: str) -> Profile:
        """Returns the profile for a package and an env, with the code cache."""
        profile = self._profile(package, env, caller, policy_for(self._settings, package.name))
        if self._has_containers:
            profile = self._code_cache.apply(profile, package)
        if op == "describe" and profile.max_uses > 1:
            # Use a process that has not served any caller, because descriptions are cached for all callers.
            profile = msgspec.structs.replace(profile, max_uses=1, keep_spare=False)
        return profile

    def _profile(
        self,
        package: Package,
        env: Mapping[str, str] = MappingProxyType({}),
        caller: str = "",
        policy: EgressPolicy | None = None,
    ) -> Profile:
        has_containers = self._has_containers
        connected = has_containers and policy is not None and policy.mode != "none"
        tree = Mount(str(package.tree), TREE_DIR)
        payload = {
            "tree": TREE_DIR if has_containers else tree.source,
            "package": package.name,
            "env": {**_DEFAULT_ENV, **env},
            "proxy": PROXY_URL if connected else None,
            "network": None if connected else _NETWORK_OFF if has_containers else _NETWORK_UNAVAILABLE,
        }
        container_permissions = ("--allow-net", "--allow-sys") if has_containers else ()
        max_uses = self._settings.tool_calls_per_process
        return Profile(
            "npm",
            mounts=(tree,),
            env=_TYPESCRIPT_ENV if package.is_typescript else (),
            permissions=("--allow-env", *container_permissions),
            cwd=WORKING_DIR,
            stdin_payload=msgspec.json.encode(payload),
            # Any caller may get a spare process, because it has not served a call yet. A process that serves
            # several calls, or has the `env` of a caller, belongs to one caller.
            owner=caller if env or max_uses > 1 else "",
            egress=policy if connected else None,
            memory_bytes=min(self._settings.tool_memory_bytes, self._settings.max_memory_limit_bytes),
            max_uses=max_uses,
        )


class RemotePackage:
    """A package that a worker installs. Its exact version is known only when the worker has reported it."""

    def __init__(self, spec: PackageSpec) -> None:
        self.name = spec.name
        self.version = spec.version or "latest"
        self._spec = spec
        self.health_check: tuple[Any, str | None] = (None, None)

    def recipe(self, call: PackageToolCall, op: str, run: RunHandle) -> PackageRecipe:
        def learn(details: PackageDetails) -> None:
            self.version = details.version
            run.install_ms = details.install_ms
            if details.health_check is not None:
                self.health_check = tuple(details.health_check)

        return PackageRecipe(
            name=self._spec.name,
            version=self._spec.version or "",
            env=dict(call.env),
            caller=call.caller,
            tool=call.name,
            op=op,
            on_details=learn,
        )


async def _redactor(call: PackageToolCall) -> Redactor | None:
    """Returns a redactor of the call's secrets. It also finds the secrets in lower case, as they occur in
    host names.
    """
    if not call.env:
        return None
    secrets = dict.fromkeys((*call.env.values(), *map(str.lower, call.env.values())))
    return await prepare_redactor(tuple(secrets))


def _batch(caller: str, calls: int) -> Execution:
    return Execution(
        code="",
        profile=Profile("npm"),
        owner=caller,
        protocol="tpmjs",
        source=Source(),
        label=f"batch of {calls} call{'' if calls == 1 else 's'}",
        is_group=True,
    )


def _install_ms(seconds: float) -> float:
    """Converts the time that it took to get a package to milliseconds. Returns 0 if the package was installed
    already.
    """
    return 0.0 if seconds < MIN_INSTALL_SECONDS else round(seconds * 1000, 3)


def _event_provider(events: EventSink) -> Provider:
    """Builds the provider through which the guest sends events. The guest does not await these calls."""

    def tool(name: str, sink: Callable[[str], None]) -> Tool:
        async def call(input: Any, _: ToolContext) -> bytes:
            if isinstance(input, str):
                sink(input)
            return b"null"

        return Tool(name, call)

    def partial(text: str) -> None:
        if (json := _encode_json(text)) is not None:
            events.partial(json)

    provider = Provider.of(tool("log", events.log), tool("partial", partial), name="events")
    provider.is_internal = True
    return provider


def _params_provider(values: dict[str, Any]) -> Provider:
    """Builds the provider that lets the guest check the parameters against a JSON Schema."""

    async def check(schema: Any, _: ToolContext) -> bytes:
        problems, complete = params.parse_params(schema if isinstance(schema, str) else "", values)
        return encode_value({"problems": problems, "value": complete})

    provider = Provider.of(Tool("check", check), name="params")
    provider.is_internal = True
    return provider


class _ToolRun(RunHandle):
    """Run of a tool. Decodes the guest's result once, for the run's record and for the response.

    The result is not trusted, but a false result affects only the guest's own call.
    """

    output_json: bytes | None = None
    failure: ToolFailure | None = None
    _fields: Mapping[str, Any] = MappingProxyType({})

    def failure_code(self, value: Any) -> str | None:
        self._fields = value if isinstance(value, dict) else {}
        self.output_json, self.failure = _decode_result(self._fields)
        return None if self.failure is None else self.failure.code

    @property
    def failure_message(self) -> str | None:
        return None if self.failure is None else self.failure.message

    def warnings(self, call: PackageToolCall) -> list[str]:
        """Returns the problems of the parameters. The list is empty if the problems made the call fail,
        because then the error message contains them.
        """
        fields = self._fields
        if self.failure is not None and self.failure.code == "invalid_params":
            return []
        if isinstance(schema := fields.get("schema"), str):
            return params.warnings_of(schema, call.params)
        return (
            [params.NO_SCHEMA] if fields.get("unchecked") else params.guest_problems(fields.get("problems"))
        )


def _decode_result(fields: Mapping[str, Any]) -> tuple[bytes | None, ToolFailure | None]:
    """Returns the output or the failure."""
    if fields.get("ok") is True and isinstance(output := fields.get("output"), str):
        json = _encode_json(output)
        if json is not None:
            return json, None
        return None, ToolFailure("execution_error", "The output is not JSON")
    code, message = fields.get("code"), fields.get("message")
    if not isinstance(code, str) or not isinstance(message, str):
        return None, ToolFailure("execution_error", "The tool returned an invalid result")
    if code == "invalid_params":
        message = "; ".join(params.guest_problems(fields.get("problems"))) or message
    message = cut(message, MAX_MESSAGE_CHARS)
    location = fields.get("location")
    is_location = isinstance(location, str) and 0 < len(location) <= _MAX_LOCATION_CHARS
    return None, ToolFailure(
        _GUEST_FAILURES.get(code, "execution_error"), message, location=location if is_location else None
    )


def _execution_failure(error: ExecutionError, timeout_ms: float) -> ToolFailure:
    if error.code == "timeout":
        return ToolFailure("timeout", f"The tool did not finish within {timeout_ms / 1000:g} s")
    if error.code == "internal_error":
        return ToolFailure("execution_error", "The tool's process ended before the tool finished")
    return ToolFailure("execution_error", error.message)


def package_failure(error: PackageNotFound | StoreError) -> ToolFailure:
    if isinstance(error, PackageTooLarge):
        return ToolFailure("package_too_large", error.message)
    if isinstance(error, PackageNotFound):
        return ToolFailure("package_not_found", error.message, error.retryable)
    # Only log the message, because it contains paths of the server.
    logger.error("%s", error)
    return ToolFailure("internal", "The server failed; its log says why")


def _encode_json(text: str) -> bytes | None:
    """Encodes the JSON text of the guest. Returns None if the text is invalid or not on one line."""
    try:
        json = text.encode()
        msgspec.json.decode(json, type=msgspec.Raw)
    except (UnicodeEncodeError, msgspec.DecodeError, RecursionError):
        return None
    return None if b"\n" in json or b"\r" in json else json
