"""Process that reads and writes a user's credentials until its stdin is closed.

At the end, the process prints the number of rounds. It fails if it reads a wrong value.
"""

from __future__ import annotations

import asyncio
import os
import sys

from hutch import settings
from hutch.store.store import Store
from hutch.vault.vault import Vault

HOST = "api.example.com"


async def main() -> None:
    loaded = settings.load_settings()
    async with await Store.open(loaded) as store:
        vault = await Vault.open(store, loaded.home_path, os.environ)
        stop = asyncio.Event()
        asyncio.get_running_loop().add_reader(sys.stdin, stop.set)
        user = await store.users.by_name("bo")
        assert user is not None
        print("ready", flush=True)
        count = 0
        while not stop.is_set():
            # Do not read the user again. The vault must still work with the oldest possible copy of the user.
            found = {each.credential.key: each.value for each in await vault.secrets(user, [HOST])}
            expected = {f"key-{number}": f"value {number}" for number in range(20)} | {"written": str(count)}
            if count == 0:
                expected.pop("written")
            assert found == expected, f"round {count}: {sorted(found)}"
            count += 1
            await vault.put_credential(user, HOST, "header", "written", str(count))
            if count == 3:
                print("reading", flush=True)
        print(count)


asyncio.run(main())
