"""An API that repeats each request in its response, and users with a separate home."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.network.threaded_http import QuietHandler, ThreadedHttpServer
from tests.support.processes import hutch


class EchoApi(ThreadedHttpServer):
    """API on loopback. Serves each of `documents` at its path, and answers all other requests with a copy of
    the request.
    """

    def __init__(self) -> None:
        self.documents: dict[str, bytes] = {}
        self.seen: list[str] = []
        api = self

        class Handler(QuietHandler):
            def _respond(self) -> None:
                api.seen.append(f"{self.command} {self.path}")
                length = int(self.headers.get("Content-Length") or 0)
                received = self.rfile.read(length).decode()
                headers = {name.lower(): value for name, value in self.headers.items()}
                echo = {"request": f"{self.command} {self.path}", "headers": headers, "body": received}
                body = api.documents.get(self.path) or json.dumps(echo).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = do_PUT = do_DELETE = _respond

        super().__init__(Handler)

    def run(self, ability_id: str, **params: Any) -> dict[str, Any]:
        """Runs an ability of the user bo. Returns the API's copy of the ability's request."""
        run = ("ability", "run", "--user", "bo", ability_id, "--params", "-")
        done = hutch(*run, "--egress-allow", self.address, input=json.dumps(params))
        assert done.returncode == 0, done.stderr
        echo: dict[str, Any] = json.loads(done.stdout)
        return echo


@pytest.fixture(scope="module")
def echo_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EchoApi]:
    """The API, with the user bo in a new home."""
    with pytest.MonkeyPatch.context() as patch, EchoApi() as api:
        patch.setenv("HUTCH_HOME", str(tmp_path_factory.mktemp("imports")))
        assert hutch("user", "add", "bo").returncode == 0
        yield api


def add_imported(*options: str, folder: Path) -> list[str]:
    """Imports abilities for bo, and returns the notes of the import."""
    imported = hutch("ability", "import", *options, cwd=folder)
    assert imported.returncode == 0, imported.stderr
    added = hutch("ability", "add", "--user", "bo", "-", input=imported.stdout)
    assert added.returncode == 0, added.stderr
    return imported.stderr.splitlines()
