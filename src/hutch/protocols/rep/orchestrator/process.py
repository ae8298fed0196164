"""Starts a runtime process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from hutch.child_process.process import ChildProcess, find_program

if TYPE_CHECKING:
    from hutch.protocols.rep.orchestrator.options import RunOptions
    from hutch.protocols.rep.orchestrator.runtime_choice import RuntimeChoice

# Prefixes of environment variables with Hutch's own secrets. They are not passed to other runtimes, which do
# not need these secrets.
_SECRET_PREFIXES = (
    "HUTCH_MASTER_KEY",
    "HUTCH_API_KEY",
    "HUTCH_CREDENTIAL_KEY",
    "HUTCH_DATABASE_URL",
    "HUTCH_PROXY_URL",
    "EXECUTOR_API_KEY",
    "PROXY_URL",
)


class RuntimeStartError(Exception):
    """The runtime process could not be started. The message contains the reason."""


def launch(choice: RuntimeChoice, options: RunOptions) -> ChildProcess:
    """Starts the runtime process. Raises RuntimeStartError."""
    env = environment({**os.environ, **choice.env}, options, is_builtin=choice.is_builtin)
    program, *arguments = choice.command
    path = program if choice.is_builtin else find_program(program, env, choice.folder)
    if path is None:
        raise RuntimeStartError(f"There is no program {program!r} that can be run.")
    try:
        # Use a reaper except for the built-in runtime, which exits when its input ends.
        return ChildProcess((path, *arguments), env, cwd=choice.folder, reaped=not choice.is_builtin)
    except (OSError, ValueError) as error:
        raise RuntimeStartError(f"{path} cannot be started: {error}") from None


def environment(environ: Mapping[str, str], options: RunOptions, *, is_builtin: bool) -> dict[str, str]:
    """Builds the environment variables of a runtime (section 8)."""
    inherited = {name: value for name, value in environ.items() if is_builtin or not _is_secret(name)}
    return {
        **inherited,
        "TRACE_MIND_RUN_ID": options.run_id,
        "TRACE_MIND_TRACE_ID": options.trace_id,
        "TRACE_MIND_ENGINE_TIMEOUT": f"{options.timeout or 0:g}",
        "TRACE_MIND_ALLOW_SHELL": "1" if options.allow_shell else "0",
        "TRACE_MIND_LOG_JSON": "1" if options.log_json else "0",
    }


def _is_secret(name: str) -> bool:
    return name.startswith(_SECRET_PREFIXES)
