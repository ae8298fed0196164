"""Baseline for tools: installs the package and starts a program for every call."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from pathlib import Path

import msgspec

from hutch.sandbox import deno_binary

_SCRIPT = """
const tool = (await import(PACKAGE))[NAME];
console.log(JSON.stringify(await tool.execute(PARAMS)));
"""


def program() -> str:
    """Returns "node" if Node and npm are installed, else "deno"."""
    return "node" if shutil.which("node") and shutil.which("npm") else "deno"


async def naive_call(package: str, version: str, name: str, params: dict[str, object]) -> float:
    """Installs the package in a new folder and runs a program that calls the tool. Returns the seconds that
    both take. The only warm cache is the package manager's own.
    """
    with tempfile.TemporaryDirectory(prefix="hutch-bench-") as folder:
        script = _SCRIPT
        for word, value in {"PACKAGE": package, "NAME": name, "PARAMS": params}.items():
            script = script.replace(word, msgspec.json.encode(value).decode(), 1)
        (Path(folder) / "call.mjs").write_text(script)
        (Path(folder) / "package.json").write_bytes(msgspec.json.encode({"dependencies": {package: version}}))
        began = time.perf_counter()
        for command in _commands():
            await _succeed(command, folder)
        return time.perf_counter() - began


async def install(package: str, version: str, folder: str) -> float:
    """Returns the seconds that Deno's installer takes with an empty cache. They show how long the registry
    takes.
    """
    (Path(folder) / "package.json").write_bytes(msgspec.json.encode({"dependencies": {package: version}}))
    began = time.perf_counter()
    await _succeed([deno_binary.find_deno(), "install", "--quiet"], folder, DENO_DIR=f"{folder}/cache")
    return time.perf_counter() - began


def _commands() -> list[list[str]]:
    if program() == "node":
        return [["npm", "install", "--silent", "--no-audit", "--no-fund"], ["node", "call.mjs"]]
    deno = deno_binary.find_deno()
    return [[deno, "install", "--quiet"], [deno, "run", "--quiet", "--allow-all", "call.mjs"]]


async def _succeed(command: list[str], folder: str, **env: str) -> None:
    environment = {"DENO_TLS_CA_STORE": "mozilla,system", **os.environ, **env, "NO_COLOR": "1"}
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, env=environment, stdout=asyncio.subprocess.DEVNULL
    )
    if await process.wait() != 0:
        raise RuntimeError(f"{command[0]} failed")
