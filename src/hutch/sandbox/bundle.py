"""The guest bundle: what the build made of the runners' TypeScript."""

from __future__ import annotations

from pathlib import Path

from hutch.errors import SandboxUnavailable

FOLDER = Path(__file__).parent.parent / "guest" / "dist"
FILES = (
    "entry.js",
    "quickjs.js",
    "quickjs.wasm",
    "image.bin",
    "image.json",
    "deno.js",
    "preparing.js",
    "typescript.js",
    "npm.js",
    "script.js",
)
REMEDY = "Build it with `make install` or `pip install .`."


def missing(folder: Path = FOLDER) -> list[str]:
    return [name for name in FILES if not (folder / name).is_file()]


def check() -> Path:
    """Where the bundle is. Raises SandboxUnavailable when it is not whole."""
    if missing():
        raise SandboxUnavailable(f"The guest bundle lacks {', '.join(missing())}.", remedy=REMEDY)
    return FOLDER
