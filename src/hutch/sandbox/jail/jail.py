"""Builds the commands that start guests in a jail."""

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
from hutch.sandbox.deno_binary import shared_libraries
from hutch.sandbox.jail import seccomp
from hutch.sandbox.jail.cgroup import Cgroup, CgroupController
from hutch.sandbox.jail.libraries import LibraryCopies

Isolation = Literal["container", "process"]

DENO = "/deno"
"""Path of the Deno binary inside a container."""
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
NAMESPACES = (
    "--unshare-user",
    "--unshare-pid",
    "--unshare-net",
    "--unshare-ipc",
    "--unshare-uts",
    "--unshare-cgroup-try",
)
_NOBODY_ID = "65534"
# There is no `--new-session`, because the start of the process has already made a session without a terminal.
# The kernel schedules sessions as groups, so a guest in a session of its own would not get a lower priority
# that is set while it starts.
_BASE_ARGUMENTS = (
    *NAMESPACES,
    *("--uid", _NOBODY_ID, "--gid", _NOBODY_ID, "--cap-drop", "ALL", "--hostname", "hutch"),
    *("--die-with-parent", "--clearenv"),
)
# DENO_DIR is a folder that cannot exist, even for root. Deno requires the variable but runs without a cache.
_ENVIRONMENT = {"DENO_DIR": "/dev/null/deno", "DENO_NO_UPDATE_CHECK": "1", "NO_COLOR": "1"}
# Shell script that enters the control groups and then executes the command. It fails if it cannot enter a
# group. It disables core dumps, because a crash of the guest must not write its memory to the host's disk. It
# lowers the hard limit of open files, because Deno raises its own limit to the hard limit.
_TRAMPOLINE = (
    "ulimit -c 0; ulimit -n 4096 2>/dev/null; "
    'while [ "$1" != -- ]; do echo 0 >"$1" || exit 97; shift; done; shift; exec "$@"'
)


class Mount(msgspec.Struct, frozen=True):
    source: str
    target: str
    writable: bool = False


class Scratch(msgspec.Struct, frozen=True):
    """A tmpfs for one guest, with copies of the files in `source`, if that folder exists."""

    target: str
    size: int
    source: str = ""


class Launch(msgspec.Struct, frozen=True):
    """Program to run in the jail. All paths are inside the jail; see `Jail.deno` and `Jail.guest_path`."""

    argv: tuple[str, ...]
    mounts: tuple[Mount, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    cwd: str = "/"
    tmp_bytes: int = 16 * 1024 * 1024
    """Size of the container's own /tmp; 0 means no /tmp."""
    scratch: Scratch | None = None
    """Scratch folder. Not used without a container, or if bubblewrap cannot limit the size of a tmpfs."""
    forks: bool = False
    """True if the guest may start processes. Deno itself needs only threads."""


class Command(msgspec.Struct):
    """Arguments for starting a launch as a process.

    Leaving the context closes the owned descriptors, so leave the context after the start. Start the process
    with `hutch.sandbox.jail.spawn` or `subprocess`, from a thread that outlives the guest, because the kernel
    kills a guest with the *thread* that started it.
    """

    argv: list[str]
    env: dict[str, str]
    cwd: str
    pass_fds: tuple[int, ...] = ()
    owned_fds: tuple[int, ...] = ()

    def options(self) -> dict[str, Any]:
        """Returns keyword arguments for subprocess.Popen and asyncio.create_subprocess_exec."""
        return {"env": self.env, "cwd": self.cwd, "pass_fds": self.pass_fds, "start_new_session": True}

    def close(self) -> None:
        for handle in self.owned_fds:
            os.close(handle)
        self.owned_fds = ()

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Bubblewrap(msgspec.Struct, frozen=True):
    path: str
    version: str

    @property
    def sizes_tmpfs(self) -> bool:
        return self._version_number >= (0, 7)

    @property
    def disables_userns(self) -> bool:
        return self._version_number >= (0, 8)

    @property
    def _version_number(self) -> tuple[int, ...]:
        return tuple(int(part) for part in re.findall(r"\d+", self.version)[:2])


def bubblewrap_path() -> str | None:
    """Returns the path of bwrap: HUTCH_BWRAP if set, otherwise from PATH."""
    chosen = os.environ.get("HUTCH_BWRAP")
    return shutil.which(chosen) if chosen else shutil.which("bwrap") or shutil.which("/usr/bin/bwrap")


def bubblewrap_missing() -> tuple[str, str]:
    """Returns the error message for a missing or broken bubblewrap, and the remedy."""
    chosen = os.environ.get("HUTCH_BWRAP")
    install = "Install it with `apt-get install bubblewrap`."
    if chosen:
        return f"HUTCH_BWRAP is {chosen!r}, which is not a working bwrap program.", (
            f"Unset it to use the installed bubblewrap. {install}"
        )
    return "bwrap was not found or does not run.", install


def bubblewrap() -> Bubblewrap | None:
    path = bubblewrap_path()
    if path is None:
        return None
    try:
        result = subprocess.run([path, "--version"], env={}, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.match(r"bubblewrap (\S+)", result.stdout)
    return Bubblewrap(path, match[1]) if match else None


class Jail:
    """Builds commands for one kind of isolation. Without a `controller`, a memory meter must limit memory."""

    def __init__(
        self,
        isolation: Isolation,
        deno: str,
        *,
        bwrap: Bubblewrap | None = None,
        libraries: tuple[str, ...] | None = None,
        library_copies: LibraryCopies | None = None,
        use_seccomp: bool = True,
        disable_userns: bool = True,
        controller: CgroupController | None = None,
    ) -> None:
        """`library_copies`: copies of Deno's libraries. Without them, the libraries are mounted one by one.

        `use_seccomp`: use a seccomp filter. `disable_userns`: forbid user namespaces inside. These two
        options apply only if the machine and bubblewrap support them. The self-test turns an option off if a
        jail does not start with it.
        """
        if isolation == "container" and bwrap is None:
            raise ValueError("a container needs bubblewrap")
        self.isolation: Isolation = isolation
        self.controller = controller
        self.bwrap = bwrap
        self.use_seccomp = use_seccomp and isolation == "container" and seccomp.is_supported()
        self.disable_userns = disable_userns and bwrap is not None and bwrap.disables_userns
        self.libraries = shared_libraries(deno) if libraries is None and bwrap else libraries or ()
        self.library_copies = library_copies
        self._host_deno = deno

    @property
    def deno(self) -> str:
        return DENO if self.isolation == "container" else self._host_deno

    def guest_path(self, mount: Mount) -> str:
        return mount.target if self.isolation == "container" else mount.source

    def command(
        self,
        launch: Launch,
        *,
        group: Cgroup | None = None,
        info_fd: int | None = None,
        block_fd: int | None = None,
    ) -> Command:
        """Returns the command for a launch. The guest is in `group` from its first instruction.

        bubblewrap writes the pid of its child to `info_fd`, and starts the guest when `block_fd` is readable
        (options `--info-fd` and `--block-fd`). The caller closes these descriptors. Raises InvalidExecution
        for an environment variable that would affect Deno itself.
        """
        _check_launch(launch)
        trampoline = ["/bin/sh", "-c", _TRAMPOLINE, "hutch", *(group.entry_files() if group else ()), "--"]
        if self.isolation == "process":
            argv = [*trampoline, *_setpriv_prefix(), *launch.argv]
            return Command(argv, _environment(launch), self._cwd(launch))
        assert self.bwrap is not None
        owned: list[int] = []
        try:
            arguments = self.bwrap_arguments(launch)
            for file, target in self._scratch_files(launch):
                owned.append(file)
                arguments += ["--perms", "0600", "--file", str(file), target]
            if self.use_seccomp:
                owned.append(seccomp.filter_fd(forks=launch.forks))
                arguments += ["--seccomp", str(owned[-1])]
            caller_fds = {"--info-fd": info_fd, "--block-fd": block_fd}
            for option, handle in caller_fds.items():
                if handle is not None:
                    arguments += [option, str(handle)]
            # The arguments are passed in a file, because every user of the host can read argv.
            owned.append(memory_file(os.fsencode("\0".join(arguments)) + b"\0"))
        except BaseException:
            Command([], {}, "/", owned_fds=tuple(owned)).close()
            raise
        argv = [*trampoline, self.bwrap.path, "--args", str(owned[-1]), "--", *launch.argv]
        passed = (*owned, *(handle for handle in caller_fds.values() if handle is not None))
        return Command(argv, {}, "/", passed, tuple(owned))

    def _scratch_files(self, launch: Launch) -> Iterator[tuple[int, str]]:
        scratch = self._scratch(launch)
        if scratch is None or not scratch.source:
            return
        # Ignore a folder that is missing or is being removed.
        with contextlib.suppress(OSError), os.scandir(scratch.source) as entries:
            for entry in entries:
                if entry.is_file(follow_symlinks=False):
                    handle = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                    yield handle, f"{scratch.target}/{entry.name}"

    def _scratch(self, launch: Launch) -> Scratch | None:
        return launch.scratch if self.bwrap is not None and self.bwrap.sizes_tmpfs else None

    def bwrap_arguments(self, launch: Launch) -> list[str]:
        """Returns bubblewrap's arguments, except those that pass descriptors."""
        arguments = [*_BASE_ARGUMENTS, *(("--disable-userns",) if self.disable_userns else ())]
        if launch.forks:
            # Without a session of its own, a program that signals its process group (`kill 0`) would also
            # signal bubblewrap.
            arguments.append("--new-session")
        for name, value in _environment(launch).items():
            arguments += ("--setenv", name, value)
        # Make the root read-only, because it is a tmpfs without a size limit, which a guest could fill.
        return [*arguments, *self.filesystem_arguments(launch), "--remount-ro", "/", "--chdir", launch.cwd]

    def filesystem_arguments(self, launch: Launch) -> list[str]:
        """Returns the arguments for all mounts. There is no procfs, because Deno needs only one link of it,
        and the rest reveals much about the host.
        """
        assert self.bwrap is not None
        arguments = ["--ro-bind", self._host_deno, DENO, "--symlink", DENO, "/proc/self/exe"]
        if self.library_copies is not None and self.library_copies.are_complete:
            for source, target in self.library_copies.mounts():
                arguments += ("--ro-bind", source, target)
        else:
            for library in self.libraries:
                arguments += ("--ro-bind", library, library)
        for device in DEVICES:
            arguments += ("--dev-bind", device, device)
        if launch.tmp_bytes and self.bwrap.sizes_tmpfs:
            arguments += ("--size", str(launch.tmp_bytes), "--tmpfs", "/tmp")
        if (scratch := self._scratch(launch)) is not None:
            arguments += ("--size", str(scratch.size), "--tmpfs", scratch.target)
        for mount in launch.mounts:
            arguments += ("--bind" if mount.writable else "--ro-bind", mount.source, mount.target)
        # `--dir` creates an empty directory if nothing is mounted there.
        return [*arguments, "--dir", launch.cwd]

    def _cwd(self, launch: Launch) -> str:
        """Returns the working directory of a guest without a container. It is `/` unless `launch.cwd` is the
        target of a mount.
        """
        return next((mount.source for mount in launch.mounts if mount.target == launch.cwd), "/")


def _environment(launch: Launch) -> dict[str, str]:
    return {**_ENVIRONMENT, **dict(launch.env)}


def _check_launch(launch: Launch) -> None:
    mounted = (path for mount in launch.mounts for path in (mount.source, mount.target))
    if any("\0" in text for text in (*launch.argv, *mounted, launch.cwd)):
        raise InvalidExecution("launch", "a path or argument has a NUL character")
    for name, value in launch.env:
        # Refuse NUL, which separates bubblewrap's arguments, and variables of the loader, which could inject
        # code into Deno itself.
        if not name or "=" in name or "\0" in name + value or name.startswith(("LD_", "GLIBC_TUNABLES")):
            raise InvalidExecution("env", f"{name!r} cannot be set for a guest")


def _setpriv_prefix() -> list[str]:
    """Returns the setpriv command for guests without a container. With it, the guest dies with the host and
    has no new privileges and no capabilities.
    """
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        return []
    flags = ["--pdeathsig", "KILL", "--no-new-privs"]
    if os.geteuid() == 0:
        flags += ["--bounding-set=-all", "--inh-caps=-all"]
    return [setpriv, *flags, "--"]


def has_setpriv() -> bool:
    return bool(_setpriv_prefix())


def memory_file(data: bytes) -> int:
    """Returns the descriptor of an anonymous file with this content."""
    handle = os.memfd_create("hutch")
    while data:
        data = data[os.write(handle, data) :]
    os.lseek(handle, 0, os.SEEK_SET)
    return handle


def obstacle() -> tuple[str, str] | None:
    """Returns the reason why this machine forbids the namespaces of a container, and the remedy. Returns None
    if no reason is known.
    """
    for path, bad, reason, remedy in OBSTACLES:
        try:
            if Path(path).read_text().strip() == bad:
                return reason, remedy
        except OSError:
            continue
    if any(os.path.exists(mark) for mark in ("/.dockerenv", "/run/.containerenv")):
        return _NESTED_CONTAINER
    return None


_NESTED_CONTAINER = (
    "Hutch runs in a container that may not create namespaces.",
    "Start that container with `--security-opt seccomp=unconfined --security-opt apparmor=unconfined`.",
)
_APPARMOR_REMEDY = (
    "As root: `apt-get install apparmor-profiles`, copy "
    "/usr/share/apparmor/extra-profiles/bwrap-userns-restrict to /etc/apparmor.d/, then run "
    "`apparmor_parser -r /etc/apparmor.d/bwrap-userns-restrict`."
)
# Each entry has a file, the value in it that forbids namespaces, an explanation and a remedy.
OBSTACLES = (
    (
        "/proc/sys/user/max_user_namespaces",
        "0",
        "User namespaces are disabled (user.max_user_namespaces = 0).",
        "Run `sysctl -w user.max_user_namespaces=15000` as root and add it to /etc/sysctl.d/.",
    ),
    (
        "/proc/sys/kernel/unprivileged_userns_clone",
        "0",
        "Only root may create user namespaces (kernel.unprivileged_userns_clone = 0).",
        "Run `sysctl -w kernel.unprivileged_userns_clone=1` as root and add it to /etc/sysctl.d/.",
    ),
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "AppArmor forbids user namespaces to bubblewrap (kernel.apparmor_restrict_unprivileged_userns = 1).",
        _APPARMOR_REMEDY,
    ),
)
