"""Command line of `hutch serve`, `hutch console`, `hutch check`, `hutch doctor` and `hutch config`."""

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
@click.option("--host", metavar="ADDRESS", help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--port", type=int, metavar="PORT", help="Port; 0 for any free one.  [default: 4111]")
@click.option(
    "--egress",
    metavar="POLICY",
    help="Network access of tools and abilities: none, public or allowlist.  [default: public]",
)
@click.option(
    "--egress-allow",
    multiple=True,
    metavar="HOST:PORT",
    help="Allow another address or, with allowlist, only these. May be repeated.",
)
@click.option(
    "--config",
    multiple=True,
    metavar="FILE",
    help="MCP servers, instead of ~/.toolscript.json. May be repeated.",
)
@click.option("--examples", is_flag=True, help="Offer example tools if there are no MCP servers.")
@click.option("--cluster", metavar="URL", help="Run executions on the workers of this NATS server.")
def serve(
    host: str | None,
    port: int | None,
    egress: str | None,
    egress_allow: tuple[str, ...],
    config: tuple[str, ...],
    examples: bool,
    cluster: str | None,
) -> int:
    """Serve all protocols over HTTP and WebSocket.

    On SIGTERM or Ctrl-C, running executions finish first; a second signal stops at once. No files of the
    current directory are used unless an option names them.
    """
    from hutch.cli.serve import serve

    flags = {
        "host": host,
        "port": port,
        "egress": egress,
        "egress_allow": egress_allow or None,
        "mcp_config": config or None,
        "example_tools": examples or None,
        "cluster_url": cluster,
    }
    return serve(flags)


@click.command(
    epilog="""\b
Examples:
  hutch console --open
  HUTCH_API_KEY=secret hutch console https://hutch.example.com
""",
)
@click.argument("url", required=False)
@click.option(
    "--url",
    "url_option",
    envvar="HUTCH_URL",
    metavar="URL",
    hidden=True,
    help="The same as the argument URL.",
)
@click.option("--open", "browser", is_flag=True, help="Open the link in a browser.")
def console(url: str | None, url_option: str | None, browser: bool) -> int:
    """Print a link to the web console of a running server.

    URL is the server's address, by default the one in the settings. If the server needs a key, the link signs
    one browser in with your key.
    """
    from hutch.cli.console import open_console

    return open_console(url or url_option, browser=browser)


@click.command(
    epilog="""\b
Examples:
  hutch check http://127.0.0.1:4111
  hutch check https://executor.example --api-key - < key
  hutch check http://127.0.0.1:4111 --slow-tool @example/sleep@1.0.0#sleepTool
""",
)
@click.argument("url")
@click.option(
    "--api-key", metavar="KEY", help="API key (Bearer token) of the executor; - reads it from stdin."
)
@click.option("--json", is_flag=True, help="Print the report as JSON on one line.")
@click.option(
    "--tool",
    metavar="PACKAGE@VERSION#NAME",
    help="A tool to execute.  [default: that of @tpmjs/tools-template-render]",
)
@click.option("--params", metavar="JSON", help="Parameters for --tool.")
@click.option(
    "--slow-tool",
    metavar="PACKAGE@VERSION#NAME",
    help="A tool that runs longer than the executor's timeout; without it, timeouts are not tested.",
)
@click.option("--slow-params", metavar="JSON", help="Parameters for --slow-tool.")
def check(
    url: str,
    api_key: str | None,
    json: bool,
    tool: str | None,
    params: str | None,
    slow_tool: str | None,
    slow_params: str | None,
) -> int:
    """Test a TPMJS executor against the specification.

    URL is its base address. Prints a report by level: core, standard and extended. Exits with 0 only if all
    core requirements were tested and passed.
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
    """Check whether this machine can isolate guests.

    Shows the isolation that guests get here, what is missing, and how to fix it. Exits with 1 if guests
    cannot run.
    """
    from hutch.cli.doctor import doctor

    return doctor(json=json)


@click.command(
    epilog="""\b
Examples:
  hutch config --changed
  HUTCH_PORT=8080 hutch config --server
""",
)
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--server", is_flag=True, help="Settings of a server, which reads nothing in this folder.")
@click.option("--changed", is_flag=True, help="Only settings that do not have their default value.")
@click.option("--json", is_flag=True, help="Print a list as JSON on one line.")
def config(names: tuple[str, ...], server: bool, changed: bool, json: bool) -> int:
    """Show settings in force and where they were set.

    With NAME, show only those settings.

    Settings come from options, HUTCH_* variables, a trusted hutch.toml in this folder, and hutch.toml in
    HUTCH_HOME. Secrets are shown as ***.
    """
    from hutch.cli.config import show_config

    return show_config(names, server=server, changed=changed, json=json)
