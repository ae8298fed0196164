"""Packages of the real npm registry, reached through the tester's environment."""

from __future__ import annotations

import asyncio

import pytest
from tests.npm.conftest import NewPackages
from tests.npm.trees import exports

from hutch.errors import PackageNotFound
from hutch.npm.package_spec import parse_spec_argument
from hutch.npm.packages import Package, PackageManager


async def get(packages: PackageManager, text: str) -> Package:
    try:
        return await packages.get(parse_spec_argument(text))
    except PackageNotFound as error:
        if error.retryable:
            pytest.skip(f"no registry here: {error}")
        raise


async def test_real_packages_with_shared_dependencies_and_peers_and_a_missing_one(
    new_packages: NewPackages,
) -> None:
    packages = new_packages()
    package, peers, missing, version = await asyncio.gather(
        get(packages, "@tpmjs/tools-template-render@0.1.0"),
        get(packages, "fish-joke-generator@1.1.0"),
        get(packages, "@tpmjs/this-package-does-not-exist-at-all"),
        get(packages, "mustache@99.0.0"),
        return_exceptions=True,
    )
    for each in (package, peers):
        if isinstance(each, BaseException):
            raise each
    assert package.version == "0.1.0"
    assert exports(package.tree) == ["default", "templateRenderTool"]
    modules = {path.name.rpartition("@")[0] for path in (peers.tree / "node_modules" / ".deno").iterdir()}
    assert {"openai", "zod"} <= modules
    assert str(missing) == "There is no package @tpmjs/this-package-does-not-exist-at-all in the registry."
    assert str(version) == "The package mustache has no version 99.0.0."
    messages: list[str] = []
    other = await packages.get(parse_spec_argument("@tpmjs/tools-recipe-hash@0.2.0"), messages.append)
    assert exports(other.tree) == ["default", "recipeHashTool"]
    assert sum(text.startswith("downloading") for text in messages) < 5
