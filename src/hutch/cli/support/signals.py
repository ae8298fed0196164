"""Signals that end a server or a worker."""

from __future__ import annotations

import asyncio
import os
import signal

TERMINAL_SECONDS = 1.0
"""Interval for checking whether the terminal still exists."""


class ShutdownSignals:
    """Handles SIGTERM, SIGINT, SIGHUP and the end of the terminal. The first signal starts draining, the
    second one stops the server immediately.
    """

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        numbers = [signal.SIGTERM, signal.SIGINT]
        self._watching: asyncio.Task[None] | None = None
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # `nohup` ignores SIGHUP
            numbers.append(signal.SIGHUP)
            self._watching = asyncio.create_task(self._watch_terminal())
        for signal_number in numbers:
            asyncio.get_running_loop().add_signal_handler(signal_number, self._on_signal)

    def _on_signal(self) -> None:
        (self.second if self.first.is_set() else self.first).set()

    async def _watch_terminal(self) -> None:
        """Starts draining when the terminal of this process is closed while the process runs in the
        foreground.

        SIGHUP is not enough: it is sent only to the session leader, which may be a program that does not pass
        the signal on, such as make.
        """
        terminal = next((fd for fd in (0, 1, 2) if os.isatty(fd)), None)
        is_foreground = False
        while terminal is not None:
            try:
                is_foreground = os.tcgetpgrp(terminal) == os.getpgrp()
            except OSError:
                break
            await asyncio.sleep(TERMINAL_SECONDS)
        if is_foreground:
            self.first.set()
