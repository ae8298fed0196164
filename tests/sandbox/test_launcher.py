"""The launcher: where sockets are, who may reach them, and that nothing of it stays."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.processes import descendants
from tests.sandbox.places import place
from tests.waiting import eventually

from hutch.errors import SandboxUnavailable
from hutch.sandbox import identity
from hutch.sandbox.profile import profile_for


def folders(pid: int) -> list[Path]:
    return [*Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()).glob(f"hutch-run-*-{pid}-*")]


def files(folder: Path) -> list[Path]:
    return [*folder.iterdir()]


@pytest.fixture
def runtime_dir(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of its own for sockets; short, as their paths must be."""
    with tempfile.TemporaryDirectory(prefix="h") as made:
        monkeypatch.setenv("XDG_RUNTIME_DIR", made)
        yield Path(made)


async def test_sockets_are_in_a_folder_for_us_alone_and_gone_once_used(runtime_dir: Path) -> None:
    async with place() as here:
        [folder] = folders(os.getpid())
        assert folder.parent == runtime_dir
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        process = await here.launcher.launch(profile_for("quickjs"))
        assert process.alive
        assert list(folder.iterdir()) == []
        process.kill()
        await process.wait()
    assert files(runtime_dir) == []


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize("engine", ["quickjs", "deno"])
async def test_launches_that_cannot_listen_or_are_cancelled_leave_nothing_open(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with place() as here:
        profile, loop = profile_for(engine), asyncio.get_running_loop()
        process = await here.launcher.launch(profile)
        process.kill()
        await process.wait()
        gc.collect()
        before = open_files()

        async def refused(*_: Any, **__: Any) -> asyncio.Server:
            raise OSError("no room")

        with monkeypatch.context() as patch:
            patch.setattr("hutch.sandbox.launcher._listening", refused)
            for _ in range(3):
                with pytest.raises(OSError, match="no room"):
                    await here.launcher.launch(profile)
        assert open_files() == before
        for turns in range(6):
            launching = loop.create_task(here.launcher.launch(profile))
            for _ in range(turns):
                await asyncio.sleep(0)
            launching.cancel()
            await asyncio.wait((launching,))
            assert launching.cancelled()
        await eventually(lambda: open_files() <= before)


async def test_a_runtime_folder_that_cannot_be_written_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/nowhere/at/all")
    async with place() as here:
        assert (await here.run("1")).result == 1


async def test_folders_of_hosts_that_are_gone_are_swept_and_others_left(runtime_dir: Path) -> None:
    ours = identity.of_this_host()
    namespace, pid, start = ours.split("-")
    dead = runtime_dir / f"hutch-run-{namespace}-{pid}-{int(start) + 1}-x"
    alive = runtime_dir / f"hutch-run-{ours}-x"
    elsewhere = runtime_dir / f"hutch-run-{int(namespace) + 1}-{pid}-{start}-x"
    stranger, odd = runtime_dir / "other-1-x", runtime_dir / "hutch-run-notanumber-x"
    for folder in (dead, alive, elsewhere, stranger, odd):
        folder.mkdir()
        (folder / "1").touch()
    async with place():
        assert not dead.exists()
        assert alive.exists()
        assert elsewhere.exists()
        assert stranger.exists()
        assert odd.exists()


async def test_a_folder_that_was_tidied_away_is_made_again(runtime_dir: Path) -> None:
    async with place() as here:
        [folder] = folders(os.getpid())
        shutil.rmtree(folder)
        assert (await here.run("1", "deno")).result == 1
        assert len(folders(os.getpid())) == 1
    assert files(runtime_dir) == []


async def test_a_closed_place_has_no_processes_and_no_files_left(runtime_dir: Path) -> None:
    before = {*descendants(os.getpid())}
    async with place(deno_warm=2, quickjs_warm=1) as here:
        for engine in ("quickjs", "deno"):
            await here.run("1", engine)
        here.pool.warm(profile_for("quickjs"), 2)
        running = [
            asyncio.create_task(here.run("for (;;) await 0", engine)) for engine in ("quickjs", "deno")
        ]
        await asyncio.sleep(0)
    ends = await asyncio.gather(*running, return_exceptions=True)
    assert len(ends) == 2
    assert {*descendants(os.getpid())} <= before
    assert files(runtime_dir) == []


async def test_no_more_processes_than_allowed_are_ever_there() -> None:
    most = 0

    async with place(max_processes=3, deno_warm=1) as here:
        before = {*descendants(os.getpid())}

        def look() -> None:
            nonlocal most
            mine = {*descendants(os.getpid())} - before
            parents = [pid for pid in mine if _parent(pid) == os.getpid()]
            most = max(most, len(parents))

        async def one(n: int) -> object:
            result = await here.run(f"await new Promise((r) => setTimeout(r, 20)); return {n}", "deno")
            look()
            return result.result

        assert await asyncio.gather(*map(one, range(12))) == list(range(12))
    assert 1 <= most <= 3


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


async def test_both_engines_share_what_there_is_room_for() -> None:
    async with place(max_processes=1) as here:
        for n in range(3):
            assert (await here.run(f"{n}", "quickjs")).result == n
            assert (await here.run(f"{n}", "deno")).result == n


async def test_a_missing_bundle_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hutch.sandbox.bundle.missing", lambda: ["deno.js"])
    with pytest.raises(SandboxUnavailable, match=r"The guest bundle lacks deno\.js\. Build it with"):
        async with place():
            pass
