"""Process of a stdio server, with a minimal environment, bounded stderr and reliable termination."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping
from pathlib import Path

import anyio

from hutch.child_process.process import ChildProcess, find_program, read_available
from hutch.errors import SandboxUnavailable
from hutch.mcp_client.config import INSIDE_VARIABLE, StdioConfig
from hutch.sandbox.deno_binary import find_deno
from hutch.tasks import finish

# Variables that a server inherits: paths, locale and certificates, but no secrets and nothing specific to
# Hutch.
_INHERITED = """
    PATH HOME USER LOGNAME SHELL LANG LANGUAGE TZ TMPDIR
    XDG_CACHE_HOME XDG_CONFIG_HOME XDG_DATA_HOME XDG_STATE_HOME XDG_RUNTIME_DIR
    SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE NODE_EXTRA_CA_CERTS
"""
INHERITED_VARIABLES = frozenset(_INHERITED.split())
MAX_STDERR_BYTES = 4096
# Timeout for the reaper to end all processes. The reaper normally needs less time.
STOP_SECONDS = 4.0
EXIT_SECONDS = 1.0


class ServerStartError(Exception):
    """Raised if the program cannot be started. The message contains the reason."""


def server_environment(environ: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    inherited = {
        name: value
        for name, value in environ.items()
        if (name in INHERITED_VARIABLES or name.startswith("LC_")) and not value.startswith("()")
    }
    return {"LANG": "C.UTF-8", **inherited, **own, INSIDE_VARIABLE: "1"}


class ServerProcess:
    """Running server, as a child of its reaper process. Belongs to the event loop that started it."""

    def __init__(self, program: StdioConfig, environ: Mapping[str, str]) -> None:
        """Starts the program. Raises ServerStartError."""
        env = server_environment(environ, program.env)
        cwd = None if program.cwd is None else Path(program.cwd)
        command = _find_program(program.command, env, cwd)
        self._stderr_bytes = bytearray()
        self._code: int | None = None
        self._exited = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        try:
            self._process = ChildProcess((command, *program.args), env, cwd=cwd)
        except (OSError, ValueError) as error:
            raise ServerStartError(f"it cannot be started: {error}") from None
        try:
            self._pidfd = os.pidfd_open(self._process.pid)
        except OSError as error:
            self._process.abandon()
            raise ServerStartError(f"it cannot be watched: {error}") from None
        self.stdin = self._process.stdin
        self.stdout = self._process.stdout
        self._stderr = self._process.stderr
        self._loop.add_reader(self._pidfd, self._reap)
        self._loop.add_reader(self._stderr.fileno(), self._read_stderr)

    @property
    def stderr_tail(self) -> str:
        """The last bytes that the server wrote to stderr, as text."""
        return self._stderr_bytes.decode(errors="replace").strip()

    @property
    def exit_description(self) -> str:
        code = self._code
        if code is None:
            return "it closed its output"
        return f"it ended ({f'signal {code - 128}' if code > 128 else f'exit code {code}'})"

    async def stop(self, *, is_exiting: bool) -> None:
        """Ends the server and all its descendants, even if cancelled. The caller must have closed stdin.

        With `is_exiting`, first waits a moment for the server to exit by itself, so that its exit code is
        known.
        """
        with anyio.CancelScope(shield=True):
            await finish(self._stop(is_exiting))

    async def _stop(self, is_exiting: bool) -> None:
        if is_exiting:
            await self._wait(EXIT_SECONDS)
            self._code = self._process.exit_code()
        self._process.terminate(at_once=False)
        if not await self._wait(STOP_SECONDS):
            # Kill the reaper. The server dies with it.
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            await self._exited.wait()

    async def _wait(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._exited.wait()
        return self._exited.is_set()

    def _reap(self) -> None:
        if self._process.exit_code() is None:
            return
        self._read_stderr()
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._loop.remove_reader(self._stderr.fileno())
        self._stderr.close()
        self._exited.set()

    def _read_stderr(self) -> None:
        """Reads all of stderr, so that the server never blocks on writing it. Keeps only the end."""
        for data in read_available(self._stderr):
            if not data:
                self._loop.remove_reader(self._stderr.fileno())
                return
            self._stderr_bytes += data
            del self._stderr_bytes[:-MAX_STDERR_BYTES]


def _find_program(program: str, env: Mapping[str, str], cwd: Path | None) -> str:
    if cwd is not None and not cwd.is_dir():
        raise ServerStartError(f"its working directory {cwd} does not exist")
    path = find_program(program, env, cwd)
    if path is None and program == "deno":
        # Use the Deno that is installed with Hutch, because the PATH contains its folder only in an activated
        # virtual environment.
        with contextlib.suppress(SandboxUnavailable):
            path = find_deno()
    if path is None:
        raise ServerStartError(f"there is no program {program!r} that can be run")
    return path
