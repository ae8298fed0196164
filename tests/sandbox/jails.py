"""Real jails for tests, and functions to run code in them."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from typing import Any

from tests.support import processes

from hutch.sandbox.deno_binary import find_deno
from hutch.sandbox.jail.cgroup import Cgroup
from hutch.sandbox.jail.jail import Jail, Launch, bubblewrap

FLAGS = ("--no-prompt", "--quiet", "--no-config", "--no-lock", "--no-remote", "--no-npm", "--ext=js")
TIMEOUT_SECONDS = 20


def container(**options: Any) -> Jail:
    bwrap = bubblewrap()
    assert bwrap is not None, "the tests need bubblewrap"
    return Jail("container", options.pop("deno", find_deno()), **{"bwrap": bwrap, **options})


def process() -> Jail:
    return Jail("process", find_deno())


@contextlib.contextmanager
def guest(
    jail: Jail,
    *permissions: str,
    group: Cgroup | None = None,
    info_fd: int | None = None,
    user: int | None = None,
    **launch: Any,
) -> Iterator[subprocess.Popen[str]]:
    """Starts a Deno in the jail that runs the code on its stdin. Yields its process, and kills it
    at the end.
    """
    arguments = (jail.deno, "run", *FLAGS, *permissions, "-")
    with jail.command(Launch(arguments, **launch), group=group, info_fd=info_fd) as command:
        options = command.options()
        if user is not None:
            options |= {"user": user, "group": user, "extra_groups": []}
        pipe = subprocess.PIPE
        child = subprocess.Popen(command.argv, stdin=pipe, stdout=pipe, stderr=pipe, text=True, **options)
    with child:
        try:
            yield child
        finally:
            child.kill()


def run(jail: Jail, code: str, *permissions: str, **options: Any) -> subprocess.CompletedProcess[str]:
    with guest(jail, *permissions, **options) as child:
        out, err = child.communicate(code, timeout=TIMEOUT_SECONDS)
    return subprocess.CompletedProcess(child.args, child.returncode, out, err)


def evaluate(jail: Jail, expression: str, *permissions: str, **options: Any) -> str:
    """Returns the value of an expression as text, or the error's name and message."""
    code = (
        f"try {{ console.log(String({expression})) }} catch (e) {{ console.log(e.name + ': ' + e.message) }}"
    )
    result = run(jail, code, *permissions, **options)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def descendants(pid: int) -> list[int]:
    """Returns a process and its descendants, as the host sees them."""
    return [pid, *processes.descendants(pid)]


def start_waiting(child: subprocess.Popen[str]) -> None:
    """Runs code in the guest that prints "ready" and then idles, and waits until it is ready."""
    assert child.stdin is not None
    assert child.stdout is not None
    # Close stdin, because Deno reads it to the end before it runs the program.
    child.stdin.write("console.log('ready'); setInterval(() => {}, 1000);")
    child.stdin.close()
    assert child.stdout.readline() == "ready\n"


def unprivileged() -> int | None:
    """Returns the id of an unprivileged user, or None if the tests run as one."""
    return 65534 if os.geteuid() == 0 else None
