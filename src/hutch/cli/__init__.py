"""The `hutch` command: the same things by hand. Every command imports its room only when it is called."""

from __future__ import annotations

import logging
import os
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Entry of the console script.

    Exits with 1 if the command failed, with 2 if it could not begin because of what it was given.
    """
    import click

    from hutch.cli.commands import hutch
    from hutch.errors import ConfigError, HutchError, InvalidExecution, InvalidPackage, SettingError

    logging.basicConfig(level=logging.WARNING, format="hutch: %(message)s")
    try:
        status = hutch.main(prog_name="hutch", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        status = error.exit_code
    except HutchError as error:
        print(f"hutch: {error}", file=sys.stderr)
        given = InvalidExecution | InvalidPackage | SettingError | ConfigError
        status = 2 if isinstance(error, given) else 1
    except BrokenPipeError:
        # Who read our output has enough; what is left in the buffer must not complain at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    except (KeyboardInterrupt, click.Abort):
        status = 130
    sys.exit(status)
