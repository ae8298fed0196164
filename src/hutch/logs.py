"""Where Hutch's own log goes: structured lines on stderr."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

from hutch.settings import Settings

if TYPE_CHECKING:
    from structlog.typing import EventDict


def _fields(_: Any, __: str, event: EventDict) -> EventDict:
    """Records carry their fields as one mapping: spread it."""
    record: logging.LogRecord = event["_record"]
    event.update(getattr(record, "fields", {}))
    return event


def configure(settings: Settings) -> None:
    """JSON lines with `log_json`, else lines for people; everything at or above `log_level`."""
    import structlog

    renderer: Any = structlog.processors.JSONRenderer() if settings.log_json else structlog.dev.ConsoleRenderer()
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _fields,
        ],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler], force=True)
