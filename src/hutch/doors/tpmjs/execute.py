"""Runs the tools of npm packages: the shelf has the package, the kernel runs it, here is what came of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from hutch.doors.tpmjs.caching import Caching
from hutch.doors.tpmjs.calls import (
    Events,
    FailureCode,
    ToolCall,
    ToolDescription,
    ToolFailure,
    ToolOutcome,
)
from hutch.egress.policy import Policy, policy_for
from hutch.errors import PackageNotFound, StoreError
from hutch.kernel import Execution, Kernel, Result
from hutch.npm.shelf import Package, Shelf
from hutch.sandbox.jail import Isolation, Mount
from hutch.sandbox.profile import DOOR_PORT, Profile
from hutch.session.host import Limits
from hutch.session.jsonvalue import encode_value
from hutch.session.messages import WireError
from hutch.session.providers import Provider
from hutch.session.tools import Tool, ToolContext

logger = logging.getLogger("hutch.tpmjs")

TREE = "/pkg"
PROXY = f"http://127.0.0.1:{DOOR_PORT}"
# What a program may expect to find, unless the caller says otherwise.
_DEFAULT_ENV = {"HOME": "/tmp", "TMPDIR": "/tmp"}
_WEAK = "This server has no containers, and so no network for tools that it could keep in bounds."
_OFF = "Network access is off for this tool."
_GUEST_FAILURES: dict[str, FailureCode] = {
    "import_failed": "import_failed",
    "tool_not_found": "tool_not_found",
    "tool_invalid": "tool_invalid",
    "configuration_required": "configuration_required",
    "schema_unavailable": "schema_unavailable",
}


class Executor:
    """Runs tools. Packages come from the shelf, or are put there first."""

    def __init__(self, kernel: Kernel, shelf: Shelf, isolation: Isolation, deno_version: str) -> None:
        self._kernel = kernel
        self._shelf = shelf
        self._settings = kernel.settings
        self._isolation = isolation
        self._caching = Caching(kernel, shelf, deno_version)

    async def close(self) -> None:
        await self._caching.close()

    async def execute(self, call: ToolCall, events: Events | None = None) -> ToolOutcome:
        """Runs a tool to its end. Raises Busy."""
        try:
            package = await self._shelf.get(call.spec)
        except (PackageNotFound, StoreError) as error:
            return ToolOutcome(failure=_not_had(error))
        result, output, failure = await self._run("execute", package, call, events)
        return ToolOutcome(
            output_json=output,
            failure=failure,
            resolved_version=package.version,
            logs=result.logs,
            logs_truncated=result.logs_truncated,
            run_id=result.run_id,
        )

    async def describe(self, call: ToolCall) -> tuple[ToolDescription | None, ToolFailure | None, str | None]:
        """Loads a tool without executing it. Raises Busy."""
        try:
            package = await self._shelf.get(call.spec)
        except (PackageNotFound, StoreError) as error:
            return None, _not_had(error), None
        _, output, failure = await self._run("describe", package, call, None)
        if output is None:
            return None, failure, package.version
        try:
            return msgspec.json.decode(output, type=ToolDescription), None, package.version
        except (msgspec.DecodeError, RecursionError):
            failure = ToolFailure("schema_unavailable", "The tool describes itself in no form that we know")
            return None, failure, package.version

    async def _run(
        self, op: Literal["execute", "describe"], package: Package, call: ToolCall, events: Events | None
    ) -> tuple[Result, bytes | None, ToolFailure | None]:
        """How it ended, the output, and why there is none."""
        judge = _Judge()
        request = {"op": op, "name": call.name, "params": call.params, "stream": events is not None}
        execution = Execution(
            code=encode_value(request).decode(),
            profile=self._cached(package, call),
            limits=self._limits(),
            providers=() if events is None else (_events(events),),
            owner=call.caller,
            door="tpmjs",
            label=f"{package.name}@{package.version}#{call.name}",
            failure_in=judge.failure_in,
        )
        result = await self._kernel.run(execution)
        if self._contained:
            self._caching.used(package, lambda: self._profile(package))
        if result.error is not None:
            return result, None, _ended(result.error)
        return result, *judge.judge(result.result)

    def _limits(self) -> Limits:
        settings = self._settings
        asked = {"timeout_ms": settings.tool_timeout_ms, "memory_limit_bytes": settings.tool_memory_bytes}
        limits = self._kernel.limits(asked, clamp=True)
        # The output is JSON in a JSON string, where a quotation mark counts twice, in a line with the logs.
        room = settings.max_line_bytes - 4 * limits.max_log_chars - 65_536
        return msgspec.structs.replace(limits, max_result_bytes=min(2 * limits.max_result_bytes, room))

    @property
    def _contained(self) -> bool:
        return self._isolation == "container"

    def _cached(self, package: Package, call: ToolCall) -> Profile:
        """What a process that has this package imported, with this env, is like."""
        profile = self._profile(package, call.env, call.caller, policy_for(self._settings, package.name))
        return self._caching.applied(profile, package) if self._contained else profile

    def _profile(
        self,
        package: Package,
        env: Mapping[str, str] = MappingProxyType({}),
        caller: str = "",
        policy: Policy | None = None,
    ) -> Profile:
        contained = self._contained
        connected = contained and policy is not None and policy.mode != "none"
        tree = Mount(str(package.tree), TREE)
        told = {
            "tree": TREE if contained else tree.source,
            "package": package.name,
            "env": {**_DEFAULT_ENV, **env},
            "proxy": PROXY if connected else None,
            "network": None if connected else _OFF if contained else _WEAK,
        }
        sees = ("--allow-net", "--allow-sys") if contained else ()
        return Profile(
            "npm",
            mounts=(tree,),
            permissions=("--allow-env", *sees),
            told=msgspec.json.encode(told),
            owner=caller if env else "",
            egress=policy if connected else None,
            memory_bytes=min(self._settings.tool_memory_bytes, self._settings.most_memory_limit_bytes),
            uses=self._settings.tool_calls_per_process,
        )


def _events(events: Events) -> Provider:
    """What the guest sends while it runs, as tools that it calls and whose answer it does not await."""

    def tool(name: str, take: Callable[[str], None]) -> Tool:
        async def call(input: Any, _: ToolContext) -> bytes:
            if isinstance(input, str):
                take(input)
            return b"null"

        return Tool(name, call)

    def partial(text: str) -> None:
        if (json := _checked(text)) is not None:
            events.partial(json)

    return Provider.of(tool("log", events.log), tool("partial", partial), name="events")


class _Judge:
    """What came of one run by what its guest says, for the record and for the caller: found out once."""

    def __init__(self) -> None:
        self._of: object = self
        self._found: tuple[bytes | None, ToolFailure | None] = (None, None)

    def judge(self, said: object) -> tuple[bytes | None, ToolFailure | None]:
        if said is not self._of:
            self._of, self._found = said, _judged(said)
        return self._found

    def failure_in(self, said: object) -> str | None:
        failure = self.judge(said)[1]
        return None if failure is None else failure.code


def _judged(result: object) -> tuple[bytes | None, ToolFailure | None]:
    """The output, or why there is none. What the guest says of itself harms nobody but itself."""
    said = result if isinstance(result, dict) else {}
    if said.get("ok") is True and isinstance(output := said.get("output"), str):
        json = _checked(output)
        if json is not None:
            return json, None
        return None, ToolFailure("execution_error", "The output is not JSON")
    code, message = said.get("code"), said.get("message")
    if not isinstance(code, str) or not isinstance(message, str):
        return None, ToolFailure(
            "execution_error", "The tool answered in a way of its own, which has no meaning"
        )
    return None, ToolFailure(_GUEST_FAILURES.get(code, "execution_error"), message)


def _ended(error: WireError) -> ToolFailure:
    if error.code == "timeout":
        return ToolFailure("timeout", "The tool did not finish in time")
    if error.code == "internal_error":
        return ToolFailure("execution_error", "The tool's process ended before the tool did")
    return ToolFailure("execution_error", error.message)


def _not_had(error: PackageNotFound | StoreError) -> ToolFailure:
    if isinstance(error, PackageNotFound):
        return ToolFailure("package_not_found", error.message, error.retryable)
    # It names folders of ours.
    logger.error("%s", error)
    return ToolFailure("internal", "The server failed; its log says why")


def _checked(text: str) -> bytes | None:
    """JSON text of a guest's as bytes on one line, or None if it is not that."""
    try:
        json = text.encode()
        msgspec.json.decode(json, type=msgspec.Raw)
    except (UnicodeEncodeError, msgspec.DecodeError, RecursionError):
        return None
    return None if b"\n" in json or b"\r" in json else json
