"""`hutch runtime serve`: a REP runtime on stdin and stdout, for the orchestrator that starts it.

What it is asked first it answers from the porch; asyncio and all the rest are loaded with the first run.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time

from hutch.doors.rep import porch, rpc

# All of it together, after stdin's end: whatever does not let go by then is ended with us.
LAST_SECONDS = 0.9


def serve() -> int:
    """The command's exit code: 0 when stdin ended."""
    read, write = _take_stdio()
    if not os.isatty(read):
        # Ctrl-C is for the orchestrator, which then cancels. A handler, unlike SIG_IGN, is not inherited.
        signal.signal(signal.SIGINT, lambda *_: None)
    threading.Thread(target=_watch, args=(read,), daemon=True, name="end").start()
    lines = rpc.Lines()
    waiting = porch.receive(read, write, os.environ, lines)
    if waiting is None:
        return 0
    from hutch.cli import runtime_house

    return runtime_house.serve(read, write, lines, waiting)


def _take_stdio() -> tuple[int, int]:
    """What were stdin and stdout. Whatever else reads gets nothing; whatever else prints goes to stderr."""
    read, write = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return read, write


def _watch(read: int) -> None:
    """Ends the process some time after stdin did, also if a step keeps everything else from running."""
    ends = select.poll()
    ends.register(read, 0)
    while not any(event & (select.POLLHUP | select.POLLERR) for _, event in ends.poll()):
        pass
    time.sleep(LAST_SECONDS)
    # Guests die with us.
    os._exit(0)
