from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from tests.sandbox import jails

from hutch.errors import SandboxUnavailable
from hutch.sandbox import deno_binary
from hutch.sandbox.jail import cgroup
from hutch.sandbox.jail.cgroup import Cgroup, CgroupController
from hutch.sandbox.jail.jail import Jail, Launch
from hutch.sandbox.jail.libraries import LibraryCopies, make_copies
from hutch.sandbox.selftest import probe, selftest
from hutch.settings import Settings


def failed(checks: list[selftest.JailCheck]) -> list[str]:
    return [check.name for check in checks if not check.ok]


def test_real_jail_passes_every_check() -> None:
    assert failed(probe.probe_jail(jails.container())) == []


@pytest.mark.parametrize("number", [1, 2, 3, 5])
def test_host_pid_that_also_exists_in_the_jail_does_not_count_as_reached(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container, `hutch serve` is one of the first processes. So its process id is low, and a process in
    the jail has the same id.
    """
    monkeypatch.setattr("os.getpid", lambda: number)
    assert failed(probe.probe_jail(jails.container())) == []


def test_deno_without_a_container_enforces_its_permissions() -> None:
    assert failed(probe.probe_jail(jails.process())) == []


class WeakenedJail(Jail):
    """A jail with changed bubblewrap arguments: the arguments in `without` are removed, and the arguments in
    `added` are inserted before `--remount-ro`.
    """

    without: tuple[str, ...] = ()
    added: tuple[str, ...] = ()

    def bwrap_arguments(self, launch: Launch) -> list[str]:
        arguments = super().bwrap_arguments(launch)
        for start in range(len(arguments)):
            if self.without and tuple(arguments[start : start + len(self.without)]) == self.without:
                del arguments[start : start + len(self.without)]
                break
        at = arguments.index("--remount-ro") if "--remount-ro" in arguments else len(arguments)
        return [*arguments[:at], *self.added, *arguments[at:]]


@pytest.mark.parametrize(
    ("without", "added", "found"),
    [
        ((), ("--ro-bind", "/etc", "/etc"), "files"),
        ((), ("--ro-bind", "/proc", "/proc"), "files"),
        ((), ("--ro-bind", "/usr/bin", "/usr/bin"), "files"),
        ((), ("--setenv", "TOKEN", "x"), "environment"),
        (("--remount-ro", "/"), (), "writes"),
        ((), ("--tmpfs", "/tmp"), "size of /tmp"),
        (("--unshare-pid",), (), "processes"),
        (("--unshare-net",), (), "network"),
        ((), ("--cap-add", "ALL"), "privileges"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else value,
)
def test_weakened_jail_fails(without: tuple[str, ...], added: tuple[str, ...], found: str) -> None:
    strong = jails.container()
    weak = WeakenedJail("container", deno_binary.find_deno(), bwrap=strong.bwrap)
    weak.without, weak.added = without, added
    checks = probe.probe_jail(weak)
    assert found in failed(checks), checks
    assert not self_test_result(weak, checks).is_proven


def self_test_result(jail: Jail, checks: list[selftest.JailCheck]) -> selftest.SelfTestResult:
    return selftest.SelfTestResult(jail.isolation, False, None, checks, "0", "0")


def test_jail_without_a_filter_is_accepted_and_reported() -> None:
    jail = jails.container(use_seccomp=False)
    checks = probe.probe_jail(jail)
    assert failed(checks) == ["programs", "seccomp"]
    assert self_test_result(jail, checks).is_proven


def test_jail_that_allows_processes_fails() -> None:
    class ForkingJail(Jail):
        def command(self, launch: Launch, **options: object) -> object:
            return super().command(Launch(launch.argv, tmp_bytes=launch.tmp_bytes, forks=True), **options)

    jail = ForkingJail("container", deno_binary.find_deno(), bwrap=jails.container().bwrap)
    assert failed(probe.probe_jail(jail)) == ["programs"]


def test_deno_that_does_not_enforce_its_permissions_is_rejected(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    permissive = tmp_path / "deno"
    deno = deno_binary.find_deno()
    permissive.write_text(
        f'#!/bin/sh\nif [ "$1" = run ]; then shift; set -- run -A "$@"; fi\nexec {deno} "$@"\n'
    )
    permissive.chmod(0o755)
    monkeypatch.setenv("HUTCH_DENO", str(permissive))
    with pytest.raises(SandboxUnavailable, match="'process' is not proven on this machine: files"):
        selftest.choose_jail(Settings(home=str(tmp_path), isolation="process"))


class UnlimitedController(CgroupController):
    """Creates groups without effective limits."""

    def create(self, memory_bytes: int, tasks: int) -> Cgroup:
        return super().create(1 << 40, 1000)


def test_groups_that_do_not_limit_are_not_used(tmp_path: Path) -> None:
    real = cgroup.find_controller()
    if real is None:
        pytest.skip("no control groups that this user may make")
    jail, result = selftest.check_isolation(
        "container", deno_binary.find_deno(), UnlimitedController(real.version, real._memory, real._tasks)
    )
    assert jail is not None
    assert jail.controller is None
    assert result.cgroup is None
    assert failed(result.checks) == ["memory", "tasks"]
    assert result.is_proven


def test_strongest_isolation_is_chosen(tmp_path: Path) -> None:
    jail, result = selftest.choose_jail(Settings(home=str(tmp_path)))
    assert (jail.isolation, result.isolation, result.seccomp) == ("container", "container", True)
    assert result.deno == deno_binary.deno_version(deno_binary.find_deno())
    assert jails.evaluate(jail, "1 + 1") == "2"


def test_process_isolation_is_used_on_request_or_without_bubblewrap(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    jail, result = selftest.choose_jail(Settings(home=str(tmp_path), isolation="process"))
    assert (jail.isolation, result.isolation, result.seccomp) == ("process", "process", False)
    monkeypatch.setenv("HUTCH_BWRAP", "/nowhere/bwrap")
    assert selftest.choose_jail(Settings(home=str(tmp_path)))[0].isolation == "process"


def test_required_container_that_is_unavailable_names_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HUTCH_BWRAP", "/nowhere/bwrap")
    with pytest.raises(SandboxUnavailable, match="bubblewrap") as caught:
        selftest.choose_jail(Settings(home=str(tmp_path), isolation="container"))
    assert "apt-get install bubblewrap" in str(caught.value)


def test_result_is_cached_for_the_same_machine_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings = Settings(home=str(tmp_path / "home"))
    first = selftest.choose_jail(settings)[1]
    cache_file = tmp_path / "home" / "cache" / "selftest.json"
    assert cache_file.stat().st_mode & 0o777 == 0o600

    tests = []
    real = probe.probe_jail
    monkeypatch.setattr(probe, "probe_jail", lambda jail: (tests.append(jail), real(jail))[1])
    jail, again = selftest.choose_jail(settings)
    assert (again, tests) == (first, [])
    assert jails.evaluate(jail, "1 + 1") == "2"

    cache_file.chmod(0o666)
    selftest.choose_jail(settings)
    assert len(tests) == 1, "what others may write was believed"
    cache_file.write_text("{")
    selftest.choose_jail(settings)
    assert len(tests) == 2, "a spoilt file was believed"

    bwrap = shutil.copy(str(jail.bwrap.path), tmp_path / "bwrap") if jail.bwrap else ""
    monkeypatch.setenv("HUTCH_BWRAP", str(bwrap))
    selftest.choose_jail(settings)
    assert len(tests) == 3, "another bubblewrap was believed"


def test_results_of_both_isolations_are_cached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    choices = [Settings(home=str(tmp_path), isolation=isolation) for isolation in ("container", "process")]
    made = [selftest.choose_jail(settings)[1] for settings in choices]
    monkeypatch.setattr(probe, "probe_jail", lambda jail: pytest.fail("tested again"))
    assert [selftest.choose_jail(settings)[1] for settings in choices] == made


def test_unwritable_home_is_not_an_error() -> None:
    assert selftest.choose_jail(Settings(home="/proc/nowhere"))[1].is_proven


def copies_of(jail: Jail) -> LibraryCopies:
    assert jail.library_copies is not None
    return jail.library_copies


@pytest.mark.parametrize("damage", ["all", "the loader", "a part"])
def test_jail_mounts_library_copies_and_falls_back_once_they_are_damaged(tmp_path: Path, damage: str) -> None:
    settings = Settings(home=str(tmp_path))
    jail, _ = selftest.choose_jail(settings)
    assert Path(copies_of(jail).folder).parent == tmp_path / "cache"
    assert not {*jail.libraries} & {*jail.filesystem_arguments(Launch((jail.deno,)))}
    assert jails.evaluate(jail, "1 + 1") == "2"
    if damage == "all":
        shutil.rmtree(copies_of(jail).folder)
    elif damage == "the loader":
        Path(copies_of(jail).folder + jail.libraries[0]).unlink()
    else:
        os.truncate(copies_of(jail).folder + jail.libraries[-1], 100)
    assert jails.evaluate(jail, "1 + 1") == "2"
    again, _ = selftest.choose_jail(settings)
    assert copies_of(again).folder == copies_of(jail).folder
    assert {*again.filesystem_arguments(Launch((jail.deno,)))} & {*again.libraries} == set()


def test_unusable_copies_are_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for number, spoil in enumerate((_not_executable, _with_a_stray_file)):
        monkeypatch.setattr(selftest, "make_copies", lambda *given, spoil=spoil: spoil(make_copies(*given)))
        jail, result = selftest.choose_jail(Settings(home=str(tmp_path / str(number))))
        assert (result.isolation, jail.library_copies, result.seccomp) == ("container", None, True)
        assert jails.evaluate(jail, "1 + 1") == "2"


def _not_executable(made: LibraryCopies) -> LibraryCopies:
    """Simulates a home that is mounted noexec: the dynamic loader exists but cannot be executed."""
    for _, names, files in os.walk(made.folder):
        assert names or files
    for path in Path(made.folder).rglob("*.so*"):
        path.chmod(0o600)
    return made


def _with_a_stray_file(made: LibraryCopies) -> LibraryCopies:
    next(Path(made.folder).rglob("*.so*")).with_name(".nfs0001").touch()
    return made


@pytest.mark.parametrize("name", ["nested/deep", os.fsdecode(b"not-utf-8-\xff")])
def test_odd_homes_get_copies_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    settings = Settings(home=name)
    first, _ = selftest.choose_jail(settings)
    assert jails.evaluate(first, "1 + 1") == "2"
    monkeypatch.setattr(probe, "probe_jail", lambda jail: pytest.fail("tested again"))
    again, _ = selftest.choose_jail(settings)
    assert copies_of(again).folder == copies_of(first).folder
    assert jails.evaluate(again, "1 + 1") == "2"


def test_ignore_cache_tests_the_jail_in_use_and_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    jail, _ = selftest.check_isolation(
        "container", deno_binary.find_deno(), None, cache=cache, ignore_cache=True
    )
    assert jail is not None
    assert jail.library_copies is None
    assert not cache.exists()
    selftest.check_isolation("container", deno_binary.find_deno(), None, cache=cache)
    before = {path.name: path.stat().st_mtime_ns for path in cache.iterdir()}
    tests: list[Jail] = []
    real = probe.probe_jail
    monkeypatch.setattr(probe, "probe_jail", lambda jail: (tests.append(jail), real(jail))[1])
    selftest.check_isolation("container", deno_binary.find_deno(), None, cache=cache, ignore_cache=True)
    assert [jail.library_copies is not None for jail in tests] == [True]
    assert {path.name: path.stat().st_mtime_ns for path in cache.iterdir()} == before
