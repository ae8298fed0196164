"""`/ready`, and a server whose PostgreSQL is stopped and started again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
from tests.support import databases
from tests.support.processes import ServeProcess, running_server, wait_until

KEY = {"Authorization": "Bearer secret-of-the-operator"}


def test_ready_server_has_no_problems(server: ServeProcess) -> None:
    wait_until(lambda: httpx2.get(f"{server.url}/ready").status_code == 200)
    assert httpx2.get(f"{server.url}/ready").json() == {"ready": True, "connecting": [], "problems": {}}


def test_runs_go_on_without_postgres_and_are_recorded_when_it_is_back(
    postgres: databases.PostgresServer, tmp_path: Path
) -> None:
    env = {
        "HUTCH_HOME": str(tmp_path),
        "HUTCH_DATABASE_URL": postgres.new_database(),
        "HUTCH_API_KEY": "secret-of-the-operator",
    }
    with running_server(**env) as server, httpx2.Client(base_url=server.url, timeout=60) as client:

        def run() -> str:
            answer = client.post("/run", json={"code": "throw new Error('no')"}, headers=KEY)
            assert answer.json()["error"]["code"] == "runtime_error"
            return str(answer.json()["run_id"])

        def get(path: str) -> Any:
            return client.get(path, headers=KEY).json()

        def metric(name: str) -> float:
            lines = client.get("/metrics", headers=KEY).text.splitlines()
            return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))

        wait_until(lambda: client.get("/ready").status_code == 200)
        postgres.stop()
        try:
            ids = [run(), run()]
            wait_until(lambda: client.get("/ready").status_code == 503)
            public, private = client.get("/ready"), client.get("/ready", headers=KEY)
            assert public.json()["problems"] == {"store": "the database does not answer"}
            assert "cannot be reached" in private.json()["problems"]["store"]
            assert client.get("/health").status_code == 200
            wait_until(lambda: get("/health")["records"]["status"] == "waiting for the database")
            assert (metric("hutch_store_up"), metric("hutch_records_waiting")) == (0, 2)
        finally:
            postgres.start()
        wait_until(lambda: client.get("/ready").status_code == 200)
        wait_until(lambda: metric("hutch_records_waiting") == 0)
        assert [get(f"/runs/{id}")["outcome"] for id in ids] == ["runtime_error"] * 2
        assert metric("hutch_store_up") == 1
