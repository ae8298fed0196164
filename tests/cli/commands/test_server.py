"""Tests of `hutch doctor` as a process."""

from __future__ import annotations

import json

from tests.support.processes import hutch


def test_text_report_ends_with_the_isolation() -> None:
    done = hutch("doctor")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert any(line.startswith("ok") and "deno" in line for line in lines)
    assert lines[-1].startswith("Isolation: ")


def test_json_report_is_one_object_on_one_line() -> None:
    done = hutch("doctor", "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, done.stdout.count("\n"), report["healthy"]) == (0, 1, True)
    assert {"name", "state", "found", "todo"} == set(report["findings"][0])


def test_missing_requirement_is_reported_with_a_remedy_and_exits_1() -> None:
    done = hutch("doctor", env={"HUTCH_DENO": "/no/deno"})
    assert done.returncode == 1
    assert "missing" in done.stdout
    assert "pip install deno" in done.stdout
