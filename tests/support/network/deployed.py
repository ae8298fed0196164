"""Starts the services of the files in `deploy/` as processes of this machine."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from tests.support.forked import forked_hutch
from tests.support.processes import TIMEOUT_SECONDS, copy_selftest, stop_process

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
IMAGE = (ROOT / "examples/deploy/Containerfile").read_text()
HOME = "/var/lib/hutch"
"""Home of Hutch in the image."""


def yaml_documents(path: Path) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(path.read_text()) if each]


def image_variables() -> dict[str, str]:
    """Returns the environment variables that the container image sets."""
    [block] = re.findall(r"^ENV ((?:.*\\\n)*.*)$", IMAGE, re.M)
    return dict(word.split("=", 1) for word in block.replace("\\\n", " ").split())


def image_command() -> list[str]:
    [words] = re.findall(r"^CMD (\[.*\])$", IMAGE, re.M)
    return [str(word) for word in yaml.safe_load(words)]


def image_health_check() -> list[str]:
    [words] = re.findall(r"^HEALTHCHECK .*CMD \\\n\s*(\[.*\])$", IMAGE, re.M)
    return [str(word) for word in yaml.safe_load(words)]


class Deployed:
    """Runs services as processes. `replaced` maps texts in the files, such as host names, ports and paths, to
    the texts that replace them on this machine.
    """

    def __init__(self, folder: Path, replaced: Mapping[str, str]) -> None:
        self.folder = folder
        self._replaced = dict(replaced)
        programs = folder / "programs"
        programs.mkdir()
        self._path = f"{forked_hutch(programs)}:{sysconfig.get_path('scripts')}:{os.environ['PATH']}"
        self._processes: list[subprocess.Popen[bytes]] = []

    def local(self, text: str) -> str:
        for shown, other in self._replaced.items():
            text = text.replace(shown, other)
        return text

    def start(
        self, name: str, command: Sequence[str], variables: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        """Starts a service. The output is written to the file NAME.log."""
        log = (self.folder / f"{name}.log").open("wb")
        with log:
            process = subprocess.Popen(
                [self.local(word) for word in command],
                env=self._environ(variables),
                cwd=self.folder,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._processes.append(process)
        return process

    def start_hutch(
        self, name: str, command: Sequence[str], variables: Mapping[str, str], **others: str
    ) -> subprocess.Popen[bytes]:
        """Starts a service from the image of Hutch, with a home of its own."""
        home = self.home(name)
        copy_selftest(home)
        return self.start(
            name, command, {**image_variables(), **variables, **others, "HUTCH_HOME": str(home)}
        )

    def home(self, name: str) -> Path:
        return self.folder / f"{name}-home"

    def check(self, command: Sequence[str], **variables: str) -> bool:
        """Runs a command to its end. Returns whether it succeeded."""
        done = subprocess.run(
            [self.local(word) for word in command],
            env=self._environ(variables),
            cwd=self.folder,
            capture_output=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
        return done.returncode == 0

    def check_in(self, name: str, command: Sequence[str]) -> bool:
        """Like `check`, but runs the command with the home of a Hutch service, as in the container of that
        service.
        """
        return self.check([word.replace(HOME, str(self.home(name))) for word in command])

    def logs(self) -> str:
        return "\n".join(
            f"--- {path.name}\n{path.read_text()[-3_000:]}" for path in sorted(self.folder.glob("*.log"))
        )

    def stop(self) -> None:
        for process in reversed(self._processes):
            stop_process(process)

    def _environ(self, variables: Mapping[str, str]) -> dict[str, str]:
        given = {name: self.local(str(value)) for name, value in variables.items()}
        return {"PATH": self._path, "HOME": str(self.folder), **given}


@contextlib.contextmanager
def deployed(folder: Path, replaced: Mapping[str, str]) -> Iterator[Deployed]:
    services = Deployed(folder, replaced)
    try:
        yield services
    except BaseException:
        print(services.logs())
        raise
    finally:
        services.stop()


def substituted(text: str, values: Mapping[str, str]) -> str:
    """Replaces the required variables of a Compose file (`${NAME:?}`) by their values."""
    return re.sub(r"\$\{(\w+):\?\}", lambda match: values[match[1]], text)
