"""Command line of `hutch eval` and `hutch runner`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from hutch.api.options import Engine

engine_option = click.option(
    "--engine", default="quickjs", show_default=True, metavar="NAME", help="Engine: quickjs or deno."
)


@click.command(
    "eval",
    epilog="""\b
Examples:
  hutch eval '1 + 1'
  hutch eval -f report.ts --engine deno --timeout 30
  echo 'return await Promise.resolve(42)' | hutch eval -
  hutch eval --session work 'let x = 1'
  hutch eval --session work 'x + 1'
  hutch eval 'await files.text("data.csv")' --input-file data.csv
""",
)
@click.argument("code", required=False)
@click.option("-f", "--file", type=click.Path(path_type=Path), help="Read the code from a file.")
@engine_option
@click.option("--timeout", type=float, metavar="SECONDS", help="Time limit.  [default: 5]")
@click.option("--memory", type=float, metavar="MB", help="Memory limit.  [default: 64]")
@click.option("--session", metavar="NAME", help="Keep the variables of the code under this name.")
@click.option(
    "--input-file",
    "input_files",
    type=click.Path(path_type=Path),
    multiple=True,
    help="File that the code can read with files.read(name). Can be repeated.",
)
@click.option(
    "--save-files",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Save the files that the code writes.",
)
@click.option("--force", is_flag=True, help="Let --save-files replace existing files.")
@click.option("--json", is_flag=True, help="Print the result object on one line.")
def evaluate(
    code: str | None,
    file: Path | None,
    engine: Engine,
    timeout: float | None,
    memory: float | None,
    session: str | None,
    input_files: tuple[Path, ...],
    save_files: Path | None,
    force: bool,
    json: bool,
) -> int:
    """Run code in the sandbox.

    CODE is JavaScript or TypeScript; - reads it from stdin. Prints logs to stderr and the result to stdout as
    JSON. Exits with 1 if the code failed, with 2 if the arguments are invalid.
    """
    from hutch.cli.eval import evaluate

    return evaluate(
        code,
        file,
        engine=engine,
        timeout=timeout,
        memory=memory,
        session=session,
        input_files=input_files,
        save_in=save_files,
        force=force,
        json=json,
    )


@click.command(
    epilog="""\b
Example, in Python:
  hutch.Hutch(runner=["hutch", "runner"])
""",
)
@engine_option
def runner(engine: str) -> int:
    """Run as an Execbox runner over stdio.

    Reads and writes one JSON object per line, one session at a time, until stdin ends.
    """
    from hutch.cli.runner import run

    return run(engine)
