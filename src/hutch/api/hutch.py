"""`hutch.Hutch`: runs guest code locally or in an external runner."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property, partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, overload

import msgspec

from hutch.api.options import (
    Engine,
    Files,
    LocalOptions,
    McpConfig,
    RunOptions,
    StartOptions,
    Tools,
    TurnOptions,
    check_code,
    providers_of,
)
from hutch.errors import HutchError, InvalidExecution, QuotaExceeded, SettingError
from hutch.kernel.execution import Execution
from hutch.kernel.kernel import Kernel
from hutch.kernel.records import RunRecorder
from hutch.sandbox.pool.pool import Pool
from hutch.sandbox.runner.profile import EXTERNAL, profile_for
from hutch.session.events.live_run import Run
from hutch.session.events.log_relay import relay_logs
from hutch.session.inputs import encode_inputs
from hutch.session.run import Result, RunHandle, refused_result
from hutch.session.suspension import Answer, answer_of, answers_of
from hutch.settings import load_settings

if TYPE_CHECKING:
    from hutch.api.stateful_session import Session
    from hutch.app.app import App
    from hutch.kernel.durable.suspended_runs import SuspendedRuns
    from hutch.kernel.sessions.sessions import SessionInfo, Sessions
    from hutch.protocols.toolscript.providers import McpConfigurations
    from hutch.settings import Settings
    from hutch.settings.overrides import SettingOverrides


class Hutch:
    """Runs guest code in a sandbox.

    ```python
    async with hutch.Hutch() as h:
        r = await h.run("return (await tools.add({a: 1, b: 2})) * 2", tools=[add])
    ```

    Keyword arguments are settings (see `hutch.settings.Settings`). They override HUTCH_* variables and
    hutch.toml in HUTCH_HOME. Nothing is read from the current directory. `runner` is the command of an
    external Execbox runner (JSON lines over stdin and stdout), which is used instead of Hutch's own jail.
    """

    def __init__(
        self,
        *,
        runner: Sequence[str] | None = None,
        settings: Settings | None = None,
        **overrides: Unpack[SettingOverrides],
    ) -> None:
        if settings is not None and overrides:
            names = ", ".join(overrides)
            raise SettingError(f"{names}: expected either `settings` or single settings, got both.")
        if runner is not None and (isinstance(runner, str) or not runner):
            raise SettingError(f"runner: expected a list such as ['hutch', 'runner'], got {runner!r}.")
        self.settings = settings or load_settings({**overrides})
        self._runner = runner
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting = asyncio.Lock()
        self._kernel: Kernel | None = None
        self._app: App | None = None
        self._close: Callable[[], Awaitable[None]] | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Creates the sandbox. Runner processes start with the first execution of their engine."""
        async with self._starting:
            await self._open()

    async def _open(self) -> None:
        self._check_open()
        loop = asyncio.get_running_loop()
        if self._kernel is not None:
            if loop is not self._loop:
                raise HutchError(
                    "This Hutch belongs to another event loop.",
                    remedy="Create one in each loop, or use hutch.run_sync().",
                )
            return
        self._loop = loop
        if self._runner is not None:
            pool = _external_pool(self.settings, self._runner)
            self._kernel, self._close = Kernel(self.settings, pool, RunRecorder()), pool.close
            return
        from hutch.app.app import App

        app = await App.create(self.settings)
        self._kernel, self._close = app.kernel, app.close
        self._app = app
        if self._closed:
            await self.close()
            self._check_open()

    def _check_open(self) -> None:
        if self._closed:
            raise HutchError("This Hutch was closed.", remedy="Create a new one.")

    async def close(self) -> None:
        """Ends all runner processes and removes all temporary files."""
        self._closed = True
        close, self._close, self._kernel = self._close, None, None
        if "_mcp_configurations" in self.__dict__:
            await self._mcp_configurations.close()
        if close is not None:
            await close()

    async def run(
        self,
        code: str,
        *,
        tools: Tools = None,
        inputs: Mapping[str, Any] | None = None,
        files: Files | None = None,
        on_log: Callable[[str], object] | None = None,
        engine: Engine | None = None,
        owner: str = "default",
        mcp: McpConfig | None = None,
        check: bool = False,
        timeout_ms: float | None = None,
        memory_limit_bytes: int | None = None,
        max_log_lines: int | None = None,
        max_log_chars: int | None = None,
    ) -> Result:
        """Runs guest code to its end. A failure of the guest is a Result, not an exception.

        `inputs` are variables of the guest. `files` are files that the guest can read with `await
        files.read(name)`. Files that the guest writes are in `Result.files`. `on_log` is called with each log
        line when the line arrives, and may be async. If `on_log` raises an exception, the execution is
        stopped, and `run` raises the exception. `engine` defaults to `quickjs`. With an external `runner`,
        the runner chooses the default. `mcp` is a configuration of MCP servers, as a file or a dict. The
        guest calls the tools of these servers as `tools.<server>.<tool>`. With `check`, the code is
        TypeScript that is checked against the declarations of all tools before it runs.

        If a quota is exceeded, the Result has the error code `rate_limited`. Raises HutchError if the
        execution could not be started: Busy, InvalidExecution, InvalidTool, SandboxUnavailable. Cancelling
        the call stops the guest and its tools.
        """
        kernel, execution = await self._execution(
            code,
            tools=tools,
            inputs=inputs,
            files=files,
            engine=engine,
            owner=owner,
            mcp=mcp,
            check=check,
            timeout_ms=timeout_ms,
            memory_limit_bytes=memory_limit_bytes,
            max_log_lines=max_log_lines,
            max_log_chars=max_log_chars,
        )
        if on_log is None:
            return await _run(kernel, execution)
        return await relay_logs(on_log, partial(_run, kernel, execution))

    async def start(self, code: str, **options: Unpack[StartOptions]) -> Run:
        """Starts guest code without waiting for its result. The arguments are those of `run`.

        ```python
        run = await h.start("console.log('hello')")
        async for event in run:
            print(event)
        result = await run.result()
        ```

        Raises InvalidExecution, InvalidTool, SandboxUnavailable. `Run.result` raises Busy.
        """
        kernel, execution = await self._execution(code, **options)
        seal = None if self._app is None else partial(self._seal, execution.owner)
        return Run(partial(_run, kernel, execution), seal=seal)

    def session(self, session_id: str | None = None, *, owner: str = "default") -> Session:
        """Returns a session whose turns share their variables, in this process and later ones.

        ```python
        async with h.session("analysis") as s:
            await s.run("let x = 1")
            result = await s.run("x + 1")  # result.result == 2
        ```

        Continues the session with this id and owner if it exists. Otherwise the first turn creates the
        session. Without an id, the session is always new. Raises InvalidExecution.
        """
        from hutch.api.stateful_session import Session
        from hutch.kernel.sessions.sessions import check_session_id, new_session_id

        if session_id is None:
            session_id = new_session_id()
        check_session_id(session_id)

        async def execution(code: str, options: TurnOptions) -> Execution:
            return (await self._execution(code, owner=owner, **options))[1]

        return Session(session_id, owner, self._stateful_sessions, execution)

    async def sessions(self, *, owner: str = "default") -> list[SessionInfo]:
        """Lists the sessions of an owner, the last used one first."""
        return await (await self._stateful_sessions()).list(owner)

    async def _stateful_sessions(self) -> Sessions:
        return (await self._opened_app("keep sessions")).sessions

    async def resume(
        self,
        run: str | bytes,
        results: Mapping[str, Any] | None = None,
        *,
        errors: Mapping[str, str] | None = None,
        tools: Tools = None,
        owner: str = "default",
    ) -> Run:
        """Continues a suspended run, also one that another process has suspended.

        `run` is the id of a run, if both processes use the same store, or the bytes of `Run.checkpoint`, if
        both have the same master key.

        ```python
        result = await h.run("return await tools.ask({what: 'lunch'})", tools=[ask])  # raises Suspend
        (call,) = result.pending_calls
        run = await h.resume(result.run_id, {call.call_id: "yes"}, tools=[ask])
        result = await run.result()
        ```

        `results` maps the ids of pending calls to their results, `errors` maps the ids of failed calls to
        error messages. A call can be answered only once. `tools` are the tools that the run may call from now
        on. Raises ResumeError, InvalidTool and InvalidExecution.
        """
        suspended_runs = await self._opened()
        answers = await answers_of(results, errors)
        providers = providers_of(tools)
        run_id = await suspended_runs.sealed.add(run, owner) if isinstance(run, bytes) else run
        if answers:
            await suspended_runs.calls.answer(run_id, owner, answers, providers)
        execution, handle = await suspended_runs.resume(run_id, owner, providers)
        return Run(partial(suspended_runs.run, execution), handle, partial(self._seal, owner))

    async def _seal(self, owner: str, run_id: str) -> bytes:
        return await (await self._opened()).sealed.seal(run_id, owner)

    async def resolve(self, token: str, value: Any = None, *, error: str | None = None) -> str:
        """Delivers the result or the error of a call whose tool returned `Deferred(token)`.

        Returns the id of the run, which `resume` continues. Raises ResumeError and InvalidExecution.
        """
        suspended_runs = await self._opened()
        if error is None:
            answer = await answer_of(value, "value")
        else:
            answer = Answer(code="tool_error", message=error)
        return await suspended_runs.calls.resolve(token, answer)

    async def _opened(self) -> SuspendedRuns:
        return (await self._opened_app("suspend runs")).suspended_runs

    async def _opened_app(self, action: str) -> App:
        if self._kernel is None or asyncio.get_running_loop() is not self._loop:
            await self.open()
        if self._app is None:
            raise HutchError(f"An external runner cannot {action}.", remedy="Create Hutch without `runner`.")
        return self._app

    async def _execution(
        self,
        code: str,
        *,
        tools: Tools = None,
        inputs: Mapping[str, Any] | None = None,
        files: Files | None = None,
        engine: Engine | None = None,
        owner: str = "default",
        mcp: McpConfig | None = None,
        check: bool = False,
        timeout_ms: float | None = None,
        memory_limit_bytes: int | None = None,
        max_log_lines: int | None = None,
        max_log_chars: int | None = None,
    ) -> tuple[Kernel, Execution]:
        check_code(code)
        if self._kernel is None or asyncio.get_running_loop() is not self._loop:
            await self.open()
        kernel = self._kernel
        assert kernel is not None
        limits = kernel.limits(
            {
                "timeout_ms": timeout_ms,
                "memory_limit_bytes": memory_limit_bytes,
                "max_log_lines": max_log_lines,
                "max_log_chars": max_log_chars,
            }
        )
        profile = profile_for(engine or "quickjs")
        if self._runner is not None:
            profile, limits = EXTERNAL, msgspec.structs.replace(limits, engine=engine)
            if files is not None:
                raise InvalidExecution("files", "expected none: an external runner has no files")
        providers = providers_of(tools)
        unavailable: dict[str, str] = {}
        if mcp is not None:
            servers, unavailable = await self._mcp_configurations.providers(mcp)
            providers += servers
        return kernel, Execution(
            code=code,
            profile=profile,
            limits=limits,
            providers=providers,
            unavailable_servers=unavailable,
            inputs=encode_inputs(inputs, providers),
            files=kernel.files(files) if self._runner is None else None,
            check=check,
            owner=owner,
            checkpoint_after_ms=self.settings.checkpoint_after_ms,
        )

    @cached_property
    def _mcp_configurations(self) -> McpConfigurations:
        from hutch.protocols.toolscript.providers import McpConfigurations

        return McpConfigurations(self.settings)

    @overload
    def as_tool(
        self,
        tools: Tools = None,
        *,
        sync: Literal[False] = False,
        name: str = "run_code",
        max_chars: int = 20_000,
        **options: Unpack[LocalOptions],
    ) -> Callable[[str], Awaitable[str]]: ...

    @overload
    def as_tool(
        self,
        tools: Tools = None,
        *,
        sync: Literal[True],
        name: str = "run_code",
        max_chars: int = 20_000,
        **options: Unpack[LocalOptions],
    ) -> Callable[[str], str]: ...

    def as_tool(
        self,
        tools: Tools = None,
        *,
        sync: bool = False,
        name: str = "run_code",
        max_chars: int = 20_000,
        **options: Unpack[LocalOptions],
    ) -> Callable[[str], Awaitable[str] | str]:
        """Returns a function `run_code(code: str) -> str` that an agent framework can offer to a model.

        The function's docstring declares `tools` in TypeScript. The result is text for the model: the value
        as JSON or the error, and the log lines, each at most `max_chars` long. `options` are those of `run`.

        The function is async. With `sync`, the function blocks, for frameworks without an event loop, and
        runs code in a separate sandbox with the same settings. Raises InvalidTool.
        """
        from hutch.api.agent_tool import async_tool, sync_tool

        providers = providers_of(tools)
        if sync:
            from hutch.api.sync import BackgroundHutch

            background = BackgroundHutch(Hutch(settings=self.settings, runner=self._runner))
            run_options: RunOptions = {"tools": providers, **options}
            return sync_tool(lambda code: background.run(code, run_options), providers, name, max_chars)
        run = partial(self.run, tools=providers, **options)
        return async_tool(run, providers, name, max_chars)


async def _run(kernel: Kernel, execution: Execution, run: RunHandle | None = None) -> Result:
    run = run or RunHandle()
    try:
        return await kernel.run(execution, run)
    except QuotaExceeded as error:
        return refused_result(str(error), error.retry_after, run.id)


def _external_pool(settings: Settings, command: Sequence[str]) -> Pool:
    from hutch.sandbox.runner.external import ExternalLauncher

    # Use one VM, because an external runner has one session at a time. Owners share the runners: the command
    # of the runner determines how executions are isolated.
    pool_settings = msgspec.structs.replace(
        settings,
        quickjs_vms=1,
        quickjs_processes=settings.max_processes,
        max_processes_per_owner=settings.max_processes,
        owners_share=True,
    )
    return Pool(pool_settings, ExternalLauncher(command, settings.max_line_bytes).launch)
