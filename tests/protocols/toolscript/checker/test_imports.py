"""Collection of a script's files."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
from tests.protocols.toolscript.checkers import DECLARATIONS, running_checker

from hutch.protocols.toolscript.checker import imports
from hutch.protocols.toolscript.checker.checker import Checker
from hutch.protocols.toolscript.checker.diagnostics import InvalidScript


@pytest.fixture(scope="module")
async def checker(anyio_backend: object, environment: None) -> AsyncIterator[Checker]:
    async with running_checker() as checker:
        yield checker


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "scripts"
    made.mkdir()
    return made


def write(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder / next(iter(files))


async def refusal(checker: Checker, path: Path) -> str:
    with pytest.raises(InvalidScript) as refused:
        await checker.read(path)
    return str(refused.value)


async def test_only_imported_files_are_read(checker: Checker, folder: Path) -> None:
    files = {
        "script.ts": 'import { tools } from "toolscript"; import "./a.ts"; import x from "./data/x.json" with'
        ' { type: "json" }; import "node:path"; await import("./later.mjs"); tools; x;',
        "a.ts": 'export * from "./lib/b.mts"; import type { T } from "./lib/types.d.ts"; export let t: T;',
        "lib/b.mts": 'import "../a.ts"; import "./sub/../c d.js"; export const b = 1;',
        "lib/types.d.ts": "export type T = 1;",
        "lib/c d.js": "export {};",
        "later.mjs": "export const later = 1;",
        "data/x.json": '{"x": 1}',
    }
    path = write(folder, files)
    write(folder, {"other.ts": "", "secret.txt": "", ".env": "", "data/y.json": ""})
    script = await checker.read(path)
    assert script.name == "script.ts"
    assert {script.name: script.text, **script.files} == files
    assert await checker.prepare(script, DECLARATIONS)


async def test_links_are_followed_only_inside_of_the_folder(checker: Checker, folder: Path) -> None:
    write(folder, {"script.ts": 'import "./link.ts"; import "./dir/x.ts";', "real/x.ts": "export {};"})
    (folder / "link.ts").symlink_to("real/x.ts")
    (folder / "dir").symlink_to("real")
    assert set((await checker.read(folder / "script.ts")).files) == {"link.ts", "dir/x.ts"}
    (folder.parent / "outside.ts").write_text("export {};")
    (folder / "link.ts").unlink()
    (folder / "link.ts").symlink_to(folder.parent / "outside.ts")
    assert "That is a link out of the script's folder." in await refusal(checker, folder / "script.ts")


async def test_script_behind_a_link_uses_the_folder_of_its_target(checker: Checker, folder: Path) -> None:
    write(folder, {"script.ts": 'import "./x.ts";', "x.ts": "export {};"})
    (folder.parent / "link.ts").symlink_to(folder / "script.ts")
    script = await checker.read(folder.parent / "link.ts")
    assert (script.name, list(script.files)) == ("script.ts", ["x.ts"])


@pytest.mark.parametrize(
    ("specifier", "why"),
    [
        ("./nothing.ts", "There is no file nothing.ts."),
        ("./lib", "There is no file lib. Did you mean lib/mod.ts?"),
        ("./other", "There is no file other. Did you mean other.ts?"),
        ("./other.js", "There is no file other.js. Did you mean other.ts?"),
        ("../outside.ts", "That is outside of the script's folder"),
        ("./lib/../../outside.ts", "That is outside of the script's folder"),
        ("./%2e%2e/outside.ts", "A path with ?, # or % in it cannot be imported."),
        ("./other.ts?v=1", "A path with ?, # or % in it cannot be imported."),
        ("/etc/hostname", "A toolscript can import files by relative paths only"),
        ("file:///etc/hostname", "A toolscript can import files by relative paths only"),
        ("./data.txt", "Only .ts, .mts, .js, .mjs, .json files can be imported."),
        ("./folder.ts", "That is not a file."),
        ("./pipe.ts", "That is not a file."),
        ("./latin.ts", "That file is not UTF-8 text."),
        ("npm:zod", "npm: imports are not available in toolscripts"),
        ("jsr:@std/path", "jsr: imports are not available in toolscripts"),
        ("https://example.com/x.ts", "https: imports are not available in toolscripts"),
        ("data:text/javascript,1", "data: imports are not available in toolscripts"),
        ("zod", "There is no module 'zod' for toolscripts"),
        (
            "fs",
            "There is no module 'fs' for toolscripts, which can import \"toolscript\", node: modules, and",
        ),
    ],
)
async def test_failing_import_is_reported(checker: Checker, folder: Path, specifier: str, why: str) -> None:
    (folder.parent / "outside.ts").write_text("export {};")
    write(folder, {"lib/mod.ts": "", "other.ts": "", "data.txt": ""})
    (folder / "folder.ts").mkdir()
    os.mkfifo(folder / "pipe.ts")
    (folder / "latin.ts").write_bytes("// é".encode("latin-1"))
    write(folder, {"script.ts": f'import "./sub/x.ts";\nimport y from "{specifier}";\n', "sub/x.ts": ""})
    shown = await refusal(checker, folder / "script.ts")
    assert shown.startswith((f"error: {why}", f"error TS2591: {why}"))
    assert f'\n  script.ts:2:15\n    2 | import y from "{specifier}";\n' in shown
    assert str(folder) not in shown


async def test_failing_import_names_the_importing_file(checker: Checker, folder: Path) -> None:
    path = write(folder, {"script.ts": 'import "./lib/a.ts"', "lib/a.ts": '\n\nimport "./b.ts"'})
    assert "There is no file lib/b.ts.\n  lib/a.ts:3:8" in await refusal(checker, path)


async def test_dynamically_imported_file_may_be_missing(checker: Checker, folder: Path) -> None:
    path = write(folder, {"script.ts": 'await import("./nothing.ts").catch(() => import("npm:zod"));'})
    assert (await checker.read(path)).files == {}


@pytest.mark.parametrize("name", ["nothing.ts", "script.txt", "folder.ts"])
async def test_invalid_script_path_is_rejected(checker: Checker, folder: Path, name: str) -> None:
    (folder / "script.txt").write_text("")
    (folder / "folder.ts").mkdir()
    why = {
        "nothing.ts": "There is no file",
        "script.txt": "A script's name ends in",
        "folder.ts": "not a file",
    }
    assert why[name] in await refusal(checker, folder / name)


async def test_syntax_error_is_reported_before_anything_runs(checker: Checker, folder: Path) -> None:
    path = write(folder, {"script.ts": 'import "./a.ts"', "a.ts": "const x = ;"})
    assert "error TS1109: Expression expected.\n  a.ts:1:11" in await refusal(checker, path)


async def test_files_are_limited(checker: Checker, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imports, "MAX_FILES", 3)
    monkeypatch.setattr(imports, "MAX_BYTES", imports.MIB)
    path = write(folder, {f"{number}.ts": f'import "./{number + 1}.ts"' for number in range(5)})
    assert "The script has more than 3 files." in await refusal(checker, path)
    path = write(folder, {"script.ts": 'import "./large.json"', "large.json": " " * imports.MIB})
    assert "The script's files have more than 1 MiB." in await refusal(checker, path)


async def test_byte_order_mark_is_removed(checker: Checker, folder: Path) -> None:
    (folder / "script.ts").write_bytes("\ufeffreturn 1".encode())
    assert (await checker.read(folder / "script.ts")).text == "return 1"
