"""A server of a cluster when NATS or PostgreSQL is not available at its start, or stops later."""

from __future__ import annotations

from pathlib import Path

import httpx2
from tests.support.databases import running_postgres
from tests.support.network.clusters import SECRET, NatsServer, running_nats, running_worker
from tests.support.processes import TIMEOUT_SECONDS, copy_selftest, hutch, running_server, wait_until


def environment(home: Path) -> dict[str, str]:
    return {
        "HUTCH_HOME": str(home),
        "HUTCH_CLUSTER_SECRET": SECRET,
        "HUTCH_CLUSTER_LOCAL": "false",
        "HUTCH_QUEUE_SECONDS": "0.2",
    }


def test_server_and_worker_with_a_wrong_password_say_so_at_their_start(tmp_path: Path) -> None:
    copy_selftest(tmp_path)
    with running_nats("--user", "bo", "--pass", "right") as nats:
        env = {**environment(tmp_path), "HUTCH_CLUSTER_USER": "bo", "HUTCH_CLUSTER_PASSWORD": "hush"}
        for command in (["serve", "--port", "0"], ["worker"]):
            done = hutch(*command, "--cluster", nats.url, env=env)
            assert done.returncode != 0
            assert "refused this machine" in done.stderr
            assert "hush" not in done.stdout + done.stderr


def test_server_without_postgres_says_so_at_its_start(tmp_path: Path) -> None:
    copy_selftest(tmp_path)
    with running_nats() as nats:
        env = {**environment(tmp_path), "HUTCH_DATABASE_URL": "postgresql://ada:hush@127.0.0.1:1/x"}
        done = hutch("serve", "--port", "0", "--cluster", nats.url, env=env)
    assert done.returncode != 0
    assert "PostgreSQL at 127.0.0.1" in done.stderr
    assert "hush" not in done.stdout + done.stderr


def test_server_is_not_ready_while_nats_or_postgres_is_away(tmp_path: Path) -> None:
    nats = NatsServer()
    nats.start()
    try:
        with (
            running_postgres() as postgres,
            running_worker(nats.url, tmp_path / "worker"),
            running_server(
                "--cluster",
                nats.url,
                **environment(tmp_path / "server"),
                HUTCH_DATABASE_URL=postgres.new_database(),
            ) as server,
            httpx2.Client(base_url=server.url, timeout=TIMEOUT_SECONDS) as client,
        ):

            def problems() -> set[str]:
                return {*client.get("/ready").json()["problems"]}

            def accept() -> httpx2.Response:
                body = {"async": True, "kind": "code", "request": {"code": "return 7"}}
                return client.post("/runs", json=body)

            wait_until(lambda: problems() == set())
            nats.stop()
            wait_until(lambda: problems() == {"cluster"})
            refused = client.post("/run", json={"code": "1 + 1"})
            assert refused.status_code == 503
            assert "Retry-After" in refused.headers
            # The server accepts an asynchronous run without NATS. The run waits until workers are connected.
            waiting = accept()
            assert waiting.status_code == 202
            nats.start()
            wait_until(lambda: problems() == set())
            path = f"/runs/{waiting.json()['runId']}/result"
            wait_until(lambda: client.get(path).status_code == 200)
            assert client.get(path).json()["result"] == 7

            postgres.stop()
            wait_until(lambda: problems() == {"store"})
            assert accept().status_code == 503
            # Without a key, executions belong to the operator. Executions of the operator do not need the
            # database.
            assert client.post("/run", json={"code": "1 + 1"}).json()["result"] == 2
            postgres.start()
            wait_until(lambda: problems() == set())
            assert accept().status_code == 202
    finally:
        nats.stop()
