"""Inspects installed trees, and imports packages from the trees as a guest does."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from hutch.sandbox import deno_binary

FLAGS = ("--no-prompt", "--quiet", "--no-config", "--no-lock", "--no-remote", "--cached-only", "--no-check")
PROGRAM = """
try {
  const { default: load } = await import(Deno.args[0]);
  console.log(JSON.stringify(Object.keys(await load())));
} catch (error) {
  console.log(JSON.stringify(String(error)));
}
"""


def exports(tree: Path) -> Any:
    """Imports a package. Returns the names of its exports, or the error as a string."""
    command = [
        deno_binary.find_deno(),
        "run",
        *FLAGS,
        "--node-modules-dir=manual",
        f"--allow-read={tree}",
        "-",
    ]
    done = subprocess.run(
        [*command, f"{tree.as_uri()}/load.mjs"],
        input=PROGRAM.encode(),
        capture_output=True,
        env={"DENO_DIR": "/dev/null/deno", "NO_COLOR": "1"},
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def contents(folder: Path) -> bytes:
    """Returns the names and contents of all files below a folder, and the targets of links."""
    parts = []
    for path in sorted(folder.rglob("*")):
        parts.append(str(path.relative_to(folder)).encode())
        if path.is_symlink():
            parts.append(str(path.readlink()).encode())
        elif path.is_file():
            parts.append(path.read_bytes())
    return b"\n".join(parts)
