"""Where the runtime's log goes: stderr, in lines for people or, where the orchestrator wants it, of JSON.

Not `hutch.logs`, whose library takes longer to load than a short flow to run.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping

from hutch.doors.rep.events import timestamp


def configure(environ: Mapping[str, str], level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    if environ.get("TRACE_MIND_LOG_JSON") == "1":
        handler.setFormatter(JsonLines())
    else:
        handler.setFormatter(Lines("hutch: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


class Lines(logging.Formatter):
    """For people."""

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", {})
        told = "".join(f" {key}={value}" for key, value in fields.items() if key != "type")
        return super().format(record) + told


class JsonLines(logging.Formatter):
    """For programs: one object a line."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "timestamp": timestamp(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)
