"""Starts a real server that runs flows, clients with keys for the server, and an API on loopback that counts
requests.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx2
from tests.support.flows import SERVE, chain, flow, node
from tests.support.network.counting import CountingApi
from tests.support.processes import TIMEOUT_SECONDS, ServeProcess, arguments_of, descendants, running_server

from hutch.settings import Settings
from hutch.store.store import Store
from hutch.vault.flow_keys import open_store
from hutch.vault.vault import Vault

ALL_SCOPES = ("abilities", "execbox", "mcp", "rep", "toolscript", "tpmjs")
FINAL_STATES = ("completed", "failed", "cancelled")


class FlowClient:
    """HTTP client with or without a key."""

    def __init__(self, server: ServeProcess, client: httpx2.AsyncClient, key: str | None = None) -> None:
        self.server = server
        self.client = client
        self.headers = {} if key is None else {"Authorization": f"Bearer {key}"}

    async def call(self, method: str, path: str, **more: Any) -> httpx2.Response:
        headers = {**self.headers, **more.pop("headers", {})}
        return await self.client.request(method, f"{self.server.url}{path}", headers=headers, **more)

    async def get(self, path: str, **more: Any) -> httpx2.Response:
        return await self.call("GET", path, **more)

    async def post(self, path: str, body: Any = None) -> httpx2.Response:
        return await self.call("POST", path, **({} if body is None else {"json": body}))

    async def get_json(self, path: str) -> Any:
        response = await self.get(path)
        assert response.status_code == 200, response.text
        return response.json()

    async def start_run(self, ir: dict[str, Any], run_id: str, **more: Any) -> dict[str, Any]:
        """Stores the flow and starts a run of it."""
        assert (await self.post("/flows", ir)).status_code in (200, 201)
        response = await self.post(f"/flows/{ir['flow']['name']}/runs", {"run_id": run_id, **more})
        assert response.status_code == 202, response.text
        result: dict[str, Any] = response.json()
        return result

    async def events(self, run_id: str, **headers: str) -> list[tuple[str | None, str, Any]]:
        """Returns all events of a run up to its end, as (id, name, data)."""
        response = await self.get(f"/runs/{run_id}/events", headers=headers)
        assert response.status_code == 200, response.text
        return parse_events(response.text)

    async def wait_for_end(self, run_id: str) -> dict[str, Any]:
        """Waits until the run has ended, and returns its details."""
        events = await self.events(run_id)
        assert events[-1][1] == "end", events[-1]
        result: dict[str, Any] = await self.get_json(f"/runs/{run_id}")
        assert result["state"] in FINAL_STATES
        return result


def parse_events(text: str) -> list[tuple[str | None, str, Any]]:
    events = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "data" in fields:
            events.append((fields.get("id"), fields["event"], json.loads(fields["data"])))
    return events


class FlowServer:
    """A server that can be stopped and started again with the same home."""

    def __init__(
        self, home: Path, upstream: CountingApi, store: Store, vault: Vault, env: dict[str, str]
    ) -> None:
        self.home = home
        self.upstream = upstream
        self.store = store
        self.vault = vault
        self._env = {
            "HUTCH_HOME": str(home),
            "HUTCH_DENO_WARM": "0",
            "HUTCH_QUICKJS_WARM": "0",
            **env,
        }

    @contextlib.asynccontextmanager
    async def running_server(
        self, *arguments: str, key: str | None = None, **env: str
    ) -> AsyncIterator[FlowClient]:
        """Starts the server. Yields a client with the operator's key. The runtimes of flows have the same
        settings as the server.
        """
        allow = ("--egress-allow", self.upstream.address)
        with running_server(*allow, *arguments, **self._env, **env) as server:
            async with httpx2.AsyncClient(timeout=TIMEOUT_SECONDS) as client:
                yield FlowClient(server, client, key)

    async def user(self, operator: FlowClient, name: str, scopes: Sequence[str] = ("rep",)) -> FlowClient:
        user = await self.store.users.by_name(name) or await self.vault.add_user(name)
        _, secret = await self.vault.issue_key(user, "test", scopes=scopes)
        return FlowClient(operator.server, operator.client, secret)

    def steps(self, *ids: str, name: str = "tested") -> dict[str, Any]:
        """A flow of HTTP requests, one after the other."""
        nodes = [node(id, "http.get", **self.upstream.step(id)) for id in ids]
        return flow(nodes, chain(*ids), name=name)


@contextlib.asynccontextmanager
async def open_flow_server(settings: Settings, **env: str) -> AsyncIterator[FlowServer]:
    home = settings.home_path
    if settings.database_url is not None:
        env["HUTCH_DATABASE_URL"] = settings.database_url
    with CountingApi() as upstream:
        async with await open_store(settings) as store:
            vault = await Vault.open(store, home, {})
            yield FlowServer(home, upstream, store, vault, env)


def runtime_pids(pid: int) -> list[int]:
    """Pids of the flow runtimes among the descendants of a process."""
    return [each for each in descendants(pid) if arguments_of(each)[-2:] == SERVE[-2:]]
