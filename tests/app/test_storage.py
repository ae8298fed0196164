"""Server start with existing or broken storage, and storage of runs at shutdown."""

from __future__ import annotations

import asyncio
import base64
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx2
import pytest
from tests.http.execbox_client import connect_execbox
from tests.protocols.abilities.harness import start_ability_server
from tests.store.factories import add_runs, make_run
from tests.support.messages import execute
from tests.support.processes import hutch, running_server

from hutch.app.app import App
from hutch.errors import StoreError
from hutch.kernel.execution import Execution
from hutch.sandbox.runner.profile import profile_for
from hutch.session.run import RunHandle
from hutch.settings import Settings
from hutch.store.models import Usage, now
from hutch.store.retention import RetentionClock
from hutch.store.store import Store
from hutch.store.tables.runs import RunTable
from hutch.vault.vault import Vault

OTHER_KEY = base64.b64encode(bytes(range(32))).decode()


async def test_wrong_master_key_prevents_start_and_changes_nothing(tmp_path: Path) -> None:
    async with await Store.open(Settings(home=str(tmp_path))) as store:
        vault = await Vault.open(store, tmp_path, {})
        bo = await vault.add_user("bo")
        await vault.put_credential(bo, "x.com", "header", "a", "secret-secret-secret")
    before = (tmp_path / "master.key").read_bytes()
    refused = hutch("serve", "--port", "0", env={"HUTCH_HOME": str(tmp_path), "HUTCH_MASTER_KEY": OTHER_KEY})
    assert refused.returncode == 1
    assert "master key" in refused.stderr
    assert "Hutch serves" not in refused.stdout
    assert (tmp_path / "master.key").read_bytes() == before
    async with await Store.open(Settings(home=str(tmp_path))) as store:
        vault = await Vault.open(store, tmp_path, {})
        (secret,) = await vault.secrets(bo, ["x.com"])
        assert secret.value == "secret-secret-secret"


async def test_server_without_users_needs_no_master_key_and_stores_its_runs(tmp_path: Path) -> None:
    with running_server(HUTCH_HOME=str(tmp_path)) as server:
        assert httpx2.get(f"{server.url}/my/abilities").status_code == 401
        async with connect_execbox(server.execbox) as client:
            await client.send(execute("in", "1"))
            await client.done("in")
        server.process.terminate()
        assert server.wait() == 0
    assert not (tmp_path / "master.key").exists()
    assert stat.S_IMODE((tmp_path / "hutch.db").stat().st_mode) & 0o077 == 0
    async with await Store.open(Settings(home=str(tmp_path))) as store:
        runs = await store.runs.list("local")
    assert [(each.protocol, each.outcome) for each in runs] == [("execbox", "ok")]


def test_unusable_database_prevents_start(tmp_path: Path) -> None:
    (tmp_path / "hutch.db").write_bytes(b"this is not a database" * 100)
    refused = hutch("serve", "--port", "0", env={"HUTCH_HOME": str(tmp_path)})
    assert refused.returncode == 1
    assert "hutch.db" in refused.stderr
    unknown = "postgresql:///nothing?host=/nonexistent&password=hush"
    refused = hutch("serve", "--port", "0", env={"HUTCH_HOME": str(tmp_path), "HUTCH_DATABASE_URL": unknown})
    assert refused.returncode == 1
    assert "hush" not in refused.stderr


@pytest.mark.parametrize(
    ("variable", "setting"),
    [("HUTCH_ABILITY_EXPIRE_ON", "ability_expire_on"), ("PROXY_URL", "proxy_url")],
)
def test_invalid_ability_settings_prevent_start(tmp_path: Path, variable: str, setting: str) -> None:
    refused = hutch("serve", "--port", "0", env={"HUTCH_HOME": str(tmp_path), variable: "invalid"})
    assert (refused.returncode, refused.stdout) == (2, "")
    assert f"hutch: {setting}: expected " in refused.stderr


async def test_without_an_operator_key_other_protocols_are_open_and_users_are_known(
    tmp_path: Path,
) -> None:
    async with start_ability_server(tmp_path) as server:
        bo = await server.user("bo", scopes=("toolscript",))
        assert (await server.call("GET", "/tools")).status_code == 200
        assert (await server.call("GET", "/tools", "whatever")).status_code == 200
        assert (await bo.get("/tools")).status_code == 200
        # The server checks the key of a user even for routes that need no key.
        assert (await server.call("GET", "/tools", "hk_" + "x" * 43)).status_code == 401
        assert (await bo.call("POST", "/execute-tool", json={})).status_code == 403
        assert (await server.call("GET", "/my/abilities")).status_code == 401


async def test_usage_is_pruned_although_runs_are_kept(tmp_path: Path) -> None:
    settings = Settings(home=str(tmp_path), quickjs_warm=0, deno_warm=0, keep_runs_days=0, max_runs_bytes=0)
    await assert_usage_is_pruned(settings)


async def test_usage_is_pruned_although_runs_cannot_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise StoreError("The disk is full.")

    monkeypatch.setattr(RunTable, "prune", fail)
    await assert_usage_is_pruned(Settings(home=str(tmp_path), quickjs_warm=0, deno_warm=0))


async def test_clock_that_jumped_a_year_ahead_deletes_no_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pruned = asyncio.Event()

    async def prune_to(*_: object) -> None:
        pruned.set()

    monkeypatch.setattr(RunTable, "prune_to", prune_to)
    settings = Settings(home=str(tmp_path), quickjs_warm=0, deno_warm=0)
    async with await Store.open(settings) as store:
        await RetentionClock(store.meta, lambda: datetime.now(UTC) - timedelta(days=365)).now()
        await add_runs(store, [make_run(run_id="kept", created_at=now(plus_seconds=-364 * 86_400))])
    app = await App.create(settings)
    try:
        await app.storage.start()
        await asyncio.wait_for(pruned.wait(), 10)
        assert await (await app.storage.store()).runs.get("kept") is not None
    finally:
        await app.close()


async def assert_usage_is_pruned(settings: Settings) -> None:
    async with await Store.open(settings) as store:
        store.quotas.add_usage("ann", "2001-02-03", Usage(1))
    app = await App.create(settings)
    try:
        await app.storage.start()
        store = await app.storage.store()
        async with asyncio.timeout(10):
            while (await store.quotas.usage(["ann"], "2001-02-03"))["ann"].executions:  # noqa: ASYNC110 - the store has no notification
                await asyncio.sleep(0.01)
    finally:
        await app.close()


async def test_records_of_runs_that_have_just_ended_are_stored_at_shutdown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hutch.kernel.records.PUBLISH_SECONDS", 3600)
    settings = Settings(home=str(tmp_path), quickjs_warm=0, deno_warm=0)
    app = await App.create(settings)
    try:
        await app.storage.start()
        assert (
            await app.kernel.run(Execution(code="1", profile=profile_for("quickjs")), RunHandle("ended"))
        ).ok
    finally:
        await app.close()
    async with await Store.open(settings) as store:
        assert await store.runs.get("ended") is not None
