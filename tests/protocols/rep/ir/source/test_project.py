"""`tm/config/runtime.yaml` binds a project to a runtime."""

from __future__ import annotations

from pathlib import Path

import pytest

from hutch.errors import ConfigError, SettingError
from hutch.protocols.rep.ir.source.project import FILE, bind, check_engine, family, find, read


def write(folder: Path, text: str) -> Path:
    file = folder / FILE
    file.parent.mkdir(parents=True)
    file.write_text(text)
    return file


def test_file_of_the_public_tool_is_read(tmp_path: Path) -> None:
    text = (
        "runtime:\n  engine: python\n  language: python\n  plugins_language: python\n  executor_path: null\n"
    )
    bound = read(write(tmp_path, text))
    assert (bound.engine, bound.language, bound.plugins_language, bound.executor) == (
        "python",
        "python",
        "python",
        None,
    )
    assert bound.is_builtin
    assert bound.language_mismatch() is None
    assert bound.folder == tmp_path


def test_omitted_fields_have_the_defaults_of_the_public_tool(tmp_path: Path) -> None:
    bound = read(
        write(tmp_path, "runtime: {engine: fast, language: rust, executor_path: bin/fast}\nother: 1\n")
    )
    assert (bound.engine, bound.language, bound.plugins_language) == ("fast", "rust", "rust")
    assert bound.executor == tmp_path / "bin/fast"
    assert not bound.is_builtin


def test_nearest_file_in_parent_folders_is_found(tmp_path: Path) -> None:
    write(tmp_path, "runtime: {engine: outer}\n")
    write(tmp_path / "a", "runtime: {engine: inner}\n")
    (tmp_path / "a/b/c").mkdir(parents=True)
    (tmp_path / "z").mkdir()
    for folder, engine in (("a/b/c", "inner"), ("a", "inner"), ("z", "outer")):
        bound = find(tmp_path / folder)
        assert bound is not None
        assert bound.engine == engine


def test_bare_executor_name_is_left_for_path_lookup(tmp_path: Path) -> None:
    write(tmp_path, "runtime: {engine: fast, executor_path: fast-runtime}\n")
    bound = find(tmp_path)
    assert bound is not None
    assert bound.executor == Path("fast-runtime")
    (tmp_path / "fast-runtime").touch()
    assert bound.executor == tmp_path / "fast-runtime"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("runtime: [", "expected YAML: line "),
        ("- 1", "expected a table with a section `runtime`"),
        ("other: 1", "runtime: expected a section with engine, language and executor_path"),
        ("", "runtime: expected a section"),
        ("runtime: {engine: 3}", "runtime.engine: expected a string"),
        (
            "runtime: {engine: ../../etc/passwd}",
            "runtime.engine: '../../etc/passwd' is not a valid name for a runtime.",
        ),
        ("runtime: {executor_path: [a]}", "runtime.executor_path: expected a string"),
    ],
)
def test_invalid_file_is_reported_with_a_remedy(tmp_path: Path, text: str, expected: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(ConfigError) as refused:
        find(tmp_path)
    assert str(refused.value).startswith(f"{file}: {expected}")
    assert "hutch init --runtime NAME" in str(refused.value)


def test_languages_of_two_families_are_a_mismatch_with_a_remedy(tmp_path: Path) -> None:
    bound = read(write(tmp_path, "runtime: {engine: fast, language: rust, plugins_language: c}\n"))
    mismatch = bound.language_mismatch()
    assert mismatch is not None
    assert "the runtime fast uses the language rust, its plugins use c" in mismatch
    assert "`hutch init --runtime NAME` with a runtime of c" in mismatch


@pytest.mark.parametrize(
    ("one", "other"), [("C++", "cpp"), ("py", "Python3"), ("node", "typescript"), ("Rust", "rs")]
)
def test_names_of_one_language_have_the_same_family(one: str, other: str) -> None:
    assert family(one) == family(other)


def test_bind_writes_a_file_that_find_reads(tmp_path: Path) -> None:
    assert not (tmp_path / FILE).exists()
    bound = bind(tmp_path)
    assert bound == find(tmp_path)
    assert bound.is_builtin
    assert (tmp_path / FILE).read_text() == (
        "runtime:\n  engine: hutch\n  language: python\n  plugins_language: python\n  executor_path: null\n"
    )
    assert sorted(path.name for path in (tmp_path / "tm/config").iterdir()) == ["runtime.yaml"]


def test_bind_replaces_the_runtime_and_keeps_other_sections(tmp_path: Path) -> None:
    write(tmp_path, "other: {a: [1, x]}\nruntime: {engine: old, language: c, executor_path: bin/old}\n")
    bind(tmp_path, "rust", executor_path="bin/new")
    text = (tmp_path / FILE).read_text()
    assert "other:\n  a:\n  - 1\n  - x\n" in text
    bound = read(tmp_path / FILE)
    assert (bound.engine, bound.language, bound.plugins_language) == ("rust", "rust", "rust")
    assert bound.executor_path == "bin/new"


def test_bind_keeps_language_and_program_of_the_same_runtime(tmp_path: Path) -> None:
    bind(tmp_path, "fast", language="rust", plugins_language="c", executor_path="bin/fast")
    bound = bind(tmp_path, "fast")
    assert (bound.language, bound.plugins_language, bound.executor_path) == ("rust", "rust", "bin/fast")
    assert bind(tmp_path).executor_path is None


def test_bind_replaces_an_invalid_section(tmp_path: Path) -> None:
    write(tmp_path, "runtime: 5\n")
    assert bind(tmp_path).engine == "hutch"
    assert read(tmp_path / FILE).engine == "hutch"


def test_file_with_invalid_yaml_is_not_overwritten(tmp_path: Path) -> None:
    file = write(tmp_path, "a: [")
    with pytest.raises(ConfigError):
        bind(tmp_path)
    assert file.read_text() == "a: ["


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "a b", "x" * 65, "a\nb", "-x", "a..b"])
def test_names_that_are_not_file_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingError, match="is not a valid name for a runtime"):
        check_engine(name)
    with pytest.raises(SettingError):
        bind(tmp_path, name)
    assert not (tmp_path / "tm").exists()


def test_unwritable_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "tm").write_text("a file")
    with pytest.raises(ConfigError, match="cannot be written: "):
        bind(tmp_path)
