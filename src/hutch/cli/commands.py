"""What can be typed after `hutch`, and its help."""

from __future__ import annotations

from pathlib import Path

import click

from hutch._version import __version__

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


engine_option = click.option(
    "--engine", default="quickjs", show_default=True, metavar="NAME", help="quickjs or deno."
)


@click.group(
    context_settings=SETTINGS,
    epilog="""\b
Example:
  hutch eval '[1, 2, 3].map((n) => n * n)'
""",
)
@click.version_option(__version__, message="hutch %(version)s")
def hutch() -> None:
    """Runs other people's code for AI agents, safely and at once.

    Settings come from HUTCH_* variables and from hutch.toml, in the current directory or in HUTCH_HOME.
    """


@hutch.command(
    "eval",
    epilog="""\b
Examples:
  hutch eval '1 + 1'
  hutch eval -f report.ts --engine deno --timeout 30
  echo 'return await Promise.resolve(42)' | hutch eval -
""",
)
@click.argument("code", required=False)
@click.option("-f", "--file", type=click.Path(path_type=Path), help="Read the code from a file.")
@engine_option
@click.option("--timeout", type=float, metavar="SECONDS", help="When to stop it.  [default: 5]")
@click.option("--memory", type=float, metavar="MB", help="How much it may use.  [default: 64]")
@click.option("--json", is_flag=True, help="Print the whole result object on one line.")
def evaluate(
    code: str | None, file: Path | None, engine: str, timeout: float | None, memory: float | None, json: bool
) -> int:
    """Run code in the sandbox.

    CODE is JavaScript or TypeScript; - reads it from stdin. Its logs go to stderr and its result, as JSON,
    to stdout. Exits with 1 if it failed, with 2 if it could not begin because of what was given.
    """
    from hutch.cli.evaluate import evaluate

    return evaluate(code, file, engine=engine, timeout=timeout, memory=memory, json=json)


@hutch.command(
    epilog="""\b
Example, in Python:
  hutch.Hutch(runner=["hutch", "runner"])
""",
)
@engine_option
def runner(engine: str) -> int:
    """Be an Execbox runner on stdin and stdout.

    One JSON object a line, one session at a time, until stdin ends.
    """
    from hutch.cli.runner import run

    return run(engine)


@hutch.command(
    epilog="""\b
Examples:
  hutch serve
  HUTCH_API_KEY=secret hutch serve --host 0.0.0.0 --port 8080
""",
)
@click.option("--host", metavar="ADDRESS", help="Where to listen.  [default: 127.0.0.1]")
@click.option("--port", type=int, metavar="PORT", help="0 takes a free one.  [default: 4111]")
def serve(host: str | None, port: int | None) -> int:
    """Serve all doors over HTTP and WebSocket.

    SIGTERM or Ctrl-C lets the running executions finish; a second one stops at once.
    """
    from hutch.cli.serve import serve

    return serve(host=host, port=port)


@hutch.command(
    epilog="""\b
Example:
  hutch doctor --json
"""
)
@click.option("--json", is_flag=True, help="Print the report as JSON on one line.")
def doctor(json: bool) -> int:
    """Examine this machine.

    Says what isolation guests get here, what is missing, and how to get it. Exits with 1 if they cannot run.
    """
    from hutch.cli.doctor import doctor

    return doctor(json=json)
