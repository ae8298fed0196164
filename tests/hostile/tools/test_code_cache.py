"""Compiled code of packages is executed for all owners. Neither a hostile caller nor a hostile package can
change it.
"""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from tests.contract.tpmjs.harness import eventually, tool
from tests.support.packaged import ToolsHarness, open_tools

CODE = "v8_code_cache_v2"
# An honest tool that evaluates code of its caller, like tools for templates or queries.
EVALUATOR = tool(
    "return await (async () => eval(params.code ?? '0'))(), answer()", "import { answer } from './answer.js';"
)
ATTACK = """
(async () => {
  const fs = await import("node:fs"), { DatabaseSync } = await import("node:sqlite");
  const attempt = async (act) => { try { await act() } catch {} };
  const places = ["/cache", "//cache/.", "/tmp/../cache", "/proc/self/root/cache", "/pkg", "/hutch"];
  for (const place of places) {
    for (const name of ["v8_code_cache_v2", "v8_code_cache_v2-wal", "answer.js", "npm.js"]) {
      const path = `${place}/${name}`;
      await attempt(() => fs.writeFileSync(path, "poison"));
      await attempt(() => fs.rmSync(path));
      await attempt(() => fs.renameSync("/tmp/poison", path));
      await attempt(() => fs.symlinkSync("/tmp/poison", path));
      await attempt(() => Deno.writeTextFileSync(path, "poison"));
      await attempt(() => Deno.truncateSync(path));
      await attempt(() => new DatabaseSync(path).exec("update codecache set data = x'00'"));
      await attempt(() => new DatabaseSync(":memory:").exec(`vacuum into '${path}'`));
      await attempt(() => new DatabaseSync(":memory:").exec(`attach '${path}' as a; drop table a.codecache`));
    }
  }
  globalThis.answer = () => "poison";
  Object.prototype.answer = () => "poison";
})()
"""


async def execute_until_cached(harness: ToolsHarness, package: str, **options: Any) -> None:
    for _ in range(2):
        await harness.execute(package, **options)
    await eventually(lambda: not harness.app.tools._code_cache._tasks)


def cache_of(harness: ToolsHarness, package: str) -> Path:
    """Returns the folder of the package's code cache."""
    found = harness.app.packages._store.find(package, "1.0.0")
    assert found is not None
    [folder] = found.cache.iterdir()
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("tool_calls_per_process", [1, 5])
async def test_hostile_caller_does_not_change_what_others_execute(
    tmp_path: Path, tool_calls_per_process: int
) -> None:
    settings = {"max_spares": 2, "tool_calls_per_process": tool_calls_per_process}
    async with open_tools(tmp_path, **settings) as harness:
        files = {"index.js": EVALUATOR, "answer.js": "export const answer = () => 'honest';\n"}
        harness.npm.publish("evaluator", files=files)
        hostile = {"code": ATTACK}
        # The server creates the cache after a number of calls. Let the hostile caller make these calls.
        await execute_until_cached(harness, "evaluator", params=hostile, caller="eve")
        before = contents(cache_of(harness, "evaluator"))
        assert CODE in before
        assert b"poison" not in b"".join(before.values())
        await harness.execute("evaluator", hostile, caller="eve")
        await harness.execute("evaluator", hostile, caller="eve", env={"A": "1"})
        assert await harness.execute("evaluator", caller="bob") == "honest"
        assert contents(cache_of(harness, "evaluator")) == before


async def test_poisoned_cache_of_a_package_affects_only_that_package(tmp_path: Path) -> None:
    """In the jails of both packages, the same dependency has the same path, so the packages' caches could be
    confused.
    """

    def publish(harness: ToolsHarness, answer: str) -> None:
        # V8 accepts cached code for any source of the same length. So the sources, and thus the answers, need
        # the same length.
        assert len(answer) == len("honest")
        harness.npm.publish("shared", files={"index.js": f"export const answer = {answer!r};\n"})
        for name in ("evil", "good"):
            source = tool("return answer", "import { answer } from 'shared';")
            harness.npm.publish(name, files={"index.js": source}, dependencies={"shared": "1.0.0"})

    async with open_tools(tmp_path / "forge", max_spares=0) as forge:
        publish(forge, "poison")
        await execute_until_cached(forge, "evil")
        poison = compiled_code(cache_of(forge, "evil"))
    async with open_tools(tmp_path / "home", max_spares=0) as harness:
        publish(harness, "honest")
        for name in ("evil", "good"):
            await execute_until_cached(harness, name)
        # Simulates a package that circumvents Deno's permissions and changes its cache while the cache is
        # created.
        replace_code(cache_of(harness, "evil"), poison)
        assert await harness.execute("evil") == "poison", "the forged cache does not work"
        for caller in ("ann", "bob"):
            assert await harness.execute("good", caller=caller) == "honest"


def compiled_code(folder: Path) -> bytes:
    with contextlib.closing(sqlite3.connect(folder / CODE)) as database:
        [[data]] = database.execute("select data from codecache where specifier like '%/shared/index.js'")
    assert isinstance(data, bytes)
    return data


def replace_code(folder: Path, data: bytes) -> None:
    for path in folder.iterdir():
        path.chmod(0o644)
    with contextlib.closing(sqlite3.connect(folder / CODE)) as database, database:
        changed = database.execute(
            "update codecache set data = ? where specifier like '%/shared/index.js'", (data,)
        )
        assert changed.rowcount == 1
