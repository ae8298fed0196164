"""Runs abilities in the jail against a fake API on loopback, without an HTTP server."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

from tests.egress.recording_server import RecordingServer, run_http_client, run_recording_server

import hutch
from hutch.kernel.execution import Execution
from hutch.kernel.kernel import Kernel
from hutch.kernel.records import RunRecord
from hutch.protocols.abilities.definition import definition_row, parse_definition
from hutch.protocols.abilities.execute import AbilityExecutor, AbilityResponse
from hutch.session.run import Result, RunHandle
from hutch.settings import Settings
from hutch.store.models import Credential, User
from hutch.store.store import Store
from hutch.vault.vault import Vault

TOKEN = "tok-0123456789-abcdefghij-KLMNOP"
HOST, OTHER_HOST = "127.0.0.1", "localhost"
"""Two names of the fake API, which count as two hosts for credentials."""

# Many published wrappers throw an error like this one if the response has an error status.
THROWING = """
export async function wrapper(payload, options) {
  const response = await fetch(payload.url);
  if (!response.ok) throw new Error(`HTTP ${response.status}: ${response.statusText}`);
  return response;
}
"""
PLAIN = "export async function wrapper(payload) { return await fetch(payload.url, payload.init) }"

_numbers = itertools.count(1)


class AbilityHarness:
    """One user with abilities, and the fake API."""

    def __init__(
        self, kernel: Kernel, store: Store, vault: Vault, api: RecordingServer, abilities: AbilityExecutor
    ) -> None:
        self.kernel = kernel
        self.store = store
        self.vault = vault
        self.api = api
        self.abilities = abilities
        self.records: list[RunRecord] = []
        self.user: User

    async def new_user(self) -> User:
        return await self.vault.add_user(f"user-{next(_numbers)}")

    async def credential(self, key: str, value: str, kind: str = "header", host: str = HOST) -> Credential:
        return await self.vault.put_credential(self.user, host, kind, key, value)

    async def state(self, credential: Credential) -> Credential:
        rows = await self.store.credentials.for_domains(credential.user_id, [credential.domain])
        return next(row for row in rows if row.id == credential.id)

    async def add(self, code: str, user: User | None = None, *, shared: bool = False, **fields: Any) -> str:
        """Stores an ability and returns its id."""
        ability_id = fields.pop("ability_id", f"ability_{next(_numbers)}")
        definition_fields = {
            "ability_name": "A name",
            "service_name": "service",
            "wrapper_code": code,
            **fields,
        }
        definition = parse_definition({"ability_id": ability_id, **definition_fields})
        await self.store.abilities.put(definition_row(definition, (user or self.user).id, shared=shared))
        return str(ability_id)

    async def run(
        self, code: str, params: dict[str, Any] | None = None, transform: str | None = None, **fields: Any
    ) -> AbilityResponse:
        """Stores an ability and executes it."""
        ability_id = await self.add(code, **fields)
        return await self.execute(ability_id, params, transform)

    async def execute(
        self, ability_id: str, params: dict[str, Any] | None = None, transform: str | None = None
    ) -> AbilityResponse:
        response = await self.abilities.execute(self.user, ability_id, params or {}, transform)
        assert json.loads(json.dumps(response.body)) == response.body
        return response

    async def fetch(self, path: str = "/", code: str = PLAIN, **fields: Any) -> AbilityResponse:
        """Executes an ability that fetches the path from the fake API."""
        params = {"url": self.api.url(path), "init": fields.pop("init", {})}
        return await self.run(code, params, fields.pop("transform", None), **fields)

    async def run_in_wrapper(self, body: str, **params: Any) -> Any:
        """Runs a function body inside a wrapper and returns its result. `api` is the URL of the fake API."""
        code = (
            "export async function wrapper({ api, ...payload }) {"
            f" return Response.json(await (async () => {{ {body} }})() ?? null) }}"
        )
        answer = await self.run(code, {"api": self.api.url(""), **params})
        assert answer.body["success"], answer.body
        return answer.body["result"]["body"]


@contextlib.asynccontextmanager
async def ability_harness(
    runners: hutch.Hutch, settings: Settings, **options: Any
) -> AsyncIterator[AbilityHarness]:
    """Makes a harness that runs abilities in the runners of an existing Hutch, with separate settings."""
    assert runners._kernel is not None
    harness: AbilityHarness

    def record(execution: Execution, run: RunHandle, result: Result) -> None:
        harness.records.append(RunRecord.of(execution, run, result))

    kernel = Kernel(settings, runners._kernel.pool, record)
    async with (
        run_recording_server() as api,
        run_http_client(**options) as fetching,
        await Store.open(settings) as store,
    ):
        vault = await Vault.open(store, settings.home_path, {})
        harness = AbilityHarness(kernel, store, vault, api, AbilityExecutor(kernel, store, vault, fetching))
        harness.user = await harness.new_user()
        yield harness
