"""Runs probe.js in a jail, with bait outside of it, and judges which promises the jail keeps."""

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

from hutch.sandbox.cgroup import Controller, Group
from hutch.sandbox.jail import DENO, DEVICES, Jail, Launch
from hutch.sandbox.verdict import Check

MIB = 1024 * 1024
_FLAGS = ("--no-prompt", "--quiet", "--no-config", "--no-lock", "--no-remote", "--no-npm", "--ext=js")
_TIMEOUT = 10.0
_TMP_BYTES = MIB
_HUNGRY = "const kept = []; for (let i = 0; i < 256; i++) kept.push(new Uint8Array(1 << 20).fill(1));"
# Files of the host that are there on most, of which a jail must show none.
_PATHS = (
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
# What only the filter forbids: Linux lets everybody do it.
_FILTERED = {"key of the kernel", "ptrace", "netlink socket"}


class _Bait:
    """What a guest must not reach: a file, and sockets that tell whether anybody came."""

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
        paths = [*_PATHS, self._file.name, sys.executable, __file__, os.path.expanduser("~")]
        wanted = {
            "paths": [path for path in paths if path != "/" and os.path.lexists(path)],
            "tcp": self._tcp.getsockname()[1],
            "udp": self._udp.getsockname()[1],
            "abstract": self.name,
            "pid": os.getpid(),
            "tmpBytes": _TMP_BYTES,
        }
        return msgspec.json.encode(wanted).decode()

    def visitors(self) -> list[str]:
        """Which sockets somebody came to: seen from here, whatever the guest says."""
        calls: dict[str, Callable[[], object]] = {
            "tcp": lambda: self._tcp.accept()[0].close(),
            "udp": lambda: self._udp.recv(16),
            "abstract socket": lambda: self._abstract.accept()[0].close(),
        }
        return [name for name, call in calls.items() if _succeeds(call)]

    def close(self) -> None:
        for thing in (self._file, self._tcp, self._udp, self._abstract):
            thing.close()


def examine(jail: Jail) -> list[Check]:
    """Try the jail. Takes some 0.1 s."""
    with contextlib.closing(_Bait()) as bait, contextlib.ExitStack() as stack:
        permissions = ["-A"] if jail.isolation == "container" else []
        code = Path(__file__).with_name("probe.js").read_text()
        guest = stack.enter_context(_Guest(jail, [*permissions, *_FLAGS, "-", bait.argument()], code))
        bounds = list(_bounds(jail, jail.controller, stack)) if jail.controller else []
        status, out, err = guest.finish()
        try:
            report = msgspec.json.decode(out)
        except msgspec.DecodeError:
            why = err.strip()[-300:] or "no word of why."
            return [Check("starts", False, f"exit code {status}: {why}")]
        started = Check("starts", True, "Deno runs inside.")
        judge = _container if jail.isolation == "container" else _process
        return [started, *judge(jail, report, bait.visitors()), *(bound() for bound in bounds)]


def _container(jail: Jail, report: dict[str, Any], visitors: list[str]) -> Iterator[Check]:
    native = report["native"]["value"]
    if not report["native"]["done"]:
        yield Check("system calls", False, f"could not be tried: {native}")
        return
    expected = {DENO, "/proc/self/exe", *jail.libraries, *DEVICES}
    strange = sorted({*report["seen"], *report["read"]} | set(report["files"]["value"]) - expected)
    yield _none("files", strange, "nothing of the host but Deno and its libraries.")
    names = set(report["environment"]["value"]) - _ENVIRONMENT
    yield _none("environment", sorted(names), "nothing of the host.")
    yield _none("writes", [path for path in report["writable"] if path != "/tmp/"], "only in /tmp.")
    yield Check("size of /tmp", not report["fill"]["done"], _said(report["fill"]))
    ok = report["pid"] == 2 and report["host"]["value"] == "hutch"
    yield Check("processes", ok, f"pid {report['pid']} on host {report['host']['value']}.")
    foreign = [name for name in native["interfaces"] if name != "lo"]
    reached = [*visitors, *foreign, *(["a route"] if native["route"] else [])]
    yield _none("network", reached, "no way out, only its own loopback.")
    # There is no program inside but Deno itself: without the filter, that is all that a guest can start.
    yield Check("programs", not report["run"]["done"], _said(report["run"]), required=jail.filtered)
    powerless = native["noNewPrivileges"] == 1 and not any(native["capabilities"])
    sets = f"no new privileges: {native['noNewPrivileges']}, capabilities: {native['capabilities']}."
    yield Check("privileges", powerless, sets)
    unfiltered = [name for name in native["succeeded"] if name not in _FILTERED]
    yield _none("system calls", unfiltered, "mount, unshare, chroot and signals to the host are refused.")
    let = [name for name in native["succeeded"] if name in _FILTERED]
    filtered = native["seccomp"] == 2 and not let
    yield Check("seccomp", filtered, _listed(let) or f"mode {native['seccomp']}.", required=False)


def _process(jail: Jail, report: dict[str, Any], visitors: list[str]) -> Iterator[Check]:
    """Without a container it is Deno's permissions that are tested."""
    yield _none("files", sorted({*report["seen"], *report["read"]}), "no reading.")
    for name, key in (("environment", "environment"), ("programs", "run"), ("system calls", "native")):
        yield Check(name, not report[key]["done"], _said(report[key]))
    yield _none("writes", report["writable"], "no writing.")
    yield _none("network", visitors, "no connections.")


def _bounds(jail: Jail, controller: Controller, stack: contextlib.ExitStack) -> Iterator[Callable[[], Check]]:
    """Start what must hit the bounds; each result says how it went."""
    try:
        small, lonely = controller.create(64 * MIB, 64), controller.create(64 * MIB, 1)
    except OSError as error:
        reason = str(error)
        yield lambda: Check("memory", False, reason, required=False)
        return
    for group in (small, lonely):
        stack.callback(_dispose, controller, group)
    hungry = stack.enter_context(_Guest(jail, [*_FLAGS, "-"], _HUNGRY, small))
    many = stack.enter_context(_Guest(jail, [*_FLAGS, "-"], "", lonely))

    def memory() -> Check:
        hungry.finish()
        kills = small.oom_kills()
        return Check("memory", kills > 0, f"{kills} killed for 256 MiB in a group of 64 MiB.", required=False)

    def tasks() -> Check:
        many.finish()
        refused = lonely.refused_tasks()
        return Check("tasks", refused > 0, f"{refused} refused in a group of one task.", required=False)

    yield memory
    yield tasks


class _Guest:
    """A Deno that runs `code` in the jail, and not for longer than the context."""

    def __init__(self, jail: Jail, arguments: list[str], code: str, group: Group | None = None) -> None:
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


def _dispose(controller: Controller, group: Group) -> None:
    group.kill()
    if not group.remove():
        controller.close()


def _succeeds(call: Callable[[], object]) -> bool:
    try:
        call()
    except OSError:
        return False
    return True


def _none(name: str, found: list[str], fine: str) -> Check:
    return Check(name, not found, _listed(found) or fine)


def _listed(found: list[str]) -> str:
    return ", ".join(found[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else "")


def _said(attempt: dict[str, Any]) -> str:
    return "it can." if attempt["done"] else f"refused: {attempt['value']}"
