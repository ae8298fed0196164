"""`hutch doctor`: reports which isolation this machine provides and how to improve it."""

from __future__ import annotations

import os

import msgspec

from hutch.cli.support.console import print_json, print_report
from hutch.cli.support.project import files_in_current_folder
from hutch.cli.support.trust import TrustStore, describe_trust
from hutch.errors import HutchError
from hutch.sandbox.selftest.doctor import DoctorFinding, examine_machine
from hutch.settings import Settings, load_settings
from hutch.settings.config_text import read_config_text


def doctor(*, json: bool) -> int:
    """Prints the report. Returns 0 if guests can run here with the isolation that the settings require."""
    settings = load_settings()
    report = examine_machine(settings)
    findings = [*report.findings, *_project_findings(settings), *_trace_findings()]
    report = msgspec.structs.replace(report, findings=findings)
    if json:
        print_json(report.json().encode())
    else:
        print_report(report.lines())
    return 0 if report.healthy else 1


def _trace_findings() -> list[DoctorFinding]:
    """Reports whether the traces that the environment asks for can be exported."""
    from hutch.telemetry.tracer import configuration_problem, is_configured

    if not is_configured(os.environ):
        return []
    problem = configuration_problem(os.environ)
    if problem is not None:
        return [DoctorFinding("traces", "weak", problem)]
    return [DoctorFinding("traces", "ok", "exported through OTLP/HTTP, as the OTEL_ variables say")]


def _project_findings(settings: Settings) -> list[DoctorFinding]:
    """Reports for each configuration file of the current directory whether it is trusted."""
    findings = []
    for path in files_in_current_folder(settings):
        try:
            source = read_config_text(path)
            record = TrustStore(settings.home_path).find(path.parent, path.name)
        except HutchError as error:
            findings.append(DoctorFinding("project", "weak", error.message, error.remedy or ""))
            continue
        if source is not None:
            found = describe_trust(path.parent, path.name, source, record)
            findings.append(DoctorFinding("project", "ok", found))
    return findings
