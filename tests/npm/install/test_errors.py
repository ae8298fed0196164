"""Registries that are down, slow or wrong. The error messages are clear and safe to show, and the
installation leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.npm import registry
from tests.npm.conftest import NewPackages
from tests.support.network.certificates import certificates

from hutch.errors import PackageNotFound, PackageTooLarge, StoreError
from hutch.npm import tree
from hutch.npm.package_spec import parse_spec
from hutch.npm.packages import PackageManager

# Matches paths, addresses and stack traces, which callers must not see.
UNSAFE = re.compile(r"/(tmp|home|root|usr|proc|var)\b|https?:|127\.0\.0\.1|error:|Caused|\n|\.tgz")


@pytest.fixture(autouse=True)
def _nothing_is_left(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
    yield
    trees = [*(tmp_path / "home" / "npm").glob("trees/*")]
    records = [*(tmp_path / "home" / "npm").glob("packages/*/*.json")]
    assert len(trees) == len(records) == getattr(request.node, "expected_trees", 0)
    # The package managers are already closed. Closing them deletes the staging folders.
    assert not [*(tmp_path / "home" / "npm").glob("staging/*")]


@pytest.fixture(autouse=True)
def _closed_first(_nothing_is_left: None, new_packages: NewPackages) -> None:
    """Makes `_nothing_is_left` check after `new_packages` has closed its managers: fixtures end in reverse
    order.
    """


async def failure(packages: PackageManager, name: str, version: str | None = None) -> PackageNotFound:
    with pytest.raises(PackageNotFound) as caught:
        await packages.get(parse_spec(name, version))
    assert not UNSAFE.search(caught.value.message), caught.value.message
    return caught.value


async def test_missing_package(npm: registry.Registry, packages: PackageManager) -> None:
    error = await failure(packages, "absent")
    assert error.message == "There is no package absent in the registry."
    assert not error.retryable


@pytest.mark.parametrize("version", ["2.0.0", "^3", "beta"])
async def test_missing_version(npm: registry.Registry, packages: PackageManager, version: str) -> None:
    npm.publish("made-up")
    error = await failure(packages, "made-up", version)
    assert error.message == f"The package made-up has no version {version}."
    assert not error.retryable


async def test_failing_registry(npm: registry.Registry, packages: PackageManager) -> None:
    # Run all cases concurrently, because the retries of the installer take most of a second in each case.
    expected: dict[registry.Fault, tuple[str, bool]] = {
        "missing": ("There is no package missing in the registry.", False),
        "refused": ("The package registry refuses refused@latest to this server (403).", False),
        "broken": ("The package registry failed (500).", True),
        "garbage": ("The package registry's answer for garbage@latest is invalid.", True),
        "redirects": ("The package registry's answer for redirects@latest is invalid.", True),
    }
    for fault in expected:
        npm.publish(fault)
        npm.faults[fault] = fault
    found = await asyncio.gather(*(failure(packages, fault) for fault in expected))
    assert [(error.message, error.retryable) for error in found] == [*expected.values()]


async def test_failing_archive(npm: registry.Registry, packages: PackageManager) -> None:
    expected: dict[registry.Fault, tuple[str, bool]] = {
        "missing": ("The registry has no archive of missing@latest.", False),
        "refused": ("The package registry refuses refused@latest to this server (403).", False),
        "broken": ("The package registry failed (500).", True),
        "lies": ("The archive of lies@latest does not match the registry's checksum.", False),
        "garbage": ("The archive of garbage@latest does not match the registry's checksum.", False),
    }
    for fault in expected:
        npm.publish(fault)
        npm.faults[f"{fault}/tarball"] = fault
    found = await asyncio.gather(*(failure(packages, fault) for fault in expected))
    assert [(error.message, error.retryable) for error in found] == [*expected.values()]


async def test_failing_archive_of_a_dependency(npm: registry.Registry, packages: PackageManager) -> None:
    npm.publish("base")
    npm.faults["base/tarball"] = "lies"
    npm.publish("made-up", dependencies={"base": "1"})
    error = await failure(packages, "made-up")
    assert error.message == (
        "The archive of base (which made-up@latest needs) does not match the registry's checksum."
    )


async def test_slow_registry_times_out(npm: registry.Registry, new_packages: NewPackages) -> None:
    cases: list[tuple[str, str, registry.Fault]] = [
        ("hangs", "hangs", "hangs"),
        ("hangs-later", "hangs-later/tarball", "hangs"),
        ("drips", "drips", "drips"),
        ("drips-later", "drips-later/tarball", "drips"),
    ]
    for name, where, fault in cases:
        npm.publish(name)
        npm.faults[where] = fault
    packages = new_packages(install_seconds=0.5)
    for error in await asyncio.gather(*(failure(packages, name) for name, _, _ in cases)):
        assert "could not be installed within 0.5 s." in error.message
        assert error.retryable


async def test_registry_that_is_down(packages: PackageManager, npm: registry.Registry) -> None:
    npm.close()
    error = await failure(packages, "made-up")
    assert error.message == "The package registry cannot be reached at the moment."
    assert error.retryable


async def test_registry_with_an_untrusted_certificate(
    packages: PackageManager, plain_environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with registry.run_registry(context=registry.tls()) as npm:
        npm.publish("made-up")
        monkeypatch.setenv("NPM_CONFIG_REGISTRY", npm.url)
        error = await failure(packages, "made-up")
    assert "certificate is not trusted" in error.message


@pytest.mark.parametrize("fault", sorted(certificates().bad))
async def test_registry_with_a_bad_certificate_of_a_trusted_authority(
    packages: PackageManager, plain_environment: None, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setenv("NPM_CONFIG_CAFILE", str(certificates().authority))
    with registry.run_registry(context=registry.tls(certificates().bad[fault])) as npm:
        npm.publish("made-up")
        monkeypatch.setenv("NPM_CONFIG_REGISTRY", npm.url)
        error = await failure(packages, "made-up")
    assert "certificate is not trusted" in error.message


async def test_response_body_of_the_registry_does_not_matter(
    npm: registry.Registry, packages: PackageManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(self: Any, status: int, body: bytes) -> None:
        original(
            self, 500, b"\nCaused by:\n    Bad response: 403\nerror: npm package 'made-up' does not exist.\n"
        )

    original = registry._Handler._answer
    monkeypatch.setattr(registry._Handler, "_answer", answer)
    error = await failure(packages, "made-up")
    assert error.message == "The package registry failed (500)."


@pytest.mark.parametrize(
    ("dependencies", "says"),
    [
        ({"nowhere": "^1"}, "made-up@latest needs nowhere, which is not in the registry."),
        ({"other": "^9"}, "made-up@latest needs a version of other that is not in the registry."),
        ({"x": "git+https://example.com/x.git"}, "dependency of made-up"),
        ({"x": "https://example.com/x.tgz"}, "dependency of made-up"),
        ({"x": "user/repo"}, "has a dependency that is not in a registry"),
    ],
)
async def test_dependency_that_cannot_be_installed(
    npm: registry.Registry, packages: PackageManager, dependencies: dict[str, str], says: str
) -> None:
    npm.publish("other")
    npm.publish("made-up", dependencies=dependencies)
    error = await failure(packages, "made-up")
    assert says in error.message


@pytest.mark.parametrize(
    ("tarball", "says"),
    [
        (b"no archive at all", "is broken"),
        (registry.pack({"package.json": "{}", "index.js": os.urandom(9000)})[:-3000], "is broken"),
        (registry.pack({"package.json": "{}", "../../../evil": "x"}), "outside of the package"),
        (registry.pack({"package.json": "{}", "x" * 300: "x"}), "cannot be unpacked"),
    ],
    ids=["no archive", "half", "dots", "long name"],
)
async def test_archive_that_cannot_be_unpacked(
    npm: registry.Registry, packages: PackageManager, tarball: bytes, says: str
) -> None:
    npm.publish("made-up", tarball=tarball)
    error = await failure(packages, "made-up")
    assert says in error.message
    assert not error.retryable


class DeletedFolders:
    """Records the size of the largest folder that was deleted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.files = self.bytes = 0
        original = tree.discard

        def discard(folder: Path) -> None:
            size, files = tree.measure(folder, 1 << 40, 1 << 30)
            self.files, self.bytes = max(self.files, files), max(self.bytes, size)
            original(folder)

        monkeypatch.setattr(tree, "discard", discard)


async def test_endless_archive_is_stopped(npm: registry.Registry, new_packages: NewPackages) -> None:
    npm.publish("made-up")
    npm.faults["made-up/tarball"] = "endless"
    error = await failure(new_packages(max_package_bytes=1 << 20), "made-up")
    assert isinstance(error, PackageTooLarge)
    assert error.message == (
        "made-up@latest, with all its dependencies, is larger than 1 MiB; "
        "the operator can allow more with the setting max_package_bytes."
    )


async def test_archive_that_becomes_too_large_is_stopped_early(
    npm: registry.Registry, new_packages: NewPackages, monkeypatch: pytest.MonkeyPatch
) -> None:
    deleted = DeletedFolders(monkeypatch)
    npm.publish("made-up", tarball=registry.pack_zeros("made-up", 4 << 30))
    packages = new_packages(max_package_bytes=1 << 20)
    error = await failure(packages, "made-up")
    assert "is larger than 1 MiB" in error.message
    await packages.close()
    assert deleted.bytes < 128 << 20


async def test_archive_with_too_many_files_is_stopped_early(
    npm: registry.Registry, new_packages: NewPackages, monkeypatch: pytest.MonkeyPatch
) -> None:
    deleted = DeletedFolders(monkeypatch)
    npm.publish("made-up", tarball=registry.pack_many("made-up", 60_000))
    packages = new_packages(max_package_files=1_000)
    error = await failure(packages, "made-up")
    assert error.message == (
        "made-up@latest, with all its dependencies, has more than 1000 files; "
        "the operator can allow more with the setting max_package_files."
    )
    await packages.close()
    assert 1_000 < deleted.files < 60_000


async def test_many_small_packages_are_counted_together(
    npm: registry.Registry, new_packages: NewPackages
) -> None:
    for number in range(4):
        npm.publish(f"part-{number}", files={"data": os.urandom(300_000)})
    npm.publish("made-up", dependencies={f"part-{number}": "1" for number in range(4)})
    error = await failure(new_packages(max_package_bytes=1 << 20), "made-up")
    assert "is larger than 1 MiB" in error.message


async def test_download_stops_at_the_limit(npm: registry.Registry, new_packages: NewPackages) -> None:
    """The download of one archive hangs. The other archives already exceed the limit, so the installation
    does not wait for this one.
    """
    for number in range(3):
        npm.publish(f"part-{number}", files={"data": os.urandom(1 << 20)})
    npm.publish("last")
    npm.faults["last/tarball"] = "hangs"
    npm.publish("made-up", dependencies={"part-0": "1", "part-1": "1", "part-2": "1", "last": "1"})
    error = await failure(new_packages(max_package_bytes=2 << 20), "made-up")
    assert isinstance(error, PackageTooLarge)
    assert "last@1.0.0" in npm.requests


async def test_many_large_documents_do_not_count_towards_the_limit(
    npm: registry.Registry, new_packages: NewPackages, request: pytest.FixtureRequest
) -> None:
    request.node.expected_trees = 1
    for number in range(4):
        for version in range(40):
            npm.publish(f"part-{number}", f"1.{version}.0", description="x" * 20_000)
    npm.publish("made-up", dependencies={f"part-{number}": "1" for number in range(4)})
    packages = new_packages(max_package_bytes=1 << 20)
    assert (await packages.get(parse_spec("made-up"))).version == "1.0.0"


async def test_full_disk_is_an_error_of_the_server(
    npm: registry.Registry, packages: PackageManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "/somewhere/in/home")

    npm.publish("made-up")
    monkeypatch.setattr("hutch.npm.package_store.PackageStore.add", full)
    error = await failure(packages, "made-up")
    assert "an error on this server" in error.message
    assert error.retryable


async def test_home_that_is_not_a_folder_is_not_blamed_on_the_package(
    npm: registry.Registry, new_packages: NewPackages, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    npm.publish("made-up")
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError) as caught:
        await new_packages(home=str(tmp_path / "file")).get(parse_spec("made-up"))
    assert str(caught.value) == (
        f"made-up@latest cannot be installed: {tmp_path / 'file'} is a file, not a folder."
        " Set HUTCH_HOME to a folder that you may write."
    )
    assert caplog.text == ""


async def test_read_only_store_still_provides_its_packages(
    npm: registry.Registry,
    new_packages: NewPackages,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    def forbidden(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "/somewhere/in/home")

    request.node.expected_trees = 1
    npm.publish("made-up")
    packages = new_packages(latest_seconds=0)
    await packages.get(parse_spec("made-up"))
    monkeypatch.setattr("hutch.npm.file_locks._try_lock", forbidden)
    monkeypatch.setattr("hutch.npm.package_index.save_file", forbidden)
    assert (await packages.get(parse_spec("made-up"))).version == "1.0.0"


async def test_cancelled_caller_does_not_stop_others(
    npm: registry.Registry, packages: PackageManager, request: pytest.FixtureRequest
) -> None:
    request.node.expected_trees = 1
    npm.publish("made-up")
    first = asyncio.create_task(packages.get(parse_spec("made-up")))
    second = asyncio.create_task(packages.get(parse_spec("made-up")))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).version == "1.0.0"
    with pytest.raises(asyncio.CancelledError):
        await first
