"""Child processes with three pipes. They and their descendants end with this process.

Needs no event loop, so that a process can start while the loop is being created.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

# Path of the reaper script. The script is not imported as a module, because that would load ctypes.
_REAPER = str(Path(__file__).with_name("reaper.py"))
# Maximum reads per event of the loop, so that a process that writes much does not block the others.
_MAX_READS = 16
_READ_BYTES = 65_536


class ChildProcess:
    """A process with three non-blocking pipes. It has its own session, so that Ctrl-C reaches only the
    parent.

    The program is a child of a reaper process. The reaper ends the program and its descendants when the
    parent ends for any reason. Without `reaped`, there is no reaper, and the program itself has to exit when
    its stdin ends and to end all processes that it started.
    """

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], *, cwd: Path | None = None, reaped: bool = True
    ) -> None:
        """Starts the process. Raises OSError or ValueError if it cannot be started.

        `find_program` returns a path for `command[0]`.
        """
        self._control: int | None = None
        reaper_end: int | None = None
        if reaped:
            reaper_end, self._control = os.pipe()
            # With -I and -S, the Python process of the reaper ignores environment variables that are meant
            # for the program.
            command = (sys.executable, "-I", "-S", _REAPER, str(reaper_end), *command)
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                env=dict(env),
                cwd=cwd,
                pass_fds=() if reaper_end is None else (reaper_end,),
                start_new_session=True,
            )
        except BaseException:
            self._close_control()
            raise
        finally:
            if reaper_end is not None:
                os.close(reaper_end)
        for pipe in (self.stdin, self.stdout, self.stderr):
            os.set_blocking(pipe.fileno(), False)

    @property
    def pid(self) -> int:
        """Pid of the reaper, or of the program if there is no reaper."""
        return self._process.pid

    @property
    def stdin(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def stdout(self) -> IO[bytes]:
        assert self._process.stdout is not None
        return self._process.stdout

    @property
    def stderr(self) -> IO[bytes]:
        assert self._process.stderr is not None
        return self._process.stderr

    def exit_code(self) -> int | None:
        """Returns the exit code as in a shell (128 + N for signal N), or None while the process runs."""
        code = self._process.poll()
        return 128 - code if code is not None and code < 0 else code

    def terminate(self, *, at_once: bool) -> None:
        """Ends the process. Call it after closing the input. Without `at_once`, the process gets a moment to
        exit by itself.
        """
        if self._control is None:
            if at_once:
                self._process.kill()
            return
        if at_once:
            from hutch.child_process.reaper import KILL_NOW

            with contextlib.suppress(OSError):
                os.write(self._control, KILL_NOW)
        self._close_control()

    def kill(self) -> None:
        """Kills the process. If this is a reaper, its program dies with it."""
        self._process.kill()

    def close(self) -> None:
        """Closes this process's ends of the pipes."""
        self._close_control()
        for pipe in (self.stdin, self.stdout, self.stderr):
            with contextlib.suppress(OSError):
                pipe.close()

    def abandon(self) -> None:
        """Kills a process whose pipes are not read yet, and waits for its exit."""
        self.close()
        self._process.kill()
        self._process.wait()

    def _close_control(self) -> None:
        if self._control is not None:
            os.close(self._control)
            self._control = None


def read_available(pipe: IO[bytes]) -> Iterator[bytes]:
    """Yields the data that a non-blocking pipe has now, in a bounded number of chunks. Yields b"" at the end
    of the stream.
    """
    for _ in range(_MAX_READS):
        try:
            data = os.read(pipe.fileno(), _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        yield data
        if not data:
            return


def find_program(program: str, env: Mapping[str, str], cwd: Path | None = None) -> str | None:
    """Returns the path of an executable, or None. Searches like a process with this environment and `cwd`."""
    import shutil

    if "/" in program:
        return shutil.which(str((cwd or Path()).absolute() / Path(program).expanduser()))
    return shutil.which(program, path=env.get("PATH"))
