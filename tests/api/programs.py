"""Runs Python programs that use Hutch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.processes import TIMEOUT_SECONDS


def python(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs a Python program with warnings as errors."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        env={**os.environ, **env},
        check=False,
    )
