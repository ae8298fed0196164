"""A real server that runs flows, users with keys for it, and an API on loopback that counts."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx2
from tests.counting import Counting
from tests.flows import SERVE, chain, flow, node
from tests.processes import PATIENCE, Server, arguments_of, descendants, serving

from hutch.settings import Settings
from hutch.store.store import Store
from hutch.vault.journals import open_store
from hutch.vault.vault import Vault

ALL = ("abilities", "execbox", "mcp", "rep", "toolscript", "tpmjs")
OVER = ("completed", "failed")


class Caller:
    """Somebody with a key, or without one."""

    def __init__(self, server: Server, client: httpx2.AsyncClient, key: str | None = None) -> None:
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

    async def got(self, path: str) -> Any:
        answer = await self.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def begin(self, ir: dict[str, Any], run_id: str, **more: Any) -> dict[str, Any]:
        """Keeps the flow and begins a run of it."""
        assert (await self.post("/flows", ir)).status_code in (200, 201)
        answer = await self.post(f"/flows/{ir['flow']['name']}/runs", {"run_id": run_id, **more})
        assert answer.status_code == 202, answer.text
        told: dict[str, Any] = answer.json()
        return told

    async def events(self, run_id: str, **headers: str) -> list[tuple[str | None, str, Any]]:
        """All of a run's events to the end: id, name, data."""
        answer = await self.get(f"/runs/{run_id}/events", headers=headers)
        assert answer.status_code == 200, answer.text
        return parsed(answer.text)

    async def ended(self, run_id: str) -> dict[str, Any]:
        """The run, once it is over."""
        events = await self.events(run_id)
        assert events[-1][1] == "end", events[-1]
        told: dict[str, Any] = await self.got(f"/runs/{run_id}")
        assert told["status"] in OVER
        return told


def parsed(text: str) -> list[tuple[str | None, str, Any]]:
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "data" in fields:
            found.append((fields.get("id"), fields["event"], json.loads(fields["data"])))
    return found


class Station:
    """A server that can be ended and started again in the same place."""

    def __init__(
        self, home: Path, upstream: Counting, store: Store, vault: Vault, env: dict[str, str]
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
    async def serving(self, *arguments: str, key: str | None = None, **env: str) -> AsyncIterator[Caller]:
        """Its operator. What the server was told in flags counts for its runtimes too."""
        allow = ("--egress-allow", self.upstream.address)
        with serving(*allow, *arguments, **self._env, **env) as server:
            async with httpx2.AsyncClient(timeout=PATIENCE) as client:
                yield Caller(server, client, key)

    async def user(self, there: Caller, name: str, scopes: Sequence[str] = ("rep",)) -> Caller:
        user = await self.store.users.by_name(name) or await self.vault.add_user(name)
        _, secret = await self.vault.issue_key(user, "test", scopes=scopes)
        return Caller(there.server, there.client, secret)

    def steps(self, *ids: str, name: str = "tested") -> dict[str, Any]:
        """A flow of requests, one after the other."""
        nodes = [node(id, "http.get", **self.upstream.step(id)) for id in ids]
        return flow(nodes, chain(*ids), name=name)


@contextlib.asynccontextmanager
async def station(settings: Settings, **env: str) -> AsyncIterator[Station]:
    home = settings.home_path
    if settings.database_url is not None:
        env["HUTCH_DATABASE_URL"] = settings.database_url
    with Counting() as upstream:
        async with await open_store(settings) as store:
            vault = await Vault.open(store, home, {})
            yield Station(home, upstream, store, vault, env)


def runtimes(pid: int) -> list[int]:
    """The processes below one that are runtimes of flows."""
    return [each for each in descendants(pid) if arguments_of(each)[-2:] == SERVE[-2:]]
