"""Packages that exceed a limit. After the first refusal, further requests are refused at once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.npm import registry
from tests.npm.conftest import NewPackages

from hutch.errors import PackageTooLarge
from hutch.npm import refusals
from hutch.npm.install.process import InstallLimits
from hutch.npm.package_spec import PackageSpec, parse_spec
from hutch.npm.packages import PackageManager
from hutch.npm.refusals import MAX_REFUSALS, Refusals

LIMIT = 1 << 20
LIMITS = InstallLimits(LIMIT, 1_000)
SPEC = PackageSpec("made-up", "1.0.0")


@pytest.fixture
def npm(npm: registry.Registry) -> registry.Registry:
    npm.publish("made-up", files={"index.js": registry.MODULE, "data": os.urandom(2 * LIMIT)})
    return npm


async def refuse(packages: PackageManager, version: str | None) -> PackageTooLarge:
    with pytest.raises(PackageTooLarge) as caught:
        await packages.get(parse_spec("made-up", version))
    return caught.value


@pytest.mark.parametrize("version", ["1.0.0", "^1", None])
async def test_refused_package_is_not_requested_again(
    npm: registry.Registry, new_packages: NewPackages, version: str | None
) -> None:
    packages = new_packages(max_package_bytes=LIMIT)
    first = await refuse(packages, version)
    requests = [*npm.requests]
    again = await refuse(packages, version)
    assert again.message == first.message
    assert "max_package_bytes" in again.message
    # The refusal is stored. So the package manager of another process, or of a restarted server, knows it,
    # too.
    await refuse(new_packages(max_package_bytes=LIMIT), version)
    assert npm.requests == requests
    # The refusal also applies to another spec that resolves to this version. The archive is not downloaded
    # again.
    await refuse(packages, "1.0.0")
    assert npm.requests == requests


async def test_refusal_of_a_version_that_a_tag_resolves_to_later(
    npm: registry.Registry, new_packages: NewPackages
) -> None:
    npm.publish("small")
    packages = new_packages(max_package_bytes=LIMIT)
    # Install a small package first. If no package is installed, the installer downloads a package before the
    # version is known.
    await packages.get(parse_spec("small"))
    await refuse(packages, "1.0.0")
    archives = npm.requests.count("made-up@1.0.0")
    await refuse(packages, "latest")
    assert npm.requests.count("made-up@1.0.0") == archives


async def test_other_version_is_tried(npm: registry.Registry, new_packages: NewPackages) -> None:
    packages = new_packages(max_package_bytes=LIMIT)
    await refuse(packages, "1.0.0")
    npm.publish("made-up", "1.0.1")
    assert (await packages.get(parse_spec("made-up", "1.0.1"))).version == "1.0.1"


async def test_higher_limit_applies_at_once(npm: registry.Registry, new_packages: NewPackages) -> None:
    await refuse(new_packages(max_package_bytes=LIMIT), "1.0.0")
    packages = new_packages(max_package_bytes=4 * LIMIT)
    assert (await packages.get(parse_spec("made-up", "1.0.0"))).version == "1.0.0"


def test_refusal_holds_for_lower_limits_and_expires(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = Refusals(tmp_path / "file")
    known.add(SPEC, "size", LIMITS)
    assert known.find(SPEC, LIMITS) == "size"
    assert known.find(SPEC, InstallLimits(LIMIT - 1, 1_000)) == "size"
    assert known.find(SPEC, InstallLimits(LIMIT, 1)) == "size"
    assert known.find(SPEC, InstallLimits(LIMIT + 1, 1_000)) is None
    assert known.find(PackageSpec("made-up", "1.0.1"), LIMITS) is None
    monkeypatch.setattr(refusals, "REFUSAL_SECONDS", 0.0)
    assert known.find(SPEC, LIMITS) is None


def test_number_of_refusals_is_limited(tmp_path: Path) -> None:
    known = Refusals(tmp_path / "file")
    for number in range(MAX_REFUSALS + 1):
        known.add(PackageSpec("made-up", f"1.0.{number}"), "files", LIMITS)
    assert known.find(SPEC, LIMITS) is None
    assert known.find(PackageSpec("made-up", f"1.0.{MAX_REFUSALS}"), LIMITS) == "files"
    assert (tmp_path / "file").stat().st_size < 200 * MAX_REFUSALS


@pytest.mark.parametrize("content", ["", "[{", '{"a": 1}', '[{"name": 1}]'])
def test_damaged_file_is_replaced(tmp_path: Path, content: str) -> None:
    (tmp_path / "file").write_text(content)
    known = Refusals(tmp_path / "file")
    assert known.find(SPEC, LIMITS) is None
    known.add(SPEC, "size", LIMITS)
    assert known.find(SPEC, LIMITS) == "size"
