"""`/ready`, and a server whose PostgreSQL is stopped and started again."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import httpx2
from starlette.applications import Starlette
from tests.support import databases
from tests.support.processes import ServeProcess, running_server, wait_until

from hutch.http import health
from hutch.http.auth import AccessControl
from hutch.settings import Settings

KEY = {"Authorization": "Bearer secret-of-the-operator"}


def test_ready_server_has_no_problems(server: ServeProcess) -> None:
    wait_until(lambda: httpx2.get(f"{server.url}/ready").status_code == 200)
    assert httpx2.get(f"{server.url}/ready").json() == {"ready": True, "connecting": [], "problems": {}}


async def test_names_of_mcp_servers_are_shown_only_to_the_operator() -> None:
    class Gateway:
        def connecting(self) -> list[str]:
            return ["internal-crm"]

    class Server:
        gateway = Gateway()

        async def problems(self) -> dict[str, str]:
            return {}

    access = AccessControl(Settings(api_key="secret-of-the-operator"))
    web = Starlette(routes=health.routes(cast(Any, Server()), access))
    transport = httpx2.ASGITransport(web)
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        public, private = await client.get("/ready"), await client.get("/ready", headers=KEY)
    assert public.status_code == private.status_code == 503
    assert public.json() == {"ready": False, "connecting": 1, "problems": {}}
    assert private.json()["connecting"] == ["internal-crm"]


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
            assert metric("hutch_ready") == 0
        finally:
            postgres.start()
        wait_until(lambda: client.get("/ready").status_code == 200)
        wait_until(lambda: metric("hutch_records_waiting") == 0)
        assert [get(f"/runs/{id}")["outcome"] for id in ids] == ["runtime_error"] * 2
        assert metric("hutch_store_up") == metric("hutch_ready") == 1
