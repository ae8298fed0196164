"""What goes to stdout for other programs."""

from __future__ import annotations

import sys


def print_json(text: bytes) -> None:
    """JSON is UTF-8, whatever the terminal's encoding is."""
    sys.stdout.buffer.write(text + b"\n")
    sys.stdout.buffer.flush()
