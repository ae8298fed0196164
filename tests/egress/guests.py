"""Code as a package's would be: in a real jail, with real packages, behind the guest's own network script."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.sandbox import jails

from hutch.egress.policy import Policy
from hutch.egress.proxy import Proxy
from hutch.sandbox import runtime
from hutch.sandbox.jail import Launch, Mount
from hutch.sandbox.network import Doorkeeper

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "axios": "1.21.1",
    "got": "16.1.0",
    "node-fetch": "3.3.2",
    "undici": "8.12.4",
    "ws": "8.22.2",
}
PORT = 3128
FLAGS = ("--no-prompt", "--quiet", "--no-config", "--no-lock", "--no-remote", "--cached-only", "--no-check")
# As the runner does: nothing of Node is there before the package is. Waits until the host has listened.
ENTRY = """
import { noNetwork, useProxy } from "./network.js";
const [script, mode, ...args] = Deno.args;
Deno.stdin.readSync(new Uint8Array(1));
globalThis.loads = 0;
const known = Object.getOwnPropertyDescriptor(globalThis, "process");
Object.defineProperty(globalThis, "process", { ...known, get: () => (loads++, known.get.call(globalThis)) });
if (mode === "none") noNetwork(args[0] ?? "");
else useProxy("http://127.0.0.1:%d");
globalThis.attempt = async (action) => {
  try {
    return String(await action());
  } catch (error) {
    return `${error.name}: ${error.message}`;
  }
};
const { default: run } = await import(`/pkg/${script}`);
console.log(JSON.stringify(await run(...args)));
Deno.exit(0);
"""


def deno(*arguments: str, cwd: Path) -> None:
    """Deno outside of a jail, with its downloads kept where the build keeps them."""
    environment = {"DENO_DIR": str(ROOT / "build/deno"), "DENO_TLS_CA_STORE": "mozilla,system", **os.environ}
    command = [runtime.locate(), *arguments]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


class Guests:
    """Runs code in a tree of packages."""

    def __init__(self, tree: Path) -> None:
        self._tree = tree
        self._numbers = itertools.count(1)
        self._jail = jails.container()
        self._doorkeeper = Doorkeeper()
        bundle = ("bundle", "--quiet", "--platform=deno", "-o", str(tree / "network.js"), "npm/network.ts")
        deno(*bundle, cwd=ROOT / "src/hutch/guest")
        (tree / "entry.mjs").write_text(ENTRY % PORT)
        (tree / "package.json").write_text(json.dumps({"dependencies": PACKAGES}))
        deno("install", "--quiet", cwd=tree)

    async def run(self, code: str, *args: object, policy: Policy, kind: str = "mjs") -> Any:
        """What the code's default export returns. With the mode `none` it has no proxy."""
        script = f"{next(self._numbers)}.{kind}"
        (self._tree / script).write_text(code)
        arguments = ("/pkg/entry.mjs", script, policy.mode, *map(str, args))
        launch = Launch(
            (self._jail.deno, "run", *FLAGS, "--node-modules-dir=manual", "-A", *arguments),
            mounts=(Mount(str(self._tree), "/pkg"),),
        )
        with self._started(launch) as (child, pid):
            if policy.mode == "none":
                return await self._finish(child)
            proxy = await Proxy.start(await self._doorkeeper.listen(pid, PORT), policy)
            try:
                return await self._finish(child)
            finally:
                await proxy.close()

    @contextlib.contextmanager
    def _started(self, launch: Launch) -> Iterator[tuple[subprocess.Popen[str], int]]:
        read, write = os.pipe()
        pipe = subprocess.PIPE
        with self._jail.command(launch, info_fd=write) as command:
            child = subprocess.Popen(
                command.argv, stdin=pipe, stdout=pipe, stderr=pipe, text=True, **command.options()
            )
        os.close(write)
        with os.fdopen(read) as info:
            pid = json.load(info)["child-pid"]
        with child:
            try:
                yield child, pid
            finally:
                child.kill()

    async def _finish(self, child: subprocess.Popen[str]) -> Any:
        out, err = await asyncio.to_thread(child.communicate, "go", jails.SECONDS)
        assert child.returncode == 0, err
        return json.loads(out.splitlines()[-1])

    async def close(self) -> None:
        await self._doorkeeper.close()
