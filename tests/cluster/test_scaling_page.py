"""Follows docs/scaling.md literally, from one machine to three. Each machine has its own home."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support.forked import forked_hutch
from tests.support.network.clusters import free_port, wait_for_port
from tests.support.processes import TIMEOUT_SECONDS, copy_selftest, wait_until

PAGE = Path(__file__).parents[2] / "docs/scaling.md"


def blocks() -> list[str]:
    """Returns the blocks of shell commands in the section "From one machine to three"."""
    section = PAGE.read_text().partition("## From one machine to three\n")[2].partition("\n## ")[0]
    return re.findall(r"```sh\n(.*?)```", section, re.S)


class Machine:
    """A machine: runs shell commands with its own home. Processes that a command starts in the background end
    with the test.
    """

    def __init__(self, home: Path, environ: dict[str, str], ports: dict[str, int]) -> None:
        copy_selftest(home)
        self._environ = {**os.environ, **environ, "HUTCH_HOME": str(home)}
        self._ports = ports
        self._processes: list[subprocess.Popen[str]] = []

    def run(self, commands: str) -> str:
        """Runs commands of the page, with other ports than on the page. Returns the output of the
        commands.
        """
        for shown, port in self._ports.items():
            commands = commands.replace(shown, str(port))
        background = re.search(r"&$", commands.strip(), re.M) is not None
        process = subprocess.Popen(
            ["bash", "-ec", f"{commands}\n{'wait' if background else ''}"],
            env=self._environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        if background:
            self._processes.append(process)
            return ""
        output, _ = process.communicate(timeout=TIMEOUT_SECONDS)
        assert process.returncode == 0, output
        return output

    def stop(self) -> None:
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in self._processes:
            process.communicate(timeout=TIMEOUT_SECONDS)


@contextlib.contextmanager
def machines(
    folder: Path, count: int, environ: dict[str, str], ports: dict[str, int]
) -> Iterator[list[Machine]]:
    made = [Machine(folder / str(number), environ, ports) for number in range(count)]
    try:
        yield made
    finally:
        for machine in reversed(made):
            machine.stop()


def test_page_leads_from_one_machine_to_three(tmp_path: Path) -> None:
    secret, first, second, third, status, call = blocks()
    ports = {"4222": free_port(), "4111": free_port()}
    programs = f"{forked_hutch(tmp_path)}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    [name, command] = re.findall(r"export (\w+)=\$\((.*)\)", secret)[0]
    value = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True).stdout.strip()
    environ = {"PATH": programs, "HUTCH_PORT": str(ports["4111"]), name: value}
    with machines(tmp_path, 3, environ, ports) as (one, two, three):
        one.run(first)
        wait_for_port(ports["4222"])
        wait_for_port(ports["4111"])
        two.run(second)
        three.run(third)

        def has_workers() -> bool:
            with contextlib.suppress(AssertionError):
                shown = one.run(status)
                return all(name in shown for name in ("front", "second", "third"))
            return False

        wait_until(has_workers)
        shown = one.run(status)
        assert len(re.findall(r"^worker .* container .* ok\s*$", shown, re.M)) == 2, shown
        assert '"result":2' in one.run(call).replace(" ", "")
