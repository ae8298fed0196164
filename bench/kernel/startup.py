"""Start-up time of the command and of the import."""

from __future__ import annotations

import asyncio
import compileall
import os
import sys
import tempfile
import time
from pathlib import Path

import hutch
from bench.baseline import deno_run
from bench.report import Row, Scale, median, number

TIMES = 10


async def command(scale: Scale) -> list[Row]:
    """Measures `hutch eval` when the result of the self-test is cached. The first call, without a cached
    result, is reported separately.
    """
    compile_sources()
    with tempfile.TemporaryDirectory(prefix="hutch-bench-") as home:
        environment = {**os.environ, "HUTCH_HOME": home}
        argv = [*_hutch(), "eval", "1+1"]
        first = await _seconds(argv, environment)
        measured: list[float] = []
        reference: list[float] = []
        for _ in range(TIMES):
            measured.append(await _seconds(argv, environment))
            reference.append(await deno_run())
    time_, base = median(measured), median(reference)
    return [
        Row(
            what="`hutch eval '1+1'`, the whole command",
            measured=f"{number(time_)} s; the first since boot, with the self-test: {number(first)} s",
            baseline=f"{number(base)} s: `deno run`, no jail",
            target="≤ 0.4 s",
            met=time_ <= 0.4,
            data={"seconds": time_, "first_seconds": first, "baseline_seconds": base},
        )
    ]


async def imported(scale: Scale) -> list[Row]:
    """Compares Python processes with and without `import hutch`."""
    compile_sources()
    measured: list[float] = []
    reference: list[float] = []
    for _ in range(TIMES + 1):
        measured.append(await _seconds([sys.executable, "-c", "import hutch"], dict(os.environ)))
        reference.append(await _seconds([sys.executable, "-c", "pass"], dict(os.environ)))
    time_, base = median(measured[1:]), median(reference[1:])
    return [
        Row(
            what="`python -c 'import hutch'`",
            measured=f"{number(time_)} s",
            baseline=f"{number(base)} s: `python -c pass`",
            target="≤ 0.15 s",
            met=time_ <= 0.15,
            data={"seconds": time_, "baseline_seconds": base},
        )
    ]


def compile_sources() -> None:
    """Compiles all modules to bytecode, as pip does at installation. The bytecode in a checkout may be
    missing or old.
    """
    compileall.compile_dir(Path(hutch.__file__).parent, quiet=2)


def _hutch() -> list[str]:
    """Returns the installed command, if there is one."""
    beside = Path(sys.executable).with_name("hutch")
    return [str(beside)] if beside.exists() else [sys.executable, "-m", "hutch"]


async def _seconds(argv: list[str], environment: dict[str, str]) -> float:
    began = time.perf_counter()
    process = await asyncio.create_subprocess_exec(*argv, env=environment, stdout=asyncio.subprocess.DEVNULL)
    if await process.wait() != 0:
        raise RuntimeError(f"{argv} failed")
    return time.perf_counter() - began
