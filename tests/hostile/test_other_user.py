"""Servers that do not run as root, or that have no control groups, still isolate and limit guests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.processes import NO_WARM_RUNNERS, ServeProcess, stop_process

import hutch

NOBODY = 65534
ROOT = Path(__file__).parents[2]
MIB = 1024 * 1024
IS_ROOT = os.geteuid() == 0
# Python and the checkout may be in folders that only root may enter. This script runs in a separate mount
# namespace. There it replaces each of these folders by one that contains only Python and the checkout.
EXPOSE = """
set -e
for path in $NEEDED; do
    mkdir -p "$STASH$path" && mount --bind "$path" "$STASH$path"
done
for folder in $CLOSED; do
    mount -t tmpfs -o mode=755 tmpfs "$folder"
done
for path in $NEEDED; do
    mkdir -p "$path" && mount --bind "$STASH$path" "$path"
done
exec setpriv --reuid=NOBODY --regid=NOBODY --clear-groups -- "$@"
""".replace("NOBODY", str(NOBODY))
HIDE_CGROUPS = 'mount -t tmpfs tmpfs /sys/fs/cgroup && exec "$@"'


def as_nobody(stash: Path) -> tuple[list[str], dict[str, str]]:
    """Returns the first part of a command that runs the rest of the command as an unprivileged user, and
    environment variables for the command.
    """
    if not IS_ROOT:
        return [], {}
    needed = {Path(sys.base_prefix), Path(sys.prefix), ROOT}
    closed = {parent for path in needed for parent in path.parents if not parent.stat().st_mode & 0o001}
    needed = {path for path in needed if closed & {*path.parents}}
    outermost = [str(folder) for folder in closed if not closed & {*folder.parents}]
    variables = {
        "NEEDED": " ".join(sorted(map(str, needed))),
        "CLOSED": " ".join(outermost),
        "STASH": str(stash),
    }
    return ["unshare", "--mount", "sh", "-c", EXPOSE, "sh"], variables


def without_cgroups(_: Path) -> tuple[list[str], dict[str, str]]:
    if IS_ROOT:
        return ["unshare", "--mount", "sh", "-c", HIDE_CGROUPS, "sh"], {}
    return ["bwrap", "--dev-bind", "/", "/", "--tmpfs", "/sys/fs/cgroup", "--"], {}


@pytest.fixture(scope="module", params=[as_nobody, without_cgroups], ids=["nobody", "without cgroups"])
def server(request: pytest.FixtureRequest) -> Iterator[ServeProcess]:
    # Use a new folder, because other users may not enter pytest's folders.
    folder = Path(tempfile.mkdtemp())
    home = folder / "home"
    home.mkdir()
    if request.param is as_nobody and IS_ROOT:
        folder.chmod(0o755)
        os.chown(home, NOBODY, NOBODY)
    command, variables = request.param(folder / "stash")
    env = {
        **NO_WARM_RUNNERS,
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "HUTCH_HOME": str(home),
        **variables,
    }
    program = str(Path(sysconfig.get_path("scripts")) / "hutch")
    with subprocess.Popen(
        [*command, program, "serve", "--port", "0"],
        env=env,
        cwd="/",
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            running = ServeProcess(process)
            running.logged("isolation=container")
            yield running
        finally:
            stop_process(process)
    shutil.rmtree(folder)


async def test_guests_run_in_the_jail(server: ServeProcess) -> None:
    async with hutch.connect(server.execbox) as client:
        for engine in ("quickjs", "deno"):
            result = await client.run("await tools.double({ n: 21 })", tools=[double], engine=engine)
            assert result.result == 42, result
    assert not is_root(server.process.pid) or not has_cgroups(server.process.pid)


def is_root(pid: int) -> bool:
    return "\nUid:\t0\t" in Path(f"/proc/{pid}/status").read_text()


def has_cgroups(pid: int) -> bool:
    return any(Path(f"/proc/{pid}/root/sys/fs/cgroup").iterdir())


async def double(n: int) -> int:
    """Doubles a number."""
    return 2 * n


async def test_memory_of_a_guest_is_limited(server: ServeProcess) -> None:
    pause = "await new Promise((resolve) => setTimeout(resolve));"
    code = f"const a = []; for (;;) {{ a.push(new Uint8Array(1 << 20).fill(1)); {pause} }}"
    async with hutch.connect(server.execbox) as client:
        result = await client.run(code, engine="deno", memory_limit_bytes=96 * MIB, timeout_ms=60_000)
        assert result.error is not None
        assert result.error.code == "memory_limit"
        assert (await client.run("1 + 1", engine="deno")).result == 2
