"""Somebody else's Execbox runner, driven over its stdin and stdout: one session at a time, reused."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence

import msgspec

from hutch.errors import SandboxUnavailable
from hutch.sandbox.pool import Pool
from hutch.sandbox.process import READY_SECONDS
from hutch.sandbox.profile import EXTERNAL, Profile
from hutch.sandbox.runner import Runner
from hutch.session.channel import StreamChannel, connect_pipes
from hutch.session.host import Outcome, Session
from hutch.session.link import Link
from hutch.settings import Settings

# How long a runner may take to end after its stdin did. Ours promises a second.
LEAVE_SECONDS = 1.5


class ExternalRunner(Runner):
    """A runner process of the caller's own choosing. It is as isolated as the caller made it."""

    def __init__(self, process: subprocess.Popen[bytes], link: Link) -> None:
        super().__init__(EXTERNAL)
        self._link = link
        self._process = process
        self._deadline: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._pidfd = os.pidfd_open(process.pid)
        self._loop.add_reader(self._pidfd, self._reap)

    @property
    def link(self) -> Link:
        return self._link

    @property
    def alive(self) -> bool:
        return self.link.closed is None and not self.exited

    def began(self, session: Session) -> None:
        self.executions += 1

    def ended(self, outcome: Outcome, session: Session) -> None:
        self.idle_since = self._loop.time()

    def spent(self, outcome: Outcome | None) -> bool:
        """After a timeout or a failure of its own it may still be busy with the old execution."""
        return outcome is None or (
            outcome.error is not None and outcome.error.code in ("timeout", "internal_error")
        )

    def kill(self) -> None:
        """Closes its stdin, so that it can tidy up; if that does not end it, a signal does."""
        self.link.close()
        if self._deadline is None and not self.exited:
            self._deadline = self._loop.call_later(LEAVE_SECONDS, self._kill)

    def _kill(self) -> None:
        # A session of its own, so that what it started goes with it.
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
        self.link.lose(f"it ended with exit code {code}")
        self._exited.set()
        self.on_exit(self)


def external_pool(settings: Settings, command: Sequence[str]) -> Pool:
    """A pool whose every runner is a process of `command`."""
    one_at_a_time = msgspec.structs.replace(
        settings, quickjs_vms=1, quickjs_processes=settings.max_processes, owners_share=True
    )

    async def launch(_: Profile) -> Runner:
        channel = StreamChannel(settings.max_line_bytes)
        link = Link(channel, full_manifests=True, start_seconds=READY_SECONDS)
        stdin, write = os.pipe()
        read, stdout = os.pipe()
        try:
            # Before there is a process: the first that it says may be that it has ended.
            await connect_pipes(channel, os.fdopen(read, "rb", 0), os.fdopen(write, "wb", 0))
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
            return ExternalRunner(process, link)
        except OSError as error:
            channel.close()
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise SandboxUnavailable(f"The runner {command[0]!r} cannot be watched: {error}") from None

    return Pool(one_at_a_time, launch)
