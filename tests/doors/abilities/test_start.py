"""How a server begins: with what is kept, or not at all; and that what ran is kept when it ends."""

from __future__ import annotations

import base64
import stat
from pathlib import Path

import httpx2
import pytest
from tests.doors.abilities.towns import town
from tests.doors.clients import host
from tests.messages import execute
from tests.processes import hutch, serving

from hutch.settings import Settings
from hutch.store.store import Store
from hutch.vault.vault import Vault

OTHER_KEY = base64.b64encode(bytes(range(32))).decode()


async def test_a_wrong_master_key_keeps_a_server_from_starting_and_changes_nothing(tmp_path: Path) -> None:
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


async def test_a_server_without_users_needs_no_master_key_and_keeps_its_runs(tmp_path: Path) -> None:
    with serving(HUTCH_HOME=str(tmp_path)) as server:
        assert httpx2.get(f"{server.url}/my/abilities").status_code == 401
        async with host(server.execbox) as h:
            await h.say(execute("in", "1"))
            await h.done("in")
        server.process.terminate()
        assert server.wait() == 0
    assert not (tmp_path / "master.key").exists()
    assert stat.S_IMODE((tmp_path / "hutch.db").stat().st_mode) & 0o077 == 0
    async with await Store.open(Settings(home=str(tmp_path))) as store:
        runs = await store.runs.list("local")
    assert [(each.door, each.outcome) for each in runs] == [("execbox", "ok")]


def test_a_database_that_cannot_be_had_keeps_a_server_from_starting(tmp_path: Path) -> None:
    (tmp_path / "hutch.db").write_bytes(b"this is no database, and was never meant to be one" * 100)
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
def test_settings_of_abilities_that_cannot_be_keep_a_server_from_starting(
    tmp_path: Path, variable: str, setting: str
) -> None:
    refused = hutch("serve", "--port", "0", env={"HUTCH_HOME": str(tmp_path), variable: "nonsense"})
    assert (refused.returncode, refused.stdout) == (2, "")
    assert f"hutch: {setting}: expected " in refused.stderr


async def test_without_a_key_of_the_operators_the_other_doors_stay_open_and_users_are_known(
    tmp_path: Path,
) -> None:
    async with town(tmp_path) as made:
        bo = await made.user("bo", scopes=("toolscript",))
        assert (await made.call("GET", "/tools")).status_code == 200
        assert (await made.call("GET", "/tools", "whatever")).status_code == 200
        assert (await bo.get("/tools")).status_code == 200
        # Who shows a user's key wants to be that user.
        assert (await made.call("GET", "/tools", "hk_" + "x" * 43)).status_code == 401
        assert (await bo.call("POST", "/execute-tool", json={})).status_code == 403
        assert (await made.call("GET", "/my/abilities")).status_code == 401
