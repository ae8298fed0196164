"""Command line of `hutch tool` and `hutch packages`."""

from __future__ import annotations

import click

env_option = click.option(
    "--env",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="Environment variable for the package. NAME alone takes the value from this shell, which keeps it "
    "out of process lists. May be repeated.",
)


@click.command(
    epilog="""\b
Examples:
  hutch tool @tpmjs/tools-template-render templateRenderTool \\
    --params '{"template": "Hello {{name}}!", "data": {"name": "Bo"}}'
  hutch tool @exalabs/ai-sdk@2 webSearch --params @query.json --env EXA_API_KEY
  hutch tool --watch ./my-tool myTool --params '{"name": "Bo"}'
""",
)
@click.argument("package", metavar="PACKAGE[@VERSION]|PATH")
@click.argument("name", required=False)
@click.option(
    "--params",
    metavar="JSON",
    help="Parameters as a JSON object; @FILE reads a file, - reads stdin.  [default: {}]",
)
@env_option
@click.option("--timeout", type=float, metavar="SECONDS", help="Time limit.  [default: 120]")
@click.option(
    "--refresh",
    is_flag=True,
    help="Ask the registry to resolve a tag or range again. Otherwise its last answer is used for some "
    "minutes.",
)
@click.option(
    "--validate",
    is_flag=True,
    help="Refuse parameters that do not match the tool's schema, and apply its defaults.",
)
@click.option("--watch", is_flag=True, help="Run again whenever a file of the folder changes. Ctrl-C ends.")
@click.option(
    "--json", is_flag=True, help="Print the full response on one line, as a TPMJS executor returns it."
)
def tool(
    package: str,
    name: str | None,
    params: str | None,
    env: tuple[str, ...],
    timeout: float | None,
    refresh: bool,
    validate: bool,
    watch: bool,
    json: bool,
) -> int:
    """Run a tool of an npm package in the sandbox.

    PACKAGE is a package of the registry, the folder of a package that is not published (./my-tool), or its
    archive (./my-tool-1.0.0.tgz). NAME is the name of the tool's export; without it, the command lists the
    tools of the package. Installs missing packages first. Prints the tool's output to stdout as JSON. Logs,
    and parameters that do not match the tool's schema, go to stderr. Exits with 1 if the tool failed, with 2
    if the arguments or package.json are invalid.
    """
    if name is None:
        from hutch.cli.npm.packages import list_tools

        return list_tools(package, env=env, json=json)
    from hutch.cli.npm.tool import run_tool

    return run_tool(
        package,
        name,
        params=params,
        env=env,
        timeout=timeout,
        refresh=refresh,
        validate=validate,
        watch=watch,
        json=json,
    )


@click.group(
    epilog="""\b
Example:
  hutch packages add @tpmjs/tools-template-render@0.1.0
""",
)
def packages() -> None:
    """Manage installed npm packages.

    Packages are stored in HUTCH_HOME and run offline. A server may run at the same time.
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
    """List installed packages."""
    from hutch.cli.npm.packages import list_packages

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
    """Install packages in advance.

    VERSION is a version, a range or a tag; the default is the latest version. Exits with 1 if any package
    cannot be installed.
    """
    from hutch.cli.npm.packages import add_packages

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
    """Remove packages.

    VERSION is a version or a range; without one, all versions are removed. Exits with 1 if any is not
    installed.
    """
    from hutch.cli.npm.packages import remove_packages

    return remove_packages(packages)


@packages.command(
    epilog="""\b
Example:
  hutch packages prune --days 7
""",
)
@click.option("--days", type=float, default=30.0, metavar="NUMBER", help="Days without use.  [default: 30]")
def prune(days: float) -> int:
    """Remove unused packages and remains of interrupted installations."""
    from hutch.cli.npm.packages import prune_packages

    return prune_packages(days=days)


@packages.command(
    epilog="""\b
Examples:
  hutch packages describe @tpmjs/tools-template-render
  hutch packages describe @exalabs/ai-sdk webSearch --env EXA_API_KEY
  hutch packages describe ./my-tool
""",
)
@click.argument("package", metavar="PACKAGE[@VERSION]|PATH")
@click.argument("name", required=False)
@env_option
@click.option("--json", is_flag=True, help="Print name, version and tools as JSON on one line.")
def describe(package: str, name: str | None, env: tuple[str, ...], json: bool) -> int:
    """Show the descriptions and parameters of a package's tools.

    Without NAME, shows all tools that package.json lists, or else all that the package exports. Installs the
    package first if necessary and loads it in the sandbox. Exits with 1 if any tool cannot be described.
    """
    from hutch.cli.npm.packages import describe_package

    return describe_package(package, name, env=env, json=json)
