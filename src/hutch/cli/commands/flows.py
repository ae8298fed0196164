"""`hutch flow` and `hutch init`: flows of steps, checked, drawn and run."""

from __future__ import annotations

from pathlib import Path

import click

file_argument = click.argument("file", required=False, type=click.Path(path_type=Path))
manifest_option = click.option(
    "--manifest",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A manifest, instead of the file of one flow.",
)
flow_option = click.option("--flow", "name", metavar="NAME", help="Which flow of the manifest.")


@click.group(epilog="\b\nExample:\n  hutch flow validate deploy.json\n")
def flow() -> None:
    """Flows: steps over everything that Hutch can run.

    A flow is Flow IR 1.0.0, in JSON or YAML: steps, and which comes after which.
    """


@flow.command(
    epilog="""\b
Examples:
  hutch flow validate deploy.json
  hutch flow validate --json deploy.yaml
  hutch flow validate --manifest out/dsl/manifest.json
"""
)
@file_argument
@manifest_option
@flow_option
@click.option("--json", is_flag=True, help="Print JSON on one line.")
def validate(file: Path | None, manifest: Path | None, name: str | None, json: bool) -> int:
    """Check a flow, or all flows of a manifest.

    Prints everything that is wrong, each with its path. Exits with 2 if anything is.
    """
    from hutch.cli.flow_files import validate

    return validate(file, manifest, name, json=json)


@flow.command(
    epilog="""\b
Examples:
  hutch flow show deploy.json
  hutch flow show --mermaid deploy.json > deploy.mmd
  hutch flow show --json deploy.yaml > deploy.json
"""
)
@file_argument
@manifest_option
@flow_option
@click.option("--mermaid", is_flag=True, help="Print the source of a Mermaid flowchart.")
@click.option("--json", is_flag=True, help="Print the flow as JSON, on one line.")
def show(file: Path | None, manifest: Path | None, name: str | None, mermaid: bool, json: bool) -> int:
    """Draw a flow.

    As boxes and lines if they fit into the terminal, else as a list of its steps.
    """
    from hutch.cli.flow_files import show

    return show(file, manifest, name, mermaid=mermaid, json=json)


@flow.command(
    epilog="""\b
Examples:
  hutch flow run deploy.json --inputs '{"tag": "v1"}'
  hutch flow run deploy.yaml --inputs @inputs.json --json
  hutch flow run --manifest out/dsl/manifest.json --flow monitor
  hutch flow run --executor 'python my_runtime.py' --timeout 30 deploy.json
"""
)
@file_argument
@manifest_option
@flow_option
@click.option("--inputs", metavar="JSON|@FILE", help="What it is given; @- reads it from stdin.")
@click.option("--runtime", metavar="NAME", help="A runtime other than the project's, such as hutch.")
@click.option("--executor", metavar="COMMAND", help="A program that speaks REP, with its arguments.")
@click.option(
    "--timeout",
    type=float,
    metavar="SECONDS",
    default=120.0,
    show_default=True,
    help="For all of it; 0 is without a limit.",
)
@click.option("--allow-shell", is_flag=True, help="Let steps run programs.")
@click.option("--json", is_flag=True, help="Print everything as one JSON object on one line.")
@click.option("--run-id", metavar="ID", help="What the run is to be called.")
@click.option("--user", metavar="NAME", help="Whose abilities and credentials steps use.")
@click.option("--concurrency", type=click.IntRange(min=1), metavar="N", help="Steps at once.")
@click.option(
    "--egress-allow",
    multiple=True,
    metavar="HOST:PORT",
    help="What steps may reach although it is not public. May be repeated.",
)
def run(
    file: Path | None,
    manifest: Path | None,
    name: str | None,
    inputs: str | None,
    runtime: str | None,
    executor: str | None,
    timeout: float,
    allow_shell: bool,
    json: bool,
    run_id: str | None,
    user: str | None,
    concurrency: int | None,
    egress_allow: tuple[str, ...],
) -> int:
    """Run a flow.

    On the project's runtime or, without one, on our own. Its outputs are printed as JSON, how it goes on
    stderr. Exits with 1 if a step failed, with 2 if the flow is none, with 3 if the runtime or the inputs are
    not fit for it, with 4 if the runtime failed or took too long, with 130 if it was interrupted.
    """
    from hutch.cli.flow_run import Asked, run

    return run(
        Asked(
            file=file,
            manifest=manifest,
            name=name,
            inputs=inputs,
            runtime=runtime,
            executor=executor,
            timeout=timeout,
            allow_shell=allow_shell,
            json=json,
            run_id=run_id,
            user=user,
            concurrency=concurrency,
            egress_allow=egress_allow,
        )
    )


@flow.command(
    epilog="""\b
Examples:
  hutch flow runs
  hutch flow runs --user ada --json
"""
)
@click.option("--user", metavar="NAME", help="Only this user's.")
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=20, show_default=True, metavar="N", help="The most."
)
@click.option("--json", is_flag=True, help="Print JSON on one line.")
def runs(user: str | None, limit: int, json: bool) -> int:
    """List runs of flows, the newest first.

    One that is `interrupted` was left by a process that is gone: `hutch flow resume` goes on with it.
    """
    from hutch.cli.flow_runs import list_runs

    return list_runs(user, limit, as_json=json)


@flow.command(
    epilog="""\b
Examples:
  hutch flow logs nightly
  hutch flow logs nightly --follow
"""
)
@click.argument("run_id")
@click.option("--follow", "-f", is_flag=True, help="Go on until the run is over.")
@click.option("--json", is_flag=True, help="Print each event as JSON on a line.")
def logs(run_id: str, follow: bool, json: bool) -> int:
    """Show what a run did, step by step."""
    from hutch.cli.flow_runs import show_logs

    return show_logs(run_id, follow=follow, as_json=json)


@flow.command(
    epilog="""\b
Example:
  hutch flow resume nightly
"""
)
@click.argument("run_id")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    default=120.0,
    show_default=True,
    help="For all of it; 0 is without a limit.",
)
@click.option("--json", is_flag=True, help="Print everything as one JSON object on one line.")
def resume(run_id: str, timeout: float, json: bool) -> int:
    """Go on with a run that was interrupted, cancelled, or failed.

    With the flow, inputs and options that it began with. Steps that are over are not done again; what was
    under way, and what failed, is. A run that is complete gives its outputs again. Exits as `flow run` does.
    """
    from hutch.cli.flow_runs import resume

    return resume(run_id, timeout, as_json=json)


@click.command(
    epilog="""\b
Examples:
  hutch init
  hutch init --runtime fast --executor bin/fast-runtime --language rust
"""
)
@click.option(
    "--runtime", "engine", default="hutch", show_default=True, metavar="NAME", help="What it is called."
)
@click.option("--executor", metavar="PROGRAM", help="What speaks REP; not needed for our own runtime.")
@click.option("--language", metavar="NAME", help="What the runtime is written in.  [default: python]")
@click.option(
    "--plugins-language",
    metavar="NAME",
    help="What its plugins are written in.  [default: the runtime's]",
)
def init(engine: str, executor: str | None, language: str | None, plugins_language: str | None) -> int:
    """Bind this project to a runtime for its flows.

    Writes tm/config/runtime.yaml in the current directory. Without that file, flows run on our own runtime.
    Warns if the runtime and its plugins are not of one family of languages.
    """
    from hutch.cli.init import init

    return init(engine, executor, language, plugins_language)
