"""Command line of `hutch worker` and `hutch cluster`."""

from __future__ import annotations

import click

from hutch.cli.commands.vault import json_option

_cluster_option = click.option(
    "--cluster", metavar="URL", help="NATS server of the cluster.  [default: setting cluster_url]"
)


@click.command(
    epilog="""\b
Examples:
  hutch worker --cluster nats://10.0.0.1:4222
  hutch worker --cluster nats://10.0.0.1:4222 --places quickjs=8 --places deno=4
""",
)
@_cluster_option
@click.option(
    "--places",
    multiple=True,
    metavar="ENGINE=COUNT",
    help="Executions to run at the same time, by engine. May be repeated.",
)
@click.option("--name", metavar="NAME", help="Name in `hutch cluster status`.  [default: host name]")
def worker(cluster: str | None, places: tuple[str, ...], name: str | None) -> int:
    """Run executions for the servers of a cluster.

    All machines of a cluster need the same HUTCH_CLUSTER_SECRET. On SIGTERM or Ctrl-C, running executions
    finish first or move to other workers; a second signal stops at once.
    """
    from hutch.cli.cluster.worker import run_worker

    return run_worker(cluster, places, name)


@click.group(
    epilog="""\b
Example:
  hutch cluster status
"""
)
def cluster() -> None:
    """Look at the machines of a cluster."""


@cluster.command(
    epilog="""\b
Examples:
  hutch cluster status
  hutch cluster status --cluster nats://10.0.0.1:4222 --json
""",
)
@_cluster_option
@json_option
def status(cluster: str | None, json: bool) -> int:
    """List the servers and workers with their places, versions and isolation.

    Exits with 1 if there is no worker that can be used.
    """
    from hutch.cli.cluster.status import show_status

    return show_status(cluster, as_json=json)
