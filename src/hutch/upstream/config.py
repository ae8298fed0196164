"""Which MCP servers there are: `.toolscript.json` of the home and of the project, or files of that shape."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from hutch.upstream.configfile import ConfigFile
from hutch.upstream.entries import Config, ServerConfig

logger = logging.getLogger("hutch.upstream")

FILE = ".toolscript.json"


def load(paths: Sequence[Path | str] | None = None, environ: Mapping[str, str] | None = None) -> Config:
    """Reads the files, of which a later one's server takes the place of an earlier one's with that name.

    Without `paths`, those of ~/.toolscript.json and ./.toolscript.json that exist. `environ` is what
    `${NAME}` is taken from. Raises ConfigError, which names file, line and key; of keys that nobody reads,
    it only warns.
    """
    environ = os.environ if environ is None else environ
    servers: dict[str, ServerConfig] = {}
    read: list[str] = []
    warnings: list[str] = []
    for path in _usual(environ) if paths is None else [Path(each).expanduser() for each in paths]:
        reader = ConfigFile(path, environ)
        servers.update(reader.servers())
        read.append(str(path))
        warnings += reader.warnings
    for warning in warnings:
        logger.warning("%s", warning)
    return Config(servers, tuple(read), tuple(warnings))


def _usual(environ: Mapping[str, str]) -> list[Path]:
    home = environ.get("HOME")
    candidates = [Path(home) / FILE] if home else []
    candidates.append(Path(FILE))
    found: dict[Path, Path] = {}
    for each in candidates:
        if each.is_file():
            found.setdefault(each.resolve(), each)
    return list(found.values())
