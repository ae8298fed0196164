"""Real server with users, keys and abilities, and a fake of the API that the abilities wrap."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
from tests.support.network.threaded_http import QuietHandler, ThreadedHttpServer
from tests.support.processes import TIMEOUT_SECONDS, ServeProcess, running_server

from hutch.protocols.abilities.definition import definition_row, parse_definition
from hutch.settings import Settings
from hutch.store.models import ApiKey, User
from hutch.store.store import Store
from hutch.vault.vault import Vault

TOKEN = "Bearer tok-0123456789abcdefghij"
# A comment in the code of abilities. It must not appear in any response, because the code is secret.
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


class FakeApi(ThreadedHttpServer):
    """Fake API on loopback. Records the headers of requests."""

    def __init__(self) -> None:
        self.seen: list[dict[str, str]] = []
        seen = self.seen

        class Handler(QuietHandler):
            protocol_version = "HTTP/1.1"

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

        super().__init__(Handler)


def ability(upstream: str = "https://api.example.com", **changes: Any) -> dict[str, Any]:
    """Builds an ability definition."""
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


class AbilityServer:
    """A server process with its store and its vault."""

    def __init__(
        self, server: ServeProcess, vault: Vault, upstream: FakeApi, client: httpx2.AsyncClient
    ) -> None:
        self.server = server
        self.client = client
        self.vault = vault
        self.store = vault.store
        self.upstream = upstream

    async def user(self, name: str, **key: Any) -> UserClient:
        user = await self.store.users.by_name(name) or await self.vault.add_user(name)
        api_key, secret = await self.vault.issue_key(user, "test", **key)
        return UserClient(self, user, api_key, secret)

    async def call(self, method: str, path: str, key: str | None = None, **options: Any) -> httpx2.Response:
        headers = {
            **({} if key is None else {"Authorization": f"Bearer {key}"}),
            **options.pop("headers", {}),
        }
        url = path if path.startswith("http") else f"{self.server.url}{path}"
        return await self.client.request(method, url, headers=headers, **options)


class UserClient:
    """HTTP client with the key of a user."""

    def __init__(self, server: AbilityServer, user: User, key: ApiKey, secret: str) -> None:
        self.ability_server = server
        self.user = user
        self.key = key
        self.secret = secret

    async def call(self, method: str, path: str, **options: Any) -> httpx2.Response:
        return await self.ability_server.call(method, path, self.secret, **options)

    async def get(self, path: str, **options: Any) -> httpx2.Response:
        return await self.call("GET", path, **options)

    async def add(self, **changes: Any) -> httpx2.Response:
        return await self.call(
            "POST", "/my/abilities", json=ability(self.ability_server.upstream.url, **changes)
        )


@contextlib.asynccontextmanager
async def shared_ability(client: UserClient, ability_id: str) -> AsyncIterator[None]:
    """Stores a shared ability of this user while the block runs."""
    definition = parse_definition(ability(client.ability_server.upstream.url, ability_id=ability_id))
    await client.ability_server.store.abilities.put(definition_row(definition, client.user.id, shared=True))
    try:
        yield
    finally:
        await client.ability_server.store.abilities.remove(ability_id, client.user.id)


@contextlib.asynccontextmanager
async def start_ability_server(home: Path, *arguments: str, **env: str) -> AsyncIterator[AbilityServer]:
    """Starts a server with its own home. The test process opens the same store, so that tests can read and
    change it.
    """
    variables = {"HUTCH_HOME": str(home), **env}
    settings = Settings(home=str(home), database_url=env.get("HUTCH_DATABASE_URL"))
    with FakeApi() as upstream:
        async with await Store.open(settings) as store, httpx2.AsyncClient(timeout=TIMEOUT_SECONDS) as client:
            vault = await Vault.open(store, home, {})
            allowed = ("--egress-allow", f"127.0.0.1:{upstream.port}")
            with running_server(*allowed, *arguments, **variables) as server:
                yield AbilityServer(server, vault, upstream, client)


def error_message(response: httpx2.Response, status: int, code: str) -> str:
    """Checks an error response and returns its message. Errors of executions have the format of the abilities
    specification. Errors of other routes have the common format.
    """
    body = response.json()
    assert body["success"] is False
    if response.url.path.endswith("/execute"):
        assert (response.status_code, body["errorCode"]) == (status, code), body
        assert body["executedAt"].endswith("Z")
        error = {**body, "message": body["error"]}
    else:
        assert body.keys() == {"success", "error"}
        error = body["error"]
        assert (response.status_code, error["code"]) == (status, code), body
    assert ("problems" in error) >= (code == "INVALID_REQUEST")
    assert isinstance(error["message"], str)
    return str(error["message"])


def same_response(one: httpx2.Response, other: httpx2.Response) -> bool:
    """Returns True if two responses are equal except for their timestamps."""

    def comparable(response: httpx2.Response) -> object:
        return response.status_code, {**response.json(), "executedAt": None}

    return comparable(one) == comparable(other)
