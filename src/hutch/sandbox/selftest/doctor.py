"""Checks whether this machine can run guests, and reports what is missing and how to fix it."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Literal

import msgspec

from hutch.errors import SandboxUnavailable
from hutch.sandbox.deno_binary import (
    BUNDLE_FOLDER,
    BUNDLE_REMEDY,
    deno_version,
    find_deno,
    missing_bundle_files,
)
from hutch.sandbox.jail import cgroup, jail, seccomp
from hutch.sandbox.selftest import selftest
from hutch.sandbox.selftest.result import SelfTestResult
from hutch.settings import Settings

State = Literal["ok", "weak", "missing"]
_CGROUP_REMEDY = (
    "Memory is limited by sampling, less exactly. Run Hutch as root, or delegate control groups to it: "
    "`Delegate=yes` in its systemd unit, or `systemd-run --user --scope -p Delegate=yes hutch serve`."
)


class DoctorFinding(msgspec.Struct, frozen=True):
    name: str
    state: State
    found: str
    todo: str = ""


class DoctorReport(msgspec.Struct, frozen=True):
    isolation: Literal["container", "process"] | None
    findings: list[DoctorFinding]

    @property
    def healthy(self) -> bool:
        return self.isolation is not None and all(finding.state != "missing" for finding in self.findings)

    def json(self) -> str:
        return msgspec.json.encode({"healthy": self.healthy, **msgspec.to_builtins(self)}).decode()

    def lines(self) -> list[str]:
        width = max(len(finding.name) for finding in self.findings)
        lines = []
        for finding in self.findings:
            lines.append(f"{finding.state:<8}{finding.name:<{width}}  {finding.found}")
            if finding.todo:
                lines.append(f"{'':<8}{'':<{width}}  -> {finding.todo}")
        return [*lines, f"Isolation: {self.isolation or 'none, guests cannot run'}."]


def examine_machine(settings: Settings, *, folder: Path = BUNDLE_FOLDER) -> DoctorReport:
    """Checks this machine. Does not use cached self-test results."""
    findings = [
        _python(),
        _home(settings.home_path),
        _bundle(folder),
    ]
    try:
        deno = find_deno()
        findings.append(DoctorFinding("deno", "ok", f"{deno_version(deno)} at {deno}"))
    except SandboxUnavailable as error:
        return DoctorReport(
            None, [*findings, DoctorFinding("deno", "missing", error.message, error.remedy or "")]
        )

    controller = cgroup.find_controller()
    tries_container = settings.isolation != "process"
    result: SelfTestResult | None = None
    cache = settings.home_path / "cache"
    if tries_container:
        _, result = selftest.check_isolation("container", deno, controller, cache=cache, ignore_cache=True)
        findings += _container(result, required=settings.isolation == "container")
    if result is None or (not result.is_proven and settings.isolation == "auto"):
        _, result = selftest.check_isolation("process", deno, controller)
        findings += _check_findings(result, "missing")
        findings.append(_setpriv())
    findings += [_cgroup(result), _user(result)]
    return DoctorReport(result.isolation if result.is_proven else None, findings)


def _python() -> DoctorFinding:
    return DoctorFinding("python", "ok", f"{'.'.join(map(str, sys.version_info[:3]))} at {sys.executable}")


def _home(home: Path) -> DoctorFinding:
    nearest = next(path for path in (home, *home.parents) if path.exists())
    with contextlib.suppress(OSError), tempfile.TemporaryFile(dir=nearest):
        return DoctorFinding("home", "ok", str(home))
    todo = "Set HUTCH_HOME to a writable directory."
    return DoctorFinding("home", "weak", f"{home} is not writable: nothing is kept between runs.", todo)


def _bundle(folder: Path) -> DoctorFinding:
    absent = missing_bundle_files(folder)
    if absent:
        return DoctorFinding("guest bundle", "missing", f"{', '.join(absent)} not in {folder}", BUNDLE_REMEDY)
    return DoctorFinding("guest bundle", "ok", str(folder))


def _container(result: SelfTestResult, *, required: bool) -> list[DoctorFinding]:
    failure_state: State = "missing" if required else "weak"
    if result.bwrap is None:
        return [DoctorFinding("bubblewrap", failure_state, jail.bubblewrap_missing()[0], result.remedy())]
    path = jail.bubblewrap_path()
    return [
        DoctorFinding("bubblewrap", "ok", f"{result.bwrap} at {path}"),
        *_check_findings(result, failure_state),
    ]


def _check_findings(result: SelfTestResult, failure_state: State) -> list[DoctorFinding]:
    """Returns one finding per check. The remedy is in the finding of the first required check that failed."""
    findings = []
    for check in result.checks:
        name = f"{result.isolation}: {check.name}"
        if check.ok:
            findings.append(DoctorFinding(name, "ok", check.detail))
        elif check.required:
            todo = result.remedy() if check == result.first_failure else ""
            findings.append(DoctorFinding(name, failure_state, check.detail, todo))
        elif check.name == "seccomp":
            findings.append(DoctorFinding(name, "weak", check.detail, _seccomp_todo()))
        else:
            findings.append(DoctorFinding(name, "weak", check.detail))
    return findings


def _seccomp_todo() -> str:
    if not seccomp.is_supported():
        return f"There is no filter for {os.uname().machine}; only namespaces isolate guests."
    return "This kernel does not support filters (CONFIG_SECCOMP_FILTER); only namespaces isolate guests."


def _setpriv() -> DoctorFinding:
    """Checks for setpriv. Without a container, setpriv ends guests whose host was killed."""
    if jail.has_setpriv():
        return DoctorFinding("setpriv", "ok", "guests die with the host")
    todo = "Install it with `apt-get install util-linux`: without it, guests may outlive a killed host."
    return DoctorFinding("setpriv", "weak", "not found", todo)


def _cgroup(result: SelfTestResult) -> DoctorFinding:
    if result.cgroup:
        return DoctorFinding("cgroup", "ok", f"{result.cgroup} limits memory and tasks")
    return DoctorFinding("cgroup", "weak", "this process may not create control groups", _CGROUP_REMEDY)


def _user(result: SelfTestResult) -> DoctorFinding:
    if os.geteuid() != 0:
        return DoctorFinding("user", "ok", f"uid {os.geteuid()}")
    if result.isolation == "container":
        return DoctorFinding(
            "user",
            "ok",
            "root; guests have no capabilities and see none of root's files, "
            "but a dedicated unprivileged user is better",
        )
    return DoctorFinding("user", "weak", "root, without containers", "Run Hutch as a dedicated user.")
