"""Command line of `hutch flow` and `hutch init`."""

from __future__ import annotations

from pathlib import Path

import click

file_argument = click.argument("file", required=False, type=click.Path(path_type=Path))
manifest_option = click.option(
    "--manifest",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A manifest of flows, instead of FILE.",
)
timeout_option = click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    default=120.0,
    show_default=True,
    help="Time limit for the run; 0 for none.",
)
flow_option = click.option("--flow", "name", metavar="NAME", help="A flow of the manifest.")


@click.group(epilog="\b\nExample:\n  hutch flow validate deploy.json\n")
def flow() -> None:
    """Validate, draw, run and resume flows.

    A flow is a list of steps (short form) or a graph of steps (Flow IR 1.0.0), in JSON or YAML.
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
    """Validate a flow, or all flows of a manifest.

    Prints all problems with their paths, lines and steps. Exits with 2 if there are any.
    """
    from hutch.cli.flow.validate import validate_flow

    return validate_flow(file, manifest, name, json=json)


@flow.command(
    epilog="""\b
Examples:
  hutch flow show deploy.json
  hutch flow show --mermaid deploy.json > deploy.mmd
  hutch flow show --ir deploy.yaml > deploy.json
"""
)
@file_argument
@manifest_option
@flow_option
@click.option("--mermaid", is_flag=True, help="Print the source of a Mermaid flowchart.")
@click.option("--ir", is_flag=True, help="Print Flow IR, also for a flow in the short form.")
@click.option("--json", is_flag=True, help="Print Flow IR on one line.")
def show(
    file: Path | None, manifest: Path | None, name: str | None, mermaid: bool, ir: bool, json: bool
) -> int:
    """Draw a flow in the terminal.

    If the drawing is too wide, the steps are listed instead.
    """
    from hutch.cli.flow.validate import show_flow

    return show_flow(file, manifest, name, mermaid=mermaid, json=json, ir=ir)


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
@click.option("--inputs", metavar="JSON|@FILE", help="Inputs of the flow; @- reads stdin.")
@click.option("--runtime", metavar="NAME", help="A runtime other than the project's, such as hutch.")
@click.option("--executor", metavar="COMMAND", help="A REP runtime program with its arguments.")
@click.option(
    "--timeout",
    type=float,
    metavar="SECONDS",
    default=120.0,
    show_default=True,
    help="Time limit for the run; 0 for none.",
)
@click.option("--allow-shell", is_flag=True, help="Allow shell.run steps, which run programs in the jail.")
@click.option("--json", is_flag=True, help="Print result and events as one JSON object on one line.")
@click.option("--run-id", metavar="ID", help="Id of the run.  [default: random]")
@click.option("--user", metavar="NAME", help="User whose abilities and credentials the steps use.")
@click.option(
    "--concurrency", type=click.IntRange(min=1), metavar="N", help="Maximum number of parallel steps."
)
@click.option(
    "--egress-allow",
    multiple=True,
    metavar="HOST:PORT",
    help="Allow steps to reach an address that is not public. May be repeated.",
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

    Uses the project's runtime or, without one, the built-in runtime. Prints progress to stderr and the
    outputs to stdout as JSON. Exits with 1 if a step failed, with 2 if the flow is invalid, with 3 if the
    inputs are invalid or the runtime does not support the flow, with 4 if the runtime failed or timed out,
    with 130 if the run was interrupted.
    """
    from hutch.cli.flow.run import FlowRunArguments, run

    return run(
        FlowRunArguments(
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
@click.option("--user", metavar="NAME", help="Only runs of this user.")
@click.option(
    "--limit",
    type=click.IntRange(1, 1000),
    default=20,
    show_default=True,
    metavar="N",
    help="Maximum number of runs.",
)
@click.option("--json", is_flag=True, help="Print JSON on one line.")
def runs(user: str | None, limit: int, json: bool) -> int:
    """List runs of flows, newest first.

    The process of an `interrupted` run has ended: `hutch flow resume` resumes the run.
    """
    from hutch.cli.flow.runs import list_runs

    return list_runs(user, limit, as_json=json)


@flow.command(
    epilog="""\b
Examples:
  hutch flow logs nightly
  hutch flow logs nightly --follow
  hutch flow logs nightly --values
"""
)
@click.argument("run_id")
@click.option("--follow", "-f", is_flag=True, help="Wait for further events until the run has ended.")
@click.option("--values", is_flag=True, help="Show the inputs and outputs of finished steps, shortened.")
@click.option("--json", is_flag=True, help="Print each event as JSON on one line.")
def logs(run_id: str, follow: bool, values: bool, json: bool) -> int:
    """Show the events of a run."""
    from hutch.cli.flow.runs import show_logs

    return show_logs(run_id, follow=follow, values=values, as_json=json)


@flow.command(
    epilog="""\b
Example:
  hutch flow resume nightly
"""
)
@click.argument("run_id")
@timeout_option
@click.option("--json", is_flag=True, help="Print result and events as one JSON object on one line.")
def resume(run_id: str, timeout: float, json: bool) -> int:
    """Resume an interrupted, cancelled or failed run.

    Uses the flow, inputs and options that the run was started with. Failed and unfinished steps run again,
    finished steps do not. For a completed run, prints its outputs again. Exit codes are those of `flow run`.
    """
    from hutch.cli.flow.runs import resume

    return resume(run_id, timeout, as_json=json)


@flow.command(
    epilog="""\b
Example:
  hutch flow retry nightly --from build
"""
)
@click.argument("run_id")
@click.option("--from", "from_step", required=True, metavar="STEP", help="First step that is run again.")
@timeout_option
@click.option("--json", is_flag=True, help="Print result and events as one JSON object on one line.")
def retry(run_id: str, from_step: str, timeout: float, json: bool) -> int:
    """Run a flow run again from one of its steps. The run may be completed.

    Runs the step and all steps after it again, with the recorded outputs of the other finished steps. Prints
    which steps run again and which outputs are kept. Exit codes are those of `flow run`.
    """
    from hutch.cli.flow.runs import retry

    return retry(run_id, from_step, timeout, as_json=json)


@flow.command("list", epilog="\b\nExample:\n  hutch flow list\n")
@click.option("--user", metavar="NAME", help="Flows of this user.  [default: the operator's]")
@click.option("--json", is_flag=True, help="Print JSON on one line.")
def list_(user: str | None, json: bool) -> int:
    """List the flows that are stored for `hutch serve`."""
    from hutch.cli.flow.runs import list_flows

    return list_flows(user, as_json=json)


@flow.command(epilog="\b\nExample:\n  hutch flow cancel nightly\n")
@click.argument("run_id")
def cancel(run_id: str) -> int:
    """Cancel a running run, whichever process executes it."""
    from hutch.cli.flow.runs import cancel

    return cancel(run_id)


@flow.command(epilog="\b\nExample:\n  hutch flow approve nightly deploy\n")
@click.argument("run_id")
@click.argument("step_id")
@click.option("--reason", metavar="TEXT", help="Reason for the decision.")
def approve(run_id: str, step_id: str, reason: str | None) -> int:
    """Approve a step that waits for an approval."""
    from hutch.cli.flow.runs import decide

    return decide(run_id, step_id, approved=True, reason=reason)


@flow.command(epilog="\b\nExample:\n  hutch flow deny nightly deploy --reason 'not on Friday'\n")
@click.argument("run_id")
@click.argument("step_id")
@click.option("--reason", metavar="TEXT", help="Reason for the decision.")
def deny(run_id: str, step_id: str, reason: str | None) -> int:
    """Deny a step that waits for an approval. The step fails."""
    from hutch.cli.flow.runs import decide

    return decide(run_id, step_id, approved=False, reason=reason)


@click.command(
    epilog="""\b
Examples:
  hutch init
  hutch init --runtime fast --executor bin/fast-runtime --language rust
"""
)
@click.option(
    "--runtime", "engine", default="hutch", show_default=True, metavar="NAME", help="Name of the runtime."
)
@click.option(
    "--executor", metavar="PROGRAM", help="The runtime's program; not needed for the built-in runtime."
)
@click.option("--language", metavar="NAME", help="Language of the runtime.  [default: python]")
@click.option(
    "--plugins-language",
    metavar="NAME",
    help="Language of its plugins.  [default: the runtime's]",
)
def init(engine: str, executor: str | None, language: str | None, plugins_language: str | None) -> int:
    """Choose the runtime for this project's flows.

    Writes tm/config/runtime.yaml in the current directory. Without that file, flows run on the built-in
    runtime. Warns if the languages of the runtime and its plugins do not match.
    """
    from hutch.cli.flow.validate import init_project

    return init_project(engine, executor, language, plugins_language)
