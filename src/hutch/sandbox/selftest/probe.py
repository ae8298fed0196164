"""Runs probe.js in a jail with bait outside of it, and checks which bait the guest could reach."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from hutch.sandbox.jail.cgroup import Cgroup, CgroupController
from hutch.sandbox.jail.jail import DENO, DEVICES, Jail, Launch
from hutch.sandbox.selftest.result import JailCheck

MIB = 1024 * 1024
_FLAGS = ("--no-prompt", "--quiet", "--no-config", "--no-lock", "--no-remote", "--no-npm", "--ext=js")
_TIMEOUT = 10.0
_TMP_BYTES = MIB
_ALLOCATE = "const buffers = []; for (let i = 0; i < 256; i++) buffers.push(new Uint8Array(1 << 20).fill(1));"
# Files that most hosts have and that a guest must not see.
_HOST_PATHS = (
    "/etc/passwd",
    "/etc/shadow",
    "/etc/hostname",
    "/etc/resolv.conf",
    "/bin/sh",
    "/usr/bin/env",
    "/root",
    "/home",
    "/run",
    "/var/log",
    "/sys/kernel",
    "/dev/mem",
    "/dev/tty",
    "/proc/1/cmdline",
    "/proc/self/environ",
    "/proc/self/mountinfo",
    "/proc/self/root",
    "/proc/sys",
)
_ENVIRONMENT = {"DENO_DIR", "DENO_NO_UPDATE_CHECK", "NO_COLOR", "PWD"}
# System calls that only the seccomp filter forbids. Linux itself allows them to every user.
_ONLY_FILTERED = {"key of the kernel", "ptrace", "netlink socket"}


class _Bait:
    """A file and sockets that a guest must not reach. The sockets detect a guest that reached them."""

    def __init__(self) -> None:
        self._file = tempfile.NamedTemporaryFile(prefix="hutch-selftest-")  # noqa: SIM115
        self._tcp = socket.create_server(("127.0.0.1", 0))
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._udp.bind(("127.0.0.1", 0))
        self._abstract = socket.socket(socket.AF_UNIX)
        self.name = f"hutch-selftest-{secrets.token_hex(8)}"
        self._abstract.bind(f"\0{self.name}")
        self._abstract.listen()
        for listener in (self._tcp, self._udp, self._abstract):
            listener.setblocking(False)

    def argument(self) -> str:
        paths = [*_HOST_PATHS, self._file.name, sys.executable, __file__, os.path.expanduser("~")]
        targets = {
            "paths": [path for path in paths if path != "/" and os.path.lexists(path)],
            "tcp": self._tcp.getsockname()[1],
            "udp": self._udp.getsockname()[1],
            "abstract": self.name,
            "pid": os.getpid(),
            "tmpBytes": _TMP_BYTES,
        }
        return msgspec.json.encode(targets).decode()

    def reached(self) -> list[str]:
        """Returns the sockets that were reached. They are checked from the host, independent of the guest's
        report.
        """
        calls: dict[str, Callable[[], object]] = {
            "tcp": lambda: self._tcp.accept()[0].close(),
            "udp": lambda: self._udp.recv(16),
            "abstract socket": lambda: self._abstract.accept()[0].close(),
        }
        return [name for name, call in calls.items() if _succeeds(call)]

    def close(self) -> None:
        for resource in (self._file, self._tcp, self._udp, self._abstract):
            resource.close()


def probe_jail(jail: Jail) -> list[JailCheck]:
    """Runs the probe in the jail and returns the checks. Takes about 0.1 s."""
    with contextlib.closing(_Bait()) as bait, contextlib.ExitStack() as stack:
        permissions = ["-A"] if jail.isolation == "container" else []
        code = Path(__file__).with_name("probe.js").read_text()
        guest = stack.enter_context(_Guest(jail, [*permissions, *_FLAGS, "-", bait.argument()], code))
        limit_checks = list(_start_limit_checks(jail, jail.controller, stack)) if jail.controller else []
        status, out, err = guest.finish()
        try:
            report = msgspec.json.decode(out)
        except msgspec.DecodeError:
            reason = err.strip()[-300:] or "no error output."
            return [JailCheck("starts", False, f"exit code {status}: {reason}")]
        started = JailCheck("starts", True, "Deno runs inside.")
        checks = _container_checks if jail.isolation == "container" else _process_checks
        return [started, *checks(jail, report, bait.reached()), *(check() for check in limit_checks)]


def _container_checks(jail: Jail, report: dict[str, Any], reached: list[str]) -> Iterator[JailCheck]:
    native = report["native"]["value"]
    if not report["native"]["done"]:
        yield JailCheck("system calls", False, f"could not be tested: {native}")
        return
    expected = {DENO, "/proc/self/exe", *jail.libraries, *DEVICES}
    unexpected = sorted({*report["seen"], *report["read"]} | set(report["files"]["value"]) - expected)
    yield _none_found("files", unexpected, "only Deno and its libraries.")
    names = set(report["environment"]["value"]) - _ENVIRONMENT
    yield _none_found("environment", sorted(names), "nothing of the host.")
    yield _none_found("writes", [path for path in report["writable"] if path != "/tmp/"], "only in /tmp.")
    yield JailCheck("size of /tmp", not report["fill"]["done"], _attempt_result(report["fill"]))
    ok = report["pid"] == 2 and report["host"]["value"] == "hutch"
    yield JailCheck("processes", ok, f"pid {report['pid']} on host {report['host']['value']}.")
    foreign = [name for name in native["interfaces"] if name != "lo"]
    reached = [*reached, *foreign, *(["a route"] if native["route"] else [])]
    yield _none_found("network", reached, "only its own loopback.")
    # This check is required only with a seccomp filter. Without the filter, a guest can start only Deno,
    # because the jail has no other program.
    yield JailCheck(
        "programs", not report["run"]["done"], _attempt_result(report["run"]), required=jail.use_seccomp
    )
    has_none = native["noNewPrivileges"] == 1 and not any(native["capabilities"])
    privileges = f"no new privileges: {native['noNewPrivileges']}, capabilities: {native['capabilities']}."
    yield JailCheck("privileges", has_none, privileges)
    unfiltered = [name for name in native["succeeded"] if name not in _ONLY_FILTERED]
    yield _none_found(
        "system calls", unfiltered, "mount, unshare, chroot and signals to the host are refused."
    )
    allowed = [name for name in native["succeeded"] if name in _ONLY_FILTERED]
    filtered = native["seccomp"] == 2 and not allowed
    yield JailCheck("seccomp", filtered, _summary(allowed) or f"mode {native['seccomp']}.", required=False)


def _process_checks(jail: Jail, report: dict[str, Any], reached: list[str]) -> Iterator[JailCheck]:
    """Checks a jail without a container, which relies on Deno's permissions."""
    yield _none_found("files", sorted({*report["seen"], *report["read"]}), "no reading.")
    for name, key in (("environment", "environment"), ("programs", "run"), ("system calls", "native")):
        yield JailCheck(name, not report[key]["done"], _attempt_result(report[key]))
    yield _none_found("writes", report["writable"], "no writing.")
    yield _none_found("network", reached, "no connections.")


def _start_limit_checks(
    jail: Jail, controller: CgroupController, stack: contextlib.ExitStack
) -> Iterator[Callable[[], JailCheck]]:
    """Starts guests that must hit the limits. Yields functions that each return the check of one guest."""
    try:
        small, single_task = controller.create(64 * MIB, 64), controller.create(64 * MIB, 1)
    except OSError as error:
        reason = str(error)
        yield lambda: JailCheck("memory", False, reason, required=False)
        return
    for group in (small, single_task):
        stack.callback(_dispose, controller, group)
    memory_guest = stack.enter_context(_Guest(jail, [*_FLAGS, "-"], _ALLOCATE, small))
    tasks_guest = stack.enter_context(_Guest(jail, [*_FLAGS, "-"], "", single_task))

    def memory() -> JailCheck:
        memory_guest.finish()
        kills = small.oom_kills()
        return JailCheck(
            "memory", kills > 0, f"{kills} killed for 256 MiB in a group of 64 MiB.", required=False
        )

    def tasks() -> JailCheck:
        tasks_guest.finish()
        refused = single_task.refused_tasks()
        return JailCheck("tasks", refused > 0, f"{refused} refused in a group of one task.", required=False)

    yield memory
    yield tasks


class _Guest:
    """Runs `code` with Deno in the jail. Leaving the context kills the process."""

    def __init__(self, jail: Jail, arguments: list[str], code: str, group: Cgroup | None = None) -> None:
        launch = Launch((jail.deno, "run", *arguments), tmp_bytes=_TMP_BYTES)
        self._code = code
        with jail.command(launch, group=group) as command:
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(
                command.argv, stdin=pipe, stdout=pipe, stderr=pipe, text=True, **command.options()
            )

    def __enter__(self) -> _Guest:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        with contextlib.suppress(BrokenPipeError):
            self._process.__exit__(None, None, None)

    def finish(self) -> tuple[int, str, str]:
        try:
            out, err = self._process.communicate(self._code, timeout=_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            out, err = self._process.communicate()
            err += f"took more than {_TIMEOUT:.0f} s"
        return self._process.returncode, out, err


def _dispose(controller: CgroupController, group: Cgroup) -> None:
    group.kill()
    if not group.remove():
        controller.close()


def _succeeds(call: Callable[[], object]) -> bool:
    try:
        call()
    except OSError:
        return False
    return True


def _none_found(name: str, names: list[str], success: str) -> JailCheck:
    return JailCheck(name, not names, _summary(names) or success)


def _summary(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _attempt_result(attempt: dict[str, Any]) -> str:
    return "allowed." if attempt["done"] else f"refused: {attempt['value']}"
