"""PyPI's `trace-mind`, installed aside once, where none of what it needs gets into our own environment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.processes import PATIENCE

BUILD = Path(__file__).parents[2] / "build" / "trace-mind"


def installed(version: str, *how: str) -> Path:
    """A folder with it, kept for the next time. Fails where it cannot be had."""
    folder = BUILD / version
    if not folder.is_dir():
        aside = BUILD / f".{version}-{os.getpid()}"
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
        # For Python alone: what it brings is never run from anywhere else.
        done = subprocess.run(
            [*pip, *how, "--target", str(aside), f"trace-mind=={version}"],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"pip cannot install trace-mind {version}: {done.stderr[-800:]}"
        if folder.is_dir():
            return folder
        aside.rename(folder)
    return folder


@pytest.fixture(scope="session")
def old() -> Path:
    """The last version whose command line works as it comes from PyPI."""
    return installed("1.2.0")


@pytest.fixture(scope="session")
def new() -> Path:
    """The latest; its command line lacks a module, its engine lacks nothing, not even what it depends on."""
    return installed("2.0.2", "--no-deps")


def python(folder: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Python, with one of them to import."""
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(folder)},
        cwd=cwd,
        timeout=PATIENCE,
        check=False,
    )


def tm(folder: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Their command."""
    return python(folder, "-c", "from tm.cli import main; main()", *arguments, cwd=cwd)
