"""Machines of a test in network namespaces of their own. Links between them can be cut and delayed.

A shell owns all namespaces and the bridge that joins them. The kernel removes these when the shell and the
processes in the namespaces have ended, so that a test that was killed leaves nothing. Nothing changes
outside: the names and addresses of several networks do not collide.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.support.processes import stop_process

ADDRESSES = "10.213.0."
MISSING = (
    "the tests need the programs `ip`, `unshare`, `nsenter` and `setpriv`: `make test` installs them where it"
    " may, or `apt install iproute2 util-linux`"
)
FORBIDDEN = (
    "the tests need network namespaces, which this machine refuses: run them as root, or allow user"
    " namespaces (`sysctl kernel.unprivileged_userns_clone=1"
    " kernel.apparmor_restrict_unprivileged_userns=0`). {}"
)
FOLDER = Path(__file__).parent
PARENT_DEATH = ("setpriv", "--pdeathsig", "KILL")


class Network:
    """A hub and machines that reach nothing but the hub."""

    def __init__(self, hub: str, machines: Sequence[str]) -> None:
        assert all(map(shutil.which, ("ip", "unshare", "nsenter", "setpriv"))), MISSING
        self._shell, self._enter = _open_shell()
        self._names = [hub, *machines]
        self._delayed: dict[str, subprocess.Popen[bytes]] = {}
        # `ip netns` keeps its namespaces in /run/netns.
        self._run("mount -t tmpfs tmpfs /run", "ip link add bridge type bridge", "ip link set bridge up")
        for name in self._names:
            self._run(
                f"ip netns add {name}",
                f"ip link add name {name} type veth peer name eth0 netns {name}",
                f"ip link set dev {name} master bridge up",
                f"ip -n {name} address add {self.address(name)}/32 dev eth0",
                f"ip -n {name} link set lo up",
                f"ip -n {name} link set eth0 up",
            )
        for name in machines:
            self._run(
                f"ip -n {name} route add {self.address(hub)} dev eth0",
                f"ip -n {hub} route add {self.address(name)} dev eth0",
            )

    def address(self, name: str) -> str:
        return f"{ADDRESSES}{self._names.index(name) + 1}"

    def command(self, name: str, *command: str) -> list[str]:
        """Returns the command that runs this one on a machine. Its process ends with the thread that starts
        it.
        """
        return [*self.entering(name), *PARENT_DEATH, *command]

    def entering(self, name: str) -> list[str]:
        """Returns the beginning of a command that runs on a machine, and does not end with its thread."""
        return self._entering(f"root/run/netns/{name}")

    def cut(self, name: str) -> None:
        """Cuts the link of a machine. Packets vanish, without an error at either end."""
        self._run(f"ip link set dev {self._port(name)} nomaster")

    def restore(self, name: str) -> None:
        self._run(f"ip link set dev {self._port(name)} master bridge")

    @contextlib.contextmanager
    def cut_off(self, name: str) -> Iterator[None]:
        self.cut(name)
        try:
            yield
        finally:
            self.restore(name)

    @contextlib.contextmanager
    def delayed(self, name: str, seconds: float) -> Iterator[None]:
        """Delays all packets to and from a machine, by a process between its link and the bridge: many
        kernels have no `tc … netem`.
        """
        self._run(
            f"ip link set dev {name} nomaster",
            f"ip link add name {name}.near type veth peer name {name}.far",
            f"ip link set dev {name}.near up",
            f"ip link set dev {name}.far up",
        )
        script = str(FOLDER / "delayed_link.py")
        command = [sys.executable, "-IS", script, name, f"{name}.near", str(seconds)]
        process = subprocess.Popen(
            [*self._entering("ns/net"), *PARENT_DEATH, *command], stdout=subprocess.PIPE
        )
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            self._delayed[name] = process
            self.restore(name)
            yield
        finally:
            self._delayed.pop(name, None)
            stop_process(process)
            assert process.stdout is not None
            process.stdout.close()
            self._run(f"ip link del dev {name}.near", f"ip link set dev {name} master bridge")

    @contextlib.contextmanager
    def forwarded(self, name: str, port: int) -> Iterator[int]:
        """Forwards a port of loopback, which it yields, to a port of loopback of a machine."""
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            script = str(FOLDER / "forwarded_port.py")
            command = self.command(name, sys.executable, "-IS", script, str(listener.fileno()), str(port))
            process = subprocess.Popen(command, pass_fds=[listener.fileno()])
            try:
                yield int(listener.getsockname()[1])
            finally:
                stop_process(process)

    def close(self) -> None:
        self._shell.communicate(timeout=10)

    def _port(self, name: str) -> str:
        return f"{name}.far" if name in self._delayed else name

    def _entering(self, namespace: str) -> list[str]:
        return [*self._enter, f"--net=/proc/{self._shell.pid}/{namespace}"]

    def _run(self, *commands: str) -> None:
        status, output = _ask(self._shell, " && ".join(commands))
        assert status == 0, f"{commands}: {output}"


@contextlib.contextmanager
def running_network(hub: str, *machines: str) -> Iterator[Network]:
    network = Network(hub, machines)
    try:
        yield network
    finally:
        network.close()


def _open_shell() -> tuple[subprocess.Popen[str], list[str]]:
    """Returns a shell in new namespaces, and the command that enters its user namespace."""
    errors = ""
    for options in ([], ["--user", "--map-root-user"]):
        shell = subprocess.Popen(
            ["unshare", *options, "--mount", "--net", "sh"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        status, output = _ask(shell, "ip link set lo up")
        if status == 0:
            user = [f"--user=/proc/{shell.pid}/ns/user", "--preserve-credentials"]
            return shell, ["nsenter", *(user if options else [])]
        errors += output
        shell.communicate()
    raise AssertionError(FORBIDDEN.format(errors))


def _ask(shell: subprocess.Popen[str], command: str) -> tuple[int, str]:
    """Runs a command in a shell. Returns its status and output."""
    assert shell.stdin is not None
    assert shell.stdout is not None
    # Writing fails if the namespaces could not be made, because the shell has ended then.
    with contextlib.suppress(BrokenPipeError):
        shell.stdin.write(f"{{ {command}; }} </dev/null; echo status $?\n")
        shell.stdin.flush()
    output = ""
    for line in shell.stdout:
        if line.startswith("status "):
            return int(line.split()[1]), output
        output += line
    return 1, output
