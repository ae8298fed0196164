"""What is fixed when a runner process starts: its engine, and all that it can see and reach."""

from __future__ import annotations

from typing import Literal

import msgspec

from hutch.errors import InvalidExecution
from hutch.sandbox.jail import Mount

EngineName = Literal["quickjs", "deno", "external"]
ENGINES: tuple[EngineName, ...] = ("quickjs", "deno")

# Nothing is loaded from anywhere but the bundle, and nothing is asked.
_DENO_FLAGS = (
    "run",
    "--no-prompt",
    "--quiet",
    "--no-config",
    "--no-lock",
    "--no-remote",
    "--no-npm",
    "--cached-only",
    "--no-check",
)


class Engine(msgspec.Struct, frozen=True):
    """A way to run guest code."""

    name: EngineName
    script: str
    single_use: bool
    speaks_on_stdout: bool
    """Whether the runner answers there, because its guests have no stdout, rather than on its socket."""
    v8_flags: tuple[str, ...]


_ENGINES: dict[str, Engine] = {
    "quickjs": Engine(
        "quickjs",
        "quickjs.js",
        single_use=False,
        speaks_on_stdout=True,
        # Guests recurse on JSPI's stacks; V8's default holds about half of what QuickJS allows.
        # The young generation is bounded, or the process grows by tens of MB before it is collected.
        v8_flags=("--expose-gc", "--wasm-stack-switching-stack-size=2000", "--max-semi-space-size=4"),
    ),
    # The cgroup or the meter bounds memory: V8's own limit, whose crash can be imitated, must not come first.
    "deno": Engine(
        "deno",
        "deno.js",
        single_use=True,
        speaks_on_stdout=False,
        v8_flags=("--max-old-space-size=16384",),
    ),
    # A runner that somebody else brought.
    "external": Engine("external", "", single_use=False, speaks_on_stdout=True, v8_flags=()),
}


class Profile(msgspec.Struct, frozen=True):
    """Runners of equal profiles are interchangeable; the pool keeps warm ones by profile."""

    engine: EngineName
    mounts: tuple[Mount, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    permissions: tuple[str, ...] = ()
    cwd: str = "/"

    @property
    def details(self) -> Engine:
        return _ENGINES[self.engine]

    def deno_arguments(self, script_folder: str, socket: str) -> tuple[str, ...]:
        """What follows the binary: permissions for the bundle and the socket alone, given up at once."""
        engine = self.details
        return (
            *_DENO_FLAGS,
            f"--v8-flags={','.join(engine.v8_flags)}",
            f"--allow-read={script_folder},{socket}",
            f"--allow-write={socket}",
            f"--allow-net=unix:{socket}",
            *self.permissions,
            f"{script_folder}/entry.js",
            engine.script,
            socket,
        )


def profile_for(engine: str) -> Profile:
    """The plain profile of an engine: code in, result out, nothing else."""
    if engine not in ENGINES:
        raise InvalidExecution("engine", f"unknown engine {engine!r}; expected one of {', '.join(ENGINES)}")
    return Profile(engine)


EXTERNAL = Profile("external")
