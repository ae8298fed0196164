"""The jail around a guest: turns what is to be launched into the command that launches it isolated."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from hutch.errors import InvalidExecution
from hutch.sandbox import runtime, seccomp
from hutch.sandbox.cgroup import Controller, Group
from hutch.sandbox.copies import Copies

Isolation = Literal["container", "process"]

DENO = "/deno"
"""Where the Deno binary is inside a container."""
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
NAMESPACES = (
    "--unshare-user",
    "--unshare-pid",
    "--unshare-net",
    "--unshare-ipc",
    "--unshare-uts",
    "--unshare-cgroup-try",
)
_NOBODY = "65534"
_ALWAYS = (
    *NAMESPACES,
    *("--uid", _NOBODY, "--gid", _NOBODY, "--cap-drop", "ALL", "--hostname", "hutch"),
    *("--die-with-parent", "--new-session", "--clearenv"),
)
# A cache directory that nobody, not even root, can make: Deno insists on the name, but does well without it.
_ENVIRONMENT = {"DENO_DIR": "/dev/null/deno", "DENO_NO_UPDATE_CHECK": "1", "NO_COLOR": "1"}
# Enters the control groups, then becomes the command; fails rather than run outside of them. A crash of the
# guest must not write its memory to the host's disk, and Deno raises its own limit of files to the hard one.
_TRAMPOLINE = (
    "ulimit -c 0; ulimit -n 4096 2>/dev/null; "
    'while [ "$1" != -- ]; do echo 0 >"$1" || exit 97; shift; done; shift; exec "$@"'
)


class Mount(msgspec.Struct, frozen=True):
    """A file, directory or socket of the host that the guest may see, read-only unless it says otherwise."""

    source: str
    target: str
    writable: bool = False


class Scratch(msgspec.Struct, frozen=True):
    """A file system in memory for one guest alone, with copies of the files of a folder, if there is such."""

    target: str
    size: int
    source: str = ""


class Launch(msgspec.Struct, frozen=True):
    """What is to run in the jail. Paths in it are the guest's: see Jail.deno and Jail.seen."""

    argv: tuple[str, ...]
    mounts: tuple[Mount, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    cwd: str = "/"
    tmp_bytes: int = 16 * 1024 * 1024
    """The size of the container's own /tmp; 0 for none."""
    scratch: Scratch | None = None
    """There is none without a container, or with a bubblewrap that cannot bound it."""
    forks: bool = False
    """Whether the guest may start processes. Deno needs only threads."""


class Command(msgspec.Struct):
    """How to spawn a launch. A context manager: leave it once the process is spawned, which closes `owned`.

    Spawn from a thread that outlives the guest: the kernel ends a guest with the *thread* that started it.
    """

    argv: list[str]
    env: dict[str, str]
    cwd: str
    pass_fds: tuple[int, ...] = ()
    owned: tuple[int, ...] = ()

    def options(self) -> dict[str, Any]:
        """Keyword arguments for subprocess.Popen and asyncio.create_subprocess_exec."""
        return {"env": self.env, "cwd": self.cwd, "pass_fds": self.pass_fds, "start_new_session": True}

    def close(self) -> None:
        for handle in self.owned:
            os.close(handle)
        self.owned = ()

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Bubblewrap(msgspec.Struct, frozen=True):
    """The bwrap program and what its version can do."""

    path: str
    version: str

    @property
    def sizes_tmpfs(self) -> bool:
        return self._number >= (0, 7)

    @property
    def disables_userns(self) -> bool:
        return self._number >= (0, 8)

    @property
    def _number(self) -> tuple[int, ...]:
        return tuple(int(part) for part in re.findall(r"\d+", self.version)[:2])


def bubblewrap_path() -> str | None:
    """Where bwrap is: HUTCH_BWRAP where it is set, else by PATH."""
    chosen = os.environ.get("HUTCH_BWRAP")
    return shutil.which(chosen) if chosen else shutil.which("bwrap") or shutil.which("/usr/bin/bwrap")


def no_bubblewrap() -> tuple[str, str]:
    """What is to be said where there is no bubblewrap that runs, and what to do."""
    chosen = os.environ.get("HUTCH_BWRAP")
    install = "`apt-get install bubblewrap` installs it."
    if chosen:
        return f"HUTCH_BWRAP is {chosen!r}, which is no bwrap program that runs.", (
            f"Unset it, so that the machine's own bubblewrap is used; {install}"
        )
    return "there is no bwrap program that runs.", f"{install}"


def bubblewrap() -> Bubblewrap | None:
    """The installed bubblewrap, or None when there is none that runs."""
    path = bubblewrap_path()
    if path is None:
        return None
    try:
        told = subprocess.run([path, "--version"], env={}, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.match(r"bubblewrap (\S+)", told.stdout)
    return Bubblewrap(path, found[1]) if found else None


class Jail:
    """Makes commands of one strength. `controller` bounds memory and tasks; None where a meter has to."""

    def __init__(
        self,
        isolation: Isolation,
        deno: str,
        *,
        bwrap: Bubblewrap | None = None,
        libraries: tuple[str, ...] | None = None,
        copies: Copies | None = None,
        filtered: bool = True,
        disable_userns: bool = True,
        controller: Controller | None = None,
    ) -> None:
        """`copies`: of Deno's libraries, which are mounted one by one without.

        `filtered`: with a seccomp filter; `disable_userns`: without user namespaces inside. Both where the
        machine and bubblewrap can, and off only where the self-test found no other way.
        """
        if isolation == "container" and bwrap is None:
            raise ValueError("a container needs bubblewrap")
        self.isolation: Isolation = isolation
        self.controller = controller
        self.bwrap = bwrap
        self.filtered = filtered and isolation == "container" and seccomp.supported()
        self.disable_userns = disable_userns and bwrap is not None and bwrap.disables_userns
        self.libraries = runtime.libraries(deno) if libraries is None and bwrap else libraries or ()
        self.copies = copies
        self._host_deno = deno

    @property
    def deno(self) -> str:
        """The path of Deno as the guest sees it."""
        return DENO if self.isolation == "container" else self._host_deno

    def seen(self, mount: Mount) -> str:
        """Where the guest sees a mount: without a container, at its place in the host."""
        return mount.target if self.isolation == "container" else mount.source

    def command(
        self,
        launch: Launch,
        *,
        group: Group | None = None,
        info_fd: int | None = None,
        block_fd: int | None = None,
    ) -> Command:
        """The command for a launch, in `group` from its first instruction.

        To `info_fd` a container writes its child's pid; until something can be read from `block_fd`, it
        waits before the guest begins. Both stay the caller's (`bwrap --info-fd`, `--block-fd`).
        Raises InvalidExecution for an environment that would change the runtime rather than the guest.
        """
        _check(launch)
        trampoline = ["/bin/sh", "-c", _TRAMPOLINE, "hutch", *(group.entry() if group else ()), "--"]
        if self.isolation == "process":
            argv = [*trampoline, *_supervisor(), *launch.argv]
            return Command(argv, _environment(launch), self._cwd(launch))
        assert self.bwrap is not None
        owned: list[int] = []
        try:
            arguments = self.arguments(launch)
            for file, place in self._scratch_files(launch):
                owned.append(file)
                arguments += ["--perms", "0600", "--file", str(file), place]
            if self.filtered:
                owned.append(seccomp.descriptor(forks=launch.forks))
                arguments += ["--seccomp", str(owned[-1])]
            lent = {"--info-fd": info_fd, "--block-fd": block_fd}
            for option, handle in lent.items():
                if handle is not None:
                    arguments += [option, str(handle)]
            # Not in argv, which every user of the host can read.
            owned.append(memory_file(os.fsencode("\0".join(arguments)) + b"\0"))
        except BaseException:
            Command([], {}, "/", owned=tuple(owned)).close()
            raise
        argv = [*trampoline, self.bwrap.path, "--args", str(owned[-1]), "--", *launch.argv]
        passed = (*owned, *(handle for handle in lent.values() if handle is not None))
        return Command(argv, {}, "/", passed, tuple(owned))

    def _scratch_files(self, launch: Launch) -> Iterator[tuple[int, str]]:
        """Files that are to be copied, opened, and where to."""
        scratch = self._scratch(launch)
        if scratch is None or not scratch.source:
            return
        # What is not there, or is being tidied away, is not copied.
        with contextlib.suppress(OSError), os.scandir(scratch.source) as found:
            for entry in found:
                if entry.is_file(follow_symlinks=False):
                    handle = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                    yield handle, f"{scratch.target}/{entry.name}"

    def _scratch(self, launch: Launch) -> Scratch | None:
        return launch.scratch if self.bwrap is not None and self.bwrap.sizes_tmpfs else None

    def arguments(self, launch: Launch) -> list[str]:
        """What bubblewrap is told, without the descriptors."""
        told = [*_ALWAYS, *(("--disable-userns",) if self.disable_userns else ())]
        for name, value in _environment(launch).items():
            told += ("--setenv", name, value)
        # The root is a tmpfs without a bound on its size.
        return [*told, *self.tree(launch), "--remount-ro", "/", "--chdir", launch.cwd]

    def tree(self, launch: Launch) -> list[str]:
        """The files inside. No procfs: Deno wants one link of it, and the rest tells much of the host."""
        assert self.bwrap is not None
        told = ["--ro-bind", self._host_deno, DENO, "--symlink", DENO, "/proc/self/exe"]
        if self.copies is not None and self.copies.are_whole:
            for source, target in self.copies.mounts():
                told += ("--ro-bind", source, target)
        else:
            for library in self.libraries:
                told += ("--ro-bind", library, library)
        for device in DEVICES:
            told += ("--dev-bind", device, device)
        if launch.tmp_bytes and self.bwrap.sizes_tmpfs:
            told += ("--size", str(launch.tmp_bytes), "--tmpfs", "/tmp")
        if (scratch := self._scratch(launch)) is not None:
            told += ("--size", str(scratch.size), "--tmpfs", scratch.target)
        for mount in launch.mounts:
            told += ("--bind" if mount.writable else "--ro-bind", mount.source, mount.target)
        # An empty one, where there is none.
        return [*told, "--dir", launch.cwd]

    def _cwd(self, launch: Launch) -> str:
        """Without a container only a mounted directory can be entered; the rest start at the root."""
        return next((mount.source for mount in launch.mounts if mount.target == launch.cwd), "/")


def _environment(launch: Launch) -> dict[str, str]:
    return {**_ENVIRONMENT, **dict(launch.env)}


def _check(launch: Launch) -> None:
    mounted = (path for mount in launch.mounts for path in (mount.source, mount.target))
    if any("\0" in text for text in (*launch.argv, *mounted, launch.cwd)):
        raise InvalidExecution("launch", "a path or argument has a NUL character")
    for name, value in launch.env:
        # NUL separates bubblewrap's arguments; the loader's variables put code into Deno itself.
        if not name or "=" in name or "\0" in name + value or name.startswith(("LD_", "GLIBC_TUNABLES")):
            raise InvalidExecution("env", f"{name!r} cannot be set for a guest")


def _supervisor() -> list[str]:
    """What there is without namespaces: death with the host, no new privileges, and no powers for root."""
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        return []
    flags = ["--pdeathsig", "KILL", "--no-new-privs"]
    if os.geteuid() == 0:
        flags += ["--bounding-set=-all", "--inh-caps=-all"]
    return [setpriv, *flags, "--"]


def has_supervisor() -> bool:
    """Whether guests without a container die with a host that was killed."""
    return bool(_supervisor())


def memory_file(data: bytes) -> int:
    """A file that is nowhere, to be read from its beginning."""
    handle = os.memfd_create("hutch")
    while data:
        data = data[os.write(handle, data) :]
    os.lseek(handle, 0, os.SEEK_SET)
    return handle


def obstacle() -> tuple[str, str] | None:
    """Why this machine forbids the namespaces of a container, and what to do; None if nothing is known."""
    for path, bad, found, remedy in OBSTACLES:
        try:
            if Path(path).read_text().strip() == bad:
                return found, remedy
        except OSError:
            continue
    if any(os.path.exists(mark) for mark in ("/.dockerenv", "/run/.containerenv")):
        return _NESTED
    return None


_NESTED = (
    "Hutch is inside a container that may not make namespaces of its own.",
    "Start that container with `--security-opt seccomp=unconfined --security-opt apparmor=unconfined`.",
)
_APPARMOR = (
    "As root: `apt-get install apparmor-profiles`, copy "
    "/usr/share/apparmor/extra-profiles/bwrap-userns-restrict to /etc/apparmor.d/, then run "
    "`apparmor_parser -r /etc/apparmor.d/bwrap-userns-restrict`."
)
# File, the value that is in the way, what it means, what to do.
OBSTACLES = (
    (
        "/proc/sys/user/max_user_namespaces",
        "0",
        "User namespaces are switched off (user.max_user_namespaces = 0).",
        "Run `sysctl -w user.max_user_namespaces=15000` as root, and keep it in /etc/sysctl.d/.",
    ),
    (
        "/proc/sys/kernel/unprivileged_userns_clone",
        "0",
        "User namespaces are only for root (kernel.unprivileged_userns_clone = 0).",
        "Run `sysctl -w kernel.unprivileged_userns_clone=1` as root, and keep it in /etc/sysctl.d/.",
    ),
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "AppArmor keeps bubblewrap from user namespaces (kernel.apparmor_restrict_unprivileged_userns = 1).",
        _APPARMOR,
    ),
)
