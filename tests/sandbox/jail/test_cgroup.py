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

from hutch.sandbox.jail import cgroup
from hutch.sandbox.jail.cgroup import CgroupController

MIB = 1 << 20
ALLOCATE = "const buffers = []; for (let i = 0; i < 400; i++) buffers.push(new Uint8Array(1 << 20).fill(1));"


@pytest.fixture
def controller() -> Iterator[CgroupController]:
    found = cgroup.find_controller()
    if found is None:
        pytest.skip("no control groups that this user may make")
    yield found
    found.close()


def group_names(controller: CgroupController) -> list[str]:
    return [path.name for base in {controller._memory, controller._tasks} for path in base.iterdir()]


def test_every_process_of_the_jail_is_in_the_group(controller: CgroupController) -> None:
    group = controller.create(256 * MIB, 64)
    with jails.guest(jails.container(), group=group) as child:
        jails.start_waiting(child)
        assert sorted(group.processes()) == sorted(jails.descendants(child.pid))
        assert group.memory_used() > 0
    group.kill()
    group.remove()


@pytest.mark.parametrize("isolation", ["container", "process"])
def test_guest_over_its_memory_limit_is_killed_and_counted(
    controller: CgroupController, isolation: str
) -> None:
    jail = jails.container() if isolation == "container" else jails.process()
    group = controller.create(128 * MIB, 64)
    assert jails.run(jail, ALLOCATE, group=group).returncode != 0
    assert group.oom_kills() > 0
    group.remove()


def test_guest_within_its_limit_is_not_killed(controller: CgroupController) -> None:
    group = controller.create(700 * MIB, 64)
    assert jails.run(jails.container(), ALLOCATE, group=group).returncode == 0
    assert group.oom_kills() == 0
    group.remove()


def test_memory_limit_can_be_raised_and_lowered(controller: CgroupController) -> None:
    group = controller.create(128 * MIB, 64)
    for limit in (512 * MIB, 64 * MIB, 700 * MIB):
        group.set_memory(limit)
    assert jails.run(jails.container(), ALLOCATE, group=group).returncode == 0
    group.set_memory(128 * MIB)
    assert jails.run(jails.container(), ALLOCATE, group=group).returncode != 0
    group.remove()


def test_tasks_over_the_limit_are_refused(controller: CgroupController) -> None:
    group = controller.create(256 * MIB, 3)
    assert jails.run(jails.container(), "", group=group).returncode != 0
    assert group.refused_tasks() > 0
    group.remove()


def test_jail_whose_group_was_removed_does_not_start(controller: CgroupController) -> None:
    group = controller.create(256 * MIB, 64)
    assert group.remove()
    result = jails.run(jails.container(), "console.log('unbounded')", group=group)
    assert (result.returncode, result.stdout) == (97, "")


def test_kill_ends_all_and_dying_groups_are_removed_later(controller: CgroupController) -> None:
    group = controller.create(256 * MIB, 64)
    with jails.guest(jails.container(), group=group) as child:
        jails.start_waiting(child)
        assert not group.remove()
        group.kill()
        child.wait(jails.TIMEOUT_SECONDS)
    controller.close()
    assert not any(Path(directory).exists() for directory in group._directories())


# Program of a host, which starts a process in a control group but not in a jail. The test kills the host.
HOST = """
import subprocess, sys
from hutch.sandbox.jail import cgroup
group = cgroup.find_controller().create(64 << 20, 8)
enter = 'for file in "$@"; do echo 0 >"$file"; done; echo $$; exec sleep 1000'
subprocess.Popen(["/bin/sh", "-c", enter, "sh", *group.entry_files()], start_new_session=True)
sys.stdin.read()
"""


def test_groups_of_a_killed_host_are_swept_and_live_ones_are_not(controller: CgroupController) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", HOST]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) as host:
        assert host.stdout is not None
        left = os.pidfd_open(int(host.stdout.readline()))
        mark = f"-{host.pid}-"
        controller.sweep()
        assert [name for name in group_names(controller) if mark in name], "swept while its host lives"
        host.send_signal(signal.SIGKILL)
        host.wait()
        ours = controller.create(64 * MIB, 8)
        assert controller.sweep() >= 1
        assert select.select([left], [], [], jails.TIMEOUT_SECONDS)[0]
    os.close(left)
    controller.close()
    assert not [name for name in group_names(controller) if mark in name]
    assert Path(ours.entry_files()[0]).exists(), "swept while we live"
    assert ours.remove()


def fake_proc(folder: Path, kind: str, *, mount: Path, root: str = "/", membership: str) -> Path:
    """Writes the files of a fake /proc/self with one hierarchy of control groups."""
    options = "rw" if kind == "cgroup2" else "rw,memory,pids"
    (folder / "mountinfo").write_text(f"30 1 0:26 {root} {mount} rw - {kind} {kind} {options}\n")
    (folder / "cgroup").write_text(membership)
    return folder


def test_hierarchy_without_limits_is_not_used(tmp_path: Path) -> None:
    mount = tmp_path / "mount"
    mount.mkdir()
    for kind, membership in (("cgroup", "4:memory,pids:/\n"), ("cgroup2", "0::/\n")):
        assert cgroup.find_controller(fake_proc(tmp_path, kind, mount=mount, membership=membership)) is None
    assert list(mount.iterdir()) == []


def test_missing_hierarchy_is_not_an_error(tmp_path: Path) -> None:
    assert cgroup.find_controller(tmp_path / "absent") is None


class FakeCgroup2:
    """Simulates control groups of version 2 on a machine that has version 1: simulates which files exist, and
    which writes are allowed.
    """

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


def test_version_2_moves_the_host_to_a_leaf_and_limits_its_groups(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mount = tmp_path / "mount"
    FakeCgroup2(monkeypatch, mount)
    (mount / "cgroup.procs").write_text(f"1\n{os.getpid()}")
    proc = fake_proc(tmp_path, "cgroup2", mount=mount, membership="0::/\n")
    found = cgroup.find_controller(proc)
    assert found is not None
    assert found.version == "v2"
    assert (mount / "hutch.host" / "cgroup.procs").read_text().split() == ["1", str(os.getpid())]

    group = found.create(64 * MIB, 9)
    directory = Path(group.entry_files()[0]).parent
    values = {name: (directory / name).read_text() for name in FakeCgroup2.FILES[:4]}
    assert values == {
        "memory.max": str(64 * MIB),
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "pids.max": "9",
    }
    (directory / "memory.events").write_text("oom 4\noom_kill 3\n")
    assert group.oom_kills() == 3

    again = cgroup.find_controller(fake_proc(tmp_path, "cgroup2", mount=mount, membership="0::/hutch.host\n"))
    assert again is not None
    assert again._memory == mount


def test_version_2_keeps_out_of_groups_that_systemd_has_not_delegated(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mount = tmp_path / "mount"
    fake = FakeCgroup2(monkeypatch, mount)
    service = mount / "some.service"
    fake.mkdir(str(service))
    (service / "cgroup.procs").write_text(str(os.getpid()))
    proc = fake_proc(tmp_path, "cgroup2", mount=mount, membership="0::/some.service\n")
    assert cgroup.find_controller(proc) is None
    monkeypatch.setattr(cgroup.os, "getxattr", lambda path, name: b"1")
    assert cgroup.find_controller(proc) is not None


def test_version_2_keeps_out_of_groups_with_other_processes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mount = tmp_path / "mount"
    fake = FakeCgroup2(monkeypatch, mount)
    fake.mkdir(str(mount / "shared"))
    (mount / "shared" / "cgroup.procs").write_text(f"1\n{os.getpid()}")
    assert (
        cgroup.find_controller(fake_proc(tmp_path, "cgroup2", mount=mount, membership="0::/shared\n")) is None
    )


def test_container_finds_its_own_part_of_the_hierarchy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mount = tmp_path / "mount"
    FakeCgroup2(monkeypatch, mount)
    proc = fake_proc(tmp_path, "cgroup2", mount=mount, root="/docker/1", membership="0::/docker/1\n")
    found = cgroup.find_controller(proc)
    assert found is not None
    assert found._memory == mount
