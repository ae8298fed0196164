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
from hutch.sandbox import deno_binary
from hutch.sandbox.jail import netns
from hutch.sandbox.jail.jail import Jail
from hutch.sandbox.jail.netns import NetnsListener

PORT = 3128


@pytest.fixture
async def netns_listener(anyio_backend: object) -> AsyncIterator[NetnsListener]:
    listener = NetnsListener()
    yield listener
    await listener.close()


@contextlib.contextmanager
def jailed(jail: Jail | None = None, user: int | None = None) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Yields a guest that waits for its code, and the guest's process id, as reported by bubblewrap."""
    read, write = os.pipe()
    with jails.guest(jail or container(), "-A", info_fd=write, user=user) as child:
        os.close(write)
        with os.fdopen(read) as info:
            pid = json.load(info)["child-pid"]
        handle = os.pidfd_open(pid)
        try:
            yield child, pid
        finally:
            # Kill the guest explicitly. While the guest waits for its parent, it does not die with the
            # parent.
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            os.close(handle)


def run_code(child: subprocess.Popen[str], code: str) -> str:
    """Runs code in the guest and returns its output."""
    out, err = child.communicate(code, timeout=jails.TIMEOUT_SECONDS)
    assert child.returncode == 0, err
    return out.strip()


async def exchange(listener: socket.socket, child: subprocess.Popen[str]) -> str:
    """Lets the guest connect to the listener. Returns the data that the guest received over the
    connection.
    """
    loop = asyncio.get_running_loop()
    code = f"""const c = await Deno.connect({{port: {PORT}}}); const b = new Uint8Array(9);
    console.log(new TextDecoder().decode(b.subarray(0, await c.read(b))))"""
    running = asyncio.ensure_future(asyncio.to_thread(run_code, child, code))
    async with asyncio.timeout(jails.TIMEOUT_SECONDS):
        connection, _ = await loop.sock_accept(listener)
        with connection:
            await loop.sock_sendall(connection, b"hello")
        return await running


async def test_host_listens_inside_a_jail(netns_listener: NetnsListener) -> None:
    with jailed() as (child, pid), await netns_listener.listen(pid, PORT) as listener:
        assert listener.getsockname() == ("127.0.0.1", PORT)
        assert await exchange(listener, child) == "hello"


async def test_host_receives_the_name_lookups_of_a_jail(netns_listener: NetnsListener) -> None:
    code = """const dns = await import("node:dns/promises");
    await dns.lookup("some.name.example").catch(() => {}); Deno.exit(0)"""
    with jailed() as (child, pid):
        listener, dns = await netns_listener.listen_with_dns(pid, PORT)
        with listener, dns:
            assert listener.getsockname() == ("127.0.0.1", PORT)
            running = asyncio.ensure_future(asyncio.to_thread(run_code, child, code))
            async with asyncio.timeout(jails.TIMEOUT_SECONDS):
                query = await asyncio.get_running_loop().sock_recv(dns, 1024)
            assert b"\4some\4name\7example\0" in query
        # The `with` block has closed the socket of the DNS server, so the lookup in the guest fails at once.
        await running


async def test_listener_is_the_only_connection_to_the_outside(netns_listener: NetnsListener) -> None:
    with socket.create_server(("127.0.0.1", 0)) as host, jailed() as (child, pid):
        port = host.getsockname()[1]
        tries = f"""
        const tried = async (f) => {{ try {{ await f(); return "reached" }} catch (e) {{ return e.name }} }};
        const udp = (await import("node:dgram")).createSocket("udp4");
        const send = () => new Promise((yes, no) => udp.send("x", 53, "192.0.2.1", (e) => e ? no(e) : yes()));
        console.log(JSON.stringify([
          await tried(() => Deno.connect({{hostname: "127.0.0.1", port: {port}}})),
          await tried(() => Deno.connect({{hostname: "::1", port: {port}}})),
          await tried(() => Deno.connect({{hostname: "192.0.2.1", port: 80}})),
          await tried(() => Deno.connect({{hostname: "example.com", port: 80}})),
          await tried(() => Deno.resolveDns("example.com", "A")),
          await tried(send),
        ]));
        Deno.exit(0)"""
        with await netns_listener.listen(pid, PORT):
            reported = json.loads(await asyncio.to_thread(run_code, child, tries))
    assert "reached" not in reported
    assert reported[0] == "ConnectionRefused"
    assert reported[2] == "NetworkUnreachable"


async def test_every_jail_has_its_own_listener(netns_listener: NetnsListener) -> None:
    with (
        jailed() as (one, first),
        jailed() as (_, second),
        await netns_listener.listen(first, PORT) as listener,
        await netns_listener.listen(second, PORT),
    ):
        assert await exchange(listener, one) == "hello"


async def test_many_listeners_are_opened_at_once(netns_listener: NetnsListener) -> None:
    with jailed() as (_, pid):
        listeners = await asyncio.gather(*(netns_listener.listen(pid, PORT + n) for n in range(20)))
        assert [each.getsockname()[1] for each in listeners] == [PORT + n for n in range(20)]
        for each in listeners:
            each.close()


async def test_port_in_use_raises(netns_listener: NetnsListener) -> None:
    expected = r"cannot listen on 127\.0\.0\.1:3128 in the jail: Address already in use"
    with (
        jailed() as (_, pid),
        await netns_listener.listen(pid, PORT),
        pytest.raises(SandboxUnavailable, match=expected),
    ):
        await netns_listener.listen(pid, PORT)


async def test_exited_jail_raises(netns_listener: NetnsListener) -> None:
    with jailed() as (_, pid):
        process = os.pidfd_open(pid)
    assert select.select([process], [], [], jails.TIMEOUT_SECONDS)[0]
    os.close(process)
    with pytest.raises(SandboxUnavailable, match="the jail has exited"):
        await netns_listener.listen(pid, PORT)


async def test_host_network_namespace_is_rejected(netns_listener: NetnsListener) -> None:
    with pytest.raises(SandboxUnavailable, match="no network namespace of its own"):
        await netns_listener.listen(os.getpid(), PORT)


def helper_pid(netns_listener: NetnsListener) -> int:
    assert netns_listener._process is not None
    return netns_listener._process.pid


async def test_one_helper_serves_all_requests_and_is_replaced_when_killed(
    netns_listener: NetnsListener,
) -> None:
    with jailed() as (_, pid):
        # Use another port each time. The forked process that opened the previous port may not have closed its
        # socket yet.
        (await netns_listener.listen(pid, PORT)).close()
        first = helper_pid(netns_listener)
        (await netns_listener.listen(pid, PORT + 1)).close()
        assert helper_pid(netns_listener) == first
        os.kill(first, signal.SIGKILL)
        (await netns_listener.listen(pid, PORT + 2)).close()
        assert helper_pid(netns_listener) != first


async def test_hanging_helper_is_replaced(
    netns_listener: NetnsListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    with jailed() as (_, pid):
        (await netns_listener.listen(pid, PORT)).close()
        first = helper_pid(netns_listener)
        os.kill(first, signal.SIGSTOP)
        with monkeypatch.context() as patch:
            patch.setattr(netns, "REPLY_SECONDS", 0.1)
            with pytest.raises(SandboxUnavailable, match="no reply within"):
                await netns_listener.listen(pid, PORT)
        (await netns_listener.listen(pid, PORT + 1)).close()
        assert helper_pid(netns_listener) != first


def descriptors() -> list[str]:
    return sorted(link.name for link in Path("/proc/self/fd").iterdir() if link.is_symlink())


async def test_close_leaves_neither_helper_nor_descriptors() -> None:
    before = descriptors()
    netns_listener = NetnsListener()
    with jailed() as (_, pid):
        (await netns_listener.listen(pid, PORT)).close()
        helper = os.pidfd_open(helper_pid(netns_listener))
        await netns_listener.close()
        assert select.select([helper], [], [], jails.TIMEOUT_SECONDS)[0]
        os.close(helper)
    assert descriptors() == before
    await netns_listener.close()


HOST = """
import asyncio, sys
from hutch.sandbox.jail.netns import NetnsListener
listener = NetnsListener()
listener.start()
print(listener._process.pid, flush=True)
sys.stdin.read()
"""


def test_helper_does_not_outlive_a_killed_host() -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", HOST], stdin=pipe, stdout=pipe, text=True) as host:
        assert host.stdout is not None
        helper = os.pidfd_open(int(host.stdout.readline()))
        host.send_signal(signal.SIGKILL)
    assert select.select([helper], [], [], jails.TIMEOUT_SECONDS)[0]
    os.close(helper)


async def test_python_that_does_not_start_raises(
    netns_listener: NetnsListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    with jailed() as (_, pid):
        monkeypatch.setattr(sys, "executable", "/nowhere/python")
        with pytest.raises(SandboxUnavailable, match="the helper process cannot be started"):
            await netns_listener.listen(pid, PORT)
        monkeypatch.setattr(sys, "executable", "/bin/false")
        with pytest.raises(SandboxUnavailable, match="the helper process"):
            await netns_listener.listen(pid, PORT)


# Interpreter for an unprivileged user. Python starts as the user of the tests and then drops all privileges,
# because the unprivileged user may not be able to start Python.
UNPRIVILEGED_PYTHON = """#!{python}
import __future__, array, ctypes, fcntl, os, signal, socket, struct, sys
code = compile(open(sys.argv[-1]).read(), sys.argv[-1], "exec")
os.setgroups([])
os.setgid({user})
os.setuid({user})
exec(code, {{"__name__": "__main__"}})
"""


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that every user may enter, with a Deno and a Python for an unprivileged user."""
    path = Path(tempfile.mkdtemp(prefix="hutch-test-"))
    path.chmod(0o755)
    shutil.copy(deno_binary.find_deno(), path / "deno")
    (path / "python").write_text(UNPRIVILEGED_PYTHON.format(python=sys.executable, user=jails.unprivileged()))
    (path / "python").chmod(0o755)
    yield path
    shutil.rmtree(path)


def user_of(pid: int) -> str:
    return next(
        line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("Uid")
    )


async def test_no_privileges_are_needed(
    netns_listener: NetnsListener, public: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = jails.unprivileged()
    if user is not None:
        monkeypatch.setattr(sys, "executable", str(public / "python"))
    with jailed(container(deno=str(public / "deno")), user=user) as (child, pid):
        with await netns_listener.listen(pid, PORT) as listener:
            assert await exchange(listener, child) == "hello"
        assert user is None or user_of(helper_pid(netns_listener)).split() == ["Uid:", *[str(user)] * 4]
