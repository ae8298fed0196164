"""Event loop and logging of a REP runtime process. The event loop starts with the first run."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from hutch.cli.runtime.services import ProcessServices
from hutch.cli.support import event_loop
from hutch.cli.support.log_format import PrintableFormatter
from hutch.protocols.rep.runtime.journal import StoreJournals
from hutch.protocols.rep.runtime.service import RepRuntime
from hutch.session.channels.descriptors import DescriptorChannel
from hutch.streams.lines import LineSplitter
from hutch.telemetry.tracer import open_tracer
from hutch.text import LINE, now_rfc3339, printable

# Timeouts after EOF on stdin: first for steps to end, then for output to be written. The process exits
# FORCE_EXIT_SECONDS after EOF in any case.
CLOSE_SECONDS = 0.6
WRITE_SECONDS = 0.1
FORCE_EXIT_SECONDS = 0.85
_END_OF_INPUT = "the input ended"


def serve_runs(
    read: int, write: int, lines: LineSplitter, waiting: list[bytes], project: Path | None
) -> NoReturn:
    """Serves until stdin ends, then ends the process. `waiting` contains lines that were read but not
    answered. The trusted files of the folder `project` are used.
    """
    code = event_loop.run_async(_serve(read, write, lines, waiting, project))
    # Everything is closed, so skip finalizing the interpreter, which would take longer than a short run.
    sys.stderr.flush()
    os._exit(code)


async def _serve(
    read: int, write: int, lines: LineSplitter, waiting: list[bytes], project: Path | None
) -> int:
    services = ProcessServices(project, await open_tracer())
    _configure_logging(os.environ, services.settings.log_level)
    journals = StoreJournals(lambda: services.settings)
    runtime = RepRuntime(services, journals=journals)
    channel = DescriptorChannel(read, write, lines)
    closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def handle_line(line: bytes) -> None:
        if (response := runtime.answer(line)) is not None:
            channel.send(response)

    channel.on_line = handle_line
    channel.on_close = closed.set_result
    try:
        for line in waiting:
            handle_line(line)
        channel.open()
        event_loop.end_startup()
        reason = await closed
    finally:
        _force_exit_later()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await runtime.close()
                await journals.close()
                await services.close()
        channel.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WRITE_SECONDS):
                await channel.finished()
    return 0 if reason == _END_OF_INPUT else 1


def _force_exit_later() -> None:
    """Ends the process after a while, even if a step blocks the event loop. Guests end with the process."""
    timer = threading.Timer(FORCE_EXIT_SECONDS, os._exit, (1,))
    timer.daemon = True
    timer.start()


# --- logging ---


def _configure_logging(environ: Mapping[str, str], level: str) -> None:
    """Logs to stderr, as text or as the JSON that the orchestrator can request.

    `hutch.logs` is not used, because its library takes longer to load than a short flow takes to run.
    """
    handler = logging.StreamHandler(sys.stderr)
    if environ.get("TRACE_MIND_LOG_JSON") == "1":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(TextFormatter("hutch: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


class TextFormatter(PrintableFormatter):
    """Formats a record as text with its fields."""

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", {})
        suffix = "".join(f" {key}={value}" for key, value in fields.items() if key != "type")
        return super().format(record) + printable(suffix, keep=LINE)


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "timestamp": now_rfc3339(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)
