"""Builds the guest bundle with Deno, as a build hook for the wheel and as a command for `make install`.

The wheel contains the bundle; an editable install uses the one in `src/hutch/guest/dist`. The bundle contains
a digest of its sources and is only rebuilt when they have changed.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parent
GUEST = ROOT / "src/hutch/guest"
BUNDLE = GUEST / "dist"
BUNDLE_FILES = (
    "entry.js",
    "image.bin",
    "image.json",
    "quickjs.js",
    "quickjs.wasm",
    "deno.js",
    "precompile.js",
    "typescript.js",
    "npm.js",
    "zod3.js",
    "script.js",
)
SOURCE_SUFFIXES = (".ts", ".js", ".json", ".lock", ".wasm")
DIGEST_FILE = ".sources"

# Deno's messages for a failed download.
DOWNLOAD_ERRORS = ("error sending request", "Failed caching npm package", "Bad response")


class BundleError(Exception):
    """The guest bundle cannot be built."""


class GuestBundle(BuildHookInterface[Any]):
    """Adds the bundle to the wheel, or builds it in the source tree for an editable install."""

    PLUGIN_NAME = "custom"

    _temporary: tempfile.TemporaryDirectory[str] | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        try:
            if is_current():
                return
            if version == "editable" or (_writable(ROOT) and _writable(GUEST)):
                build()
            else:
                self._build_in_temporary_folder(build_data)
        except BundleError as error:
            self.app.abort(str(error))

    def _build_in_temporary_folder(self, build_data: dict[str, Any]) -> None:
        """Builds the bundle for a wheel from a read-only source tree."""
        self._temporary = tempfile.TemporaryDirectory(prefix="hutch-guest-")
        folder = Path(self._temporary.name)
        bundle(folder / "dist", cache=folder / "deno")
        (folder / "dist" / DIGEST_FILE).unlink()
        for file in (folder / "dist").iterdir():
            build_data["force_include"][str(file)] = f"hutch/guest/dist/{file.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self._temporary is not None:
            self._temporary.cleanup()


def is_current() -> bool:
    """Whether the bundle in the source tree is complete and was built from these sources by this Deno."""
    digest = BUNDLE / DIGEST_FILE
    if not all((BUNDLE / name).is_file() for name in BUNDLE_FILES) or not digest.is_file():
        return False
    return digest.read_text() == _digest()


def build() -> None:
    """Builds the bundle in the source tree and replaces the old one atomically."""
    scratch = ROOT / "build"
    try:
        scratch.mkdir(exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix="guest-", dir=scratch))
    except OSError as error:
        raise BundleError(f"The guest bundle cannot be built: {error}. Make {ROOT} writable.") from None
    try:
        bundle(temporary / "new", cache=scratch / "deno")
        if BUNDLE.exists():
            BUNDLE.rename(temporary / "old")
        (temporary / "new").rename(BUNDLE)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def bundle(out: Path, *, cache: Path) -> None:
    """Writes the bundle to `out` with Deno. Downloads go to `cache` unless DENO_DIR is set."""
    main = GUEST / "build/main.ts"
    if not main.is_file():
        raise BundleError(f"The guest bundle cannot be built: {main} is missing. Use a complete source tree.")
    digest = _digest()
    out.mkdir(parents=True)
    environ = dict(os.environ, NO_COLOR="1")
    environ["DENO_DIR"] = str(Path(environ.get("DENO_DIR") or cache).absolute())
    environ.setdefault("DENO_NO_UPDATE_CHECK", "1")
    # By default Deno trusts only Mozilla's authorities; that of a company's proxy is in the system's store.
    environ.setdefault("DENO_TLS_CA_STORE", "mozilla,system")
    command = [_deno(), "run", "-A", "--frozen", str(main.relative_to(ROOT)), str(out)]
    try:
        done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BundleError(f"The guest bundle cannot be built: Deno does not start: {error}.") from None
    if done.returncode:
        raise BundleError(_explain(done))
    if missing := [name for name in BUNDLE_FILES if not (out / name).is_file()]:
        raise BundleError(f"The guest bundle is incomplete: {main} did not write {', '.join(missing)}.")
    (out / DIGEST_FILE).write_text(digest)


def _digest() -> str:
    """Returns a digest of the version of Deno and of all sources except tests."""
    digest = hashlib.sha256(importlib.metadata.version("deno").encode())
    for path in sorted(GUEST.rglob("*")):
        name = path.relative_to(GUEST)
        if path.suffix not in SOURCE_SUFFIXES or name.parts[0] in ("dist", "tests"):
            continue
        digest.update(f"\0{name.as_posix()}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _deno() -> str:
    """Returns the path of the Deno binary in the `deno` wheel.

    `deno.find_deno_bin()` searches next to the interpreter, where an isolated build has no requirements.
    """
    for file in importlib.metadata.files("deno") or ():
        if file.name == "deno" and file.parent.name == "bin":
            return str(Path(str(file.locate())).resolve())
    raise BundleError(
        "The guest bundle cannot be built: the `deno` package has no binary for this machine. "
        "There are wheels for Linux (glibc) and macOS on x86-64 and arm64."
    )


def _explain(done: subprocess.CompletedProcess[str]) -> str:
    lines = (done.stderr.strip() or done.stdout.strip()).split("\nStack backtrace")[0].splitlines()
    output = "\n".join(line for line in lines if not line.startswith("Download ")).strip()
    text = f"The guest bundle cannot be built: Deno exited with {done.returncode}:\n\n{output}\n"
    if "lockfile" in output:
        return f"{text}\nThe guest's deno.json was changed without its lock file: run `make lock`."
    if any(error in output for error in DOWNLOAD_ERRORS):
        return (
            f"{text}\nDeno could not download the guest's npm packages. "
            "Set NPM_CONFIG_REGISTRY for another registry, HTTPS_PROXY for a proxy, DENO_CERT (a PEM file) "
            "for your own certificate authority; or set DENO_DIR to a folder that already has the packages."
        )
    return text


def _writable(folder: Path) -> bool:
    """Whether files can be created there. Checking permissions would miss read-only mounts."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


if __name__ == "__main__":
    try:
        if not is_current():
            print("building the guest bundle", file=sys.stderr)
            build()
    except BundleError as error:
        sys.exit(str(error))
