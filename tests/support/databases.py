"""A real PostgreSQL server for the tests, in a temporary folder; it ends with the test process."""

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
from tests.support.processes import TIMEOUT_SECONDS, wait_until

from hutch.store.backends.base import SqlStatement

USER = "hutch"
# PostgreSQL refuses to run as root.
UNPRIVILEGED_USER = "nobody"
MISSING = (
    "PostgreSQL's programs are missing: `make test` installs them where it may, or `apt install postgresql`"
)


class PostgresServer:
    """A PostgreSQL server that listens on a Unix socket in its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._numbers = count(1)
        self._process: subprocess.Popen[bytes] | None = None
        self._run(_program("initdb"), "--no-sync", "-A", "trust", "-U", USER, "-E", "UTF8", "--locale", "C")

    @property
    def url(self) -> str:
        return f"postgresql://{USER}@/postgres?host={self.folder}"

    def new_database(self) -> str:
        """Returns the URL of a new schema, which is as good as an empty database and 100 times as fast to
        create.
        """
        name = f"test{next(self._numbers)}"
        with self.connect() as connection:
            connection.execute(f"CREATE SCHEMA {name}".encode())
        return f"{self.url}&options=-csearch_path%3D{name}"

    def connect(self, url: str | None = None) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(url or self.url, autocommit=True)

    def start(self) -> None:
        # fsync off: the data need not survive a crash of the machine, and it does survive a killed process.
        options = {"listen_addresses": "", "unix_socket_directories": str(self.folder), "fsync": "off"}
        command = [_program("postgres"), "-D", str(self.folder / "data")]
        command += [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        if setpriv := shutil.which("setpriv"):
            command = [setpriv, "--pdeathsig", "QUIT", *command]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **self._process_options()
            )
        wait_until(self._is_ready)

    def stop(self, signal_number: signal.Signals = signal.SIGINT) -> None:
        """SIGINT shuts down in order and disconnects clients; SIGQUIT simulates a crash."""
        if self._process is not None:
            self._process.send_signal(signal_number)
            self._process.wait(TIMEOUT_SECONDS)
            self._process = None

    def _is_ready(self) -> bool:
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
            timeout=TIMEOUT_SECONDS,
            check=False,
            **self._process_options(),
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def _process_options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"cwd": self.folder}
        if os.geteuid() == 0:
            user = pwd.getpwnam(UNPRIVILEGED_USER)
            options |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        return options


@contextlib.contextmanager
def running_postgres() -> Iterator[PostgresServer]:
    # Short, because paths of sockets are limited.
    folder = Path(tempfile.mkdtemp(prefix="hutch-pg-"))
    try:
        if os.geteuid() == 0:
            user = pwd.getpwnam(UNPRIVILEGED_USER)
            os.chown(folder, user.pw_uid, user.pw_gid)
        server = PostgresServer(folder)
        try:
            server.start()
            yield server
        finally:
            server.stop(signal.SIGQUIT)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _program(name: str) -> str:
    """Finds a program in PATH or in Debian's versioned folders."""
    versions = sorted(
        Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: float(path.parts[4])
    )
    found = shutil.which(name) or (str(versions[-1]) if versions else None)
    assert found is not None, MISSING
    return found


def statement(sql: str) -> SqlStatement:
    return SqlStatement(sql, {})
