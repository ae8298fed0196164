"""What every execution reads is found by an index, so that ten thousand rows are as quick as ten."""

from __future__ import annotations

from typing import Any

from tests.store.made import a_credential, a_flow_run, a_key, an_ability, keep_flows, kept_user

from hutch.settings import Settings
from hutch.store.database import Values
from hutch.store.store import Store
from hutch.vault.journals import open_store


class Explaining:
    """Answers with rows, and keeps how the database found them."""

    def __init__(self, store: Store, explain: str) -> None:
        self._database = store._database
        self._explain = explain
        self.plans: list[str] = []

    async def read(self, sql: str, **parameters: Any) -> list[Values]:
        plan = await self._database.read(f"{self._explain} {sql}", **parameters)
        self.plans.append("\n".join(str(row[-1]) for row in plan))
        return await self._database.read(sql, **parameters)

    scan = read


async def test_hot_reads_and_searches_scan_no_table(store_settings: Settings) -> None:
    async with await open_store(store_settings) as store:
        await keep_flows(store)
        ada = await kept_user(store)
        await store.keys.add(a_key(ada))
        await store.credentials.put(a_credential(ada))
        await store.abilities.put(an_ability(ada, shared=True))
        await store.journal.add(a_flow_run(ada.id, run_id="run"))
        if store_settings.database_url is None:
            explaining, whole_table = Explaining(store, "EXPLAIN QUERY PLAN"), "SCAN "
            # What a search has gathered is not a table.
            names = ("candidates", "asked", "hits", "best", "few", "sized", "ranked")
            gathered = {f"SCAN {name}" for name in names}
            gathered |= {f"SCAN {number} CONSTANT ROWS" for number in range(9)} | {"SCAN CONSTANT ROW"}
        else:
            # As it would be with many rows.
            await store._database.read("SELECT set_config('enable_seqscan', 'off', false)")
            explaining, whole_table, gathered = Explaining(store, "EXPLAIN"), "Seq Scan", set()
        for table in (store.keys, store.credentials, store.abilities, store.runs, store.flows, store.journal):
            table._database = explaining  # type: ignore[assignment]
        assert await store.keys.by_digest("digest")
        assert await store.abilities.get("get_user", ada.id)
        assert await store.abilities.existing(["get_user", "other"], ada.id)
        assert await store.credentials.for_domains(ada.id, ["api.test", "other.test"])
        assert await store.abilities.search(ada.id, "get user")
        await store.runs.list(ada.id)
        await store.flows.get(ada.id, "deploy")
        assert await store.journal.get("run")
        for reading in (
            store.journal.events,
            store.journal.steps,
            store.journal.last,
            store.journal.counts,
            store.journal.asking,
            store.journal.count_asking,
        ):
            await reading("run")
        for whose in ([ada.id], []):
            assert await store.journal.list(*whose)
        assert await store.journal.unfinished("server")
        lines = [line.strip() for plan in explaining.plans for line in plan.splitlines()]
        assert len(explaining.plans) == 17
        scans = [line for line in lines if whole_table in line and line not in gathered]
        scans = [line for line in scans if not line.startswith("SCAN (subquery-")]
        assert [
            line for line in scans if "USING INDEX" not in line and "USING COVERING INDEX" not in line
        ] == []
