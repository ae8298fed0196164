import subprocess
from pathlib import Path

import pytest

from hutch.errors import SandboxUnavailable
from hutch.sandbox import deno_binary


def test_packaged_deno_is_found_with_its_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("HUTCH_DENO", raising=False)
    deno = deno_binary.find_deno()
    result = subprocess.run([deno, "--version"], capture_output=True, text=True, check=True).stdout
    assert deno_binary.deno_version(deno) == result.split()[1]


def test_version_of_another_deno_comes_from_the_binary(tmp_path: Path) -> None:
    link = tmp_path / "deno"
    link.write_text("#!/bin/sh\necho 'deno 9.8.7 (stable)'\n")
    link.chmod(0o755)
    assert deno_binary.deno_version(str(link)) == "9.8.7"


def test_hutch_deno_takes_precedence_over_the_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    chosen = tmp_path / "deno"
    chosen.write_text("#!/bin/sh\n")
    chosen.chmod(0o755)
    monkeypatch.setenv("HUTCH_DENO", str(chosen))
    assert deno_binary.find_deno() == str(chosen)


def test_missing_deno_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUTCH_DENO", "/nowhere/deno")
    with pytest.raises(SandboxUnavailable, match="/nowhere/deno") as caught:
        deno_binary.find_deno()
    assert "pip install deno" in str(caught.value.remedy)


def test_program_that_is_not_deno_is_rejected() -> None:
    with pytest.raises(SandboxUnavailable, match="is not Deno"):
        deno_binary.deno_version("/bin/true")


def test_libraries_are_the_loader_and_what_it_loads() -> None:
    found = deno_binary.shared_libraries(deno_binary.find_deno())
    assert deno_binary.elf_interpreter(deno_binary.find_deno()) == found[0]
    assert all(Path(path).exists() for path in found)
    assert any("libc.so" in path for path in found)


def test_file_that_is_not_a_binary_is_rejected(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\n")
    with pytest.raises(SandboxUnavailable, match="not a 64-bit ELF"):
        deno_binary.elf_interpreter(str(script))
