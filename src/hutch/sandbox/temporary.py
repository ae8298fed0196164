"""Temporary folders that carry their host's name, so that the next host removes what a killed one left."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from hutch.sandbox import identity

_PREFIX = "hutch-run-"


def make_folder() -> Path:
    """A new one, for this user alone. Its path is short, as those of sockets must be."""
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{identity.of_this_host()}-", dir=_place()))


def sweep() -> None:
    """Removes the folders of hosts that are gone."""
    for folder in Path(_place()).glob(f"{_PREFIX}*"):
        if identity.is_gone(folder.name.removeprefix(_PREFIX).rpartition("-")[0]):
            shutil.rmtree(folder, ignore_errors=True)


def _place() -> str:
    preferred = os.environ.get("XDG_RUNTIME_DIR", "")
    return preferred if preferred and os.access(preferred, os.W_OK) else tempfile.gettempdir()
