"""Abilities run for real, in the jail, against an API on loopback; without a server of ours before them."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

from tests.egress.upstreams import Upstream, brokered, upstream

import hutch
from hutch.doors.abilities import documents
from hutch.doors.abilities.execute import Abilities, Answer
from hutch.kernel import Kernel
from hutch.runs import RunRecord
from hutch.settings import Settings
from hutch.store.rows import Credential, User
from hutch.store.store import Store
from hutch.vault.vault import Vault

TOKEN = "tok-0123456789-abcdefghij-KLMNOP"
HERE, THERE = "127.0.0.1", "localhost"
"""The API by two names: to a credential they are two hosts."""

# What wrappers in the wild do, all of them.
THROWING = """
export async function wrapper(payload, options) {
  const response = await fetch(payload.url);
  if (!response.ok) throw new Error(`HTTP ${response.status}: ${response.statusText}`);
  return response;
}
"""
PLAIN = "export async function wrapper(payload) { return await fetch(payload.url, payload.init) }"

_numbers = itertools.count(1)


class Workshop:
    """One user, their abilities, and the API."""

    def __init__(
        self, kernel: Kernel, store: Store, vault: Vault, api: Upstream, abilities: Abilities
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

    async def credential(self, key: str, value: str, kind: str = "header", host: str = HERE) -> Credential:
        return await self.vault.put_credential(self.user, host, kind, key, value)

    async def state(self, credential: Credential) -> Credential:
        found = await self.store.credentials.for_domains(credential.user_id, [credential.domain])
        return next(each for each in found if each.id == credential.id)

    async def add(self, code: str, user: User | None = None, *, shared: bool = False, **fields: Any) -> str:
        """Keeps an ability; its id."""
        ability_id = fields.pop("ability_id", f"ability_{next(_numbers)}")
        described = {"ability_name": "A name", "service_name": "service", "wrapper_code": code, **fields}
        document = documents.read({"ability_id": ability_id, **described})
        await self.store.abilities.put(documents.as_row(document, (user or self.user).id, shared=shared))
        return str(ability_id)

    async def run(
        self, code: str, params: dict[str, Any] | None = None, transform: str | None = None, **fields: Any
    ) -> Answer:
        """What comes of an ability that is made for this run."""
        ability_id = await self.add(code, **fields)
        return await self.execute(ability_id, params, transform)

    async def execute(
        self, ability_id: str, params: dict[str, Any] | None = None, transform: str | None = None
    ) -> Answer:
        answer = await self.abilities.execute(self.user, ability_id, params or {}, transform)
        assert json.loads(json.dumps(answer.body)) == answer.body
        return answer

    async def fetched(self, path: str = "/", code: str = PLAIN, **fields: Any) -> Answer:
        """What comes of fetching from the API."""
        params = {"url": self.api.url(path), "init": fields.pop("init", {})}
        return await self.run(code, params, fields.pop("transform", None), **fields)

    async def inside(self, body: str, **params: Any) -> Any:
        """What a body with `return` gives inside a wrapper, where `api` is the API's address."""
        code = (
            "export async function wrapper({ api, ...payload }) {"
            f" return Response.json(await (async () => {{ {body} }})() ?? null) }}"
        )
        answer = await self.run(code, {"api": self.api.url(""), **params})
        assert answer.body["success"], answer.body
        return answer.body["result"]["body"]


@contextlib.asynccontextmanager
async def workshop(runners: hutch.Hutch, settings: Settings, **broker: Any) -> AsyncIterator[Workshop]:
    """On runners that are there, with settings of its own."""
    assert runners._kernel is not None
    made: Workshop

    def record(run_id: str, execution: Any, outcome: Any, began: float) -> None:
        made.records.append(RunRecord.of(run_id, execution, outcome, began))

    kernel = Kernel(settings, runners._kernel.pool, record)
    async with upstream() as api, brokered(**broker) as fetching, await Store.open(settings) as store:
        vault = await Vault.open(store, settings.home_path, {})
        made = Workshop(kernel, store, vault, api, Abilities(kernel, store, vault, fetching))
        made.user = await made.new_user()
        yield made
