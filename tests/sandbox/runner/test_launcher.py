"""The launcher: folders, sockets and cleanup."""

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
from tests.sandbox.sandboxes import open_sandbox
from tests.support.processes import descendants
from tests.support.waiting import eventually

from hutch.errors import SandboxUnavailable
from hutch.sandbox import temp_dirs
from hutch.sandbox.runner.profile import profile_for


def folders(pid: int) -> list[Path]:
    return [*Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()).glob(f"hutch-run-*-{pid}-*")]


def files(folder: Path) -> list[Path]:
    return [*folder.iterdir()]


@pytest.fixture
def runtime_dir(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A runtime folder with a short path, because the length of a socket's path is limited."""
    with tempfile.TemporaryDirectory(prefix="h") as made:
        monkeypatch.setenv("XDG_RUNTIME_DIR", made)
        yield Path(made)


async def test_socket_folder_is_private_and_empty_after_a_start(runtime_dir: Path) -> None:
    async with open_sandbox() as sandbox:
        [folder] = folders(os.getpid())
        assert folder.parent == runtime_dir
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        process = await sandbox.launcher.launch(profile_for("quickjs"))
        assert process.is_alive
        assert list(folder.iterdir()) == []
        process.kill()
        await process.wait()
    assert files(runtime_dir) == []


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize("engine", ["quickjs", "deno"])
async def test_failed_and_cancelled_launches_leave_nothing_open(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_sandbox() as sandbox:
        profile, loop = profile_for(engine), asyncio.get_running_loop()
        process = await sandbox.launcher.launch(profile)
        process.kill()
        await process.wait()
        gc.collect()
        before = open_files()

        def refused(*_: Any) -> None:
            raise OSError("no space")

        with monkeypatch.context() as patch:
            patch.setattr("hutch.sandbox.runner.launcher.RunnerListener", refused)
            for _ in range(3):
                with pytest.raises(OSError, match="no space"):
                    await sandbox.launcher.launch(profile)
        assert open_files() == before
        for turns in range(6):
            launching = loop.create_task(sandbox.launcher.launch(profile))
            for _ in range(turns):
                await asyncio.sleep(0)
            launching.cancel()
            await asyncio.wait((launching,))
            assert launching.cancelled()
        await eventually(lambda: open_files() <= before)


async def test_unwritable_runtime_folder_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/nowhere/at/all")
    async with open_sandbox() as sandbox:
        assert (await sandbox.run("1")).result == 1


async def test_folders_of_exited_hosts_are_removed_and_others_kept(runtime_dir: Path) -> None:
    own_id = temp_dirs.host_id()
    namespace, pid, start = own_id.split("-")
    dead = runtime_dir / f"hutch-run-{namespace}-{pid}-{int(start) + 1}-x"
    alive = runtime_dir / f"hutch-run-{own_id}-x"
    other_namespace = runtime_dir / f"hutch-run-{int(namespace) + 1}-{pid}-{start}-x"
    foreign, malformed = runtime_dir / "other-1-x", runtime_dir / "hutch-run-notanumber-x"
    for folder in (dead, alive, other_namespace, foreign, malformed):
        folder.mkdir()
        (folder / "1").touch()
    async with open_sandbox():
        assert not dead.exists()
        assert alive.exists()
        assert other_namespace.exists()
        assert foreign.exists()
        assert malformed.exists()


async def test_removed_folder_is_created_again(runtime_dir: Path) -> None:
    async with open_sandbox() as sandbox:
        [folder] = folders(os.getpid())
        shutil.rmtree(folder)
        assert (await sandbox.run("1", "deno")).result == 1
        assert len(folders(os.getpid())) == 1
    assert files(runtime_dir) == []


async def test_closed_sandbox_leaves_no_processes_or_files(runtime_dir: Path) -> None:
    before = {*descendants(os.getpid())}
    async with open_sandbox(deno_warm=2, quickjs_warm=1) as sandbox:
        for engine in ("quickjs", "deno"):
            await sandbox.run("1", engine)
        sandbox.pool.keep_warm(profile_for("quickjs"), 2)
        running = [
            asyncio.create_task(sandbox.run("for (;;) await 0", engine)) for engine in ("quickjs", "deno")
        ]
        await asyncio.sleep(0)
    ends = await asyncio.gather(*running, return_exceptions=True)
    assert len(ends) == 2
    assert {*descendants(os.getpid())} <= before
    assert files(runtime_dir) == []


async def test_number_of_processes_never_exceeds_the_limit() -> None:
    max_seen = 0

    async with open_sandbox(max_processes=3, deno_warm=1) as sandbox:
        before = {*descendants(os.getpid())}

        def sample() -> None:
            nonlocal max_seen
            mine = {*descendants(os.getpid())} - before
            parents = [pid for pid in mine if _parent(pid) == os.getpid()]
            max_seen = max(max_seen, len(parents))

        async def one(n: int) -> object:
            result = await sandbox.run(f"await new Promise((r) => setTimeout(r, 20)); return {n}", "deno")
            sample()
            return result.result

        assert await asyncio.gather(*map(one, range(12))) == list(range(12))
    assert 1 <= max_seen <= 3


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


async def test_both_engines_share_the_capacity() -> None:
    async with open_sandbox(max_processes=1) as sandbox:
        for n in range(3):
            assert (await sandbox.run(f"{n}", "quickjs")).result == n
            assert (await sandbox.run(f"{n}", "deno")).result == n


async def test_missing_bundle_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hutch.sandbox.deno_binary.missing_bundle_files", lambda: ["deno.js"])
    with pytest.raises(SandboxUnavailable, match=r"The guest bundle lacks deno\.js\. Build it with"):
        async with open_sandbox():
            pass
