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

from hutch.sandbox import seccomp

ALLOW, KILL = 0x7FFF0000, 0x80000000
EPERM, ENOSYS, EAFNOSUPPORT = (0x00050000 | code for code in (errno.EPERM, errno.ENOSYS, errno.EAFNOSUPPORT))
BOTH = pytest.mark.parametrize("machine", ["x86_64", "aarch64"])


def judge(machine: str, number: int, *arguments: int, audit: int | None = None, forks: bool = False) -> int:
    """What the kernel would answer: its BPF machine, as far as the filter uses it."""
    values = [argument & (2**64 - 1) for argument in (*arguments, 0, 0, 0, 0, 0, 0)[:6]]
    arch = seccomp.MACHINES[machine].audit if audit is None else audit
    data = struct.pack("<IIQ6Q", number, arch, 0, *values)
    program = list(struct.iter_unpack("<HBBI", seccomp.program(machine, forks=forks)))
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
def test_every_named_call_is_refused_and_the_calls_of_a_runtime_are_not(machine: str) -> None:
    column = seccomp.MACHINES[machine].column
    for name, row in seccomp.DENIED.items():
        number = row[column]
        assert number is None or judge(machine, number) == EPERM, name
    usual = {"x86_64": [0, 1, 9, 59, 202, 257, 232], "aarch64": [63, 64, 222, 221, 98, 56, 22]}
    assert {judge(machine, number) for number in usual[machine]} == {ALLOW}


@BOTH
def test_clone_makes_threads_but_neither_processes_nor_namespaces(machine: str) -> None:
    clone, thread = seccomp.MACHINES[machine].clone, 0x3D0F00
    assert judge(machine, clone, thread) == ALLOW
    assert judge(machine, clone, signal.SIGCHLD) == EPERM
    assert judge(machine, clone, signal.SIGCHLD, forks=True) == ALLOW
    for namespace in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert judge(machine, clone, thread | namespace) == EPERM
        assert judge(machine, clone, namespace | signal.SIGCHLD, forks=True) == EPERM
    assert judge(machine, 435) == ENOSYS


@BOTH
def test_sockets_are_of_three_families_only(machine: str) -> None:
    of = seccomp.MACHINES[machine]
    for call in (of.socket, of.socketpair):
        assert {judge(machine, call, family) for family in (1, 2, 10)} == {ALLOW}
        assert {judge(machine, call, family) for family in (0, 3, 16, 17, 38, 40)} == {EAFNOSUPPORT}


@BOTH
def test_terminals_cannot_be_written_to_for_others(machine: str) -> None:
    ioctl = seccomp.MACHINES[machine].ioctl
    assert judge(machine, ioctl, 0, 0x5412) == EPERM
    # The kernel looks at 32 bits of the request: more above them must not get past the filter.
    assert judge(machine, ioctl, 0, 0x1_0000_5412) == EPERM
    assert judge(machine, ioctl, 0, 0x541C) == EPERM
    assert judge(machine, ioctl, 0, 0x5401) == ALLOW


def test_other_architectures_are_killed() -> None:
    assert judge("x86_64", 1, audit=0x40000003) == KILL
    assert judge("aarch64", 1, audit=0x40000028) == KILL
    assert judge("x86_64", 0x40000000 | 1) == KILL


# Puts the filter on a process of its own, and reports the errno of each call.
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
told = {name: call(number) for name, number in json.loads(sys.argv[2]).items()}
told["vsock"] = error(lambda: socket.socket(40, socket.SOCK_STREAM))
told["unix"] = error(lambda: socket.socketpair())
told["fork"] = error(os.fork)
thread = threading.Thread(target=lambda: told.update(thread=True))
thread.start(); thread.join()
print(json.dumps(told))
"""


def under_filter(folder: Path, argument: str) -> subprocess.CompletedProcess[str]:
    (folder / "filter").write_bytes(seccomp.program())
    command = [sys.executable, "-c", UNDER_FILTER, str(folder / "filter"), argument]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=jails.SECONDS, start_new_session=True
    )


def test_the_kernel_takes_the_filter_and_refuses_what_it_names(tmp_path: Path) -> None:
    of = seccomp.MACHINES[os.uname().machine]
    numbers = {name: row[of.column] for name, row in seccomp.DENIED.items() if row[of.column] is not None}
    told = json.loads(under_filter(tmp_path, json.dumps({**numbers, "clone3": 435})).stdout)
    assert told.pop("clone3") == errno.ENOSYS
    assert told.pop("vsock") == errno.EAFNOSUPPORT
    assert told.pop("unix") is None
    assert told.pop("thread") is True
    assert {name: code for name, code in told.items() if code != errno.EPERM} == {}
    assert told.keys() == {*numbers, "fork"}


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="x32 is an ABI of x86-64")
def test_the_kernel_kills_a_caller_of_x32(tmp_path: Path) -> None:
    assert under_filter(tmp_path, "x32").returncode == -signal.SIGSYS


def test_deno_in_the_jail_is_under_the_filter() -> None:
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
    told = jails.run(jails.container(), code, "-A")
    assert (told.stdout, told.stderr) == ("served worked 32\n", "")
