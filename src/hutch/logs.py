"""Configures logging: structured lines on stderr."""

from __future__ import annotations

import io
import logging
import sys
from typing import TYPE_CHECKING, Any, TextIO

from hutch.settings import Settings
from hutch.text import LINE, printable

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor


def configure(settings: Settings) -> None:
    """Configures logging at `log_level` and above: JSON lines with `log_json`, otherwise readable lines.

    Run records and the start message are logged at every level except `error`, because without a store the
    log is their only copy.
    """
    import structlog

    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _add_fields,
        ],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_renderers(settings)],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler], force=True)
    for name in ("hutch.runs", "hutch.serve"):
        logging.getLogger(name).setLevel(logging.ERROR if settings.log_level == "error" else logging.INFO)
    # Below WARNING, these libraries log headers and messages, which contain keys, code and inputs.
    for name in ("uvicorn", "websockets", "mcp", "httpx2", "httpcore2"):
        logging.getLogger(name).setLevel(logging.WARNING)


def _add_fields(_: Any, __: str, event: EventDict) -> EventDict:
    """Adds the fields that a log record carries as one mapping. With `event`, a short name replaces the
    message, which repeats some of the fields for other formatters.
    """
    record: logging.LogRecord = event["_record"]
    event["event"] = getattr(record, "event", event["event"])
    event.update(getattr(record, "fields", {}))
    return event


def _renderers(settings: Settings) -> list[Processor]:
    """Returns renderers that omit the values of variables from tracebacks, because these may be guest code or
    secrets.
    """
    from structlog import dev, processors

    if settings.log_json:
        return [processors.format_exc_info, processors.JSONRenderer()]
    console = dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=_format_traceback)
    return [_escape_control_characters, console]


def _escape_control_characters(_: Any, __: str, event: EventDict) -> EventDict:
    """Keeps text of clients and guests from controlling the terminal and from forging further records."""
    for key, value in event.items():
        if isinstance(value, str):
            event[key] = printable(value, keep=LINE)
    return event


def _format_traceback(stream: TextIO, exc_info: Any) -> None:
    """Writes a traceback. Its lines are indented, so that no line of an error message looks like a record."""
    from structlog import dev

    text = io.StringIO()
    dev.plain_traceback(text, exc_info)
    for line in text.getvalue().strip("\n").split("\n"):
        stream.write(f"\n  {printable(line, keep=LINE)}")
