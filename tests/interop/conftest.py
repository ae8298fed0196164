"""Installs PyPI's `trace-mind` into a folder, separate from the dependencies of Hutch. Each version is
installed once.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.processes import TIMEOUT_SECONDS

BUILD = Path(__file__).parents[2] / "build" / "trace-mind"


def installed(version: str, *options: str) -> Path:
    """Returns a folder in which this version is installed. The folder is kept for the next test run. Fails if
    pip cannot install the version.
    """
    folder = BUILD / version
    if not folder.is_dir():
        temporary = BUILD / f".{version}-{os.getpid()}"
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
        done = subprocess.run(
            [*pip, *options, "--target", str(temporary), f"trace-mind=={version}"],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"pip cannot install trace-mind {version}: {done.stderr[-800:]}"
        if folder.is_dir():
            return folder
        temporary.rename(folder)
    return folder


@pytest.fixture(scope="session")
def old() -> Path:
    """Folder of the last TraceMind version whose command line works as installed from PyPI."""
    return installed("1.2.0")


@pytest.fixture(scope="session")
def new() -> Path:
    """Folder of the latest TraceMind version. Its command line fails because a module is missing, but its
    engine works even without dependencies.
    """
    return installed("2.0.2", "--no-deps")


def python(folder: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Runs Python with one of the TraceMind versions importable."""
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(folder)},
        cwd=cwd,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )


def tm(folder: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Runs TraceMind's command `tm`."""
    return python(folder, "-c", "from tm.cli import main; main()", *arguments, cwd=cwd)
