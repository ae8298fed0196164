"""Runs a runner in a jailed process: start, sessions, output, limits, end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import IO, Any, Literal, Protocol

from hutch.errors import SandboxUnavailable
from hutch.sandbox.jail.cgroup import Cgroup
from hutch.sandbox.jail.jail import Command, memory_file
from hutch.sandbox.jail.memory_meter import MemoryMeter, MemoryWatch, process_tree
from hutch.sandbox.jail.spawn import StartedProcess, kill_tree, spawn
from hutch.sandbox.runner.base import Runner
from hutch.sandbox.runner.output_logs import MAX_OUTPUT_BYTES, with_output
from hutch.sandbox.runner.pipes import OutputPipe, WakeupFile
from hutch.sandbox.runner.priority import set_background
from hutch.sandbox.runner.process_exit import ProcessExit
from hutch.sandbox.runner.profile import Profile
from hutch.session.channels.peer import BACKSTOP_SECONDS, GUEST_CODES, RUNNER_CODES, START_TIMEOUT_SECONDS
from hutch.session.channels.stream import Channel, StreamChannel
from hutch.session.multiplexer import Multiplexer
from hutch.session.relayed_session import AnySession
from hutch.session.run import Result

READY_SECONDS = 20.0
# Message of a runner whose preload has finished. An unused runner is killed if it does not send this message
# within IMPORT_SECONDS.
IMPORTED = b'{"type":"imported"}'
MAX_EARLY_LINES = 16
IMPORT_SECONDS = 30.0
# Message to a new, unused runner, which then runs its slow first-time code before the first execution.
WARM_UP = b'{"type":"warm_up"}\n'
WARM_UP_SECONDS = 0.005
# A runner that has received an execution counts as lost if it sends nothing for this time. Its process may
# have been stopped, or another guest may be blocking the process with a long native call.
MAX_SILENCE_SECONDS = 5.0
# Time for a guest program to exit after it closed its channel.
EXIT_SECONDS = 1.0
# Memory of the Deno process itself, which is added to the guest's memory limit.
PROCESS_OVERHEAD_BYTES = 32 * 1024 * 1024


class Uplink(Protocol):
    """Host side of a jail's only network connection."""

    def begin_run(self, run_id: str) -> Sequence[Any]:
        """Called before a run starts. Returns a list that is filled with the outgoing requests of the run
        while the run is in progress.
        """

    def close(self) -> None:
        """Called when the jail has ended."""


class StartupListener:
    """Waits for the first line of a runner, and buffers lines that arrive with it."""

    def __init__(self, channel: StreamChannel) -> None:
        self.channel = channel
        self.has_started: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        """True once the first line has arrived. False if the runner exited or took too long."""
        self.early_lines: list[bytes] = []
        channel.on_line = self._receive

    def give_up(self) -> None:
        if not self.has_started.done():
            self.has_started.set_result(False)

    def _receive(self, line: bytes) -> None:
        if not self.has_started.done():
            self.has_started.set_result(True)
        elif len(self.early_lines) < MAX_EARLY_LINES:
            self.early_lines.append(line)


class RunnerProcess(Runner):
    def __init__(
        self,
        profile: Profile,
        group: Cgroup | None,
        meter: MemoryMeter | None,
    ) -> None:
        super().__init__(profile)
        self._multiplexer: Multiplexer | None = None
        self._loop = asyncio.get_running_loop()
        self._group = group
        self._meter = meter
        self._watch: MemoryWatch | None = None
        self._out_of_memory = False
        self._on_early_exit: Callable[[], None] = _noop
        self._output = bytearray()
        self._frozen: list[int] = []
        self._cpu_clock: int | None = None
        self._guest_pid = 0
        self._cpu_counted = 0.0
        self.uplink: Uplink | None = None
        self._output_pipes: set[OutputPipe] = set()
        self._process: StartedProcess
        self.stdout: IO[bytes] | None = None
        """Pipe with the replies of a runner that does not reply on its socket."""

    async def start(
        self, command: Command, wakeup_file: WakeupFile | None = None, max_bytes: int = 0
    ) -> None:
        """Starts the process. Raises SandboxUnavailable.

        `wakeup_file` becomes the runner's stdin, if its engine polls such a file. `max_bytes`: memory that
        the meter allows from the start; 0 if each execution sets its own limit.
        """
        try:
            with command, contextlib.ExitStack() as opened:
                stdin = self._open_stdin(wakeup_file, opened)
                stdout, stderr = self._open_output_pipes(opened)
                self._process = await spawn(
                    command.argv,
                    stdin=stdin,
                    stdout=stdout,
                    stderr=stderr,
                    env=command.env,
                    cwd=command.cwd,
                    pass_fds=command.pass_fds,
                )
        except BaseException as error:
            self._close_pipes()
            if isinstance(error, OSError):
                raise SandboxUnavailable(f"The sandbox cannot be started: {error}") from None
            raise
        for pipe in self._output_pipes:
            pipe.start_reading()
        try:
            self._pidfd = os.pidfd_open(self._process.pid)
        except OSError as error:
            self._close_pipes()
            kill_tree(self._process)
            raise SandboxUnavailable(f"The sandbox cannot be watched: {error}") from None
        self._loop.add_reader(self._pidfd, self._reap)
        if max_bytes and self._meter is not None:
            self._watch = self._meter.watch(self.pid, max_bytes, self._memory_exceeded)

    def _open_stdin(self, wakeup_file: WakeupFile | None, opened: contextlib.ExitStack) -> int:
        if wakeup_file is not None:
            stdin = wakeup_file.open_for_process()
        elif self.profile.stdin_payload:
            stdin = memory_file(self.profile.stdin_payload)
        else:
            return subprocess.DEVNULL
        opened.callback(os.close, stdin)
        return stdin

    def _open_output_pipes(self, opened: contextlib.ExitStack) -> tuple[int, int]:
        streams = self.profile.engine_spec.streams_output
        stdout = OutputPipe(partial(self._forward_output, "stdout") if streams else self._store_output)
        self._output_pipes.add(stdout)
        if streams:
            stderr = OutputPipe(partial(self._forward_output, "stderr"))
            self._output_pipes.add(stderr)
            return stdout.child_fd, stderr.child_fd
        if not self.profile.engine_spec.replies_on_stdout:
            return stdout.child_fd, stdout.child_fd
        # The guests of this runner cannot print, so stdout carries only replies.
        reader, writer = os.pipe()
        opened.callback(os.close, writer)
        self.stdout = os.fdopen(reader, "rb", 0)
        return writer, stdout.child_fd

    def _close_pipes(self) -> None:
        for pipe in self._output_pipes:
            pipe.close()
        if self.stdout is not None:
            self.stdout.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def multiplexer(self) -> Multiplexer:
        if self._multiplexer is None:
            raise RuntimeError("the runner is not ready")
        return self._multiplexer

    @property
    def is_alive(self) -> bool:
        return (
            self._multiplexer is not None and self._multiplexer.close_reason is None and not self.has_exited
        )

    async def wait_ready(self, startup: StartupListener) -> None:
        """Waits for the first line of the runner. Raises SandboxUnavailable with the runner's output if the
        line does not arrive.
        """
        self._on_early_exit = startup.give_up
        if self.has_exited:
            startup.give_up()
        timer = self._loop.call_later(READY_SECONDS, startup.give_up)
        try:
            has_started = await startup.has_started
        finally:
            timer.cancel()
            self._on_early_exit = _noop
        if not has_started:
            raise await self.start_failure()
        self._attach(startup.channel)
        for line in startup.early_lines:
            startup.channel.on_line(line)

    async def start_failure(self) -> SandboxUnavailable:
        self.kill()
        await self.wait()
        output = self.output().strip() or "no output"
        return SandboxUnavailable(
            f"The {self.profile.engine} runner did not start: {output}.", remedy="Run `hutch doctor`."
        )

    def _attach(self, channel: StreamChannel) -> None:
        self._multiplexer = open_multiplexer(self.profile, channel)
        if self.profile.engine_spec.warms_up:
            self._loop.call_later(WARM_UP_SECONDS, self._send_warm_up, channel)
        channel.on_close = self._channel_closed
        self.idle_since = self._loop.time()
        if self.profile.has_preload:
            handle_line = channel.on_line
            channel.on_line = lambda line: self._import_finished() if line == IMPORTED else handle_line(line)
            self._loop.call_later(IMPORT_SECONDS, self._kill_if_not_imported)

    # --- idle ---

    def _send_warm_up(self, channel: StreamChannel) -> None:
        self._find_cpu_clock()
        if self.in_flight == 0 and self.executions == 0 and self.is_alive:
            channel.send(WARM_UP)

    def _import_finished(self) -> None:
        self.has_imported = True
        if self.in_flight == 0:
            self.freeze()

    def _kill_if_not_imported(self) -> None:
        if not self.has_imported and self.in_flight == 0:
            self.kill()

    def freeze(self) -> None:
        """Stops the guest's processes, so that a package uses no CPU between executions."""
        outer, *inner = process_tree(self.pid)
        # Leave out the first two processes, which are bubblewrap's.
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

    def open_folder(self, path: str) -> int:
        """Opens a folder as the guest sees it. The descriptor outlives the guest. Raises OSError."""
        guest = process_tree(self.pid)[-1]
        return os.open(f"/proc/{guest}/root{path}", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)

    # --- executions ---

    def execution_started(self, session: AnySession) -> None:
        """Prepares the process for an execution. The memory limit of the execution becomes the limit of a
        single-use process.
        """
        self.executions += 1
        if self.uplink is not None:
            self.requests = self.uplink.begin_run(session.id)
        if self._frozen:
            self._thaw()
        if self.in_flight <= 1:
            self._cpu_counted = self.cpu_seconds() or 0.0
        if self.executions > 1:
            self._output.clear()
        if not self.profile.engine_spec.own_process or self.profile.memory_bytes:
            return
        allowed = session.limits.memory_limit_bytes + PROCESS_OVERHEAD_BYTES
        if self._group is not None:
            try:
                self._group.set_memory(self._group.memory_used() + allowed)
            except OSError as error:
                session.mark_lost(f"its memory limit cannot be set: {error}")
        elif self._meter is not None:
            self._watch = self._meter.watch(self.pid, allowed, self._memory_exceeded)

    def execution_ended(self, result: Result, session: AnySession) -> Result:
        """Adds the guest's direct output on stdout and stderr to the logs, within the limits."""
        self.idle_since = self._loop.time()
        if not self.profile.engine_spec.own_process:
            return result
        self._drain()
        if self.profile.engine_spec.streams_output:
            return result
        result = with_output(result, self._output, session.limits)
        if not self.is_used_up(result):
            self.freeze()
        return result

    def is_used_up(self, result: Result | None) -> bool:
        if not self.profile.engine_spec.own_process:
            return False
        return result is None or not result.ok or self.executions >= self.profile.max_uses

    def take_cpu_seconds(self) -> float | None:
        """Divides the CPU time that is not counted yet equally among the executions in flight. Returns the
        share of the execution that ends now. The other shares are counted when their executions end.
        """
        now = self.cpu_seconds()
        if now is None:
            return None
        seconds = max(0.0, now - self._cpu_counted) / max(1, self.in_flight)
        self._cpu_counted += seconds
        return seconds

    def cpu_seconds(self) -> float | None:
        """Returns the CPU time of the guest's process, with all its threads."""
        if self._cpu_clock is None:
            self._find_cpu_clock()
        try:
            return None if self._cpu_clock is None else time.clock_gettime(self._cpu_clock)
        except OSError:
            return None

    def _find_cpu_clock(self) -> None:
        """Finds the CPU clock of the guest's process. This takes a tenth of the time of a short execution, so
        it is done before the first execution if possible.
        """
        if self.has_exited or self._cpu_clock is not None:
            return
        self._guest_pid = process_tree(self.pid)[-1]
        # Compute the id of the process's CPU clock as the C function `clock_getcpuclockid` does.
        self._cpu_clock = (~self._guest_pid << 3) | 2

    def set_background(self, in_background: bool) -> None:
        self._find_cpu_clock()
        if self.has_exited or not self._guest_pid:
            return
        self.is_in_background = in_background
        if not set_background(self._guest_pid, in_background):
            self.is_stuck_in_background = not in_background

    def memory_used(self) -> int:
        if self._group is not None:
            with contextlib.suppress(OSError):
                return self._group.memory_used()
        return self._watch.used_bytes if self._watch is not None else 0

    @property
    def exit(self) -> ProcessExit:
        """Exit of the process. Available after the process has ended."""
        return ProcessExit("its process ended", self._process.returncode, self._out_of_memory)

    def take_output(self) -> bytes:
        """Returns the output on stdout and stderr since the last call. Output that was streamed is not
        included.
        """
        self._drain()
        output = bytes(self._output)
        self._output.clear()
        return output

    def output(self) -> str:
        """Returns the beginning of the output of the process on stdout and stderr."""
        return self._output.decode(errors="replace")

    def _memory_exceeded(self) -> None:
        self._out_of_memory = True
        if self._multiplexer is None:
            self.kill()
        else:
            self._channel_closed("its process ran out of memory")

    def _channel_closed(self, reason: str) -> None:
        if self._group is not None and self._group.oom_kills() > 0:
            self._out_of_memory = True
        if self._is_exiting():
            # The process is about to exit. Wait for its exit code, which becomes part of the result.
            self._loop.call_later(EXIT_SECONDS, self._exit_timed_out)
            return
        if self.profile.engine_spec.own_process:
            # The process had no other guests, so a retry would fail too.
            self._end_sessions(reason, self._process.returncode)
        elif self._out_of_memory:
            reason = "its process ran out of memory"
        self.multiplexer.mark_lost(reason)
        self.kill()

    def _is_exiting(self) -> bool:
        """Returns True if a single-use process has closed its channel and is about to exit."""
        if not self.profile.engine_spec.own_process or self._out_of_memory:
            return False
        return self._process.returncode is None and bool(self.multiplexer.sessions)

    def _exit_timed_out(self) -> None:
        self._end_sessions("it closed its connection but did not exit", None)
        self.kill()

    def _end_sessions(self, reason: str, code: int | None) -> None:
        end = ProcessExit(reason, code, self._out_of_memory)
        for session in list(self.multiplexer.sessions.values()):
            end.end(session, self.profile, has_imported=self.has_imported)

    # --- end ---

    def kill(self) -> None:
        if self._multiplexer is not None:
            self._multiplexer.close()
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        if self._group is not None:
            self._group.kill()

    def _reap(self) -> None:
        self._process.poll()
        if self._process.returncode is None:
            return
        self._drain()
        for pipe in self._output_pipes:
            pipe.close()
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        # Forget the descriptor, because its number may be reused from now on.
        self._pidfd = -1
        if self._watch is not None:
            self._watch.stop()
        if self._multiplexer is not None and self._multiplexer.close_reason is None:
            self._channel_closed("its process ended")
        self._mark_exited()
        self._on_early_exit()
        if self._group is not None:
            self._group.remove()
        try:
            if self.uplink is not None:
                self.uplink.close()
        finally:
            self.on_exit(self)

    # --- output ---

    def _drain(self) -> None:
        for pipe in self._output_pipes:
            pipe.drain()

    def _store_output(self, data: bytes) -> None:
        remaining = MAX_OUTPUT_BYTES - len(self._output)
        self._output += data[: max(0, remaining)]

    def _forward_output(self, stream: Literal["stdout", "stderr"], data: bytes) -> None:
        if self.executions and self.on_output is not None:
            self.on_output(stream, data)
        else:
            # Keep output from before the first execution, because it explains a failed start.
            self._store_output(data)


def open_multiplexer(profile: Profile, channel: Channel, *, extra_seconds: float = 0.0) -> Multiplexer:
    """Opens the host end of the channel to a runner. `extra_seconds`: time that messages to and from another
    machine may take.
    """
    spec = profile.engine_spec
    return Multiplexer(
        channel,
        codes=GUEST_CODES if spec.own_process else RUNNER_CODES,
        # With a preload, the start includes the package import and has no limit of its own. If the import
        # does not finish, the execution has timed out.
        start_seconds=0.0 if profile.has_preload else START_TIMEOUT_SECONDS,
        backstop_seconds=BACKSTOP_SECONDS + extra_seconds if spec.enforces_timeout else 0.0,
        # With a preload, silence is not limited, because a package may take long to import.
        max_silence_seconds=0.0 if profile.has_preload else MAX_SILENCE_SECONDS + extra_seconds,
    )


def _noop() -> None: ...
