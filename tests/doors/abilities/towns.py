"""A real server with users, keys and abilities, and the API that these wrap."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import AsyncIterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
from tests.processes import PATIENCE, Server, serving

from hutch.doors.abilities import documents
from hutch.settings import Settings
from hutch.store.rows import ApiKey, User
from hutch.store.store import Store
from hutch.vault.vault import Vault

TOKEN = "Bearer tok-0123456789abcdefghij"
# Nowhere in any answer: what only an ability's code has.
MARK = "a-mark-in-the-code-of-a-wrapper"
PROFILE = {"name": "Elon Musk", "screen_name": "elonmusk", "followers_count": 211}

WRAPPER = f"""
// {MARK}
export async function wrapper(payload, options) {{
  const url = new URL("UPSTREAM/users/" + payload.username);
  const response = await fetch(url, {{ headers: {{ accept: "application/json" }} }});
  if (!response.ok) throw new Error("HTTP " + response.status);
  return response;
}}
"""
SCHEMA = {"type": "object", "properties": {"username": {"type": "string"}}, "required": ["username"]}


class Upstream:
    """Somebody's API on loopback, over http."""

    def __init__(self) -> None:
        self.seen: list[dict[str, str]] = []
        seen = self.seen

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # Head and body at once: in two parts, the second waits for the first to be acknowledged.
            wbufsize = 65_536

            def do_GET(self) -> None:
                seen.append(
                    {"path": self.path, **{name.lower(): value for name, value in self.headers.items()}}
                )
                known = self.path.endswith("/elonmusk")
                body = json.dumps(PROFILE if known else {"message": "no such user"}).encode()
                self.send_response(200 if known else 404)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Upstream:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(PATIENCE)


def ability(upstream: str = "https://api.example.com", **changes: Any) -> dict[str, Any]:
    """As its author writes it down."""
    return {
        "ability_id": "twitter_get_user_profile",
        "ability_name": "Get a user's profile",
        "service_name": "127.0.0.1",
        "description": "Finds a user of Twitter by name.",
        "wrapper_code": WRAPPER.replace("UPSTREAM", upstream),
        "static_headers": {"X-Client": "static-value-of-a-header"},
        "dynamic_header_keys": ["127.0.0.1::Authorization"],
        "requires_dynamic_headers": True,
        "input_schema": SCHEMA,
        **changes,
    }


class Town:
    """A server, and what is kept behind it."""

    def __init__(self, server: Server, vault: Vault, upstream: Upstream, client: httpx2.AsyncClient) -> None:
        self.server = server
        self.client = client
        self.vault = vault
        self.store = vault.store
        self.upstream = upstream

    async def user(self, name: str, **key: Any) -> Citizen:
        user = await self.store.users.by_name(name) or await self.vault.add_user(name)
        made, secret = await self.vault.issue_key(user, "test", **key)
        return Citizen(self, user, made, secret)

    async def call(self, method: str, path: str, key: str | None = None, **more: Any) -> httpx2.Response:
        headers = {**({} if key is None else {"Authorization": f"Bearer {key}"}), **more.pop("headers", {})}
        url = path if path.startswith("http") else f"{self.server.url}{path}"
        return await self.client.request(method, url, headers=headers, **more)


class Citizen:
    """A user with a key."""

    def __init__(self, town: Town, user: User, key: ApiKey, secret: str) -> None:
        self.town = town
        self.user = user
        self.key = key
        self.secret = secret

    async def call(self, method: str, path: str, **more: Any) -> httpx2.Response:
        return await self.town.call(method, path, self.secret, **more)

    async def get(self, path: str, **more: Any) -> httpx2.Response:
        return await self.call("GET", path, **more)

    async def add(self, **changes: Any) -> httpx2.Response:
        return await self.call("POST", "/my/abilities", json=ability(self.town.upstream.url, **changes))


@contextlib.asynccontextmanager
async def shared(citizen: Citizen, ability_id: str) -> AsyncIterator[None]:
    """An ability of this user's that everybody may run, for as long as a test needs it."""
    document = documents.read(ability(citizen.town.upstream.url, ability_id=ability_id))
    await citizen.town.store.abilities.put(documents.as_row(document, citizen.user.id, shared=True))
    try:
        yield
    finally:
        await citizen.town.store.abilities.remove(ability_id, citizen.user.id)


@contextlib.asynccontextmanager
async def town(home: Path, *arguments: str, **env: str) -> AsyncIterator[Town]:
    """With a home of its own, in which this process has the store open too."""
    variables = {"HUTCH_HOME": str(home), **env}
    settings = Settings(home=str(home), database_url=env.get("HUTCH_DATABASE_URL"))
    with Upstream() as upstream:
        async with await Store.open(settings) as store, httpx2.AsyncClient(timeout=PATIENCE) as client:
            vault = await Vault.open(store, home, {})
            allowed = ("--egress-allow", f"127.0.0.1:{upstream.port}")
            with serving(*allowed, *arguments, **variables) as server:
                yield Town(server, vault, upstream, client)


def failed(response: httpx2.Response, status: int, code: str) -> str:
    """The message of a failure in the specification's shape."""
    body = response.json()
    assert (response.status_code, body["errorCode"]) == (status, code), body
    assert body["success"] is False
    assert body["executedAt"].endswith("Z")
    assert isinstance(body["error"], str)
    return str(body["error"])


def same(one: httpx2.Response, other: httpx2.Response) -> bool:
    """Whether two answers tell the same, but for when they were given."""

    def told(response: httpx2.Response) -> object:
        return response.status_code, {**response.json(), "executedAt": None}

    return told(one) == told(other)
