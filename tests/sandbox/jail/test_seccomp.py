from __future__ import annotations

import errno
import json
import os
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from tests.sandbox import jails

from hutch.sandbox.jail import seccomp

ALLOW, KILL = 0x7FFF0000, 0x80000000
EPERM, ENOSYS, EAFNOSUPPORT = (0x00050000 | code for code in (errno.EPERM, errno.ENOSYS, errno.EAFNOSUPPORT))
BOTH = pytest.mark.parametrize("machine", ["x86_64", "aarch64"])


def verdict_of(
    machine: str, number: int, *arguments: int, audit: int | None = None, forks: bool = False
) -> int:
    """Returns the filter's verdict about a system call. Emulates those instructions of the kernel's BPF
    machine that the filter uses.
    """
    values = [argument & (2**64 - 1) for argument in (*arguments, 0, 0, 0, 0, 0, 0)[:6]]
    arch = seccomp.ARCHITECTURES[machine].audit if audit is None else audit
    data = struct.pack("<IIQ6Q", number, arch, 0, *values)
    program = list(struct.iter_unpack("<HBBI", seccomp.filter_program(machine, forks=forks)))
    accumulator = at = 0
    while True:
        code, then, otherwise, value = program[at]
        at += 1
        if code == 0x06:
            return int(value)
        if code == 0x20:
            accumulator = struct.unpack_from("<I", data, value)[0]
        else:
            test = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: accumulator & value != 0}
            at += then if test[code] else otherwise


@BOTH
def test_denied_calls_are_refused_and_common_ones_allowed(machine: str) -> None:
    column = seccomp.ARCHITECTURES[machine].column
    for name, row in seccomp.DENIED.items():
        number = row[column]
        assert number is None or verdict_of(machine, number) == EPERM, name
    usual = {"x86_64": [0, 1, 9, 59, 202, 257, 232], "aarch64": [63, 64, 222, 221, 98, 56, 22]}
    assert {verdict_of(machine, number) for number in usual[machine]} == {ALLOW}


@BOTH
def test_clone_creates_threads_but_no_processes_or_namespaces(machine: str) -> None:
    clone, thread = seccomp.ARCHITECTURES[machine].clone, 0x3D0F00
    assert verdict_of(machine, clone, thread) == ALLOW
    assert verdict_of(machine, clone, signal.SIGCHLD) == EPERM
    assert verdict_of(machine, clone, signal.SIGCHLD, forks=True) == ALLOW
    for namespace in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert verdict_of(machine, clone, thread | namespace) == EPERM
        assert verdict_of(machine, clone, namespace | signal.SIGCHLD, forks=True) == EPERM
    assert verdict_of(machine, 435) == ENOSYS


@BOTH
def test_only_three_socket_families_are_allowed(machine: str) -> None:
    architecture = seccomp.ARCHITECTURES[machine]
    for call in (architecture.socket, architecture.socketpair):
        assert {verdict_of(machine, call, family) for family in (1, 2, 10)} == {ALLOW}
        assert {verdict_of(machine, call, family) for family in (0, 3, 16, 17, 38, 40)} == {EAFNOSUPPORT}


@BOTH
def test_input_cannot_be_faked_into_terminals(machine: str) -> None:
    ioctl = seccomp.ARCHITECTURES[machine].ioctl
    assert verdict_of(machine, ioctl, 0, 0x5412) == EPERM
    # The kernel ignores the higher 32 bits of the request. If these bits are set, the request must not pass
    # the filter.
    assert verdict_of(machine, ioctl, 0, 0x1_0000_5412) == EPERM
    assert verdict_of(machine, ioctl, 0, 0x541C) == EPERM
    assert verdict_of(machine, ioctl, 0, 0x5401) == ALLOW


def test_other_architectures_are_killed() -> None:
    assert verdict_of("x86_64", 1, audit=0x40000003) == KILL
    assert verdict_of("aarch64", 1, audit=0x40000028) == KILL
    assert verdict_of("x86_64", 0x40000000 | 1) == KILL


# Program that installs the filter in its own process, makes system calls, and prints the errno of each.
UNDER_FILTER = """
import ctypes, json, os, socket, struct, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
program = open(sys.argv[1], "rb").read()
data = ctypes.create_string_buffer(program, len(program))
whole = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(data))
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, whole, 0, 0) == 0
def call(number):
    ctypes.set_errno(0)
    libc.syscall(number, *[ctypes.c_long(-1)] * 6)
    return ctypes.get_errno()
def error(action):
    try:
        action()
    except OSError as caught:
        return caught.errno
if sys.argv[2] == "x32":
    call(0x40000000 | 39)
errors = {name: call(number) for name, number in json.loads(sys.argv[2]).items()}
errors["vsock"] = error(lambda: socket.socket(40, socket.SOCK_STREAM))
errors["unix"] = error(lambda: socket.socketpair())
errors["fork"] = error(os.fork)
thread = threading.Thread(target=lambda: errors.update(thread=True))
thread.start(); thread.join()
print(json.dumps(errors))
"""


def under_filter(folder: Path, argument: str) -> subprocess.CompletedProcess[str]:
    (folder / "filter").write_bytes(seccomp.filter_program())
    command = [sys.executable, "-c", UNDER_FILTER, str(folder / "filter"), argument]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=jails.TIMEOUT_SECONDS, start_new_session=True
    )


def test_kernel_accepts_the_filter_and_refuses_denied_calls(tmp_path: Path) -> None:
    architecture = seccomp.ARCHITECTURES[os.uname().machine]
    numbers = {
        name: row[architecture.column]
        for name, row in seccomp.DENIED.items()
        if row[architecture.column] is not None
    }
    result = json.loads(under_filter(tmp_path, json.dumps({**numbers, "clone3": 435})).stdout)
    assert result.pop("clone3") == errno.ENOSYS
    assert result.pop("vsock") == errno.EAFNOSUPPORT
    assert result.pop("unix") is None
    assert result.pop("thread") is True
    assert {name: code for name, code in result.items() if code != errno.EPERM} == {}
    assert result.keys() == {*numbers, "fork"}


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="x32 is an ABI of x86-64")
def test_kernel_kills_callers_of_x32(tmp_path: Path) -> None:
    assert under_filter(tmp_path, "x32").returncode == -signal.SIGSYS


def test_deno_in_the_jail_runs_under_the_filter() -> None:
    with jails.guest(jails.container()) as child:
        jails.start_waiting(child)
        status = Path(f"/proc/{jails.descendants(child.pid)[-1]}/status").read_text()
    fields = dict(line.split(":\t", 1) for line in status.splitlines())
    assert fields["Name"] == "deno"
    assert fields["Seccomp"] == "2"


def test_deno_works_under_the_filter() -> None:
    code = """
    const server = Deno.serve({port: 0, hostname: "127.0.0.1", onListen() {}}, () => new Response("served"));
    const text = await (await fetch(`http://127.0.0.1:${server.addr.port}`)).text();
    await server.shutdown();
    const worker = new Worker("data:application/javascript,postMessage('worked')", {type: "module"});
    const word = await new Promise((done) => { worker.onmessage = (event) => done(event.data) });
    const digest = await crypto.subtle.digest("SHA-256", new Uint8Array(1 << 20));
    console.log(text, word, digest.byteLength);
    Deno.exit(0);"""
    result = jails.run(jails.container(), code, "-A")
    assert (result.stdout, result.stderr) == ("served worked 32\n", "")
