"""Who a host is: told once, and anew of what was forked off."""

from __future__ import annotations

import os

from hutch.sandbox import identity


def test_a_host_is_itself_and_not_gone() -> None:
    assert str(os.getpid()) in identity.of_this_host().split("-")
    assert not identity.is_gone(identity.of_this_host())


def test_what_was_forked_off_is_another_host() -> None:
    parent = identity.of_this_host()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writing, identity.of_this_host().encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        child = pipe.read()
    os.waitpid(pid, 0)
    assert str(pid) in child.split("-")
    assert child != parent
    assert identity.is_gone(child)
