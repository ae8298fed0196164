from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.sandbox import jails
from tests.sandbox.jails import container

from hutch.errors import SandboxUnavailable
from hutch.sandbox import network, runtime
from hutch.sandbox.jail import Jail
from hutch.sandbox.network import Doorkeeper

PORT = 3128


@pytest.fixture
async def doorkeeper(anyio_backend: object) -> AsyncIterator[Doorkeeper]:
    made = Doorkeeper()
    yield made
    await made.close()


@contextlib.contextmanager
def jailed(jail: Jail | None = None, user: int | None = None) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A guest that waits for its code, and the pid that its jail told."""
    read, write = os.pipe()
    with jails.guest(jail or container(), "-A", info_fd=write, user=user) as child:
        os.close(write)
        with os.fdopen(read) as info:
            pid = json.load(info)["child-pid"]
        handle = os.pidfd_open(pid)
        try:
            yield child, pid
        finally:
            # It does not follow its parent yet while it waits for it to go on.
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            os.close(handle)


def say(child: subprocess.Popen[str], code: str) -> str:
    """What the guest prints for its code."""
    out, err = child.communicate(code, timeout=jails.SECONDS)
    assert child.returncode == 0, err
    return out.strip()


async def exchange(listener: socket.socket, child: subprocess.Popen[str]) -> str:
    """Has the guest connect to the listener, and gives what it was told there."""
    loop = asyncio.get_running_loop()
    code = f"""const c = await Deno.connect({{port: {PORT}}}); const b = new Uint8Array(9);
    console.log(new TextDecoder().decode(b.subarray(0, await c.read(b))))"""
    saying = asyncio.ensure_future(asyncio.to_thread(say, child, code))
    async with asyncio.timeout(jails.SECONDS):
        connection, _ = await loop.sock_accept(listener)
        with connection:
            await loop.sock_sendall(connection, b"hello")
        return await saying


async def test_the_host_listens_inside_a_jail(doorkeeper: Doorkeeper) -> None:
    with jailed() as (child, pid), await doorkeeper.listen(pid, PORT) as listener:
        assert listener.getsockname() == ("127.0.0.1", PORT)
        assert await exchange(listener, child) == "hello"


async def test_it_is_the_only_way_out(doorkeeper: Doorkeeper) -> None:
    with socket.create_server(("127.0.0.1", 0)) as host, jailed() as (child, pid):
        port = host.getsockname()[1]
        tries = f"""
        const told = async (f) => {{ try {{ await f(); return "reached" }} catch (e) {{ return e.name }} }};
        const udp = (await import("node:dgram")).createSocket("udp4");
        const send = () => new Promise((yes, no) => udp.send("x", 53, "192.0.2.1", (e) => e ? no(e) : yes()));
        console.log(JSON.stringify([
          await told(() => Deno.connect({{hostname: "127.0.0.1", port: {port}}})),
          await told(() => Deno.connect({{hostname: "::1", port: {port}}})),
          await told(() => Deno.connect({{hostname: "192.0.2.1", port: 80}})),
          await told(() => Deno.connect({{hostname: "example.com", port: 80}})),
          await told(() => Deno.resolveDns("example.com", "A")),
          await told(send),
        ]));
        Deno.exit(0)"""
        with await doorkeeper.listen(pid, PORT):
            told = json.loads(await asyncio.to_thread(say, child, tries))
    assert "reached" not in told
    assert told[0] == "ConnectionRefused"
    assert told[2] == "NetworkUnreachable"


async def test_every_jail_has_its_own(doorkeeper: Doorkeeper) -> None:
    with (
        jailed() as (one, first),
        jailed() as (_, second),
        await doorkeeper.listen(first, PORT) as listener,
        await doorkeeper.listen(second, PORT),
    ):
        assert await exchange(listener, one) == "hello"


async def test_many_are_opened_at_once(doorkeeper: Doorkeeper) -> None:
    with jailed() as (_, pid):
        listeners = await asyncio.gather(*(doorkeeper.listen(pid, PORT + n) for n in range(20)))
        assert [each.getsockname()[1] for each in listeners] == [PORT + n for n in range(20)]
        for each in listeners:
            each.close()


async def test_a_port_that_is_taken_is_said_to_be(doorkeeper: Doorkeeper) -> None:
    expected = r"127\.0\.0\.1:3128 in it cannot be had: Address already in use"
    with (
        jailed() as (_, pid),
        await doorkeeper.listen(pid, PORT),
        pytest.raises(SandboxUnavailable, match=expected),
    ):
        await doorkeeper.listen(pid, PORT)


async def test_a_jail_that_is_gone_is_said_to_be(doorkeeper: Doorkeeper) -> None:
    with jailed() as (_, pid):
        process = os.pidfd_open(pid)
    assert select.select([process], [], [], jails.SECONDS)[0]
    os.close(process)
    with pytest.raises(SandboxUnavailable, match="its process is gone"):
        await doorkeeper.listen(pid, PORT)


async def test_the_hosts_own_network_is_never_listened_on(doorkeeper: Doorkeeper) -> None:
    with pytest.raises(SandboxUnavailable, match="no network namespace of its own"):
        await doorkeeper.listen(os.getpid(), PORT)


def helper_of(doorkeeper: Doorkeeper) -> int:
    assert doorkeeper._process is not None
    return doorkeeper._process.pid


async def test_one_process_opens_all_doors_and_is_replaced_when_it_is_killed(doorkeeper: Doorkeeper) -> None:
    with jailed() as (_, pid):
        # Another door each time: who opened the last may still be closing its end of it.
        (await doorkeeper.listen(pid, PORT)).close()
        first = helper_of(doorkeeper)
        (await doorkeeper.listen(pid, PORT + 1)).close()
        assert helper_of(doorkeeper) == first
        os.kill(first, signal.SIGKILL)
        (await doorkeeper.listen(pid, PORT + 2)).close()
        assert helper_of(doorkeeper) != first


async def test_process_that_hangs_is_replaced(
    doorkeeper: Doorkeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    with jailed() as (_, pid):
        (await doorkeeper.listen(pid, PORT)).close()
        first = helper_of(doorkeeper)
        os.kill(first, signal.SIGSTOP)
        with monkeypatch.context() as patch:
            patch.setattr(network, "ANSWER_SECONDS", 0.1)
            with pytest.raises(SandboxUnavailable, match="no answer within"):
                await doorkeeper.listen(pid, PORT)
        (await doorkeeper.listen(pid, PORT + 1)).close()
        assert helper_of(doorkeeper) != first


def descriptors() -> list[str]:
    return sorted(link.name for link in Path("/proc/self/fd").iterdir() if link.is_symlink())


async def test_closing_leaves_neither_the_process_nor_a_descriptor() -> None:
    before = descriptors()
    doorkeeper = Doorkeeper()
    with jailed() as (_, pid):
        (await doorkeeper.listen(pid, PORT)).close()
        helper = os.pidfd_open(helper_of(doorkeeper))
        await doorkeeper.close()
        assert select.select([helper], [], [], jails.SECONDS)[0]
        os.close(helper)
    assert descriptors() == before
    await doorkeeper.close()


HOST = """
import asyncio, sys
from hutch.sandbox.network import Doorkeeper
doorkeeper = Doorkeeper()
doorkeeper.start()
print(doorkeeper._process.pid, flush=True)
sys.stdin.read()
"""


def test_the_process_does_not_outlive_a_host_that_is_killed() -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", HOST], stdin=pipe, stdout=pipe, text=True) as host:
        assert host.stdout is not None
        helper = os.pidfd_open(int(host.stdout.readline()))
        host.send_signal(signal.SIGKILL)
    assert select.select([helper], [], [], jails.SECONDS)[0]
    os.close(helper)


async def test_a_python_that_does_not_start_is_said_so(
    doorkeeper: Doorkeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    with jailed() as (_, pid):
        monkeypatch.setattr(sys, "executable", "/nowhere/python")
        with pytest.raises(SandboxUnavailable, match="the process for it cannot be started"):
            await doorkeeper.listen(pid, PORT)
        monkeypatch.setattr(sys, "executable", "/bin/false")
        with pytest.raises(SandboxUnavailable, match="the process for it"):
            await doorkeeper.listen(pid, PORT)


# Starts as whoever runs the tests, since others may not even see its Python, and then has no power any more.
POWERLESS = """#!{python}
import __future__, array, ctypes, fcntl, os, signal, socket, struct, sys
code = compile(open(sys.argv[-1]).read(), sys.argv[-1], "exec")
os.setgroups([])
os.setgid({user})
os.setuid({user})
exec(code, {{"__name__": "__main__"}})
"""


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that every user may enter, with a Deno and a Python for a user without privileges."""
    path = Path(tempfile.mkdtemp(prefix="hutch-test-"))
    path.chmod(0o755)
    shutil.copy(runtime.locate(), path / "deno")
    (path / "python").write_text(POWERLESS.format(python=sys.executable, user=jails.unprivileged()))
    (path / "python").chmod(0o755)
    yield path
    shutil.rmtree(path)


def user_of(pid: int) -> str:
    return next(
        line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("Uid")
    )


async def test_it_needs_no_privileges(
    doorkeeper: Doorkeeper, public: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = jails.unprivileged()
    if user is not None:
        monkeypatch.setattr(sys, "executable", str(public / "python"))
    with jailed(container(deno=str(public / "deno")), user=user) as (child, pid):
        with await doorkeeper.listen(pid, PORT) as listener:
            assert await exchange(listener, child) == "hello"
        assert user is None or user_of(helper_of(doorkeeper)).split() == ["Uid:", *[str(user)] * 4]
