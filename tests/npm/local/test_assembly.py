"""Tests of opening packages that are not published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.npm.conftest import NewPackages
from tests.npm.registry import Registry
from tests.npm.trees import exports

from hutch.errors import PackageNotFound, PackageTooLarge
from hutch.npm.packages import PackageManager


def write_tool(folder: Path, files: dict[str, str] | None = None, **manifest: Any) -> Path:
    folder.mkdir()
    (folder / "package.json").write_text(json.dumps({"name": "@me/tool", "type": "module", **manifest}))
    for name, text in (files or {"index.js": "export const t = 1;"}).items():
        (folder / name).write_text(text)
    return folder


def report(_: str) -> None:
    """Ignores progress messages."""


async def test_package_is_read_only_and_removed_at_the_end(packages: PackageManager, tmp_path: Path) -> None:
    async with packages.open_local(write_tool(tmp_path / "tool"), "./tool", report) as local:
        tree = local.package.tree
        assert exports(tree) == ["t"]
        assert (tree / "node_modules/@me/tool/index.js").stat().st_mode & 0o222 == 0
    await packages.close()
    assert not tree.exists()
    assert packages.list() == []


async def test_dependencies_with_programs_and_links_are_linked(
    npm: Registry, packages: PackageManager, tmp_path: Path
) -> None:
    npm.publish("program", files={"index.js": "export const p = 1;", "run.js": ""}, bin="run.js")
    npm.publish("outer", files={"index.js": "export * from 'program';"}, dependencies={"program": "1"})
    files = {"index.js": "export * from 'outer';"}
    tool = write_tool(tmp_path / "tool", files, dependencies={"outer": "^1"})
    async with packages.open_local(tool, "./tool", report) as local:
        assert exports(local.package.tree) == ["p"]
    count = len(npm.requests)
    files = {"index.ts": "export * from 'outer';"}
    typescript = write_tool(tmp_path / "typescript", files, main="index.ts", dependencies={"outer": "^1"})
    async with packages.open_local(typescript, "./typescript", report) as local:
        assert (local.package.is_typescript, exports(local.package.tree)) == (True, ["p"])
    assert len(npm.requests) == count


async def test_kept_dependencies_are_pruned_an_hour_after_their_last_use(
    npm: Registry, packages: PackageManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    npm.publish("left")
    tool = write_tool(tmp_path / "tool", dependencies={"left": "*"})
    async with packages.open_local(tool, "./tool", report):
        pass
    [kept] = (tmp_path / "home/npm/trees").iterdir()
    assert (await packages.prune()).leftovers == 0
    monkeypatch.setattr("hutch.npm.package_store.ORPHAN_SECONDS", -1)
    assert (await packages.prune()).leftovers == 1
    assert not kept.exists()


async def test_offline_package_runs_only_if_its_dependencies_are_installed(
    npm: Registry, new_packages: NewPackages, tmp_path: Path
) -> None:
    npm.publish("left")
    tool = write_tool(tmp_path / "tool", dependencies={"left": "*"})
    offline = new_packages(offline=True)
    with pytest.raises(PackageNotFound, match=r"dependencies of @me/tool@0\.0\.0 are not installed, and"):
        async with offline.open_local(tool, "./tool", report):
            pass
    async with new_packages().open_local(tool, "./tool", report):
        pass
    async with offline.open_local(tool, "./tool", report) as local:
        assert exports(local.package.tree) == ["t"]


async def test_folder_that_is_too_large_names_the_setting(new_packages: NewPackages, tmp_path: Path) -> None:
    tool = write_tool(tmp_path / "tool", {"index.js": "x" * 3000})
    with pytest.raises(PackageTooLarge, match=r"^\./tool, with all .* setting max_package_bytes"):
        async with new_packages(max_package_bytes=2000).open_local(tool, "./tool", report):
            pass
