"""Runs an external Execbox runner over its stdin and stdout. The process serves one session at a time and is
reused.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence

from hutch.errors import SandboxUnavailable
from hutch.sandbox.runner.base import Runner
from hutch.sandbox.runner.process import READY_SECONDS
from hutch.sandbox.runner.profile import EXTERNAL, Profile
from hutch.session.channels.stream import StreamChannel, connect_pipes
from hutch.session.multiplexer import Multiplexer
from hutch.session.relayed_session import AnySession
from hutch.session.run import Result

# Time to exit after stdin is closed. `hutch runner` promises one second.
EXIT_SECONDS = 1.5


class ExternalRunner(Runner):
    """Runner started by a command of the caller. The command determines the isolation."""

    def __init__(self, process: subprocess.Popen[bytes], multiplexer: Multiplexer) -> None:
        super().__init__(EXTERNAL)
        self._multiplexer = multiplexer
        self._process = process
        self._deadline: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._pidfd = os.pidfd_open(process.pid)
        self._loop.add_reader(self._pidfd, self._reap)

    @property
    def multiplexer(self) -> Multiplexer:
        return self._multiplexer

    @property
    def is_alive(self) -> bool:
        return self.multiplexer.close_reason is None and not self.has_exited

    def execution_started(self, session: AnySession) -> None:
        self.executions += 1

    def execution_ended(self, result: Result, session: AnySession) -> Result:
        self.idle_since = self._loop.time()
        return result

    def is_used_up(self, result: Result | None) -> bool:
        """Returns True after a timeout or an internal error, because the runner may still be busy with the
        old execution.
        """
        return result is None or (
            result.error is not None and result.error.code in ("timeout", "internal_error")
        )

    def kill(self) -> None:
        """Closes the runner's stdin, so that the runner can clean up. Kills the process if it does not exit
        in time.
        """
        self.multiplexer.close()
        if self._deadline is None and not self.has_exited:
            self._deadline = self._loop.call_later(EXIT_SECONDS, self._kill)

    def _kill(self) -> None:
        # The process leads its own process group, so this kills its children, too.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _reap(self) -> None:
        code = self._process.poll()
        if code is None:
            return
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        if self._deadline is not None:
            self._deadline.cancel()
        self.multiplexer.mark_lost(f"it exited with code {code}")
        self._mark_exited()
        self.on_exit(self)


class ExternalLauncher:
    """Starts external runners with one command."""

    def __init__(self, command: Sequence[str], max_line_bytes: int) -> None:
        self._command = command
        self._max_line_bytes = max_line_bytes

    async def launch(self, profile: Profile, *, in_background: bool = False) -> Runner:
        """Starts a runner. Raises SandboxUnavailable."""
        command = self._command
        channel = StreamChannel(self._max_line_bytes)
        multiplexer = Multiplexer(channel, full_manifests=True, start_seconds=READY_SECONDS)
        stdin, stdin_writer = os.pipe()
        stdout_reader, stdout = os.pipe()
        try:
            # The pipes are connected before the process starts, because the process may exit immediately.
            await connect_pipes(channel, os.fdopen(stdout_reader, "rb", 0), os.fdopen(stdin_writer, "wb", 0))
            process = subprocess.Popen(  # noqa: ASYNC220 - vfork, a millisecond
                list(command), stdin=stdin, stdout=stdout, start_new_session=True
            )
        except OSError as error:
            channel.close()
            raise SandboxUnavailable(f"The runner {command[0]!r} cannot be started: {error}") from None
        except asyncio.CancelledError:
            channel.close()
            raise
        finally:
            os.close(stdin)
            os.close(stdout)
        try:
            return ExternalRunner(process, multiplexer)
        except OSError as error:
            channel.close()
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise SandboxUnavailable(f"The runner {command[0]!r} cannot be watched: {error}") from None
