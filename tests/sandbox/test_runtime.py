import subprocess
from pathlib import Path

import pytest

from hutch.errors import SandboxUnavailable
from hutch.sandbox import runtime


def test_deno_of_the_package_is_found_and_its_version_is_the_one_it_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("HUTCH_DENO", raising=False)
    deno = runtime.locate()
    told = subprocess.run([deno, "--version"], capture_output=True, text=True, check=True).stdout
    assert runtime.version(deno) == told.split()[1]


def test_version_of_a_deno_outside_the_package_is_asked(tmp_path: Path) -> None:
    link = tmp_path / "deno"
    link.write_text("#!/bin/sh\necho 'deno 9.8.7 (stable)'\n")
    link.chmod(0o755)
    assert runtime.version(str(link)) == "9.8.7"


def test_hutch_deno_is_taken_before_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    chosen = tmp_path / "deno"
    chosen.write_text("#!/bin/sh\n")
    chosen.chmod(0o755)
    monkeypatch.setenv("HUTCH_DENO", str(chosen))
    assert runtime.locate() == str(chosen)


def test_missing_deno_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUTCH_DENO", "/nowhere/deno")
    with pytest.raises(SandboxUnavailable, match="/nowhere/deno") as caught:
        runtime.locate()
    assert "pip install deno" in str(caught.value.remedy)


def test_a_program_that_is_not_deno_is_refused() -> None:
    with pytest.raises(SandboxUnavailable, match="does not say that it is Deno"):
        runtime.version("/bin/true")


def test_libraries_are_the_loader_and_what_it_loads() -> None:
    found = runtime.libraries(runtime.locate())
    assert runtime.interpreter(runtime.locate()) == found[0]
    assert all(Path(path).exists() for path in found)
    assert any("libc.so" in path for path in found)


def test_a_file_that_is_no_binary_has_no_interpreter(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\n")
    with pytest.raises(SandboxUnavailable, match="not a 64-bit ELF"):
        runtime.interpreter(str(script))
