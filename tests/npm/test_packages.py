"""Package manager: installs a package once for all callers, removes and prunes packages."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.npm import registry
from tests.npm.conftest import NewPackages
from tests.npm.trees import exports
from tests.support.processes import descendants, wait_until

from hutch.errors import PackageNotFound
from hutch.npm.package_spec import parse_spec
from hutch.npm.packages import Package, PackageManager
from hutch.sandbox import temp_dirs

DAY = 86_400.0

# Program for a second process with the same home. It gets a package and prints the path of its tree.
OTHER_PROCESS = """
import asyncio, sys
from hutch.npm.package_spec import parse_spec_argument
from hutch.npm.packages import PackageManager
from hutch.settings import load_settings

async def main():
    packages = PackageManager(load_settings({"home": sys.argv[1]}))
    print((await packages.get(parse_spec_argument(sys.argv[2]))).tree, flush=True)
    await packages.close()

asyncio.run(main())
"""


def start_other_process(home: Path, package: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", OTHER_PROCESS, str(home), package], stdout=subprocess.PIPE, text=True
    )


async def downloading(npm: registry.Registry, packages: PackageManager) -> asyncio.Task[Package]:
    """Starts to get a package whose download never ends, and waits until the download has begun. Returns the
    task.
    """
    npm.publish("made-up")
    npm.faults["made-up/tarball"] = "hangs"
    waiting = asyncio.create_task(packages.get(parse_spec("made-up")))
    await asyncio.to_thread(wait_until, lambda: "made-up@1.0.0" in npm.requests)
    return waiting


def staged(home: Path) -> list[Path]:
    return [*(home / "npm" / "staging").glob("*")]


def staging_name_of_dead_process() -> str:
    namespace, _, started = temp_dirs.host_id().split("-")
    return f"{namespace}-999999999-{started}-1"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


async def test_exact_version_is_requested_once(npm: registry.Registry, new_packages: NewPackages) -> None:
    npm.publish("made-up")
    first = await new_packages().get(parse_spec("made-up", "1.0.0"))
    npm.close()
    packages = new_packages(latest_seconds=0)
    assert await packages.get(parse_spec("made-up", "1.0.0")) == first
    assert await packages.get(parse_spec("made-up", "v1.0.0")) == first
    assert npm.requests == ["made-up", "made-up@1.0.0"]


async def test_concurrent_callers_share_one_installation(
    npm: registry.Registry, packages: PackageManager
) -> None:
    npm.publish("made-up")
    messages: list[list[str]] = [[], []]
    installed = await asyncio.gather(
        *(packages.get(parse_spec("made-up"), messages[number % 2].append) for number in range(20)),
        *(packages.get(parse_spec("made-up", version)) for version in ("1.0.0", "^1", "*")),
    )
    assert len({package.tree for package in installed}) == 1
    assert npm.requests.count("made-up@1.0.0") == 1
    assert messages[0] == messages[1]
    assert {"installing made-up@latest", "downloading package 1", "checking"} <= set(messages[0])


async def test_concurrent_callers_get_the_same_failure(
    npm: registry.Registry, packages: PackageManager
) -> None:
    results = await asyncio.gather(
        *(packages.get(parse_spec("absent")) for _ in range(5)), return_exceptions=True
    )
    assert all(isinstance(result, PackageNotFound) for result in results)
    assert npm.count("absent") == 1


async def test_processes_that_share_a_home_install_once(npm: registry.Registry, home: Path) -> None:
    npm.publish("made-up")
    processes = [start_other_process(home, "made-up@^1") for _ in range(2)]
    trees = {process.communicate(timeout=60)[0].strip() for process in processes}
    assert len(trees) == 1
    assert trees != {""}
    assert npm.requests.count("made-up@1.0.0") == 1
    assert not [*(home / "npm" / "locks").iterdir()]


async def test_tree_removed_by_another_process_is_installed_again(
    npm: registry.Registry, new_packages: NewPackages
) -> None:
    npm.publish("made-up")
    ours, other = new_packages(), new_packages()
    tree = (await ours.get(parse_spec("made-up", "1.0.0"))).tree
    await other.remove("made-up")
    assert not tree.exists()
    assert (await ours.get(parse_spec("made-up", "1.0.0"))).tree == tree
    assert exports(tree) == ["tool"]


async def test_tree_without_a_record_is_not_visible(
    npm: registry.Registry, new_packages: NewPackages, home: Path
) -> None:
    waiting = await downloading(npm, new_packages())
    assert staged(home)
    assert new_packages().list() == []
    assert not [*(home / "npm").glob("trees/*")]
    waiting.cancel()


async def test_new_version_of_a_dependency_is_found_despite_its_cached_document(
    npm: registry.Registry, packages: PackageManager
) -> None:
    npm.publish("base", "1.0.0")
    npm.publish("one", dependencies={"base": "^1"})
    await packages.get(parse_spec("one"))
    npm.publish("base", "2.0.0", {"index.js": "export const second = 1;"})
    npm.publish("two", files={"index.js": "export * from 'base';"}, dependencies={"base": "^2"})
    assert exports((await packages.get(parse_spec("two"))).tree) == ["second"]


async def test_list_contains_sizes_and_last_use(npm: registry.Registry, packages: PackageManager) -> None:
    for name, version in (("b", "1.10.0"), ("b", "1.9.0"), ("@a/b", "1.0.0")):
        npm.publish(name, version)
        await packages.get(parse_spec(name, version))
    entries = packages.list()
    assert [(entry.name, entry.version) for entry in entries] == [
        ("@a/b", "1.0.0"),
        ("b", "1.9.0"),
        ("b", "1.10.0"),
    ]
    assert all(abs(time.time() - entry.used) < 60 and entry.size and entry.files for entry in entries)


async def test_remove_takes_a_version_a_range_or_all(
    npm: registry.Registry, packages: PackageManager, home: Path
) -> None:
    for version in ("1.0.0", "1.1.0", "2.0.0", "2.1.0-beta.1"):
        npm.publish("made-up", version)
        await packages.get(parse_spec("made-up", version))
    assert [entry.version for entry in await packages.remove("made-up", "1.0.0")] == ["1.0.0"]
    assert [entry.version for entry in await packages.remove("made-up", "^1")] == ["1.1.0"]
    assert await packages.remove("made-up", "^1") == []
    assert await packages.remove("made-up", "no-range") == []
    assert {entry.version for entry in await packages.remove("made-up")} == {"2.0.0", "2.1.0-beta.1"}
    assert packages.list() == []
    await packages.close()
    assert not [path for path in (home / "npm").glob("*/*") if path.parent.name != "documents"]


async def test_prune_removes_unused_broken_and_orphaned_packages(
    npm: registry.Registry, new_packages: NewPackages, home: Path
) -> None:
    packages = new_packages()
    for name in ("used", "unused", "broken"):
        npm.publish(name)
        await packages.get(parse_spec(name))
    root = home / "npm"
    old = time.time() - 10 * DAY
    os.utime(root / "packages" / "unused" / "1.0.0.json", (old, old))
    (tree,) = (
        entry for entry in (root / "trees").iterdir() if '"broken"' in (entry / "package.json").read_text()
    )
    tree.chmod(0o700)
    tree.rename(root / "trees" / "orphan")
    (root / "staging" / staging_name_of_dead_process()).mkdir()
    pruned = await packages.prune(5)
    assert {entry.name for entry in pruned.packages} == {"unused", "broken"}
    assert pruned.freed > 0
    assert [entry.name for entry in packages.list()] == ["used"]
    assert exports((await packages.get(parse_spec("used", "1.0.0"))).tree) == ["tool"]
    # A new tree without a record is kept, because another process may be about to write the tree's record.
    assert (root / "trees" / "orphan").exists()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hutch.npm.package_store.ORPHAN_SECONDS", -1)
        assert (await packages.prune(5)).leftovers == 1
    await packages.close()
    assert len([*(root / "trees").iterdir()]) == 1
    assert staged(home) == []


async def test_used_package_is_not_pruned(
    npm: registry.Registry, new_packages: NewPackages, home: Path
) -> None:
    npm.publish("made-up")
    await new_packages().get(parse_spec("made-up"))
    old = time.time() - 10 * DAY
    os.utime(home / "npm" / "packages" / "made-up" / "1.0.0.json", (old, old))
    packages = new_packages()
    await packages.get(parse_spec("made-up"))
    assert (await packages.prune(5)).packages == ()


async def test_killed_host_leaves_no_process_and_its_staging_folder_is_removed(
    npm: registry.Registry, new_packages: NewPackages, home: Path
) -> None:
    npm.publish("made-up")
    npm.faults["made-up/tarball"] = "hangs"
    with start_other_process(home, "made-up") as host:
        await asyncio.to_thread(wait_until, lambda: "made-up@1.0.0" in npm.requests)
        handles = [os.pidfd_open(pid) for pid in descendants(host.pid)]
        host.send_signal(signal.SIGKILL)
        host.wait(10)
    assert handles
    assert all([await asyncio.to_thread(ended, handle) for handle in handles])
    assert len(staged(home)) == 1
    npm.faults.clear()
    packages = new_packages()
    # The lock of the killed process is free again.
    assert (await packages.get(parse_spec("made-up"))).version == "1.0.0"
    await packages.close()
    assert staged(home) == []


def ended(handle: int) -> bool:
    try:
        return bool(select.select([handle], [], [], 10)[0])
    finally:
        os.close(handle)


async def test_staging_folder_of_a_live_process_is_kept(
    npm: registry.Registry, new_packages: NewPackages, home: Path
) -> None:
    waiting = await downloading(npm, new_packages())
    second = new_packages()
    await second.prune(0)
    await second.close()
    assert len(staged(home)) == 1
    waiting.cancel()


async def test_folder_of_a_cancelled_installation_is_removed_after_its_thread_ends(
    npm: registry.Registry, new_packages: NewPackages, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    npm.publish("made-up")
    packages = new_packages(install_seconds=0.05)
    go = threading.Event()

    def link_into(downloads: Path, *_: object) -> None:
        go.wait(60)
        (downloads / "late").mkdir(parents=True)

    monkeypatch.setattr(packages._store.metadata, "link_into", link_into)
    with pytest.raises(PackageNotFound, match="could not be installed within"):
        await packages.get(parse_spec("made-up"))
    # Wait until all deleted folders are gone, and then let the thread continue. The thread must not create a
    # folder again.
    await asyncio.to_thread(packages._store._sweeper.submit(lambda: None).result)
    go.set()
    await packages.close()
    assert staged(home) == []


async def test_unused_package_manager_creates_nothing(new_packages: NewPackages, home: Path) -> None:
    packages = new_packages(offline=True)
    assert packages.list() == []
    await packages.close()
    assert not [*home.parent.glob("home")]


async def test_invalid_records_are_ignored(
    npm: registry.Registry, new_packages: NewPackages, home: Path
) -> None:
    npm.publish("made-up")
    await new_packages().get(parse_spec("made-up"))
    for file in (home / "npm" / "packages" / "made-up").iterdir():
        file.write_bytes(b'{"name": ')
    packages = new_packages()
    assert packages.list() == []
    assert (await packages.get(parse_spec("made-up"))).version == "1.0.0"
    assert [entry.name for entry in packages.list()] == ["made-up"]
