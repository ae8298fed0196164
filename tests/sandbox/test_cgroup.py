from __future__ import annotations

import errno
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.sandbox import jails

from hutch.sandbox import cgroup
from hutch.sandbox.cgroup import Controller

MIB = 1 << 20
HUNGRY = "const kept = []; for (let i = 0; i < 400; i++) kept.push(new Uint8Array(1 << 20).fill(1));"


@pytest.fixture
def controller() -> Iterator[Controller]:
    found = cgroup.find()
    if found is None:
        pytest.skip("no control groups that this user may make")
    yield found
    found.close()


def bases(controller: Controller) -> list[str]:
    return [path.name for base in {controller._memory, controller._tasks} for path in base.iterdir()]


def test_every_process_of_the_jail_is_in_the_group(controller: Controller) -> None:
    group = controller.create(256 * MIB, 64)
    with jails.guest(jails.container(), group=group) as child:
        jails.start_waiting(child)
        assert sorted(group.processes()) == sorted(jails.descendants(child.pid))
        assert group.memory_used() > 0
    group.kill()
    group.remove()


@pytest.mark.parametrize("isolation", ["container", "process"])
def test_a_guest_that_takes_more_memory_is_killed_and_it_is_known_why(
    controller: Controller, isolation: str
) -> None:
    jail = jails.container() if isolation == "container" else jails.process()
    group = controller.create(128 * MIB, 64)
    assert jails.run(jail, HUNGRY, group=group).returncode != 0
    assert group.oom_kills() > 0
    group.remove()


def test_a_guest_within_its_bound_is_left_alone(controller: Controller) -> None:
    group = controller.create(700 * MIB, 64)
    assert jails.run(jails.container(), HUNGRY, group=group).returncode == 0
    assert group.oom_kills() == 0
    group.remove()


def test_the_bound_on_memory_can_be_raised_and_lowered(controller: Controller) -> None:
    group = controller.create(128 * MIB, 64)
    for limit in (512 * MIB, 64 * MIB, 700 * MIB):
        group.set_memory(limit)
    assert jails.run(jails.container(), HUNGRY, group=group).returncode == 0
    group.set_memory(128 * MIB)
    assert jails.run(jails.container(), HUNGRY, group=group).returncode != 0
    group.remove()


def test_a_guest_that_starts_more_tasks_is_refused_them(controller: Controller) -> None:
    group = controller.create(256 * MIB, 3)
    assert jails.run(jails.container(), "", group=group).returncode != 0
    assert group.refused_tasks() > 0
    group.remove()


def test_a_jail_whose_group_is_gone_does_not_start(controller: Controller) -> None:
    group = controller.create(256 * MIB, 64)
    assert group.remove()
    told = jails.run(jails.container(), "console.log('unbounded')", group=group)
    assert (told.returncode, told.stdout) == (97, "")


def test_kill_ends_all_and_what_is_still_dying_is_removed_later(controller: Controller) -> None:
    group = controller.create(256 * MIB, 64)
    with jails.guest(jails.container(), group=group) as child:
        jails.start_waiting(child)
        assert not group.remove()
        group.kill()
        child.wait(jails.SECONDS)
    controller.close()
    assert not any(Path(directory).exists() for directory in group._directories())


# A host that is killed while a process of its own, not a jail, is in its group.
HOST = """
import subprocess, sys
from hutch.sandbox import cgroup
group = cgroup.find().create(64 << 20, 8)
enter = 'for file in "$@"; do echo 0 >"$file"; done; echo $$; exec sleep 1000'
subprocess.Popen(["/bin/sh", "-c", enter, "sh", *group.entry()], start_new_session=True)
sys.stdin.read()
"""


def test_what_a_killed_host_left_is_swept_and_what_lives_is_not(controller: Controller) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", HOST]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) as host:
        assert host.stdout is not None
        left = os.pidfd_open(int(host.stdout.readline()))
        mark = f"-{host.pid}-"
        controller.sweep()
        assert [name for name in bases(controller) if mark in name], "swept while its host lives"
        host.send_signal(signal.SIGKILL)
        host.wait()
        ours = controller.create(64 * MIB, 8)
        assert controller.sweep() >= 1
        assert select.select([left], [], [], jails.SECONDS)[0]
    os.close(left)
    controller.close()
    assert not [name for name in bases(controller) if mark in name]
    assert Path(ours.entry()[0]).exists(), "swept while we live"
    assert ours.remove()


def described(folder: Path, kind: str, *, mount: Path, root: str = "/", membership: str) -> Path:
    """A /proc/self of which one hierarchy is told."""
    options = "rw" if kind == "cgroup2" else "rw,memory,pids"
    (folder / "mountinfo").write_text(f"30 1 0:26 {root} {mount} rw - {kind} {kind} {options}\n")
    (folder / "cgroup").write_text(membership)
    return folder


def test_a_hierarchy_in_which_nothing_can_be_bounded_is_not_taken(tmp_path: Path) -> None:
    mount = tmp_path / "mount"
    mount.mkdir()
    for kind, membership in (("cgroup", "4:memory,pids:/\n"), ("cgroup2", "0::/\n")):
        assert cgroup.find(described(tmp_path, kind, mount=mount, membership=membership)) is None
    assert list(mount.iterdir()) == []


def test_no_hierarchy_at_all_is_not_an_error(tmp_path: Path) -> None:
    assert cgroup.find(tmp_path / "absent") is None


class Kernel:
    """Version 2's rules, for machines that have version 1: what there is, and what may be written."""

    FILES = ("memory.max", "memory.swap.max", "memory.oom.group", "pids.max", "memory.events", "pids.events")

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        self._mkdir, self._write = os.mkdir, cgroup._write
        monkeypatch.setattr(cgroup.os, "mkdir", self.mkdir)
        monkeypatch.setattr(cgroup, "_write", self.write)
        monkeypatch.setattr(cgroup, "_remove", lambda path: shutil.rmtree(path) is None)
        self.mkdir(str(root))

    def mkdir(self, path: str, mode: int = 0o777) -> None:
        self._mkdir(path, mode)
        controllers = ("cgroup.controllers", "memory pids")
        for name, text in (controllers, *((name, "") for name in ("cgroup.procs", "cgroup.subtree_control"))):
            (Path(path) / name).write_text(text)
        for name in self.FILES:
            (Path(path) / name).touch()

    def write(self, path: str, value: int | str) -> None:
        file = Path(path)
        if file.name == "cgroup.procs":
            for procs in (file.parent / "cgroup.procs", file.parent.parent / "cgroup.procs"):
                pids = [pid for pid in procs.read_text().split() if pid != value]
                procs.write_text("\n".join(pids + [str(value)] * (procs == file)))
        elif file.name == "cgroup.subtree_control":
            if (file.parent / "cgroup.procs").read_text():
                raise OSError(errno.EBUSY, "a group with processes")
            file.write_text("memory pids")
        else:
            self._write(path, value)


def test_version_2_gives_the_host_a_leaf_and_bounds_its_groups(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mount = tmp_path / "mount"
    Kernel(monkeypatch, mount)
    (mount / "cgroup.procs").write_text(f"1\n{os.getpid()}")
    proc = described(tmp_path, "cgroup2", mount=mount, membership="0::/\n")
    found = cgroup.find(proc)
    assert found is not None
    assert found.version == "v2"
    assert (mount / "hutch.host" / "cgroup.procs").read_text().split() == ["1", str(os.getpid())]

    group = found.create(64 * MIB, 9)
    directory = Path(group.entry()[0]).parent
    values = {name: (directory / name).read_text() for name in Kernel.FILES[:4]}
    assert values == {
        "memory.max": str(64 * MIB),
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "pids.max": "9",
    }
    (directory / "memory.events").write_text("oom 4\noom_kill 3\n")
    assert group.oom_kills() == 3

    again = cgroup.find(described(tmp_path, "cgroup2", mount=mount, membership="0::/hutch.host\n"))
    assert again is not None
    assert again._memory == mount


def test_version_2_leaves_alone_what_systemd_has_not_delegated(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mount = tmp_path / "mount"
    kernel = Kernel(monkeypatch, mount)
    service = mount / "some.service"
    kernel.mkdir(str(service))
    (service / "cgroup.procs").write_text(str(os.getpid()))
    proc = described(tmp_path, "cgroup2", mount=mount, membership="0::/some.service\n")
    assert cgroup.find(proc) is None
    monkeypatch.setattr(cgroup.os, "getxattr", lambda path, name: b"1")
    assert cgroup.find(proc) is not None


def test_version_2_leaves_alone_a_group_with_the_processes_of_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mount = tmp_path / "mount"
    kernel = Kernel(monkeypatch, mount)
    kernel.mkdir(str(mount / "shared"))
    (mount / "shared" / "cgroup.procs").write_text(f"1\n{os.getpid()}")
    assert cgroup.find(described(tmp_path, "cgroup2", mount=mount, membership="0::/shared\n")) is None


def test_a_container_finds_its_own_part_of_the_hierarchy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mount = tmp_path / "mount"
    Kernel(monkeypatch, mount)
    proc = described(tmp_path, "cgroup2", mount=mount, root="/docker/1", membership="0::/docker/1\n")
    found = cgroup.find(proc)
    assert found is not None
    assert found._memory == mount
