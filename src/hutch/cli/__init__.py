"""The `hutch` command. Each command imports its modules when it runs."""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import logging
import os
import sys
import threading
from typing import NoReturn


def run() -> NoReturn:
    """Entry point of the console script. Runs `main`, and ends the process without finalizing the
    interpreter, which takes 4 ms.
    """
    try:
        main()
    except SystemExit as ended:
        if threading.active_count() > 1 or not isinstance(ended.code, int | None):
            raise
        status = ended.code or 0
    atexit._run_exitfuncs()
    # The reader of stderr may have closed it.
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def main() -> NoReturn:
    """Runs the command of `sys.argv`. Exits with 1 if it failed, and with 2 for invalid input."""
    # Search for garbage less often. Nearly all objects that are created during start-up stay alive, so
    # searching them for garbage would take a tenth of the start-up time and find little. Commands that keep
    # running call `event_loop.end_startup`.
    gc.set_threshold(100_000)
    import click

    from hutch.cli.commands import hutch
    from hutch.cli.support.log_format import PrintableFormatter, SettingWarningsOnce
    from hutch.errors import HutchError

    handler = logging.StreamHandler()
    handler.setFormatter(PrintableFormatter("hutch: %(message)s"))
    handler.addFilter(SettingWarningsOnce())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    # Silence OpenTelemetry's exporter, which logs every failed attempt. Hutch's tracer logs the first one.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    try:
        status = hutch.main(prog_name="hutch", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        from hutch.cli.support.console import print_message

        # Print click's message with `print_message`, because the message quotes arguments and their control
        # characters have to be escaped.
        text = io.StringIO()
        error.show(text)
        print_message(text.getvalue().removesuffix("\n"))
        status = error.exit_code
    except HutchError as error:
        from hutch.cli.support.console import exit_code_of, print_error

        print_error(str(error))
        status = exit_code_of(error)
    except ModuleNotFoundError as error:
        from hutch.cli.support.console import print_error
        from hutch.cli.support.extras import missing_extra

        if (message := missing_extra(error)) is None:
            raise
        print_error(message)
        status = 1
    except BrokenPipeError:
        # The program that reads stdout has closed it. Replace stdout, so that flushing at exit does not raise
        # another error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    except (KeyboardInterrupt, click.Abort):
        status = 130
    gc.freeze()  # skips the last garbage collection, because the process ends
    sys.exit(status)
