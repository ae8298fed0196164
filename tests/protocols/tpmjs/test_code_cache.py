"""The code cache of npm packages: only Deno fills it, and it is removed with the package."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.contract.tpmjs.harness import eventually, tool
from tests.support.packaged import ToolsHarness, open_tools
from tests.support.processes import descendants

from hutch.errors import HutchError
from hutch.protocols.tpmjs import code_cache

CODE = "v8_code_cache_v2"


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[ToolsHarness]:
    async with open_tools(tmp_path, max_spares=0) as running:
        yield running


def caches(harness: ToolsHarness) -> Path:
    return harness.app.settings.home_path / "npm" / "caches"


def finished_caches(harness: ToolsHarness) -> list[Path]:
    """Returns the folders of finished caches."""
    return [*caches(harness).glob("*/*")]


async def execute_repeatedly(harness: ToolsHarness, package: str, times: int = 2) -> None:
    for _ in range(times):
        await harness.execute(package)


async def wait_idle(harness: ToolsHarness) -> None:
    """Waits until no cache is being created."""
    await eventually(lambda: not harness.app.tools._code_cache._tasks)


async def test_package_used_once_is_not_cached(harness: ToolsHarness) -> None:
    await execute_repeatedly(harness, "count", 1)
    await wait_idle(harness)
    assert finished_caches(harness) == []


async def test_processes_of_a_package_used_again_open_the_cache(
    tmp_path: Path,
) -> None:
    async with open_tools(tmp_path, max_spares=1) as harness:
        await execute_repeatedly(harness, "count")
        await wait_idle(harness)
        [folder] = finished_caches(harness)
        assert (folder / CODE).stat().st_size > 0
        # Use up the current spare, because it may have started before the cache was filled.
        await execute_repeatedly(harness, "count")
        await harness.wait_settled()
        [spare] = [runner for ready in harness.app.pool.runners.warm.values() for runner in ready]
        await eventually(lambda: CODE in {path.name for path in opened_by(spare.pid)})
        assert await harness.execute("count") == [1, None]


def opened_by(pid: int) -> Iterator[Path]:
    for process in descendants(pid):
        for handle in Path(f"/proc/{process}/fd").iterdir():
            with contextlib.suppress(OSError):
                yield handle.readlink()


async def test_package_code_can_neither_read_nor_write_the_cache(
    harness: ToolsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant = """
        import * as fs from "node:fs";
        import { DatabaseSync } from "node:sqlite";
        const attempt = (act) => { try { act() } catch {} };
        const places = ["/cache", "//cache/.", "/tmp/../cache", "/proc/self/root/cache"];
        for (const [index, at] of ["/cache", "/", "/cache/v8_code_cache_v2"].entries()) {
          attempt(() => { fs.symlinkSync(at, `/tmp/way${index}`); places.push(`/tmp/way${index}`) });
          attempt(() => { Deno.symlinkSync(at, `/tmp/by${index}`); places.push(`/tmp/by${index}/cache`) });
          attempt(() => { fs.linkSync(at, `/tmp/path${index}`); places.push(`/tmp/path${index}`) });
        }
        for (const place of places) {
          attempt(() => fs.writeFileSync(`${place}/planted`, "1"));
          attempt(() => fs.writeFileSync(place, "planted"));
          attempt(() => Deno.writeTextFileSync(`${place}/planted`, "1"));
          attempt(() => fs.mkdirSync(`${place}/planted-folder`));
          attempt(() => fs.chmodSync(place, 0o4777));
          attempt(() => fs.renameSync("/tmp", `${place}/planted-tmp`));
          attempt(() => new DatabaseSync(`${place}/planted_cache_v1`).exec("create table t(a)"));
          attempt(() => new DatabaseSync(":memory:").exec(`vacuum into '${place}/planted_cache_v2'`));
        }
    """
    harness.npm.publish("gardener", type="module", files={"index.js": tool("return 'grown'", plant)})
    seen: list[str] = []

    def recording_copy(handle: int, folder: Path) -> None:
        seen.extend(os.listdir(handle))
        copy(handle, folder)

    copy = code_cache._copy_databases
    monkeypatch.setattr(code_cache, "_copy_databases", recording_copy)
    await execute_repeatedly(harness, "gardener")
    await wait_idle(harness)
    [folder] = finished_caches(harness)
    assert CODE in seen
    assert [name for name in seen if "planted" in name] == []
    assert {path.name.removesuffix("-wal").rpartition("_cache_v")[1] for path in folder.iterdir()} == {
        "_cache_v"
    }
    assert all(path.stat().st_mode & 0o7777 == 0o444 for path in folder.iterdir())
    assert b"planted" not in b"".join(path.read_bytes() for path in folder.iterdir())


async def test_only_deno_databases_are_copied(tmp_path: Path) -> None:
    """A package may have bypassed Deno's permissions and written other files. Only databases of Deno are
    copied to the cache.
    """
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / CODE).write_bytes(b"code")
    (folder / "x_cache_v1").symlink_to("/etc/passwd")
    handle = os.open(folder, os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="symbolic"):
            code_cache._copy_databases(handle, tmp_path / "one")
        (folder / "x_cache_v1").unlink()
        os.mkfifo(folder / "x_cache_v1")
        with pytest.raises(HutchError):
            code_cache._copy_databases(handle, tmp_path / "two")
        (folder / "x_cache_v1").unlink()
        (folder / "x_cache_v1").write_bytes(bytes(code_cache.MAX_CACHE_BYTES))
        with pytest.raises(HutchError):
            code_cache._copy_databases(handle, tmp_path / "three")
        (folder / "x_cache_v1").unlink()
        (folder / "other").write_text("no database")
        (folder / "folder").mkdir()
        code_cache._copy_databases(handle, tmp_path / "four")
        assert [path.name for path in (tmp_path / "four").iterdir()] == [CODE]
        (folder / CODE).write_bytes(b"")
        with pytest.raises(HutchError):
            code_cache._copy_databases(handle, tmp_path / "five")
    finally:
        os.close(handle)


async def test_cache_run_is_counted_and_logged_but_not_in_the_run_history(
    harness: ToolsHarness, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "hutch.runs")
    store = await harness.app.storage.store()
    await execute_repeatedly(harness, "count")
    await wait_idle(harness)
    assert len(finished_caches(harness)) == 1
    await store.write_behind.flush()
    stored = [run.label for owner in ("ann", "default") for run in await store.runs.list(owner, 10, None)]
    assert stored == ["count@1.0.0#tool"] * 2
    assert harness.app.counters.outcomes == {("tpmjs", "npm", "ok"): 2, ("internal", "npm", "ok"): 1}
    logged = [(record.levelname, record.__dict__["fields"]["label"]) for record in caplog.records]
    assert logged == [("INFO", "count@1.0.0#tool")] * 2 + [("DEBUG", "code cache of count@1.0.0")]


async def test_cache_waits_for_free_capacity(tmp_path: Path) -> None:
    async with open_tools(tmp_path, max_spares=0, max_processes=1) as harness:
        await asyncio.gather(*(harness.execute("count") for _ in range(3)))
        await wait_idle(harness)
        await execute_repeatedly(harness, "count", 1)
        await wait_idle(harness)
        assert await harness.execute("count") == [1, None]


@pytest.mark.parametrize(
    "source",
    ["throw new Error('no')", "await new Promise(() => {})", "Deno.exit(1)", "for (;;);"],
    ids=["throws", "waits", "exits", "loops"],
)
async def test_package_that_needs_an_env_to_be_imported_still_works(
    tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run that creates the cache has no env, so this package gets no cache. Calls of the package still
    work.
    """
    monkeypatch.setattr(code_cache, "IMPORT_MS", 500)
    async with open_tools(tmp_path, max_spares=0) as harness:
        before = f"if (!process.env.WHO) {{ {source} }}"
        harness.npm.publish("needy", type="module", files={"index.js": tool("return 'well'", before)})
        for _ in range(3):
            assert await harness.execute("needy", env={"WHO": "me"}) == "well"
        await wait_idle(harness)
        assert await harness.execute("needy", env={"WHO": "me"}) == "well"


async def test_deleted_cache_is_created_again_after_a_while(
    harness: ToolsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await execute_repeatedly(harness, "count")
    await wait_idle(harness)
    shutil.rmtree(caches(harness))
    await execute_repeatedly(harness, "count")
    await wait_idle(harness)
    assert finished_caches(harness) == []
    monkeypatch.setattr(code_cache, "RETRY_SECONDS", 0.0)
    harness.app.tools._code_cache._not_before.clear()
    await execute_repeatedly(harness, "count")
    await wait_idle(harness)
    assert len(finished_caches(harness)) == 1


async def test_cache_is_removed_with_the_package(harness: ToolsHarness) -> None:
    await execute_repeatedly(harness, "count")
    await wait_idle(harness)
    assert len(finished_caches(harness)) == 1
    await harness.app.packages.remove("count")
    assert [*caches(harness).iterdir()] == []


async def test_cache_of_another_deno_version_is_replaced(harness: ToolsHarness) -> None:
    await harness.execute("count")
    [tree] = (caches(harness).parent / "trees").iterdir()
    package = caches(harness) / tree.name
    (package / "1.0.0").mkdir(parents=True)
    (package / "1.0.0" / CODE).write_text("old")
    await harness.execute("count")
    await wait_idle(harness)
    [folder] = finished_caches(harness)
    assert folder.name != "1.0.0"


async def test_unusable_cache_folder_is_ignored(harness: ToolsHarness) -> None:
    caches(harness).parent.mkdir(parents=True, exist_ok=True)
    caches(harness).write_text("in the way")
    await execute_repeatedly(harness, "count", 3)
    await wait_idle(harness)
    assert caches(harness).is_file()


async def test_close_cancels_a_cache_run(tmp_path: Path) -> None:
    async with open_tools(tmp_path, max_spares=0) as harness:
        before = "if (!process.env.WHO) await new Promise(() => {})"
        harness.npm.publish("needy", type="module", files={"index.js": tool("return 'well'", before)})
        for _ in range(2):
            await harness.execute("needy", env={"WHO": "me"})
        assert harness.app.tools._code_cache._tasks
    assert [*(tmp_path / "npm" / "staging").iterdir()] == []
