"""Installation of the native compiler."""

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

from hutch.errors import PackageNotFound
from hutch.protocols.toolscript.checker.toolchain import (
    COMPILER_PACKAGES,
    COMPILER_VERSION,
    Toolchain,
    language_files,
    merge_language_types,
    minify_declarations,
)
from hutch.sandbox import deno_binary
from hutch.settings import load_settings

FILES = {
    "lib/tsc": "#!/bin/sh\necho made up\n",
    "lib/lib.d.ts": "",
    "lib/lib.esnext.d.ts": '/// <reference lib="es5" />\n/// <reference lib="es2025.iterator" />\n',
    "lib/lib.es5.d.ts": "/** Said. */\ninterface Array<T> {}\n",
    "lib/lib.es2025.iterator.d.ts": "export {};\ndeclare global { interface Iterator<T> {} }\n",
}


@pytest.fixture
def fake_registry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[registry.Registry]:
    """A registry with a fake compiler package."""
    for name in [*os.environ]:
        if name.lower().startswith("npm_config_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    with registry.run_registry() as served:
        monkeypatch.setenv("NPM_CONFIG_REGISTRY", served.url)
        served.publish(package(), COMPILER_VERSION, FILES)
        yield served


def package() -> str:
    return COMPILER_PACKAGES[platform.machine()][0]


def pin(monkeypatch: pytest.MonkeyPatch, served: registry.Registry) -> None:
    """Replaces the pinned digest of the compiler's package by that of the fake package."""
    tarball = served.tarball(package(), COMPILER_VERSION)
    assert tarball is not None
    pinned = (package(), registry.integrity(tarball))
    monkeypatch.setitem(COMPILER_PACKAGES, platform.machine(), pinned)


def toolchain(home: Path, **settings: Any) -> Toolchain:
    return Toolchain(load_settings({"home": str(home), **settings}))


def entries(home: Path) -> list[str]:
    return [path.name for path in (home / "typescript").glob("[!l]*") if any(path.iterdir())]


async def test_real_compiler_is_downloaded_once_and_works_offline_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = load_settings()
    await Toolchain(settings).compiler()
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", "http://127.0.0.1:1/")
    found = await Toolchain(load_settings({"offline": True})).compiler()
    assert found.folder == settings.home_path / "typescript" / COMPILER_VERSION
    assert subprocess.check_output([found.program, "--version"], text=True) == f"Version {COMPILER_VERSION}\n"  # noqa: ASYNC221
    deno = f"deno-{deno_binary.deno_version(deno_binary.find_deno())}.d.ts"
    assert found.ambient_files == ("es.d.ts", "es2025.iterator.d.ts", deno)
    assert "declare namespace Deno" in (found.folder / deno).read_text()


async def test_concurrent_requests_download_once(
    fake_registry: registry.Registry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pin(monkeypatch, fake_registry)
    messages: list[str] = []
    found = await asyncio.gather(*(toolchain(tmp_path).compiler(messages.append) for _ in range(4)))
    assert len({each.folder for each in found}) == 1
    assert fake_registry.requests.count(f"{package()}@{COMPILER_VERSION}") == 1
    assert "downloading package 1" in messages
    assert entries(tmp_path) == [COMPILER_VERSION]
    assert os.access(found[0].program, os.X_OK)


async def test_changed_package_is_rejected_before_download(
    fake_registry: registry.Registry, tmp_path: Path
) -> None:
    with pytest.raises(PackageNotFound, match="does not have the pinned hash"):
        await toolchain(tmp_path).compiler()
    assert f"{package()}@{COMPILER_VERSION}" not in fake_registry.requests
    assert entries(tmp_path) == []


async def test_archive_with_wrong_hash_is_rejected(
    fake_registry: registry.Registry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_registry.publish(
        package(), COMPILER_VERSION, FILES, dist={"integrity": COMPILER_PACKAGES[platform.machine()][1]}
    )
    with pytest.raises(PackageNotFound, match="does not match the registry"):
        await toolchain(tmp_path).compiler()
    assert entries(tmp_path) == []


async def test_package_size_limits_of_tools_do_not_apply(
    fake_registry: registry.Registry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pin(monkeypatch, fake_registry)
    assert await toolchain(tmp_path, max_package_bytes=1, max_package_files=1).compiler()


async def test_unreachable_registry_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", "http://127.0.0.1:1/")
    with pytest.raises(PackageNotFound) as failed:
        await toolchain(tmp_path).compiler()
    assert failed.value.retryable


async def test_offline_makes_no_request(fake_registry: registry.Registry, tmp_path: Path) -> None:
    with pytest.raises(PackageNotFound, match="Hutch is offline"):
        await toolchain(tmp_path, offline=True).compiler()
    assert fake_registry.requests == []


async def test_unsupported_machine_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "m68k")
    with pytest.raises(PackageNotFound, match="for m68k"):
        await toolchain(tmp_path).compiler()


async def test_leftovers_of_killed_processes_are_removed(tmp_path: Path) -> None:
    mine = toolchain(tmp_path).stage()
    namespace, pid, _, number = mine.name.split("-")
    dead = mine.with_name(f"{namespace}-{pid}-1-{number}")
    (dead / "tree").mkdir(parents=True)
    with pytest.raises(PackageNotFound):
        await toolchain(tmp_path, offline=True).compiler()
    assert mine.is_dir()
    assert not dead.exists()


# --- types ---


def test_minified_types_lose_only_comments() -> None:
    text = """
/** A comment with "quotes". */
interface A {
  // Another.
  url: "http://x"; /* c */ b: '/* no comment */';
  c: `// ${string}`; d: "\\"//";
}
"""
    assert minify_declarations(text).split() == [
        *("interface", "A", "{", "url:", '"http://x";', "b:", "'/*", "no", "comment", "*/';"),
        *("c:", "`//", "${string}`;", "d:", '"\\"//";', "}"),
    ]


def test_types_that_are_modules_stay_separate_files(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / Path(name).name).write_text(text)
    made = tmp_path / "made"
    made.mkdir()
    merge_language_types(tmp_path, made)
    assert language_files(made) == ("es.d.ts", "es2025.iterator.d.ts")
    assert (made / "es.d.ts").read_text().strip() == "interface Array<T> {}"
    assert "declare global" in (made / "es2025.iterator.d.ts").read_text()
