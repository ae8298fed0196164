"""Runs the services of `deploy/compose.yaml` as processes, to test their commands, variables and health
checks.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import sysconfig
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import compose_spec
import httpx2
import pytest
import yaml
from tests.support.databases import PostgresServer, postgres_program
from tests.support.network.clusters import free_port, wait_for_port
from tests.support.network.deployed import (
    DEPLOY,
    Deployed,
    deployed,
    image_command,
    image_health_check,
    substituted,
)
from tests.support.processes import NO_WARM_RUNNERS, TIMEOUT_SECONDS, wait_until

API_KEY = secrets.token_hex(32)
VALUES = {
    "HOST_NAME": "localhost",
    "API_KEY": API_KEY,
    "MASTER_KEY": b64encode(secrets.token_bytes(32)).decode(),
    "CLUSTER_SECRET": secrets.token_hex(32),
    "POSTGRES_PASSWORD": "postgres-password",
    "FRONT_PASSWORD": "front-password",
    "WORKER_PASSWORD": "worker-password",
    "STATUS_PASSWORD": "status-password",
}


def compose() -> dict[str, Any]:
    """Returns the content of the Compose file with its variables replaced and its aliases expanded."""
    loaded: dict[str, Any] = yaml.safe_load(substituted((DEPLOY / "compose.yaml").read_text(), VALUES))
    return loaded


def test_file_follows_the_specification() -> None:
    text = yaml.safe_dump(compose())
    parsed = compose_spec.PyCompose.from_yaml(text)
    assert {"postgres", "nats", "front-1", "front-2", "worker", "caddy"} <= {*parsed.service_names()}
    with pytest.raises(Exception, match="restartt"):
        compose_spec.PyCompose.from_yaml(text.replace("restart:", "restartt:", 1))


def test_caddyfile_is_valid_for_a_public_name(tmp_path: Path) -> None:
    with deployed(tmp_path, {}) as services:
        caddyfile = ["--config", str(DEPLOY / "Caddyfile"), "--adapter", "caddyfile"]
        assert services.check([CADDY, "validate", *caddyfile], HOST_NAME="hutch.example.com"), services.logs()


CADDY = str(Path(sysconfig.get_path("scripts")) / "caddy")


class Stack:
    def __init__(self, services: Deployed, ports: dict[str, int]) -> None:
        self.services = services
        self.ports = ports
        self.file = compose()["services"]
        self.fronts: dict[str, Any] = {}

    def start(self, postgres_url: str) -> None:
        # As Compose does, run the service `certificates` to its end before other services start.
        certificates = self.file["certificates"]
        (self.services.folder / "certificates").mkdir()
        assert self.services.check([*certificates["entrypoint"], *certificates["command"]])
        nats = self.file["nats"]
        address = ["--addr", "127.0.0.1", "--port", str(self.ports["nats"])]
        self.services.start("nats", ["nats-server", *nats["command"], *address], nats["environment"])
        wait_for_port(self.ports["nats"])
        for name in ("front-1", "front-2"):
            front = self.file[name]
            assert front["environment"]["HUTCH_DATABASE_URL"].startswith("postgresql://hutch:")
            variables = {**front["environment"], "HUTCH_DATABASE_URL": postgres_url}
            others = {**NO_WARM_RUNNERS, "HUTCH_PORT": str(self.ports[name])}
            command = front.get("command", image_command())
            self.fronts[name] = self.services.start_hutch(name, command, variables, **others)
        worker = self.file["worker"]
        self.services.start_hutch("worker", worker["command"], worker["environment"], **NO_WARM_RUNNERS)
        upstreams = (DEPLOY / "Caddyfile").read_text()
        for name in self.fronts:
            upstreams = upstreams.replace(f"{name}:4111", f"127.0.0.1:{self.ports[name]}")
        (self.services.folder / "Caddyfile").write_text(upstreams)
        # Use HTTP. With TLS, Caddy would install its own certificate authority on this machine.
        caddy = {
            "HOST_NAME": f"http://localhost:{self.ports['caddy']}",
            "CADDY_ADMIN": f"unix/{self.services.folder}/admin.sock",
        }
        self.services.start("caddy", [CADDY, "run", "--config", "Caddyfile"], caddy)
        wait_for_port(self.ports["caddy"])

    def client(self) -> httpx2.Client:
        headers = {"Authorization": f"Bearer {API_KEY}"}
        url = f"http://localhost:{self.ports['caddy']}"
        return httpx2.Client(base_url=url, headers=headers, timeout=TIMEOUT_SECONDS)


@pytest.fixture
def stack(postgres: PostgresServer, tmp_path: Path) -> Iterator[Stack]:
    ports = {name: free_port() for name in ("nats", "front-1", "front-2", "caddy")}
    replaced = {
        "/certificates": f"{tmp_path}/certificates",
        "DNS:nats": "IP:127.0.0.1",
        "nats:4222": f"127.0.0.1:{ports['nats']}",
        "/nats.conf": str(DEPLOY / "nats.conf"),
    }
    with postgres.database_with_tables() as url, deployed(tmp_path, replaced) as services:
        stack = Stack(services, ports)
        stack.start(url)
        yield stack


def test_services_work_together_and_their_health_checks_succeed(
    stack: Stack, postgres: PostgresServer
) -> None:
    worker = stack.file["worker"]["healthcheck"]["test"]
    assert worker[0] == "CMD"
    command = [word.replace("$$", "$") for word in worker[1:]]
    wait_until(lambda: stack.services.check_in("worker", command))
    front = [re.sub(r":4111/", f":{stack.ports['front-1']}/", word) for word in image_health_check()]
    wait_until(lambda: stack.services.check(front))
    # The server must accept the name of the service as `Host`, because Caddy's health checks send this name.
    url = f"http://127.0.0.1:{stack.ports['front-2']}/ready"
    wait_until(lambda: _status(url, host="front-2:4111") == 200)
    database = stack.file["postgres"]["healthcheck"]["test"]
    assert database[:2] == ["CMD", "pg_isready"]
    host = re.findall(r"host=([^&]+)", postgres.url)[0]
    assert stack.services.check([postgres_program("pg_isready"), *database[2:]], PGHOST=host)

    wait_until(lambda: _status(f"http://localhost:{stack.ports['caddy']}/ready") == 200)
    with stack.client() as client:
        done = client.post("/run", json={"code": "1 + 1"})
        assert (done.status_code, done.json()["result"]) == (200, 2), done.text
        body = {"async": True, "kind": "code", "request": {"code": "console.log('hello'); return 3"}}
        run_id = client.post("/runs", json=body).json()["runId"]
        with client.stream("GET", f"/runs/{run_id}/events") as events:
            assert "event: end" in "\n".join(events.iter_lines())
        assert client.get(f"/runs/{run_id}/result").json()["result"] == 3

    # Requests succeed while one of the two fronts is down.
    stack.fronts["front-1"].kill()
    wait_until(lambda: not stack.services.check(front))
    for _ in range(5):
        with stack.client() as client:
            done = client.post("/run", json={"code": "1 + 1"})
            assert done.status_code == 200, done.text
    assert not stack.services.check_in("front-2", command), "there is no worker"


def _status(url: str, **headers: str) -> int | None:
    with contextlib.suppress(httpx2.HTTPError):
        return httpx2.get(url, headers=headers, timeout=TIMEOUT_SECONDS).status_code
    return None
