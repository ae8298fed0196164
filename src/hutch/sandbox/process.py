"""One jailed process with a runner in it: started, spoken with, bounded, and ended for certain."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable
from typing import IO

import msgspec

from hutch.errors import SandboxUnavailable
from hutch.sandbox.cgroup import Group
from hutch.sandbox.jail import Command
from hutch.sandbox.meter import Meter, Watch
from hutch.sandbox.pool import Runner
from hutch.sandbox.profile import Profile
from hutch.session.channel import StreamChannel
from hutch.session.host import GUEST_CODES, RUNNER_CODES, Outcome, Session, clip_logs
from hutch.session.link import Link
from hutch.session.messages import WireError

READY_SECONDS = 20.0
OUTPUT_KEPT = 64 * 1024
# Before a line that the guest printed on its console, which follows as JSON.
CONSOLE_MARK = "\x1e"
# What a Deno process may take beyond the guest's limit before it counts as the guest's.
OVERHEAD_BYTES = 32 * 1024 * 1024


class RunnerProcess:
    """A runner and the process that holds it."""

    def __init__(self, profile: Profile, command: Command, group: Group | None, meter: Meter | None) -> None:
        self.profile = profile
        self.owner: str | None = None
        self.executions = 0
        self.in_flight = 0
        self.idle_since = 0.0
        self.suspects: set[str] = set()
        self.on_exit: Callable[[Runner], None] = lambda _: None
        self._link: Link | None = None
        self._loop = asyncio.get_running_loop()
        self._group = group
        self._meter = meter
        self._watch: Watch | None = None
        self._out_of_memory = False
        self._output = bytearray()
        self._exited = asyncio.Event()
        read, write = os.pipe()
        os.set_blocking(read, False)
        spoken = subprocess.PIPE if profile.details.speaks_on_stdout else write
        try:
            with command:
                self._process = subprocess.Popen(
                    command.argv,
                    stdin=subprocess.DEVNULL,
                    stdout=spoken,
                    stderr=write,
                    **command.options(),
                )
        except OSError as error:
            os.close(read)
            raise SandboxUnavailable(f"The sandbox cannot be started: {error}") from None
        finally:
            os.close(write)
        self._pidfd = os.pidfd_open(self._process.pid)
        self._output_fd = read
        self._loop.add_reader(self._pidfd, self._reap)
        self._loop.add_reader(self._output_fd, self._drain)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def link(self) -> Link:
        """Only of a runner that is ready."""
        if self._link is None:
            raise RuntimeError("the runner is not ready")
        return self._link

    @property
    def exited(self) -> bool:
        return self._exited.is_set()

    @property
    def alive(self) -> bool:
        return self._link is not None and self._link.closed is None and not self.exited

    @property
    def stdout(self) -> IO[bytes] | None:
        """Where the runner speaks, if not on its socket."""
        return self._process.stdout

    async def ready(self, greeting: asyncio.Future[StreamChannel]) -> None:
        """Waits for the runner's first line. Raises SandboxUnavailable with what it printed otherwise."""
        exited = self._loop.create_task(self._exited.wait())
        try:
            async with asyncio.timeout(READY_SECONDS):
                await asyncio.wait((greeting, exited), return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            pass
        finally:
            exited.cancel()
        if greeting.done():
            self._adopt(greeting.result())
            return
        greeting.cancel()
        self.kill()
        await self.wait()
        said = self.output().strip() or "it said nothing"
        raise SandboxUnavailable(
            f"The {self.profile.engine} runner did not start: {said}.", remedy="Run `hutch doctor`."
        )

    def _adopt(self, channel: StreamChannel) -> None:
        self._link = Link(channel, codes=GUEST_CODES if self.profile.details.single_use else RUNNER_CODES)
        channel.on_close = self._channel_closed
        self.idle_since = self._loop.time()

    # --- executions ---

    def began(self, session: Session) -> None:
        """An execution starts here: for a process of its own, its memory limit is the process's."""
        self.executions += 1
        if not self.profile.details.single_use:
            return
        allowed = session.limits.memory_limit_bytes + OVERHEAD_BYTES
        if self._group is not None:
            try:
                self._group.set_memory(self._group.memory_used() + allowed)
            except OSError as error:
                session.lose(f"its memory cannot be bounded: {error}")
        elif self._meter is not None:
            self._watch = self._meter.watch(self.pid, allowed, self._exceeded)

    def ended(self, outcome: Outcome, session: Session) -> None:
        """Adds what the guest printed past its console to the logs, as far as the limits allow.

        Of a guest that was killed, also what it printed on its console: the runner writes it twice.
        """
        self.idle_since = self._loop.time()
        if not self.profile.details.single_use:
            return
        self._drain()
        reported = bool(outcome.logs)
        logs = list(outcome.logs)
        for line in self.output().removesuffix("\n").split("\n") if self._output else ():
            if not line.startswith(CONSOLE_MARK):
                logs.append(line)
            elif not reported:
                with contextlib.suppress(ValueError):
                    logs.append(msgspec.json.decode(line.removeprefix(CONSOLE_MARK), type=str))
        outcome.logs, clipped = clip_logs(logs, session.limits)
        outcome.logs_truncated |= clipped or len(self._output) >= OUTPUT_KEPT

    def spent(self, outcome: Outcome | None) -> bool:
        return self.profile.details.single_use

    def output(self) -> str:
        """What the process wrote to stdout and stderr, or the beginning of it."""
        return self._output.decode(errors="replace")

    def _exceeded(self) -> None:
        self._out_of_memory = True
        self._channel_closed("its process ran out of memory")

    def _channel_closed(self, reason: str) -> None:
        if self._group is not None and self._group.oom_kills() > 0:
            self._out_of_memory = True
        if self.profile.details.single_use:
            # Nobody else was in there: running it again would only end it again.
            for session in list(self.link.sessions.values()):
                session.fail(self._own_fault(session, reason))
        elif self._out_of_memory:
            reason = "its process ran out of memory"
        self.link.lose(reason)
        self.kill()

    def _own_fault(self, session: Session, reason: str) -> WireError:
        if not self._out_of_memory:
            return WireError(code="internal_error", message=f"The runner was lost: {reason}")
        mebibytes = session.limits.memory_limit_bytes / 2**20
        message = f"Execution exceeded its memory limit of {mebibytes:g} MiB"
        return WireError(code="memory_limit", message=message)

    # --- the end ---

    def kill(self) -> None:
        """Ends the process and everything in it. Harmless when it is over already."""
        if self._link is not None:
            self._link.close()
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        if self._group is not None:
            self._group.kill()

    async def wait(self) -> None:
        await self._exited.wait()

    def _reap(self) -> None:
        self._process.poll()
        if self._process.returncode is None:
            return
        self._drain()
        for fd in (self._pidfd, self._output_fd):
            self._loop.remove_reader(fd)
            os.close(fd)
        # Another file may get these numbers now.
        self._pidfd = self._output_fd = -1
        if self._watch is not None:
            self._watch.stop()
        if self._link is not None and self._link.closed is None:
            self._channel_closed("its process ended")
        self._exited.set()
        if self._group is not None:
            self._group.remove()
        self.on_exit(self)

    def _drain(self) -> None:
        """Keeps the beginning of what the process prints and takes in the rest, so that it never blocks."""
        for _ in range(64):
            try:
                data = os.read(self._output_fd, 65536)
            except (BlockingIOError, OSError):
                return
            if not data:
                self._loop.remove_reader(self._output_fd)
                return
            room = OUTPUT_KEPT - len(self._output)
            self._output += data[: max(0, room)]
