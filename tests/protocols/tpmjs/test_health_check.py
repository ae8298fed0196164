"""Tests of health checks in package.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hutch.npm.packages import Package
from hutch.protocols.tpmjs.health_check import read_health_check


def package_with(folder: Path, health_check: Any) -> Package:
    installed = folder / "node_modules" / "p"
    installed.mkdir(parents=True)
    tools = [{"name": "other"}, {"name": "t", "healthCheck": health_check}]
    (installed / "package.json").write_text(json.dumps({"name": "p", "tpmjs": {"tools": tools}}))
    return Package("p", "1.0.0", folder, 0, 0, folder)


@pytest.mark.parametrize(
    "declared",
    [
        {"skipExecution": True},
        {"testParams": {"a": [1]}},
        {"testParams": {}, "cleanup": [{"tool": "d", "params": {"x": 1}, "mapping": {"id": "a.b"}}]},
    ],
)
def test_health_check_is_read(tmp_path: Path, declared: dict[str, Any]) -> None:
    package = package_with(tmp_path, declared)
    check, problem = read_health_check(package, "t")
    assert (msgspec.to_builtins(check), problem) == (declared, None)
    assert read_health_check(package, "other") == (None, None)
    assert read_health_check(package, "missing") == (None, None)


@pytest.mark.parametrize(
    ("declared", "problem"),
    [
        ("yes", "Expected `object`, got `str`"),
        ({"skipExecution": "yes"}, "Expected `bool`, got `str` - at `$.skipExecution`"),
        ({"cleanup": [{"tool": "d"}] * 4}, "Expected `array` of length <= 3 - at `$.cleanup`"),
        ({"cleanup": [{"tool": ""}]}, "Expected `str` of length >= 1 - at `$.cleanup[0].tool`"),
        (
            {"skipExecution": True, "testParams": {}},
            "`skipExecution` cannot be combined with `testParams` or `cleanup`",
        ),
    ],
)
def test_invalid_health_check_is_reported(tmp_path: Path, declared: Any, problem: str) -> None:
    found = read_health_check(package_with(tmp_path, declared), "t")
    assert found == (None, f"package.json: healthCheck of t: {problem}")


def test_health_check_that_no_response_can_contain_is_reported(tmp_path: Path) -> None:
    nested: dict[str, Any] = {}
    for _ in range(300):
        nested = {"a": nested}
    check, problem = read_health_check(package_with(tmp_path, {"testParams": nested}), "t")
    assert check is None
    assert problem is not None
