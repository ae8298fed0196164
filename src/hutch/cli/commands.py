"""What can be typed after `hutch`, and its help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="hutch",
    help="Runs other people's code for AI agents, safely and at once.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Engine = Annotated[str, typer.Option("--engine", help="quickjs or deno.", metavar="NAME")]


def _version(wanted: bool) -> None:
    if wanted:
        from hutch._version import __version__

        print(f"hutch {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command(
    "eval",
    epilog="Examples:  hutch eval '1 + 1'   |   hutch eval -f report.ts --engine deno --timeout 30",
)
def evaluate(
    code: Annotated[str | None, typer.Argument(help="JavaScript or TypeScript; - reads stdin.")] = None,
    file: Annotated[Path | None, typer.Option("-f", "--file", help="Read the code from a file.")] = None,
    engine: Engine = "quickjs",
    timeout: Annotated[float, typer.Option(help="Seconds until it is stopped.")] = 5.0,
    memory: Annotated[float, typer.Option(help="MB that it may use.")] = 64.0,
    json: Annotated[bool, typer.Option("--json", help="Print the whole result object on one line.")] = False,
) -> None:
    """Run code in the sandbox: logs to stderr, the result as JSON to stdout; exit 1 if it failed."""
    from hutch.cli.evaluate import evaluate

    raise typer.Exit(evaluate(code, file, engine=engine, timeout=timeout, memory=memory, json=json))


@app.command(epilog="Example:  hutch.Hutch(runner=['hutch', 'runner'])  drives it from Python.")
def runner(engine: Engine = "quickjs") -> None:
    """Be an Execbox runner on stdin and stdout: one JSON object a line, one session at a time."""
    from hutch.cli.runner import run

    run(engine)


@app.command(epilog="Example:  HUTCH_API_KEY=secret hutch serve --port 4111")
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on.  [default: 127.0.0.1]")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.  [default: 4111]")] = None,
) -> None:
    """Serve all doors over HTTP and WebSocket until SIGTERM, which drains."""
    from hutch.cli.serve import serve

    serve(host=host, port=port)


@app.command()
def doctor(
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Examine this machine: what isolation it gives, what is missing, and how to get it."""
    from hutch.cli.doctor import doctor

    raise typer.Exit(doctor(json=json))
