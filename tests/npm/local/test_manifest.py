"""Tests of package.json of packages that are not published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hutch.errors import InvalidPackage
from hutch.npm.local.manifest import read_manifest
from hutch.npm.package_spec import PackageSpec


def write_package(folder: Path, manifest: Any, *files: str) -> Path:
    folder.mkdir(exist_ok=True)
    text = manifest if isinstance(manifest, str) else json.dumps(manifest)
    (folder / "package.json").write_text(text)
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")
    return folder


def test_manifest_gives_name_version_and_what_npm_installs(tmp_path: Path) -> None:
    manifest = {
        "name": "@me/tool",
        "version": "1.2.3",
        "dependencies": {"zod": "^4", "alias": "npm:@real/name@1"},
        "peerDependencies": {"ai": "5.x", "react": "19"},
        "peerDependenciesMeta": {"react": {"optional": True}},
        "devDependencies": {"typescript": "*"},
    }
    read = read_manifest(write_package(tmp_path, manifest, "index.js"), "./tool")
    assert (read.spec, read.entry, read.note) == (PackageSpec("@me/tool", "1.2.3"), None, None)
    assert read.dependencies == {"zod": "^4", "alias": "npm:@real/name@1", "ai": "5.x"}


ENTRIES = {
    "string": ({"exports": "./a.js"}, "a.js"),
    "conditions": ({"exports": {".": {"types": "./a.d.ts", "import": {"default": "./a.mjs"}}}}, "a.mjs"),
    "main without extension": ({"main": "lib/a"}, "lib/a.js"),
    "main is a folder": ({"main": "./lib"}, "lib/index.js"),
    "index.js": ({}, "index.js"),
}


@pytest.mark.parametrize("case", ENTRIES)
def test_javascript_entry_is_imported_by_the_package_name(tmp_path: Path, case: str) -> None:
    manifest, file = ENTRIES[case]
    read = read_manifest(write_package(tmp_path, {"name": "tool", **manifest}, file), "./tool")
    assert (read.entry, read.note) == (None, None)


SOURCES = {
    "named": ({"main": "src/tools.ts"}, "src/tools.ts", None),
    "not built": ({"exports": "./dist/a/b.js"}, "src/a/b.ts", "names dist/a/b.js, which does not exist"),
    "no entry": ({}, "src/index.ts", "has no `exports` or `main`, so src/index.ts runs"),
}


@pytest.mark.parametrize("case", SOURCES)
def test_typescript_source_is_the_entry_if_there_is_no_build(tmp_path: Path, case: str) -> None:
    manifest, file, note = SOURCES[case]
    read = read_manifest(write_package(tmp_path, {"name": "tool", **manifest}, file), "./tool")
    assert read.entry == file
    assert (read.note is None) if note is None else note in str(read.note)


PROBLEMS = {
    '{"name": "a",\n}': "package.json: is not valid JSON: Expecting property name enclosed in double quotes "
    "(line 2, column 1)",
    "[]": "package.json: expected an object, got an array",
    "{}": 'package.json: has no `name`. Add one, such as "name": "my-tool"',
    '{"name": "A b"}': "package.json: `name` has ' ', which npm does not allow in names",
    '{"name": "a", "version": "^1"}': "`version`: expected an exact version such as 1.0.0, got '^1'",
    '{"name": "a"}': "has no `exports` or `main`, and there is no index.js. Add \"exports\"",
    '{"name": "a", "main": "x.js"}': "`main` names x.js, which does not exist. Build the package first",
    '{"name": "a", "main": "x.js", "scripts": {"build": "tsc"}}': "Run `npm run build` first",
    '{"name": "a", "exports": {"./x": "./x.js"}}': '`exports` has no entry "."',
    '{"name": "a", "exports": {"require": "./x.js"}}': "`exports` has no `import` or `default`",
    '{"name": "a", "exports": "x.js"}': "`exports`: expected a path that starts with \"./\", got 'x.js'",
    '{"name": "a", "dependencies": {"b": "workspace:*"}}': "`dependencies.b`: expected a version, range or "
    "tag of the registry, got 'workspace:*'",
    '{"name": "a", "dependencies": {"b": "file:../b"}}': "`dependencies.b`: expected a version",
    '{"name": "a", "dependencies": ["b"]}': "`dependencies`: expected an object, got an array",
    '{"name": "a", "dependencies": {"a": "1"}}': "the package a depends on itself",
}  # fmt: skip


@pytest.mark.parametrize("text", PROBLEMS)
def test_problem_names_what_is_missing(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidPackage) as raised:
        read_manifest(write_package(tmp_path, text), "./tool")
    assert PROBLEMS[text] in str(raised.value)
    assert str(raised.value).startswith("./tool/package.json: ")


def test_folder_without_package_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidPackage, match=r"^\./tool: has no package\.json\. Expected the folder"):
        read_manifest(tmp_path, "./tool")
