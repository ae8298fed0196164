"""The `hutch` command: the same things by hand. Every command imports its room only when it is called."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry of the console script."""
    from hutch.cli.commands import app
    from hutch.errors import HutchError

    try:
        app()
    except HutchError as error:
        print(f"hutch: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
