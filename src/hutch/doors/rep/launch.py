"""A runtime's process, started: with what the orchestrator tells it, and so that nothing of it stays behind.

Needs no event loop: the process begins while one is being made.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from hutch.doors.rep.choice import RuntimeChoice
    from hutch.doors.rep.outcome import RunOptions

# Ours, and nothing that other people's runtimes need.
_SECRETS = (
    "HUTCH_MASTER_KEY",
    "HUTCH_API_KEY",
    "HUTCH_CREDENTIAL_KEY",
    "HUTCH_DATABASE_URL",
    "HUTCH_PROXY_URL",
    "EXECUTOR_API_KEY",
    "PROXY_URL",
)


class CannotStart(Exception):
    """There is no process; the text says why."""


def launch(choice: RuntimeChoice, options: RunOptions) -> Launched:
    """Starts the runtime of one run. Raises CannotStart."""
    env = environment({**os.environ, **choice.env}, options, is_ours=choice.is_ours)
    return Launched(choice.command, env, cwd=choice.folder, is_ours=choice.is_ours)


def environment(environ: Mapping[str, str], options: RunOptions, *, is_ours: bool) -> dict[str, str]:
    """What a runtime finds in its environment (section 8)."""
    kept = {name: value for name, value in environ.items() if is_ours or not _is_secret(name)}
    return {
        **kept,
        "TRACE_MIND_RUN_ID": options.run_id,
        "TRACE_MIND_TRACE_ID": options.trace_id,
        "TRACE_MIND_ENGINE_TIMEOUT": f"{options.timeout or 0:g}",
        "TRACE_MIND_ALLOW_SHELL": "1" if options.allow_shell else "0",
        "TRACE_MIND_LOG_JSON": "1" if options.log_json else "0",
    }


def _is_secret(name: str) -> bool:
    return name.startswith(_SECRETS)


class Launched:
    """A process with three pipes, in a session of its own, so that Ctrl-C is for us alone.

    Our own runtime ends when its input does, and takes all with it. Over any other stands a warden: when we
    are gone, however we went, it ends the runtime and whatever that started.
    """

    def __init__(
        self, command: tuple[str, ...], env: Mapping[str, str], *, cwd: Path | None = None, is_ours: bool
    ) -> None:
        """Raises CannotStart."""
        self._control: int | None = None
        theirs: int | None = None
        if not is_ours:
            from hutch.upstream import warden

            command = (_found(command[0], env, cwd), *command[1:])
            theirs, self._control = os.pipe()
            command = (sys.executable, "-I", "-S", warden.__file__, str(theirs), *command)
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                env=dict(env),
                cwd=cwd,
                pass_fds=() if theirs is None else (theirs,),
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            self._let_go()
            raise CannotStart(f"{command[0]} cannot be started: {error}") from None
        finally:
            if theirs is not None:
                os.close(theirs)
        for pipe in (self.stdin, self.stdout, self.stderr):
            os.set_blocking(pipe.fileno(), False)

    @property
    def pid(self) -> int:
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

    def ended(self) -> int | None:
        """How it ended, as a shell tells it: 128 and more for a signal. None if it has not."""
        code = self._process.poll()
        return 128 - code if code is not None and code < 0 else code

    def end(self, *, at_once: bool) -> None:
        """Its input has ended. Has it end too: at once, or after a moment to leave by itself."""
        if self._control is None:
            if at_once:
                self._process.kill()
            return
        if at_once:
            from hutch.upstream.warden import AT_ONCE

            with contextlib.suppress(OSError):
                os.write(self._control, AT_ONCE)
        self._let_go()

    def kill(self) -> None:
        """Without any more ado. A runtime dies with its warden."""
        self._process.kill()

    def close(self) -> None:
        """Closes what is open of it here."""
        self._let_go()
        for pipe in (self.stdin, self.stdout, self.stderr):
            with contextlib.suppress(OSError):
                pipe.close()

    def abandon(self) -> None:
        """Ends it where nobody waits for it."""
        self.close()
        self._process.kill()
        self._process.wait()

    def _let_go(self) -> None:
        if self._control is not None:
            os.close(self._control)
            self._control = None


def _found(program: str, env: Mapping[str, str], cwd: Path | None) -> str:
    import shutil

    if "/" in program:
        # As the process sees it.
        found = shutil.which(str((cwd or Path()).absolute() / Path(program).expanduser()))
    else:
        found = shutil.which(program, path=env.get("PATH"))
    if found is None:
        raise CannotStart(f"There is no program {program!r} that can be run.")
    return found
