"""A server that is a program: started with little of our environment, bounded, and ended for certain."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import anyio

from hutch.upstream import warden
from hutch.upstream.entries import Program

# Where programs, files and certificates are, and how to speak; nothing of ours, and no secrets.
_NAMES = """
    PATH HOME USER LOGNAME SHELL LANG LANGUAGE TZ TMPDIR
    XDG_CACHE_HOME XDG_CONFIG_HOME XDG_DATA_HOME XDG_STATE_HOME XDG_RUNTIME_DIR
    SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE NODE_EXTRA_CA_CERTS
"""
INHERITED = frozenset(_NAMES.split())
COMPLAINT_BYTES = 4096
# More than the warden takes to end everything.
END_SECONDS = 4.0
LAST_SECONDS = 1.0


class CannotStart(Exception):
    """The program cannot be started; the text says why."""


def minimal(environ: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """The environment of a server."""
    kept = {
        name: value
        for name, value in environ.items()
        if (name in INHERITED or name.startswith("LC_")) and not value.startswith("()")
    }
    return {"LANG": "C.UTF-8", **kept, **own}


class ServerProcess:
    """A running server, its warden above it. Belongs to the event loop that started it."""

    def __init__(self, program: Program, environ: Mapping[str, str]) -> None:
        """Raises CannotStart."""
        env = minimal(environ, program.env)
        command = _find(program, env)
        self._complaint = bytearray()
        self._code: int | None = None
        self._exited = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        theirs, self._control = os.pipe()
        try:
            # Alone: what the server's variables mean to Python is meant for the server.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", warden.__file__, str(theirs), command, *program.args],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=env,
                cwd=program.cwd,
                pass_fds=(theirs,),
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            os.close(self._control)
            raise CannotStart(f"it cannot be started: {error}") from None
        finally:
            os.close(theirs)
        try:
            self._pidfd = os.pidfd_open(self._process.pid)
        except OSError as error:
            self._abandon()
            raise CannotStart(f"it cannot be watched: {error}") from None
        self._loop.add_reader(self._pidfd, self._reap)
        os.set_blocking(self._stderr.fileno(), False)
        self._loop.add_reader(self._stderr.fileno(), self._hear_complaint)

    @property
    def stdin(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def stdout(self) -> IO[bytes]:
        assert self._process.stdout is not None
        return self._process.stdout

    @property
    def _stderr(self) -> IO[bytes]:
        assert self._process.stderr is not None
        return self._process.stderr

    @property
    def complaint(self) -> str:
        """The last of what it wrote to stderr."""
        return self._complaint.decode(errors="replace").strip()

    @property
    def described_end(self) -> str:
        """How it ended, in words."""
        code = self._code
        if code is None:
            return "it closed its output"
        return f"it ended ({f'signal {code - 128}' if code > 128 else f'exit code {code}'})"

    async def end(self, *, is_ending: bool) -> None:
        """Ends it and all that it started; stdin is closed by now. Comes to its end even if cancelled.

        One that is ending by itself, as far as we can see, gets a moment, so that we know how.
        """
        ending = asyncio.ensure_future(self._ended(is_ending))
        with anyio.CancelScope(shield=True):
            try:
                await asyncio.shield(ending)
            except asyncio.CancelledError:
                await asyncio.wait((ending,))
                raise

    async def _ended(self, is_ending: bool) -> None:
        if is_ending:
            await self._wait(LAST_SECONDS)
            self._code = self._process.returncode
        os.close(self._control)
        if not await self._wait(END_SECONDS):
            # The server dies with its warden.
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            await self._exited.wait()

    async def _wait(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._exited.wait()
        return self._exited.is_set()

    def _abandon(self) -> None:
        """Ends what nobody would see end; the server dies with its warden."""
        os.close(self._control)
        for pipe in (self.stdin, self.stdout, self._stderr):
            pipe.close()
        self._process.kill()
        self._process.wait()

    def _reap(self) -> None:
        self._process.poll()
        if self._process.returncode is None:
            return
        self._hear_complaint()
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._loop.remove_reader(self._stderr.fileno())
        self._stderr.close()
        self._exited.set()

    def _hear_complaint(self) -> None:
        """Takes in all of stderr, so that it never blocks, and keeps the end of it."""
        for _ in range(16):
            try:
                data = os.read(self._stderr.fileno(), 65536)
            except OSError:
                return
            if not data:
                self._loop.remove_reader(self._stderr.fileno())
                return
            self._complaint += data
            del self._complaint[:-COMPLAINT_BYTES]


def _find(program: Program, env: Mapping[str, str]) -> str:
    if program.cwd is not None and not Path(program.cwd).is_dir():
        raise CannotStart(f"its working directory {program.cwd} does not exist")
    if "/" in program.command:
        # As the server's working directory sees it.
        path = Path(program.cwd or ".") / Path(program.command).expanduser()
        found = shutil.which(str(path.absolute()))
    else:
        found = shutil.which(program.command, path=env.get("PATH"))
    if found is None:
        raise CannotStart(f"there is no program {program.command!r} that can be run")
    return found
