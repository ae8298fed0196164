"""`hutch runtime serve` and `hutch runtime cache`.

The runtime answers the handshake without asyncio. Other modules are imported when a run starts.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from pathlib import Path

from hutch.protocols.rep import jsonrpc
from hutch.protocols.rep.runtime import handshake
from hutch.streams.lines import LineSplitter
from hutch.streams.stdio import take_stdio

# Time after the end of stdin at which the process exits even if steps are still running.
EXIT_SECONDS = 0.9
# Written as bytes, without the console module, because the time until the first response counts.
_AT_TERMINAL = (
    b"hutch: `hutch runtime serve` runs flows for another program, and waits for its JSON-RPC requests on "
    b"stdin, one line each. To run a flow yourself, use `hutch flow run`. Press Ctrl-D or "
    b"Ctrl-C to stop it.\n"
)


def serve_runtime(project: Path | None = None) -> int:
    """Runs as a REP runtime until stdin ends. Uses the trusted files of the folder `project`."""
    read, write = take_stdio()
    if os.isatty(read):
        os.write(2, _AT_TERMINAL)
    else:
        # Ignore Ctrl-C here: it is meant for the orchestrator, which then cancels the runs. Use a handler,
        # because child processes would inherit SIG_IGN.
        signal.signal(signal.SIGINT, lambda *_: None)
    threading.Thread(target=_exit_after_stdin, args=(read,), daemon=True, name="end").start()
    # Keep one byte more than the limit, to detect a line that is too long.
    lines = LineSplitter(jsonrpc.MAX_LINE_BYTES + 1, truncate=True)
    waiting = handshake.serve_handshake(read, write, os.environ, lines)
    if waiting is None:
        return 0
    from hutch.cli.runtime import main_loop

    return main_loop.serve_runs(read, write, lines, waiting, project)


def _exit_after_stdin(read: int) -> None:
    """Ends the process after the end of stdin, even if a step blocks the event loop. Guests end with the
    process.
    """
    poll = select.poll()
    poll.register(read, 0)
    while not any(event & (select.POLLHUP | select.POLLERR) for _, event in poll.poll()):
        pass
    time.sleep(EXIT_SECONDS)
    os._exit(0)


def clear_cache(engine: str | None) -> int:
    """Deletes the cached capabilities of one runtime, or of all runtimes."""
    from hutch.cli.support.console import print_line
    from hutch.protocols.rep.orchestrator.negotiation import clear_cache

    removed = clear_cache(engine)
    for file in removed:
        print_line(f"removed {file}")
    if not removed:
        print_line("the cache is empty" if engine is None else f"nothing is cached for {engine}")
    return 0
