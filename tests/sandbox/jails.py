"""Real jails for the tests, and ways to run code in them."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hutch.sandbox import jail, runtime
from hutch.sandbox.cgroup import Group
from hutch.sandbox.jail import Jail, Launch

FLAGS = ("--no-prompt", "--quiet", "--no-config", "--no-lock", "--no-remote", "--no-npm", "--ext=js")
SECONDS = 20


def container(**options: Any) -> Jail:
    bwrap = jail.bubblewrap()
    assert bwrap is not None, "the tests need bubblewrap"
    return Jail("container", options.pop("deno", runtime.locate()), **{"bwrap": bwrap, **options})


def process() -> Jail:
    return Jail("process", runtime.locate())


@contextlib.contextmanager
def guest(
    where: Jail,
    *permissions: str,
    group: Group | None = None,
    info_fd: int | None = None,
    user: int | None = None,
    **launch: Any,
) -> Iterator[subprocess.Popen[str]]:
    """A Deno in the jail that runs what it gets on stdin. Killed at the end."""
    arguments = (where.deno, "run", *FLAGS, *permissions, "-")
    with where.command(Launch(arguments, **launch), group=group, info_fd=info_fd) as command:
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


def run(where: Jail, code: str, *permissions: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run code to its end."""
    with guest(where, *permissions, **options) as child:
        out, err = child.communicate(code, timeout=SECONDS)
    return subprocess.CompletedProcess(child.args, child.returncode, out, err)


def evaluate(where: Jail, expression: str, *permissions: str, **options: Any) -> str:
    """What an expression gives, as text, or the error's name and message."""
    code = (
        f"try {{ console.log(String({expression})) }} catch (e) {{ console.log(e.name + ': ' + e.message) }}"
    )
    told = run(where, code, *permissions, **options)
    assert told.returncode == 0, told.stderr
    return told.stdout.strip()


def descendants(pid: int) -> list[int]:
    """A process and all below it, as the host sees them."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(below for child in children for below in descendants(int(child)))]


def start_waiting(child: subprocess.Popen[str]) -> None:
    """Have the guest say that it runs, and then do nothing for as long as stdin is open."""
    assert child.stdin is not None
    assert child.stdout is not None
    # Deno reads its program to the end of stdin: the rest of the wait is for the process to be killed.
    child.stdin.write("console.log('ready'); setInterval(() => {}, 1000);")
    child.stdin.close()
    assert child.stdout.readline() == "ready\n"


def unprivileged() -> int | None:
    """A user without any power to run as, or None when the tests already run as one."""
    return 65534 if os.geteuid() == 0 else None
