"""Tests of wheel and sdist, the version, and pinned dependencies."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from uv import find_uv_bin

import hutch._version

ROOT = Path(__file__).parents[2]
MIGRATIONS = ROOT / "src/hutch/store/migrations"
BUNDLE = {
    "precompile.js",
    "typescript.js",
    "entry.js",
    "quickjs.js",
    "quickjs.wasm",
    "deno.js",
    "npm.js",
    "zod3.js",
    "script.js",
    "image.bin",
    "image.json",
}


@pytest.fixture(scope="module")
def pyproject() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def pins() -> dict[str, str]:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    pairs = (line.split("==") for line in lines if not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pairs}


def build(target: str, tree: Path, out: Path) -> Path:
    """Builds the package in this Python environment. Such a build is fast, because it downloads nothing and
    reuses a bundle that is up to date.
    """
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(out)]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(out.iterdir())


def unpack(sdist: Path, folder: Path) -> Path:
    with tarfile.open(sdist) as archive:
        if hasattr(tarfile, "data_filter"):  # Python 3.11.4 and newer
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(folder)
    return next(folder.iterdir())


def names_in_wheel(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def without_digests(wheel: Path) -> set[str]:
    """Returns the names of the files in a wheel. Leaves out the digests in the names of the console's
    scripts, because a digest depends on the folder in which the script was bundled.
    """
    return {re.sub(r"(/console/dist/.+)-[A-Z0-9]{8}\.js$", r"\1.js", name) for name in names_in_wheel(wheel)}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("sdist", ROOT, tmp_path_factory.mktemp("sdist"))


def test_wheel_contains_the_guest_only_as_its_bundle(wheel: Path) -> None:
    guest = {name.removeprefix("hutch/guest/") for name in names_in_wheel(wheel) if "/guest/" in name}
    assert {name for name in guest if not name.endswith(".py")} == {f"dist/{name}" for name in BUNDLE}


def test_wheel_contains_the_console_without_its_sources(wheel: Path) -> None:
    names = {name for name in names_in_wheel(wheel) if name.startswith("hutch/console/")}
    assert {"hutch/console/dist/index.html", "hutch/console/dist/main.js"} <= names
    assert not [name for name in names if "/web/" in name or name.endswith((".ts", ".tsx", ".sources"))]


def test_wheel_contains_all_modules_the_types_marker_the_licence_and_the_command(wheel: Path) -> None:
    names = names_in_wheel(wheel)
    modules = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src/hutch").rglob("*.py")}
    assert modules <= names
    assert "hutch/py.typed" in names
    migrations = {file.relative_to(ROOT / "src").as_posix() for file in MIGRATIONS.rglob("*.sql")}
    assert migrations
    assert migrations <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    with zipfile.ZipFile(wheel) as archive:
        entry_points = next(name for name in names if name.endswith("entry_points.txt"))
        assert "hutch = hutch.cli:run" in archive.read(entry_points).decode()


def test_wheel_contains_nothing_outside_the_package(wheel: Path) -> None:
    tops = {name.split("/")[0] for name in names_in_wheel(wheel)}
    assert tops == {"hutch", f"hutch-{hutch._version.__version__}.dist-info"}


def test_sdist_contains_sources_and_no_bundle(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"hatch_build.py", "src/hutch/guest/deno.lock", "src/hutch/guest/build/main.ts"} <= names
    assert not [name for name in names if name.startswith(("src/hutch/guest/dist", ".venv", "build/"))]


def test_sdist_builds_the_same_wheel(
    sdist: Path, wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = unpack(sdist, tmp_path)
    # Use the cache that `make install` has filled, so that the build needs no network.
    monkeypatch.setenv("DENO_DIR", str(ROOT / "build/deno"))
    again = build("wheel", tree, tmp_path / "out")
    assert without_digests(again) == without_digests(wheel)


def test_build_without_a_registry_explains_what_to_do(
    sdist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = unpack(sdist, tmp_path)
    monkeypatch.setenv("DENO_DIR", str(tmp_path / "empty"))
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", "http://127.0.0.1:9")
    done = subprocess.run(
        [sys.executable, "hatch_build.py"], cwd=tree, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "Connection refused" in done.stderr
    assert "NPM_CONFIG_REGISTRY" in done.stderr
    assert "HTTPS_PROXY" in done.stderr
    assert not (tree / "src/hutch/guest/dist").exists()


def test_version_is_defined_once(pyproject: dict, wheel: Path) -> None:
    assert pyproject["project"]["dynamic"] == ["version"]
    assert wheel.name == f"hutch-{hutch._version.__version__}-py3-none-any.whl"


def test_lock_contains_only_names_and_versions() -> None:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    assert lines
    assert [
        line for line in lines if not re.fullmatch(r"#.*|[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.+!]*", line)
    ] == []
    assert "://" not in "".join(lines)


def test_guest_lock_names_no_registry() -> None:
    assert "://" not in (ROOT / "src/hutch/guest/deno.lock").read_text()


def test_every_dependency_is_pinned_within_its_bounds(pyproject: dict, pins: dict[str, str]) -> None:
    project = pyproject["project"]
    wanted = [*project["dependencies"], *itertools.chain(*project["optional-dependencies"].values())]
    for requirement in map(Requirement, wanted):
        if requirement.name == project["name"]:
            continue
        pin = pins.get(canonicalize_name(requirement.name))
        assert pin is not None, f"{requirement.name} is not in requirements.lock: run `make lock`"
        assert requirement.specifier.contains(pin), f"{requirement} does not allow {pin}: run `make lock`"


def test_wheel_is_built_with_the_deno_that_it_runs(pyproject: dict) -> None:
    build_with = [line for line in pyproject["build-system"]["requires"] if line.startswith("deno")]
    run_with = [line for line in pyproject["project"]["dependencies"] if line.startswith("deno")]
    assert build_with == run_with
    assert re.fullmatch(r"deno==[0-9.]+", run_with[0])


# The newest release of each framework must install beside Hutch. langchain-mcp-adapters is tested without
# extras, because it needs version 1 of the MCP SDK and hutch[mcp] needs version 2.
FRAMEWORKS = ("fastmcp", "google-adk", "langchain-mcp-adapters", "openai-agents", "pydantic-ai", "smolagents")
WITH_MCP_1 = {"langchain-mcp-adapters"}


@pytest.fixture(scope="module")
def uv_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("uv")


def resolve(cache: Path, *requirements: str) -> dict[str, str]:
    """Returns the versions that an installer chooses for these requirements."""
    command = [find_uv_bin(), "pip", "compile", "--quiet", "--no-header", "--no-annotate", "-"]
    done = subprocess.run(
        command,
        input="\n".join(requirements),
        env={**os.environ, "UV_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(line.split("==") for line in done.stdout.splitlines() if "==" in line)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_framework_is_not_downgraded_beside_hutch(framework: str, wheel: Path, uv_cache: Path) -> None:
    # Test all extras together. All extras have the most requirements, so a framework that installs beside all
    # of them also installs beside fewer extras.
    extra = "" if framework in WITH_MCP_1 else "[all]"
    together = resolve(uv_cache, f"hutch{extra} @ {wheel.as_uri()}", framework)
    assert together[framework] == resolve(uv_cache, framework)[framework]


def test_base_package_needs_neither_a_server_nor_the_mcp_sdk(wheel: Path, uv_cache: Path) -> None:
    base = resolve(uv_cache, f"hutch @ {wheel.as_uri()}")
    assert {"mcp", "starlette", "uvicorn", "httpx2", "psycopg"}.isdisjoint(base)
    complete = resolve(uv_cache, f"hutch[all] @ {wheel.as_uri()}")
    assert {"mcp", "starlette", "uvicorn", "httpx2", "psycopg"} <= complete.keys()
