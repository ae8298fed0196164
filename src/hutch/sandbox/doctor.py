"""Explains what this machine has for running guests, what it lacks, and how to get it."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Literal

import msgspec

from hutch.errors import SandboxUnavailable
from hutch.sandbox import bundle, cgroup, jail, runtime, seccomp, selftest
from hutch.sandbox.verdict import Verdict
from hutch.settings import Settings

State = Literal["ok", "weak", "missing"]
_DELEGATE = (
    "A meter bounds memory instead, less exactly. For groups run Hutch as root, or give it some of its own: "
    "`Delegate=yes` in its systemd unit, or `systemd-run --user --scope -p Delegate=yes hutch serve`."
)


class Finding(msgspec.Struct, frozen=True):
    """One thing that Hutch needs or can use."""

    name: str
    state: State
    found: str
    todo: str = ""


class Report(msgspec.Struct, frozen=True):
    """All findings, and the isolation that guests will get."""

    isolation: Literal["container", "process"] | None
    findings: list[Finding]

    @property
    def healthy(self) -> bool:
        """Whether guests can run as the settings want it."""
        return self.isolation is not None and all(finding.state != "missing" for finding in self.findings)

    def json(self) -> str:
        return msgspec.json.encode({"healthy": self.healthy, **msgspec.to_builtins(self)}).decode()

    def lines(self) -> list[str]:
        """The report as text."""
        width = max(len(finding.name) for finding in self.findings)
        shown = []
        for finding in self.findings:
            shown.append(f"{finding.state:<8}{finding.name:<{width}}  {finding.found}")
            if finding.todo:
                shown.append(f"{'':<8}{'':<{width}}  -> {finding.todo}")
        return [*shown, f"Isolation: {self.isolation or 'none, guests cannot run'}."]


def examine(settings: Settings, *, folder: Path = bundle.FOLDER) -> Report:
    """Look at everything anew, whatever earlier self-tests found."""
    findings = [
        _python(),
        _home(settings.home_path),
        _bundle(folder),
    ]
    try:
        deno = runtime.locate()
        findings.append(Finding("deno", "ok", f"{runtime.version(deno)} at {deno}"))
    except SandboxUnavailable as error:
        return Report(None, [*findings, Finding("deno", "missing", error.message, error.remedy or "")])

    controller = cgroup.find()
    wanted_container = settings.isolation != "process"
    verdict: Verdict | None = None
    cache = settings.home_path / "cache"
    if wanted_container:
        _, verdict = selftest.prove("container", deno, controller, cache=cache, again=True)
        findings += _container(verdict, required=settings.isolation == "container")
    if verdict is None or (not verdict.proven and settings.isolation == "auto"):
        _, verdict = selftest.prove("process", deno, controller)
        findings += _tested(verdict, "missing")
        findings.append(_supervised())
    findings += [_bounds(verdict), _user(verdict)]
    return Report(verdict.isolation if verdict.proven else None, findings)


def _python() -> Finding:
    return Finding("python", "ok", f"{'.'.join(map(str, sys.version_info[:3]))} at {sys.executable}")


def _home(home: Path) -> Finding:
    nearest = next(path for path in (home, *home.parents) if path.exists())
    with contextlib.suppress(OSError), tempfile.TemporaryFile(dir=nearest):
        return Finding("home", "ok", str(home))
    todo = "Set HUTCH_HOME to a directory that this user may write."
    return Finding("home", "weak", f"{home} cannot be written: nothing is kept from run to run.", todo)


def _bundle(folder: Path) -> Finding:
    absent = bundle.missing(folder)
    if absent:
        return Finding("guest bundle", "missing", f"{', '.join(absent)} not in {folder}", bundle.REMEDY)
    return Finding("guest bundle", "ok", str(folder))


def _container(verdict: Verdict, *, required: bool) -> list[Finding]:
    failing: State = "missing" if required else "weak"
    if verdict.bwrap is None:
        return [Finding("bubblewrap", failing, jail.no_bubblewrap()[0], verdict.remedy())]
    path = jail.bubblewrap_path()
    return [Finding("bubblewrap", "ok", f"{verdict.bwrap} at {path}"), *_tested(verdict, failing)]


def _tested(verdict: Verdict, failing: State) -> list[Finding]:
    """One finding for each check; the remedy goes with the first that failed."""
    found = []
    for check in verdict.checks:
        name = f"{verdict.isolation}: {check.name}"
        if check.ok:
            found.append(Finding(name, "ok", check.detail))
        elif check.required:
            todo = verdict.remedy() if check == verdict.failure else ""
            found.append(Finding(name, failing, check.detail, todo))
        elif check.name == "seccomp":
            found.append(Finding(name, "weak", check.detail, _seccomp_todo()))
        else:
            found.append(Finding(name, "weak", check.detail))
    return found


def _seccomp_todo() -> str:
    if not seccomp.supported():
        return f"There is no filter for {os.uname().machine}; the namespaces hold without it."
    return "This kernel does not load filters (CONFIG_SECCOMP_FILTER); the namespaces hold without them."


def _supervised() -> Finding:
    """Without a container, setpriv is what ends a guest whose host was killed."""
    if jail.has_supervisor():
        return Finding("setpriv", "ok", "guests die with the host")
    todo = "Install it with `apt-get install util-linux`, so that no guest outlives a killed host."
    return Finding("setpriv", "weak", "not found", todo)


def _bounds(verdict: Verdict) -> Finding:
    if verdict.cgroup:
        return Finding("cgroup", "ok", f"{verdict.cgroup} bounds memory and tasks")
    return Finding("cgroup", "weak", "control groups are not ours to make here", _DELEGATE)


def _user(verdict: Verdict) -> Finding:
    if os.geteuid() != 0:
        return Finding("user", "ok", f"uid {os.geteuid()}")
    if verdict.isolation == "container":
        return Finding(
            "user",
            "ok",
            "root; guests have no capabilities and see none of root's files, "
            "but a user of its own, without privileges, is better",
        )
    return Finding("user", "weak", "root, without containers", "Run Hutch as a user of its own.")
