"""The native compiler: where it comes from, and that it is the right one."""

from __future__ import annotations

import asyncio
import os
import platform
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.npm import registry

from hutch.doors.toolscript import ambient, compiler
from hutch.doors.toolscript.compiler import PACKAGES, VERSION, Shed
from hutch.errors import PackageNotFound
from hutch.sandbox import runtime
from hutch.settings import load

FILES = {
    "lib/tsc": "#!/bin/sh\necho made up\n",
    "lib/lib.d.ts": "",
    "lib/lib.esnext.d.ts": '/// <reference lib="es5" />\n/// <reference lib="es2025.iterator" />\n',
    "lib/lib.es5.d.ts": "/** Said. */\ninterface Array<T> {}\n",
    "lib/lib.es2025.iterator.d.ts": "export {};\ndeclare global { interface Iterator<T> {} }\n",
}


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[registry.Registry]:
    """A registry whose compiler is none."""
    for name in [*os.environ]:
        if name.lower().startswith("npm_config_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    with registry.serving() as served:
        monkeypatch.setenv("NPM_CONFIG_REGISTRY", served.url)
        served.publish(package(), VERSION, FILES)
        yield served


def package() -> str:
    return PACKAGES[platform.machine()][0]


def pin(monkeypatch: pytest.MonkeyPatch, served: registry.Registry) -> None:
    """Has what is made up be what we want."""
    tarball = served.tarball(package(), VERSION)
    assert tarball is not None
    pinned = (package(), registry.integrity(tarball))
    monkeypatch.setitem(PACKAGES, platform.machine(), pinned)


def shed(home: Path, **settings: Any) -> Shed:
    return Shed(load({"home": str(home), **settings}))


def left(home: Path) -> list[str]:
    return [path.name for path in (home / "typescript").glob("[!l]*") if any(path.iterdir())]


async def test_the_real_one_is_fetched_and_needs_nobody_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load()
    await Shed(settings).compiler()
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", "http://127.0.0.1:1/")
    found = await Shed(load({"offline": True})).compiler()
    assert found.folder == settings.home_path / "typescript" / VERSION
    assert subprocess.check_output([found.program, "--version"], text=True) == f"Version {VERSION}\n"  # noqa: ASYNC221
    deno = f"deno-{runtime.version(runtime.locate())}.d.ts"
    assert found.ambient == ("es.d.ts", "es2025.iterator.d.ts", deno)
    assert "declare namespace Deno" in (found.folder / deno).read_text()


async def test_it_is_fetched_once_by_all_who_want_it(
    made_up: registry.Registry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pin(monkeypatch, made_up)
    said: list[str] = []
    found = await asyncio.gather(*(shed(tmp_path).compiler(said.append) for _ in range(4)))
    assert len({each.folder for each in found}) == 1
    assert made_up.requests.count(f"{package()}@{VERSION}") == 1
    assert "downloading package 1" in said
    assert left(tmp_path) == [VERSION]
    assert os.access(found[0].program, os.X_OK)


async def test_what_is_not_the_pinned_one_is_not_even_fetched(
    made_up: registry.Registry, tmp_path: Path
) -> None:
    with pytest.raises(PackageNotFound, match="is not what it was"):
        await shed(tmp_path).compiler()
    assert f"{package()}@{VERSION}" not in made_up.requests
    assert left(tmp_path) == []


async def test_an_archive_that_is_not_what_was_promised_is_refused(
    made_up: registry.Registry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made_up.publish(package(), VERSION, FILES, dist={"integrity": PACKAGES[platform.machine()][1]})
    with pytest.raises(PackageNotFound, match="not what it promised"):
        await shed(tmp_path).compiler()
    assert left(tmp_path) == []


async def test_its_size_is_not_bounded_by_what_tools_may_have(
    made_up: registry.Registry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pin(monkeypatch, made_up)
    assert await shed(tmp_path, max_package_bytes=1, max_package_files=1).compiler()


async def test_a_registry_out_of_reach_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", "http://127.0.0.1:1/")
    with pytest.raises(PackageNotFound) as failed:
        await shed(tmp_path).compiler()
    assert failed.value.retryable


async def test_offline_nobody_is_asked(made_up: registry.Registry, tmp_path: Path) -> None:
    with pytest.raises(PackageNotFound, match="set to be offline"):
        await shed(tmp_path, offline=True).compiler()
    assert made_up.requests == []


async def test_for_other_machines_there_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(compiler.platform, "machine", lambda: "m68k")
    with pytest.raises(PackageNotFound, match="for m68k"):
        await shed(tmp_path).compiler()


async def test_what_killed_processes_left_is_removed(tmp_path: Path) -> None:
    mine = shed(tmp_path).stage()
    namespace, pid, _, number = mine.name.split("-")
    dead = mine.with_name(f"{namespace}-{pid}-1-{number}")
    (dead / "tree").mkdir(parents=True)
    with pytest.raises(PackageNotFound):
        await shed(tmp_path, offline=True).compiler()
    assert mine.is_dir()
    assert not dead.exists()


# --- types ---


def test_types_lose_comments_and_nothing_else() -> None:
    text = """
/** A comment with "quotes". */
interface A {
  // Another.
  url: "http://x"; /* c */ b: '/* no comment */';
  c: `// ${string}`; d: "\\"//";
}
"""
    assert ambient.shorten(text).split() == [
        *("interface", "A", "{", "url:", '"http://x";', "b:", "'/*", "no", "comment", "*/';"),
        *("c:", "`//", "${string}`;", "d:", '"\\"//";', "}"),
    ]


def test_types_that_are_modules_stay_apart(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / Path(name).name).write_text(text)
    made = tmp_path / "made"
    made.mkdir()
    ambient.merge(tmp_path, made)
    assert ambient.of_language(made) == ("es.d.ts", "es2025.iterator.d.ts")
    assert (made / "es.d.ts").read_text().strip() == "interface Array<T> {}"
    assert "declare global" in (made / "es2025.iterator.d.ts").read_text()
