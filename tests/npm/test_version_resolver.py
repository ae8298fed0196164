"""Resolution of ranges and tags: versions, requests to the registry, and offline use."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from tests.npm import registry
from tests.npm.conftest import NewPackages
from tests.support.processes import wait_until

from hutch.errors import PackageNotFound
from hutch.npm import version_resolver
from hutch.npm.package_index import PackageIndex
from hutch.npm.package_spec import parse_spec
from hutch.npm.packages import PackageManager


async def test_ranges_and_tags_resolve_to_an_exact_version(
    npm: registry.Registry, packages: PackageManager
) -> None:
    for version in ("1.0.0", "1.2.0", "2.0.0"):
        npm.publish("made-up", version)
    npm.publish("made-up", "3.0.0-beta.1", tag="next")
    found = {
        version: (await packages.get(parse_spec("made-up", version))).version
        for version in ("latest", "^1", "1.0.x", ">=1 <2", "1 - 2", "next", "^2 || ^1", "*")
    }
    assert found == {
        "latest": "2.0.0",
        "^1": "1.2.0",
        "1.0.x": "1.0.0",
        ">=1 <2": "1.2.0",
        "1 - 2": "2.0.0",
        "next": "3.0.0-beta.1",
        "^2 || ^1": "2.0.0",
        "*": "2.0.0",
    }
    assert {entry.version: set(entry.known_as) for entry in packages.list()} == {
        "1.0.0": {"1.0.x"},
        "1.2.0": {"^1", ">=1 <2"},
        "2.0.0": {"latest", "1 - 2", "^2 || ^1", "*"},
        "3.0.0-beta.1": {"next"},
    }


async def test_resolution_is_cached_and_then_refreshed(
    npm: registry.Registry, new_packages: NewPackages
) -> None:
    npm.publish("base")
    npm.publish("made-up", dependencies={"base": "1"})
    packages = new_packages()
    assert (await packages.get(parse_spec("made-up"))).version == "1.0.0"
    npm.publish("made-up", "1.1.0", dependencies={"base": "1"})
    npm.requests.clear()
    assert (await packages.get(parse_spec("made-up"))).version == "1.0.0"
    assert npm.requests == []
    later = new_packages(latest_seconds=0)
    assert (await later.get(parse_spec("made-up"))).version == "1.1.0"
    npm.requests.clear()
    # To find out that nothing has changed, the resolver requests one document.
    assert (await later.get(parse_spec("made-up"))).version == "1.1.0"
    assert npm.requests == ["made-up"]


async def test_frequently_used_resolution_is_refreshed_early(
    npm: registry.Registry, new_packages: NewPackages, monkeypatch: pytest.MonkeyPatch
) -> None:
    npm.publish("made-up")
    packages = new_packages()
    await packages.get(parse_spec("made-up"))
    npm.publish("made-up", "1.1.0")
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 0.9 * 300)
    assert (await packages.get(parse_spec("made-up"))).version == "1.0.0"
    await asyncio.to_thread(wait_until, lambda: "made-up@1.1.0" in npm.requests)
    # `add` waits for the refresh that is already in progress.
    await packages.add(parse_spec("made-up"))
    assert (await packages.get(parse_spec("made-up"))).version == "1.1.0"


@pytest.mark.parametrize("fault", ["broken", "hangs", None])
async def test_previous_version_is_used_while_the_registry_is_down(
    npm: registry.Registry,
    new_packages: NewPackages,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fault: registry.Fault | None,
) -> None:
    monkeypatch.setattr(version_resolver, "REFRESH_SECONDS", 0.5)
    npm.publish("made-up")
    await new_packages().get(parse_spec("made-up"))
    if fault is None:
        npm.close()
    else:
        npm.faults["made-up"] = fault
    packages = new_packages(latest_seconds=0)
    assert (await packages.get(parse_spec("made-up"))).version == "1.0.0"
    assert "made-up@latest still resolves to 1.0.0" in caplog.text
    requests = len(npm.requests)
    # For a while, the resolver does not ask the registry again.
    assert (await packages.get(parse_spec("made-up"))).version == "1.0.0"
    assert len(npm.requests) == requests


async def test_unpublished_package_is_no_longer_latest(
    npm: registry.Registry, new_packages: NewPackages
) -> None:
    npm.publish("made-up")
    await new_packages().get(parse_spec("made-up"))
    npm.unpublish("made-up")
    packages = new_packages(latest_seconds=0)
    with pytest.raises(PackageNotFound, match="There is no package"):
        await packages.get(parse_spec("made-up"))
    assert (await packages.get(parse_spec("made-up", "1.0.0"))).version == "1.0.0"


async def test_add_asks_the_registry_and_ignores_older_answers(
    npm: registry.Registry, packages: PackageManager
) -> None:
    npm.publish("made-up")
    await packages.get(parse_spec("made-up"))
    npm.publish("made-up", "1.1.0")
    assert (await packages.add(parse_spec("made-up"))).version == "1.1.0"
    npm.faults["made-up"] = "broken"
    with pytest.raises(PackageNotFound, match="failed"):
        await packages.add(parse_spec("made-up"))


async def test_number_of_cached_resolutions_is_limited(
    npm: registry.Registry, packages: PackageManager, tmp_path: Path
) -> None:
    npm.publish("made-up")
    await packages.get(parse_spec("made-up"))
    index = PackageIndex(tmp_path / "home" / "npm" / "packages")
    for number in range(100):
        index.save_resolution("made-up", f">=0.0.{number}", "1.0.0")
    (entry,) = packages.list()
    assert len(entry.known_as) == 64
    assert ">=0.0.99" in entry.known_as


async def test_offline_provides_only_installed_packages(
    npm: registry.Registry, new_packages: NewPackages
) -> None:
    for version in ("1.0.0", "1.2.0", "2.0.0-beta.1"):
        npm.publish("made-up", version)
        await new_packages().get(parse_spec("made-up", version))
    npm.tag("made-up", "latest", "1.0.0")
    await new_packages().get(parse_spec("made-up", "latest"))
    npm.requests.clear()
    packages = new_packages(offline=True, latest_seconds=0)
    wanted = ("1.2.0", "^1", "1.0.x", "latest", "*", "^2.0.0-0")
    found = [(await packages.get(parse_spec("made-up", version))).version for version in wanted]
    # Offline, `latest` resolves to the same version as before. A range that was never resolved gets an
    # installed version that matches the range.
    assert found == ["1.2.0", "1.2.0", "1.0.0", "1.0.0", "1.2.0", "2.0.0-beta.1"]
    for name, version in (("made-up", "3.0.0"), ("made-up", "^3"), ("made-up", "next"), ("other", "latest")):
        with pytest.raises(PackageNotFound, match="offline") as caught:
            await packages.get(parse_spec(name, version))
        assert not caught.value.retryable
    with pytest.raises(PackageNotFound, match="offline"):
        await packages.add(parse_spec("other"))
    assert npm.requests == []
