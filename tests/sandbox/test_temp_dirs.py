"""Ids of host processes in the names of temporary folders."""

from __future__ import annotations

import os

from hutch.sandbox import temp_dirs


def test_own_host_has_not_exited() -> None:
    assert str(os.getpid()) in temp_dirs.host_id().split("-")
    assert not temp_dirs.has_host_exited(temp_dirs.host_id())


def test_forked_child_is_another_host() -> None:
    parent = temp_dirs.host_id()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writing, temp_dirs.host_id().encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        child = pipe.read()
    os.waitpid(pid, 0)
    assert str(pid) in child.split("-")
    assert child != parent
    assert temp_dirs.has_host_exited(child)
