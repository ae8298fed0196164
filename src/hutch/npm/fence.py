"""A fence around the installer, which believes what registries call things: it writes in one folder only."""

from __future__ import annotations

import logging
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path

from hutch.sandbox.jail import DEVICES, bubblewrap_path

logger = logging.getLogger("hutch.npm")


def fence(folder: Path) -> list[str]:
    """What to put before a command, so that it dies with us and all but the folder is read-only to it.

    Without bubblewrap it only dies with us: see `holds`.
    """
    if holds():
        return _fence(folder)
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL", "--no-new-privs", "--"] if setpriv else []


def holds() -> bool:
    """Whether there is a fence on this machine. Takes some milliseconds the first time."""
    return _works(bubblewrap_path())


def _fence(folder: Path) -> list[str]:
    bwrap = bubblewrap_path() or "bwrap"
    mounts = ["--ro-bind", "/", "/", "--bind", str(folder), str(folder)]
    for device in DEVICES:
        mounts += ["--dev-bind", device, device]
    return [bwrap, "--die-with-parent", "--cap-drop", "ALL", *mounts, "--"]


@lru_cache
def _works(bwrap: str | None) -> bool:
    if bwrap is None:
        return False
    try:
        tried = subprocess.run([*_fence(Path("/tmp")), "/bin/true"], env={}, capture_output=True, timeout=10)
        works = tried.returncode == 0
    except (OSError, subprocess.SubprocessError):
        works = False
    if not works:
        logger.info("bubblewrap does not work here: the package installer runs without a fence")
    return works
