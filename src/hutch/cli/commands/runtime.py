"""`hutch runtime`: what runs flows, for whoever speaks REP."""

from __future__ import annotations

from pathlib import Path

import click


@click.group(epilog="\b\nExample:\n  hutch runtime serve\n")
def runtime() -> None:
    """What runs flows: REP runtimes, ours and others."""


@runtime.command(
    epilog="""\b
Example:
  echo '{"jsonrpc": "2.0", "id": 1, "method": "Runtime.Capabilities", "params": {}}' | hutch runtime serve
""",
)
def serve() -> int:
    """Be a REP runtime on stdin and stdout.

    One JSON-RPC request a line, until stdin ends; then it ends within a second, and with it every run. Logs
    go to stderr, as JSON with TRACE_MIND_LOG_JSON=1. shell.run needs TRACE_MIND_ALLOW_SHELL=1.
    """
    from hutch.cli.runtime import serve

    return serve()


@runtime.group(epilog="\b\nExample:\n  hutch runtime cache clear --engine fast\n")
def cache() -> None:
    """What runtimes said that they can, kept when a flow wanted more."""


@cache.command(
    epilog="""\b
Examples:
  hutch runtime cache clear --engine fast
  hutch runtime cache clear
"""
)
@click.option("--engine", metavar="NAME", help="Of this runtime alone.")
def clear(engine: str | None) -> int:
    """Forget it.

    It is in ~/.trace_mind/runtime_capabilities, in a file for each runtime.
    """
    from hutch.cli.runtime_cache import clear

    return clear(engine)


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
@click.option("--flow", type=click.Path(path_type=Path), metavar="FILE", help="One that it runs to the end.")
@click.option("--failing", type=click.Path(path_type=Path), metavar="FILE", help="One of which a step fails.")
@click.option("--lasting", type=click.Path(path_type=Path), metavar="FILE", help="One that takes long.")
@click.option("--inputs", metavar="JSON|@FILE", help="What these flows are given.")
@click.option(
    "--timeout",
    type=float,
    metavar="SECONDS",
    default=10.0,
    show_default=True,
    help="For an answer, and for a run.",
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
    """Check whether a program is a REP runtime.

    COMMAND is the program with its arguments; without one, our own runtime is checked. Flows for it are made
    of kinds that it has, or given. Exits with 1 if it does not do what the specification requires.
    """
    from hutch.cli.runtime_check import check

    return check(
        command,
        flow=flow,
        failing=failing,
        lasting=lasting,
        inputs=inputs,
        timeout=timeout,
        as_json=json,
    )
