"""Tests of pytest's option `--processes`, with which `make test` runs all tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FILES = {
    "test_one.py": """
        import os, pytest

        def test_passes(tmp_path):
            (tmp_path / "file").touch()

        def test_prints_and_fails():
            print("printed text")
            assert 1 == 2

        def test_ends_the_process():
            os._exit(7)

        def test_after_that():
            pass
    """,
    "test_two.py": """
        import os, pytest

        @pytest.fixture(scope="module")
        def first():
            yield os.getpid()
            raise RuntimeError("the teardown failed")

        @pytest.mark.parametrize("number", range(20))
        def test_runs_in_the_process_of_its_file(first, number):
            assert os.getpid() == first

        def test_is_skipped():
            pytest.skip("no reason")
    """,
    "test_three.py": "def test_passes(): pass",
}


def _run(folder: Path, *options: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "pytest", "-p", "tests.support.parallel", "--rootdir", str(folder)]
    root = Path(__file__).parent.parent
    done = subprocess.run(
        [*command, "--processes", "2", *options, str(folder)], cwd=root, capture_output=True, text=True
    )
    return done.returncode, done.stdout


def test_every_test_is_reported_once_also_after_a_crash(tmp_path: Path) -> None:
    for name, text in FILES.items():
        lines = text.splitlines()
        (tmp_path / name).write_text("\n".join(line.removeprefix(" " * 8) for line in lines))
    code, output = _run(tmp_path, "-rA")
    assert code == 1
    assert "2 failed, 23 passed, 1 skipped, 1 error" in output
    assert "the process of this test ended with the status 7" in output
    assert "printed text" in output
    assert "RuntimeError: the teardown failed" in output
    assert "test_one.py::test_after_that\n" in output


def test_run_stops_after_the_first_failure_if_asked(tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / f"test_{number:02}.py").write_text("def test_fails(): assert False")
    code, output = _run(tmp_path, "-x")
    assert code == 1
    assert "!! stopping after" in output
    assert "40 failed" not in output
