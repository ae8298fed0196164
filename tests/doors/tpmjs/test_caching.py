"""What Deno makes of a package's code is kept, by Deno alone, and goes with the package."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.contract.tpmjs.served import eventually, tool
from tests.packaged import Tools, tools
from tests.processes import descendants

from hutch.kernel import Execution
from hutch.session.host import Outcome

CODE = "v8_code_cache_v2"
# What Deno itself makes in its folder.
DENOS_OWN = ("v8_code_cache", "dep_analysis_cache", "node_analysis_cache", "node_compat_bin", "npm")


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


async def test_code_of_the_package_writes_and_reads_nothing_of_it(made: Tools) -> None:
    plant = """
        import { mkdirSync, readdirSync, symlinkSync, writeFileSync } from "node:fs";
        const found = [];
        const attempt = (act) => { try { found.push(act()); } catch (error) { found.push(error.name); } };
        const folder = `/cache/${Deno.version.deno}`;
        for (const place of ["/cache", folder]) {
          attempt(() => Deno.writeTextFileSync(`${place}/planted`, "1"));
          attempt(() => writeFileSync(`${place}/planted`, "1"));
          attempt(() => mkdirSync(`${place}/planted`));
          attempt(() => { symlinkSync(place, "/tmp/way"); writeFileSync("/tmp/way/planted", "1"); });
          attempt(() => writeFileSync(`/proc/self/root${place}/planted`, "1"));
        }
        attempt(() => writeFileSync(`${folder}/v8_code_cache_v2`, ""));
    """
    made.npm.publish("gardener", type="module", files={"index.js": tool("return found.length", plant)})
    await use(made, "gardener")
    await over(made)
    [folder] = kept(made)
    assert (folder / CODE).stat().st_size > 0
    assert [path.name for path in folder.iterdir() if not path.name.startswith(DENOS_OWN)] == []
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


async def test_run_that_makes_it_is_nobody_s(made: Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[str | None] = []

    def record(id: str, execution: Execution, outcome: Outcome, began: float) -> None:
        recorded.append(execution.label)

    monkeypatch.setattr(made.app.kernel, "_record", record)
    await use(made, "count")
    await over(made)
    assert len(kept(made)) == 1
    assert recorded == ["count@1.0.0#tool"] * 2


@pytest.mark.parametrize(
    "source",
    ["throw new Error('no')", "await new Promise(() => {})", "Deno.exit(1)", "for (;;);"],
    ids=["throws", "waits", "exits", "loops"],
)
async def test_package_that_cannot_be_imported_alone_harms_nothing(tmp_path: Path, source: str) -> None:
    """Only with its env it can, which the run that makes the cache does not have."""
    async with tools(tmp_path, max_spares=0, tool_timeout_ms=1_000) as made:
        before = f"if (!process.env.WHO) {{ {source} }}"
        made.npm.publish("needy", type="module", files={"index.js": tool("return 'well'", before)})
        for _ in range(3):
            assert await made.execute("needy", env={"WHO": "me"}) == "well"
        await over(made)
        assert await made.execute("needy", env={"WHO": "me"}) == "well"


async def test_too_much_is_not_kept(made: Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hutch.doors.tpmjs.caching.MAX_BYTES", 1)
    monkeypatch.setattr("hutch.doors.tpmjs.caching._LOOK_SECONDS", 0.001)
    await use(made, "count", 3)
    await over(made)
    assert kept(made) == []
    assert await made.execute("count") == [1, None]


async def test_it_goes_with_the_package(made: Tools) -> None:
    await use(made, "count")
    await over(made)
    assert len(kept(made)) == 1
    await made.app.shelf.remove("count")
    assert [*caches(made).iterdir()] == []


async def test_of_another_deno_it_is_replaced(made: Tools) -> None:
    await made.execute("count")
    [package] = caches(made).iterdir()
    (package / "1.0.0").mkdir()
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
