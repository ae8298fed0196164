from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.sandbox import jails
from tests.sandbox.jails import container, evaluate, process, run

from hutch.errors import InvalidExecution
from hutch.sandbox import deno_binary
from hutch.sandbox.jail.jail import DENO, DEVICES, Bubblewrap, Jail, Launch, Mount

BOTH = pytest.mark.parametrize("isolation", ["container", "process"])


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that every user may enter, unlike pytest's directories."""
    path = Path(tempfile.mkdtemp(prefix="hutch-test-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def jail(isolation: str) -> Jail:
    return container() if isolation == "container" else process()


def test_guest_sees_only_deno_its_libraries_and_four_devices() -> None:
    walk = """(function walk(d) { return [...Deno.readDirSync(d)].flatMap((e) =>
        e.isDirectory ? walk(d + e.name + "/") : [d + e.name]) })("/")"""
    jail = container()
    expected = {DENO, "/proc/self/exe", *jail.libraries, *DEVICES}
    assert set(evaluate(jail, walk, "-A").split(",")) == expected


def test_guest_gets_only_the_given_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_THE_HOST", "1")
    shown = "JSON.stringify(Deno.env.toObject())"
    fixed = {"DENO_DIR", "DENO_NO_UPDATE_CHECK", "NO_COLOR", "PWD"}
    for jail in (container(), process()):
        environment = json.loads(evaluate(jail, shown, "--allow-env", env=(("GIVEN", "x y\n"),)))
        assert environment.keys() == {*fixed, "GIVEN"}
        assert environment["GIVEN"] == "x y\n"


@BOTH
def test_environment_values_are_not_in_the_command_line(jail: Jail) -> None:
    with jail.command(Launch((jail.deno,), env=(("TOKEN", "s3cret"),))) as command:
        assert "s3cret" not in " ".join(command.argv)


@pytest.mark.parametrize(
    "variable",
    [("A", "x\0--bind\0/\0/host"), ("A\0B", "x"), ("", "x"), ("A=B", "x"), ("LD_PRELOAD", "/tmp/x.so")],
)
@BOTH
def test_environment_cannot_change_the_jail_or_the_loader(jail: Jail, variable: tuple[str, str]) -> None:
    with pytest.raises(InvalidExecution, match="env"):
        jail.command(Launch((jail.deno,), env=(variable,)))


def test_path_with_nul_is_rejected() -> None:
    with pytest.raises(InvalidExecution, match="NUL"):
        container().command(Launch((DENO,), mounts=(Mount("/tmp", "/x\0--bind\0/\0/host"),)))


def test_mount_is_read_only_unless_it_is_writable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    write = "Deno.readTextFileSync('/data/file') + Deno.writeTextFileSync('/data/new', 'x')"
    refused = evaluate(container(), write, "-A", mounts=(Mount(str(tmp_path), "/data"),))
    assert "Read-only file system" in refused
    evaluate(container(), write, "-A", mounts=(Mount(str(tmp_path), "/data", writable=True),))
    assert (tmp_path / "new").read_text() == "x"


def test_guest_connects_to_a_mounted_socket(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        server.listen()
        server.settimeout(jails.TIMEOUT_SECONDS)
        mount = Mount(str(tmp_path / "socket"), "/control", writable=True)
        jail = container()
        with jails.guest(jail, "-A", mounts=(mount,)) as child:
            assert child.stdin is not None
            child.stdin.write(
                f"const c = await Deno.connect({{transport: 'unix', path: '{jail.guest_path(mount)}'}});"
                "await c.write(new TextEncoder().encode('hello'));"
            )
            child.stdin.close()
            connection, _ = server.accept()
            with connection:
                assert connection.recv(100) == b"hello"


def test_root_is_read_only_and_tmp_is_limited() -> None:
    code = """
    const tries = ["/x", "/dev/x", "/proc/x", "/tmp/x"].map((path) => {
      try { Deno.writeTextFileSync(path, "x"); return true } catch { return false } });
    let full = "";
    try { Deno.writeFileSync("/tmp/big", new Uint8Array(2 << 20)) } catch (e) { full = e.message }
    console.log(JSON.stringify([tries, full.includes("No space left")]))"""
    result = run(container(), code, "-A", tmp_bytes=1 << 20)
    assert json.loads(result.stdout) == [[False, False, False, True], True]
    assert not Path("/tmp/big").exists()


def test_guest_starts_processes_only_if_allowed() -> None:
    start = "new Deno.Command(Deno.execPath(), {args: ['--version']}).outputSync().code"
    assert "Operation not permitted" in evaluate(container(), start, "-A")
    assert evaluate(container(), start, "-A", forks=True) == "0"


def test_guest_cannot_reach_a_listener_of_the_host() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        connect = f"await Deno.connect({{port: {port}}}).then(() => 'reached', (e) => e.message)"
        assert evaluate(process(), connect, "-A") == "reached"
        assert "refused" in evaluate(container(), connect, "-A")


def test_container_works_for_an_unprivileged_user(public: Path) -> None:
    deno = shutil.copy(deno_binary.find_deno(), public / "deno")
    user = jails.unprivileged()
    shown = "JSON.stringify([Deno.uid(), Deno.pid])"
    assert evaluate(container(deno=str(deno)), shown, "-A", user=user) == "[65534,2]"


def descriptors(pid: int | str = "self") -> list[str]:
    links = Path(f"/proc/{pid}/fd").iterdir()
    return sorted(str(link.readlink()) for link in links if link.is_symlink())


def test_no_descriptor_of_the_jail_leaks_to_the_guest_or_stays_with_the_host() -> None:
    before = descriptors()
    with jails.guest(container()) as child:
        jails.start_waiting(child)
        for pid in jails.descendants(child.pid):
            assert not [target for target in descriptors(pid) if "hutch" in target]
    assert descriptors() == before


@BOTH
def test_guest_crash_leaves_no_core(jail: Jail) -> None:
    with jails.guest(jail) as child:
        jails.start_waiting(child)
        limits = Path(f"/proc/{jails.descendants(child.pid)[-1]}/limits").read_text()
    core = next(line for line in limits.splitlines() if line.startswith("Max core"))
    assert core.split()[4:6] == ["0", "0"]


def test_process_isolation_has_and_gains_no_privileges() -> None:
    with jails.guest(process()) as child:
        jails.start_waiting(child)
        status = Path(f"/proc/{child.pid}/status").read_text()
    fields = dict(line.split(":\t", 1) for line in status.splitlines())
    assert fields["NoNewPrivs"] == "1"
    assert int(fields["CapEff"], 16) == 0


def test_process_isolation_starts_in_a_mounted_directory_or_the_root(tmp_path: Path) -> None:
    mounts = (Mount(str(tmp_path), "/data"),)
    assert process().guest_path(mounts[0]) == str(tmp_path)
    assert evaluate(process(), "Deno.cwd()", "--allow-read", mounts=mounts, cwd="/data") == str(tmp_path)
    assert evaluate(process(), "Deno.cwd()", "--allow-read") == "/"


def test_info_fd_reports_the_pid_of_the_child() -> None:
    read, write = os.pipe()
    try:
        with jails.guest(container(), info_fd=write) as child:
            jails.start_waiting(child)
            result = json.loads(os.read(read, 4096))
            assert result["child-pid"] in jails.descendants(child.pid)
    finally:
        os.close(read)
        os.close(write)


HOST = """
import subprocess, sys
from tests.sandbox import jails
with jails.guest(jails.container() if sys.argv[1] == "container" else jails.process()) as child:
    jails.start_waiting(child)
    print(*jails.descendants(child.pid), flush=True)
    sys.stdin.read()
"""


@BOTH
def test_guests_do_not_outlive_a_killed_host(isolation: str) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", HOST, isolation]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) as host:
        assert host.stdout is not None
        guests = [os.pidfd_open(int(pid)) for pid in host.stdout.readline().split()]
        host.send_signal(signal.SIGKILL)
    assert guests
    for handle in guests:
        # A pidfd becomes readable when its process exits.
        assert select.select([handle], [], [], jails.TIMEOUT_SECONDS)[0]
        os.close(handle)


def test_older_bubblewrap_gets_no_unknown_options() -> None:
    path = container().bwrap
    assert path is not None
    jail = container(bwrap=Bubblewrap(path.path, "0.6.1"))
    arguments = jail.bwrap_arguments(Launch((DENO,)))
    assert "--size" not in arguments
    assert "--disable-userns" not in arguments
    assert evaluate(jail, "1 + 1") == "2"
