"""A real PostgreSQL for the tests: made in a folder of its own, and gone with the process that made it."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
from tests.processes import PATIENCE, until

from hutch.store.database import Statement

USER = "hutch"
# PostgreSQL refuses to run as root.
UNPRIVILEGED = "nobody"
MISSING = (
    "PostgreSQL's programs are missing: `make test` installs them where it may, or `apt install postgresql`"
)


class Server:
    """Reached through a socket in its folder, by whoever may enter that."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._numbers = count(1)
        self._process: subprocess.Popen[bytes] | None = None
        self._run(_program("initdb"), "--no-sync", "-A", "trust", "-U", USER, "-E", "UTF8", "--locale", "C")

    @property
    def url(self) -> str:
        return f"postgresql://{USER}@/postgres?host={self.folder}"

    def new_database(self) -> str:
        """The URL of what is as good as an empty database, and made a hundred times as fast: a schema."""
        name = f"test{next(self._numbers)}"
        with self.connect() as connection:
            connection.execute(f"CREATE SCHEMA {name}".encode())
        return f"{self.url}&options=-csearch_path%3D{name}"

    def connect(self, url: str | None = None) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(url or self.url, autocommit=True)

    def start(self) -> None:
        # Nothing has to outlive this machine's crash; what a killed process leaves is kept all the same.
        options = {"listen_addresses": "", "unix_socket_directories": str(self.folder), "fsync": "off"}
        command = [_program("postgres"), "-D", str(self.folder / "data")]
        command += [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        if setpriv := shutil.which("setpriv"):
            command = [setpriv, "--pdeathsig", "QUIT", *command]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **self._as()
            )
        until(self._answers)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT ends it in order, with whoever is connected; SIGQUIT as if it had crashed."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(PATIENCE)
            self._process = None

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "log").read_text()
        with contextlib.suppress(psycopg.OperationalError):
            self.connect().close()
            return True
        return False

    def _run(self, *command: str) -> None:
        done = subprocess.run(
            [*command, "-D", str(self.folder / "data")],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
            **self._as(),
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def _as(self) -> dict[str, Any]:
        who: dict[str, Any] = {"cwd": self.folder}
        if os.geteuid() == 0:
            user = pwd.getpwnam(UNPRIVILEGED)
            who |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        return who


@contextlib.contextmanager
def serving() -> Iterator[Server]:
    # Short, because the path of a socket has to be.
    folder = Path(tempfile.mkdtemp(prefix="hutch-pg-"))
    try:
        if os.geteuid() == 0:
            user = pwd.getpwnam(UNPRIVILEGED)
            os.chown(folder, user.pw_uid, user.pw_gid)
        server = Server(folder)
        try:
            server.start()
            yield server
        finally:
            server.stop(signal.SIGQUIT)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _program(name: str) -> str:
    """From the path, or from where Debian has it: by version, and in no path."""
    versions = sorted(
        Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: float(path.parts[4])
    )
    found = shutil.which(name) or (str(versions[-1]) if versions else None)
    assert found is not None, MISSING
    return found


def statement(sql: str) -> Statement:
    return Statement(sql, {})
