"""`hutch eval` and `hutch runner`: code, whoever wrote it."""

from __future__ import annotations

from pathlib import Path

import click

engine_option = click.option(
    "--engine", default="quickjs", show_default=True, metavar="NAME", help="quickjs or deno."
)


@click.command(
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


@click.command(
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
