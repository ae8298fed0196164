from __future__ import annotations

import json
from pathlib import Path

import pytest

from hutch.sandbox.deno_binary import BUNDLE_FILES
from hutch.sandbox.jail import jail
from hutch.sandbox.selftest import doctor
from hutch.sandbox.selftest.doctor import DoctorFinding, DoctorReport
from hutch.settings import Settings


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = tmp_path / "dist"
    folder.mkdir()
    for name in BUNDLE_FILES:
        (folder / name).touch()
    return folder


def finding(report: DoctorReport, name: str) -> DoctorFinding:
    return next(finding for finding in report.findings if finding.name == name)


def test_complete_machine_is_healthy(tmp_path: Path, bundle: Path) -> None:
    report = doctor.examine_machine(Settings(home=str(tmp_path)), folder=bundle)
    assert report.healthy
    assert report.isolation == "container"
    for name in (
        "python",
        "deno",
        "bubblewrap",
        "container: files",
        "container: seccomp",
        "home",
        "guest bundle",
    ):
        assert finding(report, name).state == "ok"


def test_missing_bubblewrap_is_weak_or_missing_depending_on_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bundle: Path
) -> None:
    monkeypatch.setenv("HUTCH_BWRAP", "/nowhere/bwrap")
    report = doctor.examine_machine(Settings(home=str(tmp_path)), folder=bundle)
    assert (report.isolation, report.healthy) == ("process", True)
    assert finding(report, "bubblewrap").state == "weak"
    assert "apt-get install bubblewrap" in finding(report, "bubblewrap").todo

    strict = doctor.examine_machine(Settings(home=str(tmp_path), isolation="container"), folder=bundle)
    assert (strict.isolation, strict.healthy) == (None, False)
    assert finding(strict, "bubblewrap").state == "missing"


def test_forbidden_namespaces_are_explained(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bundle: Path
) -> None:
    bwrap = tmp_path / "bwrap"
    bwrap.write_text(
        "#!/bin/sh\n"
        '[ "$1" = --version ] && echo "bubblewrap 0.9.0" && exit\n'
        'echo "bwrap: setting up uid map: Permission denied" >&2; exit 1\n'
    )
    bwrap.chmod(0o755)
    monkeypatch.setenv("HUTCH_BWRAP", str(bwrap))
    switch = tmp_path / "apparmor_restrict_unprivileged_userns"
    switch.write_text("1\n")
    _, value, found, todo = jail.OBSTACLES[-1]
    monkeypatch.setattr(jail, "OBSTACLES", ((str(switch), value, found, todo),))

    row = finding(doctor.examine_machine(Settings(home=str(tmp_path)), folder=bundle), "container: starts")
    assert "setting up uid map: Permission denied" in row.found
    assert "bwrap-userns-restrict" in row.todo


def test_missing_deno_leaves_no_isolation(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bundle: Path
) -> None:
    monkeypatch.setenv("HUTCH_DENO", "/nowhere/deno")
    report = doctor.examine_machine(Settings(home=str(tmp_path)), folder=bundle)
    assert (report.isolation, report.healthy) == (None, False)
    assert finding(report, "deno").state == "missing"
    assert "pip install deno" in finding(report, "deno").todo


def test_incomplete_bundle_and_unwritable_home_are_named(tmp_path: Path, bundle: Path) -> None:
    (bundle / "quickjs.wasm").unlink()
    report = doctor.examine_machine(Settings(home="/proc/nowhere"), folder=bundle)
    assert not report.healthy
    assert "quickjs.wasm" in finding(report, "guest bundle").found
    assert "HUTCH_HOME" in finding(report, "home").todo


def test_missing_control_groups_are_weak(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bundle: Path
) -> None:
    monkeypatch.setattr(doctor.cgroup, "find_controller", lambda: None)
    report = doctor.examine_machine(Settings(home=str(tmp_path)), folder=bundle)
    assert finding(report, "cgroup").state == "weak"
    assert "Delegate=yes" in finding(report, "cgroup").todo
    assert report.healthy


def test_text_and_json_have_the_same_content(tmp_path: Path, bundle: Path) -> None:
    report = doctor.examine_machine(Settings(home=str(tmp_path), isolation="process"), folder=bundle)
    report_json = json.loads(report.json())
    assert report_json["isolation"] == "process"
    assert report_json["healthy"] is report.healthy
    lines = report.lines()
    assert lines[-1] == "Isolation: process."
    for row in report_json["findings"]:
        assert any(
            line.startswith(row["state"]) and row["name"] in line and row["found"] in line for line in lines
        )
