"""Finds the Deno binary, its version and shared libraries, and the guest bundle."""

from __future__ import annotations

import os
import re
import struct
import subprocess
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

from hutch.errors import SandboxUnavailable

_INSTALL = "Install it with `pip install deno`, or set HUTCH_DENO to the path of a Deno binary."
_PT_INTERP = 3

BUNDLE_FOLDER = Path(__file__).parent.parent / "guest" / "dist"
BUNDLE_FILES = (
    "entry.js",
    "quickjs.js",
    "quickjs.wasm",
    "image.bin",
    "image.json",
    "deno.js",
    "precompile.js",
    "typescript.js",
    "npm.js",
    "zod3.js",
    "script.js",
)
BUNDLE_REMEDY = "Build it with `make install` or `pip install .`."


# --- Deno ---


def find_deno() -> str:
    """Returns HUTCH_DENO if set, otherwise the binary of the `deno` package. Raises SandboxUnavailable."""
    chosen = os.environ.get("HUTCH_DENO")
    if chosen:
        if not os.access(chosen, os.X_OK) or not os.path.isfile(chosen):
            message = f"HUTCH_DENO is {chosen!r}, which is not an executable file."
            raise SandboxUnavailable(message, remedy=_INSTALL)
        return os.path.abspath(chosen)
    try:
        from deno import find_deno_bin

        return os.path.abspath(str(find_deno_bin()))
    except (ImportError, FileNotFoundError):
        raise SandboxUnavailable("Deno was not found.", remedy=_INSTALL) from None


@lru_cache
def deno_version(deno: str) -> str:
    return _packaged_version(deno) or _reported_version(deno)


def _packaged_version(deno: str) -> str | None:
    try:
        import deno as package
    except ImportError:
        return None
    try:
        if not os.path.samefile(package.find_deno_bin(), deno):
            return None
    except OSError:
        return None
    # Read the version from the folder's name. Importing importlib.metadata would take longer than running
    # `deno --version`.
    site = Path(package.__file__ or "").parent.parent
    versions = [path.name[5:-10] for path in site.glob("deno-*.dist-info")]
    return versions[0] if len(versions) == 1 else None


def _reported_version(deno: str) -> str:
    try:
        result = subprocess.run([deno, "--version"], env={}, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError) as error:
        raise SandboxUnavailable(f"{deno} does not run: {error}.", remedy=_INSTALL) from None
    match = re.match(r"deno (\S+)", result.stdout)
    if match is None:
        raise SandboxUnavailable(f"{deno} is not Deno.", remedy=_INSTALL)
    return match[1]


@lru_cache
def shared_libraries(deno: str) -> tuple[str, ...]:
    """Returns the loader and the libraries of a binary. Each path is the path where the loader looks for the
    file.
    """
    loader = elf_interpreter(deno)
    if loader is None:
        return ()
    # The environment is empty, as in the jail, so that LD_LIBRARY_PATH has no effect.
    result = subprocess.run([loader, "--list", deno], env={}, capture_output=True, text=True, timeout=10)
    if result.returncode != 0 or "not found" in result.stdout:
        reason = result.stderr.strip() or result.stdout.strip()
        raise SandboxUnavailable(f"The shared libraries of {deno} were not found: {reason}.", remedy=_INSTALL)
    paths = re.findall(r"(/\S+) \(0x[0-9a-f]+\)", result.stdout)
    return tuple(dict.fromkeys([loader, *paths]))


def elf_interpreter(binary: str) -> str | None:
    """Returns the loader that an ELF binary names in PT_INTERP, or None for a static binary."""
    try:
        with open(binary, "rb") as file:
            return _read_interpreter(file)
    except (OSError, struct.error) as error:
        raise SandboxUnavailable(f"{binary} cannot be read: {error}.", remedy=_INSTALL) from None


def _read_interpreter(file: BinaryIO) -> str | None:
    head = file.read(64)
    if head[:6] != b"\x7fELF\x02\x01":
        raise SandboxUnavailable(f"{file.name} is not a 64-bit ELF binary.", remedy=_INSTALL)
    table = struct.unpack_from("<Q", head, 32)[0]
    size, count = struct.unpack_from("<HH", head, 54)
    file.seek(table)
    headers = file.read(size * count)
    for start in range(0, size * count, size):
        kind, _, offset, _, _, length = struct.unpack_from("<IIQQQQ", headers, start)
        if kind == _PT_INTERP:
            file.seek(offset)
            return file.read(length).rstrip(b"\0").decode()
    return None


# --- guest bundle ---


def missing_bundle_files(folder: Path = BUNDLE_FOLDER) -> list[str]:
    return [name for name in BUNDLE_FILES if not (folder / name).is_file()]


def bundle_folder() -> Path:
    """Returns the folder of the bundle. Raises SandboxUnavailable if files are missing."""
    if missing_bundle_files():
        raise SandboxUnavailable(
            f"The guest bundle lacks {', '.join(missing_bundle_files())}.", remedy=BUNDLE_REMEDY
        )
    return BUNDLE_FOLDER
