"""Command line of `hutch exec`, `hutch gateway`, `hutch auth`, `hutch tools` and `hutch mcp`."""

from __future__ import annotations

from pathlib import Path

import click

gateway_option = click.option(
    "-g",
    "--gateway-url",
    metavar="URL",
    help="A running gateway; also TOOLSCRIPT_GATEWAY_URL. The default is a temporary one for the servers of "
    "~/.toolscript.json and of a trusted ./.toolscript.json.",
)
filter_option = click.option(
    "--filter",
    "tool_filter",
    metavar="NAMES",
    help="Only these servers and tools, such as github,jira__get_issue.",
)
json_option = click.option("--json", is_flag=True, help="Print JSON on one line.")


@click.command(
    "exec",
    context_settings={"ignore_unknown_options": True},
    epilog="""\b
Examples:
  hutch exec 'return await tools.github.listIssues({repo: "x/y"})'
  hutch exec -f report.ts 2026-01
  hutch exec --no-check --timeout 10 'console.log("hello")'
""",
)
@click.argument("code", required=False)
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.option("-f", "--file", type=click.Path(path_type=Path), help="Run a file; it may import others.")
@gateway_option
@click.option("--timeout", type=float, metavar="SECONDS", help="Time limit.  [default: 120]")
@click.option("--memory", type=float, metavar="MB", help="Memory limit.  [default: 256]")
@click.option("--no-check", is_flag=True, help="Skip the type check.")
@click.option("--strict", is_flag=True, help="Check all code strictly, not only the use of tools.")
@click.option("--json", is_flag=True, help="Print output and result as one JSON object on one line.")
def execute(
    code: str | None,
    args: tuple[str, ...],
    file: Path | None,
    gateway_url: str | None,
    timeout: float | None,
    memory: float | None,
    no_check: bool,
    strict: bool,
    json: bool,
) -> int:
    """Run a toolscript: TypeScript that can call all MCP tools.

    CODE is the script; - reads it from stdin. Types are checked first. The script's output is passed on and
    its return value printed as JSON. Exits with the script's exit code, with 1 if it failed, with 2 if the
    arguments are invalid, with 124 if it timed out.
    """
    from hutch.cli.toolscript import execute

    if file is not None and code is not None:
        args = (code, *args)
        code = None
    return execute(
        code,
        file,
        args,
        gateway_url=gateway_url,
        timeout=timeout,
        memory=memory,
        check=not no_check,
        strict=strict or None,
        json=json,
    )


@click.group(epilog="\b\nExample:\n  hutch gateway start --port 3000\n")
def gateway() -> None:
    """Serve your MCP servers at one HTTP address."""


@gateway.command(
    epilog="""\b
Examples:
  hutch gateway start --project .
  hutch gateway start --port 3000 --token secret --config servers.json
"""
)
@click.option("--host", metavar="ADDRESS", help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--port", type=int, metavar="PORT", help="Port; 0 for any free one.  [default: 4111]")
@click.option(
    "--token", metavar="TOKEN", help="API key that clients must send; safer in the variable HUTCH_API_KEY."
)
@click.option(
    "--config",
    multiple=True,
    metavar="FILE",
    help="MCP servers, instead of ~/.toolscript.json. May be repeated.",
)
@click.option(
    "--project",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Also use the trusted .toolscript.json and hutch.toml of this folder.",
)
def start(
    host: str | None, port: int | None, token: str | None, config: tuple[str, ...], project: Path | None
) -> int:
    """Serve only the gateway, until SIGTERM or Ctrl-C.

    No files of the current directory are used unless an option names them.
    """
    from hutch.cli.serve import serve

    flags = {"host": host, "port": port, "api_key": token, "mcp_config": config or None}
    return serve(flags, gateway_only=True, project=project)


@gateway.command(epilog="\b\nExample:\n  hutch gateway status --json\n")
@click.option(
    "-g",
    "--gateway-url",
    metavar="URL",
    help="A running gateway; also TOOLSCRIPT_GATEWAY_URL. The default is the address in the settings.",
)
@json_option
def status(gateway_url: str | None, json: bool) -> int:
    """Show the servers of a running gateway and their errors.

    Exits with 1 if a server has failed.
    """
    from hutch.cli.gateway import show_gateway_status

    return show_gateway_status(gateway_url, json=json)


@gateway.command("env", epilog='\b\nExample:\n  eval "$(hutch gateway env)"\n')
def environment() -> int:
    """Print `export TOOLSCRIPT_GATEWAY_URL=…` for a shell.

    The address comes from the settings (HUTCH_HOST, HUTCH_PORT), whether or not a gateway runs there.
    """
    from hutch.cli.gateway import print_environment

    return print_environment()


class _AuthGroup(click.Group):
    """Treats an unknown command as the name of a server to log in to."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        return super().resolve_command(ctx, args if args[0] in self.commands else ["login", *args])


@click.group(cls=_AuthGroup, epilog="\b\nExamples:\n  hutch auth github\n  hutch auth logout github\n")
def auth() -> None:
    """Log in to MCP servers that require OAuth.

    `hutch auth SERVER` is short for `hutch auth login SERVER`.
    """


@auth.command(epilog="\b\nExample:\n  hutch auth login github\n")
@click.argument("server")
def login(server: str) -> int:
    """Log in to a server with a browser."""
    from hutch.cli.gateway import log_in

    return log_in(server)


@auth.command(epilog="\b\nExample:\n  hutch auth logout github\n")
@click.argument("server")
def logout(server: str) -> int:
    """Log out of a server: delete its tokens.

    Running gateways stop using the tokens too. The tokens are not revoked at the server.
    """
    from hutch.cli.gateway import log_out

    return log_out(server)


@click.group(epilog="\b\nExample:\n  hutch tools search 'create an issue'\n")
def tools() -> None:
    """List and search the tools of all MCP servers."""


@tools.command("list", epilog="\b\nExample:\n  hutch tools list --filter github,jira__get_issue\n")
@filter_option
@gateway_option
@json_option
def list_tools(tool_filter: str | None, gateway_url: str | None, json: bool) -> int:
    """List the tools."""
    from hutch.cli.gateway import list_tools

    return list_tools(gateway_url, tool_filter, json=json)


@tools.command(epilog="\b\nExample:\n  hutch tools search 'create an issue'\n")
@click.argument("query")
@click.option("--limit", type=int, default=5, show_default=True, metavar="N", help="Maximum number.")
@click.option("--scores", is_flag=True, help="Show scores and the reasons for them.")
@gateway_option
@json_option
def search(query: str, limit: int, scores: bool, gateway_url: str | None, json: bool) -> int:
    """Search for tools, best matches first.

    Exits with 1 if nothing is found.
    """
    from hutch.cli.gateway import search_tools

    return search_tools(gateway_url, query, limit, scores=scores, json=json)


@tools.command(epilog="\b\nExample:\n  hutch tools types --compact --filter github\n")
@filter_option
@click.option("--compact", is_flag=True, help="One line per tool, for a model's prompt.")
@gateway_option
def types(tool_filter: str | None, compact: bool, gateway_url: str | None) -> int:
    """Print TypeScript declarations of the tools."""
    from hutch.cli.gateway import show_types

    return show_types(gateway_url, tool_filter, compact=compact)


@click.command(
    epilog="""\b
Example, in an MCP client's configuration:
  {"mcpServers": {"hutch": {"command": "hutch", "args": ["mcp"]}}}
"""
)
@click.option(
    "--config",
    multiple=True,
    metavar="FILE",
    help="MCP servers, instead of those of .toolscript.json. May be repeated.",
)
@click.option("--pass-through", is_flag=True, help="Also offer every tool of the MCP servers.")
def mcp(config: tuple[str, ...], pass_through: bool) -> int:
    """Run as an MCP server over stdio.

    Offers search_tools, describe_tools and run_code for the MCP servers of ~/.toolscript.json and of
    .toolscript.json in the current directory, if you trust it: see `hutch trust`.
    """
    from hutch.cli.mcp import mcp

    return mcp({"mcp_config": config or None, "mcp_pass_through": pass_through or None})
