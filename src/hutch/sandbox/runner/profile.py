"""Engines and profiles: everything that is fixed when a runner process starts."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from functools import cache, cached_property
from typing import Literal

import msgspec

from hutch.errors import InvalidExecution
from hutch.sandbox.jail.jail import Mount, Scratch

EngineName = Literal["quickjs", "deno", "npm", "script", "external"]
ENGINES: tuple[EngineName, ...] = ("quickjs", "deno")
"""Engines for arbitrary code. `npm` runs the tools of one package, `script` a toolscript."""

_DENO_FLAGS = ("run", "--no-prompt", "--quiet", "--no-lock", "--no-check")
# Flags that make Deno load only mounted files.
_NO_DOWNLOADS = ("--no-remote", "--cached-only")
# Flags that save time, because Deno looks for configuration, npm packages and a code cache even if there are
# none.
_NO_EXTRAS = ("--no-config", "--no-npm", "--no-code-cache")
_BUNDLE_ONLY = (*_NO_DOWNLOADS, *_NO_EXTRAS)


UPLINK_PORT = 3128


class EngineSpec(msgspec.Struct, frozen=True):
    name: EngineName
    script: str
    own_process: bool
    """True if each execution gets its own process, which usually ends with the execution."""
    replies_on_stdout: bool
    """True if the runner replies on stdout instead of its socket. Guests cannot reach stdout."""
    has_neighbours: bool = False
    """True if several executions share a process, so that one execution may lose its runner because of
    another.
    """
    can_suspend: bool = False
    """True if an execution that waits can be stored and continued in another runner."""
    polls_wakeup_file: bool = False
    """True if the runner polls a wake-up file on stdin. Guests cannot read the file."""
    v8_flags: tuple[str, ...] = ()
    flags: tuple[str, ...] = _BUNDLE_ONLY
    streams_output: bool = False
    """True if guests are programs, whose stdout, stderr and exit code are passed on unchanged."""
    warms_up: bool = False
    """True if an unused process runs its slow first-time code on request."""
    enforces_timeout: bool = True
    """True if the runner itself ends an execution that is out of time. Otherwise the host does."""
    accepts_precompiled: bool = False
    resolves_names: bool = False
    """True if the uplink of a guest also answers DNS queries."""
    all_files: bool = False
    """True if guests may access all files of their container. Without a container, guests may access only
    their mounts.
    """


_ENGINE_SPECS: dict[str, EngineSpec] = {
    "quickjs": EngineSpec(
        "quickjs",
        "quickjs.js",
        own_process=False,
        replies_on_stdout=True,
        has_neighbours=True,
        can_suspend=True,
        polls_wakeup_file=True,
        # Stack size: guests recurse on JSPI stacks, and with V8's default size they reach about half of the
        # depth that QuickJS allows. Semi-space size: an unlimited young generation grows by tens of MB before
        # it is collected. Tiering budget: optimising QuickJS costs V8 100 ms of a core, too much for a single
        # execution.
        v8_flags=(
            "--expose-gc",
            "--wasm-stack-switching-stack-size=2000",
            "--max-semi-space-size=4",
            "--wasm-tiering-budget=130000000",
        ),
    ),
    # V8's heap limit is so high that the cgroup or the memory meter acts first. A crash of V8 would not prove
    # that a guest exceeded its limit, because a guest could fake the crash.
    "deno": EngineSpec(
        "deno",
        "deno.js",
        own_process=True,
        replies_on_stdout=False,
        v8_flags=("--max-old-space-size=16384",),
        warms_up=True,
        enforces_timeout=False,
        accepts_precompiled=True,
    ),
    "npm": EngineSpec(
        "npm",
        "npm.js",
        own_process=True,
        replies_on_stdout=False,
        v8_flags=("--max-old-space-size=16384",),
        flags=(*_NO_DOWNLOADS, "--node-modules-dir=manual"),
        resolves_names=True,
        all_files=True,
    ),
    "script": EngineSpec(
        "script",
        "script.js",
        own_process=True,
        replies_on_stdout=False,
        v8_flags=(
            "--max-old-space-size=16384",
            "--enable-experimental-regexp-engine-on-excessive-backtracks",
        ),
        flags=_NO_EXTRAS,
        enforces_timeout=False,
        streams_output=True,
    ),
    "external": EngineSpec("external", "", own_process=False, replies_on_stdout=True),
}


class Profile(msgspec.Struct, frozen=True, cache_hash=True, dict=True):
    """Configuration of a runner process. Runners of equal profiles are interchangeable, so the pool keeps
    warm runners by profile.
    """

    engine: EngineName
    mounts: tuple[Mount, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    permissions: tuple[str, ...] = ()
    cwd: str = "/"
    stdin_payload: bytes = b""
    """Data sent to the runner's stdin first, because argv, environment and files would expose it."""
    owner: str = ""
    """Owner of a private stdin payload, or of a process that serves several executions; otherwise empty."""
    egress: Hashable = None
    """Network policy for the launcher's uplink; None for no network."""
    uplink_port: int = UPLINK_PORT
    """Port on the jail's 127.0.0.1 that leads to the uplink."""
    memory_bytes: int = 0
    """Memory limit of the process from its start. 0 if each execution sets its own limit."""
    max_uses: int = 1
    """Number of executions that a single-use process may serve, one after another."""
    keep_spare: bool = True
    scratch: Scratch | None = None
    may_write: bool = True
    """True if guests with access to all files of their container may also write."""
    writable_folder: str = ""
    """Folder that the runner may read and write before the guest starts. It is passed as an argument."""

    def __repr__(self) -> str:
        return f"Profile({self.engine!r}, {len(self.mounts)} mounts)"

    @cached_property
    def engine_spec(self) -> EngineSpec:
        return _ENGINE_SPECS[self.engine]

    @cached_property
    def has_preload(self) -> bool:
        """True if runners load something before their first execution."""
        return bool(self.stdin_payload)

    def deno_arguments(
        self, script_folder: str, socket: str, *, guest_path: Callable[[Mount], str], in_container: bool
    ) -> tuple[str, ...]:
        """Returns Deno's arguments.

        The runner gives up the permissions for the bundle and the socket after its start.
        """
        spec = self.engine_spec
        folders = (self.writable_folder,) if self.writable_folder else ()
        reads = ",".join((script_folder, socket, *map(guest_path, self.mounts), *folders))
        writes = ",".join((socket, *(guest_path(mount) for mount in self.mounts if mount.writable), *folders))
        all_files = spec.all_files and in_container
        return (
            *_DENO_FLAGS,
            *spec.flags,
            f"--v8-flags={','.join(spec.v8_flags)}",
            "--allow-read" if all_files else f"--allow-read={reads}",
            "--allow-write" if all_files and self.may_write else f"--allow-write={writes}",
            *_with_socket(self.permissions, socket),
            f"{script_folder}/entry.js",
            f"{script_folder}/{spec.script}",
            socket,
            *folders,
        )


def _with_socket(permissions: tuple[str, ...], socket: str) -> Iterator[str]:
    """Adds the control socket to the permissions. Deno accepts each kind of permission only once."""
    net = next((flag for flag in permissions if flag.startswith("--allow-net")), "--allow-net=")
    yield from (flag for flag in permissions if flag != net)
    yield net if net == "--allow-net" else f"{net}{',' if net[-1] != '=' else ''}unix:{socket}"


@cache
def profile_for(engine: str) -> Profile:
    if engine not in ENGINES:
        raise InvalidExecution("engine", f"unknown engine {engine!r}; expected one of {', '.join(ENGINES)}")
    return Profile(engine)


EXTERNAL = Profile("external")
