"""One jailed process with a runner in it: started, spoken with, bounded, and ended for certain."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable
from functools import partial
from typing import IO, Literal, Protocol

import msgspec

from hutch.errors import SandboxUnavailable
from hutch.sandbox.bell import Bell
from hutch.sandbox.cgroup import Group
from hutch.sandbox.jail import Command, memory_file
from hutch.sandbox.meter import Meter, Watch, process_tree
from hutch.sandbox.outlet import Outlet
from hutch.sandbox.profile import Profile
from hutch.sandbox.runner import Runner
from hutch.session.channel import StreamChannel
from hutch.session.host import BACKSTOP, GUEST_CODES, RUNNER_CODES, Outcome, Session, clip_logs
from hutch.session.link import Link
from hutch.session.messages import WireError
from hutch.session.prompt import PromptChannel

READY_SECONDS = 20.0
OUTPUT_KEPT = 64 * 1024
# What a runner says once it has loaded what it was told to, and how long it may take to while nobody waits.
IMPORTED = b'{"type":"imported"}'
MAX_EARLY_LINES = 16
IMPORT_SECONDS = 30.0
# What a runner is told that nobody has wanted for a moment.
REHEARSE = b'{"type":"rehearse"}\n'
REHEARSE_SECONDS = 0.005
# What bubblewrap's exit code is if a signal ended what is inside, less the signal's number.
BY_SIGNAL = 128
# For a program to end that has closed its channel.
LEAVE_SECONDS = 1.0
# Before a line that the guest printed on its console, which follows as JSON; null: something was left out.
CONSOLE_MARK = "\x1e"
# What a Deno process may take beyond the guest's limit before it counts as the guest's.
OVERHEAD_BYTES = 32 * 1024 * 1024


class Way(Protocol):
    """A way out of a jail: somebody in the host who answers what comes out of it."""

    run_id: str | None
    """Whose requests these are, once an execution runs."""

    def close(self) -> None:
        """Nobody is in there any more."""


class Greeting:
    """The first line of a runner, and what it says in the same breath, before anybody else listens."""

    def __init__(self, channel: StreamChannel) -> None:
        self.channel = channel
        self.heard: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        """Whether there was any."""
        self.more: list[bytes] = []
        channel.on_line = self._hear

    def give_up(self) -> None:
        """None will come."""
        if not self.heard.done():
            self.heard.set_result(False)

    def _hear(self, line: bytes) -> None:
        if not self.heard.done():
            self.heard.set_result(True)
        elif len(self.more) < MAX_EARLY_LINES:
            self.more.append(line)


class RunnerProcess(Runner):
    """A runner and the process that holds it."""

    def __init__(
        self,
        profile: Profile,
        command: Command,
        group: Group | None,
        meter: Meter | None,
        bell: Bell | None = None,
    ) -> None:
        """`bell`: what it finds on its stdin, if it is to watch it."""
        super().__init__(profile)
        self._link: Link | None = None
        self._loop = asyncio.get_running_loop()
        self._group = group
        self._meter = meter
        self._watch: Watch | None = None
        self._out_of_memory = False
        self._on_gone: Callable[[], None] = _nothing
        self._output = bytearray()
        self._frozen: list[int] = []
        self.way: Way | None = None
        """Its only one to the network, if it has any."""
        self._outlets: set[Outlet] = set()
        stdin = subprocess.DEVNULL
        try:
            with command:
                stdin = _stdin(profile, bell)
                stdout, stderr = self._open_outlets()
                self._process = subprocess.Popen(
                    command.argv, stdin=stdin, stdout=stdout, stderr=stderr, **command.options()
                )
        except BaseException as error:
            for outlet in self._outlets:
                outlet.begin()
                outlet.close()
            if isinstance(error, OSError):
                raise SandboxUnavailable(f"The sandbox cannot be started: {error}") from None
            raise
        finally:
            if stdin >= 0:
                os.close(stdin)
        for outlet in self._outlets:
            outlet.begin()
        try:
            self._pidfd = os.pidfd_open(self._process.pid)
        except OSError as error:
            self._abandon()
            raise SandboxUnavailable(f"The sandbox cannot be watched: {error}") from None
        self._loop.add_reader(self._pidfd, self._reap)
        if profile.memory_bytes and meter is not None:
            self._watch = meter.watch(self.pid, profile.memory_bytes + OVERHEAD_BYTES, self._exceeded)

    def _open_outlets(self) -> tuple[int, int]:
        """What the process gets as stdout and stderr."""
        streams = self.profile.details.streams
        out = Outlet(partial(self._print, "stdout") if streams else self._keep)
        self._outlets.add(out)
        if streams:
            err = Outlet(partial(self._print, "stderr"))
            self._outlets.add(err)
            return out.for_process, err.for_process
        # What speaks there has no guests that print.
        speaks = self.profile.details.speaks_on_stdout
        return subprocess.PIPE if speaks else out.for_process, out.for_process

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
    def alive(self) -> bool:
        return self._link is not None and self._link.closed is None and not self.exited

    @property
    def stdout(self) -> IO[bytes] | None:
        """Where the runner speaks, if not on its socket."""
        return self._process.stdout

    async def ready(self, greeting: Greeting) -> None:
        """Waits for the runner's first line. Raises SandboxUnavailable with what it printed otherwise."""
        self._on_gone = greeting.give_up
        if self.exited:
            greeting.give_up()
        timer = self._loop.call_later(READY_SECONDS, greeting.give_up)
        try:
            heard = await greeting.heard
        finally:
            timer.cancel()
            self._on_gone = _nothing
        if not heard:
            raise await self.not_started()
        self._adopt(greeting.channel)
        for line in greeting.more:
            greeting.channel.on_line(line)

    async def not_started(self) -> SandboxUnavailable:
        """Ends it; with what it printed, as far as it did."""
        self.kill()
        await self.wait()
        said = self.output().strip() or "it said nothing"
        return SandboxUnavailable(
            f"The {self.profile.engine} runner did not start: {said}.", remedy="Run `hutch doctor`."
        )

    def _adopt(self, channel: StreamChannel) -> None:
        codes = GUEST_CODES if self.profile.details.own_process else RUNNER_CODES
        # Who loads something first may be at that for ever.
        start = 0.0 if self.profile.is_prepared else None
        now = channel.send_now if isinstance(channel, PromptChannel) else None
        backstop = BACKSTOP if self.profile.details.keeps_time else 0.0
        self._link = Link(channel, codes=codes, start_seconds=start, backstop_seconds=backstop, send_now=now)
        if self.profile.details.rehearses:
            self._loop.call_later(REHEARSE_SECONDS, self._rehearse, channel)
        channel.on_close = self._channel_closed
        self.idle_since = self._loop.time()
        if self.profile.is_prepared:
            understood = channel.on_line
            channel.on_line = lambda line: self._settle() if line == IMPORTED else understood(line)
            self._loop.call_later(IMPORT_SECONDS, self._give_up)

    # --- while nobody uses it ---

    def _rehearse(self, channel: StreamChannel) -> None:
        if self.in_flight == 0 and self.executions == 0 and self.alive:
            channel.send(REHEARSE)

    def _settle(self) -> None:
        """It has loaded what it was told to."""
        self.imported = True
        if self.in_flight == 0:
            self._freeze()

    def _give_up(self) -> None:
        if not self.imported and self.in_flight == 0:
            self.kill()

    def _freeze(self) -> None:
        """What a package left running may not use up the machine while nobody uses the package."""
        outer, *inner = process_tree(self.pid)
        # Bubblewrap's two processes are not the guest's.
        guests = inner[1:] if len(inner) > 1 else inner or [outer]
        for pid in guests:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGSTOP)
                self._frozen.append(pid)

    def _thaw(self) -> None:
        for pid in self._frozen:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGCONT)
        self._frozen.clear()

    def folder(self, path: str) -> int:
        """A descriptor of a folder that the guest sees, which outlasts it. Raises OSError."""
        guest = process_tree(self.pid)[-1]
        return os.open(f"/proc/{guest}/root{path}", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)

    # --- executions ---

    def began(self, session: Session) -> None:
        """An execution starts here: for a process of its own, its memory limit is the process's."""
        self.executions += 1
        if self.way is not None:
            self.way.run_id = session.id
        self._thaw()
        if self.executions > 1:
            self._output.clear()
        if not self.profile.details.own_process or self.profile.memory_bytes:
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
        if not self.profile.details.own_process:
            return
        self._drain()
        if self.profile.details.streams:
            return
        reported = bool(outcome.logs)
        logs = list(outcome.logs)
        for line in self.output().removesuffix("\n").split("\n") if self._output else ():
            printed, told = _parted(line)
            logs += printed
            outcome.logs_truncated |= told is None
            if told and not reported:
                logs += told
        outcome.logs, clipped = clip_logs(logs, session.limits)
        outcome.logs_truncated |= clipped or len(self._output) >= OUTPUT_KEPT
        if not self.spent(outcome):
            self._freeze()

    def spent(self, outcome: Outcome | None) -> bool:
        if not self.profile.details.own_process:
            return False
        return outcome is None or not outcome.ok or self.executions >= self.profile.uses

    def memory_used(self) -> int:
        if self._group is not None:
            with contextlib.suppress(OSError):
                return self._group.memory_used()
        return self._watch.used_bytes if self._watch is not None else 0

    def output(self) -> str:
        """What the process wrote to stdout and stderr, or the beginning of it."""
        return self._output.decode(errors="replace")

    def _exceeded(self) -> None:
        self._out_of_memory = True
        if self._link is None:
            self.kill()
        else:
            self._channel_closed("its process ran out of memory")

    def _channel_closed(self, reason: str) -> None:
        if self._group is not None and self._group.oom_kills() > 0:
            self._out_of_memory = True
        if self._is_leaving():
            # Its exit code is wanted.
            self._loop.call_later(LEAVE_SECONDS, self._leave)
            return
        if self.profile.details.own_process:
            # Nobody else was in there: running it again would only end it again.
            for session in list(self.link.sessions.values()):
                self._end(session, reason)
        elif self._out_of_memory:
            reason = "its process ran out of memory"
        self.link.lose(reason)
        self.kill()

    def _is_leaving(self) -> bool:
        """Whether an execution's own process has closed its channel and is about to end."""
        if not self.profile.details.own_process or self._out_of_memory:
            return False
        return self._process.returncode is None and bool(self.link.sessions)

    def _leave(self) -> None:
        for session in list(self.link.sessions.values()):
            session.fail(self._own_fault(session, "it closed its connection and went on", None))
        self.kill()

    def _end(self, session: Session, reason: str) -> None:
        code = self._process.returncode
        if self.profile.details.streams and code is not None and code >= 0 and not self._out_of_memory:
            session.conclude({"exit": code})
        else:
            session.fail(self._own_fault(session, reason, code))

    def _own_fault(self, session: Session, reason: str, exit_code: int | None) -> WireError:
        if not self._out_of_memory:
            number = _signal(exit_code)
            if exit_code is not None and number is None:
                message = f"The code ended its own process, with exit code {exit_code}; it should return"
                return WireError(code="runtime_error", message=message)
            # Whose signal it was, its own or the machine's, nobody can tell.
            if number is not None:
                reason = f"its process was ended by signal {number}"
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

    def _abandon(self) -> None:
        """Ends what nobody would see end. There may be no descriptor left but those that are closed here."""
        for outlet in self._outlets:
            outlet.close()
        if self._process.stdout is not None:
            self._process.stdout.close()
        # Stopped, so that it starts nothing while we look for what it has started, which as long as it waits
        # for a network does not die with it.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        for pid in process_tree(self.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self._group is not None:
            self._group.kill()
        self._process.wait()

    def _reap(self) -> None:
        self._process.poll()
        if self._process.returncode is None:
            return
        self._drain()
        for outlet in self._outlets:
            outlet.close()
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        # Another file may get this number now.
        self._pidfd = -1
        if self._watch is not None:
            self._watch.stop()
        if self._link is not None and self._link.closed is None:
            self._channel_closed("its process ended")
        self._exited.set()
        self._on_gone()
        if self._group is not None:
            self._group.remove()
        try:
            if self.way is not None:
                self.way.close()
        finally:
            self.on_exit(self)

    # --- what it prints ---

    def _drain(self) -> None:
        for outlet in self._outlets:
            outlet.drain()

    def _keep(self, data: bytes) -> None:
        """The beginning of it; the rest is nobody's."""
        room = OUTPUT_KEPT - len(self._output)
        self._output += data[: max(0, room)]

    def _print(self, stream: Literal["stdout", "stderr"], data: bytes) -> None:
        if self.executions and self.on_output is not None:
            self.on_output(stream, data)
        else:
            # Nobody runs in it yet: it tells why it does not start.
            self._keep(data)


def _nothing() -> None: ...


def _signal(exit_code: int | None) -> int | None:
    """The signal that ended a process: as its parent is told, or as bubblewrap puts it into its exit code."""
    if exit_code is None or 0 <= exit_code <= BY_SIGNAL or exit_code > BY_SIGNAL + signal.NSIG - 1:
        return None
    return -exit_code if exit_code < 0 else exit_code - BY_SIGNAL


def _stdin(profile: Profile, bell: Bell | None) -> int:
    """What the runner finds there: what it is told, what it may watch, or nothing."""
    if bell is not None:
        return bell.for_process()
    return memory_file(profile.told) if profile.told else subprocess.DEVNULL


def _parted(line: str) -> tuple[list[str], list[str] | None]:
    """What was printed past the console, which need not have ended its line, and what was printed there.

    None: that something was left out.
    """
    printed, mark, said = line.rpartition(CONSOLE_MARK)
    if not mark:
        return [line], []
    try:
        told = msgspec.json.decode(said, type=str | None)
    except ValueError:
        return [line] if printed else [], []
    return [printed] if printed else [], None if told is None else [told]
