"""What Deno makes of a package's code is kept, by Deno alone, and goes with the package."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.contract.tpmjs.served import eventually, tool
from tests.packaged import Tools, tools
from tests.processes import descendants

from hutch.doors.tpmjs import caching
from hutch.errors import HutchError
from hutch.kernel import Execution
from hutch.session.host import Outcome

CODE = "v8_code_cache_v2"


@pytest.fixture
async def made(tmp_path: Path) -> AsyncIterator[Tools]:
    async with tools(tmp_path, max_spares=0) as running:
        yield running


def caches(made: Tools) -> Path:
    return made.app.settings.home_path / "npm" / "caches"


def kept(made: Tools) -> list[Path]:
    """The folders that Deno made, as they are shared."""
    return [*caches(made).glob("*/*")]


async def use(made: Tools, package: str, times: int = 2) -> None:
    for _ in range(times):
        await made.execute(package)


async def over(made: Tools) -> None:
    """Until nothing is made any more."""
    await eventually(lambda: not made.app.tools._caching._working)


async def test_package_used_once_is_not_worth_it(made: Tools) -> None:
    await use(made, "count", 1)
    await over(made)
    assert kept(made) == []


async def test_processes_of_a_package_used_again_have_open_what_deno_made_of_it_before(
    tmp_path: Path,
) -> None:
    async with tools(tmp_path, max_spares=1) as made:
        await use(made, "count")
        await over(made)
        [folder] = kept(made)
        assert (folder / CODE).stat().st_size > 0
        # That which is ready now may have been there before.
        await use(made, "count")
        await made.settled()
        [spare] = [runner for ready in made.app.pool._warm.values() for runner in ready]
        await eventually(lambda: CODE in {path.name for path in opened_by(spare.pid)})
        assert await made.execute("count") == [1, None]


def opened_by(pid: int) -> Iterator[Path]:
    for process in descendants(pid):
        for handle in Path(f"/proc/{process}/fd").iterdir():
            with contextlib.suppress(OSError):
                yield handle.readlink()


async def test_code_of_the_package_writes_and_reads_nothing_of_it(
    made: Tools, monkeypatch: pytest.MonkeyPatch
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
    made.npm.publish("gardener", type="module", files={"index.js": tool("return 'grown'", plant)})
    seen: list[str] = []

    def look(handle: int, folder: Path) -> None:
        seen.extend(os.listdir(handle))
        take(handle, folder)

    take = caching._take
    monkeypatch.setattr(caching, "_take", look)
    await use(made, "gardener")
    await over(made)
    [folder] = kept(made)
    assert CODE in seen
    assert [name for name in seen if "planted" in name] == []
    assert {path.name.removesuffix("-wal").rpartition("_cache_v")[1] for path in folder.iterdir()} == {
        "_cache_v"
    }
    assert all(path.stat().st_mode & 0o7777 == 0o444 for path in folder.iterdir())
    assert b"planted" not in b"".join(path.read_bytes() for path in folder.iterdir())


async def test_only_files_of_deno_s_are_taken(tmp_path: Path) -> None:
    """Whatever a package that got past Deno's permissions may have left there."""
    left = tmp_path / "left"
    left.mkdir()
    (left / CODE).write_bytes(b"code")
    (left / "x_cache_v1").symlink_to("/etc/passwd")
    handle = os.open(left, os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="symbolic"):
            caching._take(handle, tmp_path / "one")
        (left / "x_cache_v1").unlink()
        os.mkfifo(left / "x_cache_v1")
        with pytest.raises(HutchError):
            caching._take(handle, tmp_path / "two")
        (left / "x_cache_v1").unlink()
        (left / "x_cache_v1").write_bytes(bytes(caching.MAX_BYTES))
        with pytest.raises(HutchError):
            caching._take(handle, tmp_path / "three")
        (left / "x_cache_v1").unlink()
        (left / "other").write_text("no database")
        (left / "folder").mkdir()
        caching._take(handle, tmp_path / "four")
        assert [path.name for path in (tmp_path / "four").iterdir()] == [CODE]
        (left / CODE).write_bytes(b"")
        with pytest.raises(HutchError):
            caching._take(handle, tmp_path / "five")
    finally:
        os.close(handle)


async def test_run_that_makes_it_is_nobody_s(made: Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[str | None] = []

    def record(id: str, execution: Execution, outcome: Outcome, began: float) -> None:
        recorded.append(execution.label)

    monkeypatch.setattr(made.app.kernel, "_record", record)
    await use(made, "count")
    await over(made)
    assert len(kept(made)) == 1
    assert recorded == ["count@1.0.0#tool"] * 2


async def test_it_waits_until_there_is_room(tmp_path: Path) -> None:
    async with tools(tmp_path, max_spares=0, max_processes=1) as made:
        await asyncio.gather(*(made.execute("count") for _ in range(3)))
        await over(made)
        await use(made, "count", 1)
        await over(made)
        assert await made.execute("count") == [1, None]


@pytest.mark.parametrize(
    "source",
    ["throw new Error('no')", "await new Promise(() => {})", "Deno.exit(1)", "for (;;);"],
    ids=["throws", "waits", "exits", "loops"],
)
async def test_package_that_cannot_be_imported_alone_harms_nothing(
    tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only with its env it can, which the run that makes the cache does not have."""
    monkeypatch.setattr(caching, "IMPORT_MS", 500)
    async with tools(tmp_path, max_spares=0) as made:
        before = f"if (!process.env.WHO) {{ {source} }}"
        made.npm.publish("needy", type="module", files={"index.js": tool("return 'well'", before)})
        for _ in range(3):
            assert await made.execute("needy", env={"WHO": "me"}) == "well"
        await over(made)
        assert await made.execute("needy", env={"WHO": "me"}) == "well"


async def test_what_was_deleted_is_made_again_after_a_while(
    made: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    await use(made, "count")
    await over(made)
    shutil.rmtree(caches(made))
    await use(made, "count")
    await over(made)
    assert kept(made) == []
    monkeypatch.setattr(caching, "RETRY_SECONDS", 0.0)
    made.app.tools._caching._not_before.clear()
    await use(made, "count")
    await over(made)
    assert len(kept(made)) == 1


async def test_it_goes_with_the_package(made: Tools) -> None:
    await use(made, "count")
    await over(made)
    assert len(kept(made)) == 1
    await made.app.shelf.remove("count")
    assert [*caches(made).iterdir()] == []


async def test_of_another_deno_it_is_replaced(made: Tools) -> None:
    await made.execute("count")
    [tree] = (caches(made).parent / "trees").iterdir()
    package = caches(made) / tree.name
    (package / "1.0.0").mkdir(parents=True)
    (package / "1.0.0" / CODE).write_text("old")
    await made.execute("count")
    await over(made)
    [folder] = kept(made)
    assert folder.name != "1.0.0"


async def test_shelf_that_cannot_have_any_does_without(made: Tools) -> None:
    caches(made).parent.mkdir(parents=True, exist_ok=True)
    caches(made).write_text("in the way")
    await use(made, "count", 3)
    await over(made)
    assert caches(made).is_file()


async def test_closing_ends_what_is_being_made(tmp_path: Path) -> None:
    async with tools(tmp_path, max_spares=0) as made:
        before = "if (!process.env.WHO) await new Promise(() => {})"
        made.npm.publish("needy", type="module", files={"index.js": tool("return 'well'", before)})
        for _ in range(2):
            await made.execute("needy", env={"WHO": "me"})
        assert made.app.tools._caching._working
    assert [*(tmp_path / "npm" / "staging").iterdir()] == []
