"""Acknowledged writes, which survive when their process is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hutch.settings import Settings
from hutch.store.models import User, now
from hutch.store.store import Store

WRITE = """
import asyncio
from hutch.settings import load_settings
from hutch.store.models import Ability, User, new_id, now
from hutch.store.store import Store

async def main():
    store = await Store.open(load_settings())
    user = User(id="ada", name="ada", data_key="", created_at=now())
    await store.users.add(user)
    async def write(name):
        while True:
            more = {"document": "x" * 5000, "created_at": now(), "updated_at": now()}
            ability = Ability(ability_id=name, owner_id="ada", name="n", **more)
            print(name, await store.abilities.put(ability), flush=True)
    await asyncio.gather(*(write(f"a{number}") for number in range(4)))

asyncio.run(main())
"""


def output_until_killed(lines: int) -> list[str]:
    """Starts a process that prints a line after each write. Kills the process after this many lines. Returns
    all its lines.
    """
    with subprocess.Popen([sys.executable, "-c", WRITE], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        output = [process.stdout.readline() for _ in range(lines)]
        process.kill()
        output += process.stdout.readlines()
    assert process.returncode == -signal.SIGKILL
    return output


@pytest.mark.parametrize("lines", [1, 7, 40])
async def test_acknowledged_writes_survive_kill_9(
    store_settings: Settings, monkeypatch: pytest.MonkeyPatch, lines: int
) -> None:
    monkeypatch.setenv("HUTCH_HOME", store_settings.home)
    monkeypatch.setenv("HUTCH_DATABASE_URL", store_settings.database_url or "")
    reported: dict[str, int] = {}
    for line in output_until_killed(lines):
        if line.endswith("\n"):
            name, version = line.split()
            reported[name] = max(int(version), reported.get(name, 0))
    assert reported
    async with await Store.open(store_settings) as store:
        for name, version in reported.items():
            found = await store.abilities.get(name, "ada")
            assert found is not None
            # The process may have been killed after it stored the next version and before it printed a line
            # for this version.
            assert found.version in (version, version + 1)
            versions = await store.abilities.versions(name, "ada")
            assert [each.version for each in versions] == list(range(found.version, 0, -1))
            assert {len(each.document) for each in versions} == {5000}
        assert len(await store.abilities.search("ada", "n")) == len(await store.abilities.list("ada"))


READ = """
import sqlite3, sys
print(sqlite3.connect(sys.argv[1]).execute("SELECT id FROM users").fetchall())
"""


async def test_other_processes_see_the_writes_of_a_process_that_opens_the_store_twice(tmp_path: Path) -> None:
    settings = Settings(home=str(tmp_path))

    def read_users() -> str:
        """Reads the users in another process. If the database file seemed to be unused, SQLite would delete
        the write-ahead log when that process closes the file.
        """
        command = [sys.executable, "-c", READ, str(tmp_path / "hutch.db")]
        return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout

    async with await Store.open(settings) as first, await Store.open(settings):
        assert read_users() == "[]\n"
        await first.users.add(User(id="ada", name="ada", data_key="", created_at=now()))
        assert read_users() == "[('ada',)]\n"
