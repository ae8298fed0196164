"""Frequent queries use an index, so that they are as fast with ten thousand rows as with ten."""

from __future__ import annotations

from typing import Any

from tests.store.factories import (
    add_user,
    create_flow_key,
    make_ability,
    make_credential,
    make_flow_run,
    make_key,
)

from hutch.settings import Settings
from hutch.store.backends.base import Values
from hutch.store.store import Store
from hutch.vault.flow_keys import open_store


class ExplainingDatabase:
    """Database proxy that records query plans."""

    def __init__(self, store: Store, explain: str) -> None:
        self._database = store._database
        self._explain = explain
        self.plans: list[str] = []

    async def read(self, sql: str, **parameters: Any) -> list[Values]:
        plan = await self._database.read(f"{self._explain} {sql}", **parameters)
        self.plans.append("\n".join(str(row[-1]) for row in plan))
        return await self._database.read(sql, **parameters)

    scan = read


async def test_hot_queries_scan_no_table(store_settings: Settings) -> None:
    async with await open_store(store_settings) as store:
        await create_flow_key(store)
        ada = await add_user(store)
        await store.api_keys.add(make_key(ada))
        await store.credentials.put(make_credential(ada))
        await store.abilities.put(make_ability(ada, shared=True))
        await store.journal.add(make_flow_run(ada.id, run_id="run"))
        if store_settings.database_url is None:
            explaining, table_scan = ExplainingDatabase(store, "EXPLAIN QUERY PLAN"), "SCAN "
            # These names are intermediate results of a search and not tables, so a scan of them is allowed.
            names = (
                "candidates",
                "query",
                "hits",
                "best",
                "top",
                "sized",
                "ranked",
                "shares",
                "ranked_shares",
                "granted",
            )
            intermediate = {f"SCAN {name}" for name in names}
            intermediate |= {f"SCAN {number} CONSTANT ROWS" for number in range(9)} | {"SCAN CONSTANT ROW"}
        else:
            # Make PostgreSQL choose its plan as if the tables had many rows.
            await store._database.read("SELECT set_config('enable_seqscan', 'off', false)")
            explaining, table_scan, intermediate = ExplainingDatabase(store, "EXPLAIN"), "Seq Scan", set()
        for table in (
            store.api_keys,
            store.credentials,
            store.abilities,
            store.runs,
            store.flows,
            store.journal,
        ):
            table._database = explaining  # type: ignore[assignment]
        assert await store.api_keys.by_digest("digest")
        assert await store.abilities.get("get_user", ada.id)
        assert await store.abilities.get("other", ada.id) is None
        assert await store.abilities.existing(["get_user", "other"], ada.id)
        assert await store.credentials.for_domains(ada.id, ["api.test", "other.test"])
        assert await store.abilities.search(ada.id, "get user")
        await store.runs.list(ada.id)
        await store.flows.get(ada.id, "deploy")
        assert await store.journal.get("run")
        for read in (
            store.journal.events,
            store.journal.steps,
            store.journal.last_number,
            store.journal.step_counts,
            store.journal.open_approvals,
            store.journal.count_open_approvals,
        ):
            await read("run")
        for owners in ([ada.id], []):
            assert await store.journal.list(*owners)
        assert await store.journal.unfinished("server")
        lines = [line.strip() for plan in explaining.plans for line in plan.splitlines()]
        assert len(explaining.plans) == 19
        scans = [line for line in lines if table_scan in line and line not in intermediate]
        scans = [line for line in scans if not line.startswith("SCAN (subquery-")]
        assert [
            line for line in scans if "USING INDEX" not in line and "USING COVERING INDEX" not in line
        ] == []
