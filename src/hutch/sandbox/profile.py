"""What is fixed when a runner process starts: its engine, and all that it can see and reach."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Literal

import msgspec

from hutch.errors import InvalidExecution
from hutch.sandbox.jail import Mount, Scratch

EngineName = Literal["quickjs", "deno", "npm", "script", "external"]
ENGINES: tuple[EngineName, ...] = ("quickjs", "deno")
"""Those for any code; `npm` runs the tools of one package, `script` a toolscript."""

_DENO_FLAGS = ("run", "--no-prompt", "--quiet", "--no-lock", "--no-check")
# Nothing is loaded from anywhere but what is mounted.
_MOUNTED_ALONE = ("--no-remote", "--cached-only")
# Nor a configuration, npm's packages, or a cache of compiled code, which takes time even where there is none.
_BARE = ("--no-config", "--no-npm", "--no-code-cache")
_BUNDLE_ALONE = (*_MOUNTED_ALONE, *_BARE)


DOOR_PORT = 3128


class Engine(msgspec.Struct, frozen=True):
    """A way to run guest code."""

    name: EngineName
    script: str
    own_process: bool
    """Whether an execution has its process for itself, which as a rule ends with it."""
    speaks_on_stdout: bool
    """Whether the runner answers there, because its guests have no stdout, rather than on its socket."""
    has_neighbours: bool = False
    """Whether several executions are in one process, and one may be lost by another's fault."""
    watches_bell: bool = False
    """Whether the runner has a bell for its stdin: no guest of its can read that."""
    v8_flags: tuple[str, ...] = ()
    flags: tuple[str, ...] = _BUNDLE_ALONE
    streams: bool = False
    """Whether what guests print, and their exit code, is to be had as it is: they are programs."""
    rehearses: bool = False
    """Whether a process does what is slow the first time when it is told that nobody wants it yet."""
    keeps_time: bool = True
    """Whether the runner ends what is out of time by itself; else the host has to, and at once."""
    takes_programs: bool = False
    """Whether its processes can get a program instead of making one of the code."""
    all_files: bool = False
    """Whether guests may touch all that is in their container; else, and without one, their mounts alone."""


_ENGINES: dict[str, Engine] = {
    "quickjs": Engine(
        "quickjs",
        "quickjs.js",
        own_process=False,
        speaks_on_stdout=True,
        has_neighbours=True,
        watches_bell=True,
        # Guests recurse on JSPI's stacks; V8's default holds about half of what QuickJS allows.
        # The young generation is bounded, or the process grows by tens of MB before it is collected.
        # To optimise QuickJS takes V8 100 ms of a core: not for an execution that may be the only one.
        v8_flags=(
            "--expose-gc",
            "--wasm-stack-switching-stack-size=2000",
            "--max-semi-space-size=4",
            "--wasm-tiering-budget=130000000",
        ),
    ),
    # The cgroup or the meter bounds memory: V8's own limit, whose crash can be imitated, must not come first.
    "deno": Engine(
        "deno",
        "deno.js",
        own_process=True,
        speaks_on_stdout=False,
        v8_flags=("--max-old-space-size=16384",),
        rehearses=True,
        keeps_time=False,
        takes_programs=True,
    ),
    "npm": Engine(
        "npm",
        "npm.js",
        own_process=True,
        speaks_on_stdout=False,
        v8_flags=("--max-old-space-size=16384",),
        flags=(*_MOUNTED_ALONE, "--node-modules-dir=manual"),
        all_files=True,
    ),
    "script": Engine(
        "script",
        "script.js",
        own_process=True,
        speaks_on_stdout=False,
        v8_flags=(
            "--max-old-space-size=16384",
            "--enable-experimental-regexp-engine-on-excessive-backtracks",
        ),
        flags=_BARE,
        keeps_time=False,
        streams=True,
    ),
    # A runner that somebody else brought.
    "external": Engine("external", "", own_process=False, speaks_on_stdout=True),
}


class Profile(msgspec.Struct, frozen=True, cache_hash=True):
    """Runners of equal profiles are interchangeable; the pool keeps warm ones by profile."""

    engine: EngineName
    mounts: tuple[Mount, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    permissions: tuple[str, ...] = ()
    cwd: str = "/"
    told: bytes = b""
    """What the runner reads on its stdin before anything else: no argv, environment or file shows it."""
    owner: str = ""
    """Whose runners these are, if what they are told is theirs alone."""
    egress: Hashable = None
    """What they may reach, as the launcher's `Network` understands it; None for no network at all."""
    port: int = DOOR_PORT
    """Where on their own 127.0.0.1 they find the way out."""
    memory_bytes: int = 0
    """Bounds the process from its start on; 0 where each execution brings its own bound."""
    uses: int = 1
    """Executions that a process of its own may serve, one after the other."""
    spared: bool = True
    """Whether one is to be ready for the next time after one was used."""
    scratch: Scratch | None = None
    writes: bool = True
    """Whether guests that may touch all that is in their container may also change it."""
    folder: str = ""
    """Where the runner may write before the guest begins, and read; given to it as an argument."""

    def __repr__(self) -> str:
        return f"Profile({self.engine!r}, {len(self.mounts)} mounts)"

    @property
    def details(self) -> Engine:
        return _ENGINES[self.engine]

    @property
    def is_prepared(self) -> bool:
        """Whether its runners load something before they are used, which not every execution wants."""
        return bool(self.told)

    def deno_arguments(
        self, script_folder: str, socket: str, *, seen: Callable[[Mount], str], contained: bool
    ) -> tuple[str, ...]:
        """What follows the binary: permissions for the bundle and the socket, given up at once, and for
        what the guest is to have. `seen` says where a mount is for it."""
        engine = self.details
        folder = (self.folder,) if self.folder else ()
        reads = ",".join((script_folder, socket, *map(seen, self.mounts), *folder))
        writes = ",".join((socket, *(seen(mount) for mount in self.mounts if mount.writable), *folder))
        everything = engine.all_files and contained
        return (
            *_DENO_FLAGS,
            *engine.flags,
            f"--v8-flags={','.join(engine.v8_flags)}",
            "--allow-read" if everything else f"--allow-read={reads}",
            "--allow-write" if everything and self.writes else f"--allow-write={writes}",
            *_with_socket(self.permissions, socket),
            f"{script_folder}/entry.js",
            f"{script_folder}/{engine.script}",
            socket,
            *folder,
        )


def _with_socket(permissions: tuple[str, ...], socket: str) -> Iterator[str]:
    """Permissions with that for the control socket among them; Deno takes each kind once."""
    net = next((each for each in permissions if each.startswith("--allow-net")), "--allow-net=")
    yield from (each for each in permissions if each != net)
    yield net if net == "--allow-net" else f"{net}{',' if net[-1] != '=' else ''}unix:{socket}"


def profile_for(engine: str) -> Profile:
    """The plain profile of an engine: code in, result out, nothing else."""
    if engine not in ENGINES:
        raise InvalidExecution("engine", f"unknown engine {engine!r}; expected one of {', '.join(ENGINES)}")
    return Profile(engine)


EXTERNAL = Profile("external")
