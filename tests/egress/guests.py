"""Runs package code in a real jail, with real packages and the guest's network script."""

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

from hutch.egress.policy import EgressPolicy
from hutch.egress.proxy.proxy import EgressProxy
from hutch.sandbox import deno_binary
from hutch.sandbox.jail.jail import Launch, Mount
from hutch.sandbox.jail.netns import NetnsListener

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "axios": "1.21.1",
    "got": "16.1.0",
    "is-network-error": "1.3.2",
    "node-fetch": "3.3.2",
    "p-retry": "9.0.0",
    "undici": "8.12.4",
    "ws": "8.22.2",
}
PORT = 3128
FLAGS = ("--no-prompt", "--quiet", "--no-config", "--no-lock", "--no-remote", "--cached-only", "--no-check")
# Entry module of the guest, which waits until the host listens. Like the runner, the module loads no part of
# Node before the package.
ENTRY = """
import { blockNetwork, useProxy } from "./network.js";
const [script, mode, ...args] = Deno.args;
Deno.stdin.readSync(new Uint8Array(1));
globalThis.loads = 0;
const known = Object.getOwnPropertyDescriptor(globalThis, "process");
Object.defineProperty(globalThis, "process", { ...known, get: () => (loads++, known.get.call(globalThis)) });
if (mode === "none") blockNetwork(args[0] ?? "");
else useProxy("http://127.0.0.1:%d");
globalThis.attempt = async (action) => {
  try {
    return String(await action());
  } catch (error) {
    // The reason of a failed `fetch` is in its cause.
    const reason = error.message === "fetch failed" ? `: ${error.cause?.message}` : "";
    return `${error.name}: ${error.message}${reason}`;
  }
};
const { default: run } = await import(`/pkg/${script}`);
console.log(JSON.stringify(await run(...args)));
Deno.exit(0);
"""


def deno(*arguments: str, cwd: Path) -> None:
    """Runs Deno outside of a jail, with the packages that the build has downloaded."""
    environment = {"DENO_DIR": str(ROOT / "build/deno"), "DENO_TLS_CA_STORE": "mozilla,system", **os.environ}
    command = [deno_binary.find_deno(), *arguments]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


class Guests:
    def __init__(self, tree: Path) -> None:
        self._tree = tree
        self._numbers = itertools.count(1)
        self._jail = jails.container()
        self._netns_listener = NetnsListener()
        bundle = (
            "bundle",
            "--quiet",
            "--platform=deno",
            "-o",
            str(tree / "network.js"),
            "npm/network/main.ts",
        )
        deno(*bundle, cwd=ROOT / "src/hutch/guest")
        (tree / "entry.mjs").write_text(ENTRY % PORT)
        (tree / "package.json").write_text(json.dumps({"dependencies": PACKAGES}))
        deno("install", "--quiet", cwd=tree)

    async def run(self, code: str, *args: object, policy: EgressPolicy, kind: str = "mjs") -> Any:
        """Runs code in the guest and returns the result of its default export. With the policy `none`, the
        guest has no proxy.
        """
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
            listener, dns = await self._netns_listener.listen_with_dns(pid, PORT)
            proxy = await EgressProxy.start(listener, policy, dns=dns)
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
        out, err = await asyncio.to_thread(child.communicate, "go", jails.TIMEOUT_SECONDS)
        assert child.returncode == 0, err
        return json.loads(out.splitlines()[-1])

    async def close(self) -> None:
        await self._netns_listener.close()
