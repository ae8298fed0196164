"""Command line of `hutch runtime`."""

from __future__ import annotations

from pathlib import Path

import click


@click.group(epilog="\b\nExample:\n  hutch runtime serve\n")
def runtime() -> None:
    """Run and test REP runtimes, which run flows."""


@runtime.command(
    epilog="""\b
Example:
  echo '{"jsonrpc": "2.0", "id": 1, "method": "Runtime.Capabilities", "params": {}}' | hutch runtime serve
""",
)
@click.option(
    "--project",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Use the trusted .toolscript.json and hutch.toml of this folder.",
)
def serve(project: Path | None) -> int:
    """Run as a REP runtime over stdio.

    Reads one JSON-RPC request per line. Stops within a second after the end of stdin, together with all runs.
    Logs go to stderr, as JSON with TRACE_MIND_LOG_JSON=1. shell.run needs TRACE_MIND_ALLOW_SHELL=1.
    """
    from hutch.cli.runtime.serve import serve_runtime

    return serve_runtime(project)


@runtime.group(epilog="\b\nExample:\n  hutch runtime cache clear --engine fast\n")
def cache() -> None:
    """Manage cached runtime capabilities."""


@cache.command(
    epilog="""\b
Examples:
  hutch runtime cache clear --engine fast
  hutch runtime cache clear
"""
)
@click.option("--engine", metavar="NAME", help="Only of this runtime.")
def clear(engine: str | None) -> int:
    """Delete cached runtime capabilities.

    The cache is in ~/.trace_mind/runtime_capabilities, with one file per runtime.
    """
    from hutch.cli.runtime.serve import clear_cache

    return clear_cache(engine)


@runtime.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog="""\b
Examples:
  hutch runtime check
  hutch runtime check python my_runtime.py --its-own-flag
  hutch runtime check --flow good.json --failing bad.json --lasting long.json ./runtime
""",
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("--flow", type=click.Path(path_type=Path), metavar="FILE", help="A flow that should succeed.")
@click.option("--failing", type=click.Path(path_type=Path), metavar="FILE", help="A flow that should fail.")
@click.option("--lasting", type=click.Path(path_type=Path), metavar="FILE", help="A flow that takes long.")
@click.option("--inputs", metavar="JSON|@FILE", help="Inputs of these flows.")
@click.option(
    "--timeout",
    type=float,
    metavar="SECONDS",
    default=10.0,
    show_default=True,
    help="Time limit for each response and each run.",
)
@click.option("--json", is_flag=True, help="Print JSON on one line.")
def check(
    command: tuple[str, ...],
    flow: Path | None,
    failing: Path | None,
    lasting: Path | None,
    inputs: str | None,
    timeout: float,
    json: bool,
) -> int:
    """Test a REP runtime against the specification.

    COMMAND is the program with its arguments; the default is the built-in runtime. Without the options for
    flows, test flows are made from the step kinds that the runtime supports. Exits with 1 if the runtime does
    not conform.
    """
    from hutch.cli.runtime.check import check

    return check(
        command,
        flow=flow,
        failing=failing,
        lasting=lasting,
        inputs=inputs,
        timeout=timeout,
        as_json=json,
    )
