"""The `hutch` command: the same things by hand. Every command imports its room only when it is called."""

from __future__ import annotations

import gc
import logging
import os
import sys
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from hutch.errors import HutchError


def main() -> NoReturn:
    """Entry of the console script.

    Exits with 1 if the command failed, with 2 if it could not begin because of what it was given.
    """
    # What a command makes while it starts stays, nearly all of it: to look for garbage there takes a tenth of
    # that time.
    gc.set_threshold(10_000)
    import click

    from hutch.cli.commands import hutch
    from hutch.errors import HutchError

    logging.basicConfig(level=logging.WARNING, format="hutch: %(message)s")
    try:
        status = hutch.main(prog_name="hutch", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        status = error.exit_code
    except HutchError as error:
        print(f"hutch: {error}", file=sys.stderr)
        status = exit_code_of(error)
    except BrokenPipeError:
        # Who read our output has enough; what is left in the buffer must not complain at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    except (KeyboardInterrupt, click.Abort):
        status = 130
    # What is left now goes with the process.
    gc.freeze()
    sys.exit(status)


def exit_code_of(error: HutchError) -> int:
    """2 for what was given, 1 for all else."""
    from hutch.errors import ConfigError, InvalidExecution, InvalidInput, InvalidPackage, SettingError

    given = InvalidExecution | InvalidInput | InvalidPackage | SettingError | ConfigError
    return 2 if isinstance(error, given) else 1
