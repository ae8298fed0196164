"""`hutch serve`, `hutch check` and `hutch doctor`: a server, whether one is right, and what it stands on."""

from __future__ import annotations

import click


@click.command(
    epilog="""\b
Examples:
  hutch serve
  hutch serve --egress allowlist --egress-allow api.example.com:443
  HUTCH_API_KEY=secret hutch serve --host 0.0.0.0 --port 8080
""",
)
@click.option("--host", metavar="ADDRESS", help="Where to listen.  [default: 127.0.0.1]")
@click.option("--port", type=int, metavar="PORT", help="0 takes a free one.  [default: 4111]")
@click.option(
    "--egress",
    metavar="POLICY",
    help="What tools and abilities may reach: none, public, or allowlist.  [default: public]",
)
@click.option(
    "--egress-allow",
    multiple=True,
    metavar="HOST:PORT",
    help="What they may reach besides or, with allowlist, at all. May be repeated.",
)
def serve(host: str | None, port: int | None, egress: str | None, egress_allow: tuple[str, ...]) -> int:
    """Serve all doors over HTTP and WebSocket.

    SIGTERM or Ctrl-C lets the running executions finish; a second one stops at once.
    """
    from hutch.cli.serve import serve

    flags = {"host": host, "port": port, "egress": egress, "egress_allow": egress_allow or None}
    return serve(flags)


@click.command(
    epilog="""\b
Examples:
  hutch check http://127.0.0.1:4111
  hutch check https://executor.example --api-key - < key
  hutch check http://127.0.0.1:4111 --slow-tool @example/sleep@1.0.0#sleepTool
""",
)
@click.argument("url")
@click.option("--api-key", metavar="KEY", help="What it wants as a Bearer token; - reads it from stdin.")
@click.option("--json", is_flag=True, help="Print the report as JSON on one line.")
@click.option(
    "--tool",
    metavar="PACKAGE@VERSION#NAME",
    help="The tool to execute.  [default: that of @tpmjs/tools-template-render]",
)
@click.option("--params", metavar="JSON", help="What to call it with.")
@click.option(
    "--slow-tool",
    metavar="PACKAGE@VERSION#NAME",
    help="One that runs longer than the executor allows; without it no timeout is tested.",
)
@click.option("--slow-params", metavar="JSON", help="What to call that with.")
def check(
    url: str,
    api_key: str | None,
    json: bool,
    tool: str | None,
    params: str | None,
    slow_tool: str | None,
    slow_params: str | None,
) -> int:
    """Test any TPMJS executor.

    URL is its base address. Prints the specification's report: core, standard, and what is extended. Exits
    with 0 only if all of the core was tested and passed.
    """
    from hutch.cli.check import check

    return check(
        url,
        api_key=api_key,
        json=json,
        tool=tool,
        params=params,
        slow_tool=slow_tool,
        slow_params=slow_params,
    )


@click.command(
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
