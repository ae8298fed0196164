"""Formats log records for stderr, without characters that a terminal would interpret."""

from __future__ import annotations

import logging

from hutch.text import LINE, PROSE, printable


class PrintableFormatter(logging.Formatter):
    """Formats a record as one line, followed by the traceback if there is one."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        # Escape line breaks too, because a message may quote a server, a package or a guest that tries to
        # forge another record.
        return printable(super().formatMessage(record), keep=LINE)

    def formatException(self, ei: object) -> str:
        return printable(super().formatException(ei), keep=PROSE)  # type: ignore[arg-type]


class SettingWarningsOnce(logging.Filter):
    """Drops warnings about settings that were already logged, because a command may load the settings several
    times.
    """

    def __init__(self) -> None:
        super().__init__()
        self._printed: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        # Recognise the warnings by the path of their module, because importing the module here would make
        # every start slower.
        if not record.pathname.endswith("hutch/settings/load.py"):
            return True
        message = record.getMessage()
        is_new = message not in self._printed
        self._printed.add(message)
        return is_new
