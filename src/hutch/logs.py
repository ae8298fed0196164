"""Where Hutch's own log goes: structured lines on stderr."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

from hutch.settings import Settings

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor


def configure(settings: Settings) -> None:
    """JSON lines with `log_json`, else lines for people; everything at or above `log_level`.

    Runs are recorded, and the start is told, at every level but `error`: there is no other store of them.
    """
    import structlog

    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _fields,
        ],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_renderers(settings)],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler], force=True)
    for name in ("hutch.runs", "hutch.serve"):
        logging.getLogger(name).setLevel(logging.ERROR if settings.log_level == "error" else logging.INFO)
    # At finer levels these write down headers and messages: keys, code and inputs.
    for name in ("uvicorn", "websockets", "mcp", "httpx2", "httpcore2"):
        logging.getLogger(name).setLevel(logging.WARNING)


def _fields(_: Any, __: str, event: EventDict) -> EventDict:
    """Records carry their fields as one mapping: spread it."""
    record: logging.LogRecord = event["_record"]
    event.update(getattr(record, "fields", {}))
    return event


def _renderers(settings: Settings) -> list[Processor]:
    """Tracebacks without the values of variables: those may be a guest's code, or a secret."""
    from structlog import dev, processors

    if settings.log_json:
        return [processors.format_exc_info, processors.JSONRenderer()]
    console = dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=dev.plain_traceback)
    return [console]
