"""`hutch tool` and `hutch packages`: tools in npm packages."""

from __future__ import annotations

import click

env_option = click.option(
    "--env",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="A variable for the package; NAME alone takes this shell's, which no process list shows.",
)


@click.command(
    epilog="""\b
Examples:
  hutch tool @tpmjs/tools-template-render templateRenderTool \\
    --params '{"template": "Hello {{name}}!", "data": {"name": "Bo"}}'
  hutch tool @exalabs/ai-sdk@2 webSearch --params @query.json --env EXA_API_KEY
""",
)
@click.argument("package", metavar="PACKAGE[@VERSION]")
@click.argument("name")
@click.option(
    "--params",
    metavar="JSON",
    help="An object; @FILE reads it from a file, - from stdin.  [default: {}]",
)
@env_option
@click.option("--timeout", type=float, metavar="SECONDS", help="When to stop it.  [default: 120]")
@click.option("--json", is_flag=True, help="Print the whole answer of a TPMJS executor on one line.")
def tool(
    package: str, name: str, params: str | None, env: tuple[str, ...], timeout: float | None, json: bool
) -> int:
    """Run a tool of an npm package in the sandbox.

    The package is installed first if it is not on the shelf. What the tool prints goes to stderr, its output,
    as JSON, to stdout. Exits with 1 if it failed, with 2 if it could not begin because of what was given.
    """
    from hutch.cli.tool import run_tool

    return run_tool(package, name, params=params, env=env, timeout=timeout, json=json)


@click.group(
    epilog="""\b
Example:
  hutch packages add @tpmjs/tools-template-render@0.1.0
""",
)
def packages() -> None:
    """Look after the npm packages on the shelf.

    The shelf is below HUTCH_HOME; a server may use it meanwhile. What is on it can be run offline.
    """


@packages.command(
    "list",
    epilog="""\b
Example:
  hutch packages list --json
""",
)
@click.option("--json", is_flag=True, help="Print the list as JSON on one line.")
def list_(json: bool) -> int:
    """List what is on the shelf."""
    from hutch.cli.packages import list_packages

    return list_packages(json=json)


@packages.command(
    epilog="""\b
Examples:
  hutch packages add @tpmjs/tools-template-render
  hutch packages add fish-joke-generator@^1.1 bash-tool@1.3.19
""",
)
@click.argument("packages", nargs=-1, required=True, metavar="PACKAGE[@VERSION]...")
def add(packages: tuple[str, ...]) -> int:
    """Install packages ahead of need.

    VERSION is a version, a range or a tag; without one it is the latest. Exits with 1 if any cannot be had.
    """
    from hutch.cli.packages import add_packages

    return add_packages(packages)


@packages.command(
    epilog="""\b
Examples:
  hutch packages remove bash-tool@1.3.19
  hutch packages remove bash-tool
""",
)
@click.argument("packages", nargs=-1, required=True, metavar="PACKAGE[@VERSION]...")
def remove(packages: tuple[str, ...]) -> int:
    """Take packages off the shelf.

    VERSION is a version or a range; without one all versions go. Exits with 1 if any was not there.
    """
    from hutch.cli.packages import remove_packages

    return remove_packages(packages)


@packages.command(
    epilog="""\b
Example:
  hutch packages prune --days 7
""",
)
@click.option(
    "--days", type=float, default=30.0, metavar="NUMBER", help="How long they went unused.  [default: 30]"
)
def prune(days: float) -> int:
    """Remove packages that went unused, and leftovers."""
    from hutch.cli.packages import prune_packages

    return prune_packages(days=days)


@packages.command(
    epilog="""\b
Examples:
  hutch packages describe @tpmjs/tools-template-render
  hutch packages describe @exalabs/ai-sdk webSearch --env EXA_API_KEY
""",
)
@click.argument("package", metavar="PACKAGE[@VERSION]")
@click.argument("name", required=False)
@env_option
@click.option("--json", is_flag=True, help="Print name, version and tools as JSON on one line.")
def describe(package: str, name: str | None, env: tuple[str, ...], json: bool) -> int:
    """Say what the tools of a package do and take.

    Without NAME these are all that its package.json lists, or else its default export. The package is
    installed first if it is not on the shelf, and loaded in the sandbox. Exits with 1 if any tool cannot be
    described.
    """
    from hutch.cli.describe import describe

    return describe(package, name, env=env, json=json)
