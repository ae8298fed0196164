"""A full disk: runs continue, and their records are written when the disk has space again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.support.processes import (
    HUTCH,
    NO_WARM_RUNNERS,
    TIMEOUT_SECONDS,
    ServeProcess,
    descendants,
    stop_process,
    wait_until,
)

HOME = "/mnt/small"
SMALL_DISK = ["--dev-bind", "/", "/", "--tmpfs", "/mnt", "--size", str(8 * 1024 * 1024), "--tmpfs", HOME]


@pytest.fixture
def server() -> Iterator[ServeProcess]:
    """A server whose home is on a disk of 8 MiB."""
    command = ["bwrap", *SMALL_DISK, "--", *HUTCH, "serve", "--port", "0"]
    env = {**os.environ, **NO_WARM_RUNNERS, "HUTCH_HOME": HOME}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            server = ServeProcess(process)
            yield server
            # The server is a child of bubblewrap. Stop the server, so that bubblewrap exits, too.
            os.kill(descendants(process.pid)[0], signal.SIGTERM)
            server.wait()
        finally:
            stop_process(process)


def home_of(server: ServeProcess) -> Path:
    """Returns the path of the server's home. The home is on a disk that only the server's processes see."""
    for pid in descendants(server.process.pid):
        folder = Path(f"/proc/{pid}/root{HOME}")
        if (folder / "hutch.db").exists():
            return folder
    raise AssertionError("no process of the server has a database")


def fill(file: Path) -> None:
    """Writes to a file until the disk is full."""
    with file.open("wb", buffering=0) as opened, contextlib.suppress(OSError):
        while True:
            opened.write(bytes(4_096))


def test_runs_go_on_while_the_disk_is_full(server: ServeProcess) -> None:
    with httpx2.Client(base_url=server.url, timeout=TIMEOUT_SECONDS) as client:

        def run(label: str) -> Any:
            return client.post("/run", json={"code": "6 * 7", "label": label}).json()["result"]

        def records() -> dict[str, Any]:
            state: dict[str, Any] = client.get("/health").json()["records"]
            return state

        assert run("before") == 42
        filler = home_of(server) / "filler"
        fill(filler)
        assert [run("during") for _ in range(3)] == [42, 42, 42]
        wait_until(lambda: records()["status"] == "waiting for the database")
        assert records()["waiting"] >= 3
        filler.unlink()
        wait_until(lambda: records() == {"status": "ok", "waiting": 0, "dropped": 0})
        listed = client.get("/runs", params={"label": "during"}).json()["runs"]
        assert len(listed) == 3
