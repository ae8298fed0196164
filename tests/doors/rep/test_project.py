"""A project is bound to one runtime, in `tm/config/runtime.yaml`."""

from __future__ import annotations

from pathlib import Path

import pytest

from hutch.doors.rep.project import FILE, bind, check_engine, family, find, read
from hutch.errors import ConfigError, SettingError


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
    assert bound.is_ours
    assert bound.mismatch() is None
    assert bound.folder == tmp_path


def test_what_is_left_out_has_the_public_tools_defaults(tmp_path: Path) -> None:
    bound = read(
        write(tmp_path, "runtime: {engine: fast, language: rust, executor_path: bin/fast}\nother: 1\n")
    )
    assert (bound.engine, bound.language, bound.plugins_language) == ("fast", "rust", "rust")
    assert bound.executor == tmp_path / "bin/fast"
    assert not bound.is_ours


def test_nearest_file_upwards_is_found(tmp_path: Path) -> None:
    write(tmp_path, "runtime: {engine: outer}\n")
    write(tmp_path / "a", "runtime: {engine: inner}\n")
    (tmp_path / "a/b/c").mkdir(parents=True)
    (tmp_path / "z").mkdir()
    for folder, engine in (("a/b/c", "inner"), ("a", "inner"), ("z", "outer")):
        bound = find(tmp_path / folder)
        assert bound is not None
        assert bound.engine == engine


def test_executor_by_a_bare_name_is_left_to_be_looked_for(tmp_path: Path) -> None:
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
            "runtime.engine: There can be no runtime '../../etc/passwd'.",
        ),
        ("runtime: {executor_path: [a]}", "runtime.executor_path: expected a string"),
    ],
)
def test_file_that_is_wrong_is_told_with_advice(tmp_path: Path, text: str, expected: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(ConfigError) as refused:
        find(tmp_path)
    assert str(refused.value).startswith(f"{file}: {expected}")
    assert "hutch init --runtime NAME" in str(refused.value)


def test_languages_of_two_families_are_a_mismatch_with_advice(tmp_path: Path) -> None:
    bound = read(write(tmp_path, "runtime: {engine: fast, language: rust, plugins_language: c}\n"))
    told = bound.mismatch()
    assert told is not None
    assert "the runtime fast is of the language rust, its plugins are of c" in told
    assert "`hutch init --runtime NAME` with a runtime of c" in told


@pytest.mark.parametrize(
    ("one", "other"), [("C++", "cpp"), ("py", "Python3"), ("node", "typescript"), ("Rust", "rs")]
)
def test_names_of_one_family_are_no_mismatch(one: str, other: str) -> None:
    assert family(one) == family(other)


def test_binding_writes_what_is_read_again(tmp_path: Path) -> None:
    assert not (tmp_path / FILE).exists()
    bound = bind(tmp_path)
    assert bound == find(tmp_path)
    assert bound.is_ours
    assert (tmp_path / FILE).read_text() == (
        "runtime:\n  engine: hutch\n  language: python\n  plugins_language: python\n  executor_path: null\n"
    )
    assert sorted(path.name for path in (tmp_path / "tm/config").iterdir()) == ["runtime.yaml"]


def test_binding_again_replaces_the_runtime_and_keeps_the_rest(tmp_path: Path) -> None:
    write(tmp_path, "other: {a: [1, x]}\nruntime: {engine: old, language: c, executor_path: bin/old}\n")
    bind(tmp_path, "rust", executor_path="bin/new")
    text = (tmp_path / FILE).read_text()
    assert "other:\n  a:\n  - 1\n  - x\n" in text
    bound = read(tmp_path / FILE)
    assert (bound.engine, bound.language, bound.plugins_language) == ("rust", "rust", "rust")
    assert bound.executor_path == "bin/new"


def test_binding_the_same_runtime_keeps_what_is_not_said(tmp_path: Path) -> None:
    bind(tmp_path, "fast", language="rust", plugins_language="c", executor_path="bin/fast")
    bound = bind(tmp_path, "fast")
    assert (bound.language, bound.plugins_language, bound.executor_path) == ("rust", "rust", "bin/fast")
    assert bind(tmp_path).executor_path is None


def test_file_whose_section_is_wrong_is_mended(tmp_path: Path) -> None:
    write(tmp_path, "runtime: 5\n")
    assert bind(tmp_path).engine == "hutch"
    assert read(tmp_path / FILE).engine == "hutch"


def test_file_that_is_no_yaml_is_not_overwritten(tmp_path: Path) -> None:
    file = write(tmp_path, "a: [")
    with pytest.raises(ConfigError):
        bind(tmp_path)
    assert file.read_text() == "a: ["


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "a b", "x" * 65, "a\nb", "-x", "a..b"])
def test_names_that_no_file_should_have_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingError, match="There can be no runtime"):
        check_engine(name)
    with pytest.raises(SettingError):
        bind(tmp_path, name)
    assert not (tmp_path / "tm").exists()


def test_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "tm").write_text("a file")
    with pytest.raises(ConfigError, match="cannot be written: "):
        bind(tmp_path)
