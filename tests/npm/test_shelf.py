"""Installed once, for everybody, at once or not at all; and kept in order."""

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
from tests.npm.conftest import NewShelf
from tests.npm.trees import exports
from tests.processes import descendants, until

from hutch.errors import PackageNotFound
from hutch.npm import shelf as shelf_module
from hutch.npm.names import parse
from hutch.npm.shelf import Package, Shelf
from hutch.sandbox import identity

DAY = 86_400.0

# Another process that shares the home: it gets a package, and prints its tree.
ANOTHER = """
import asyncio, sys
from hutch.npm.names import parse_argument
from hutch.npm.shelf import Package, Shelf
from hutch.settings import load

async def main():
    shelf = Shelf(load({"home": sys.argv[1]}))
    print((await shelf.get(parse_argument(sys.argv[2]))).tree, flush=True)
    await shelf.close()

asyncio.run(main())
"""


def another(home: Path, package: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", ANOTHER, str(home), package], stdout=subprocess.PIPE, text=True
    )


async def downloading(npm: registry.Registry, shelf: Shelf) -> asyncio.Task[Package]:
    """Who waits for a package that the registry begins to send and does not end."""
    npm.publish("made-up")
    npm.faults["made-up/tarball"] = "hangs"
    waiting = asyncio.create_task(shelf.get(parse("made-up")))
    await asyncio.to_thread(until, lambda: "made-up@1.0.0" in npm.requests)
    return waiting


def staged(home: Path) -> list[Path]:
    return [*(home / "npm" / "staging").glob("*")]


def left_by_the_dead() -> str:
    namespace, _, started = identity.of_this_host().split("-")
    return f"{namespace}-999999999-{started}-1"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


# --- once ---


async def test_an_exact_version_is_asked_for_once_and_never_again(
    npm: registry.Registry, new_shelf: NewShelf
) -> None:
    npm.publish("made-up")
    first = await new_shelf().get(parse("made-up", "1.0.0"))
    npm.close()
    shelf = new_shelf(latest_seconds=0)
    assert await shelf.get(parse("made-up", "1.0.0")) == first
    assert await shelf.get(parse("made-up", "v1.0.0")) == first
    assert npm.requests == ["made-up", "made-up@1.0.0"]


async def test_all_who_ask_at_once_wait_for_one_installation(npm: registry.Registry, shelf: Shelf) -> None:
    npm.publish("made-up")
    said: list[list[str]] = [[], []]
    packages = await asyncio.gather(
        *(shelf.get(parse("made-up"), said[number % 2].append) for number in range(20)),
        *(shelf.get(parse("made-up", version)) for version in ("1.0.0", "^1", "*")),
    )
    assert len({package.tree for package in packages}) == 1
    assert npm.requests.count("made-up@1.0.0") == 1
    assert said[0] == said[1]
    assert {"installing made-up@latest", "downloading package 1", "checking"} <= set(said[0])


async def test_all_who_ask_at_once_get_the_same_failure(npm: registry.Registry, shelf: Shelf) -> None:
    results = await asyncio.gather(*(shelf.get(parse("absent")) for _ in range(5)), return_exceptions=True)
    assert all(isinstance(result, PackageNotFound) for result in results)
    assert npm.count("absent") == 1


async def test_processes_that_share_a_home_install_once(npm: registry.Registry, home: Path) -> None:
    npm.publish("made-up")
    processes = [another(home, "made-up@^1") for _ in range(2)]
    trees = {process.communicate(timeout=60)[0].strip() for process in processes}
    assert len(trees) == 1
    assert trees != {""}
    assert npm.requests.count("made-up@1.0.0") == 1
    assert not [*(home / "npm" / "locks").iterdir()]


async def test_a_tree_that_somebody_else_removed_is_installed_again(
    npm: registry.Registry, new_shelf: NewShelf
) -> None:
    npm.publish("made-up")
    ours, theirs = new_shelf(), new_shelf()
    tree = (await ours.get(parse("made-up", "1.0.0"))).tree
    await theirs.remove("made-up")
    assert not tree.exists()
    assert (await ours.get(parse("made-up", "1.0.0"))).tree == tree
    assert exports(tree) == ["tool"]


async def test_what_nothing_was_said_of_is_not_visible(
    npm: registry.Registry, new_shelf: NewShelf, home: Path
) -> None:
    waiting = await downloading(npm, new_shelf())
    assert staged(home)
    assert new_shelf().list() == []
    assert not [*(home / "npm").glob("trees/*")]
    waiting.cancel()


# --- ranges and tags ---


async def test_ranges_and_tags_become_one_exact_version(npm: registry.Registry, shelf: Shelf) -> None:
    for version in ("1.0.0", "1.2.0", "2.0.0"):
        npm.publish("made-up", version)
    npm.publish("made-up", "3.0.0-beta.1", tag="next")
    found = {
        version: (await shelf.get(parse("made-up", version))).version
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
    assert {entry.version: set(entry.known_as) for entry in shelf.list()} == {
        "1.0.0": {"1.0.x"},
        "1.2.0": {"^1", ">=1 <2"},
        "2.0.0": {"latest", "1 - 2", "^2 || ^1", "*"},
        "3.0.0-beta.1": {"next"},
    }


async def test_an_answer_is_believed_for_its_time_and_then_asked_for_again(
    npm: registry.Registry, new_shelf: NewShelf
) -> None:
    npm.publish("base")
    npm.publish("made-up", dependencies={"base": "1"})
    shelf = new_shelf()
    assert (await shelf.get(parse("made-up"))).version == "1.0.0"
    npm.publish("made-up", "1.1.0", dependencies={"base": "1"})
    npm.requests.clear()
    assert (await shelf.get(parse("made-up"))).version == "1.0.0"
    assert npm.requests == []
    later = new_shelf(latest_seconds=0)
    assert (await later.get(parse("made-up"))).version == "1.1.0"
    npm.requests.clear()
    # That nothing has changed is one document's affair.
    assert (await later.get(parse("made-up"))).version == "1.1.0"
    assert npm.requests == ["made-up"]


async def test_an_answer_that_is_used_all_the_time_is_renewed_before_its_time_is_up(
    npm: registry.Registry, new_shelf: NewShelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    npm.publish("made-up")
    shelf = new_shelf()
    await shelf.get(parse("made-up"))
    npm.publish("made-up", "1.1.0")
    now = time.time()
    monkeypatch.setattr(shelf_module.time, "time", lambda: now + 0.9 * 300)
    assert (await shelf.get(parse("made-up"))).version == "1.0.0"
    await asyncio.to_thread(until, lambda: "made-up@1.1.0" in npm.requests)
    await asyncio.gather(*(flight.task for flight in shelf._flights.values()))
    assert (await shelf.get(parse("made-up"))).version == "1.1.0"


@pytest.mark.parametrize("fault", ["broken", "hangs", None])
async def test_a_registry_that_is_down_leaves_us_with_the_version_that_we_have(
    npm: registry.Registry,
    new_shelf: NewShelf,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fault: registry.Fault | None,
) -> None:
    monkeypatch.setattr(shelf_module, "REFRESH_SECONDS", 0.5)
    npm.publish("made-up")
    await new_shelf().get(parse("made-up"))
    if fault is None:
        npm.close()
    else:
        npm.faults["made-up"] = fault
    shelf = new_shelf(latest_seconds=0)
    assert (await shelf.get(parse("made-up"))).version == "1.0.0"
    assert "made-up@latest stays 1.0.0 for now" in caplog.text
    asked = len(npm.requests)
    # And it is left alone for a while.
    assert (await shelf.get(parse("made-up"))).version == "1.0.0"
    assert len(npm.requests) == asked


async def test_a_package_that_was_withdrawn_is_no_longer_the_latest(
    npm: registry.Registry, new_shelf: NewShelf
) -> None:
    npm.publish("made-up")
    await new_shelf().get(parse("made-up"))
    npm.unpublish("made-up")
    shelf = new_shelf(latest_seconds=0)
    with pytest.raises(PackageNotFound, match="There is no package"):
        await shelf.get(parse("made-up"))
    assert (await shelf.get(parse("made-up", "1.0.0"))).version == "1.0.0"


async def test_adding_asks_anew_and_is_not_content_with_what_there_is(
    npm: registry.Registry, shelf: Shelf
) -> None:
    npm.publish("made-up")
    await shelf.get(parse("made-up"))
    npm.publish("made-up", "1.1.0")
    assert (await shelf.add(parse("made-up"))).version == "1.1.0"
    npm.faults["made-up"] = "broken"
    with pytest.raises(PackageNotFound, match="failed"):
        await shelf.add(parse("made-up"))


async def test_a_dependencys_new_version_is_found_although_its_document_is_still_believed(
    npm: registry.Registry, shelf: Shelf
) -> None:
    npm.publish("base", "1.0.0")
    npm.publish("one", dependencies={"base": "^1"})
    await shelf.get(parse("one"))
    npm.publish("base", "2.0.0", {"index.js": "export const second = 1;"})
    npm.publish("two", files={"index.js": "export * from 'base';"}, dependencies={"base": "^2"})
    assert exports((await shelf.get(parse("two"))).tree) == ["second"]


async def test_ranges_without_end_do_not_pile_up(npm: registry.Registry, new_shelf: NewShelf) -> None:
    npm.publish("made-up")
    shelf = new_shelf()
    await shelf.get(parse("made-up"))
    for number in range(100):
        shelf._store.records.resolve("made-up", f">=0.0.{number}", "1.0.0")
    (entry,) = shelf.list()
    assert len(entry.known_as) == 64
    assert ">=0.0.99" in entry.known_as


# --- offline ---


async def test_offline_only_what_is_on_the_shelf_can_be_had(
    npm: registry.Registry, new_shelf: NewShelf
) -> None:
    for version in ("1.0.0", "1.2.0", "2.0.0-beta.1"):
        npm.publish("made-up", version)
        await new_shelf().get(parse("made-up", version))
    npm.tag("made-up", "latest", "1.0.0")
    await new_shelf().get(parse("made-up", "latest"))
    npm.requests.clear()
    shelf = new_shelf(offline=True, latest_seconds=0)
    wanted = ("1.2.0", "^1", "1.0.x", "latest", "*", "^2.0.0-0")
    found = [(await shelf.get(parse("made-up", version))).version for version in wanted]
    # What a tag was is known; what a range would be is not, but that one of ours is in it.
    assert found == ["1.2.0", "1.2.0", "1.0.0", "1.0.0", "1.2.0", "2.0.0-beta.1"]
    for name, version in (("made-up", "3.0.0"), ("made-up", "^3"), ("made-up", "next"), ("other", "latest")):
        with pytest.raises(PackageNotFound, match="offline") as caught:
            await shelf.get(parse(name, version))
        assert not caught.value.retryable
    with pytest.raises(PackageNotFound, match="offline"):
        await shelf.add(parse("other"))
    assert npm.requests == []


# --- order ---


async def test_the_list_says_what_is_there_and_when_it_was_used(npm: registry.Registry, shelf: Shelf) -> None:
    for name, version in (("b", "1.10.0"), ("b", "1.9.0"), ("@a/b", "1.0.0")):
        npm.publish(name, version)
        await shelf.get(parse(name, version))
    entries = shelf.list()
    assert [(entry.name, entry.version) for entry in entries] == [
        ("@a/b", "1.0.0"),
        ("b", "1.9.0"),
        ("b", "1.10.0"),
    ]
    assert all(abs(time.time() - entry.used) < 60 and entry.size and entry.files for entry in entries)


async def test_removing_takes_a_version_a_range_or_all(
    npm: registry.Registry, shelf: Shelf, home: Path
) -> None:
    for version in ("1.0.0", "1.1.0", "2.0.0", "2.1.0-beta.1"):
        npm.publish("made-up", version)
        await shelf.get(parse("made-up", version))
    assert [entry.version for entry in await shelf.remove("made-up", "1.0.0")] == ["1.0.0"]
    assert [entry.version for entry in await shelf.remove("made-up", "^1")] == ["1.1.0"]
    assert await shelf.remove("made-up", "^1") == []
    assert await shelf.remove("made-up", "no-range") == []
    assert {entry.version for entry in await shelf.remove("made-up")} == {"2.0.0", "2.1.0-beta.1"}
    assert shelf.list() == []
    await shelf.close()
    assert not [path for path in (home / "npm").glob("*/*") if path.parent.name != "documents"]


async def test_pruning_removes_what_was_not_used_and_what_is_broken_or_left_over(
    npm: registry.Registry, new_shelf: NewShelf, home: Path
) -> None:
    shelf = new_shelf()
    for name in ("used", "unused", "broken"):
        npm.publish(name)
        await shelf.get(parse(name))
    root = home / "npm"
    old = time.time() - 10 * DAY
    os.utime(root / "packages" / "unused" / "1.0.0.json", (old, old))
    (tree,) = (
        entry for entry in (root / "trees").iterdir() if '"broken"' in (entry / "package.json").read_text()
    )
    tree.chmod(0o700)
    tree.rename(root / "trees" / "nobody-knows-me")
    (root / "staging" / left_by_the_dead()).mkdir()
    pruned = await shelf.prune(5)
    assert {entry.name for entry in pruned.packages} == {"unused", "broken"}
    assert pruned.freed > 0
    assert [entry.name for entry in shelf.list()] == ["used"]
    assert exports((await shelf.get(parse("used", "1.0.0"))).tree) == ["tool"]
    # Somebody may just be about to say what it is.
    assert (root / "trees" / "nobody-knows-me").exists()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hutch.npm.store.ORPHAN_SECONDS", -1)
        assert (await shelf.prune(5)).leftovers == 1
    await shelf.close()
    assert len([*(root / "trees").iterdir()]) == 1
    assert staged(home) == []


async def test_use_keeps_a_package_from_being_pruned(
    npm: registry.Registry, new_shelf: NewShelf, home: Path
) -> None:
    npm.publish("made-up")
    await new_shelf().get(parse("made-up"))
    old = time.time() - 10 * DAY
    os.utime(home / "npm" / "packages" / "made-up" / "1.0.0.json", (old, old))
    shelf = new_shelf()
    await shelf.get(parse("made-up"))
    assert (await shelf.prune(5)).packages == ()


async def test_a_host_that_is_killed_leaves_no_process_and_its_rests_are_swept(
    npm: registry.Registry, new_shelf: NewShelf, home: Path
) -> None:
    npm.publish("made-up")
    npm.faults["made-up/tarball"] = "hangs"
    with another(home, "made-up") as host:
        await asyncio.to_thread(until, lambda: "made-up@1.0.0" in npm.requests)
        handles = [os.pidfd_open(pid) for pid in descendants(host.pid)]
        host.send_signal(signal.SIGKILL)
        host.wait(10)
    assert handles
    assert all([await asyncio.to_thread(ended, handle) for handle in handles])
    assert len(staged(home)) == 1
    npm.faults.clear()
    shelf = new_shelf()
    # The lock that it held is free.
    assert (await shelf.get(parse("made-up"))).version == "1.0.0"
    await shelf.close()
    assert staged(home) == []


def ended(handle: int) -> bool:
    try:
        return bool(select.select([handle], [], [], 10)[0])
    finally:
        os.close(handle)


async def test_what_a_process_that_lives_has_staged_is_left_alone(
    npm: registry.Registry, new_shelf: NewShelf, home: Path
) -> None:
    waiting = await downloading(npm, new_shelf())
    second = new_shelf()
    await second.prune(0)
    await second.close()
    assert len(staged(home)) == 1
    waiting.cancel()


async def test_what_is_given_up_while_a_thread_is_at_it_is_removed_after_that(
    npm: registry.Registry, new_shelf: NewShelf, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    npm.publish("made-up")
    shelf = new_shelf(install_seconds=0.05)
    go = threading.Event()

    def lend(downloads: Path, *_: object) -> None:
        go.wait(60)
        (downloads / "late").mkdir(parents=True)

    monkeypatch.setattr(shelf._store.documents, "lend", lend)
    with pytest.raises(PackageNotFound, match="could not be installed within"):
        await shelf.get(parse("made-up"))
    # Whatever was thrown away by then is gone before the thread goes on.
    await asyncio.to_thread(shelf._store._sweeper.submit(lambda: None).result)
    go.set()
    await shelf.close()
    assert staged(home) == []


async def test_a_shelf_that_was_never_used_leaves_nothing(new_shelf: NewShelf, home: Path) -> None:
    shelf = new_shelf(offline=True)
    assert shelf.list() == []
    await shelf.close()
    assert not [*home.parent.glob("home")]


async def test_records_that_make_no_sense_are_as_if_they_were_not_there(
    npm: registry.Registry, new_shelf: NewShelf, home: Path
) -> None:
    npm.publish("made-up")
    await new_shelf().get(parse("made-up"))
    for file in (home / "npm" / "packages" / "made-up").iterdir():
        file.write_bytes(b'{"name": ')
    shelf = new_shelf()
    assert shelf.list() == []
    assert (await shelf.get(parse("made-up"))).version == "1.0.0"
    assert [entry.name for entry in shelf.list()] == ["made-up"]
