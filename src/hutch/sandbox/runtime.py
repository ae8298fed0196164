"""Where the Deno binary is, which version it has, and which files of the host it needs in order to run."""

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


def locate() -> str:
    """The path of the Deno binary: HUTCH_DENO where it is set, else the one of the `deno` package.

    Raises SandboxUnavailable when there is none.
    """
    chosen = os.environ.get("HUTCH_DENO")
    if chosen:
        if not os.access(chosen, os.X_OK) or not os.path.isfile(chosen):
            what = f"HUTCH_DENO is {chosen!r}, which is not an executable file."
            raise SandboxUnavailable(what, remedy=_INSTALL)
        return os.path.abspath(chosen)
    try:
        from deno import find_deno_bin

        return os.path.abspath(str(find_deno_bin()))
    except (ImportError, FileNotFoundError):
        raise SandboxUnavailable("Deno was not found.", remedy=_INSTALL) from None


@lru_cache
def version(deno: str) -> str:
    """The version of a Deno binary, from the package's metadata when it belongs to one, else by asking it."""
    return _packaged_version(deno) or _asked_version(deno)


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
    # importlib.metadata takes longer to import than Deno takes to answer.
    site = Path(package.__file__ or "").parent.parent
    found = [path.name[5:-10] for path in site.glob("deno-*.dist-info")]
    return found[0] if len(found) == 1 else None


def _asked_version(deno: str) -> str:
    try:
        told = subprocess.run([deno, "--version"], env={}, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError) as error:
        raise SandboxUnavailable(f"{deno} does not run: {error}.", remedy=_INSTALL) from None
    found = re.match(r"deno (\S+)", told.stdout)
    if found is None:
        raise SandboxUnavailable(f"{deno} does not say that it is Deno.", remedy=_INSTALL)
    return found[1]


@lru_cache
def libraries(deno: str) -> tuple[str, ...]:
    """The loader and the shared libraries of a binary, each at the path where the loader looks for it.

    The loader itself says which; a static binary needs none.
    """
    loader = interpreter(deno)
    if loader is None:
        return ()
    # Without the environment, as in the jail: LD_LIBRARY_PATH must not lead it elsewhere.
    told = subprocess.run([loader, "--list", deno], env={}, capture_output=True, text=True, timeout=10)
    if told.returncode != 0 or "not found" in told.stdout:
        reason = told.stderr.strip() or told.stdout.strip()
        raise SandboxUnavailable(f"The shared libraries of {deno} were not found: {reason}.", remedy=_INSTALL)
    paths = re.findall(r"(/\S+) \(0x[0-9a-f]+\)", told.stdout)
    return tuple(dict.fromkeys([loader, *paths]))


def interpreter(binary: str) -> str | None:
    """The loader that an ELF binary names in PT_INTERP, or None for a static one."""
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
