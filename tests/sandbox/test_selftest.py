from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from tests.sandbox import jails

from hutch.errors import SandboxUnavailable
from hutch.sandbox import cgroup, copies, probe, runtime, selftest
from hutch.sandbox.cgroup import Controller, Group
from hutch.sandbox.copies import Copies
from hutch.sandbox.jail import Jail, Launch
from hutch.settings import Settings


def failed(checks: list[selftest.Check]) -> list[str]:
    return [check.name for check in checks if not check.ok]


def test_the_real_jail_keeps_every_promise() -> None:
    assert failed(probe.examine(jails.container())) == []


@pytest.mark.parametrize("number", [1, 2, 3, 5])
def test_a_host_whose_number_is_taken_inside_too_is_not_taken_for_reached(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the first processes of a container are, `hutch serve` among them."""
    monkeypatch.setattr("os.getpid", lambda: number)
    assert failed(probe.examine(jails.container())) == []


def test_deno_without_a_container_keeps_its_permissions() -> None:
    assert failed(probe.examine(jails.process())) == []


class Weakened(Jail):
    """A jail whose arguments are changed: the first is taken away, and the second put before the last."""

    without: tuple[str, ...] = ()
    added: tuple[str, ...] = ()

    def arguments(self, launch: Launch) -> list[str]:
        given = super().arguments(launch)
        for start in range(len(given)):
            if self.without and tuple(given[start : start + len(self.without)]) == self.without:
                del given[start : start + len(self.without)]
                break
        at = given.index("--remount-ro") if "--remount-ro" in given else len(given)
        return [*given[:at], *self.added, *given[at:]]


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
def test_a_weakened_jail_fails(without: tuple[str, ...], added: tuple[str, ...], found: str) -> None:
    strong = jails.container()
    weak = Weakened("container", runtime.locate(), bwrap=strong.bwrap)
    weak.without, weak.added = without, added
    checks = probe.examine(weak)
    assert found in failed(checks), checks
    assert not judged(weak, checks).proven


def judged(jail: Jail, checks: list[selftest.Check]) -> selftest.Verdict:
    return selftest.Verdict(jail.isolation, False, None, checks, "0", "0")


def test_a_jail_without_a_filter_is_still_a_container_but_says_so() -> None:
    jail = jails.container(filtered=False)
    checks = probe.examine(jail)
    assert failed(checks) == ["programs", "seccomp"]
    assert judged(jail, checks).proven


def test_a_jail_that_lets_processes_be_made_fails() -> None:
    class Forking(Jail):
        def command(self, launch: Launch, **options: object) -> object:
            return super().command(Launch(launch.argv, tmp_bytes=launch.tmp_bytes, forks=True), **options)

    jail = Forking("container", runtime.locate(), bwrap=jails.container().bwrap)
    assert failed(probe.examine(jail)) == ["programs"]


def test_a_deno_that_does_not_keep_its_permissions_is_not_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    loose = tmp_path / "deno"
    loose.write_text(
        f'#!/bin/sh\nif [ "$1" = run ]; then shift; set -- run -A "$@"; fi\nexec {runtime.locate()} "$@"\n'
    )
    loose.chmod(0o755)
    monkeypatch.setenv("HUTCH_DENO", str(loose))
    with pytest.raises(SandboxUnavailable, match="'process' is not proven on this machine: files"):
        selftest.choose(Settings(home=str(tmp_path), isolation="process"))


class Unbounded(Controller):
    """Makes groups that bound nothing."""

    def create(self, memory_bytes: int, tasks: int) -> Group:
        return super().create(1 << 40, 1000)


def test_groups_that_do_not_bound_are_not_used(tmp_path: Path) -> None:
    real = cgroup.find()
    if real is None:
        pytest.skip("no control groups that this user may make")
    jail, verdict = selftest.prove(
        "container", runtime.locate(), Unbounded(real.version, real._memory, real._tasks)
    )
    assert jail is not None
    assert jail.controller is None
    assert verdict.cgroup is None
    assert failed(verdict.checks) == ["memory", "tasks"]
    assert verdict.proven


def test_the_strongest_isolation_is_chosen(tmp_path: Path) -> None:
    jail, verdict = selftest.choose(Settings(home=str(tmp_path)))
    assert (jail.isolation, verdict.isolation, verdict.seccomp) == ("container", "container", True)
    assert verdict.deno == runtime.version(runtime.locate())
    assert jails.evaluate(jail, "1 + 1") == "2"


def test_process_is_taken_on_request_or_when_there_is_no_bubblewrap(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    jail, verdict = selftest.choose(Settings(home=str(tmp_path), isolation="process"))
    assert (jail.isolation, verdict.isolation, verdict.seccomp) == ("process", "process", False)
    monkeypatch.setenv("HUTCH_BWRAP", "/nowhere/bwrap")
    assert selftest.choose(Settings(home=str(tmp_path)))[0].isolation == "process"


def test_a_container_that_is_demanded_and_cannot_be_had_names_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HUTCH_BWRAP", "/nowhere/bwrap")
    with pytest.raises(SandboxUnavailable, match="bubblewrap") as caught:
        selftest.choose(Settings(home=str(tmp_path), isolation="container"))
    assert "apt-get install bubblewrap" in str(caught.value)


def test_a_verdict_is_kept_for_the_same_machine_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings = Settings(home=str(tmp_path / "home"))
    first = selftest.choose(settings)[1]
    kept = tmp_path / "home" / "cache" / "selftest.json"
    assert kept.stat().st_mode & 0o777 == 0o600

    tests = []
    real = probe.examine
    monkeypatch.setattr(probe, "examine", lambda jail: (tests.append(jail), real(jail))[1])
    jail, again = selftest.choose(settings)
    assert (again, tests) == (first, [])
    assert jails.evaluate(jail, "1 + 1") == "2"

    kept.chmod(0o666)
    selftest.choose(settings)
    assert len(tests) == 1, "what others may write was believed"
    kept.write_text("{")
    selftest.choose(settings)
    assert len(tests) == 2, "a spoilt file was believed"

    bwrap = shutil.copy(str(jail.bwrap.path), tmp_path / "bwrap") if jail.bwrap else ""
    monkeypatch.setenv("HUTCH_BWRAP", str(bwrap))
    selftest.choose(settings)
    assert len(tests) == 3, "another bubblewrap was believed"


def test_both_isolations_are_kept_side_by_side(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    choices = [Settings(home=str(tmp_path), isolation=isolation) for isolation in ("container", "process")]
    made = [selftest.choose(settings)[1] for settings in choices]
    monkeypatch.setattr(probe, "examine", lambda jail: pytest.fail("tested again"))
    assert [selftest.choose(settings)[1] for settings in choices] == made


def test_a_home_that_cannot_be_written_is_no_hindrance() -> None:
    assert selftest.choose(Settings(home="/proc/nowhere"))[1].proven


def copied(jail: Jail) -> Copies:
    assert jail.copies is not None
    return jail.copies


@pytest.mark.parametrize("damage", ["all", "the loader", "a part"])
def test_a_jail_shows_copies_of_the_libraries_and_does_without_once_they_are_damaged(
    tmp_path: Path, damage: str
) -> None:
    settings = Settings(home=str(tmp_path))
    jail, _ = selftest.choose(settings)
    assert Path(copied(jail).folder).parent == tmp_path / "cache"
    assert not {*jail.libraries} & {*jail.tree(Launch((jail.deno,)))}
    assert jails.evaluate(jail, "1 + 1") == "2"
    if damage == "all":
        shutil.rmtree(copied(jail).folder)
    elif damage == "the loader":
        Path(copied(jail).folder + jail.libraries[0]).unlink()
    else:
        os.truncate(copied(jail).folder + jail.libraries[-1], 100)
    assert jails.evaluate(jail, "1 + 1") == "2"
    again, _ = selftest.choose(settings)
    assert copied(again).folder == copied(jail).folder
    assert {*again.tree(Launch((jail.deno,)))} & {*again.libraries} == set()


def test_whatever_is_wrong_with_the_copies_costs_these_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    make = copies.make
    for number, spoil in enumerate((_not_executable, _with_a_stray_file)):
        monkeypatch.setattr(copies, "make", lambda *given, spoil=spoil: spoil(make(*given)))
        jail, verdict = selftest.choose(Settings(home=str(tmp_path / str(number))))
        assert (verdict.isolation, jail.copies, verdict.seccomp) == ("container", None, True)
        assert jails.evaluate(jail, "1 + 1") == "2"


def _not_executable(made: Copies) -> Copies:
    """As where the home is mounted noexec: the loader is there and cannot be run."""
    for _, names, files in os.walk(made.folder):
        assert names or files
    for path in Path(made.folder).rglob("*.so*"):
        path.chmod(0o600)
    return made


def _with_a_stray_file(made: Copies) -> Copies:
    next(Path(made.folder).rglob("*.so*")).with_name(".nfs0001").touch()
    return made


@pytest.mark.parametrize("name", ["nested/deep", os.fsdecode(b"not-utf-8-\xff")])
def test_odd_homes_have_copies_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    settings = Settings(home=name)
    first, _ = selftest.choose(settings)
    assert jails.evaluate(first, "1 + 1") == "2"
    monkeypatch.setattr(probe, "examine", lambda jail: pytest.fail("tested again"))
    again, _ = selftest.choose(settings)
    assert copied(again).folder == copied(first).folder
    assert jails.evaluate(again, "1 + 1") == "2"


def test_a_test_that_is_made_again_changes_nothing_and_is_of_the_jail_that_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    jail, _ = selftest.prove("container", runtime.locate(), None, cache=cache, again=True)
    assert jail is not None
    assert jail.copies is None
    assert not cache.exists()
    selftest.prove("container", runtime.locate(), None, cache=cache)
    before = {path.name: path.stat().st_mtime_ns for path in cache.iterdir()}
    tests: list[Jail] = []
    real = probe.examine
    monkeypatch.setattr(probe, "examine", lambda jail: (tests.append(jail), real(jail))[1])
    selftest.prove("container", runtime.locate(), None, cache=cache, again=True)
    assert [each.copies is not None for each in tests] == [True]
    assert {path.name: path.stat().st_mtime_ns for path in cache.iterdir()} == before
