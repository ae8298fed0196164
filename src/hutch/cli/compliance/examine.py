"""Runs the checks one after the other and writes down how each ends."""

from __future__ import annotations

from hutch.cli.compliance import core, extended, standard
from hutch.cli.compliance.outcome import Failed, Missing, NoAnswer, NotSupported, NotTested
from hutch.cli.compliance.report import Finding, Outcome, Report, Section
from hutch.cli.compliance.subject import Check, Subject

SECTIONS: dict[Section, dict[str, Check]] = {
    "core": core.CHECKS,
    "standard": standard.CHECKS,
    "extended": extended.CHECKS,
}
FIRST = "GET /health returns 200"

MOST_CHARACTERS = 400


async def examine(on: Subject) -> Report:
    """Everything; but who does not even answer /health is not asked for more."""
    findings: list[Finding] = []
    try:
        await on.health()
    except NoAnswer as error:
        found = _finding(on, "core", FIRST, "failed", f"{error}; nothing else was tried")
        return Report(on.client.base, [found])
    for section, checks in SECTIONS.items():
        for name in checks:
            on.progress.now(name)
            findings.append(await look(on, section, name))
    on.progress.clear()
    return Report(on.client.base, findings)


async def look(on: Subject, section: Section, name: str) -> Finding:
    """One check."""
    try:
        measured = await SECTIONS[section][name](on)
    except Failed as failed:
        return _finding(on, section, name, "failed", str(failed), missing=isinstance(failed, Missing))
    except NotTested as reason:
        return _finding(on, section, name, "not_tested", str(reason))
    except NotSupported as reason:
        return _finding(on, section, name, "not_supported", str(reason))
    return _finding(on, section, name, "passed", measured or "")


def _finding(
    on: Subject, section: Section, name: str, outcome: Outcome, detail: str, *, missing: bool = False
) -> Finding:
    """Details have words of the other side in them: no key, nothing that a terminal would obey."""
    if on.client.key:
        detail = detail.replace(on.client.key, "***")
    shown = "".join(c if c.isprintable() else "�" for c in detail[:MOST_CHARACTERS])
    return Finding(section, name, outcome, shown, missing)
