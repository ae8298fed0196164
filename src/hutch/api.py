"""Hutch from Python: run guest code here, in a runner of your own, or on another machine."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec

from hutch import settings as settings_module
from hutch.errors import HutchError, InvalidExecution, InvalidTool, SettingError
from hutch.kernel import Execution, Kernel, Result
from hutch.runs import log_run
from hutch.session.providers import Provider
from hutch.session.tools import Tool

if TYPE_CHECKING:
    from hutch.remote import Remote
    from hutch.settings import Settings

_One = Provider | Tool | Callable[..., Any]
Tools = _One | Iterable[_One] | Mapping[str, _One | Iterable[_One]] | None


def providers_of(tools: Tools) -> list[Provider]:
    """Providers from whatever a caller finds convenient.

    A function, or a list of them, becomes the namespace `tools`; a mapping has a namespace for each of its
    keys; providers are taken as they are, also among functions.
    """
    if tools is None:
        return []
    if isinstance(tools, Mapping):
        return [Provider.of(*_several(each), name=name) for name, each in tools.items()]
    items = _several(tools)
    found = [each for each in items if isinstance(each, Provider)]
    functions = tuple(each for each in items if not isinstance(each, Provider))
    return [_provider(functions), *found] if functions else found


def _several(tools: Any) -> list[Any]:
    if isinstance(tools, Provider | Tool) or callable(tools):
        return [tools]
    if isinstance(tools, str | bytes) or not isinstance(tools, Iterable):
        raise InvalidTool(f"{tools!r} cannot be a tool.", remedy="Pass functions, not their names.")
    return list(tools)


def check_code(code: object) -> None:
    """Raises InvalidExecution for what is no text."""
    if not isinstance(code, str):
        raise InvalidExecution("code", f"expected a str, got {type(code).__name__}")


@lru_cache(maxsize=128)
def _provider(functions: tuple[Tool | Callable[..., Any], ...]) -> Provider:
    """Reading hints and docstrings takes longer than many an execution."""
    return Provider.of(*functions)


class Hutch:
    """A sandbox to run guest code in.

    ```python
    async with hutch.Hutch() as h:
        r = await h.run("return (await tools.add({a: 1, b: 2})) * 2", tools=[add])
    ```

    Keyword arguments are settings (see `hutch.settings.Settings`); they beat HUTCH_* variables
    and hutch.toml. With `runner`, a command, executions run in any Execbox runner that speaks
    one JSON object a line on stdin and stdout, instead of in Hutch's own jail.
    """

    def __init__(
        self,
        *,
        runner: Sequence[str] | None = None,
        settings: Settings | None = None,
        **overrides: Any,
    ) -> None:
        if settings is not None and overrides:
            names = ", ".join(overrides)
            raise SettingError(f"{names}: expected either `settings` or single settings, got both.")
        if runner is not None and (isinstance(runner, str) or not runner):
            raise SettingError(f"runner: expected a list such as ['hutch', 'runner'], got {runner!r}.")
        self.settings = settings or settings_module.load(overrides)
        self._runner = runner
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting = asyncio.Lock()
        self._kernel: Kernel | None = None
        self._close: Callable[[], Awaitable[None]] | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Makes the sandbox; runner processes start with the first execution of their engine."""
        async with self._starting:
            await self._start()

    async def _start(self) -> None:
        self._check_open()
        loop = asyncio.get_running_loop()
        if self._kernel is not None:
            if loop is not self._loop:
                raise HutchError(
                    "This Hutch belongs to another event loop.",
                    remedy="Make one in every loop, or use hutch.run_sync().",
                )
            return
        self._loop = loop
        if self._runner is not None:
            from hutch.sandbox.external import external_pool

            pool = external_pool(self.settings, self._runner)
            self._kernel, self._close = Kernel(self.settings, pool, log_run), pool.close
            return
        from hutch.app import App

        app = await App.create(self.settings)
        self._kernel, self._close = app.kernel, app.close
        if self._closed:
            await self.close()
            self._check_open()

    def _check_open(self) -> None:
        if self._closed:
            raise HutchError("This Hutch was closed.", remedy="Make another.")

    async def close(self) -> None:
        """Ends every runner process and removes every temporary file."""
        self._closed = True
        close, self._close, self._kernel = self._close, None, None
        if close is not None:
            await close()

    async def run(
        self,
        code: str,
        *,
        tools: Tools = None,
        engine: str | None = None,
        owner: str = "default",
        timeout_ms: float | None = None,
        memory_limit_bytes: int | None = None,
        max_log_lines: int | None = None,
        max_log_chars: int | None = None,
    ) -> Result:
        """Runs guest code to its end and returns how it ended; a guest's failure is a Result, no exception.

        `engine` is `quickjs` if nothing else is said, or with a `runner` of your own whichever that prefers.
        Raises HutchError when it could not be begun: Busy, InvalidExecution, InvalidTool, SandboxUnavailable.
        Cancelling the call stops the guest and its tools.
        """
        from hutch.sandbox.profile import EXTERNAL, profile_for

        check_code(code)
        if self._kernel is None or asyncio.get_running_loop() is not self._loop:
            await self.start()
        assert self._kernel is not None
        limits = self._kernel.limits(
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
        execution = Execution(
            code=code,
            profile=profile,
            limits=limits,
            providers=providers_of(tools),
            owner=owner,
        )
        return await self._kernel.run(execution)


def connect(url: str, *, api_key: str | None = None) -> Remote:
    """A Hutch on another machine: the same `run`, with the runner there and the tools here.

    ```python
    async with hutch.connect("ws://127.0.0.1:4111/execbox") as h:
        r = await h.run("return await tools.add({a: 1, b: 2})", tools=[add])
    ```
    """
    from hutch.remote import Remote

    return Remote(url, api_key=api_key)


class _Background:
    """An event loop in a thread, with a Hutch that stays warm between synchronous calls."""

    def __init__(self) -> None:
        self._hutch = Hutch()
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="hutch", daemon=True)
        self._thread.start()
        atexit.register(self._stop)

    @property
    def usable(self) -> bool:
        """A process that was forked off has none of its parent's threads."""
        return self._pid == os.getpid()

    def run(self, code: str, options: dict[str, Any]) -> Result:
        if threading.current_thread() is self._thread:
            raise HutchError("run_sync() would wait for itself.", remedy="In an async tool use Hutch.run().")
        future = asyncio.run_coroutine_threadsafe(self._hutch.run(code, **options), self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _stop(self) -> None:
        if self.usable:
            asyncio.run_coroutine_threadsafe(self._hutch.close(), self._loop).result(10)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


_background: _Background | None = None
_background_lock = threading.Lock()


def run_sync(code: str, **options: Any) -> Result:
    """`Hutch.run` for code without an event loop. The first call starts a sandbox that later calls reuse."""
    global _background
    with _background_lock:
        if _background is None or not _background.usable:
            _background = _Background()
        background = _background
    return background.run(code, options)
