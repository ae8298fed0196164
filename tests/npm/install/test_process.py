"""The installer ends with the task that runs it."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from hutch.npm.install.process import InstallLimits, installer_jail_prefix, run_installer

LIMITS = InstallLimits(max_bytes=10_000_000, max_files=1_000)
# A test cancels the installer after 0, 1, 2, … iterations of the event loop. Starting a process takes fewer
# iterations than this number.
MAX_TURNS = 12


async def test_installer_that_is_cancelled_while_it_starts_ends_before_its_folder_is_removed(
    tmp_path: Path,
) -> None:
    prefix = installer_jail_prefix(tmp_path)
    writes_forever = ["/bin/sh", "-c", "while :; do : > file; done"]
    for turns in range(MAX_TURNS):
        installing = asyncio.create_task(
            run_installer(
                [*prefix, *writes_forever],
                cwd=tmp_path,
                env={},
                pass_fds=(),
                watched=(tmp_path,),
                limits=LIMITS,
                on_line=lambda line: None,
            )
        )
        for _ in range(turns):
            await asyncio.sleep(0)
        installing.cancel()
        await asyncio.gather(installing, return_exceptions=True)
        assert not _processes_in(tmp_path), turns


def _processes_in(folder: Path) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "cwd").readlink() == folder:
                found.append(process.name)
    return found
