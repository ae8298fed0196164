"""Real packages of the real registry, as the tester's environment reaches it."""

from __future__ import annotations

import asyncio

import pytest
from tests.npm.conftest import NewShelf
from tests.npm.trees import exports

from hutch.errors import PackageNotFound
from hutch.npm.names import parse_argument
from hutch.npm.shelf import Package, Shelf


async def get(shelf: Shelf, text: str) -> Package:
    try:
        return await shelf.get(parse_argument(text))
    except PackageNotFound as error:
        if error.retryable:
            pytest.skip(f"no registry here: {error}")
        raise


async def test_tools_of_the_registry_with_what_they_share_and_peers_and_what_does_not_exist(
    new_shelf: NewShelf,
) -> None:
    shelf = new_shelf()
    package, peers, missing, version = await asyncio.gather(
        get(shelf, "@tpmjs/tools-template-render@0.1.0"),
        get(shelf, "fish-joke-generator@1.1.0"),
        get(shelf, "@tpmjs/this-package-does-not-exist-at-all"),
        get(shelf, "mustache@99.0.0"),
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
    said: list[str] = []
    other = await shelf.get(parse_argument("@tpmjs/tools-recipe-hash@0.2.0"), said.append)
    assert exports(other.tree) == ["default", "recipeHashTool"]
    assert sum(text.startswith("downloading") for text in said) < 5
