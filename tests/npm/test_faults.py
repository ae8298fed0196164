"""Registries that are down, slow or lying: a clear failure, safe to show, and nothing left behind."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.npm import registry
from tests.npm.conftest import NewShelf

from hutch.errors import PackageNotFound, StoreError
from hutch.npm import tree
from hutch.npm.names import parse
from hutch.npm.shelf import Shelf

# A path, an address or a stack: what is not for a caller's eyes.
UNSAFE = re.compile(r"/(tmp|home|root|usr|proc|var)\b|https?:|127\.0\.0\.1|error:|Caused|\n|\.tgz")


@pytest.fixture(autouse=True)
def _nothing_is_left(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
    yield
    trees = [*(tmp_path / "home" / "npm").glob("trees/*")]
    records = [*(tmp_path / "home" / "npm").glob("packages/*/*.json")]
    assert len(trees) == len(records) == getattr(request.node, "expected_trees", 0)
    # `new_shelf` has closed its shelves by now.
    assert not [*(tmp_path / "home" / "npm").glob("staging/*")]


@pytest.fixture(autouse=True)
def _closed_first(_nothing_is_left: None, new_shelf: NewShelf) -> None:
    """Fixtures end in the opposite order: the shelf is closed before it is looked at."""


async def failure(shelf: Shelf, name: str, version: str | None = None) -> PackageNotFound:
    with pytest.raises(PackageNotFound) as caught:
        await shelf.get(parse(name, version))
    assert not UNSAFE.search(caught.value.message), caught.value.message
    return caught.value


async def test_a_package_that_does_not_exist(npm: registry.Registry, shelf: Shelf) -> None:
    error = await failure(shelf, "absent")
    assert error.message == "There is no package absent in the registry."
    assert not error.retryable


@pytest.mark.parametrize("version", ["2.0.0", "^3", "beta"])
async def test_a_version_that_does_not_exist(npm: registry.Registry, shelf: Shelf, version: str) -> None:
    npm.publish("made-up")
    error = await failure(shelf, "made-up", version)
    assert error.message == f"The package made-up has no version {version}."
    assert not error.retryable


async def test_a_registry_that_fails(npm: registry.Registry, shelf: Shelf) -> None:
    # Its installer tries again for most of a second, so all at once.
    expected: dict[registry.Fault, tuple[str, bool]] = {
        "missing": ("There is no package missing in the registry.", False),
        "refused": ("The package registry refuses refused@latest to this server (403).", False),
        "broken": ("The package registry failed (500).", True),
        "garbage": ("The package registry's answer for garbage@latest makes no sense.", True),
        "redirects": ("The package registry's answer for redirects@latest makes no sense.", True),
    }
    for fault in expected:
        npm.publish(fault)
        npm.faults[fault] = fault
    found = await asyncio.gather(*(failure(shelf, fault) for fault in expected))
    assert [(error.message, error.retryable) for error in found] == [*expected.values()]


async def test_an_archive_that_cannot_be_had(npm: registry.Registry, shelf: Shelf) -> None:
    expected: dict[registry.Fault, tuple[str, bool]] = {
        "missing": ("The registry has no archive of missing@latest.", False),
        "refused": ("The package registry refuses refused@latest to this server (403).", False),
        "broken": ("The package registry failed (500).", True),
        "lies": ("What the registry sent for lies@latest is not what it promised.", False),
        "garbage": ("What the registry sent for garbage@latest is not what it promised.", False),
    }
    for fault in expected:
        npm.publish(fault)
        npm.faults[f"{fault}/tarball"] = fault
    found = await asyncio.gather(*(failure(shelf, fault) for fault in expected))
    assert [(error.message, error.retryable) for error in found] == [*expected.values()]


async def test_an_archive_of_a_dependency_that_cannot_be_had(npm: registry.Registry, shelf: Shelf) -> None:
    npm.publish("base")
    npm.faults["base/tarball"] = "lies"
    npm.publish("made-up", dependencies={"base": "1"})
    error = await failure(shelf, "made-up")
    assert error.message == (
        "What the registry sent for base (which made-up@latest needs) is not what it promised."
    )


async def test_a_registry_that_is_too_slow_is_given_up(npm: registry.Registry, new_shelf: NewShelf) -> None:
    cases: list[tuple[str, str, registry.Fault]] = [
        ("hangs", "hangs", "hangs"),
        ("hangs-later", "hangs-later/tarball", "hangs"),
        ("drips", "drips", "drips"),
        ("drips-later", "drips-later/tarball", "drips"),
    ]
    for name, where, fault in cases:
        npm.publish(name)
        npm.faults[where] = fault
    shelf = new_shelf(install_seconds=0.5)
    for error in await asyncio.gather(*(failure(shelf, name) for name, _, _ in cases)):
        assert "could not be installed within 0.5 s." in error.message
        assert error.retryable


async def test_a_registry_that_is_down(shelf: Shelf, npm: registry.Registry) -> None:
    npm.close()
    error = await failure(shelf, "made-up")
    assert error.message == "The package registry cannot be reached at the moment."
    assert error.retryable


async def test_a_registry_that_nobody_vouches_for(
    shelf: Shelf, plain_environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with registry.serving(context=registry.tls()) as npm:
        npm.publish("made-up")
        monkeypatch.setenv("NPM_CONFIG_REGISTRY", npm.url)
        error = await failure(shelf, "made-up")
    assert "certificate is not trusted" in error.message


async def test_what_a_registry_says_beside_its_status_decides_nothing(
    npm: registry.Registry, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(self: Any, status: int, body: bytes) -> None:
        original(
            self, 500, b"\nCaused by:\n    Bad response: 403\nerror: npm package 'made-up' does not exist.\n"
        )

    original = registry._Handler._answer
    monkeypatch.setattr(registry._Handler, "_answer", answer)
    error = await failure(shelf, "made-up")
    assert error.message == "The package registry failed (500)."


@pytest.mark.parametrize(
    ("dependencies", "says"),
    [
        ({"nowhere": "^1"}, "made-up@latest needs nowhere, which is not in the registry."),
        ({"other": "^9"}, "made-up@latest needs a version of other that is not in the registry."),
        ({"x": "git+https://example.com/x.git"}, "dependency of made-up"),
        ({"x": "https://example.com/x.tgz"}, "dependency of made-up"),
        ({"x": "user/repo"}, "depends on something that is not in a registry"),
    ],
)
async def test_a_dependency_that_cannot_be_had(
    npm: registry.Registry, shelf: Shelf, dependencies: dict[str, str], says: str
) -> None:
    npm.publish("other")
    npm.publish("made-up", dependencies=dependencies)
    error = await failure(shelf, "made-up")
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
async def test_an_archive_that_cannot_be_unpacked(
    npm: registry.Registry, shelf: Shelf, tarball: bytes, says: str
) -> None:
    npm.publish("made-up", tarball=tarball)
    error = await failure(shelf, "made-up")
    assert says in error.message
    assert not error.retryable


class Rests:
    """What was on disk whenever something was thrown away."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.files = self.bytes = 0
        original = tree.discard

        def discard(folder: Path) -> None:
            size, files = tree.measure(folder, 1 << 40, 1 << 30)
            self.files, self.bytes = max(self.files, files), max(self.bytes, size)
            original(folder)

        monkeypatch.setattr(tree, "discard", discard)


async def test_an_archive_that_never_ends_is_stopped(npm: registry.Registry, new_shelf: NewShelf) -> None:
    npm.publish("made-up")
    npm.faults["made-up/tarball"] = "endless"
    error = await failure(new_shelf(max_package_bytes=1 << 20), "made-up")
    assert error.message == "made-up@latest, with all that it depends on, is larger than 1 MiB."


async def test_an_archive_that_becomes_too_large_is_stopped_on_the_way(
    npm: registry.Registry, new_shelf: NewShelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    rests = Rests(monkeypatch)
    npm.publish("made-up", tarball=registry.pack_zeros("made-up", 4 << 30))
    shelf = new_shelf(max_package_bytes=1 << 20)
    error = await failure(shelf, "made-up")
    assert "is larger than 1 MiB" in error.message
    await shelf.close()
    assert rests.bytes < 128 << 20


async def test_an_archive_of_too_many_files_is_stopped_on_the_way(
    npm: registry.Registry, new_shelf: NewShelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    rests = Rests(monkeypatch)
    npm.publish("made-up", tarball=registry.pack_many("made-up", 60_000))
    shelf = new_shelf(max_package_files=1_000)
    error = await failure(shelf, "made-up")
    assert error.message == "made-up@latest, with all that it depends on, has more than 1000 files."
    await shelf.close()
    assert 1_000 < rests.files < 60_000


async def test_many_small_parts_are_counted_together(npm: registry.Registry, new_shelf: NewShelf) -> None:
    for number in range(4):
        npm.publish(f"part-{number}", files={"data": os.urandom(300_000)})
    npm.publish("made-up", dependencies={f"part-{number}": "1" for number in range(4)})
    error = await failure(new_shelf(max_package_bytes=1 << 20), "made-up")
    assert "is larger than 1 MiB" in error.message


async def test_a_full_disk_is_this_servers_fault(
    npm: registry.Registry, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "/somewhere/in/home")

    npm.publish("made-up")
    monkeypatch.setattr("hutch.npm.store.Store.shelve", full)
    error = await failure(shelf, "made-up")
    assert "a fault of this server" in error.message
    assert error.retryable


async def test_a_home_that_is_no_folder_is_no_fault_of_the_packages(
    npm: registry.Registry, new_shelf: NewShelf, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    npm.publish("made-up")
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError) as caught:
        await new_shelf(home=str(tmp_path / "file")).get(parse("made-up"))
    assert str(caught.value) == (
        f"made-up@latest cannot be installed: {tmp_path / 'file'} is a file, where a folder should be."
        " Set HUTCH_HOME to a folder that you may write."
    )
    assert caplog.text == ""


async def test_a_shelf_that_cannot_be_written_any_more_gives_what_it_has(
    npm: registry.Registry,
    new_shelf: NewShelf,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    def forbidden(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "/somewhere/in/home")

    request.node.expected_trees = 1
    npm.publish("made-up")
    shelf = new_shelf(latest_seconds=0)
    await shelf.get(parse("made-up"))
    monkeypatch.setattr("hutch.npm.turns._take", forbidden)
    monkeypatch.setattr("hutch.npm.records._save", forbidden)
    assert (await shelf.get(parse("made-up"))).version == "1.0.0"


async def test_whoever_gives_up_does_not_stop_the_others(
    npm: registry.Registry, shelf: Shelf, request: pytest.FixtureRequest
) -> None:
    request.node.expected_trees = 1
    npm.publish("made-up")
    first = asyncio.create_task(shelf.get(parse("made-up")))
    second = asyncio.create_task(shelf.get(parse("made-up")))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).version == "1.0.0"
    with pytest.raises(asyncio.CancelledError):
        await first
