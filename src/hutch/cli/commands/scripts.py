"""`hutch exec`, `hutch gateway`, `hutch tools` and `hutch mcp`: code over all MCP tools."""

from __future__ import annotations

from pathlib import Path

import click

gateway_option = click.option(
    "-g",
    "--gateway-url",
    metavar="URL",
    help="A running gateway; also TOOLSCRIPT_GATEWAY_URL. Without one, its own from .toolscript.json.",
)
filter_option = click.option(
    "--filter", "only", metavar="NAMES", help="Servers and tools, such as github,jira__get_issue."
)
json_option = click.option("--json", is_flag=True, help="Print JSON on one line.")


@click.command(
    "exec",
    context_settings={"ignore_unknown_options": True},
    epilog="""\b
Examples:
  hutch exec 'import { tools } from "toolscript"; return await tools.github.listIssues({repo: "x/y"})'
  hutch exec -f report.ts 2026-01
  hutch exec --no-check --timeout 10 'console.log("hello")'
""",
)
@click.argument("code", required=False)
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.option("-f", "--file", type=click.Path(path_type=Path), help="Run a file, with what it imports.")
@gateway_option
@click.option("--timeout", type=float, metavar="SECONDS", help="When to stop it.  [default: 120]")
@click.option("--memory", type=float, metavar="MB", help="How much it may use.  [default: 256]")
@click.option("--no-check", is_flag=True, help="Run it without checking its types.")
@click.option("--json", is_flag=True, help="Print everything as one JSON object on one line.")
def execute(
    code: str | None,
    args: tuple[str, ...],
    file: Path | None,
    gateway_url: str | None,
    timeout: float | None,
    memory: float | None,
    no_check: bool,
    json: bool,
) -> int:
    """Run a toolscript: TypeScript over all MCP tools.

    CODE is the script, - reads it from stdin. Its types are checked first. What it prints is passed on; what
    it returns is printed as JSON. Exits as the script does, with 1 if it failed, with 2 if it could not begin
    because of what was given, with 124 after its time.
    """
    from hutch.cli.script import execute

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
        json=json,
    )


@click.group(epilog="\b\nExample:\n  hutch gateway start --port 3000\n")
def gateway() -> None:
    """All MCP servers of .toolscript.json behind one address."""


@gateway.command(
    epilog="""\b
Examples:
  hutch gateway start
  hutch gateway start --port 3000 --token secret --config servers.json
"""
)
@click.option("--host", metavar="ADDRESS", help="Where to listen.  [default: 127.0.0.1]")
@click.option("--port", type=int, metavar="PORT", help="0 takes a free one.  [default: 4111]")
@click.option("--token", metavar="TOKEN", help="What clients have to show; better in HUTCH_API_KEY.")
@click.option("--config", multiple=True, metavar="FILE", help="Instead of .toolscript.json. May be repeated.")
def start(host: str | None, port: int | None, token: str | None, config: tuple[str, ...]) -> int:
    """Serve the gateway alone, until SIGTERM or Ctrl-C."""
    from hutch.cli.serve import serve

    flags = {"host": host, "port": port, "api_key": token, "mcp_config": config or None}
    return serve(flags, gateway_alone=True)


@gateway.command(epilog="\b\nExample:\n  hutch gateway status --json\n")
@click.option(
    "-g",
    "--gateway-url",
    metavar="URL",
    help="Which gateway; also TOOLSCRIPT_GATEWAY_URL. Without one, that of the settings (host and port).",
)
@json_option
def status(gateway_url: str | None, json: bool) -> int:
    """Show the servers of a running gateway.

    Says what is wrong with them. Exits with 1 if one of them failed.
    """
    from hutch.cli.gateway import status

    return status(gateway_url, json=json)


@gateway.command("env", epilog='\b\nExample:\n  eval "$(hutch gateway env)"\n')
def environment() -> int:
    """Print `export TOOLSCRIPT_GATEWAY_URL=…` for a shell.

    The address is that of the settings (HUTCH_HOST, HUTCH_PORT), whether a gateway is there or not.
    """
    from hutch.cli.gateway import environment

    return environment()


class _Auth(click.Group):
    """Where no command is named, a server is: to log in to it."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        return super().resolve_command(ctx, args if args[0] in self.commands else ["login", *args])


@click.group(cls=_Auth, epilog="\b\nExamples:\n  hutch auth github\n  hutch auth logout github\n")
def auth() -> None:
    """Logins to MCP servers that want OAuth.

    `hutch auth SERVER` is short for `hutch auth login SERVER`.
    """


@auth.command(epilog="\b\nExample:\n  hutch auth login github\n")
@click.argument("server")
def login(server: str) -> int:
    """Log in to a server, with a browser."""
    from hutch.cli.auth import login

    return login(server)


@auth.command(epilog="\b\nExample:\n  hutch auth logout github\n")
@click.argument("server")
def logout(server: str) -> int:
    """Forget what a login gave.

    A gateway that runs forgets it too. Whether the server still takes it is the server's business.
    """
    from hutch.cli.auth import logout

    return logout(server)


@click.group(epilog="\b\nExample:\n  hutch tools search 'create an issue'\n")
def tools() -> None:
    """The tools of all MCP servers."""


@tools.command("list", epilog="\b\nExample:\n  hutch tools list --filter github,jira__get_issue\n")
@filter_option
@gateway_option
@json_option
def list_tools(only: str | None, gateway_url: str | None, json: bool) -> int:
    """List the tools."""
    from hutch.cli.gateway import list_tools

    return list_tools(gateway_url, only, json=json)


@tools.command(epilog="\b\nExample:\n  hutch tools search 'create an issue'\n")
@click.argument("query")
@click.option("--limit", type=int, default=5, show_default=True, metavar="N", help="How many at most.")
@gateway_option
@json_option
def search(query: str, limit: int, gateway_url: str | None, json: bool) -> int:
    """Find tools for a purpose.

    The best come first. Exits with 1 if nothing is found.
    """
    from hutch.cli.gateway import search_tools

    return search_tools(gateway_url, query, limit, json=json)


@tools.command(epilog="\b\nExample:\n  hutch tools types --compact --filter github\n")
@filter_option
@click.option("--compact", is_flag=True, help="One line a tool, for a model.")
@gateway_option
def types(only: str | None, compact: bool, gateway_url: str | None) -> int:
    """Print the TypeScript declarations of tools."""
    from hutch.cli.gateway import show_types

    return show_types(gateway_url, only, compact=compact)


@click.command(
    epilog="""\b
Example, in an MCP client's configuration:
  {"mcpServers": {"hutch": {"command": "hutch", "args": ["mcp"]}}}
"""
)
@click.option("--config", multiple=True, metavar="FILE", help="Instead of .toolscript.json. May be repeated.")
@click.option("--pass-through", is_flag=True, help="Offer every tool of the servers as well.")
def mcp(config: tuple[str, ...], pass_through: bool) -> int:
    """Be an MCP server on stdin and stdout: all tools as code.

    It offers search_tools, describe_tools and run_code over the MCP servers of .toolscript.json.
    """
    from hutch.cli.mcp import mcp

    return mcp({"mcp_config": config or None, "mcp_pass_through": pass_through or None})
