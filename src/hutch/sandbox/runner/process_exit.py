"""Decides how the sessions of a runner process end when the process has ended."""

from __future__ import annotations

import signal

import msgspec

from hutch.sandbox.runner.profile import Profile
from hutch.session.messages import WireError
from hutch.session.relayed_session import AnySession

# If a signal killed its child, bubblewrap exits with 128 plus the signal number.
SIGNAL_EXIT_BASE = 128


class ProcessExit(msgspec.Struct, frozen=True):
    """How a runner process ended."""

    reason: str
    code: int | None
    """Exit code, negative for a signal. None if the process is still running but has closed its channel."""
    out_of_memory: bool = False

    @property
    def signal(self) -> int | None:
        """Signal that ended the process, from its status or from bubblewrap's exit code."""
        code = self.code
        if code is None or 0 <= code <= SIGNAL_EXIT_BASE or code > SIGNAL_EXIT_BASE + signal.NSIG - 1:
            return None
        return -code if code < 0 else code - SIGNAL_EXIT_BASE

    def end(self, session: AnySession, profile: Profile, *, has_imported: bool) -> None:
        """Ends the session of a single-use process. `has_imported`: the profile's preload has finished."""
        # An import counts as a start of the guest, because it runs the package's code.
        has_begun = session.started or (profile.has_preload and not has_imported)
        was_killed = self.signal is not None and not has_begun
        if (
            profile.engine_spec.streams_output
            and self.code is not None
            and self.code >= 0
            and not was_killed
            and not self.out_of_memory
        ):
            session.succeed({"exit": self.code})
            return
        error = self._error(session)
        # If no guest code has run, the guest did not end the process, so a retry is safe and useful.
        session.lost = error.code == "internal_error" and not has_begun
        session.fail(error)

    def _error(self, session: AnySession) -> WireError:
        if self.out_of_memory:
            mebibytes = session.limits.memory_limit_bytes / 2**20
            message = f"Execution exceeded its memory limit of {mebibytes:g} MiB"
            return WireError(code="memory_limit", message=message)
        if self.code is not None and self.signal is None:
            message = f"The code ended its own process with exit code {self.code}. Return a value instead"
            return WireError(code="runtime_error", message=message)
        # Do not blame the guest's code: the guest may have caused the signal, but the kernel or an
        # administrator may have sent it, too.
        reason = self.reason if self.signal is None else f"its process was ended by signal {self.signal}"
        return WireError(code="internal_error", message=f"The runner was lost: {reason}")
